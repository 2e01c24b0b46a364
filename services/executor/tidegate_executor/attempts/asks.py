"""Which phases the processes of a member ask for, and which of them is a fact. Pure.

The main component speaks for the member; until it has, every component may, as with the phases that are told. Of those
who speak the first counts, and all that ask for the same are answered together. The others are answered at once: the
limits follow the member's phase and not theirs.
"""

from __future__ import annotations

import msgspec

TOLD_NS = 200_000_000
"""Facts about asks are at least this far apart: a job that asks and withdraws never fills the journal."""
AWAY_NS = 10_000_000_000
"""How long a process may be away (its connection is cut, the agent starts again) until it asks for nothing more."""
WAITING_MAX = 256

_replace = msgspec.structs.replace


class Ask(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One process waits for a phase. `seq` is the number of its message; `away_ns`: since when it is not connected.

    `answered`: it was told that it may enter, and may have done so whatever is decided since.
    """

    client: str
    seq: int
    component: str
    replica: int
    phase: str
    step: int | None = None
    is_main: bool = False
    away_ns: int = 0
    answered: bool = False


class AskState(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Who waits, in the order of asking, and what the newest fact said of it (`told`, empty: that nobody does).

    The next fact may be told at `next_ns`.

    `told_seq` is the journal's number of that fact: -1 while it is on its way. After a restart of the agent it is 0,
    because then every order is newer than all facts of before.
    """

    waiting: tuple[Ask, ...] = ()
    told: str = ""
    told_ns: int = 0
    next_ns: int = 0
    told_seq: int = 0


def ask(state: AskState, new: Ask) -> AskState:
    """Take an ask; an earlier one of the same process is withdrawn by it."""
    return _replace(state, waiting=(*withdraw(state, new.client).waiting, new))


def is_full(state: AskState, client: str) -> bool:
    """Say whether no further process may wait."""
    return len(withdraw(state, client).waiting) >= WAITING_MAX


def withdraw(state: AskState, client: str) -> AskState:
    """Forget the ask of a process: it has entered, or waits no longer."""
    return _keep(state, tuple(each for each in state.waiting if each.client != client))


def gone(state: AskState, component: str, replica: int) -> AskState:
    """Forget the asks of a replica that has exited."""
    place = (component, replica)
    return _keep(state, tuple(each for each in state.waiting if (each.component, each.replica) != place))


def away(state: AskState, client: str, now_ns: int) -> AskState:
    """Note that a process is not connected any more."""
    return _since(state, client, now_ns)


def back(state: AskState, client: str) -> AskState:
    """Note that a process is connected again."""
    return _since(state, client, 0)


def answer(state: AskState, entitled: tuple[Ask, ...]) -> AskState:
    """Note who is told that it may enter."""
    clients = {each.client for each in entitled}
    waiting = (_replace(each, answered=True) if each.client in clients else each for each in state.waiting)
    return _keep(state, tuple(waiting))


def forget_away(state: AskState, now_ns: int) -> AskState:
    """Forget those that have been away for too long."""
    return _keep(state, tuple(each for each in state.waiting if not _is_overdue(each, now_ns)))


def away_due_ns(state: AskState) -> int | None:
    """Return when the first of those that are away is to be forgotten."""
    return min((each.away_ns + AWAY_NS for each in state.waiting if each.away_ns), default=None)


def restarted(state: AskState, now_ns: int) -> AskState:
    """The agent has started again: nobody is connected yet, and every order to come has seen all facts of before."""
    waiting = tuple(_replace(each, away_ns=each.away_ns or now_ns) for each in state.waiting)
    return _replace(state, waiting=waiting, told_seq=0)


def leading(state: AskState, by_main: bool) -> tuple[Ask, ...]:
    """Return the asks that speak for the member; `by_main`: its main component has spoken before."""
    main = tuple(each for each in state.waiting if each.is_main)
    return main if main or by_main else state.waiting


def tell(state: AskState, phase: str, now_ns: int) -> AskState:
    """Return the state after it was put as a fact."""
    return _replace(state, told=phase, told_ns=now_ns, next_ns=now_ns + TOLD_NS, told_seq=-1)


def journaled(state: AskState, told_ns: int, seq: int) -> AskState:
    """The journal has the fact that was told then."""
    return _replace(state, told_seq=seq) if (state.told_ns, state.told_seq) == (told_ns, -1) else state


def ended(state: AskState) -> AskState:
    """That the member is in another phase is a fact, and ends what was asked for: who waits still is told anew."""
    return _replace(state, told="", next_ns=0) if state.told else state


def _since(state: AskState, client: str, now_ns: int) -> AskState:
    return _keep(
        state, tuple(_replace(each, away_ns=now_ns) if each.client == client else each for each in state.waiting)
    )


def _keep(state: AskState, waiting: tuple[Ask, ...]) -> AskState:
    return state if waiting == state.waiting else _replace(state, waiting=waiting)


def _is_overdue(each: Ask, now_ns: int) -> bool:
    return bool(each.away_ns) and each.away_ns + AWAY_NS <= now_ns
