"""What the job sees: the mount plan of the agent as bubblewrap's arguments, sources staged where needed."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from tidegate_executor.sandbox.shim import staging, syscalls

INSIDE_ID = 1000  # uid and gid of the job inside
HOLD_PATH = "/run/tidegate/hold"
MOUNTED = ("/proc", "/dev", "/tmp", "/home/job", "/var/cache/job")  # in a sandbox, whatever its image is
DIRECTORIES = ("/run", "/run/tidegate", "/home", "/var", "/var/cache", "/workspace")
FILES_NAME = "files"  # below the state directory, which only the agent's user may search
POINTS = "points"
BOUND = ("read", "write", "take")
SEEN_BY_BWRAP = "/oldroot"  # before what it mounts, in the options of overlays
BWRAP_UPPER = ("/tmp-overlay-upper-999", "/tmp-overlay-work-999")  # its own, of throw-away overlays
STACKED_MAX = 200  # layers whose staged names bubblewrap can put into the options of one overlay, with room left
OWNED = ("home", "cache", "upper", "work")


class Layout:
    """`points` are places inside layers, and whether each is a directory, that mounts to come need.

    Plan entries are [kind, source, target]:

    lower      image layer, below the next entry
    layer      image layer, throw-away upper       workspace  overlay with its upper in the state directory
    read       read-only bind                      write      read-write bind
    take       the same, given to the sandbox      link       symbolic link (source is its text)
    device     device node, bound in /dev
    """

    def __init__(self, config: dict[str, Any], mapping: staging.Mapping | None = None) -> None:
        self._files = os.path.join(config["state_dir"], FILES_NAME)
        self.uid: int | None = config["uid"]
        self._bwrap = config["bwrap"]
        self._hostname = config["hostname"]
        self._plan: list[list[str]] = config["plan"]
        self._ready = bool(config.get("ready"))
        self._points = [(str(target), bool(is_directory)) for target, is_directory in config.get("points", ())]
        self._seen: dict[int, str] = {}
        self._binary = self._bwrap["binary"]
        self._files_seen = self._files
        self._mapping = mapping

    def prepare(self) -> None:
        """Make the private directories, and give away what shall belong to the sandbox."""
        for name in OWNED:
            path = os.path.join(self._files, name)
            os.makedirs(path, mode=0o755)
            if self.uid is not None:
                staging.own(path, self.uid)
        make_points(self._files, self._plan, self._points)
        self.give()

    def give(self) -> None:
        """Give away what shall belong to the sandbox."""
        if self.uid is None:
            return
        for kind, source, _ in self._plan:
            if kind == "take":
                staging.take_ownership(source, self.uid)

    def stage(self) -> None:
        """In the forked child that becomes bubblewrap: as root, lay the sources out for the uid it will have.

        Not in the shim itself, which needs its own paths, and the stage hides some.
        """
        if self.uid is None:
            return
        staging.enter_private_namespace()
        site = self._bwrap["site"]
        sources = [source for kind, source, _ in self._plan if kind != "link"] + site + [self._files]
        mounts = {source for kind, source, _ in self._plan if kind in BOUND}
        stage = staging.Stage(list(dict.fromkeys(sources)), mounts)
        for directory in site:
            stage.bind(directory, f"site/{os.path.basename(directory)}")
        if site:
            self._binary = f"{staging.STAGE}/site/{os.path.relpath(self._binary, os.path.dirname(site[0]))}"
        self._files_seen = stage.bind(self._files, "files", recursive=False)
        for index, (kind, _, _) in enumerate(self._plan):
            if kind != "link":
                self._seen[index] = self._stage_entry(stage, index)
        stage.seclude()

    def _stage_entry(self, stage: staging.Stage, index: int) -> str:
        kind, source, target = self._plan[index]
        if kind in ("lower", "layer") and target == "/":
            assert self.uid is not None
            assert self._mapping is not None, "only the process that becomes bubblewrap stages"
            # Else nothing could be made in its directories, not even what the sandbox's own mounts need.
            return stage.bind_owned(source, f"{index}", (self._mapping, self.uid))
        if kind != "workspace":
            return stage.bind(source, f"{index}", recursive=kind not in ("lower", "layer"))
        assert self.uid is not None
        assert self._mapping is not None, "only the process that becomes bubblewrap stages"
        try:
            return stage.bind_owned(source, f"{index}", (self._mapping, self.uid))
        except OSError:
            # The file system or kernel cannot translate owners: a copy that belongs to the job does the same.
            target = os.path.join(self._files, "lower")
            staging.copy_owned(source, target, self.uid)
            return f"{self._files_seen}/lower"

    def staged(self) -> list[tuple[int, str, str, str]]:
        """After `stage`: each entry with its number, and its source where that is seen now; stacked layers as one.

        The sources of these are separated by colons, the topmost first, as overlayfs takes them.
        """
        entries = []
        stack: list[str] = []
        for index, (kind, source, target) in enumerate(self._plan):
            seen = self._seen.get(index, source)
            if kind in ("lower", "layer"):
                stack.insert(0, seen)
                seen = ":".join(stack)
            if kind != "lower":
                entries.append((index, kind, seen, target))
                stack = []
        return entries

    def private(self) -> dict[str, str]:
        """After `stage`: the sandbox's own directories by where they are seen inside."""
        return {"/home/job": f"{self._files_seen}/home", "/var/cache/job": f"{self._files_seen}/cache"}

    def workspace(self) -> tuple[str, str]:
        """After `stage`: the upper and the work directory of the workspace."""
        return f"{self._files_seen}/upper", f"{self._files_seen}/work"

    def drop_to_sandbox_uid(self) -> None:
        """In the same child, after `stage`."""
        if self.uid is not None:
            os.setgroups([])
            os.setresgid(self.uid, self.uid, self.uid)
            os.setresuid(self.uid, self.uid, self.uid)

    def _check_stacks(self) -> None:
        """Raise OSError where bubblewrap would mount an overlay of a part of its layers: its options fill a page."""
        places: list[str] = []
        for index, (kind, source, _) in enumerate(self._plan):
            if kind in ("lower", "layer", "workspace"):
                places.append(f"{SEEN_BY_BWRAP}{os.path.realpath(self._seen.get(index, source))}")
            if kind == "workspace":
                upper, work = (f"{SEEN_BY_BWRAP}{place}" for place in self.workspace())
            elif kind == "layer":
                upper, work = BWRAP_UPPER
                places += [f"{SEEN_BY_BWRAP}{points}"] if (points := points_of(self._files, index)) else []
            else:
                continue
            syscalls.checked_options(f"{staging.overlay_options(places, upper, work)},userxattr")
            places = []

    def arguments(self, info: int, contents: dict[str, int]) -> list[str]:
        self._check_stacks()
        inside = str(INSIDE_ID)
        head = [
            self._binary, "--unshare-all", "--unshare-user", "--disable-userns", "--uid", inside, "--gid", inside,
            "--hostname", self._hostname, "--as-pid-1", "--die-with-parent", "--new-session",
            "--cap-drop", "ALL", "--clearenv", "--info-fd", str(info), "--seccomp", str(contents["seccomp"]),
        ]  # fmt: skip
        rooted = [index for index, (_, _, target) in enumerate(self._plan) if target == "/"]
        body = [item for index in rooted for item in self._entry(index, *self._plan[index])]
        # First, for a layer may lie below it (a virtual environment in a checkout in /tmp) and must not be hidden.
        body += ["--perms", "1777", "--tmpfs", "/tmp"]
        body += [item for name in self._parents() for item in ("--dir", name)]
        plain = [index for index, (kind, _, _) in enumerate(self._plan) if index not in rooted and kind != "device"]
        private = self.private()
        below = [index for index in plain if self._plan[index][2].startswith(tuple(f"{place}/" for place in private))]
        body += [item for index in plain if index not in below for item in self._entry(index, *self._plan[index])]
        body += [item for place, source in private.items() for item in ("--bind", source, place)]
        body += [item for index in below for item in self._entry(index, *self._plan[index])]
        body += ["--proc", "/proc", "--dev", "/dev"]
        for index, (kind, source, target) in enumerate(self._plan):
            body += ["--dev-bind", self._seen.get(index, source), target] if kind == "device" else []
        if not self._ready:  # else it comes later, and nothing is mounted on a file that has no name
            body += ["--perms", "0444", "--ro-bind-data", str(contents["hosts"]), "/etc/hosts"]
        body += ["--perms", "0555", "--ro-bind-data", str(contents["hold"]), HOLD_PATH]
        # A root of the image's own is a throw-away overlay, as its other layers are.
        body += [] if rooted else ["--remount-ro", "/"]
        return [*head, *body, "--chdir", "/", "--", HOLD_PATH]

    def _entry(self, index: int, kind: str, source: str, target: str) -> list[str]:
        seen = self._seen.get(index, source)
        files = self._files_seen
        if kind == "lower":
            return ["--overlay-src", seen]
        if kind == "layer":
            points = points_of(files, index)
            extra = ["--overlay-src", points] if points else []
            return ["--overlay-src", seen, *extra, "--tmp-overlay", target]
        if kind == "workspace":
            return ["--overlay-src", seen, "--overlay", f"{files}/upper", f"{files}/work", target]
        if kind == "link":
            return ["--symlink", source, target]
        return ["--ro-bind" if kind == "read" else "--bind", seen, target]

    def _parents(self) -> list[str]:
        """Directories above the targets, made readable for all before anything is mounted on them."""
        found = dict.fromkeys(DIRECTORIES)
        for _, _, target in self._plan:
            parts = target.strip("/").split("/")[:-1]
            found.update(dict.fromkeys("/" + "/".join(parts[: depth + 1]) for depth in range(len(parts))))
        return sorted(found)


