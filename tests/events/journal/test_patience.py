"""A question to a journal that is away for a moment is asked again, within a bound, and of nothing else."""

from __future__ import annotations

import pytest
from tidegate_events.journal.base import JournalError, JournalGapError, JournalUnavailableError
from tidegate_events.journal.patience import patiently

LONG_SECONDS = 30.0


class Answers:
    """Raises what it was given, one after the other, then answers 7."""

    def __init__(self, *errors: JournalError) -> None:
        self.left = list(errors)
        self.asked = 0

    async def __call__(self) -> int:
        self.asked += 1
        if self.left:
            raise self.left.pop(0)
        return 7


async def test_asks_again_while_the_journal_is_away() -> None:
    ask, told = Answers(JournalUnavailableError("no leader"), JournalUnavailableError("elects")), list[str]()
    assert await patiently(ask, LONG_SECONDS, lambda error: told.append(str(error))) == 7
    assert (ask.asked, told) == (3, ["no leader", "elects"])


async def test_the_last_reason_is_raised_when_the_time_is_over() -> None:
    ask, told = Answers(JournalUnavailableError("no leader")), list[str]()
    with pytest.raises(JournalUnavailableError, match="no leader"):
        await patiently(ask, 0.0, lambda error: told.append(str(error)))
    assert (ask.asked, told) == (1, [])


async def test_what_waiting_does_not_mend_is_raised_at_once() -> None:
    ask = Answers(JournalGapError("trimmed"))
    with pytest.raises(JournalGapError, match="trimmed"):
        await patiently(ask, LONG_SECONDS, lambda _: None)
    assert ask.asked == 1
