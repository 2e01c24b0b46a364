"""As root: lay the sandbox's sources out where a dropped uid can reach them, in a private mount namespace.

Sources (a virtual environment, a data directory) may lie below directories that the sandbox's uid cannot traverse.
Everything here is seen by one sandbox's bubblewrap only and is gone with it. It must never change a host mount.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterable

from tidegate_executor.sandbox.shim import syscalls
from tidegate_executor.sandbox.shim.processes import end_child

STAGE = "/tmp"  # replaced by a tmpfs in our namespace: exists everywhere, and every uid may traverse it
NESTING_MAX = 64


def enter_private_namespace() -> None:
    """Leave the host's mount namespace; its later unmounts still reach us, so that we pin nothing."""
    syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_SLAVE)


def enter_own_user_namespace() -> None:
    """Become who may mount, in a user namespace in which this process is who it is: for whoever is not root."""
    uid, gid = os.geteuid(), os.getegid()
    syscalls.make_dumpable()  # else its own maps are root's to write
    syscalls.unshare(syscalls.CLONE_NEWUSER)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as writing:
            writing.write(text)


def overlay_options(lowers: Iterable[str], upper: str, work: str) -> str:
    """Options of an overlay of these directories, the topmost of the lower ones first. Raises OSError: too many.

    What separates them is escaped in their names, as overlayfs reads it (`ovl_parse_param_split_lowerdirs`).
    """
    names = {"lowerdir": ":".join(map(escaped, lowers)), "upperdir": escaped(upper), "workdir": escaped(work)}
    return syscalls.checked_options(",".join(f"{name}={value}" for name, value in names.items()))


def escaped(path: str) -> str:
    return re.sub(r"([\\,:])", r"\\\1", path)


class Stage:
    """A tmpfs with one bind per source. Sources are opened before the tmpfs hides what lies at its place."""

    def __init__(self, sources: list[str], mounts: set[str]) -> None:
        """`sources` are host paths, all existing.

        Jobs may write where `mounts`, a part of them, lie: these are opened without following a link.
        """
        self._opened = {
            source: open_without_links(source) if source in mounts else os.open(source, os.O_PATH | os.O_CLOEXEC)
            for source in sources
        }
        self._paths: dict[str, str] = {}
        syscalls.mount("tmpfs", STAGE, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, "mode=755")

    def bind(self, source: str, name: str, *, recursive: bool = True) -> str:
        """Bind `source` at `name` below the stage; return the staged path."""
        path = self._place(source, name)
        flags = syscalls.MS_BIND | (syscalls.MS_REC if recursive else 0)
        syscalls.mount(f"/proc/self/fd/{self._opened[source]}", path, None, flags)
        return path

    def bind_owned(self, source: str, name: str, given: tuple[Mapping, int]) -> str:
        """Bind a directory so that its owner's files appear as those of the uid (and gid) given beside the mapping.

        For reading only: a file with a set-uid bit written through such a mount would belong to the owner on the host.
        """
        path = self._place(source, name)
        bind_as(self._opened[source], path, given)
        return path

    def seclude(self) -> None:
        """Have what is mounted below a source from now on not come here: it would be writable where that is not."""
        syscalls.mount("none", STAGE, None, syscalls.MS_REC | syscalls.MS_PRIVATE)

    def _place(self, source: str, name: str) -> str:
        path = f"{STAGE}/{name}"
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if os.path.isdir(f"/proc/self/fd/{self._opened[source]}"):
            os.mkdir(path)
        else:
            os.close(os.open(path, os.O_CREAT | os.O_CLOEXEC, 0o644))
        return path


def bind_as(source: int, path: str, given: tuple[Mapping, int]) -> None:
    """See `Stage.bind_owned`; `source` is a descriptor of the directory."""
    mapping, uid = given
    status = os.fstat(source)
    namespace = mapping.namespace(status.st_uid, status.st_gid, uid)
    try:
        syscalls.mount_idmapped(source, path, namespace)
    finally:
        os.close(namespace)


