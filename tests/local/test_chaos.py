"""What a chaos run is drawn from, and how it is reckoned: pure parts, each tried with what it must find."""

from __future__ import annotations

import asyncio
import traceback
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from tidegate_local.chaos import records, remains, schedule
from tidegate_local.chaos.faults import Hit
from tidegate_local.chaos.history import Elected, History, percentile, takeover_ms
from tidegate_local.chaos.reckoning import Verified, reckon
from tidegate_local.chaos.run import Outcome, Stalled, within
from tidegate_local.chaos.schedule import BUS_GAP_SECONDS, KILLS_MAX, KILLS_WITHIN_SECONDS, LEADER, WEIGHTS
from tidegate_local.home import Home
from tidegate_local.topology import NATS, Topology

TOPOLOGY = Topology(bus_servers=3, schedulers=2, nodes=3)
SEEDS = range(20)
MS = 1_000_000


@pytest.mark.parametrize("seed", SEEDS)
def test_the_seed_alone_decides(seed: int) -> None:
    assert schedule.faults(seed, 60, TOPOLOGY) == schedule.faults(seed, 60, TOPOLOGY)
    assert schedule.jobs(seed, 60) == schedule.jobs(seed, 60)
    assert schedule.faults(seed, 60, TOPOLOGY) != schedule.faults(seed + 1, 60, TOPOLOGY)
    assert schedule.jobs(seed, 60) != schedule.jobs(seed + 1, 60)


@pytest.mark.parametrize("seed", SEEDS)
def test_faults_stay_within_what_a_stack_must_bear(seed: int) -> None:
    faults = schedule.faults(seed, 600, TOPOLOGY)
    of_bus = [fault for fault in faults if fault.target.startswith(NATS)]
    for earlier, later in pairwise(of_bus):
        assert later.at_seconds - earlier.at_seconds - earlier.seconds >= BUS_GAP_SECONDS
    for last in faults:
        within = [
            fault
            for fault in faults
            if last.at_seconds - KILLS_WITHIN_SECONDS < fault.at_seconds <= last.at_seconds and fault.what == "kill"
        ]
        for target, kills in Counter(fault.target for fault in within).items():
            assert kills <= KILLS_MAX, target
        assert sum(fault.target in {LEADER, "scheduler-1", "scheduler-2"} for fault in within) <= KILLS_MAX
    assert Counter(fault.what for fault in faults)["fill"] == 1
    assert Counter(fault.what for fault in faults)["restart"] == 1


@pytest.mark.parametrize("seed", SEEDS)
def test_every_kind_of_process_is_hit_within_a_minute(seed: int) -> None:
    kinds = {fault.target.partition("-")[0] for fault in schedule.faults(seed, 60, TOPOLOGY)}
    assert kinds >= {*WEIGHTS, "postgres"} - {
        "gateway",
        "keeper",
    }  # these two may fall into the moment of the full journal
    assert {job.kind for job in schedule.jobs(seed, 60)} == {kind.name for kind in schedule.KINDS}


def write(outputs: Path, name: str, run: str, *words: tuple[str, int]) -> None:
    (outputs / name).mkdir(exist_ok=True)
    (outputs / name / run).write_text("".join(f"{word} {at}\n" for word, at in words))


def test_what_ran_twice_is_found(tmp_path: Path) -> None:
    write(tmp_path, "well", "1-0", ("begin", 1000), ("alive", 2000), ("leave", 3000))
    write(tmp_path, "well", "2-0", ("begin", 4000), ("end", 5000))
    write(tmp_path, "twice", "1-0", ("begin", 1000), ("alive", 2000), ("begin", 3000), ("end", 4000))
    write(tmp_path, "beside", "1-1", ("begin", 1000), ("alive", 9000))
    write(tmp_path, "beside", "2-0", ("begin", 4000), ("end", 7000))
    found = records.started_twice(records.read(tmp_path))
    assert [(each.name, each.what) for each in found] == [
        ("twice", "attempt 1 rank 0 was executed 2 times"),
        ("beside", "attempts 1 and 2 lived together for 5 ms"),
    ]


def hit(at_ms: int, *, name: str = "scheduler-1", what: str = "kill", led: bool = True, fair: bool = True) -> Hit:
    return Hit(what=what, name=name, at_ns=at_ms * MS, led=led, fair=fair)


def test_a_takeover_takes_from_the_kill_of_the_leader_to_the_next_election() -> None:
    elected = [
        Elected(1, "scheduler-1", 0),
        Elected(2, "scheduler-2", 5_200 * MS),
        Elected(3, "scheduler-1", 9_000 * MS),
    ]
    assert takeover_ms([hit(4_000), hit(8_500, name="scheduler-2")], elected) == [1_200, 500]
    not_counted = [
        hit(4_000, led=False),
        hit(4_000, fair=False),
        hit(4_000, what="stop"),
        hit(4_000, name="scheduler-2"),
        hit(9_500),
    ]
    assert takeover_ms(not_counted, elected) == []
    assert (percentile([], 99), percentile([3, 1, 2], 99), percentile([3, 1, 2], 50)) == (None, 3, 2)


