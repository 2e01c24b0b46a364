"""From inside each level: what a job may not say to its agent is refused and logged, and its neighbour is heard."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from structlog.testing import capture_logs
from tidegate_executor.channel import messages
from tidegate_executor.channel.handler import Sandbox as Place
from tidegate_executor.channel.recording import RecordingHandler
from tidegate_executor.channel.server import ChannelServer
from tidegate_executor.sandbox.base import Limits, Mount

from tests.executor.sandbox.conftest import World
from tests.security.neighbour import Neighbour

PROGRAM = Path(__file__).with_name("channel_attempts.py")
LIMITS = Limits(cpu_millis=2000, memory_mib=512, pids=64)
ATTEMPTS_MIN = 40
LINES_MAX = 400
OTHER_CLIENT = "b" * 32

# What is taken, as the sandbox's own word and with no other effect: the test looks at what became of it.
TAKEN = {
    "replay_of_ones_own_message": "ack,ack,ack",
    "replay_after_a_new_connection": "ack,ack",
    "replay_of_a_neighbours_message": "ack",
    "answer_to_a_vote_that_nobody_called": "ack",
    "descriptors_for_the_agent": "ack",
    "see_the_agent_behind_the_socket": "not seen",
}
REFUSED = {
    "malformed", "hello_first", "unknown_component", "protocol_mismatch", "frame_too_long", "reserved_kind",
    "unexpected", "payload_too_deep", "payload_too_large", "result_too_large", "rate_limited", "out_of_order", "closed",
}  # fmt: skip
# Refused by the kernel of the sandbox, so that the agent hears nothing of it.
BY_THE_KERNEL = {
    "credentials_of_root", "replace_the_socket", "rename_the_socket", "leave_a_file_beside_the_socket",
    "reach_the_socket_of_another_sandbox", "reach_the_socket_of_another_sandbox_by_a_link", "descriptors_for_the_agent",
}  # fmt: skip


async def test_what_a_job_may_not_say_is_refused_and_logged(world: World) -> None:
    own, other = world.directory / "own", world.directory / "other"
    for place in (own, other):
        place.mkdir(mode=0o711)
    handler, neighbours = RecordingHandler(), RecordingHandler()
    servers = (
        ChannelServer(Place("job", 1, 0), {"main": 1}, handler),
        ChannelServer(Place("other", 1, 0), {"main": 1}, neighbours),
    )
    uid = world.backend.host_uid(0)
    for server, place in zip(servers, (own, other), strict=True):
        server.open(place / "agent.sock", (uid, uid) if uid is not None else None)
    serving = [asyncio.create_task(server.run()) for server in servers]
    host = {"other_socket": str(other / "agent.sock"), "other_client": OTHER_CLIENT}
    code = f"import sys\nsys.argv[1:] = [{json.dumps(host)!r}]\n" + PROGRAM.read_text().replace(
        "from __future__ import annotations\n", ""
    )
    (world.directory / "program").mkdir()
    (world.directory / "program" / "attempts.py").write_text(code)  # it is longer than an argument may be
    mounts = (
        Mount(source=str(own), target="/run/tidegate/agent"),
        Mount(source=str(world.directory / "program"), target="/inputs/program"),
    )
    sandbox = await world.create(mounts=mounts)
    descriptors = len(os.listdir("/proc/self/fd"))
    with capture_logs() as lines:
        async with Neighbour(other / "agent.sock", OTHER_CLIENT) as neighbour:
            process = world.process(*world.python("").argv[:-2], "/inputs/program/attempts.py", limits=LIMITS)
            exited, output = await world.run(sandbox, process, 90.0)
            slowest = neighbour.seconds_max
    for task in serving:
        task.cancel()
    await asyncio.gather(*serving, return_exceptions=True)
    assert exited.exit_code == 0, output[-3000:]
    outcomes = {found["attempt"]: found["outcome"] for found in map(json.loads, output.splitlines())}
    assert len(outcomes) >= ATTEMPTS_MIN
    wrong = {name: text for name, text in outcomes.items() if not is_right(name, text)}
    assert wrong == {}

    refusals = [line for line in lines if line["event"] == "channel.refused"]
    assert {line["sandbox"] for line in refusals} == {"job.1.0"}
    said = {line["code"] for line in refusals}
    assert set(outcomes.values()) & REFUSED - {"closed"} <= said, "each kind of refusal is in the log"
    assert "too_many_connections" in said
    assert len(lines) < LINES_MAX, "a flood does not fill the log"
    assert not [line for line in lines if "\n" in str(line.get("text", ""))], "nor forge lines of it"

    assert servers[0].faults == servers[1].faults == 0
    assert_one_effect_each(handler)
    assert [origin.sandbox.job for origin, _ in handler.controls].count("job") == len(handler.controls)
    assert {message.event for message in neighbours.of(messages.Publish)} == {"Beat"}, "the neighbour's own only"
    assert slowest < 2.0, "and it was heard all the time"
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 4, "nothing was left open, or given to the agent"


def is_right(name: str, outcome: str) -> bool:
    if name in BY_THE_KERNEL and outcome.startswith("denied"):
        return True
    return outcome == TAKEN[name] if name in TAKEN else outcome in REFUSED


def assert_one_effect_each(handler: RecordingHandler) -> None:
    events: list[Any] = [message.event for message in handler.of(messages.Publish)]
    assert {"Forged", "JobCompleted", "PreemptRequested", "TidegateSecret", "X"} & set(events) == set()
    for once in ("Replayed", "ReplayedLater", "OfTheNeighbour", "AfterTheVote"):
        assert events.count(once) == 1, once
    assert events.count("Flood") < 400
