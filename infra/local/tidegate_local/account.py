"""The account of a server that refuses to run as root, where the stack itself runs as root.

No account is made for it: the machine's own list of users is not the stack's to change. A number is enough, out of a
range that nobody uses; only while its files are made must the account have a name, and `nobody` lends it.
"""

from __future__ import annotations

import ctypes
import os
import pwd
from collections.abc import Callable
from pathlib import Path

import msgspec

# Below the numbers that the node agent gives to jobs, so that no job shares it.
SERVER_UID = 699_999
NAMED_ACCOUNT = "nobody"
PR_SET_KEEPCAPS = 8
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_RAISE = 2
CAPABILITY_VERSION = 0x20080522
CAP_DAC_OVERRIDE = 1
CAP_DAC_READ_SEARCH = 2
UID_MAP = Path("/proc/self/uid_map")
STATUS = Path("/proc/self/status")

_libc = ctypes.CDLL(None, use_errno=True)

Become = Callable[[], None]


class NoAccountError(Exception):
    """We are root, and there is nobody else to be."""


class Account(msgspec.Struct, frozen=True):
    """Who a process becomes before it executes anything."""

    uid: int
    gid: int


def named() -> Account | None:
    """Return the account that makes a server's files; None where we are not root and it runs as ourselves.

    Raises NoAccountError.
    """
    if os.geteuid():
        return None
    try:
        entry = pwd.getpwnam(NAMED_ACCOUNT)
    except KeyError:
        raise NoAccountError(f"this machine has no account {NAMED_ACCOUNT!r}") from None
    if not _is_mapped(entry.pw_uid):
        raise NoAccountError(f"this container is root without any other account ({NAMED_ACCOUNT!r} is not mapped)")
    return Account(entry.pw_uid, entry.pw_gid)


def own() -> Account | None:
    """Return the account that runs a server: a number of its own, the named one where a container lacks the number."""
    account = named()
    if account is None or not _is_mapped(SERVER_UID):
        return account
    return Account(SERVER_UID, SERVER_UID)


def become(account: Account | None) -> Become:
    """Return what a new process does before it executes: turn into `account`, which is nothing to do for None.

    Data directory and programs may lie below directories that only root can pass (`/root`, a test's own), so of all
    of root's rights one goes along: to pass and read. It is not that of writing, wherever the kernel has both apart.
    """
    if account is None:
        return lambda: None
    passage = _passage()

    def change() -> None:
        _libc.prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0)
        os.setgroups([])
        os.setresgid(account.gid, account.gid, account.gid)
        os.setresuid(account.uid, account.uid, account.uid)
        _keep_only(passage)

    return change


def give(tree: Path, account: Account | None) -> None:
    """Make `account` the owner of everything in `tree`."""
    if account is None:
        return
    os.chown(tree, account.uid, account.gid)
    for directory, names, files in os.walk(tree):
        for name in (*names, *files):
            os.chown(Path(directory) / name, account.uid, account.gid, follow_symlinks=False)


def _is_mapped(uid: int) -> bool:
    """Say whether the number exists in our user namespace; a container often has 65536 of them only."""
    for line in UID_MAP.read_text().splitlines():
        first, _, count = (int(field) for field in line.split())
        if first <= uid < first + count:
            return True
    return False


def _passage() -> int | None:
    """Return the capability that passes directories: the narrow one where we hold it, as containers often do not."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith("CapPrm:"))
    held = int(line.split()[1], 16)
    return next((cap for cap in (CAP_DAC_READ_SEARCH, CAP_DAC_OVERRIDE) if held & (1 << cap)), None)


def _keep_only(capability: int | None) -> None:
    mask = 0 if capability is None else 1 << capability
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    data = (ctypes.c_uint32 * 6)(mask, mask, mask, 0, 0, 0)  # effective, permitted, inheritable; then the upper halves
    if _libc.capset(header, data):
        raise OSError(ctypes.get_errno(), "cannot give up root's capabilities")
    if capability is not None and _libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, capability, 0, 0):
        raise OSError(ctypes.get_errno(), "cannot keep the right to pass directories")
