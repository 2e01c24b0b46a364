"""Which checkpoints of a job stay in a tier, and removing the names of the others.

Only a checkpoint with all that it needs counts as one; the newest of those stays whatever a policy says, and so does
what is pinned.
"""

from __future__ import annotations

import json
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Sequence, Set, Tuple

from tidegate.checkpoint import root as roots
from tidegate.checkpoint.manifest import canonical
from tidegate.checkpoint.root import Root
from tidegate.errors import CorruptCheckpointError, UsageError
from tidegate.tiers.holding import missing_of
from tidegate.tiers.job import PINS, JobTier

KEEP_LAST_DEFAULT = 5
COUNT_MAX = 1_000_000
PIN_BYTES_MAX = 4096
REASON_CHARS_MAX = 200


class Policy(NamedTuple):
    """Keep the `keep_last` newest, and the first at or after every multiple of `keep_every` steps (0: none).

    With `keep_seconds` (0: off), also every one that is younger. With `best_metric`, the `keep_best` that have the
    largest value of it, or the smallest with `best_is_least`; those that lack it do not count.
    """

    keep_last: int = KEEP_LAST_DEFAULT
    keep_every: int = 0
    keep_seconds: int = 0
    best_metric: str = ""
    keep_best: int = 1
    best_is_least: bool = False


class Policies(NamedTuple):
    """A policy for each job, else for its tenant, else for all."""

    default: Policy = Policy()
    tenants: Mapping[str, Policy] = {}
    jobs: Mapping[str, Policy] = {}

    def of(self, tenant: str, job: str) -> Policy:
        """Return the policy for a job."""
        return self.jobs.get(job) or self.tenants.get(tenant) or self.default


def parse(text: str) -> Policies:
    """Return the policies in a JSON document: {"default": {"keep_last": 5}, "tenants": {...}, "jobs": {...}}.

    Raises UsageError, which names what is not accepted.
    """
    try:
        document = json.loads(text or "{}")
    except ValueError as error:
        raise UsageError(f"the retention policies are not JSON: {error}") from error
    groups = _object(document, "retention", ("default", "tenants", "jobs"))
    named = {
        group: {name: _policy(each, f"{group}.{name}") for name, each in _object(groups.get(group, {}), group).items()}
        for group in ("tenants", "jobs")
    }
    return Policies(_policy(groups.get("default", {}), "default"), named["tenants"], named["jobs"])


def _object(value: Any, what: str, accepted: Sequence[str] = ()) -> Dict[str, Any]:
    if not isinstance(value, dict) or (accepted and not set(value) <= set(accepted)):
        raise UsageError(f"{what} was refused: an object with {', '.join(accepted) or 'names'} is accepted")
    return value


def _policy(value: Any, what: str) -> Policy:
    fields = _object(value, what, Policy._fields)
    for name, wanted in (("best_metric", str), ("best_is_least", bool)):
        if type(fields.get(name, wanted())) is not wanted:
            raise UsageError(f"{what}.{name} was refused: a {wanted.__name__} is accepted")
    for name in set(fields) - {"best_metric", "best_is_least"}:
        number = fields[name]
        least = 1 if name == "keep_last" else 0
        if type(number) is not int or not least <= number <= COUNT_MAX * 1000:
            raise UsageError(f"{what}.{name} was refused: a whole number from {least} on is accepted")
    return Policy(**fields)


def kept(known: Sequence[Root], pinned: Set[str], policy: Policy, now_ns: int) -> Set[str]:
    """Return the names of the roots that stay, out of those that are complete."""
    names: Set[str] = {root.name for root in known if root.name in pinned}
    groups: Dict[Tuple[int, str, int], List[Root]] = {}
    for root in sorted(known, key=lambda root: root.age_key, reverse=True):
        groups.setdefault((root.stamp.rank, root.stamp.component, root.stamp.replica), []).append(root)
    for group in groups.values():
        names |= {root.name for root in group[: max(1, policy.keep_last)]}
        names |= _every(group, policy.keep_every)
        names |= _best(group, policy)
        if policy.keep_seconds:
            names |= {root.name for root in group if now_ns - root.created_ns < policy.keep_seconds * 10**9}
    return names


def _best(newest_first: Sequence[Root], policy: Policy) -> Set[str]:
    """Return those with the best value of the policy's metric; of equal ones the newest."""
    if not policy.best_metric:
        return set()
    sign = 1 if policy.best_is_least else -1
    valued = [
        (sign * value, root.name)
        for root in newest_first
        for name, value in root.stamp.metrics
        if name == policy.best_metric
    ]
    return {name for _, name in sorted(valued, key=lambda each: each[0])[: policy.keep_best]}


def _every(newest_first: Sequence[Root], steps: int) -> Set[str]:
    """Return the first checkpoint in each stretch of so many steps; of a repeated step the newest."""
    first: Dict[int, Root] = {}
    if steps:
        for root in newest_first:
            known = first.get(root.step // steps)
            if known is None or root.step < known.step:
                first[root.step // steps] = root
    return {root.name for root in first.values()}


def retain(tier: JobTier, policy: Policy, now_ns: int) -> List[str]:
    """Remove the names of the checkpoints that a policy does not keep; return them.

    One that is damaged or incomplete is neither counted nor removed: it may be repaired.
    """
    complete = []
    for name in tier.roots():
        try:
            root = tier.root(name)
        except CorruptCheckpointError:
            continue
        if not missing_of(tier, root):
            complete.append(root)
    staying = kept(complete, set(pins(tier)), policy, now_ns)
    removed = [root.name for root in complete if root.name not in staying]
    for name in removed:
        tier.remove_root(name)
    return removed


def pin(tier: JobTier, name: str, reason: str) -> None:
    """Keep a checkpoint whatever policies say. Raises CorruptCheckpointError where the tier has no such root."""
    if len(reason) > REASON_CHARS_MAX or not reason.isprintable():
        raise UsageError(f"the reason was refused: at most {REASON_CHARS_MAX} printable characters are accepted")
    tier.root(name)
    tier.objects.put(tier.path(PINS, name + roots.SUFFIX), canonical({"reason": reason}))


def unpin(tier: JobTier, name: str) -> None:
    """Let policies decide about a checkpoint again."""
    tier.objects.remove(tier.path(PINS, name + roots.SUFFIX))


def pins(tier: JobTier) -> List[str]:
    """Return the names of the pinned checkpoints."""
    return sorted(name for name in tier.listed(PINS, roots.SUFFIX) if roots.NAME.match(name))


def newest_first(known: Iterable[Root]) -> List[Root]:
    """Return roots, rank 0 before the others, the newest first."""
    return sorted(known, key=lambda root: (-root.stamp.rank, root.age_key), reverse=True)
