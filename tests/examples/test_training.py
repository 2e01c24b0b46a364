"""The training run without an agent: it improves, and a run that was stopped or killed ends in the same bits."""

import contextlib
import importlib.util
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

# Asked, not imported: torch takes seconds to load, and every worker collects this file.
HAS_TORCH = importlib.util.find_spec("torch") is not None
WITHOUT = not HAS_TORCH and not os.environ.get("CI")
pytestmark = pytest.mark.skipif(WITHOUT, reason="torch is an extra of its own: the example's training needs it")

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
        return sorted((self._directory / "checkpoints").rglob("roots/[0-9]*"))

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


def test_a_run_that_is_stopped_and_then_killed_ends_in_the_same_bits(run: Run, undisturbed: dict[str, Any]) -> None:
    assert run.start("-c", STOPPED_AFTER_THREE).wait(WAIT_SECONDS) == 75
    assert run.checkpoints()[-1].name.startswith("000000000003-1-")  # not a periodic one: those are even

    saved = len(run.checkpoints())
    learner = run.start()
    deadline = time.monotonic() + WAIT_SECONDS
    while len(run.checkpoints()) == saved:
        assert learner.poll() is None, "the learner ended before it was killed"
        assert time.monotonic() < deadline
        time.sleep(0.005)
    learner.kill()
    assert learner.wait(WAIT_SECONDS) == -signal.SIGKILL
    killed_after = int(run.checkpoints()[-1].name.split("-")[0])
    assert 3 < killed_after < UPDATES

    assert run.start().wait(WAIT_SECONDS) == 0
    assert [message["step"] for message in run.log("restored")] == [3, killed_after]
    assert run.result() == undisturbed


def test_the_result_says_what_was_run_and_on_what(undisturbed: dict[str, Any]) -> None:
    assert undisturbed["quick"] is True
    assert undisturbed["episodes"] == 100
    assert undisturbed["steps"] == UPDATES * 64 * 2 * 8
    assert len(undisturbed["weights_digest"]) == 64
    assert all(undisturbed[name] for name in ("cpu_model", "isa", "torch"))


def test_a_few_updates_improve_the_policy_and_evaluation_disturbs_nothing(start_simulator: StartSimulator) -> None:
    import torch  # noqa: PLC0415 - see HAS_TORCH
    from ppo import Settings  # noqa: PLC0415 - needs torch
    from simulators import Simulators  # noqa: PLC0415 - needs torch
    from training import Training  # noqa: PLC0415 - needs torch

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


def test_the_optimizer_takes_the_steps_of_torchs_own_bit_for_bit_also_when_it_was_restored() -> None:
    import torch  # noqa: PLC0415 - see HAS_TORCH
    from adam import Adam  # noqa: PLC0415 - needs torch

    torch.manual_seed(11)
    own, reference = torch.nn.Linear(5, 3), torch.nn.Linear(5, 3)
    reference.load_state_dict(own.state_dict())
    ours = Adam(own.parameters(), 1e-3, epsilon=1e-5)
    theirs = torch.optim.Adam(reference.parameters(), lr=1e-3, eps=1e-5)
    for step in range(50):
        inputs = torch.randn(8, 5)
        for model, optimizer in ((own, ours), (reference, theirs)):
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
        assert all(map(torch.equal, own.parameters(), reference.parameters())), step
        if step == 20:
            state = ours.state_dict()
            ours = Adam(own.parameters(), 1e-3, epsilon=1e-5)
            ours.load_state_dict(state)
