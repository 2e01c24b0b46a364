"""The learner's side of the simulator protocol: several simulators driven as one batch, in lock-step."""

import contextlib
import itertools
import socket
import time
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from wire import OBSERVATION_SIZE, RESET, Closed, Kind, WireError, receive, send, socket_path

CONNECT_RETRY_SECONDS = 0.05
REPLY_SECONDS = 120.0  # generous: a simulator's share of CPU may be small, but it is never zero


class SimulatorError(Exception):
    """A simulator is missing, is gone, or refused a request."""


class Simulators:
    """Row `i` of every array belongs to the same environment for the whole life of a batch."""

    def __init__(self, count: int, connect_seconds: float) -> None:
        """Connect to `count` simulators, waiting at most `connect_seconds` for all of them together."""
        deadline = time.monotonic() + connect_seconds
        self._sizes = [0] * count
        self._connections: list[socket.socket] = []
        with contextlib.ExitStack() as opened:
            for replica in range(count):
                self._connections.append(opened.enter_context(_connect(replica, deadline)))
            self._close = opened.pop_all().close  # only now: a failed connection closes those before it

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        """Close the connections, which ends the simulators."""
        self._close()

    def reset(self, sizes: Sequence[int], stream: int) -> NDArray[np.float32]:
        """Start fresh environments, `sizes[i]` in simulator i, and return their first observations."""
        replies = self._exchange(Kind.RESET, [RESET.pack(size, stream) for size in sizes])
        self._sizes = list(sizes)
        return _observations(replies)

    def step(self, actions: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
        """Step all environments once; the arrays are those of `environments.Stepped`."""
        ends = itertools.accumulate(self._sizes)
        shares = [actions[end - size : end].tobytes() for size, end in zip(self._sizes, ends, strict=True)]
        replies = self._exchange(Kind.STEP, shares)
        parts = [_stepped(reply, size) for reply, size in zip(replies, self._sizes, strict=True)]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def states(self) -> list[bytes]:
        """Take the exact state of every simulator; nothing is disturbed by it."""
        return self._exchange(Kind.GET_STATE, [b""] * len(self._connections))

    def restore(self, states: Sequence[bytes]) -> NDArray[np.float32]:
        """Continue exactly where `states` were taken, and return the observations to act on."""
        if len(states) != len(self._connections):
            raise SimulatorError(
                f"states of {len(states)} simulators refused: this run has {len(self._connections)}; "
                "resume with as many simulators as the checkpoint was saved with"
            )
        replies = self._exchange(Kind.SET_STATE, states)
        self._sizes = [len(reply) // (4 * OBSERVATION_SIZE) for reply in replies]
        return _observations(replies)

    def _exchange(self, kind: Kind, payloads: Sequence[bytes]) -> list[bytes]:
        """Send to all before waiting for any, so that the simulators work side by side."""
        for connection, payload in zip(self._connections, payloads, strict=True):
            send(connection, kind, payload)
        return [self._reply(replica, kind) for replica in range(len(payloads))]

    def _reply(self, replica: int, wanted: Kind) -> bytes:
        try:
            kind, payload = receive(self._connections[replica])
        except TimeoutError as error:
            raise SimulatorError(f"simulator {replica} did not answer within {REPLY_SECONDS} s") from error
        except Closed as error:
            raise SimulatorError(f"simulator {replica} is gone: {error}") from error
        if kind is Kind.ERROR:
            raise SimulatorError(f"simulator {replica} refused {wanted.name}: {payload.decode()}")
        if kind is not wanted:
            raise WireError(f"simulator {replica} answered {kind.name} to {wanted.name}")
        return payload


def _connect(replica: int, deadline: float) -> socket.socket:
    path = socket_path(replica)
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError) as error:
            connection.close()
            if time.monotonic() >= deadline:
                raise SimulatorError(f"simulator {replica} does not listen on {path}: {error}") from error
            time.sleep(CONNECT_RETRY_SECONDS)
        else:
            connection.settimeout(REPLY_SECONDS)
            return connection


def _observations(replies: Sequence[bytes]) -> NDArray[np.float32]:
    return np.frombuffer(bytearray().join(replies), np.float32).reshape(-1, OBSERVATION_SIZE)


def _stepped(reply: bytes, size: int) -> dict[str, NDArray[Any]]:
    floats = np.frombuffer(reply, np.float32, count=size * (2 * OBSERVATION_SIZE + 2))
    observations, reached = floats[: 2 * size * OBSERVATION_SIZE].reshape(2, size, OBSERVATION_SIZE)
    rewards, returns = floats[2 * size * OBSERVATION_SIZE :].reshape(2, size)
    return {
        "observations": observations,
        "reached": reached,
        "rewards": rewards,
        "returns": returns,
        "flags": np.frombuffer(reply, np.uint8, count=size, offset=floats.nbytes),
    }
