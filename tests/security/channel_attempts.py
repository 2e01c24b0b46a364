"""Run inside a sandbox: tries to say on the agent's socket what is not the job's to say. Standard library only.

Argument: JSON with what the host put where. Prints a line of JSON per attempt: what came of it. The host looks at what
the agent took, and at its log.
"""

from __future__ import annotations

import array
import json
import os
import socket
import struct
import sys
import time
from collections.abc import Callable
from typing import Any

HOST = json.loads(sys.argv[1])
PATH = "/run/tidegate/agent/agent.sock"
OTHER_CLIENT = HOST["other_client"]
SECONDS_MAX = 5.0
ATTEMPTS: dict[str, Callable[[], str]] = {}


def attempt(function: Callable[[], str]) -> Callable[[], str]:
    ATTEMPTS[function.__name__] = function
    return function


class Wire:
    """A connection that says whatever it is told to."""

    def __init__(self) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(SECONDS_MAX)
        self.socket.connect(PATH)
        self.pending = b""

    def raw(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send(self, message: Any) -> None:
        body = message if isinstance(message, bytes) else json.dumps(message).encode()
        self.raw(struct.pack(">I", len(body)) + body)

    def receive(self) -> dict[str, Any] | None:
        while len(self.pending) < 4 or len(self.pending) < 4 + struct.unpack(">I", self.pending[:4])[0]:
            try:
                data = self.socket.recv(65536)
            except ConnectionError:
                return None
            if not data:
                return None
            self.pending += data
        (length,) = struct.unpack(">I", self.pending[:4])
        body, self.pending = self.pending[4 : 4 + length], self.pending[4 + length :]
        found: dict[str, Any] = json.loads(body)
        return found

    def code(self) -> str:
        """What the agent answers: an error's code, or the kind of the message."""
        answer = self.receive()
        return "closed" if answer is None else str(answer.get("code", answer["kind"]))


def hello(**changes: Any) -> dict[str, Any]:
    return {
        "kind": "hello",
        "protocol": [1, 1],
        "client": os.urandom(16).hex(),
        "component": "main",
        "replica": 0,
        "pid": 7,
        "first_seq": 1,
        "stop_group": "main/0",
        "stop_at": None,
        "sdk": "0",
        "python": "3",
        **changes,
    }


def greeted(**changes: Any) -> Wire:
    wire = Wire()
    wire.send(hello(**changes))
    answer = wire.receive()
    assert answer is not None
    assert answer["kind"] == "welcome", answer
    return wire


def publish(seq: int = 1, **changes: Any) -> dict[str, Any]:
    return {"kind": "publish", "seq": seq, "at_ns": 1, "event": "Forged", "payload": {}, **changes}


def first(name: str, message: Any) -> None:
    """An attempt whose first words are these."""

    def tried() -> str:
        wire = Wire()
        wire.send(message)
        return wire.code()

    ATTEMPTS[name] = tried


def later(name: str, message: Any) -> None:
    """An attempt by a process that was welcomed."""

    def tried() -> str:
        wire = greeted()
        wire.send(message)
        return wire.code()

    ATTEMPTS[name] = tried


first("speak_before_hello", publish())
first("hello_as_another_job", hello(job="other"))
first("hello_as_another_rank", hello(rank=1))
first("hello_as_another_attempt", hello(attempt=2))
first("hello_as_an_unknown_component", hello(component="learner"))
first("hello_as_a_replica_too_many", hello(replica=1))
first("hello_with_a_path_as_client", hello(client="../../../etc/passwd"))
first("hello_with_a_line_break", hello(client="0" * 31 + "\n"))
first("hello_of_no_version", hello(protocol=[900, 901]))
first("hello_with_a_negative_process", hello(pid=-1))
first("hello_that_is_no_json", b"{'kind': 'hello'}")
first("hello_of_nothing", b"")
first("hello_of_bytes", b"\xff\xfe\x00" * 100)
first("hello_as_a_list", b"[" * 20_000)
later("message_for_another_job", publish(job="other"))
later("message_for_another_tenant", publish(tenant="other"))
later("message_for_another_attempt", publish(attempt=9, rank=3))
later("message_of_another_origin", publish(origin={"sandbox": {"job": "other"}}))
later("event_of_the_journal", publish(event="JobCompleted"))
later("event_of_the_scheduler", publish(event="PreemptRequested"))
later("event_of_tidegate", publish(event="TidegateSecret"))
later("words_of_the_agent_granted", {"kind": "granted", "seq": 1, "phase": "x", "environment": {}})
later("words_of_the_agent_stop", {"kind": "stop", "vote": "v", "reason": "x", "deadline_ns": 1, "stop_at": 1})
later("words_of_the_agent_hand_back", {"kind": "hand_back", "deadline_ns": 0})
later("second_hello", hello())
later("number_zero", publish(0))
later("negative_number", publish(-5))
later("number_beyond_all", publish(2**63))
later("number_out_of_order", publish(1_000_000))
later("not_a_number", b'{"kind": "publish", "seq": 1, "at_ns": NaN, "event": "X", "payload": {}}')
later("number_of_many_digits", b'{"kind": "publish", "seq": ' + b"9" * 50_000 + b"}")
later("payload_too_deep", publish(payload={"x": [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]}))
later(
    "payload_deep_beyond_parsing",
    b'{"kind": "publish", "seq": 1, "at_ns": 1, "event": "X", "payload": ' + b"[" * 60_000,
)
later("payload_too_large", publish(payload={"x": "y" * 20_000}))
later("payload_of_broken_text", b'{"kind": "publish", "seq": 1, "at_ns": 1, "event": "X", "payload": {"x": "\xff"}}')
later("phase_with_a_line_break", {"kind": "phase", "seq": 1, "at_ns": 1, "phase": "a\nlevel=info"})
later("phase_as_a_path", {"kind": "phase", "seq": 1, "at_ns": 1, "phase": "../x"})
later("metric_with_a_line_break", {"kind": "report", "at_ns": 1, "metrics": {"a\nb": 1.0}})
later("too_many_metrics", {"kind": "report", "at_ns": 1, "metrics": {f"m{number}": 1.0 for number in range(65)}})
later("progress_beyond_the_end", {"kind": "report", "at_ns": 1, "metrics": {}, "progress": 7})
later("result_too_large", {"kind": "finished", "seq": 1, "at_ns": 1, "result": {"x": "y" * 5000}})
later(
    "checkpoint_outside",
    {"kind": "saved", "seq": 1, "at_ns": 1, "id": "0" * 64, "directory": "../../other", "step": 1, "layers": []},
)
later("message_that_is_a_list", b"[1, 2, 3]")
later("message_of_an_unknown_kind", {"kind": "shutdown", "seq": 1})


@attempt
def frame_of_four_gigabytes() -> str:
    wire = greeted()
    wire.raw(b"\xff\xff\xff\xff" + b"x" * 1000)
    return wire.code()


@attempt
def frame_one_byte_too_long() -> str:
    wire = greeted()
    wire.raw(struct.pack(">I", 65537))
    return wire.code()


@attempt
def replay_of_ones_own_message() -> str:
    """Acknowledged again, and taken once: the host counts."""
    wire = greeted()
    answers = []
    for _ in range(3):
        wire.send(publish(1, event="Replayed"))
        answers.append(wire.code())
    return ",".join(answers)


@attempt
def replay_after_a_new_connection() -> str:
    wire = greeted(client="a" * 32)
    wire.send(publish(1, event="ReplayedLater"))
    answers = [wire.code()]
    wire = greeted(client="a" * 32)
    wire.send(publish(1, event="ReplayedLater"))
    return ",".join([*answers, wire.code()])


@attempt
def replay_of_a_neighbours_message() -> str:
    """With the neighbour's own client and number: it is taken as what this sandbox says."""
    wire = greeted(client=OTHER_CLIENT, first_seq=2)
    wire.send(publish(2, event="OfTheNeighbour"))
    return wire.code()


@attempt
def answer_to_a_vote_that_nobody_called() -> str:
    wire = greeted()
    wire.send({"kind": "stop_count", "vote": "forged", "calls": 1, "stop_at": 1})
    wire.send(publish(1, event="AfterTheVote"))
    return wire.code()


@attempt
def flood_of_messages() -> str:
    wire, limited = greeted(), 0
    for number in range(1, 1500):
        wire.send(publish(number, event="Flood"))
        limited += wire.code() in ("rate_limited", "out_of_order", "closed")
        if limited > 100:
            return "rate_limited"
    return "taken"


@attempt
def flood_of_reports() -> str:
    wire = greeted()
    for _ in range(500):
        wire.send({"kind": "report", "at_ns": 1, "metrics": {"x": 1.0}})
    wire.send(publish(1, event="AfterReports"))
    answers = [wire.code() for _ in range(20)]
    return "rate_limited" if "rate_limited" in answers else answers[-1]


@attempt
def flood_of_refused_messages() -> str:
    """Whoever never stops is cut off."""
    wire = greeted()
    try:
        for _ in range(500):
            wire.send(b"{}")
            if wire.code() == "closed":
                return "closed"
    except OSError:
        return "closed"
    return "never cut off"


@attempt
def flood_without_reading() -> str:
    """The agent's answers are never read: it must not keep them without end."""
    wire = greeted()
    try:
        for _ in range(200_000):
            wire.send(b"{}")
    except OSError:
        return "closed"
    return "taken"


@attempt
def flood_of_connections() -> str:
    held = []
    try:
        while len(held) < 400:
            try:
                held.append(Wire())
            except BlockingIOError:  # more wait to be accepted than the agent lets wait
                time.sleep(0.01)
        time.sleep(0.5)
        for wire in held:
            wire.send(hello())
            if wire.code() == "closed":
                return "closed"
        return "all were welcomed"
    except OSError:
        return "closed"
    finally:
        for wire in held:
            wire.socket.close()
        time.sleep(1)


@attempt
def descriptors_for_the_agent() -> str:
    """The agent takes none: they are closed by its kernel."""
    wire = greeted()
    body = json.dumps(publish(1, event="WithDescriptors")).encode()
    with open("/etc/passwd", "rb") as held:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [held.fileno()] * 8))]
        wire.socket.sendmsg([struct.pack(">I", len(body)) + body], rights)
    return wire.code()


