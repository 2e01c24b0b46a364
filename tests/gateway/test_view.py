"""The read model by itself: what each event shows, what is void, and that its memory is bounded."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tidegate_events import events as e
from tidegate_events import subjects
from tidegate_events.frame import Frame, Writer
from tidegate_events.journal.base import Recorded
from tidegate_events.resources import Resources
from tidegate_events.spec import Component, JobSpec, ResourceRange
from tidegate_gateway.view import render
from tidegate_gateway.view.model import TIMELINE_FIRST_MAX, TIMELINE_NEWEST_MAX
from tidegate_gateway.view.projection import View

SPEC = JobSpec(
    name="j",
    tenant="t",
    submitter="u",
    components=(
        Component(
            name="sim", command=("s",), replicas=2, resources={"default": ResourceRange(minimum=Resources(100, 64))}
        ),
        Component(
            name="learn",
            kind="learner",
            command=("l",),
            resources={"default": ResourceRange(minimum=Resources(300, 128))},
        ),
    ),
)
QUOTAS = (
    e.Quota(component="sim", cpu_millis=100, memory_mib=64),
    e.Quota(component="learn", cpu_millis=300, memory_mib=128),
)
JOB = {"tenant": "t", "job": "j-1"}
MEMBER = {**JOB, "attempt": 1, "rank": 0}


class Story:
    """Applies events one frame at a time."""

    def __init__(self, **options: Any) -> None:
        self.view = View(**options)
        self.seq = 0
        self.seqs: dict[tuple[str, int], int] = {}

    def tell(
        self, service: str, kind: type[e.Event], *, at_epoch: int = 1, by: str = "", **fields: Any
    ) -> tuple[bool, ...]:
        name = by or {"node": "n1"}.get(service, "x")
        self.seqs[name, at_epoch] = self.seqs.get((name, at_epoch), 0) + 1
        self.seq += 1
        event = kind(id=f"e{self.seq}", at_ns=self.seq * 1_000_000_000, **fields)
        writer = Writer(service, name, at_epoch, self.seqs[name, at_epoch])  # type: ignore[arg-type]
        subject = subjects.DECISION if service == "scheduler" else subjects.fact(service, name)
        return self.view.apply(Recorded(self.seq, subject, Frame(writer, (event,))))  # type: ignore[arg-type]

    def join(self, incarnation: int = 1, **fields: Any) -> None:
        self.tell(
            "node",
            e.NodeJoined,
            at_epoch=incarnation,
            node="n1",
            incarnation=incarnation,
            capacity=Resources(4000, 4096),
            levels=("trusted",),
            **fields,
        )

    def run(self) -> None:
        """A job runs as attempt 1 on n1."""
        self.join()
        self.tell("gateway", e.JobSubmitted, **JOB, spec=SPEC)
        placement = e.MemberPlacement(rank=0, node="n1", incarnation=1, quotas=QUOTAS)
        self.tell("scheduler", e.JobPlaced, **JOB, revision=0, attempt=1, members=(placement,))
        self.tell("node", e.SandboxStarted, **MEMBER, node="n1", level="trusted", start_ms=12, image_digest="d")
        self.tell("scheduler", e.JobStarted, **JOB, revision=2, attempt=1)

    @property
    def job(self) -> Any:
        return self.view.jobs["j-1"]


@pytest.fixture
def story() -> Story:
    return Story()


def test_a_running_job_shows_where_and_with_what(story: Story) -> None:
    story.run()
    shown = render.detail(story.job)
    assert (shown["state"], shown["attempt"], shown["nodes"], shown["revision"]) == ("running", 1, ["n1"], 3)
    assert shown["submit_to_running_ms"] == 3000
    (member,) = shown["attempts"][0]["members"]
    assert (member["sandbox"], member["level"], member["start_ms"]) == ("running", "trusted", 12)
    assert member["quotas"][0] == {
        "component": "sim",
        "replicas": 2,
        "desired": {"cpu_millis": 100, "memory_mib": 64},
        "observed": None,
        "enforced": None,
    }
    node = render.node(story.view.nodes["n1"])
    held = {"cpu_millis": 500, "memory_mib": 256, "gpus": 0, "gpu_memory_mib": 0, "gpu_millis": 0}
    assert node["allocated"] == held
    assert node["sandboxes"] == [{"job_id": "j-1", "tenant": "t", "attempt": 1, "rank": 0, "sandbox": "running"}]


def test_desired_and_observed_quotas_are_kept_apart(story: Story) -> None:
    story.run()
    more = (e.Quota(component="sim", cpu_millis=900, memory_mib=64), QUOTAS[1])
    story.tell("scheduler", e.QuotaChanged, **JOB, revision=3, attempt=1, rank=0, quotas=more)
    story.tell("node", e.QuotaApplied, **MEMBER, node="n1", quotas=(QUOTAS[0],))
    quota = render.detail(story.job)["attempts"][0]["members"][0]["quotas"][0]
    assert (quota["desired"]["cpu_millis"], quota["observed"]["cpu_millis"], quota["enforced"]) == (900, 100, True)
    assert render.node(story.view.nodes["n1"])["allocated"]["cpu_millis"] == 2100


def test_what_is_said_of_phases_that_are_asked_for_moves_no_job(story: Story) -> None:
    story.run()
    kept = (QUOTAS[0], e.Quota(component="learn", cpu_millis=300, memory_mib=512))
    told = {"deadline_ns": 1, "for_job": "j-2"}
    assert story.tell("node", e.PhaseRequested, **MEMBER, phase="learning", step=7) == (False,), "its phases are told"
    story.job.spec = msgspec.structs.replace(story.job.spec, phase_entry="asked")
    assert story.tell("node", e.PhaseRequested, **MEMBER, phase="learning", step=7) == (True,)
    assert story.tell("node", e.ShrinkRefused, **MEMBER, node="n2", quotas=kept) == (False,)
    assert story.tell("node", e.ShrinkRefused, **MEMBER, node="n1", quotas=kept) == (True,)
    assert story.tell("scheduler", e.HandBackRequested, **JOB, revision=0, attempt=1, rank=0, **told) == (True,)
    assert story.tell("scheduler", e.HandBackRequested, **JOB, revision=3, attempt=2, rank=0, **told) == (False,)
    shown = render.detail(story.job)
    assert (shown["state"], shown["revision"], shown["step"]) == ("running", 3, 7)
    assert shown["attempts"][0]["members"][0]["quotas"][1]["observed"]["memory_mib"] == 512


def test_preempt_suspend_and_resume_are_counted(story: Story) -> None:
    story.run()
    saved = e.CheckpointRef(
        id="c1", step=40, attempt=1, directory="d", layers=(e.LayerRef(name="model", digest="x", size_bytes=9),)
    )
    story.tell("node", e.PhaseChanged, **MEMBER, phase="learning", step=41)
    story.tell("node", e.CheckpointSaved, **MEMBER, node="n1", checkpoint=saved)
    story.tell(
        "scheduler", e.PreemptRequested, **JOB, revision=3, attempt=1, grace_seconds=5, deadline_ns=1, for_job="j-2"
    )
    assert story.job.state == "suspending"
    story.tell("node", e.SandboxExited, **MEMBER, node="n1", outcome="suspended", acknowledged=True, last_step=45)
    suspended = {"attempt": 1, "acknowledged": True, "checkpoint_id": "c1", "step": 40, "lost_steps": 5}
    story.tell("scheduler", e.JobSuspended, **JOB, revision=5, **suspended)
    shown = render.detail(story.job)
    assert (shown["state"], shown["preemptions"], shown["lost_steps"], shown["nodes"]) == ("suspended", 1, 5, [])
    assert shown["attempts"][0]["members"][0]["phase"] == "learning"
    assert (shown["checkpoint"]["id"], shown["checkpoint"]["size_bytes"]) == ("c1", 9)
    placement = e.MemberPlacement(rank=0, node="n1", incarnation=1, quotas=QUOTAS)
    story.tell("scheduler", e.JobPlaced, **JOB, revision=6, attempt=2, members=(placement,), resume=saved)
    second = {**MEMBER, "attempt": 2}
    story.tell("node", e.SandboxStarted, **second, node="n1", level="trusted")
    story.tell("scheduler", e.JobResumed, **JOB, revision=8, attempt=2, checkpoint_id="c1", step=40)
    shown = render.detail(story.job)
    assert (shown["state"], shown["resumed_step"], shown["step"]) == ("running", 40, 40)
    assert shown["attempts"][1]["resumed_from"] == {"checkpoint_id": "c1", "step": 40}
    result = {"mean_return": 211.5}
    story.tell("node", e.SandboxExited, **second, node="n1", outcome="completed", exit_code=0, result=result)
    story.tell("scheduler", e.JobCompleted, **JOB, revision=10, attempt=2, result=result)
    shown = render.detail(story.job)
    assert (shown["state"], shown["result"], shown["exit"]["exit_code"]) == ("completed", result, 0)
    assert render.node(story.view.nodes["n1"])["sandboxes"] == []


def test_a_stale_decision_and_a_fact_of_another_attempt_change_nothing(story: Story) -> None:
    story.run()
    before = render.summary(story.job)
    story.tell("scheduler", e.JobFailed, **JOB, revision=1, attempt=1)
    story.tell("node", e.SandboxExited, **{**MEMBER, "attempt": 7}, node="n1", outcome="failed")
    assert render.summary(story.job) == before
    assert [entry["void"] for entry in render.timeline(story.job)["events"][-2:]] == [True, True]
    assert story.view.void_events == 2


def test_a_late_duplicate_a_foreign_writer_and_a_deposed_leader_change_nothing(story: Story) -> None:
    story.run()
    story.tell("scheduler", e.LeaderElected, epoch=5, instance="x")
    state = render.summary(story.job)
    story.tell("scheduler", e.JobFailed, at_epoch=4, **JOB, revision=3, attempt=1)
    story.tell("gateway", e.JobCancelled, **JOB, revision=3, attempt=1)
    story.seqs["n1", 1] -= 1
    story.tell("node", e.SandboxExited, **MEMBER, node="n1", outcome="failed")
    story.tell("node", e.SandboxExited, by="n2", **MEMBER, node="n1", outcome="failed")
    assert render.summary(story.job) == state
    assert story.view.void_events == 4


def test_a_submission_that_comes_twice_counts_once(story: Story) -> None:
    story.run()
    story.tell("gateway", e.JobSubmitted, **JOB, spec=SPEC)
    assert story.job.state == "running"
    assert render.timeline(story.job)["events"][-1]["void"]


def test_a_node_that_comes_back_without_a_sandbox_loses_it(story: Story) -> None:
    story.run()
    story.join(2)
    assert render.node(story.view.nodes["n1"])["sandboxes"] == []
    assert story.job.attempts[0].members[0].sandbox == "lost"
    story.join(3, sandboxes=(e.HeldSandbox(job="j-9", attempt=1, rank=0),))
    assert render.node(story.view.nodes["n1"])["sandboxes"][0]["job_id"] == "j-9"


def test_reachability_follows_the_incarnation(story: Story) -> None:
    story.join(2)
    story.tell("scheduler", e.NodeUnreachable, node="n1", incarnation=1)
    assert story.view.nodes["n1"].state == "reachable"
    story.tell("scheduler", e.NodeUnreachable, node="n1", incarnation=2)
    assert story.view.nodes["n1"].state == "unreachable"
    story.tell("scheduler", e.NodeLost, node="n1", incarnation=2)
    assert not render.node(story.view.nodes["n1"])["reachable"]
    story.join(3)
    assert story.view.nodes["n1"].state == "reachable"


def test_a_checkpoint_that_did_not_verify_is_marked(story: Story) -> None:
    story.run()
    saved = e.CheckpointRef(id="c1", step=4, attempt=1, directory="d")
    story.tell("node", e.CheckpointSaved, **MEMBER, node="n1", checkpoint=saved)
    failed = {"stage": "verify", "reason": e.Reason(code="HashDiffers"), "checkpoint_id": "c1"}
    story.tell("checkpoint", e.CheckpointFailed, **JOB, attempt=1, **failed)
    shown = render.checkpoint(story.job.checkpoints[0])
    assert (shown["status"], shown["failure"]["code"]) == ("failed", "HashDiffers")


def test_a_timeline_is_bounded_and_says_what_it_dropped(story: Story) -> None:
    story.run()
    told = 3 * TIMELINE_NEWEST_MAX
    for number in range(told):
        story.tell("node", e.PhaseChanged, **MEMBER, phase=f"p{number % 2}")
    timeline = render.timeline(story.job)
    assert len(timeline["events"]) == TIMELINE_FIRST_MAX + TIMELINE_NEWEST_MAX
    assert timeline["dropped"] == told + 4 - len(timeline["events"])
    assert timeline["events"][0]["kind"] == "JobSubmitted"
    assert timeline["events"][-1]["seq"] == story.seq


def test_of_jobs_that_ended_long_ago_a_line_remains() -> None:
    story = Story(ended_jobs_max=2)
    for number in range(4):
        about = {"tenant": "t", "job": f"j-{number}"}
        story.tell("gateway", e.JobSubmitted, **about, spec=SPEC)
        story.tell("scheduler", e.JobRejected, **about, revision=0)
    assert sorted(story.view.jobs) == ["j-2", "j-3"]
    assert story.view.forgotten["j-0"].state == "rejected"
    story.tell("gateway", e.JobSubmitted, tenant="t", job="j-0", spec=SPEC)
    assert "j-0" not in story.view.jobs


def test_a_gap_in_history_is_refused(story: Story) -> None:
    story.join()
    story.seq += 1
    with pytest.raises(ValueError, match="no gaps"):
        story.tell("gateway", e.JobSubmitted, **JOB, spec=SPEC)
