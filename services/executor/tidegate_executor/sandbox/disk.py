"""A disk of its own for a sandbox's files: a sparse file with a file system, so that bytes and inodes are bounded.

What a job writes lies in that file, on the node's disk and not in memory, and the kernel says ENOSPC where it ends.
A made file system of each size is kept and copied, which takes a few blocks. Needs root, loop devices and mkfs.ext4.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import struct
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

from tidegate_executor.sandbox.base import DiskLimits, InfrastructureError
from tidegate_executor.sandbox.shim import syscalls

IMAGE_NAME = "disk"
MKFS = "mkfs.ext4"
MKFS_SECONDS_MAX = 60.0
MIB_LEAST = 16
ATTACH_TRIES_MAX = 64
LEFT_PART, LEFT_BYTES = 64, 2 << 20  # a 64th, or so many bytes, left counts as full: the rest is the file system's
COPY_BYTES = 1 << 20
FLAGS = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOATIME
OPTIONS = "noinit_itable,discard"  # what the job removes is the node's again
REMEDY = f"limits of disk need an agent that runs as root, loop devices (/dev/loop-control) and {MKFS} (e2fsprogs)"
LOOP_CTL_GET_FREE, LOOP_CONFIGURE, LOOP_AUTOCLEAR = 0x4C82, 0x4C0A, 4  # linux/loop.h
_LOOP_CONFIG = struct.Struct("=II 40x 12x I 64x 64x 32x 16x 64x")  # struct loop_config: fd, block size, flags


def probe(directory: Path) -> str:
    """Return why disks cannot be limited here, found by doing; empty where they can. Blocks."""
    if os.geteuid() != 0 or shutil.which(MKFS) is None:
        return REMEDY
    with tempfile.TemporaryDirectory(prefix=".probe-", dir=directory) as made:
        files = Path(made, "files")
        try:
            attach(files, Path(made), DiskLimits(mib=MIB_LEAST, inodes=64))
            try:
                full = _fill(files)
            finally:
                release(files)
        except (InfrastructureError, OSError) as error:
            return f"{REMEDY}: {error}"
    return "" if full else f"{REMEDY}: more could be written than was allowed"


def _fill(files: Path) -> bool:
    try:
        with open(files / "filling", "wb") as writing:
            for _ in range(2 * MIB_LEAST):
                writing.write(bytes(1 << 20))
    except OSError as error:
        return error.errno == errno.ENOSPC
    return False


def attach(files: Path, templates: Path, limits: DiskLimits) -> None:
    """Mount a new disk at `files`, its file beside it; `templates` is where made ones are kept. Blocks.

    Raises InfrastructureError; then nothing is left mounted.
    """
    image = files.with_name(IMAGE_NAME)
    try:
        _copy(_template(templates, limits), image)
        files.mkdir(mode=0o755, exist_ok=True)
        _mount(image, files)
    except OSError as error:
        raise InfrastructureError(f"no disk of {limits.mib} MiB at {files}: {error}") from error


def release(files: Path) -> None:
    """Unmount the disk, at once for us; the kernel gives up its device with the last user. Idempotent. Blocks."""
    with suppress(FileNotFoundError):
        while os.path.ismount(files):
            syscalls.unmount(str(files), syscalls.MNT_DETACH)


def fullness(files: Path) -> str:
    """Return what of the disk is used up, in words; empty where there is room, or no disk of its own. Blocks."""
    try:
        if not os.path.ismount(files):
            return ""
        seen = os.statvfs(files)
    except FileNotFoundError:
        return ""
    if seen.f_ffree == 0:
        return f"its {seen.f_files} files are all in use"
    if seen.f_bavail * LEFT_PART <= seen.f_blocks or seen.f_bavail * seen.f_frsize <= LEFT_BYTES:
        return f"its disk of {seen.f_blocks * seen.f_frsize >> 20} MiB is full"
    return ""


def _template(directory: Path, limits: DiskLimits) -> Path:
    made = directory / f"disk-{limits.mib}-{limits.inodes}"
    if made.exists():
        return made
    directory.mkdir(parents=True, exist_ok=True)
    building = made.with_name(f"{made.name}.{os.getpid()}")
    with open(building, "wb") as writing:
        writing.truncate(limits.mib << 20)
    features = "^has_journal,^resize_inode"
    extended = "lazy_itable_init=1,nodiscard,packed_meta_blocks=1,root_owner=0:0"
    arguments = [MKFS, "-q", "-F", "-O", features, "-m", "0", "-N", str(limits.inodes), "-E", extended, str(building)]
    try:
        subprocess.run(arguments, check=True, capture_output=True, timeout=MKFS_SECONDS_MAX, stdin=subprocess.DEVNULL)
    except subprocess.SubprocessError as error:
        building.unlink()
        complaint = getattr(error, "stderr", b"") or b""
        raise InfrastructureError(f"{MKFS} made no disk of {limits}: {complaint.decode()[-300:]}") from error
    building.rename(made)
    return made


def _copy(source: Path, target: Path) -> None:
    """Copy what there is of a sparse file, and leave its holes."""
    with open(source, "rb") as reading, open(target, "xb") as writing:
        size = os.fstat(reading.fileno()).st_size
        os.ftruncate(writing.fileno(), size)
        at = 0
        while at < size:
            try:
                begin = os.lseek(reading.fileno(), at, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:  # nothing but a hole from here on
                    raise
                return
            at = os.lseek(reading.fileno(), begin, os.SEEK_HOLE)
            while begin < at:
                part = os.pread(reading.fileno(), min(COPY_BYTES, at - begin), begin)
                begin += os.pwrite(writing.fileno(), part, begin)


def _mount(image: Path, files: Path) -> None:
    with open(image, "r+b") as backing:
        device, path = _attached(backing.fileno())
    try:
        syscalls.mount(path, str(files), "ext4", FLAGS, OPTIONS)
    finally:
        os.close(device)  # from now on the mount holds it, or nobody


def _attached(backing: int) -> tuple[int, str]:
    """Return a descriptor of a free loop device on that file, and its path. It clears itself with its last user."""
    control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    try:
        for _ in range(ATTACH_TRIES_MAX):
            path = f"/dev/loop{fcntl.ioctl(control, LOOP_CTL_GET_FREE)}"
            device = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.ioctl(device, LOOP_CONFIGURE, _LOOP_CONFIG.pack(backing, 0, LOOP_AUTOCLEAR))
            except OSError as error:
                os.close(device)
                if error.errno != errno.EBUSY:  # else somebody was faster
                    raise
            else:
                return device, path
    finally:
        os.close(control)
    raise OSError(errno.EBUSY, "no loop device is free")
