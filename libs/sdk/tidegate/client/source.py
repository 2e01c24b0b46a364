"""Record where submitted code came from: its git commit, a digest of what is not committed, and the command line.

Never records the value of a secret: see `redacted`.
"""

from __future__ import annotations

import getpass
import hashlib
import os
import re
import stat
import subprocess
import tempfile
from pathlib import Path
from typing import IO, Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from tidegate.client.packing import CHUNK_BYTES

GIT_SECONDS_MAX = 10.0
"""Longest wait for one git command; without an answer the record stays empty rather than holding a submission up."""
ARGV_CHARS_MAX = 4_000
UNTRACKED_BYTES_MAX = 64 * 1024 * 1024
"""Untracked files beyond this sum count by name and size only: reading a data set would hold a submission up."""
ARGV_WORDS_MAX = 256
SUBMITTER_CHARS_MAX = 128
REDACTED = "[redacted]"
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._@+-]")
_TELLING = re.compile(r"(?i)(secret|passw|token|credential|api[-_]?key|access[-_]?key|private[-_]?key|auth)")


def source_record(directory: Path, argv: Sequence[str], secret_variables: Iterable[str]) -> Dict[str, Any]:
    """Return the specification's `source` for code in `directory`; parts that git cannot tell are left out."""
    record: Dict[str, Any] = {"argv": redacted(argv, secret_variables)}
    commit = _git_line(directory, "rev-parse", "--verify", "HEAD")
    if commit:
        record["git_commit"] = commit
        digest = _dirty_digest(directory)
        if digest:
            record["dirty_diff_digest"] = digest
    return record


def submitter() -> str:
    """Return the name of who runs this process, in the form that the gateway takes."""
    try:
        name = _NOT_IN_NAMES.sub("_", getpass.getuser())[:SUBMITTER_CHARS_MAX]
    except (KeyError, OSError):
        # A container may run under a number that has no name.
        name = ""
    return name if name[:1].isalnum() else f"uid-{os.getuid()}"


def redacted(
    argv: Sequence[str], secret_variables: Iterable[str], environ: Optional[Mapping[str, str]] = None
) -> List[str]:
    """Return `argv` without secrets, cut to ARGV_CHARS_MAX.

    A value is taken for a secret when an option with a telling name carries it (`--api-key X`, `--token=X`,
    `PASSWORD=X`), or when it holds what this process has in the variable of one of the job's declared secrets.
    """
    environ = os.environ if environ is None else environ
    values = [environ[name] for name in secret_variables if environ.get(name)]
    kept: List[str] = []
    hide_next = False
    for argument in argv:
        hide, hide_next = hide_next, False
        name, assigned, _ = argument.partition("=")
        if any(value in argument for value in values) or (hide and not argument.startswith("--")):
            kept.append(REDACTED)
        elif assigned and _TELLING.search(name):
            kept.append(f"{name}={REDACTED}")
        else:
            kept.append(argument)
            hide_next = argument.startswith("-") and bool(_TELLING.search(argument))
    return _bounded(kept)


def _bounded(argv: List[str]) -> List[str]:
    # An argument may hold bytes that are no text; the record is JSON.
    argv = [argument.encode("utf-8", "replace").decode("utf-8") for argument in argv]
    room = ARGV_CHARS_MAX
    for index, argument in enumerate(argv):
        room -= len(argument) + 1
        if room < 0 or index >= ARGV_WORDS_MAX:
            return [*argv[:index], f"[{len(argv) - index} more]"]
    return argv


def _dirty_digest(directory: Path) -> str:
    """Return the SHA-256 of all changes since HEAD (untracked files by content), or nothing where there are none.

    The whole work tree counts, not only `directory`: code beside it may be imported.
    """
    top = _git_line(directory, "rev-parse", "--show-toplevel")
    if not top:
        return ""
    digest = hashlib.sha256()
    changed = False
    with tempfile.TemporaryFile() as output:
        if not _git(Path(top), output, "diff", "--no-ext-diff", "--no-textconv", "--binary", "HEAD"):
            return ""
        for chunk in _chunks(output):
            changed = True
            digest.update(chunk)
    room = UNTRACKED_BYTES_MAX
    with tempfile.TemporaryFile() as output:
        if not _git(Path(top), output, "ls-files", "--others", "--exclude-standard", "-z"):
            return ""
        for name in sorted(filter(None, b"".join(_chunks(output)).split(b"\0"))):
            changed = True
            content, size = _file_digest(os.path.join(os.fsencode(top), name), room)
            room -= size
            digest.update(b"\0untracked\0" + name + b"\0" + content)
    return f"sha256:{digest.hexdigest()}" if changed else ""


def _file_digest(path: bytes, room: int) -> Tuple[bytes, int]:
    """Return a digest of the file and how many bytes were read for it; a file larger than `room` goes by size."""
    digest = hashlib.sha256()
    try:
        status = os.lstat(path)
        if stat.S_ISLNK(status.st_mode):
            digest.update(os.readlink(path))
        elif not stat.S_ISREG(status.st_mode) or status.st_size > room:
            digest.update(f"size:{status.st_size}".encode())
        else:
            with open(path, "rb") as file:
                for chunk in _chunks(file):
                    digest.update(chunk)
            return digest.digest(), status.st_size
    except OSError as error:
        # Unreadable is part of what the tree looked like; it must not stop a submission.
        digest.update(f"unreadable:{error.errno}".encode())
    return digest.digest(), 0


def _git_line(directory: Path, *arguments: str) -> str:
    with tempfile.TemporaryFile() as output:
        if not _git(directory, output, *arguments):
            return ""
        return os.fsdecode(b"".join(_chunks(output)).strip())


def _git(directory: Path, output: IO[bytes], *arguments: str) -> bool:
    """Run git into `output` and say whether it succeeded; no repository, no git and no answer are all a no."""
    command = ["git", "-C", str(directory), "-c", "core.fsmonitor=false", *arguments]
    environ = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.DEVNULL,
            env=environ,
            timeout=GIT_SECONDS_MAX,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    output.seek(0)
    return done.returncode == 0


def _chunks(file: IO[bytes]) -> Iterable[bytes]:
    while chunk := file.read(CHUNK_BYTES):
        yield chunk