def outcome(**changes: object) -> Outcome:
    history = History(
        submissions=Counter({"j-1": 1, "j-2": 1}),
        names={"a-1": {"j-1"}, "b-2": {"j-2"}},
        placed=Counter({("j-1", 1): 1, ("j-2", 1): 1}),
        ends={"j-1": "JobCompleted", "j-2": "JobCompleted"},
        elected=[Elected(1, "scheduler-1", 0)],
    )
    run = records.Run(name="a-1", attempt=1, rank=0, begins=1, first_us=1, last_us=2, last_word="end")
    values: dict[str, object] = {
        "acked": {"a-1": "j-1", "b-2": "j-2"},
        "unanswered": set(),
        "refusals": Counter(),
        "states": {"a-1": "completed", "b-2": "completed"},
        "hits": [],
        "skipped": 0,
        "full_seconds": 1.0,
        "drain_seconds": 1.0,
        "history": history,
        "runs": [run],
        "left": [],
    }
    return Outcome(**{**values, **changes})  # type: ignore[arg-type]


ALL_VERIFIED = Verified(ok=True, decisions=4, decisions_verified=4)


def test_a_run_in_which_all_is_well_is_ok() -> None:
    report = reckon(1, outcome(), ALL_VERIFIED, [])
    assert report.ok
    assert (report.acked, report.found, report.jobs_completed, report.trouble) == (2, 2, 2, [])


def changed_history(**changes: object) -> Outcome:
    whole = outcome()
    for name, value in changes.items():
        setattr(whole.history, name, value)
    return whole


@pytest.mark.parametrize(
    ("seen", "field"),
    [
        (outcome(acked={"a-1": "j-1", "b-2": "j-9"}), "lost"),
        (changed_history(submissions=Counter({"j-1": 2, "j-2": 1})), "duplicated"),
        (changed_history(names={"a-1": {"j-1", "j-3"}}), "duplicated"),
        (changed_history(frame_ids=Counter({"gateway/local/1/1": 2})), "duplicated"),
        (changed_history(started=Counter({("j-1", 1, 0): 2})), "double_starts"),
        (changed_history(placed=Counter({("j-2", 1): 1})), "double_starts"),
        (outcome(left=["cgroup /x"]), "leaked_sandboxes"),
        (outcome(states={"a-1": "completed", "b-2": "running"}), "stuck_jobs"),
        (changed_history(ends={"j-1": "JobCompleted", "j-2": "JobFailed"}), "jobs_failed"),
    ],
)
def test_each_wrong_is_counted_named_and_not_ok(seen: Outcome, field: str) -> None:
    report = reckon(1, seen, ALL_VERIFIED, [])
    assert getattr(report, field) == 1
    assert not report.ok
    assert len(report.trouble) == 1


@pytest.mark.parametrize(
    "verified",
    [
        Verified(ok=False, decisions=4, decisions_verified=3),
        Verified(ok=True, decisions=4, decisions_verified=3),
        Verified(ok=True, decisions=0, decisions_verified=0),
    ],
)
def test_history_that_was_not_verified_whole_is_not_ok(verified: Verified) -> None:
    assert not reckon(1, outcome(), verified, []).ok


def test_why_history_could_not_be_verified_is_told() -> None:
    report = reckon(1, outcome(), Verified(refused="exit code 3: no bus"), [])
    assert not report.ok
    assert report.trouble == ["not verified: exit code 3: no bus"]


def test_what_the_stack_left_behind_counts_as_leaked() -> None:
    assert reckon(1, outcome(), ALL_VERIFIED, ["mount /x"]).leaked_sandboxes == 1


def test_groups_that_were_made_ahead_are_left_behind_only_where_they_are_too_many() -> None:
    assert remains.unclaimed({"ready-1", "ready-2", "ready-3"}, {"ready-3"}) == [], "two shims wait"
    assert remains.unclaimed({"ready-1", "ready-2", "ready-3"}, set()) == ["ready-1", "ready-2", "ready-3"]


def test_a_directory_of_a_job_is_left_behind(tmp_path: Path) -> None:
    home = Home(tmp_path)
    (home.root / "nodes" / "n1" / "sandboxes" / ".ready" / "ready-1").mkdir(parents=True)
    assert remains.sandboxes(home) == []
    left = home.root / "nodes" / "n1" / "sandboxes" / "j-1.1.0"
    left.mkdir()
    assert remains.sandboxes(home) == [f"directory {left}"]


async def test_a_stage_that_does_not_end_is_given_up_and_named() -> None:
    async def hang() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Stalled, match=r"^reading the journal did not end in 0 s$") as caught:
        async with within(0.05, "reading the journal"):
            await hang()
    stack = [frame.name for frame in caught.traceback] + [
        frame.name for frame in traceback.extract_tb(caught.value.__cause__.__cause__.__traceback__)
    ]
    assert "hang" in stack, "where it stood is told"