@attempt
def credentials_of_root() -> str:
    wire = greeted()
    forged = [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, struct.pack("3i", 1, 0, 0))]
    wire.socket.sendmsg([b"\x00\x00\x00\x02{}"], forged)
    return wire.code()


@attempt
def replace_the_socket() -> str:
    os.unlink(PATH)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(PATH)
    return "replaced"


@attempt
def rename_the_socket() -> str:
    os.rename(PATH, PATH + ".old")
    return "renamed"


@attempt
def leave_a_file_beside_the_socket() -> str:
    with open(os.path.dirname(PATH) + "/agent.sock.new", "w") as writing:
        writing.write("x")
    return "written"


@attempt
def reach_the_socket_of_another_sandbox() -> str:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as trying:
        trying.connect(HOST["other_socket"])
    return "connected"


@attempt
def reach_the_socket_of_another_sandbox_by_a_link() -> str:
    os.symlink(HOST["other_socket"], "/tmp/link.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as trying:
        trying.connect("/tmp/link.sock")
    return "connected"


@attempt
def see_the_agent_behind_the_socket() -> str:
    """The agent's process has no number in here, so nothing of /proc leads to it."""
    wire = greeted()
    pid, _, _ = struct.unpack("3i", wire.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if pid > 1 and os.path.exists(f"/proc/{pid}/cmdline"):
        with open(f"/proc/{pid}/cmdline") as reading:
            seen = reading.read()
        with open("/proc/self/cmdline") as reading:  # a guest's kernel names the process itself
            return "not seen" if seen == reading.read() else f"seen: {seen}"
    return "not seen"


for name, function in ATTEMPTS.items():
    began = time.monotonic()
    try:
        outcome = function()
    except (OSError, AssertionError) as error:
        outcome = f"denied: {error!r}"
    print(json.dumps({"attempt": name, "outcome": outcome, "seconds": round(time.monotonic() - began, 2)}), flush=True)
