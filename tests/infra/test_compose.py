"""The compose file: valid for Debian's docker-compose, the same services as the local stack, the same rights."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tidegate_local import nats_config, plan
from tidegate_local.database import READERS, WRITERS
from tidegate_local.permissions import ADMIN, publish_permissions
from tidegate_local.topology import ONE_OF_EACH

ROOT = Path(__file__).parents[2]
COMMAND_SECONDS_MAX = 60.0
LOGINS = {ADMIN, *publish_permissions(ONE_OF_EACH), *WRITERS, *READERS}
NOT_OURS = {"nats", "postgres", "jaeger", "prometheus", "prepare"}


def compose(*argv: str, **environment: str) -> str:
    """Run docker-compose on the project's file; skip where there is none, but never on CI."""
    program = shutil.which("docker-compose")
    if program is None:
        reason = "no docker-compose here (Debian, Ubuntu: apt-get install docker-compose)"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    done = subprocess.run(
        [program, "--no-ansi", *argv],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "variable is not set" not in done.stderr
    return done.stdout


def test_the_file_is_valid_and_names_the_services_of_the_local_stack() -> None:
    services = set(compose("config", "--services").split())
    assert services == {*plan.STOP_ORDER, *NOT_OURS}
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    text = (ROOT / "docker-compose.yml").read_text()
    for service in services - NOT_OURS:
        assert f"tidegate-{service}" in scripts
        assert f'command: ["tidegate-{service}"]' in text


def test_every_login_has_a_password_of_its_own_that_the_operator_can_set() -> None:
    given = {f"TIDEGATE_PASSWORD_{login.upper()}": f"given-{login}" for login in LOGINS}
    resolved = compose("config", **given)
    for login in LOGINS:
        assert f"given-{login}" in resolved
    assert "on-loopback" not in resolved


def test_nothing_listens_beyond_loopback() -> None:
    resolved = compose("config")
    assert "ports:" not in resolved
    assert "0.0.0.0" not in resolved + (ROOT / "infra/otel/jaeger.yaml").read_text()
    assert resolved.count("network_mode: host") == len(compose("config", "--services").split())


def test_mounted_files_exist() -> None:
    mounted = re.findall(r"- (\./[^:]+):", (ROOT / "docker-compose.yml").read_text())
    assert mounted
    for path in (*mounted, "infra/docker/Dockerfile"):
        assert (ROOT / path).exists(), path


def test_the_bus_gives_the_rights_of_the_local_stack() -> None:
    assert (ROOT / "infra/nats/nats.conf").read_text() == nats_config.render(), (
        "python -m tidegate_local.nats_config > infra/nats/nats.conf"
    )
    done = subprocess.run(
        [Path(sys.executable).with_name("nats-server"), "-t", "--config", ROOT / "infra/nats/nats.conf"],
        env={f"TIDEGATE_PASSWORD_{login.upper()}": f"given-{login}" for login in LOGINS},
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr
