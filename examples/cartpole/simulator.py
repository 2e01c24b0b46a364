"""The component `simulator`: serves one batch of CartPole-v1 environments to the learner over a unix socket.

It must stay cheap to start: standard library, numpy and gymnasium only.
"""

import argparse
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

import numpy as np
from environments import EnvironmentBatch, Refused
from wire import RESET, Closed, Kind, WireError, receive, send, socket_path

EXIT_OK = 0
EXIT_PROTOCOL = 2
EXIT_NO_LEARNER = 3


class Terminated(BaseException):
    """SIGTERM arrived; a BaseException, so that no handler on the way takes it for an error."""


def main() -> int:
    """Serve one learner until it is gone, and say how it ended by the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--accept-seconds", type=float, default=120.0, help="how long to wait for the learner")
    options = parser.parse_args()
    replica = int(os.environ.get("TIDEGATE_REPLICA", "0"))
    batch = EnvironmentBatch(seed=int(os.environ.get("TIDEGATE_SEED", str(replica))))
    signal.signal(signal.SIGTERM, _on_sigterm)
    try:
        with _listening(socket_path(replica)) as listener:
            listener.settimeout(options.accept_seconds)
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                _log(replica, f"no learner connected within {options.accept_seconds} s; was it started?")
                return EXIT_NO_LEARNER
            with connection:
                connection.settimeout(None)  # silent while the learner learns; its end is seen as end of stream
                return _serve(connection, batch, replica)
    except Terminated:
        return EXIT_OK


def _serve(connection: socket.socket, batch: EnvironmentBatch, replica: int) -> int:
    while True:
        try:
            kind, payload = receive(connection)
            try:
                reply = answer(batch, kind, payload)
            except Refused as refusal:
                send(connection, Kind.ERROR, str(refusal).encode())
            else:
                send(connection, kind, reply)
        except Closed:
            return EXIT_OK
        except WireError as error:
            _log(replica, str(error))
            with suppress(Closed):  # said in the log already
                send(connection, Kind.ERROR, str(error).encode())
            return EXIT_PROTOCOL


def answer(batch: EnvironmentBatch, kind: Kind, payload: bytes) -> bytes:
    """Serve one request; raises `Refused` and leaves the batch as it was where the request makes no sense."""
    if kind is Kind.STEP:
        stepped = batch.step(np.frombuffer(payload, np.uint8))
        return b"".join(
            array.tobytes()
            for array in (stepped.observations, stepped.reached, stepped.rewards, stepped.returns, stepped.flags)
        )
    if kind is Kind.RESET:
        if len(payload) != RESET.size:
            raise Refused(f"RESET of {len(payload)} bytes refused: accepted are {RESET.size} (environments, stream)")
        return batch.reset(*RESET.unpack(payload)).tobytes()
    if kind is Kind.SET_STATE:
        return batch.restore(payload).tobytes()
    if kind is Kind.GET_STATE and not payload:
        return batch.state()
    raise Refused(f"{kind.name} with {len(payload)} bytes refused: accepted are RESET, STEP, GET_STATE, SET_STATE")


@contextmanager
def _listening(path: Path) -> Iterator[socket.socket]:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.unlink(missing_ok=True)  # left by a killed run on a laptop; in a sandbox the folder is always new
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        try:
            listener.bind(str(path))
            listener.listen(1)
            yield listener
        finally:
            path.unlink(missing_ok=True)


def _on_sigterm(_signal: int, _frame: FrameType | None) -> None:
    raise Terminated


def _log(replica: int, message: str) -> None:
    print(f"simulator {replica}: {message}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
