"""The files of a sandbox whose containers an engine makes: directories of its own, volumes, and how they are told of.

What is mounted in a container that stands already keeps its place when the sandbox gets another directory; whatever is
made later is told the new one.
"""

from __future__ import annotations

import os
from typing import Any

from tidegate_executor.sandbox.shim import staging
from tidegate_executor.sandbox.shim.engine import LABEL, Engine
from tidegate_executor.sandbox.shim.hold import executable
from tidegate_executor.sandbox.shim.layout import FILES_NAME, HOLD_PATH, hosts_text
from tidegate_executor.sandbox.shim.own_programs import send_signal, set_name

SIGNAL_PATH = f"{os.path.dirname(HOLD_PATH)}/signal"
NAME_PATH = f"{os.path.dirname(HOLD_PATH)}/name"
OWN = ("home", "cache", "workspace")  # directories that belong to the sandbox


class ContainerFiles:
    """See the module. `config` is the shim's, which may change as the sandbox is adopted."""

    def __init__(self, config: dict[str, Any], engine: Engine) -> None:
        self._config = config
        self._engine = engine
        self._group: str = config["docker"]["group"].strip("/")
        self._uid: int = config["uid"]
        self._layers: list[str] = []

    @property
    def _files(self) -> str:
        return os.path.join(self._config["state_dir"], FILES_NAME)

    def make(self) -> None:
        """Have all that is known. Raises EngineError."""
        self._make_files()
        self._make_layers()

    def know(self, hostname_path: str) -> None:
        """It is known now whose they are: have what that one brings. `hostname_path` is the engine's /etc/hostname."""
        workdir = self._config["docker"]["workdir"]
        if workdir is not None:
            staging.fill_owned(workdir, os.path.join(self._files, "workspace"), self._uid)
        # Files that are mounted in containers that stand: what they say changes, not which they are.
        name = f"{self._config['hostname']}\n".encode()
        for path, content in ((os.path.join(self._files, "hosts"), self._hosts()), (hostname_path, name)):
            with open(path, "wb") as writing:
                writing.write(content)

    def _hosts(self) -> bytes:
        return hosts_text(self._config["hostname"], self._config["network"])

    def _make_files(self) -> None:
        os.makedirs(self._files, mode=0o755)
        for name in OWN:
            path = os.path.join(self._files, name)
            os.mkdir(path, 0o755)
            staging.own(path, self._uid)
            if name == "workspace" and self._config["docker"]["workdir"] is not None:
                staging.fill_owned(self._config["docker"]["workdir"], path, self._uid)
        account = f"job:x:{self._uid}:{self._uid}:job:/home/job:/bin/sh\nroot:x:0:0:root:/root:/usr/sbin/nologin\n"
        group = f"job:x:{self._uid}:\nroot:x:0:\n"
        contents = {
            "hold": executable(os.uname().machine),
            "signal": send_signal(os.uname().machine),
            "name": set_name(os.uname().machine),
            "hosts": self._hosts(),
            "passwd": account.encode(),
            "group": group.encode(),
        }
        for name, content in contents.items():
            path = os.path.join(self._files, name)
            with open(path, "wb") as writing:
                writing.write(content)
            os.chmod(path, 0o555)
        self.give()

    def give(self) -> None:
        """Give away what shall belong to the sandbox."""
        for kind, source, _ in self._config["plan"]:
            if kind == "take":
                staging.take_ownership(source, self._uid)

    def _make_layers(self) -> None:
        """Have the volumes that all containers of the sandbox share."""
        lowers: list[str] = []
        for index, (kind, source, target) in enumerate(self._config["plan"]):
            if kind in ("lower", "layer"):
                lowers.insert(0, source)
            if kind == "layer":
                self._layers.append(f"{self._overlay(index, lowers)}:{target}:nocopy")
                lowers = []
        self._layers.append(f"{self._memory('tmp', '1777')}:/tmp:nocopy")

    def binds(self) -> list[str]:
        """What a container is told to mount."""
        files = self._files
        binds = [*self._layers, f"{files}/workspace:/workspace"]
        for kind, source, target in self._config["plan"]:
            if kind not in ("lower", "layer", "link"):
                binds.append(f"{source}:{target}" + ("" if kind in ("write", "take") else ":ro"))
        binds += [f"{files}/home:/home/job", f"{files}/cache:/var/cache/job", f"{files}/hold:{HOLD_PATH}:ro"]
        binds += [f"{files}/signal:{SIGNAL_PATH}:ro", f"{files}/name:{NAME_PATH}:ro"]
        return binds + [f"{files}/{name}:/etc/{name}:ro" for name in ("hosts", "passwd", "group")]

    def _overlay(self, index: int, lowers: list[str]) -> str:
        """A volume that shows stacked layers, the topmost first, below a throw-away upper."""
        upper, work = (os.path.join(self._files, f"{name}.{index}") for name in ("upper", "work"))
        os.mkdir(upper, 0o755)
        os.mkdir(work, 0o755)
        options = staging.overlay_options(lowers, upper, work)
        return self._volume(f"layer{index}", {"type": "overlay", "device": "overlay", "o": options})

    def _memory(self, name: str, mode: str) -> str:
        return self._volume(name, {"type": "tmpfs", "device": "tmpfs", "o": f"mode={mode},nosuid,nodev"})

    def _volume(self, name: str, options: dict[str, str]) -> str:
        full = f"{self._group.replace('/', '-')}-{name}"
        labels = {LABEL: self._group}
        self._engine.call(
            "POST", "/volumes/create", {"Name": full, "Driver": "local", "DriverOpts": options, "Labels": labels}
        )
        return full
