"""Agents that share one machine: each offers its part, and no GPU is offered twice."""

from __future__ import annotations

from typing import Any

import pytest
from tidegate_events.resources import GpuDevice
from tidegate_executor import capacity
from tidegate_executor.settings import Settings, SettingsError, checked

GPUS = tuple(GpuDevice(index=index, uuid=f"gpu-{index}", model="x", memory_mib=1000) for index in range(4))


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this a machine of 7 CPUs, 1000 MiB and four GPUs."""
    monkeypatch.setattr(capacity, "cpu_millis_available", lambda: 7000)
    monkeypatch.setattr(capacity, "memory_mib_available", lambda: 1000)
    monkeypatch.setattr(capacity, "gpu_devices", lambda: GPUS)


def settings(**more: Any) -> Settings:
    return checked(Settings(node="n", data_dir="/d", hot_dir="/h", secrets_dir="/s", **more))


def test_shares_are_equal_and_gpus_go_to_one_agent_each() -> None:
    offered = [capacity.detect(settings(share_index=index, share_count=3)) for index in range(3)]
    assert {(offer.resources.cpu_millis, offer.resources.memory_mib) for offer in offered} == {(2333, 333)}
    assert [[gpu.index for gpu in offer.gpus] for offer in offered] == [[0, 3], [1], [2]]
    assert [offer.resources.gpus for offer in offered] == [2, 1, 1]


def test_the_only_agent_offers_all() -> None:
    offer = capacity.detect(settings())
    assert (offer.resources.cpu_millis, offer.resources.memory_mib, offer.gpus) == (7000, 1000, GPUS)


def test_what_is_set_outright_is_not_divided_again() -> None:
    assert capacity.detect(settings(cpu_millis=600, share_index=1, share_count=3)).resources.cpu_millis == 600


@pytest.mark.parametrize(("index", "count"), [(3, 3), (-1, 3), (0, 0)])
def test_a_share_that_is_none_is_refused(index: int, count: int) -> None:
    with pytest.raises(SettingsError, match="share_index"):
        settings(share_index=index, share_count=count)
