"""The state grows without changing what it was: entities of the first release encode to the bytes they had then.

The digests that recorded passes carry are taken over these bytes. `tests/golden/state.json` holds them as the code of
the first policy wrote them; it never changes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tidegate_events.resources import Resources
from tidegate_events.spec import Component, JobSpec, PreemptionRule, ResourceRange
from tidegate_scheduler.state import Header, Job, Maintenance, Member, Node, NodeFailure, Queue, State

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "state.json").read_text())
KINDS: dict[str, type[msgspec.Struct]] = {"job": Job, "node": Node, "header": Header}
PINNED = [(each["kind"], json.dumps(each["wire"], separators=(",", ":")).encode()) for each in GOLDEN["entities"]]
GROWN: dict[type[msgspec.Struct], dict[str, Any]] = {
    Member: {
        "resized_ns": 1,
        "returns_mib": 1,
        "returns_ns": 1,
        "wanted": "learning",
        "granted": "learning",
        "held_mib": 1,
        "leased": Resources(1),
        "hand_back_ns": 1,
        "hand_back_for": "j",
        "extra": Resources(1),
        "wanted_ns": 1,
        "leased_ns": 1,
        "lent_gpus": (1,),
        "lent_millis": 1,
        "recalls": 1,
        "recalled_ns": 1,
    },
    Job: {
        "held": True,
        "suspend_requested": True,
        "requeue_requested": True,
        "time_limit_seconds": 60,
        "progress_millis": 350,
        "progress_ns": 1,
        "slow": True,
        "suspended_ns": 1,
        "saved_ns": 1,
        "reserved_start_ns": 1,
        "cpu_model": "EPYC",
        "backfills": ("j",),
        "room_changes": 1,
        "room_changed_ns": 1,
        "raised_steps": 1,
        "raised_ns": 1,
        "raise_window_seconds": 1,
        "saved_on": "n1",
        "slices": 1,
        "moves": 1,
        "moved_ns": 1,
    },
    Node: {
        "rack": "r1",
        "switch": "s1",
        "cpu_model": "EPYC",
        "isa": "x86-64-v3",
        "drain_deadline_ns": 1,
        "cordoned": True,
        "failures": [NodeFailure("j-1", 1, 1)],
        "hinted": ["host"],
        "address": "10.0.0.1",
        "unavailable": ["torch"],
        "fetches_images": True,
        "gpu_levels": ("trusted",),
    },
    Header: {"moved_ns": [1], "offers_changed_ns": 1, "offers_changing_ns": 1},
}
"""Every field that came after the first release, at a value that is not its default."""


def first_of(kind: str) -> Any:
    return msgspec.json.decode(next(data for name, data in PINNED if name == kind), type=KINDS[kind])


def an_entity(kind: type[msgspec.Struct]) -> Any:
    return first_of("job").members[0] if kind is Member else first_of(kind.__name__.lower())


@pytest.mark.parametrize(("kind", "data"), PINNED)
def test_an_entity_of_the_first_release_has_the_bytes_it_had(kind: str, data: bytes) -> None:
    assert msgspec.json.encode(msgspec.json.decode(data, type=KINDS[kind])) == data


def test_a_state_of_the_first_release_has_the_digest_it_had() -> None:
    state = State()
    job, node = first_of("job"), first_of("node")
    state.jobs[job.id], state.nodes[node.name] = job, node
    state.touch_all()
    assert state.digest() == GOLDEN["digest"]


def test_a_new_state_has_the_header_of_the_first_release() -> None:
    assert msgspec.json.encode(State().header) == dict(PINNED)["header"]


@pytest.mark.parametrize("kind", GROWN)
def test_what_came_later_is_optional_and_left_out_and_all_else_is_required(kind: type[msgspec.Struct]) -> None:
    assert kind.__struct_config__.omit_defaults
    fields = msgspec.structs.fields(kind)
    optional = [field.name for field in fields if not field.required]
    assert optional == list(GROWN[kind]), "set a new field in GROWN, and give it a default"
    assert optional == [field.name for field in fields][len(fields) - len(optional) :], "later fields come last"
    written = msgspec.json.decode(msgspec.json.encode(an_entity(kind)))
    assert list(written) == [field.name for field in fields if field.required]


CHANGES = [(kind, name, value) for kind, fields in GROWN.items() for name, value in fields.items()]


@pytest.mark.parametrize(("kind", "name", "value"), CHANGES, ids=lambda part: getattr(part, "__name__", str(part)))
def test_a_later_field_that_is_set_changes_the_digest(kind: type[msgspec.Struct], name: str, value: Any) -> None:
    state = State()
    job, node = first_of("job"), first_of("node")
    state.jobs[job.id], state.nodes[node.name] = job, node
    state.touch_all()
    entity = {Member: job.members[0], Job: job, Node: node, Header: state.header}[kind]  # type: ignore[index]
    setattr(entity, name, value)
    state.touch_all()
    assert state.digest() != GOLDEN["digest"]


def test_queues_and_maintenance_are_in_the_digest() -> None:
    state = State()
    digests = [state.digest()]
    state.queues["t"] = Queue("t")
    state.touch("queue/t")
    digests.append(state.digest())
    state.maintenance["m"] = Maintenance("m", ("n1",), 1, 2)
    state.touch("maintenance/m")
    digests.append(state.digest())
    del state.queues["t"], state.maintenance["m"]
    state.touch("queue/t")
    state.touch("maintenance/m")
    assert len(set(digests)) == 3
    assert state.digest() == digests[0]


def test_a_specification_grows_without_changing_its_digest() -> None:
    """`spec_digest` is in the job: a specification that uses nothing new is written as it was."""
    need = Resources(1000, 64, 1, 8000)
    component = Component(name="main", command=("x",), resources={"default": ResourceRange(minimum=need)})
    spec = JobSpec(
        name="n", tenant="t", submitter="s", components=(component,), preemption=PreemptionRule(grace_seconds=3)
    )
    assert msgspec.json.encode(spec) == (
        b'{"name":"n","tenant":"t","submitter":"s","components":[{"name":"main","command":["x"],"resources":{"default":'
        b'{"minimum":{"cpu_millis":1000,"memory_mib":64,"gpus":1,"gpu_memory_mib":8000}}}}],'
        b'"preemption":{"grace_seconds":3}}'
    )


def test_who_watches_hears_of_every_change() -> None:
    state, keys = State(), dict[str, None]()
    state.touch("job/before")
    state.watch(keys)
    state.touch("job/j")
    state.touch("node/n")
    state.touch("job/j")
    assert list(keys) == ["job/j", "node/n"]
