"""Every reason code of the scheduler's: what it means, and what to do; the reference page is rendered from it.

Run `python -m tidegate_scheduler.policy.codes > docs/reference/reason-codes.md` after a change.
"""

from __future__ import annotations

import sys

WAITING: dict[str, tuple[str, str]] = {
    "Resources": (
        "No open node has enough free. The numbers are those of the node that comes nearest.",
        "Wait; ask for less; raise the priority with `tidegate job set`.",
    ),
    "Priority": (
        "There is room, or there will be, but it is kept for the jobs that are named, which are in front: how many, "
        "how much they need in all, and `start_ns`, when the first of them has its room, where that is known.",
        "Wait; a time limit that ends before their start lets a job use the room meanwhile.",
    ),
    "Reserved": (
        "Room is kept for this job on the nodes that are named: it is being left for it, or comes free there first. "
        "`start_by_ns`: when, by time limits.",
        "Wait: nobody behind it can take that room.",
    ),
    "GangTopology": (
        "The members do not fit on one node, below one switch or in one rack, as the job's `communication` and "
        "`widest_domain` ask, or on nodes of one CPU model, as `determinism: strict` does. `members_fit_together`: how "
        "many do, where most of them do, which is named. `one_node_until_ns`, `one_switch_until_ns`: how long it waits "
        "for that, before a wider place will do.",
        "Wait, or submit it with `widest_domain: rack`, `communication: loose`, or `determinism: relaxed`.",
    ),
    "Protected": (
        "Jobs of lower priority hold what is short, and may not be asked to leave: they are close to their end "
        "(`protected`), resumed a moment ago (`cool_down`), or left too often already (`budget`). "
        "`until_ns`: when the first of them may be asked, at the latest.",
        "Wait; `tidegate job suspend` asks one to leave all the same.",
    ),
    "QuotaReached": (
        "Its tenant would hold more than the ceiling of its queue. `*_needed`: the job alone needs more than that, and "
        "can never run under this ceiling; it waits, as an operator may raise it.",
        "Wait until jobs of the tenant end; an operator can raise the ceiling with `tidegate queue set`.",
    ),
    "QueueStopped": ("An operator stopped the queue of its tenant.", "An operator sets the queue going again."),
    "Held": ("An operator or its tenant holds the job.", "`tidegate job release`."),
    "BackOff": (
        "It failed, or lost its node, and pauses before the next attempt. The pause's end is the earliest start.",
        "Wait; `tidegate job show` says what it failed of.",
    ),
    "NoNode": (
        "The open nodes could not hold it even if they were empty; the detail says what none of them has.",
        "Bring back or add nodes, or ask for what there is. Before its first attempt it is rejected after a while, "
        "unless nodes are told to get its image.",
    ),
    "NodeDrained": (
        "Nodes that could hold it are drained, or a job leaves for that. First: no other node could.",
        "`tidegate node resume` when the node is well.",
    ),
    "NodeCordoned": (
        "Nodes that could hold it were cordoned, because jobs kept failing there.",
        "Look at the node's failures; `tidegate node resume` opens it.",
    ),
    "NodeAway": (
        "Nodes that could hold it are unreachable or lost.",
        "Look at the node's agent; jobs on a lost node resume elsewhere by themselves.",
    ),
    "Leftovers": (
        "Nodes that could hold it came back with sandboxes that were given up, and have yet to end them.",
        "Wait some seconds; the agent ends them.",
    ),
    "Maintenance": (
        "Its nodes are in maintenance, or would be before the job has certainly ended; or a job leaves for that.",
        "Give the job a time limit that ends before `start_ns`, or wait until `end_ns`.",
    ),
    "NotConsidered": ("No pass has looked at it yet.", "Wait a moment; if it stays so, see whether somebody leads."),
    "Placing": ("The next pass places it (told by `tidegate history`).", "Nothing."),
    "Inadmissible": (
        "Rejected: larger than the cluster, or no node offers its isolation level, image or devices.",
        "Submit it with what there is.",
    ),
}

NODES: dict[str, tuple[str, str]] = {
    "Fits": ("A member fits there now; of a placement: it was first in line there.", ""),
    "Isolation": ("The node does not offer the job's isolation level.", ""),
    "Image": ("The node does not have the job's image.", ""),
    "DeviceModel": ("Its GPUs are of other models, or have too little memory.", ""),
    "CpuModel": ("The job is `determinism: strict` and began on another CPU model.", ""),
    "TooSmall": ("It could not hold a member were it empty.", ""),
    "Excluded": ("It refused this job before, and others may take it.", ""),
}

