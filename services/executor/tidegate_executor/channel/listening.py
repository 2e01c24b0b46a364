"""The socket itself: made beside its final name and moved there, so that a job always finds one or the other."""

import os
import socket
import struct
from pathlib import Path

BACKLOG = 128
_PEER = struct.Struct("3i")


def listen(path: Path, owner: tuple[int, int] | None) -> socket.socket:
    """Return a non-blocking socket listening at `path`, which only `owner` (uid, gid; else ourselves) may use.

    A socket left by an earlier agent is replaced. The directory's descriptor stands for its path, because a unix
    socket's address holds 107 bytes.
    """
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    temporary = f".{path.name}.{os.urandom(4).hex()}"
    try:
        listening.setblocking(False)
        # Before bind: Linux gives the file this mode, so it is never open to others.
        os.fchmod(listening.fileno(), 0o600)
        listening.bind(f"/proc/self/fd/{directory}/{temporary}")
        if owner is not None:
            os.chown(temporary, *owner, dir_fd=directory, follow_symlinks=False)
        listening.listen(BACKLOG)
        os.rename(temporary, path.name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        listening.close()
        raise
    finally:
        os.close(directory)
    return listening


def peer(connection: socket.socket) -> tuple[int, int]:
    """Return (pid, uid) of the process at the other end, as the kernel knows them."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    pid, uid, _ = _PEER.unpack(data)
    return pid, uid