def make_points(files: str, plan: list[list[str]], more: Iterable[tuple[str, bool]] = ()) -> None:
    """Places for what is mounted inside a layer, as one more layer: the sandbox may create none in the others.

    `more` are places, and whether each is a directory, for what is not in the plan yet.
    """
    wanted = [(target, os.path.isdir(source)) for kind, source, target in plan if kind in BOUND]
    for index, (kind, _, base) in enumerate(plan):
        if kind != "layer" or base == "/":
            continue
        for target, is_directory in (*wanted, *more):
            if target.startswith(f"{base}/"):
                point = f"{files}/{POINTS}.{index}{target[len(base) :]}"
                os.makedirs(point if is_directory else os.path.dirname(point), mode=0o755, exist_ok=True)
                if not is_directory:
                    os.close(os.open(point, os.O_CREAT | os.O_CLOEXEC, 0o644))


def points_of(files: str, index: int) -> str:
    """Return where those of this entry are; empty where it has none."""
    path = f"{files}/{POINTS}.{index}"
    return path if os.path.isdir(path) else ""


def hosts_text(hostname: str, network: dict[str, Any] | None) -> bytes:
    """/etc/hosts: the sandbox knows itself and nobody else, by the address that others of its job know it by."""
    own = f"{network['address']} {hostname}\n" if network is not None else ""
    return f"127.0.0.1 localhost{'' if own else f' {hostname}'}\n::1 localhost\n{own}".encode()
