"""One instance of every kind of event, with every field set: what the golden bytes are made from."""

from __future__ import annotations

from typing import Any

from tidegate_events import events as e
from tidegate_events.resources import GpuDevice, Resources
from tidegate_events.spec import (
    Component,
    JobSpec,
    PathBinding,
    PreemptionRule,
    ResourceRange,
    RestartRule,
    SourceRecord,
)

SPEC = JobSpec(
    name="cartpole",
    tenant="lab-a",
    submitter="ada",
    type="mixed",
    image="host",
    workdir="9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    env={"LR": "0.001"},
    secrets={"TOKEN": "hub-token"},
    components=(
        Component(
            name="sim",
            kind="simulator",
            command=("python", "-m", "sim"),
            replicas=4,
            resources={
                "default": ResourceRange(minimum=Resources(100, 64)),
                "sampling": ResourceRange(minimum=Resources(500, 64), maximum=Resources(1000, 128)),
            },
            env={"A": "b"},
            restart="on_failure",
            replicas_max=6,
        ),
        Component(
            name="learner",
            kind="learner",
            command=("python", "train.py"),
            resources={"default": ResourceRange(minimum=Resources(1000, 512, 1, 8000))},
        ),
    ),
    priority=5,
    gang_size=2,
    isolation="guarded",
    expected_seconds=60,
    time_limit_seconds=600,
    restart=RestartRule(max_attempts=3, backoff_seconds=7),
    preemption=PreemptionRule(
        grace_seconds=20, checkpoint_dir="/workspace/ckpt", restart_seconds=15, hand_back_seconds=12
    ),
    determinism="strict",
    threads=2,
    seed=42,
    inputs=(PathBinding(name="data", source="/data/in"),),
    outputs=(PathBinding(name="out", source="/data/out"),),
    labels={"team": "rl"},
    source=SourceRecord(git_commit="abc123", dirty_diff_digest="def456", argv=("tidegate", "submit")),
    communication="intensive",
    locality_wait_seconds=300,
    gpu_models=("H200",),
    phase_entry="asked",
    borrows=True,
    widest_domain="rack",
)

_CHECKPOINT = e.CheckpointRef(
    id="c" * 64,
    step=120,
    attempt=1,
    directory="000000000120-1-0a1b2c3d",
    layers=(e.LayerRef(name="model", digest="d" * 64, size_bytes=4096),),
)
_QUOTAS = (e.Quota(component="sim", cpu_millis=500, memory_mib=64, replicas=5),)
_SAVE = "000000000120-2-1b4f0e98-3"
_REASON = e.Reason(code="LeastCost", detail="loses least", numbers={"lost_seconds": 41, "candidates": 6})
_EVENT: dict[str, Any] = {"id": "e-1", "at_ns": 1_796_000_000_000_000_000, "cause": "48209.0"}
_JOB = {
    **_EVENT,
    "tenant": "lab-a",
    "job": "j-4k2m",
    "traceparent": "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01",
}
_FACT = {**_JOB, "attempt": 1}
_DECISION = {**_JOB, "revision": 12, "reasons": (_REASON,)}
_TRIED = {**_DECISION, "attempt": 1}
_NODE = {**_EVENT, "node": "n1", "incarnation": 3}
_STOP = {**_TRIED, "grace_seconds": 30, "deadline_ns": 1_796_000_030_000_000_000}
_ASKED = {"actor": "ada", "note": "before the demo"}
_RESULT: dict[str, e.Scalar] = {"mean_return": 195.5, "episodes": 100, "solved": True, "note": "fine", "nothing": None}

