"""Whatever a sandbox writes into its socket gets a typed reply, and the server goes on."""

import json
import os
import socket
import stat
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tidegate import protocol
from tidegate_executor.channel import messages, server, session
from tidegate_executor.channel.handler import HandlerBusy
from tidegate_executor.channel.listening import listen

HELLO = {
    "kind": "hello",
    "protocol": [1, 1],
    "client": "0" * 32,
    "component": "learner",
    "replica": 0,
    "pid": 7,
    "first_seq": 1,
    "stop_group": "learner/0",
    "stop_at": None,
    "sdk": "0.1.0",
    "python": "3.9.0",
}


class Raw:
    """A process that speaks the protocol byte by byte."""

    def __init__(self, path: Any) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(20)
        self.socket.connect(str(path))
        self._reader = protocol.FrameReader()
        self._pending: list[dict[str, Any]] = []

    def send(self, message: Any) -> None:
        body = message if isinstance(message, bytes) else json.dumps(message).encode()
        self.socket.sendall(struct.pack(">I", len(body)) + body)

    def receive(self) -> dict[str, Any] | None:
        while not self._pending:
            data = self.socket.recv(65536)
            if not data:
                return None
            self._pending.extend(self._reader.feed(data))
        return self._pending.pop(0)

    def hello(self, **changes: Any) -> dict[str, Any] | None:
        self.send({**HELLO, **changes})
        return self.receive()


@pytest.fixture
def raw(agent: Any) -> Iterator[Any]:
    made: list[Raw] = []

    def connect() -> Raw:
        made.append(Raw(agent.path(0)))
        return made[-1]

    yield connect
    for one in made:
        one.socket.close()


def publish(seq: int, **changes: Any) -> dict[str, Any]:
    return {"kind": "publish", "seq": seq, "at_ns": 1, "event": "Thing", "payload": {}, **changes}


def test_hello_and_acknowledgement(raw: Any) -> None:
    client = raw()
    assert client.hello() == {"kind": "welcome", "protocol": 1, "acked": 0, "resume": None}
    client.send(publish(1))
    assert client.receive() == {"kind": "ack", "seq": 1}
    client.send(publish(1))
    assert client.receive() == {"kind": "ack", "seq": 1}, "a repeated one is acknowledged, not delivered again"
    client.send(publish(3))
    assert client.receive()["expected"] == 2


@pytest.mark.parametrize(
    ("first", "code"),
    [
        ({"kind": "bye"}, "malformed"),
        ({"kind": "report", "protocol": [1, 1]}, "hello_first"),
        (b"not json", "malformed"),
        ({**HELLO, "protocol": [5, 6]}, "protocol_mismatch"),
        ({**HELLO, "component": "other"}, "unknown_component"),
        ({**HELLO, "component": "simulator", "replica": 2}, "unknown_component"),
        ({**HELLO, "job": "j-2"}, "malformed"),
        ({**HELLO, "client": "../../x"}, "malformed"),
    ],
)
def test_a_wrong_hello_is_refused(raw: Any, agent: Any, first: Any, code: str) -> None:
    client = raw()
    client.send(first)
    assert client.receive()["code"] == code
    assert client.receive() is None
    assert not agent.handler.hellos
    assert raw().hello()["kind"] == "welcome", "the server goes on"


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (publish(1, event="JobCompleted"), "reserved_kind"),
        (publish(1, event="TidegateThing"), "reserved_kind"),
        (publish(1, event="lower"), "malformed"),
        (publish(1, tenant="other"), "malformed"),
        (publish(1, payload={"x": "y" * 20_000}), "payload_too_large"),
        (publish(1, payload={"x": json.loads("[" * 40 + "]" * 40)}), "payload_too_deep"),
        ({"kind": "phase", "seq": 1, "at_ns": 1, "phase": "UPPER"}, "malformed"),
        ({"kind": "finished", "seq": 1, "at_ns": 1, "result": {"x": "y" * 5000}}, "result_too_large"),
        ({"kind": "finished", "seq": 1, "at_ns": 1, "result": {"x": {"deep": 1}}}, "malformed"),
        ({"kind": "saved", "seq": 1, "at_ns": 1, "id": "0" * 64, "directory": "../x", "step": 1}, "malformed"),
        ({"kind": "nonsense", "seq": 1}, "malformed"),
    ],
)
def test_a_wrong_message_is_refused_and_the_next_one_is_due(raw: Any, agent: Any, message: Any, code: str) -> None:
    client = raw()
    client.hello()
    client.send(message)
    reply = client.receive()
    assert (reply["code"], reply["seq"]) == (code, 1)
    client.send(publish(2))
    assert client.receive() == {"kind": "ack", "seq": 2}
    assert [event.event for event in agent.handler.of(messages.Publish)] == ["Thing"]


@pytest.mark.parametrize("body", [b"", b"[]", b"[" * 60_000, b"\xff\xfe", b'{"kind":7}', b'{"kind":"report"}'])
def test_a_body_that_is_no_message_is_refused(raw: Any, body: bytes) -> None:
    client = raw()
    client.hello()
    client.send(body)
    assert client.receive()["code"] == "malformed"
    client.send(publish(1))
    assert client.receive() == {"kind": "ack", "seq": 1}


def test_a_frame_that_is_too_long_ends_the_connection_only(raw: Any) -> None:
    client = raw()
    client.hello()
    client.socket.sendall(struct.pack(">I", protocol.FRAME_BYTES_MAX + 1))
    assert client.receive()["code"] == "frame_too_long"
    assert client.receive() is None
    assert raw().hello()["kind"] == "welcome"


