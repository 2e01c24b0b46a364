"""The batch of environments: exact states, same-step autoreset, and what it refuses."""

import numpy as np
import pytest
from environments import RECORD, EnvironmentBatch, Refused, Stepped
from numpy.typing import NDArray
from wire import STATE_HEADER, TERMINATED, TRUNCATED

COUNT = 6


def actions_for(steps: int) -> list[NDArray[np.uint8]]:
    return list(np.random.default_rng(1).integers(0, 2, (steps, COUNT), dtype=np.uint8))


def as_bytes(stepped: Stepped) -> bytes:
    return b"".join(getattr(stepped, name).tobytes() for name in Stepped.__dataclass_fields__)


def test_a_restored_batch_continues_bit_for_bit_through_many_resets() -> None:
    original = EnvironmentBatch(seed=7)
    original.reset(COUNT, 0)
    for actions in actions_for(37):
        original.step(actions)
    state = original.state()

    resumed = EnvironmentBatch(seed=999)
    resumed.reset(2, 5)
    resumed.restore(state)

    assert resumed.state() == state
    ended = 0
    for actions in actions_for(300):
        expected = original.step(actions)
        assert as_bytes(resumed.step(actions)) == as_bytes(expected)
        ended += int((expected.flags != 0).sum())
    assert ended > COUNT  # the generators that draw the starts of new episodes were used, and agree
    assert resumed.state() == original.state()


def test_restore_returns_the_observations_to_act_on() -> None:
    batch = EnvironmentBatch(seed=7)
    batch.reset(COUNT, 0)
    stepped = batch.step(actions_for(1)[0])
    assert EnvironmentBatch(seed=1).restore(batch.state()).tobytes() == stepped.observations.tobytes()


def test_seed_and_stream_decide_the_first_observations() -> None:
    def first(seed: int, stream: int) -> bytes:
        return EnvironmentBatch(seed).reset(COUNT, stream).tobytes()

    assert first(7, 0) == first(7, 0)
    assert len({first(7, 0), first(7, 1), first(8, 0)}) == 3
    rows = EnvironmentBatch(7).reset(COUNT, 0)
    assert len({row.tobytes() for row in rows}) == COUNT


def test_an_episode_ends_and_begins_again_within_one_step() -> None:
    batch = EnvironmentBatch(seed=7)
    batch.reset(1, 0)
    push_right = np.ones(1, np.uint8)
    steps, stepped = 1, batch.step(push_right)
    while not stepped.flags[0]:
        steps, stepped = steps + 1, batch.step(push_right)
    assert stepped.flags[0] == TERMINATED
    assert stepped.returns[0] == steps
    assert abs(stepped.reached[0, 2]) > 0.2  # the fallen pole
    assert np.abs(stepped.observations[0]).max() <= 0.05  # a fresh start
    assert batch.step(push_right).returns[0] == 0.0


def test_the_time_limit_truncates_and_is_not_a_termination() -> None:
    batch = EnvironmentBatch(seed=7)
    observations = batch.reset(1, 0)
    for _ in range(500):
        # Lean against where the pole and the cart are heading: enough to balance for a whole episode.
        pull = observations @ np.array([0.1, 0.5, 10.0, 2.0], np.float32)
        stepped = batch.step((pull > 0).astype(np.uint8))
        observations = stepped.observations
        if stepped.flags[0]:
            break
    assert stepped.flags[0] == TRUNCATED
    assert stepped.returns[0] == 500


@pytest.mark.parametrize("count", [0, 5000])
def test_a_senseless_number_of_environments_is_refused(count: int) -> None:
    with pytest.raises(Refused, match="accepted are 1 to 4096"):
        EnvironmentBatch(seed=7).reset(count, 0)


def test_wrong_actions_are_refused_and_change_nothing() -> None:
    batch = EnvironmentBatch(seed=7)
    with pytest.raises(Refused, match="no environments yet"):
        batch.step(np.zeros(0, np.uint8))
    batch.reset(COUNT, 0)
    before = batch.state()
    for actions in (np.zeros(COUNT - 1, np.uint8), np.full(COUNT, 2, np.uint8)):
        with pytest.raises(Refused, match="each 0 or 1"):
            batch.step(actions)
    assert batch.state() == before


def damaged(state: bytes, kind: str) -> bytes:
    nan_position = state[: STATE_HEADER.size] + np.float64("nan").tobytes() + state[STATE_HEADER.size + 8 :]
    elapsed = STATE_HEADER.size + 4 * 8
    return {
        "empty": b"",
        "cut": state[:-1],
        "longer": state + b"\0",
        "layout": b"\xff" + state[1:],
        "count": state[:4] + b"\xff" + state[5:],
        "not a number": nan_position,
        "beyond the time limit": state[:elapsed] + b"\xff\xff" + state[elapsed + 2 :],
    }[kind]


@pytest.mark.parametrize("kind", ["empty", "cut", "longer", "layout", "count", "not a number", "beyond the time limit"])
def test_a_damaged_state_is_refused_and_changes_nothing(kind: str) -> None:
    batch = EnvironmentBatch(seed=7)
    batch.reset(COUNT, 0)
    before = batch.state()
    assert len(before) == STATE_HEADER.size + COUNT * RECORD.size
    with pytest.raises(Refused, match="refused"):
        batch.restore(damaged(before, kind))
    assert batch.state() == before
