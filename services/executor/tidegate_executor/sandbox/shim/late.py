"""Mounts for a sandbox that stands already: gathered where their sources are seen, attached in its mount namespace.

Done by a child of the shim, which goes from the one to the other and ends; what is attached stays. Its end takes long,
for a mount namespace ends with it, so it comes a little later, and nobody waits for it: the shim reaps it. Nothing of
a job may run in the sandbox before: who could change its files meanwhile could lead a mount elsewhere.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import select
import stat
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

from tidegate_executor.sandbox.shim import staging, syscalls
from tidegate_executor.sandbox.shim.hands import Gathered, Hands
from tidegate_executor.sandbox.shim.hold import executable
from tidegate_executor.sandbox.shim.layout import (
    DIRECTORIES,
    FILES_NAME,
    HOLD_PATH,
    hosts_text,
    make_points,
    points_of,
)
from tidegate_executor.sandbox.shim.processes import end_child

COMPLAINT_BYTES_MAX = 2000
READY, DONE = b"\1", b"\2"
LINGER_SECONDS = 0.1  # what is started now has the processors until then
LENGTH = "<I"
KINDS = ("lower", "layer", "link", "read", "write", "take", "workspace", "device")  # of entries that can come late
HOSTS_PATH = "/etc/hosts"
PLACE_NAME = "late"  # below the state directory


class LateError(Exception):
    """What a sandbox needs could not be mounted in it; the text says why."""


class Carrier:
    """That child, forked while there is time, with all it needs but the word what to mount; it ends without one."""

    def __init__(self, attach: Callable[[dict[str, Any], list[Gathered]], None], state_dir: str) -> None:
        """`attach` is what it does, with the configuration by then and the mounts that it has gathered.

        Raises LateError.
        """
        self._mapping = staging.Mapping()
        tell_read, self._tell = os.pipe()
        self._report, report_write = os.pipe()
        self._child = os.fork()
        if self._child == 0:
            os.close(self._tell)
            _be_carrier(self._mapping, (tell_read, report_write), (attach, state_dir))
        os.close(tell_read)
        os.close(report_write)
        self._hear(READY)  # the state directory gets another name as soon as somebody takes the sandbox

    def begin(self, config: dict[str, Any], late: list[list[str]]) -> None:
        """Tell it to have the mounts of these plan entries, and /etc/hosts, attached."""
        named = {name: config[name] for name in ("state_dir", "uid", "network", "hostname")}
        kept = [target for kind, source, target in config["plan"] if [kind, source, target] not in late]
        named["links"] = {target: source for kind, source, target in config["plan"] if kind == "link"}
        # Of mounts made since it was forked it may know nothing, and see the empty directory below one.
        seen = {source: _identity(os.stat(source)) for kind, source, _ in late if kind != "link"}
        text = json.dumps({**named, "late": late, "kept": kept, "seen": seen}).encode()
        left = struct.pack(LENGTH, len(text)) + text
        with suppress(BrokenPipeError):  # it says why it ended, if it did
            while left:
                left = left[os.write(self._tell, left) :]
        for kind, source, _ in late:
            if kind == "take" and config["uid"] is not None:
                staging.take_ownership(source, config["uid"])

    def end(self) -> None:
        """Return when it has. Raises LateError."""
        self._hear(DONE)
        self._mapping.close()

    def _hear(self, wanted: bytes) -> None:
        report = os.read(self._report, COMPLAINT_BYTES_MAX)  # one write, or the end
        if report != wanted:
            raise LateError(report.decode(errors="replace") or "what mounts it ended early")

    def close(self) -> None:
        """Need it no more."""
        for descriptor in (self._tell, self._report):
            if descriptor >= 0:
                os.close(descriptor)
        self._tell = self._report = -1
        end_child(self._child)
        self._mapping.end()


def _be_carrier(
    mapping: staging.Mapping,
    pipes: tuple[int, int],
    work: tuple[Callable[[dict[str, Any], list[Gathered]], None], str],
) -> NoReturn:
    tell, report = pipes
    attach, state_dir = work
    try:
        if os.geteuid() != 0:
            attach = Hands(attach).attach
        gathering = Gathering(mapping, state_dir)
        os.write(report, READY)
        with open(tell, "rb", buffering=0, closefd=False) as hearing:
            length = hearing.read(struct.calcsize(LENGTH))
            if not length:
                os._exit(0)  # nobody needs us
            # Not to the end, which comes late: processes that were forked since hold the pipe too.
            left, text = struct.unpack(LENGTH, length)[0], b""
            while part := hearing.read(left - len(text)):
                text += part
        config = json.loads(text)
        attach(config, gathering.all_of(config))
        os.write(report, DONE)
        select.select([tell], [], [], LINGER_SECONDS)
    except BaseException as error:  # noqa: BLE001 - the report is the only way out of a forked child
        os.write(report, f"{type(error).__name__}: {error}".encode()[:COMPLAINT_BYTES_MAX])
    finally:
        os._exit(0)


class Gathering:
    """Makes copies of mounts, in a mount namespace of its own that hides no source, with a tmpfs for what needs one."""

    def __init__(self, mapping: staging.Mapping, state_dir: str) -> None:
        """Make ready, below the state directory of the sandbox that waits."""
        self._mapping = mapping
        if os.geteuid() != 0:
            staging.enter_own_user_namespace()
        staging.enter_private_namespace()
        os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)  # else it would end as we leave it, not when we do
        place = os.path.join(state_dir, PLACE_NAME)
        os.mkdir(place, 0o700)
        syscalls.mount("tmpfs", place, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, "mode=755")
        os.chdir(place)  # the state directory gets another name
        self._names = map(str, itertools.count())
        self._stack: list[str] = []
        self._hosts = os.open("hosts", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o444)
        self._hold = os.open("hold", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o555)
        os.write(self._hold, executable(os.uname().machine))
        self._rehearse()

    def _rehearse(self) -> None:
        """Go the way once where nothing comes of it: it copies memory that is the zygote's too until then."""
        json.loads(json.dumps({"hostname": "ready", "late": [["read", "hosts", HOSTS_PATH]], "kept": []}))
        hosts_text("ready", None)
        os.close(_gathered(HOSTS_PATH, "hosts", writable=False).tree)

    def all_of(self, config: dict[str, Any]) -> list[Gathered]:
        """The mounts of the plan, stacked layers as one, then /etc/hosts."""
        plan: list[list[str]] = config["late"]
        for source, identity in config["seen"].items():
            if _identity(os.stat(source)) != identity:
                raise LateError(f"{source} is something else here, as something was mounted there since")
        make_points(os.path.join(config["state_dir"], FILES_NAME), plan)
        copied = [self._copied(config, index, entry) for index, entry in enumerate(plan)]
        found = [each for each in copied if each is not None]
        os.write(self._hosts, hosts_text(config["hostname"], config["network"]))
        if config["uid"] is not None:
            os.fchown(self._hosts, config["uid"], config["uid"])
        found.append(_gathered(HOSTS_PATH, "hosts", writable=False))
        if any(each.target == "/" for each in found):
            # The kernel moves no mount of a file that has no name any more, as bubblewrap's is.
            os.fchown(self._hold, config["uid"], config["uid"])
            found.append(_gathered(HOLD_PATH, "hold", writable=False))
        return found

    def _copied(self, config: dict[str, Any], index: int, entry: list[str]) -> Gathered | None:
        """None where it is not a mount by itself."""
        kind, source, target = entry
        for link, leads in config["links"].items():
            if target.startswith(f"{link}/"):  # of the few in a sandbox's root, which are the agent's
                target = os.path.join("/", leads) + target[len(link) :]
        files = os.path.join(config["state_dir"], FILES_NAME)
        if kind not in KINDS:
            raise LateError(f"{kind} at {target} cannot come late")
        if kind == "link":
            return None
        if kind in ("lower", "layer"):
            self._stack.insert(0, self._bound(source, config["uid"] if target == "/" else None))
        if kind == "lower":
            return None
        if kind == "layer":
            points = points_of(files, index)
            stack, self._stack = self._stack, []
            if points:
                stack.insert(0, self._bound(points, None))
            return _gathered(target, self._overlay(stack, config["uid"]), writable=True)
        if kind == "workspace":
            return _gathered(target, self._lay_workspace(source, files, config["uid"]), writable=True)
        if kind == "device":
            return _gathered(target, source, writable=True, device=True)
        opened = staging.open_without_links(source)  # jobs may write where it lies
        try:
            return _gathered(target, opened, writable=kind != "read")
        finally:
            os.close(opened)

    def _new(self) -> str:
        name = next(self._names)
        os.mkdir(name)
        return name

    def _bound(self, source: str, uid: int | None) -> str:
        """Where the directory is seen here; its owner's files as those of `uid`, if one is given."""
        place = self._new()
        opened = os.open(source, os.O_PATH | os.O_CLOEXEC)
        try:
            if uid is None:
                syscalls.mount(f"/proc/self/fd/{opened}", place, None, syscalls.MS_BIND)
            else:
                staging.bind_as(opened, place, (self._mapping, uid))
        finally:
            os.close(opened)
        return place

    def _overlay(self, stack: list[str], uid: int) -> str:
        """Where layers, the topmost first, are seen below a throw-away upper in memory."""
        upper, work, merged = (self._new() for _ in range(3))
        staging.own(upper, uid)
        syscalls.mount_overlay(merged, staging.overlay_options(stack, upper, work), uid)
        return merged

    def _lay_workspace(self, source: str, files: str, uid: int | None) -> str:
        try:
            lower = self._bound(source, uid)
        except OSError:
            # The file system or kernel cannot translate owners: a copy that belongs to the job does the same.
            if uid is None:  # its files are the job's user's already
                raise
            lower = os.path.join(files, "lower")
            staging.copy_owned(source, lower, uid)
        merged = self._new()
        options = staging.overlay_options([lower], f"{files}/upper", f"{files}/work")
        options += ",userxattr" if uid is None else ""  # what a user's namespace may have
        syscalls.mount_overlay(merged, options, uid)
        return merged


