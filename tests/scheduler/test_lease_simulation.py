"""Hours of leases in seconds: candidates of different clocks on a bus that delays and loses, stopped and killed.

Seeded, so a failure can be seen again. What must hold is looked at after every single thing that happens.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random

import pytest
from tidegate_scheduler.lease import CLOCK_MARGIN, Entry, Lease, Write

LEASE_SECONDS = 1.0
TIMEOUT_SECONDS = LEASE_SECONDS / 3
PROCESSES = 3
SIMULATED_SECONDS = 1200.0
SPEEDS = (1 - CLOCK_MARGIN / 2.1, 1.0, 1 + CLOCK_MARGIN / 2.1)


class World:
    """The bucket, the time, and what happens when."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now = 0.0
        self.entry: Entry | None = None
        self.processes = [Process(self, f"p{index}", speed) for index, speed in enumerate(SPEEDS)]
        self.terms: dict[int, str] = {}
        self.ended: set[int] = set()
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def after(self, seconds: float, what: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._queue, (self.now + seconds, self._count, what))

    def delay(self) -> float:
        """Mostly quick, sometimes most of a lease, seldom longer than anybody waits."""
        if self.random.random() < 0.7:
            return 0.0
        return self.random.choice((0.01, 0.1, 0.3, self.random.uniform(0.0, 2.0)))

    def write(self, write: Write) -> int | None:
        revision = self.entry.revision if self.entry is not None else 0
        if write.expected_revision != revision:
            return None
        self.entry = Entry(revision + 1, write.record)
        for process in self.processes:
            if self.random.random() < 0.5:
                self.after(0.0, process.nudge)
        return revision + 1

    def run(self, seconds: float) -> None:
        for process in self.processes:
            self.after(self.random.random(), process.turn)
        while self.now < seconds:
            self.now, _, what = heapq.heappop(self._queue)
            what()
            self.check()

    def check(self) -> None:
        believed: set[int] = set()
        for process in self.processes:
            held = process.lease.held
            if held is not None and process.lease.holds(process.time):
                believed.add(held.epoch)
                assert self.terms.setdefault(held.epoch, held.holder) == held.holder, "an epoch has one holder"
        assert len(believed) <= 1, f"two believe in their leases at {self.now}"
        assert not believed & self.ended, "a term that has lapsed came back"
        self.ended |= set(self.terms) - believed


class Process:
    """A candidate's loop as its driver runs it: wait until something is due, read if need be, write what follows."""

    def __init__(self, world: World, name: str, speed: float) -> None:
        self._world = world
        self._speed = speed
        self._lives = 0
        self._name = name
        self._asked = 0
        self._waits = False
        self.stopped_until = 0.0
        self.lease = Lease(f"{name}.0", name, LEASE_SECONDS)

    @property
    def time(self) -> float:
        return 500.0 + self._world.now * self._speed

    def turn(self) -> None:
        if self._is_stopped(self.turn):
            return
        if self.lease.wants_read():
            self._ask(lambda: self._world.entry, self._on_read)
        else:
            self._write()

    def nudge(self) -> None:
        """Somebody wrote: look at once instead of later."""
        if self._waits and self.lease.wants_read():
            self._begin_turn(self._asked)

    def _wait(self) -> None:
        self._asked += 1
        self._waits = True
        number = self._asked
        self._world.after(self.lease.due_in(self.time) / self._speed, lambda: self._begin_turn(number))

    def _begin_turn(self, number: int) -> None:
        if number == self._asked:
            self._asked += 1
            self._waits = False
            self.turn()

    def _on_read(self, entry: object) -> None:
        assert entry is None or isinstance(entry, Entry)
        self.lease.on_read(entry, self.time)
        self._write()

    def _write(self) -> None:
        lease, random = self.lease, self._world.random
        if random.random() < 0.02:
            seconds = random.choice((0.001, 0.4, 1.0))
            for _ in range(random.choice((1, 50))):
                lease.on_computed(seconds, self.time)
        if random.random() < 0.02:
            lease.resign(self.time)
            write = lease.propose_release(self.time)
        else:
            write = lease.propose(self.time, epoch_folded=0, now_ns=0)
        if write is None:
            self._wait()
            return
        lease.on_doubt()
        asked = write

        def on_answer(revision: object) -> None:
            if isinstance(revision, int):
                lease.on_written(asked, revision, self.time)
            self._wait()

        self._ask(lambda: self._world.write(asked), on_answer)

    def _ask(self, do: Callable[[], object], then: Callable[[object], None]) -> None:
        """Let the bucket `do` something, now or late or never, and go on with its answer or after a timeout."""
        self._asked += 1
        number, world = self._asked, self._world

        def goes_on(how: Callable[[], None]) -> None:
            if number != self._asked or self._is_stopped(lambda: goes_on(how)):
                return
            self._asked += 1
            how()

        def arrives() -> None:
            result = do()
            if world.random.random() > 0.1:
                world.after(world.delay(), lambda: goes_on(lambda: then(result)))

        if world.random.random() > 0.1:
            world.after(world.delay(), arrives)
        world.after(TIMEOUT_SECONDS, lambda: goes_on(lambda: world.after(0.05, self.turn)))

    def _is_stopped(self, again: Callable[[], None]) -> bool:
        """Stop or kill now and then; what was to happen waits until it goes on, or never happens."""
        world = self._world
        if world.now < self.stopped_until:
            world.after(self.stopped_until - world.now, again)
            return True
        dice = world.random.random()
        if dice < 0.02:
            self.stopped_until = world.now + world.random.uniform(0.0, 3.0)
            world.after(self.stopped_until - world.now, again)
        elif dice < 0.025:
            self._lives += 1
            self._asked += 1
            self._waits = False
            self.lease = Lease(f"{self._name}.{self._lives}", self._name, LEASE_SECONDS)
            world.after(world.random.uniform(0.0, 2.0), self.turn)
        return dice < 0.025


@pytest.mark.parametrize("seed", range(5))
def test_two_never_believe_in_their_lease_and_somebody_leads_again_and_again(seed: int) -> None:
    world = World(seed)
    world.run(SIMULATED_SECONDS)
    assert len(world.terms) > 100
    assert len({holder.partition(".")[0] for holder in world.terms.values()}) == PROCESSES
