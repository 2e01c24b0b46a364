"""The SDK as jobs see it: a copy of its in-job part, named by content, so that no upgrade changes it under a job."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import tidegate

# Client, command line and tiers need packages that a job has not; what a job imports needs the standard library only.
LEFT_OUT = frozenset({"cli", "client", "tiers", "__pycache__"})


def install(directory: Path) -> Path:
    """Return the directory below `directory` that holds the package, copied there if it is not yet."""
    package = Path(tidegate.__file__).parent
    files = sorted(path for path in package.rglob("*.py") if not LEFT_OUT.intersection(path.relative_to(package).parts))
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.relative_to(package)}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    target = directory / digest.hexdigest()[:16]
    if target.is_dir():
        if all(_same(path, target / package.name / path.relative_to(package)) for path in files):
            return target
        shutil.rmtree(target)  # a power cut emptied it, so nothing that had it mounted lives
    staging = directory / f".tmp-{os.getpid()}"
    shutil.rmtree(staging, ignore_errors=True)
    for path in files:
        copy = staging / package.name / path.relative_to(package)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    for parent, _, names in os.walk(staging):
        Path(parent).chmod(0o755)
        for name in names:
            Path(parent, name).chmod(0o644)
    staging.rename(target)
    return target


def _same(path: Path, copy: Path) -> bool:
    return copy.is_file() and copy.read_bytes() == path.read_bytes()