def _identity(status: os.stat_result) -> list[int]:
    return [status.st_dev, status.st_ino]


def _gathered(target: str, source: int | str, *, writable: bool, device: bool = False) -> Gathered:
    attributes = syscalls.MOUNT_ATTR_NOSUID | (0 if device else syscalls.MOUNT_ATTR_NODEV)
    attributes |= 0 if writable else syscalls.MOUNT_ATTR_RDONLY
    tree = syscalls.copy_mounts(source, attributes)
    return Gathered(target, tree, stat.S_ISDIR(os.fstat(tree).st_mode), writable)


def enter_root(tree: int, mounted: list[str], places: dict[str, bool], uid: int) -> None:
    """In the sandbox's mount namespace: make this its root, and take along what is `mounted` in it already.

    `places` are where more will be mounted, each with whether it is a directory. Where the image has none of all these,
    it gets one, which is the sandbox's.
    """
    at = "/workspace"  # a directory on which nothing is mounted yet
    attach(Gathered(at, tree, is_directory=True, writable=True), "/", at)
    for place, is_directory in (dict.fromkeys(DIRECTORIES, True) | places).items():
        _make_own_place(at + place, uid, is_directory=is_directory)
    for place in mounted:
        _make_own_place(at + place, uid, is_directory=os.path.isdir(place))
        syscalls.mount(place, at + place, None, syscalls.MS_MOVE)
    syscalls.change_root(at)


