"""Interfaces are removed by name: one that is not there is no fault, and whatever else the kernel says is told."""

from __future__ import annotations

import os
import socket

import pytest
from tidegate_executor.sandbox.shim import netlink, syscalls
from tidegate_executor.sandbox.shim.joining import JoiningError, in_child

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes networks")


def in_own_network() -> None:
    """Go to a network namespace that holds a bridge and nothing else."""
    syscalls.unshare(syscalls.CLONE_NEWNET)
    netlink.make_bridge("taken")


def names() -> list[str]:
    return [name for _, name in socket.if_nameindex()]


def test_the_one_of_that_name_is_removed_and_no_other() -> None:
    def work() -> None:
        in_own_network()
        netlink.make_bridge("other")
        netlink.remove_named("taken")
        assert "taken" not in names()
        assert "other" in names()

    in_child(work)


def test_where_there_is_none_is_no_fault() -> None:
    def work() -> None:
        in_own_network()
        netlink.remove_named("nobody")
        assert "taken" in names()

    in_child(work)


def test_what_the_kernel_does_not_permit_is_told() -> None:
    def work() -> None:
        in_own_network()
        os.setuid(65534)  # without the right to change interfaces
        netlink.remove_named("taken")

    with pytest.raises(JoiningError, match="not permitted"):
        in_child(work)
