"""Converted layers where sandboxes can stack them: EROFS files mounted in place, or trees that lie there already.

Mounts are made in the mount namespace of the agent, which is its own (`enter_own_namespace`): sandboxes get copies of
it, and the kernel undoes the mounts when the last of them is gone, however that comes. None is left on the node.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Literal

import structlog

from tidegate_executor.sandbox.shim import syscalls

Form = Literal["file", "loop", "tree"]
"""How layers are kept: mounted from their file (Linux 6.12), by a loop device, or unpacked where mounts are refused."""

MKFS = "mkfs.erofs"
MKFS_SECONDS_MAX = 3600.0
MOUNT_SECONDS_MAX = 30.0
UUID = "00000000-0000-0000-0000-000000000000"  # the same content is the same file
LOOK_SECONDS = 0.2
COMPLAINT_BYTES_MAX = 500
FLAGS = syscalls.MS_RDONLY | syscalls.MS_NOSUID | syscalls.MS_NODEV
NOT_FROM_FILES = frozenset({errno.ENOTBLK, errno.ENODEV, errno.EINVAL})

log = structlog.get_logger()


class ConversionError(Exception):
    """A layer cannot be converted or mounted here: the node's fault, not the image's."""


def enter_own_namespace(kin: Iterable[int] = ()) -> bool:
    """Have a mount namespace of our own, which still follows the host's; say whether that was allowed.

    Those that are made of it follow it in turn: who waits in one sees an image that is mounted here later. The one of
    `kin`, processes that an earlier incarnation left, is ours again: what they mounted is seen by both. For the whole
    process only while it has a single thread.
    """
    try:
        for pid in kin:
            if _join(pid):
                return True
        syscalls.unshare(syscalls.CLONE_NEWNS)
        syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_SLAVE)
        syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_SHARED)
    except PermissionError:
        return False
    return True


def _join(pid: int) -> bool:
    """Enter the process's mount namespace unless it ended meanwhile, or never left the one that we are in."""
    try:
        theirs = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        if os.path.samestat(os.fstat(theirs), os.stat("/proc/self/ns/mnt")):
            return False
        syscalls.setns(theirs, syscalls.CLONE_NEWNS)
    finally:
        os.close(theirs)
    return True


def probe(directory: Path) -> Form:
    """Return the best form that works here, found by doing: a layer is made and mounted. Blocks."""
    with tempfile.TemporaryDirectory(prefix=".probe-", dir=directory) as made:
        tree, file, target = Path(made, "tree"), Path(made, "layer.erofs"), Path(made, "mnt")
        tree.mkdir()
        target.mkdir()
        (tree / "seen").write_text("seen")
        forms: tuple[Form, ...] = ("file", "loop")
        for form in forms:
            try:
                if not file.exists():
                    make(tree, file)
                mount(file, target, form)
            except ConversionError as error:
                log.info("layer_form_not_available", form=form, why=str(error))
                continue
            try:
                if (target / "seen").read_text() == "seen":
                    return form
            finally:
                unmount(target)
    return "tree"


def make(tree: Path, file: Path, given_up: Callable[[], bool] = bool) -> None:
    """Make an EROFS file of a tree, not compressed: it is read in place. Blocks. Raises ConversionError."""
    if shutil.which(MKFS) is None:
        raise ConversionError(f"there is no {MKFS} on this node (Debian: erofs-utils)")
    arguments = ["nice", "-n", "19", MKFS, "--quiet", "--all-root", "-U", UUID, str(file), str(tree)]
    _run(arguments, MKFS_SECONDS_MAX, given_up)
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def mount(file: Path, target: Path, form: Form) -> None:
    """Mount a layer's file, read-only. Blocks. Raises ConversionError."""
    if form == "loop":
        options = "loop,ro,nosuid,nodev"
        _run(["mount", "-t", "erofs", "-o", options, str(file), str(target)], MOUNT_SECONDS_MAX)
        return
    try:
        syscalls.mount(str(file), str(target), "erofs", FLAGS)
    except OSError as error:
        why = "this kernel mounts no EROFS from files" if error.errno in NOT_FROM_FILES else error.strerror
        raise ConversionError(f"{file} cannot be mounted: {why}") from error


def unmount(target: Path) -> None:
    """Undo it at once for us; sandboxes that use it keep it. Raises OSError."""
    syscalls.unmount(str(target), syscalls.MNT_DETACH)


def _run(arguments: list[str], seconds_max: float, given_up: Callable[[], bool] = bool) -> None:
    deadline = time.monotonic() + seconds_max
    with tempfile.TemporaryFile() as complaint:
        process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=complaint)
        while process.poll() is None:
            if given_up() or time.monotonic() > deadline:
                process.kill()
                process.wait()
                why = "is no longer waited for" if given_up() else f"took more than {seconds_max:.0f} s"
                raise ConversionError(f"{' '.join(arguments[:4])} {why}")
            with suppress(subprocess.TimeoutExpired):
                process.wait(LOOK_SECONDS)
        if process.returncode:
            complaint.seek(0)
            text = complaint.read(COMPLAINT_BYTES_MAX).decode(errors="replace").strip()
            raise ConversionError(f"{' '.join(arguments[:4])} ended with {process.returncode}: {text}")