def _make_own_place(path: str, uid: int, *, is_directory: bool) -> None:
    if os.path.lexists(path):
        return
    _make_own_place(os.path.dirname(path), uid, is_directory=True)
    if is_directory:
        os.mkdir(path, 0o755)
    else:
        os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444))
    staging.own(path, uid)


def attach(each: Gathered, base: str, target: str) -> None:
    """Mount it below `base`, where something is made to mount it on if there is nothing. Raises OSError.

    No link below `base` is followed: an image may have one there, or an upload, or whoever else may write to a source.
    """
    place = open_place(base, target, is_directory=each.is_directory)
    try:
        syscalls.attach_mounts(each.tree, place)
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror} on {target}") from error
    finally:
        os.close(place)


def open_place(base: str, target: str, *, is_directory: bool) -> int:
    """See `attach`. What is there is not opened, but by its path alone: it may be a pipe, or a device."""
    flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
    held = os.open(base, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    *above, last = target.strip("/").split("/")
    for name, within in (*((name, True) for name in above), (last, is_directory)):
        try:
            try:
                below = os.open(name, flags, dir_fd=held)
            except FileNotFoundError:
                _make(name, held, is_directory=within)
                below = os.open(name, flags, dir_fd=held)
        finally:
            os.close(held)
        held = below
        if stat.S_ISLNK(os.fstat(held).st_mode):
            os.close(held)
            raise OSError(errno.ELOOP, f"there is a link at {name} of {target}, and none is followed")
    return held


def _make(name: str, directory: int, *, is_directory: bool) -> None:
    if is_directory:
        os.mkdir(name, 0o755, dir_fd=directory)
        return
    os.close(os.open(name, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444, dir_fd=directory))
