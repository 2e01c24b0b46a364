"""What is to become of a save of several nodes, out of whatever order in which the journal tells of it."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from tidegate.checkpoint.occasions import ANSWER_SECONDS_MAX, JOIN_SECONDS_MAX
from tidegate_checkpoint import saves
from tidegate_checkpoint.joiner import said
from tidegate_checkpoint.saves import DECIDED_PER_JOB_MAX, UNDECIDED_PER_JOB_MAX, Save, Saves
from tidegate_events import events as e
from tidegate_events.frame import Writer
from tidegate_events.joins import Joined, Vetoed, Waiting

NODES = ("n1", "n2")
KEY = "000000000007-1-0a1b2c3d-1"
SECOND_NS = 10**9
COMMON: dict[str, Any] = {"id": "x", "at_ns": 0, "tenant": "lab", "job": "j-1", "attempt": 1}
RANKS = {"n1": (0, 2), "n2": (1,)}


def ref(name: str) -> e.CheckpointRef:
    return e.CheckpointRef(id=name * 64, step=7, attempt=1, directory=f"000000000007-1-{name * 8}")


def stored(node: str, name: str, key: str = KEY, **more: Any) -> e.CheckpointPartSaved:
    given = COMMON | {"nodes": NODES, "ranks": RANKS[node], "rank": RANKS[node][0]} | more
    return e.CheckpointPartSaved(**given, node=node, save=key, part=ref(name))


def failed(node: str, key: str = KEY) -> e.CheckpointPartFailed:
    reason = e.Reason(code="SaveFailed", detail="OSError: No space left")
    about = {"rank": RANKS[node][-1], "node": node, "save": key, "nodes": NODES, "reason": reason, "step": 7}
    return e.CheckpointPartFailed(**COMMON, **about)


def promoted(node: str, name: str, key: str = KEY) -> e.CheckpointPartPromoted:
    return e.CheckpointPartPromoted(**COMMON, save=key, node=node, part_id=ref(name).id, tier="warm")


def joined(name: str = "f", key: str = KEY) -> e.CheckpointSaved:
    return e.CheckpointSaved(**COMMON, rank=0, node="n1", checkpoint=ref(name), tier="warm", save=key)


def vetoed(key: str = KEY) -> e.CheckpointFailed:
    return e.CheckpointFailed(**COMMON, stage="save", reason=e.Reason(code="X", detail="no"), save=key)


def exited(node: str, rank: int, attempt: int = 1) -> e.SandboxExited:
    return e.SandboxExited(**(COMMON | {"attempt": attempt}), rank=rank, node=node, outcome="failed")


def told(*events: e.Event) -> Saves:
    found = Saves()
    for event in events:
        by_service = isinstance(event, e.CheckpointPartPromoted | e.CheckpointSaved | e.CheckpointFailed)
        writer = Writer("checkpoint", "c1", 1, 1) if by_service else Writer("node", getattr(event, "node", ""), 1, 1)
        found.apply(Writer("scheduler", "s", 1, 1) if isinstance(event, e.NodeLost) else writer, event)
    return found


def only(found: Saves) -> Save:
    (save,) = found.undecided()
    return save


WHOLE = (stored("n1", "a"), stored("n2", "b"), promoted("n1", "a"), promoted("n2", "b"))


def test_every_order_of_the_same_words_comes_to_the_same() -> None:
    for order in itertools.permutations(WHOLE):
        after_its_part = all(
            order.index(promoted(n, p)) > order.index(stored(n, p)) for n, p in (("n1", "a"), ("n2", "b"))
        )
        assert saves.to_join(only(told(*order)), "n1") == after_its_part, order
    save = only(told(*WHOLE))
    assert [part.ref.id[0] for part in save.all_parts] == ["a", "b"], "in the order of the nodes"
    assert not saves.to_join(save, "n2"), "the service of rank 0's node joins"
    assert saves.to_join(save, "")
    assert saves.to_promote(save, "") == []


def test_nothing_is_joined_before_the_last_part_is_promoted() -> None:
    for count in range(1, len(WHOLE)):
        save = only(told(*WHOLE[:count]))
        assert not saves.to_join(save, "")
        assert saves.veto(save, "", SECOND_NS) is None
    waiting = only(told(*WHOLE[:3]))
    assert [part.node for part in saves.to_promote(waiting, "")] == ["n2"]
    assert saves.to_promote(waiting, "n1") == []


def test_a_word_said_twice_changes_nothing() -> None:
    save = only(told(*(event for event in WHOLE for _ in range(2))))
    assert saves.to_join(save, "n1")


@pytest.mark.parametrize(
    ("events", "code", "text"),
    [
        ((stored("n1", "a"), failed("n2")), "SaveFailed", "rank 1 on node n2: OSError: No space left"),
        ((failed("n1"), *WHOLE), "SaveFailed", "rank 2 on node n1"),
        ((stored("n1", "a"), stored("n1", "c")), "StoredTwice", "node n1"),
        ((stored("n1", "a"), exited("n2", 1)), "MemberEnded", "rank 1 on node n2"),
        ((stored("n1", "a"), stored("n2", "b", nodes=("n1", "n2", "n3"))), "OtherGang", "n3"),
        ((*WHOLE[:3], e.NodeLost(id="x", at_ns=0, node="n2", incarnation=1)), "NodeLost", "node n2"),
        ((stored("n1", "a"), e.NodeLost(id="x", at_ns=0, node="n2", incarnation=1)), "NodeLost", "node n2"),
    ],
)
def test_what_vetoes_is_named(events: tuple[e.Event, ...], code: str, text: str) -> None:
    save = only(told(*events))
    reason = saves.veto(save, "n1", SECOND_NS)
    assert reason is not None
    assert (reason.code, text in reason.detail) == (code, True), reason
    assert saves.veto(save, "n2", SECOND_NS) is None, "it is not the one to say so"
    assert not saves.to_join(save, "n1")
    assert saves.to_promote(save, "") == []


@pytest.mark.parametrize(
    "events",
    [
        (exited("n2", 1), *WHOLE),
        (*WHOLE, exited("n2", 1)),
        (*WHOLE[:2], exited("n1", 0), *WHOLE[2:]),
        (stored("n1", "a"), exited("n2", 1, attempt=2), *WHOLE[1:]),
        (*WHOLE, e.NodeLost(id="x", at_ns=0, node="n2", incarnation=1)),
        (*WHOLE, e.NodeLost(id="x", at_ns=0, node="n9", incarnation=1)),
    ],
)
def test_whose_part_is_there_may_leave(events: tuple[e.Event, ...]) -> None:
    assert saves.to_join(only(told(*events)), "n1")


def test_a_late_part_changes_nothing_that_was_decided() -> None:
    for decision in (joined(), vetoed()):
        found = told(stored("n1", "a"), decision, stored("n2", "b"), promoted("n2", "b"), failed("n2"))
        assert found.undecided() == []
        save = found.find("j-1", KEY)
        assert save is not None
        assert list(save.parts) == ["n1"]
    found = told(*WHOLE, joined(), vetoed())
    assert said(found.find("j-1", KEY), ref("a").id) == Joined(
        checkpoint_id=ref("f").id, directory=ref("f").directory, tier="warm"
    )
    found = told(*WHOLE, vetoed(), joined())
    assert said(found.find("j-1", KEY), ref("a").id) == Vetoed("no")


def test_who_began_again_is_not_told_of_the_part_before() -> None:
    found = told(*WHOLE, joined())
    assert isinstance(said(found.find("j-1", KEY), ref("c").id), Vetoed)
    assert said(told(*WHOLE).find("j-1", KEY), ref("a").id) == Waiting()
    assert said(None, ref("a").id) == Waiting()


def test_what_takes_too_long_is_given_up_by_the_leader_and_later_by_anybody() -> None:
    save = only(told(stored("n1", "a"), promoted("n1", "a")))
    due_ns = int(JOIN_SECONDS_MAX * SECOND_NS)
    assert saves.veto(save, "n1", due_ns) is None
    reason = saves.veto(save, "n1", due_ns + 1)
    assert reason is not None
    assert (reason.code, "node n2 stored no part" in reason.detail) == ("TooLate", True)
    assert saves.veto(save, "n2", due_ns + 1) is None
    assert saves.TAKEOVER_SECONDS < ANSWER_SECONDS_MAX, "before the processes stop asking"
    assert saves.veto(save, "n2", due_ns + int(ANSWER_SECONDS_MAX * SECOND_NS)) is not None


def test_attempts_do_not_meet() -> None:
    again = KEY.replace("-1-", "-2-", 1)
    retry = [
        msgspec.structs.replace(event, attempt=2, save=again, nodes=("n2",), ranks=(0,), rank=0)
        for event in (stored("n2", "b"),)
    ]
    found = told(stored("n1", "a"), *retry, msgspec.structs.replace(promoted("n2", "b"), attempt=2, save=again))
    old, new = found.undecided()
    assert (old.nodes, new.nodes) == (NODES, ("n2",))
    assert saves.to_join(new, "n2")
    assert not saves.to_join(old, "n1")
    assert told(msgspec.structs.replace(stored("n1", "a"), attempt=2)).undecided() == [], "it names another attempt"


def test_nobody_speaks_for_another_node() -> None:
    found = Saves()
    found.apply(Writer("node", "n9", 1, 1), stored("n1", "a"))
    found.apply(Writer("gateway", "g", 1, 1), stored("n1", "a"))
    assert found.undecided() == []
    found.apply(Writer("node", "n1", 1, 1), stored("n1", "a", nodes=("n2",)))
    assert found.undecided() == []
    found = told(stored("n1", "a"))
    found.apply(Writer("node", "n1", 1, 1), joined())
    found.apply(Writer("node", "n1", 1, 1), promoted("n1", "a"))
    assert not only(found).ready


def test_the_memory_of_a_job_is_bounded() -> None:
    keys = [f"000000000007-1-0a1b2c3d-{number}" for number in range(UNDECIDED_PER_JOB_MAX + 10)]
    found = told(*(stored("n1", "a", key) for key in keys))
    vetoed_now = [save.key for save in found.undecided() if saves.veto(save, "n1", 0) is not None]
    assert vetoed_now == keys[:10]
    for key in keys:
        found.apply(Writer("checkpoint", "c1", 1, 1), vetoed(key))
    assert found.undecided() == []
    assert [key for key in keys if found.find("j-1", key)] == keys[-DECIDED_PER_JOB_MAX:]
    found.apply(
        Writer("scheduler", "s", 1, 1), e.JobCompleted(id="x", at_ns=0, tenant="lab", job="j-1", revision=1, attempt=1)
    )
    assert found.find("j-1", keys[-1]) is None