RUNNING: dict[str, tuple[str, str]] = {
    "LeastCost": ("Asked to leave for a job of higher priority: it costs least (`lost_seconds`).", ""),
    "LowerPriority": ("Asked to leave for a job of higher priority (policy 1).", ""),
    "Backfilled": (
        "Asked to leave: it was let into room that is kept for another job, which comes now, and it is there still, "
        "because its limit was raised.",
        "",
    ),
    "Defragmentation": (
        "Asked to leave with a checkpoint: it fits elsewhere now, and the gang that is named fits then. What that "
        "gains and costs in GPU-seconds: `gained_gpu_seconds`, `lost_gpu_seconds`; `moves` jobs move.",
        "",
    ),
    "MoreWorkLeft": (
        "Asked to leave for a job of its own priority that has less work left, as far as is known: `steps` of work, "
        "which double, against `for_steps`.",
        "A higher priority; `expected_seconds`, if it takes less than it has run.",
    ),
    "QuotaReclaimed": ("Asked to leave: its tenant borrowed what another one was guaranteed and now needs.", ""),
    "ShareRaised": (
        "It has more CPU, of what is free or lent: its step rate is below its declared target, or was a while ago. "
        "`steps` of `steps_max` towards the most that its phase lets it have.",
        "",
    ),
    "SimulatorsAdded": ("It got more simulators, between its own bounds: there is CPU to spare.", ""),
    "SimulatorsRemoved": ("It gave simulators back: others need the CPU.", ""),
    "PhaseAsked": (
        "It runs, and a member waits to enter the phase that is named. What that needs beyond what the member has: "
        "`memory_mib_needed`, `gpus_needed`, `gpu_millis_needed`. `hand_back_ns`: by when others were told to hand it "
        "back.",
        "Wait: an owner's phase is granted in bounds; what is borrowed, when it is free or lent.",
    ),
    "PhaseGranted": (
        "A member may enter the phase that it asked for; `leased_*` of it is lent, and may be recalled.",
        "",
    ),
    "LeaseRecalled": (
        "Told to leave a phase, for the job that is named needs what is leased to it.",
        "Leave the phase in time: `hand_back_seconds` of its `preemption`.",
    ),
    "LeaseNotReturned": (
        "Asked to leave: it did not hand back in time what was leased to it, or said that it cannot.",
        "Raise `hand_back_seconds`, or mend its release hook.",
    ),
    "Rebalanced": (
        "Asked to leave: it waits for a phase on a node where much is asked for, and the node that is named has what "
        "it waits for. It resumes where least is asked for. `waited_seconds`: for how long it waited.",
        "",
    ),
    "SuspendRequested": ("Asked to leave by an operator, and is held then.", "`tidegate job resume`."),
    "RequeueRequested": ("Asked to leave by an operator, and waits again.", ""),
    "NodeShrank": ("Asked to leave: its node came back with less than its members hold.", ""),
    "Preempted": ("It left because it was asked to.", ""),
    "LeftByItself": ("It said that it was suspended without having been asked.", ""),
    "Released": ("Room that was kept for it is kept no more; the detail says why.", ""),
    "KeepsFailingJobs": (
        "The node was cordoned: attempts of several jobs came to grief there.",
        "Look at its failures.",
    ),
    "Cancelled": ("Cancelled by a user.", ""),
    "TimeLimit": ("It ran longer than its time limit.", "`tidegate job set --limit`, before."),
    "StartTimeout": ("Its sandboxes did not start in time; counted as infrastructure.", ""),
    "MemberGone": ("A member of the gang is gone, so the others are stopped.", ""),
    "JobError": ("A process of it failed; it is tried again up to `attempts_max`.", "Read its log."),
    "OutOfMemory": ("A process used more memory than the job asked for.", "Ask for more."),
    "Infrastructure": ("An attempt was lost by no fault of the job's; it is tried again.", ""),
}

_SECTIONS = (
    ("Why a job waits", "The first reason is the dominant one; those after it are in the way too.", WAITING),
    ("What a node means for a waiting job", "Besides those above, in `tidegate history why`.", NODES),
    ("Why a job was placed, left or ended", "In the reasons of decisions.", RUNNING),
)


def render() -> str:
    """Return the reference page."""
    lines = ["# Reason codes", "", "Rendered from `tidegate_scheduler/policy/codes.py`; a test holds them together."]
    for title, about, codes in _SECTIONS:
        lines += ["", f"## {title}", "", about, "", "| code | meaning | what to do |", "|---|---|---|"]
        lines += [f"| `{code}` | {meaning} | {remedy} |" for code, (meaning, remedy) in codes.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(render())
