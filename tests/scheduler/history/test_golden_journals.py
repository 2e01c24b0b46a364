"""Recorded journals of real runs are decided again, bit for bit: a policy may not change under its old number."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from tidegate_events import events as e
from tidegate_events.journal.archive import inspect, read_archive
from tidegate_events.journal.base import Recorded
from tidegate_scheduler import version
from tidegate_scheduler.draft import Draft
from tidegate_scheduler.history import Verification, verify
from tidegate_scheduler.history.carrying import bundle, cut
from tidegate_scheduler.history.commands.proving import as_text, prove
from tidegate_scheduler.history.moment import Moment
from tidegate_scheduler.history.source import open_file
from tidegate_scheduler.history.why import why
from tidegate_scheduler.policy import registry
from tidegate_scheduler.policy.first import pipeline, queue
from tidegate_scheduler.policy.first.outlook import FirstOutlook
from tidegate_scheduler.policy.parameters import Parameters
from tidegate_scheduler.state import Job

from tests.golden.scenarios import SCENARIOS
from tests.scheduler.history.files import told
from tests.support.cluster import Cluster, spec

JOURNALS = Path(__file__).parents[2] / "golden" / "journals"
RECORDED = json.loads((JOURNALS / "recorded.json").read_text())
BYTES_MAX = 64 * 1024
CHANGED = (
    "the decisions of a recorded journal changed. A changed policy needs a new number: keep the old one in "
    "policy/registry.py, put the new one beside it and raise POLICY_VERSION. If the old recordings no longer do for "
    "another reason (events changed before a release), record anew and say why: scripts/record-journals --reason ..."
)
HAPPENED: dict[str, dict[type[e.Event], int]] = {
    "preemption-storm": {e.PreemptRequested: 3, e.JobSuspended: 3, e.RoomReserved: 2},
    "node-loss": {e.NodeUnreachable: 1, e.NodeLost: 1, e.JobRequeued: 2, e.NodeJoined: 3},
    "leader-change": {e.LeaderElected: 3},
    "gang": {e.StopRequested: 1, e.JobRequeued: 1, e.JobCompleted: 2},
    "resize": {e.QuotaChanged: 4, e.PhaseChanged: 3},
    "poison": {e.JobRejected: 2, e.LeaderElected: 2},
}
"""What at least must be in each, so that it is worth its name."""

every_journal = pytest.mark.parametrize("name", sorted(RECORDED))


def path(name: str) -> Path:
    return JOURNALS / f"{name}.tgj"


async def frames_of(name: str) -> list[Recorded]:
    source = open_file(path(name))
    return [recorded async for recorded in source.read(0, source.end)]


async def verified(frames: list[Recorded]) -> Verification:
    async def read() -> AsyncIterator[Recorded]:
        for recorded in frames:
            yield recorded

    return await verify(read())


def test_there_are_six_and_each_can_be_recorded_again() -> None:
    assert len(RECORDED) >= 6
    assert set(RECORDED) == set(SCENARIOS) == {file.stem for file in JOURNALS.glob("*.tgj")} == set(HAPPENED)


@every_journal
async def test_every_decision_is_made_again_bit_for_bit(name: str) -> None:
    recorded = RECORDED[name]
    info = inspect(path(name))
    assert (info.digest, info.frames) == (recorded["digest"], recorded["frames"])
    report = await prove(open_file(path(name)), Moment(), Moment(), told)
    assert report.ok, f"{CHANGED}\n{as_text(report)}"
    assert report.decisions == report.decisions_verified == recorded["decisions"] > 0
    assert report.state_digest == recorded["state_digest"], CHANGED


@every_journal
async def test_it_tells_what_its_name_says(name: str) -> None:
    events = [event for recorded in await frames_of(name) for event in recorded.frame.events]
    for kind, count in HAPPENED[name].items():
        assert sum(isinstance(event, kind) for event in events) >= count, kind.__name__
    assert RECORDED[name]["reason"]


@every_journal
def test_it_is_small_and_names_no_machine(name: str) -> None:
    assert path(name).stat().st_size < BYTES_MAX
    for raw in read_archive(path(name)):
        for place in (b"/work", b"/root", b"/home", b"/tmp", b"/Users"):
            assert place not in raw.data


@every_journal
async def test_its_redacted_parts_verify_and_its_jobs_are_explained(name: str, tmp_path: Path) -> None:
    source = open_file(path(name))
    part = await cut(source, Moment(seq=source.end // 2), Moment(), told)
    await bundle(source, tmp_path / "part.tgj", part, redacted=True, told=told)
    report = await prove(open_file(tmp_path / "part.tgj"), Moment(), Moment(), told)
    assert report.ok, as_text(report)
    for job in {x.job for r in await frames_of(name) for x in r.frame.events if isinstance(x, e.JobSubmitted)}:
        assert (await why(source, job, Moment(), told)).answer


@every_journal
def test_its_policy_is_still_here(name: str) -> None:
    assert RECORDED[name]["policy"] in registry.POLICIES
    assert RECORDED[name]["core"] == version.CORE_VERSION


def test_the_policy_in_use_is_the_newest_one() -> None:
    assert max(registry.POLICIES) == version.POLICY_VERSION


def _last_first(job: Job) -> tuple[int, int, str]:
    return (-job.priority, -job.submitted_seq, job.id)


def _resize_nobody(_draft: Draft, _placements: object) -> None:
    return


@pytest.mark.parametrize(
    ("module", "stage", "changed", "name"),
    [
        (queue, "rank", _last_first, "preemption-storm"),
        (pipeline, "_resize", _resize_nobody, "resize"),
    ],
    ids=["the order of the line", "resizing left out"],
)
async def test_a_policy_that_changes_under_its_number_is_found(
    monkeypatch: pytest.MonkeyPatch, module: object, stage: str, changed: Callable[..., object], name: str
) -> None:
    monkeypatch.setattr(module, stage, changed)
    report = await verified(await frames_of(name))
    assert not report.ok


def _decide_otherwise(draft: Draft) -> None:
    draft.parameters = Parameters(decisions_per_pass_max=1)
    pipeline.decide(draft)


async def test_a_policy_with_a_new_number_leaves_old_journals_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.POLICIES, 2, registry.Policy(_decide_otherwise, FirstOutlook))
    for name in RECORDED:
        assert (await verified(await frames_of(name))).ok
    cluster = Cluster()
    changed = e.PolicyChanged(id="2-policy", at_ns=cluster.now, policy=2, parameters={})
    cluster.append("scheduler", "s1", changed)
    cluster.node("n1", 4000)
    for _ in range(3):
        cluster.submit(spec(1000))
    cluster.settle()
    heads = [r.frame.events[0] for r in cluster.frames if isinstance(r.frame.events[0], e.DecisionPass)]
    assert [(head.policy, head.decisions) for head in heads if isinstance(head, e.DecisionPass)] == [(2, 1)] * 3
    assert (await verified(cluster.frames)).ok
