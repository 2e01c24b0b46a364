"""Snapshots: `snapshot + tail == full fold` wherever history is cut, and bytes that were not saved so are refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import zstandard
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from tidegate_events import events as e
from tidegate_events.frame import Frame, Writer, encode
from tidegate_events.resources import Resources
from tidegate_scheduler import snapshot
from tidegate_scheduler.evolve import evolve
from tidegate_scheduler.snapshot import (
    MAGIC,
    DamagedSnapshotError,
    OtherCodeError,
    decode_snapshot,
    encode_snapshot,
    read_info,
)
from tidegate_scheduler.state import State

from tests.scheduler.test_hostile_machine import HostileMachine
from tests.scheduler.test_machine import NODES
from tests.support.afresh import decide_afresh
from tests.support.cluster import SECOND, Cluster, spec

OF_A_JOB: list[type[e.JobEvent]] = [
    e.HoldRequested,
    e.ReleaseRequested,
    e.SuspendRequested,
    e.ResumeRequested,
    e.RequeueRequested,
    e.JobPriorityChanged,
    e.JobLimitChanged,
]
LOOK_AHEAD_SECONDS = (0, 1, 45, 400, 100_000)


def assert_same(left: State, right: State, now_ns: int) -> None:
    """Both know the same in the same order, and decide the same, now and later."""
    assert left.digest() == right.digest()
    assert (left.seq, left.decision_seq) == (right.seq, right.decision_seq)
    for table in ("jobs", "finished", "nodes", "writers", "specs", "floors", "queues", "maintenance"):
        mine, other = getattr(left, table), getattr(right, table)
        assert list(mine.items()) == list(other.items()), table
    for seconds in LOOK_AHEAD_SECONDS:
        one, two = (decide_afresh(state, now_ns + seconds * SECOND) for state in (left, right))
        assert (one.wake_at_ns, one.waiting, _wire(one.events)) == (two.wake_at_ns, two.waiting, _wire(two.events))


def _wire(events: tuple[e.AnyEvent, ...]) -> bytes:
    return encode(Frame(Writer("scheduler", "s1", 1, 1), events)) if events else b""


class RestartedMachine(HostileMachine):
    """Whenever it likes, the scheduler dies and goes on from a snapshot; `teardown` compares it with a full fold.

    Operators act meanwhile, so that what they leave behind is in the snapshots.
    """

    @precondition(lambda self: self._jobs())
    @rule(data=st.data(), kind=st.sampled_from(OF_A_JOB), number=st.integers(0, 9))
    def an_operator_asks_something_of_a_job(self, data: st.DataObject, kind: type[e.JobEvent], number: int) -> None:
        job = data.draw(st.sampled_from(self._jobs()))
        more: dict[str, Any] = {}
        if kind is e.JobPriorityChanged:
            more = {"priority": number}
        elif kind is e.JobLimitChanged:
            more = {"time_limit_seconds": number * 100 or None}
        self._raced(data, lambda: self._ask(kind, tenant="t", job=job, **more))

    @rule(name=st.sampled_from(sorted(NODES)), kind=st.sampled_from([e.NodeDrainRequested, e.NodeResumeRequested]))
    def an_operator_asks_something_of_a_node(self, name: str, kind: type[e.Event]) -> None:
        more = {"deadline_ns": self.cluster.now + 60 * SECOND} if kind is e.NodeDrainRequested else {}
        self._ask(kind, node=name, **more)

    @rule(weight=st.integers(1, 3), gpus=st.integers(0, 4), stopped=st.booleans())
    def an_operator_sets_a_queue(self, weight: int, gpus: int, stopped: bool) -> None:
        ceiling = Resources(9000, 1 << 20, gpus) if gpus else None
        self._ask(e.QueueChanged, tenant="t", weight=weight, ceiling=ceiling, stopped=stopped)

    @rule(name=st.sampled_from(["m1", "m2"]), seconds=st.integers(-100, 1000), cancelled=st.booleans())
    def an_operator_plans_maintenance(self, name: str, seconds: int, cancelled: bool) -> None:
        if cancelled:
            self._ask(e.MaintenanceCancelled, name=name)
            return
        start_ns = self.cluster.now + seconds * SECOND
        self._ask(e.MaintenancePlanned, name=name, nodes=("n1",), start_ns=start_ns, end_ns=start_ns + 100 * SECOND)

    @precondition(lambda self: self._jobs())
    @rule(data=st.data(), millis=st.integers(0, 1000))
    def a_job_tells_its_progress(self, data: st.DataObject, millis: int) -> None:
        job = data.draw(st.sampled_from(self._jobs()))
        for member in self.cluster.members(job):
            self.cluster.node_fact(job, member, e.ProgressReported, progress_millis=millis, _node=False)

    @rule()
    def it_starts_from_a_snapshot(self) -> None:
        before = self.cluster.state
        data = encode_snapshot(before)
        self.cluster.state = decode_snapshot(data)
        assert encode_snapshot(self.cluster.state) == data
        assert_same(self.cluster.state, before, self.cluster.now)

    def teardown(self) -> None:
        self._compare_with_a_full_fold()
        self._operators_let_go()
        super().teardown()
        self._compare_with_a_full_fold()

    def _ask(self, kind: type[e.Event], **fields: Any) -> None:
        event = kind(id=f"ask-{len(self.cluster.frames)}", at_ns=self.cluster.now, actor="ada", **fields)
        self.cluster.append("gateway", "g1", event)  # type: ignore[arg-type]

    def _operators_let_go(self) -> None:
        for job in self._jobs():
            self._ask(e.ResumeRequested, tenant="t", job=job)
        for node in NODES:
            self._ask(e.NodeResumeRequested, node=node)
        for name in list(self.cluster.state.maintenance):
            self._ask(e.MaintenanceCancelled, name=name)
        self._ask(e.QueueChanged, tenant="t")

    def _compare_with_a_full_fold(self) -> None:
        whole = State()
        for recorded in self.cluster.frames:
            evolve(whole, recorded)
        assert_same(self.cluster.state, whole, self.cluster.now)


RestartedMachine.TestCase.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)
TestRestarted = RestartedMachine.TestCase


def a_cluster() -> Cluster:
    """Return a cluster in which every table holds something, and every field that may be left out is set somewhere."""
    cluster = Cluster()
    cluster.node("n2", 3000, gpus=2)
    cluster.node("n1", 2000)
    for name, priority in (("zulu", 0), ("alpha", 1), ("mike", 1)):
        cluster.submit(spec(1500, priority=priority, attempts=2), name)
    cluster.settle()
    cluster.start("alpha")
    cluster.save("alpha", 7)
    cluster.exit("mike", "completed", result={"reward": 0.1, "huge": 1 << 80, "none": None, "small": -0.0})
    asked: dict[str, Any] = {"id": "a", "at_ns": cluster.now, "actor": "ada"}
    for number, event in enumerate(
        (
            e.QueueChanged(**asked, tenant="t", weight=2, guaranteed=Resources(1000), ceiling=Resources(9000, gpus=4)),
            e.NodeDrainRequested(**asked, node="n2", deadline_ns=cluster.now + SECOND),
            e.MaintenancePlanned(
                **asked, name="m", nodes=("n1", "n9"), start_ns=cluster.now + SECOND, end_ns=cluster.now + 2 * SECOND
            ),
            e.HoldRequested(**asked, tenant="t", job="zulu"),
            e.SuspendRequested(**asked, tenant="t", job="alpha"),
            e.JobLimitChanged(**asked, tenant="t", job="alpha", time_limit_seconds=None),
        )
    ):
        cluster.append("gateway", f"g{number}", event)
    cluster.node_fact("alpha", cluster.members("alpha")[0], e.ProgressReported, progress_millis=350, _node=False)
    return cluster


CLUSTER = a_cluster()
DATA = encode_snapshot(CLUSTER.state)


@given(cut=st.data())
@settings(max_examples=60, deadline=None)
def test_every_cut_gives_the_full_fold(cut: st.DataObject) -> None:
    at = cut.draw(st.integers(0, len(CLUSTER.frames)))
    prefix = State()
    for recorded in CLUSTER.frames[:at]:
        evolve(prefix, recorded)
    restored = decode_snapshot(encode_snapshot(prefix))
    for recorded in CLUSTER.frames[at:]:
        evolve(restored, recorded)
    assert_same(restored, CLUSTER.state, CLUSTER.now)


def test_tables_keep_their_order_and_amounts_any_size() -> None:
    cluster = Cluster()
    cluster.node("n1", 4000)
    job = cluster.submit(spec(1000))
    cluster.settle()
    cluster.job(job).result = {"huge": 1 << 80, "exact": 0.1, "flag": True, "whole": 1.0}
    cluster.state.touch(f"job/{job}")
    again = decode_snapshot(encode_snapshot(cluster.state))
    assert repr(again.jobs[job].result) == repr(cluster.job(job).result)
    assert list(decode_snapshot(DATA).nodes) == ["n2", "n1"]
    assert list(decode_snapshot(DATA).jobs) == list(CLUSTER.state.jobs)


def test_a_snapshot_says_what_it_is() -> None:
    info = read_info(DATA)
    assert (info.seq, info.state_digest) == (CLUSTER.state.seq, CLUSTER.state.digest())
    assert info.policy == CLUSTER.state.header.policy


@given(st.integers(0, len(DATA) - 1), st.integers(1, 255))
@settings(max_examples=200, deadline=None)
def test_any_changed_byte_is_found(at: int, change: int) -> None:
    broken = DATA[:at] + bytes([DATA[at] ^ change]) + DATA[at + 1 :]
    with pytest.raises(DamagedSnapshotError):
        decode_snapshot(broken)


@given(st.integers(0, len(DATA) - 1))
@settings(max_examples=50, deadline=None)
def test_any_missing_end_is_found(size: int) -> None:
    with pytest.raises(DamagedSnapshotError):
        decode_snapshot(DATA[:size])


def sealed_anew(head: dict[str, object], packed: bytes) -> bytes:
    sealed = msgspec.json.encode(head) + b"\n" + packed
    return b"%s %s\n%s" % (MAGIC, blake3(sealed).hexdigest().encode(), sealed)


def parts() -> tuple[dict[str, object], bytes]:
    _, head, packed = DATA.split(b"\n", 2)
    return msgspec.json.decode(head), packed


def test_another_state_under_a_good_seal_is_refused() -> None:
    head, packed = parts()
    body = msgspec.json.decode(zstandard.ZstdDecompressor().decompress(packed))
    body["jobs"][0]["priority"] += 1
    forged = sealed_anew(head, zstandard.ZstdCompressor().compress(msgspec.json.encode(body)))
    with pytest.raises(DamagedSnapshotError, match="which should be"):
        decode_snapshot(forged)


@pytest.mark.parametrize("field", ["core", "schema"])
def test_one_by_other_code_is_told_apart_from_a_bad_one(field: str) -> None:
    head, packed = parts()
    with pytest.raises(OtherCodeError, match=r"by core .* this is core"):
        decode_snapshot(sealed_anew({**head, field: "another"}, packed))


def test_one_that_unpacks_to_no_state_is_refused() -> None:
    head, _ = parts()
    for packed in (b"", b"no zstd", zstandard.ZstdCompressor().compress(b"{}")):
        with pytest.raises(DamagedSnapshotError, match="cannot be read"):
            decode_snapshot(sealed_anew(head, packed))


def test_the_fingerprint_follows_fields_and_not_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def fingerprint(kind: type) -> str:
        monkeypatch.setattr(snapshot, "_Body", kind)
        return snapshot.schema.__wrapped__()

    made = {
        doc: msgspec.defstruct("Body", [("description", int, 1)], namespace={"__doc__": doc}) for doc in ("one", "two")
    }
    assert fingerprint(made["one"]) == fingerprint(made["two"])
    assert fingerprint(msgspec.defstruct("Body", [("description", int, 2)])) != fingerprint(made["one"])
    assert fingerprint(msgspec.defstruct("Body", [("other", int, 1)])) != fingerprint(made["one"])
