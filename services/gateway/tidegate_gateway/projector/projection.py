"""One generation being projected: the view of its position, and the transaction that moves both on.

After any error the object is of no use: the view may be ahead of the tables. `load` a new one from them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import asyncpg
from tidegate_events.journal.base import Recorded

from tidegate_gateway.database.connection import Connection, Database
from tidegate_gateway.database.generations import Generation, hold
from tidegate_gateway.database.loader import load_view
from tidegate_gateway.database.migrations import is_whole
from tidegate_gateway.database.origin import mark
from tidegate_gateway.projector import store
from tidegate_gateway.projector.changes import Changes, Held
from tidegate_gateway.projector.store import Head, MovedError, Step
from tidegate_gateway.projector.tables import allocation_row
from tidegate_gateway.traces import store as span_store
from tidegate_gateway.traces.derive import SpanDeriver
from tidegate_gateway.traces.span import Span
from tidegate_gateway.view.model import ENDED_JOBS_MAX
from tidegate_gateway.view.projection import View

_GONE = (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError, asyncpg.UndefinedColumnError)


class Projection:
    """A generation, and what its rows hold, in memory."""

    def __init__(self, database: Database, generation: Generation, view: View, spans: SpanDeriver) -> None:
        """Take what `load` read."""
        self.journal = ""
        """The mark of the history that was projected; empty before its first frame."""
        self.generation = generation
        self._database = database
        self._view = view
        self._spans = spans
        self._held: Held = {
            node.name: {key: allocation_row(node.name, key, held) for key, held in node.holds.items()}
            for node in view.nodes.values()
        }

    @classmethod
    async def load(
        cls, database: Database, generation: Generation, *, ended_jobs_max: int = ENDED_JOBS_MAX
    ) -> Projection:
        """Return a generation where its tables stand. Raises DatabaseAwayError and UnreadableRowError."""
        schema = generation.schema
        async with database.transaction(read_only=True) as connection:
            view = await load_view(connection, schema, ended_jobs_max=ended_jobs_max, keeps_timelines=False)
            spans = SpanDeriver(await span_store.load_states(connection, schema), view.seq)
            journal = await connection.fetchval(f"SELECT journal FROM {schema}.position")
        projection = cls(database, generation, view, spans)
        projection.journal = journal
        return projection

    @property
    def seq(self) -> int:
        """Return the frame up to which this was folded."""
        return self._view.seq

    async def write(self, frames: Sequence[Recorded], head: Head) -> None:
        """Fold frames and write what they change. Raises DatabaseAwayError, MovedError and NotActiveError."""
        before = self._view.seq
        changes = Changes(self._view, self._held)
        spans: list[Span] = []
        for recorded in frames:
            counted = changes.fold(recorded)
            spans += self._spans.apply(recorded, counted)
        rows, states = changes.rows(), self._spans.take_changes()
        if before == 0:
            self.journal = mark(frames[0])
        step = Step(before, self._view.progress, changes.last_at_ns, self.journal)
        async with self._writing() as connection:
            await store.move(connection, self.generation, step, head)
            await store.write_rows(connection, self.generation.schema, rows)
            await span_store.write(connection, self.generation.schema, spans, states)

    async def beat(self, head: Head) -> None:
        """Note that this projector lives and how far the journal goes. Raises as `write` does."""
        async with self._writing() as connection:
            await hold(connection, self.generation)
            if not await is_whole(connection, self.generation.number):
                raise MovedError(f"tables of generation {self.generation.number} were dropped")
            await store.beat(connection, self.generation, self._view.seq, head)

    @asynccontextmanager
    async def _writing(self) -> AsyncGenerator[Connection, None]:
        try:
            async with self._database.transaction() as connection:
                yield connection
        except _GONE as error:
            raise MovedError(f"tables of generation {self.generation.number} are gone: {error}") from error
