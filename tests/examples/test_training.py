"""The training run without an agent: it improves, and a run that was stopped or killed ends in the same bits."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is an extra of its own: the example's training needs it")

from ppo import Settings  # noqa: E402 - only once torch is known to be there
from simulators import Simulators  # noqa: E402 - only once torch is known to be there
from training import Training  # noqa: E402 - only once torch is known to be there

StartSimulator = Callable[..., "subprocess.Popen[str]"]
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "cartpole"
WAIT_SECONDS = 120.0
UPDATES = 8
SHORT_RUN = ("--quick", "--max-updates", str(UPDATES), "--steps", "64", "--checkpoint-every", "2", "--simulators", "2")

# A learner whose third question whether to stop is answered yes, as an agent would when it preempts.
STOPPED_AFTER_THREE = """
import itertools, sys, tidegate, learner
calls = itertools.count(1)
tidegate.init().should_stop = lambda: next(calls) >= 3
sys.exit(learner.main())
"""


class Run:
    """One laptop run in attempts, each with new simulators; they share the folder of log and checkpoints."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._attempt = 0
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, *program: str) -> "subprocess.Popen[bytes]":
        """Start an attempt and return its learner, which is `program` where that is given."""
        self._attempt += 1
        for replica in range(2):
            self._start("simulator", replica, str(EXAMPLE / "simulator.py"))
        return self._start("learner", 0, *(program or (str(EXAMPLE / "learner.py"),)), *SHORT_RUN)

    def _start(self, component: str, replica: int, *program: str) -> "subprocess.Popen[bytes]":
        environment = {
            **os.environ,
            "PYTHONPATH": str(EXAMPLE),
            "OMP_NUM_THREADS": "1",
            "CARTPOLE_RUNTIME_DIR": str(self._directory),
            "TIDEGATE_LOCAL_DIR": str(self._directory),
            "TIDEGATE_ATTEMPT": str(self._attempt),
            "TIDEGATE_COMPONENT": component,
            "TIDEGATE_REPLICA": str(replica),
            "TIDEGATE_SEED": str(40 + replica),
        }
        process = subprocess.Popen([sys.executable, *program], env=environment)
        self._processes.append(process)
        return process

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait(WAIT_SECONDS)

    def checkpoints(self) -> list[Path]:
        return sorted((self._directory / "checkpoints").glob("[0-9]*"))

    def log(self, kind: str) -> list[dict[str, Any]]:
        lines = (self._directory / "log.jsonl").read_text().splitlines()
        return [message for message in map(json.loads, lines) if message["kind"] == kind]

    def result(self) -> dict[str, Any]:
        result: dict[str, Any] = self.log("finished")[-1]["result"]
        return result


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with contextlib.closing(Run(tmp_path)) as run:
        yield run


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    with contextlib.closing(Run(tmp_path_factory.mktemp("undisturbed"))) as run:
        assert run.start().wait(WAIT_SECONDS) == 0
        return run.result()


def test_a_killed_run_ends_in_the_same_bits_as_an_undisturbed_one(run: Run, undisturbed: dict[str, Any]) -> None:
    learner = run.start()
    deadline = time.monotonic() + WAIT_SECONDS
    while not run.checkpoints():
        assert learner.poll() is None, "the learner ended before it was killed"
        assert time.monotonic() < deadline
        time.sleep(0.005)
    learner.kill()
    assert learner.wait(WAIT_SECONDS) == -signal.SIGKILL
    saved_at = int(run.checkpoints()[-1].name.split("-")[0])
    assert 0 < saved_at < UPDATES

    assert run.start().wait(WAIT_SECONDS) == 0
    assert [message["step"] for message in run.log("restored")] == [saved_at]
    assert run.result() == undisturbed


def test_a_stopped_run_is_suspended_and_ends_in_the_same_bits(run: Run, undisturbed: dict[str, Any]) -> None:
    assert run.start("-c", STOPPED_AFTER_THREE).wait(WAIT_SECONDS) == 75
    assert run.checkpoints()[-1].name.startswith("000000000003-1-")  # not a periodic one: those are even
    assert run.start().wait(WAIT_SECONDS) == 0
    assert [message["step"] for message in run.log("restored")] == [3]
    assert run.result() == undisturbed


def test_the_result_says_what_was_run_and_on_what(undisturbed: dict[str, Any]) -> None:
    assert undisturbed["quick"] is True
    assert undisturbed["episodes"] == 100
    assert undisturbed["steps"] == UPDATES * 64 * 2 * 8
    assert len(undisturbed["weights_digest"]) == 64
    assert all(undisturbed[name] for name in ("cpu_model", "isa", "torch"))


def test_a_few_updates_improve_the_policy_and_evaluation_disturbs_nothing(start_simulator: StartSimulator) -> None:
    for replica in range(2):
        start_simulator(replica, seed=40 + replica)
    torch.set_num_threads(1)
    torch.manual_seed(7)
    with Simulators(2, WAIT_SECONDS) as simulators:
        training = Training(simulators, Settings())
        training.begin([16, 16])
        rollout = training.sample(128)
        first_return = training.recent_return()
        for _ in range(5):
            training.learn(rollout)
            rollout = training.sample(384)
        assert 0 < first_return < 30  # what chance alone brings is about 22
        assert training.recent_return() > 2 * first_return
        before = simulators.states()
        assert training.evaluate([10, 10]) > 2 * first_return
        assert simulators.states() == before
