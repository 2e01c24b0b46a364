"""The configuration of a bus of three servers: the logins of the one-server bus, and nothing that only looks right."""

from __future__ import annotations

from pathlib import Path

import pytest
from tidegate_local import nats_config

CLUSTER = Path(__file__).parents[2] / "infra" / "nats" / "cluster"


def test_the_logins_are_what_the_code_says() -> None:
    assert (CLUSTER / "authorization.conf").read_text() == nats_config.render_cluster()


def test_nodes_with_a_hot_directory_of_their_own_have_logins() -> None:
    text = nats_config.render_cluster(("gpu-1", "gpu-2"))
    assert '"user": "checkpoint-gpu-1"' in text
    assert '"password": $TIDEGATE_PASSWORD_CHECKPOINT_GPU_2,' in text
    assert '"user": "checkpoint",' not in text
    assert "nats_config cluster gpu-1 gpu-2`" in text
    for refused in (("a", "a"), ("a-b", "a_b"), ("a.b",), ("*",)):
        with pytest.raises(ValueError, match=r"refused|cannot name"):
            nats_config.render_cluster(refused)


def test_every_server_waits_for_the_disk_and_includes_the_logins() -> None:
    common = (CLUSTER / "common.conf").read_text()
    assert "sync_interval: always" in common
    assert 'include "authorization.conf"' in common
    assert 'unique_tag: "zone:"' in common
    for name in ("n1", "n2", "n3"):
        text = (CLUSTER / f"{name}.conf").read_text()
        assert f"server_name: tidegate-{name}\n" in text
        assert 'include "common.conf"' in text
