"""A live gateway, and a way to run `tidegate` against it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from tidegate.cli.main import run

from tests.cli.live import LiveGateway


@dataclass(frozen=True)
class Ran:
    """How a command ended and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """Return stdout as the one JSON document that it must be."""
        assert self.out.endswith("\n")
        return json.loads(self.out)


Cli = Callable[..., Ran]


@pytest.fixture
def live(tmp_path: Path) -> Iterator[LiveGateway]:
    with capture_logs():
        gateway = LiveGateway(tmp_path / "gateway")
        yield gateway
        gateway.close()


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run a command where nothing names a gateway."""
    monkeypatch.delenv("TIDEGATE_URL", raising=False)
    monkeypatch.setenv("TIDEGATE_HOME", str(tmp_path / "home"))

    def ran(*arguments: str) -> Ran:
        capsys.readouterr()
        code = run(list(arguments))
        return Ran(code, *capsys.readouterr())

    return ran


@pytest.fixture
def cli(live: LiveGateway, offline: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Run a command against the live gateway."""
    monkeypatch.setenv("TIDEGATE_URL", live.url)
    return offline
