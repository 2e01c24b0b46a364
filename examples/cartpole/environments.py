"""A batch of CartPole-v1 environments stepped in lock-step, whose exact state can be taken out and put back."""

import struct
from dataclasses import dataclass
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium.envs.classic_control import CartPoleEnv
from numpy.typing import NDArray
from wire import ENVIRONMENTS_MAX, OBSERVATION_SIZE, STATE_HEADER, TERMINATED, TRUNCATED

NAME = "CartPole-v1"
STATE_LAYOUT = 1
# Physics (4 doubles), steps in the episode, return of the episode, PCG64 state, increment, and its spare 32 bits.
RECORD = struct.Struct("<4dId16s16sII")

Environment = gymnasium.Env[Any, Any]
Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]


class Refused(Exception):
    """A request that is well-formed but cannot be served; the batch is unchanged."""


@dataclass(frozen=True)
class Stepped:
    """What one lock-step returned; every array has one row per environment."""

    observations: Floats  # where to act next: the first observation of a new episode where the last one ended
    reached: Floats  # where the action led, also at the end of an episode: what a value bootstrap needs
    rewards: Floats
    flags: Bytes  # TERMINATED and TRUNCATED bits
    returns: Floats  # of the episode that ended in this step; 0 elsewhere


class EnvironmentBatch:
    """Same-step autoreset: an environment whose episode ends is reset within that step, from its own generator.

    The time limit is counted here and not by Gymnasium's wrapper, so that nothing hides in a private attribute.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._envs: list[Environment] = []
        self._steps_max = int(gymnasium.spec(NAME).max_episode_steps or 0)
        self._elapsed: list[int] = []
        self._returns: list[float] = []

    def __len__(self) -> int:
        return len(self._envs)

    def reset(self, count: int, stream: int) -> Floats:
        """Replace the batch by `count` fresh environments; seeds come from (own seed, stream, index)."""
        self._resize(count)
        observations = np.empty((count, OBSERVATION_SIZE), np.float32)
        for index, env in enumerate(self._envs):
            words = np.random.SeedSequence((self._seed, stream, index)).generate_state(2, np.uint32)
            observations[index], _ = env.reset(seed=int(words[0]) | int(words[1]) << 32)
        self._elapsed = [0] * count
        self._returns = [0.0] * count
        return observations

    def step(self, actions: Bytes) -> Stepped:
        """Step every environment once; `actions` holds 0 (left) or 1 (right) for each."""
        count = len(self._envs)
        if count == 0:
            raise Refused("step refused: there are no environments yet; send RESET or SET_STATE first")
        if len(actions) != count or (actions > 1).any():
            raise Refused(f"actions refused: {len(actions)} values; accepted are {count} values, each 0 or 1")
        observations = np.empty((count, OBSERVATION_SIZE), np.float32)
        reached = np.empty((count, OBSERVATION_SIZE), np.float32)
        rewards = np.empty(count, np.float32)
        flags = np.zeros(count, np.uint8)
        returns = np.zeros(count, np.float32)
        for index, (env, action) in enumerate(zip(self._envs, actions, strict=True)):
            observation, reward, terminated, _, _ = env.step(action)
            reached[index] = observation
            rewards[index] = reward
            self._elapsed[index] += 1
            self._returns[index] += float(reward)
            truncated = self._elapsed[index] >= self._steps_max
            if terminated or truncated:
                flags[index] = TERMINATED * terminated | TRUNCATED * truncated
                returns[index] = self._returns[index]
                observation, _ = env.reset()
                self._elapsed[index], self._returns[index] = 0, 0.0
            observations[index] = observation
        return Stepped(observations, reached, rewards, flags, returns)

    def state(self) -> bytes:
        """Everything the future of this batch depends on."""
        records = [STATE_HEADER.pack(STATE_LAYOUT, len(self._envs))]
        for env, elapsed, episode_return in zip(self._envs, self._elapsed, self._returns, strict=True):
            generator = env.unwrapped.np_random.bit_generator.state
            records.append(
                RECORD.pack(
                    *_physics(env),
                    elapsed,
                    episode_return,
                    generator["state"]["state"].to_bytes(16, "little"),
                    generator["state"]["inc"].to_bytes(16, "little"),
                    generator["has_uint32"],
                    generator["uinteger"],
                )
            )
        return b"".join(records)

    def restore(self, state: bytes) -> Floats:
        """Continue exactly where `state` was taken; returns the observations to act on."""
        records = self._checked_records(state)
        self._resize(len(records))
        observations = np.empty((len(records), OBSERVATION_SIZE), np.float32)
        for index, (env, record) in enumerate(zip(self._envs, records, strict=True)):
            env.reset(seed=0)  # creates the generator and tells the wrappers that stepping is allowed
            cast(CartPoleEnv, env.unwrapped).state = np.array(record[:4], np.float64)
            env.unwrapped.np_random.bit_generator.state = {
                "bit_generator": "PCG64",
                "state": {
                    "state": int.from_bytes(record[6], "little"),
                    "inc": int.from_bytes(record[7], "little"),
                },
                "has_uint32": record[8],
                "uinteger": record[9],
            }
            observations[index] = _physics(env)
        self._elapsed = [record[4] for record in records]
        self._returns = [record[5] for record in records]
        return observations

    def _checked_records(self, state: bytes) -> list[tuple[Any, ...]]:
        if len(state) < STATE_HEADER.size:
            raise Refused(f"state of {len(state)} bytes refused: shorter than its header of {STATE_HEADER.size}")
        layout, count = STATE_HEADER.unpack_from(state)
        wanted = STATE_HEADER.size + count * RECORD.size
        if layout != STATE_LAYOUT or len(state) != wanted:
            raise Refused(
                f"state refused: layout {layout}, {len(state)} bytes for {count} environments; "
                f"accepted is layout {STATE_LAYOUT} with {wanted} bytes"
            )
        records = list(RECORD.iter_unpack(state[STATE_HEADER.size :]))
        for index, record in enumerate(records):
            if not np.isfinite(record[:4]).all() or record[4] >= self._steps_max or record[8] > 1:
                raise Refused(f"state refused: record {index} is not a CartPole-v1 state in mid-episode")
        return records

    def _resize(self, count: int) -> None:
        if not 0 < count <= ENVIRONMENTS_MAX:
            raise Refused(f"{count} environments refused: accepted are 1 to {ENVIRONMENTS_MAX}")
        while len(self._envs) < count:
            # -1 leaves Gymnasium's own time limit out: see the class docstring.
            self._envs.append(gymnasium.make(NAME, max_episode_steps=-1, disable_env_checker=True))
        del self._envs[count:]


def _physics(env: Environment) -> list[float]:
    """Position, velocity, angle and angular velocity, as the doubles the simulation itself works with."""
    state = cast(CartPoleEnv, env.unwrapped).state
    if state is None:
        raise Refused("state refused: the environment was never reset")
    return [float(value) for value in state]