def test_too_many_messages_get_a_typed_error_and_a_time(raw: Any, agent: Any) -> None:
    client = raw()
    client.hello()
    for seq in range(1, protocol.PHASES_BURST + 20):
        client.send({"kind": "phase", "seq": seq, "at_ns": 1, "phase": "sampling"})
    replies = [client.receive() for _ in range(protocol.PHASES_BURST + 19)]
    refused = [reply for reply in replies if reply["kind"] == "error"]
    assert refused[0]["code"] == "rate_limited"
    assert refused[0]["retry_after_ms"] > 0
    assert {reply["code"] for reply in refused} <= {"rate_limited", "out_of_order"}
    phases = agent.handler.of(messages.Phase)
    assert [phase.seq for phase in phases] == list(range(1, len(phases) + 1)), "taken in order, none skipped"
    assert protocol.PHASES_BURST <= len(phases) < protocol.PHASES_BURST + 19


def test_another_connection_of_the_same_replica_brings_no_more_room(raw: Any, agent: Any) -> None:
    clients = [raw() for _ in range(4)]
    for index, client in enumerate(clients):
        client.hello(client=f"{index:032x}")
        for seq in range(1, protocol.PHASES_BURST + 1):
            client.send({"kind": "phase", "seq": seq, "at_ns": 1, "phase": "sampling"})
        for _ in range(protocol.PHASES_BURST):
            client.receive()
    assert len(agent.handler.of(messages.Phase)) < 2 * protocol.PHASES_BURST


def test_a_handler_that_is_busy_is_asked_again(raw: Any, agent: Any) -> None:
    client = raw()
    client.hello()
    agent.handler.failure = HandlerBusy(70)
    client.send(publish(1))
    refused = client.receive()
    assert (refused["code"], refused["seq"], refused["retry_after_ms"]) == ("rate_limited", 1, 70)
    client.send(publish(1))
    assert client.receive() == {"kind": "ack", "seq": 1}


@pytest.mark.parametrize("message", [{"kind": "phase", "phase": "sampling\n"}, publish(1, event="JobSubmitted\n")])
def test_a_name_with_a_line_break_is_refused(raw: Any, agent: Any, message: dict[str, Any]) -> None:
    client = raw()
    client.hello()
    client.send({"seq": 1, "at_ns": 1, **message})
    assert client.receive()["code"] == "malformed"


def test_one_that_never_stops_misbehaving_is_cut_off(raw: Any) -> None:
    client = raw()
    client.hello()
    for _ in range(session.VIOLATIONS_MAX):
        client.send(b"[]")
    replies = []
    while (reply := client.receive()) is not None:
        replies.append(reply)
    assert len(replies) == session.VIOLATIONS_MAX


def test_too_many_processes_are_turned_away(raw: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "CLIENTS_MAX", 3)
    kept = [raw() for _ in range(3)]
    for index, client in enumerate(kept):
        assert client.hello(client=f"{index:032x}")["kind"] == "welcome"
    assert raw().receive() is None
    kept[0].send(publish(1))
    assert kept[0].receive()["kind"] == "ack"


def test_a_process_that_comes_back_replaces_its_earlier_connection(raw: Any, agent: Any) -> None:
    first, second = raw(), raw()
    first.hello()
    first.send(publish(1))
    first.receive()
    assert second.hello()["acked"] == 1
    second.send(publish(2))
    assert second.receive() == {"kind": "ack", "seq": 2}
    assert agent.servers[0].connected == 1
    with pytest.raises(ConnectionResetError):
        raise ConnectionResetError if first.receive() is None else AssertionError("still heard")


def test_a_client_whose_past_is_forgotten_goes_on(raw: Any) -> None:
    client = raw()
    assert client.hello(first_seq=57)["acked"] == 56
    client.send(publish(57))
    assert client.receive() == {"kind": "ack", "seq": 57}


def test_the_socket_is_for_its_owner_only(agent: Any) -> None:
    mode = os.stat(agent.path(0)).st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a socket to another user")
def test_the_socket_goes_to_the_sandbox_user(tmp_path: Any) -> None:
    listening = listen(tmp_path / "a.sock", (4321, 4322))
    found = os.stat(tmp_path / "a.sock")
    listening.close()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (4321, 4322, 0o600)
    assert os.listdir(tmp_path) == ["a.sock"]


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=8,
)
KINDS = [
    "hello",
    "phase",
    "publish",
    "saved",
    "save_failed",
    "restored",
    "suspended",
    "finished",
    "report",
    "stop_count",
]


FIELDS = ("seq", "at_ns", "phase", "event", "payload", "metrics", "step", "calls", "vote", "result")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    body=st.binary(max_size=300)
    | st.fixed_dictionaries(
        {"kind": st.sampled_from(KINDS)},
        optional=dict.fromkeys(FIELDS, json_like),
    ).map(lambda value: json.dumps(value).encode())
)
def test_nothing_a_sandbox_sends_stops_the_server(raw: Any, agent: Any, body: bytes) -> None:
    client = raw()
    client.hello(client=os.urandom(16).hex())
    client.send(body)
    client.send({"kind": "bye"})
    while client.receive() is not None:
        pass
    client.socket.close()
    assert agent.servers[0].faults == 0
    other = raw()
    assert other.hello(client=os.urandom(16).hex())["kind"] == "welcome"
    other.socket.close()
