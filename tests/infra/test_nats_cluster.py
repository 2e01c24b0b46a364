"""The configuration of a bus of three servers: the logins of the one-server bus, and nothing that only looks right."""

from __future__ import annotations

from pathlib import Path

from tidegate_local import nats_config

CLUSTER = Path(__file__).parents[2] / "infra" / "nats" / "cluster"


def test_the_logins_are_what_the_code_says() -> None:
    assert (CLUSTER / "authorization.conf").read_text() == nats_config.render_cluster()


def test_every_server_waits_for_the_disk_and_includes_the_logins() -> None:
    common = (CLUSTER / "common.conf").read_text()
    assert "sync_interval: always" in common
    assert 'include "authorization.conf"' in common
    assert 'unique_tag: "zone:"' in common
    for name in ("n1", "n2", "n3"):
        text = (CLUSTER / f"{name}.conf").read_text()
        assert f"server_name: tidegate-{name}\n" in text
        assert 'include "common.conf"' in text
