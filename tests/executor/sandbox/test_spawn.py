"""A process that ends before it has become the job's command is no end of the job's."""

from __future__ import annotations

import os
import signal

import pytest
from tidegate_executor.sandbox.shim.plain import PlainLauncher
from tidegate_executor.sandbox.shim.spawn import Process, SpawnError, spawn

COMMAND = Process(["true"], {"PATH": "/usr/bin:/bin"}, "/")


class Killed(PlainLauncher):
    """Somebody kills the child when it knows what to run."""

    def translate(self, process: Process) -> Process:
        os.kill(os.getpid(), signal.SIGKILL)
        return process


def nowhere(pid: int) -> None:
    """Limits are not enforced here."""


def test_one_that_becomes_the_command_is_returned() -> None:
    child = spawn(PlainLauncher(), COMMAND, 1, nowhere)
    assert os.waitstatus_to_exitcode(os.waitpid(child.inside(), 0)[1]) == 0
    child.close()


@pytest.mark.parametrize("command", ["no-such-command", "/etc/passwd"])
def test_a_command_that_cannot_be_executed_is_the_jobs_fault(command: str) -> None:
    with pytest.raises(SpawnError) as raised:
        spawn(PlainLauncher(), COMMAND._replace(argv=[command]), 1, nowhere)
    assert raised.value.job is True


def test_one_that_is_killed_before_it_is_the_nodes() -> None:
    with pytest.raises(SpawnError, match="ended before it") as raised:
        spawn(Killed(), COMMAND, 1, nowhere)
    assert raised.value.job is False