EXAMPLES: tuple[e.Event, ...] = (
    e.JobSubmitted(**_JOB, spec=SPEC),
    e.CancelRequested(**_JOB, actor="ada"),
    e.HoldRequested(**_JOB, **_ASKED),
    e.ReleaseRequested(**_JOB, **_ASKED),
    e.SuspendRequested(**_JOB, **_ASKED),
    e.ResumeRequested(**_JOB, **_ASKED),
    e.RequeueRequested(**_JOB, **_ASKED),
    e.JobPriorityChanged(**_JOB, **_ASKED, priority=9),
    e.JobLimitChanged(**_JOB, **_ASKED, time_limit_seconds=7200),
    e.QueueChanged(
        **_EVENT,
        **_ASKED,
        tenant="lab-a",
        weight=3,
        guaranteed=Resources(8000, 16384, gpu_millis=500),
        ceiling=Resources(16000, 32768, 2),
        stopped=True,
    ),
    e.NodeDrainRequested(**_EVENT, **_ASKED, node="n1", deadline_ns=1_796_000_600_000_000_000),
    e.NodeResumeRequested(**_EVENT, **_ASKED, node="n1"),
    e.NodeForgetRequested(**_EVENT, **_ASKED, node="n1"),
    e.MaintenancePlanned(
        **_EVENT,
        **_ASKED,
        name="switch-7",
        nodes=("n1", "n2"),
        start_ns=1_796_003_600_000_000_000,
        end_ns=1_796_007_200_000_000_000,
    ),
    e.MaintenanceCancelled(**_EVENT, **_ASKED, name="switch-7"),
    e.NodeJoined(
        **_NODE,
        capacity=Resources(8000, 16384, 1, 24000),
        levels=("trusted", "unisolated"),
        images={"host": "sha256:1234"},
        gpus=(GpuDevice(0, "GPU-1", "H200", 144384),),
        cpu_model="EPYC",
        isa="x86-64-v3",
        sandboxes=(e.HeldSandbox(job="j-4k2m", attempt=1, rank=0),),
        rack="r1",
        switch="s1",
        address="10.0.0.1",
        fetches_images=True,
        gpu_levels=("trusted",),
    ),
    e.NodeImagesChanged(**_NODE, images={"host": "b3:12", "sim": "b3:34"}, unavailable=("torch",)),
    e.ImageCached(**_NODE, image="sim", digest="sha256:34", size_bytes=429_000_000),
    e.ImageEvicted(**_NODE, image="sim", digest="sha256:34", size_bytes=429_000_000),
    e.ImageUnavailable(**_NODE, image="torch"),
    e.PlacementRejected(**_FACT, rank=0, node="n1", reason=_REASON),
    e.SandboxStarted(
        **_FACT, rank=0, node="n1", level="trusted", image_digest="sha256:1234", start_ms=35, prepare_ms=20
    ),
    e.SandboxExited(
        **_FACT,
        rank=0,
        node="n1",
        outcome="failed",
        exit_code=1,
        signal=9,
        oom=True,
        acknowledged=True,
        last_step=130,
        detail="killed",
        result=_RESULT,
    ),
    e.PhaseChanged(**_FACT, rank=0, phase="sampling", step=7),
    e.PhaseRequested(**_FACT, rank=0, phase="learning", step=7),
    e.ProgressReported(**_FACT, rank=0, progress_millis=350, step=70),
    e.QuotaApplied(**_FACT, rank=0, node="n1", quotas=_QUOTAS, enforced=False),
    e.ShrinkRefused(**_FACT, rank=0, node="n1", quotas=_QUOTAS),
    e.HandBackFailed(
        **_FACT, rank=0, phase="learning", reason=e.Reason(code="DevicesNotFreed", detail="it raised ValueError('x')")
    ),
    e.CheckpointSaved(**_FACT, rank=0, node="n1", checkpoint=_CHECKPOINT, tier="warm", save=_SAVE),
    e.CheckpointFailed(**_FACT, stage="verify", reason=_REASON, checkpoint_id="c" * 64, step=120, save=_SAVE),
    e.CheckpointVerified(**_FACT, checkpoint_id="c" * 64, size_bytes=4096),
    e.CheckpointPartSaved(**_FACT, rank=2, node="n2", save=_SAVE, nodes=("n1", "n2"), ranks=(2, 3), part=_CHECKPOINT),
    e.CheckpointPartFailed(**_FACT, rank=3, node="n2", save=_SAVE, nodes=("n1", "n2"), reason=_REASON, step=120),
    e.CheckpointPartPromoted(**_FACT, save=_SAVE, node="n2", part_id="d" * 64, tier="warm"),
    e.StepRateLow(**_FACT, rate_millis=900, target_millis=2000, window_seconds=10),
    e.StepRateRecovered(**_FACT, rate_millis=2400, target_millis=2000, window_seconds=10),
    e.GenerationOpened(
        **_EVENT,
        generation=2,
        first_seq=48212,
        sealed_frames=48211,
        sealed_digest="a" * 64,
        snapshot="state-000000048211",
        state_digest="b3:9f2c",
    ),
    e.LeaderElected(**_EVENT, epoch=7, instance="s1"),
    e.PolicyChanged(**_EVENT, policy=3, parameters={"grace_seconds": 30}),
    e.DecisionPass(
        **_EVENT,
        epoch=7,
        at_seq=48211,
        now_ns=1_796_000_000_000_000_000,
        core="1.0",
        policy=3,
        state_digest="b3:9f2c",
        decisions=2,
    ),
    e.NodeUnreachable(**_NODE),
    e.NodeReachable(**_NODE),
    e.NodeLost(**_NODE),
    e.NodeCordoned(**_NODE, reasons=(_REASON,)),
    e.NodeForgotten(**_NODE),
    e.ImagePrefetchHinted(**_EVENT, node="n1", image="host"),
    e.JobRejected(**_DECISION),
    e.JobPlaced(
        **_TRIED,
        members=(e.MemberPlacement(rank=0, node="n1", incarnation=3, quotas=_QUOTAS, gpu_indices=(0,)),),
        resume=_CHECKPOINT,
        backfills=("j-7",),
    ),
    e.JobStarted(**_TRIED),
    e.JobResumed(**_TRIED, checkpoint_id="c" * 64, step=120),
    e.QuotaChanged(
        **_TRIED,
        rank=0,
        quotas=_QUOTAS,
        phase="learning",
        gpu_indices=(0, 1),
        leased=Resources(0, 512, 1),
        extra=Resources(500, 0, 1),
        gpu_millis=500,
    ),
    e.HandBackRequested(**_TRIED, rank=0, deadline_ns=1_796_000_030_000_000_000, for_job="j-9x1p"),
    e.RoomReserved(**_DECISION, nodes=("n1", "n2"), start_by_ns=1_796_000_090_000_000_000),
    e.PreemptRequested(**_STOP, for_job="j-9x1p", hold=True),
    e.StopRequested(**_STOP),
    e.JobSuspended(**_TRIED, acknowledged=True, checkpoint_id="c" * 64, step=120, lost_steps=4),
    e.JobRequeued(**_TRIED, outcome="lost", not_before_ns=1_796_000_005_000_000_000, lost_steps=4),
    e.JobCompleted(**_TRIED, result=_RESULT),
    e.JobFailed(**_TRIED, exit_code=1, signal=9, oom=True, lost_steps=4),
    e.JobCancelled(**_TRIED, lost_steps=4),
)
