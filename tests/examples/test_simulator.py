"""The simulator as a process: the protocol, malformed input, and how it ends."""

import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import simulators
import wire
from simulators import SimulatorError, Simulators

StartSimulator = Callable[..., "subprocess.Popen[str]"]
WAIT_SECONDS = 20.0


def connected(start_simulator: StartSimulator, count: int) -> Simulators:
    for replica in range(count):
        start_simulator(replica, seed=100 + replica)
    return Simulators(count, WAIT_SECONDS)


def raw_connection(start_simulator: StartSimulator) -> tuple["subprocess.Popen[str]", socket.socket]:
    process = start_simulator(0)
    return process, simulators._connect(0, deadline=time.monotonic() + WAIT_SECONDS)


def test_several_simulators_step_as_one_batch(start_simulator: StartSimulator) -> None:
    with connected(start_simulator, 2) as batch:
        first = batch.reset([3, 2], stream=0)
        stepped = batch.step(np.array([0, 1, 0, 1, 0], np.uint8))
    assert first.shape == stepped["observations"].shape == (5, 4)
    assert len({row.tobytes() for row in first}) == 5  # each replica has its own seed
    assert stepped["rewards"].tolist() == [1.0] * 5
    # A push to the left or right shows in the sign of the cart's change of velocity: each got its own action.
    assert (stepped["reached"][:, 1] > first[:, 1]).tolist() == [False, True, False, True, False]


def test_new_processes_continue_exactly_where_the_old_ones_were(
    start_simulator: StartSimulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    actions = np.random.default_rng(3).integers(0, 2, (200, 5), dtype=np.uint8)

    def play(batch: Simulators) -> list[bytes]:
        return [array.tobytes() for row in actions for array in batch.step(row).values()]

    with connected(start_simulator, 2) as batch:
        batch.reset([3, 2], stream=0)
        play(batch)
        states = batch.states()
        expected = play(batch)
    monkeypatch.setenv("TIDEGATE_ATTEMPT", "2")
    with connected(start_simulator, 2) as batch:
        batch.restore(states)
        assert batch.states() == states
        assert play(batch) == expected
        with pytest.raises(SimulatorError, match="resume with as many simulators"):
            batch.restore(states[:1])


def test_a_refused_request_is_explained_and_the_simulator_goes_on(start_simulator: StartSimulator) -> None:
    with connected(start_simulator, 1) as batch:
        with pytest.raises(SimulatorError, match="no environments yet"):
            batch.step(np.zeros(0, np.uint8))
        batch.reset([2], stream=0)
        before = batch.states()
        with pytest.raises(SimulatorError, match=r"simulator 0 refused STEP.*each 0 or 1"):
            batch.step(np.full(2, 9, np.uint8))
        with pytest.raises(SimulatorError, match="refused SET_STATE"):
            batch.restore([b"nonsense"])
        with pytest.raises(SimulatorError, match="refused RESET"):
            batch.reset([1_000_000], stream=0)
        assert batch.states() == before


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (wire.HEADER.pack(9, wire.Kind.STEP, 0, 0), "protocol version 9"),
        (wire.HEADER.pack(wire.VERSION, wire.Kind.STEP, 7, 0), "reserved 7"),
        (wire.HEADER.pack(wire.VERSION, 99, 0, 0), "message kind 99"),
        (wire.HEADER.pack(wire.VERSION, wire.Kind.STEP, 0, 2**31), "2147483648 bytes refused"),
    ],
)
def test_a_malformed_stream_ends_the_simulator(start_simulator: StartSimulator, message: bytes, said: str) -> None:
    process, connection = raw_connection(start_simulator)
    with connection:
        connection.sendall(message)
        kind, reason = wire.receive(connection)
    assert kind is wire.Kind.ERROR
    assert said in reason.decode()
    assert process.wait(WAIT_SECONDS) == 2


def test_the_simulator_ends_cleanly_when_the_learner_is_gone(start_simulator: StartSimulator) -> None:
    process, connection = raw_connection(start_simulator)
    connection.sendall(struct.pack("<B", wire.VERSION))  # even in the middle of a message
    connection.close()
    assert process.wait(WAIT_SECONDS) == 0


@pytest.mark.parametrize("with_learner", [False, True])
def test_sigterm_ends_the_simulator_cleanly(start_simulator: StartSimulator, with_learner: bool) -> None:
    process, connection = raw_connection(start_simulator)
    if not with_learner:
        connection.close()
        process.wait(WAIT_SECONDS)
        process = start_simulator(0)
        while not wire.socket_path(0).exists():
            assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(WAIT_SECONDS) == 0
    connection.close()
    assert not wire.socket_path(0).exists()


def test_waiting_for_a_learner_is_bounded(start_simulator: StartSimulator) -> None:
    process = start_simulator(0, "--accept-seconds", "0.2")
    _, errors = process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 3
    assert "no learner connected within 0.2 s" in errors


def test_waiting_for_a_simulator_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CARTPOLE_RUNTIME_DIR", str(tmp_path))
    with pytest.raises(SimulatorError, match="simulator 0 does not listen on"):
        Simulators(1, connect_seconds=0.1)


def test_a_socket_path_the_kernel_would_cut_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CARTPOLE_RUNTIME_DIR", "/" + "long" * 40)
    with pytest.raises(wire.WireError, match="CARTPOLE_RUNTIME_DIR"):
        wire.socket_path(0)


def test_the_simulator_does_not_load_torch(example: Path) -> None:
    code = "import simulator, sys; sys.exit('torch' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(example)}
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 0
