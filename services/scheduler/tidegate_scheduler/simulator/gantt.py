"""Where everything of a picture lies, as numbers: curves that are thinned, and nodes as rows with lanes of bars.

Nothing is drawn here, so that tests can look at it.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import msgspec

from tidegate_scheduler.policy.parameters import SECOND_NS
from tidegate_scheduler.simulator.run import Run, Sample, Stay

POINTS_MAX = 2000
"""More points than a picture has pixels are not seen."""
ROWS_MAX = 64
"""More nodes than that are lines, not bars; those on which most happens are shown."""
OTHERS = "others"
MARGIN = 0.01
TICKS_MAX = 8
STEPS_SECONDS = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200, 86400)

Value = Callable[[Sample], int]


class Bar(msgspec.Struct, frozen=True, gc=False):
    """A member on a node: from `lane` on as many as it has whole devices, of `lanes` that the row of its node has."""

    stay: Stay
    row: int
    lane: int
    lanes: int

    @property
    def width(self) -> int:
        """Return how many lanes it takes."""
        return _width(self.stay)


class Rows(msgspec.Struct, frozen=True):
    """The nodes that are shown, the first at the top, of `nodes` that had something to do."""

    names: tuple[str, ...]
    bars: tuple[Bar, ...]
    nodes: int


def curve(samples: Sequence[Sample], end_ns: int, value: Value) -> tuple[list[int], list[float]]:
    """Return the times and the values of a step curve: each holds until the next time, the last one until `end_ns`.

    Where there are more than POINTS_MAX, each is the mean over its part of the time.
    """
    if not samples:
        return [end_ns], [0.0]
    times = [*(sample.at_ns for sample in samples), max(end_ns, samples[-1].at_ns)]
    values = [value(sample) for sample in samples]
    if len(values) <= POINTS_MAX:
        return times, [*map(float, values), float(values[-1])]
    return _means(times, values)


def _means(times: list[int], values: list[int]) -> tuple[list[int], list[float]]:
    """Return the mean of each of POINTS_MAX parts of equal length."""
    begin_ns, length_ns = times[0], times[-1] - times[0]
    edges = [begin_ns + length_ns * part // POINTS_MAX for part in range(POINTS_MAX + 1)]
    sums = [0] * POINTS_MAX
    part = 0
    for value, (from_ns, until_ns) in zip(values, pairwise(times), strict=True):
        at_ns = from_ns
        while at_ns < until_ns:
            while part < POINTS_MAX - 1 and edges[part + 1] <= at_ns:
                part += 1
            step_ns = min(until_ns, edges[part + 1]) - at_ns
            sums[part] += value * step_ns
            at_ns += step_ns
    spans = [later - earlier for earlier, later in pairwise(edges)]
    means = [total / span if span else 0.0 for total, span in zip(sums, spans, strict=True)]
    return edges, [*means, means[-1]]


def rows(runs: Iterable[Run]) -> list[Rows]:
    """Return the rows of each run; the same nodes in the same places in all of them."""
    runs = list(runs)
    busy_ns: Counter[str] = Counter()
    for run in runs:
        for stay in run.stays:
            busy_ns[stay.node] += stay.until_ns - stay.from_ns
    busiest = sorted(busy_ns, key=lambda node: (-busy_ns[node], node))[:ROWS_MAX]
    names = tuple(sorted(busiest, key=_as_people_count))
    return [Rows(names, tuple(_bars(run, names)), len(busy_ns)) for run in runs]


def _as_people_count(name: str) -> tuple[list[str | int], str]:
    """Return what puts n2 before n10: words and numbers in turn, a word first."""
    parts = re.split(r"([0-9]{1,18})", name)
    return [int(part) if number % 2 else part for number, part in enumerate(parts)], name


def _bars(run: Run, names: tuple[str, ...]) -> Iterable[Bar]:
    stays: dict[str, list[Stay]] = defaultdict(list)
    for stay in run.stays:
        stays[stay.node].append(stay)
    for row, name in enumerate(names):
        found = sorted(stays[name], key=lambda stay: (stay.from_ns, stay.until_ns, stay.job, stay.rank))
        lanes = _lanes(found)
        count = max((lane + _width(stay) for stay, lane in zip(found, lanes, strict=True)), default=1)
        for stay, lane in zip(found, lanes, strict=True):
            yield Bar(stay, row, lane, count)


def _width(stay: Stay) -> int:
    return 1 if stay.gpu_millis else max(1, stay.gpus)


def _lanes(stays: list[Stay]) -> list[int]:
    """Return the first lane of each, so that none lies over another: the lowest that are free as it begins."""
    free_ns: list[int] = []
    found = []
    for stay in stays:
        width, lane = _width(stay), 0
        while any(until_ns > stay.from_ns for until_ns in free_ns[lane : lane + width]):
            lane += 1
        free_ns += [0] * (lane + width - len(free_ns))
        free_ns[lane : lane + width] = [max(stay.until_ns, stay.from_ns)] * width
        found.append(lane)
    return found


def window(runs: Iterable[Run]) -> tuple[float, float]:
    """Return from when until when there are jobs in any of the runs, in seconds since each began, with a small margin.

    A recording may begin long before, and end long after.
    """
    first_ns: list[int] = []
    last_ns: list[int] = []
    for run in runs:
        later = [*(sample.at_ns for sample in run.samples[1:]), run.end_ns]
        for sample, until_ns in zip(run.samples, later, strict=False):
            if sample.waiting or sample.placed:
                first_ns.append(sample.at_ns - run.begin_ns)
                last_ns.append(until_ns - run.begin_ns)
    begin, end = min(first_ns, default=0) / SECOND_NS, max(last_ns, default=0) / SECOND_NS
    end = max(end, begin + 1e-3)
    margin = (end - begin) * MARGIN
    return max(0.0, begin - margin), end + margin


def ticks(begin_seconds: float, end_seconds: float) -> list[int]:
    """Return round times between, at most one more than TICKS_MAX."""
    length = end_seconds - begin_seconds
    step = next((each for each in STEPS_SECONDS if each * TICKS_MAX >= length), 0)
    if not step:
        days = -int(-length // (STEPS_SECONDS[-1] * TICKS_MAX))
        step = days * STEPS_SECONDS[-1]
    first = -int(-begin_seconds // step)
    return [number * step for number in range(first, int(end_seconds // step) + 1)]


def groups(runs: Iterable[Run], most: int) -> dict[str, str]:
    """Return for each job what it is coloured by: its tenant, or itself where there is one tenant and few jobs.

    There are `most` groups at most: the tenants whose jobs held nodes longest, and others.
    """
    runs = list(runs)
    tenants = {job.job: job.tenant for run in runs for job in run.jobs}
    held_ns: Counter[str] = Counter()
    for run in runs:
        for stay in run.stays:
            held_ns[tenants[stay.job]] += stay.until_ns - stay.from_ns
    if len(held_ns) <= 1:
        jobs = list(dict.fromkeys(stay.job for run in runs for stay in run.stays))
        if len(jobs) <= most:
            return {job: job for job in tenants}
    named = sorted(held_ns, key=lambda tenant: (-held_ns[tenant], tenant))
    if len(named) > most:
        named = named[: most - 1]
    shown = set(named)
    return {job: tenant if tenant in shown else OTHERS for job, tenant in tenants.items()}