class Mapping:
    """A user namespace to translate owners with, made by a child before it is known from what to what.

    Whoever made it reaps that child, which ends when nobody holds `_done` any more.
    """

    def __init__(self) -> None:
        self._namespace: int | None = None
        self._owners = (0, 0, 0)
        self._ready, ready_write = os.pipe()
        done_read, self._done = os.pipe()
        self._child = os.fork()
        if self._child == 0:
            try:
                os.close(self._done)
                syscalls.unshare(syscalls.CLONE_NEWUSER)
                os.write(ready_write, b"\1")
                os.read(done_read, 1)
            finally:
                os._exit(0)
        os.close(ready_write)
        os.close(done_read)

    def namespace(self, uid: int, gid: int, to: int) -> int:
        """Have it translate owner (uid, gid) on disk to `to`, and no other; return its descriptor. Raises OSError."""
        if self._namespace is None:
            self._namespace = self._translate(uid, gid, to)
            self._owners = (uid, gid, to)
        if self._owners != (uid, gid, to):
            raise OSError(f"owner {uid}:{gid} is not translated here, where {self._owners} are")
        return os.dup(self._namespace)

    def _translate(self, uid: int, gid: int, to: int) -> int:
        if not os.read(self._ready, 1):
            raise OSError("cannot create a user namespace for an id-mapped mount")
        for name, owner in (("uid_map", uid), ("gid_map", gid)):
            descriptor = os.open(f"/proc/{self._child}/{name}", os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(descriptor, f"{owner} {to} 1".encode())
            finally:
                os.close(descriptor)
        return os.open(f"/proc/{self._child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        """Let go of it, in each process that has it; what was mounted with its namespace keeps that."""
        for descriptor in (self._ready, self._done):
            if descriptor >= 0:
                os.close(descriptor)
        self._ready = self._done = -1

    def end(self) -> None:
        """In who made it: have nothing of it left."""
        self.close()
        end_child(self._child)


def own(path: str, uid: int) -> None:
    """Give one directory to the sandbox."""
    os.chown(path, uid, uid)


def take_ownership(top: str, uid: int) -> None:
    """Give a tree to the sandbox's uid. Descriptors and no symbolic links: the tree, and its path, may be hostile."""
    opened = open_without_links(top)
    try:
        os.chown(f"/proc/self/fd/{opened}", uid, uid)
        if not stat.S_ISDIR(os.fstat(opened).st_mode):
            return
        for _, directories, files, descriptor in os.fwalk(".", dir_fd=opened, follow_symlinks=False):
            for name in files + directories:
                os.chown(name, uid, uid, dir_fd=descriptor, follow_symlinks=False)
    finally:
        os.close(opened)


def open_without_links(path: str) -> int:
    """Return an O_PATH descriptor of an absolute path; OSError where a component of it is a symbolic link.

    The agent resolved the path and checked where it leads; a link that came since would lead elsewhere.
    """
    held = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    for part in path.strip("/").split("/"):
        try:
            below = os.open(part, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=held)
        finally:
            os.close(held)
        held = below
    if stat.S_ISLNK(os.fstat(held).st_mode):
        os.close(held)
        raise OSError(errno.ELOOP, f"{path} is a link, and none is followed")
    return held


def copy_owned(source: str, target: str, uid: int) -> None:
    """Copy a tree for the sandbox, where the file system cannot translate owners in place."""
    os.mkdir(target)
    os.chown(target, uid, uid)
    fill_owned(source, target, uid)


def fill_owned(source: str, target: str, uid: int) -> None:
    """Copy what a tree holds into a directory of the sandbox's that is there."""
    for entry in os.scandir(source):
        path = os.path.join(target, entry.name)
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), path)
        elif entry.is_dir():
            copy_owned(entry.path, path, uid)
        elif entry.is_file():
            copy_file(entry.path, path, entry.stat().st_mode & 0o777)
        else:
            continue  # a pipe or a socket, at whose other end there is nobody
        os.chown(path, uid, uid, follow_symlinks=False)


def copy_file(source: str, target: str, mode: int) -> None:
    with open(source, "rb") as reading:
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with open(descriptor, "wb") as writing:
            while chunk := reading.read(1 << 20):
                writing.write(chunk)
