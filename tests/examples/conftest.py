"""The cartpole example: its modules on the import path as its own scripts see them, and real simulator processes."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "cartpole"
EXIT_SECONDS = 20.0

sys.path.insert(0, str(EXAMPLE))

StartSimulator = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def example() -> Path:
    return EXAMPLE


@pytest.fixture
def start_simulator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StartSimulator]:
    """Start `simulator.py` as a replica; whatever is still running at the end is killed."""
    started: list[subprocess.Popen[str]] = []
    monkeypatch.setenv("CARTPOLE_RUNTIME_DIR", str(tmp_path))

    def start(replica: int, *arguments: str, seed: int = 7) -> "subprocess.Popen[str]":
        environment = {**os.environ, "TIDEGATE_REPLICA": str(replica), "TIDEGATE_SEED": str(seed)}
        process = subprocess.Popen(
            [sys.executable, str(EXAMPLE / "simulator.py"), *arguments],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait(EXIT_SECONDS)
        if process.stderr is not None:
            process.stderr.close()
