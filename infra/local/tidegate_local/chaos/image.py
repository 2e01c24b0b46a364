"""A tiny image for the jobs of a chaos run: a shell and what it needs, which a killed agent measures in no time."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import msgspec

NAME = "tiny"
PROGRAMS = ("bash", "sleep")
SYSTEM = Path("/usr")
_LIBRARY = re.compile(r"(/\S+) \(0x")


def build(directory: Path) -> Path:
    """Copy the programs and their libraries into `directory`, which stands for /usr; return it."""
    files = {Path(found) for name in PROGRAMS if (found := shutil.which(name, path="/usr/bin:/bin"))}
    for program in tuple(files):
        listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
        files |= {Path(found) for found in _LIBRARY.findall(listed)}
    for file in files:
        below = file.relative_to(SYSTEM) if file.is_relative_to(SYSTEM) else file.relative_to("/")
        target = directory / below
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)
    return directory


def executor_config(file: Path, image: Path) -> Path:
    """Write the settings of agents that offer this image alone; return the file."""
    layers = [{"source": str(image), "target": "/usr"}]
    settings = {"offer_host_image": False, "images": {NAME: {"layers": layers, "path": ["/usr/bin", "/bin"]}}}
    file.write_bytes(msgspec.json.encode(settings))
    return file
