"""The training run as one object: what it samples, what it learns, and everything a checkpoint must hold.

It knows nothing of Tidegate; `learner.py` connects the two.
"""

import hashlib
from collections import deque
from typing import Any

import numpy as np
import randomness
from adam import Adam
from numpy.typing import NDArray
from ppo import ActorCritic, Rollout, Settings, learn
from simulators import Simulators
from wire import OBSERVATION_SIZE

RECENT_EPISODES = 100
TRAINING_STREAM = 0
EVALUATION_STREAM = 1


class Training:
    """A policy, its optimizer, and the simulators it acts in."""

    def __init__(self, simulators: Simulators, settings: Settings) -> None:
        """Make the first weights with torch's global generator, which the caller has seeded."""
        self.settings = settings
        self.simulators = simulators
        self.model = ActorCritic()
        self.optimizer = Adam(self.model.parameters(), settings.learning_rate, epsilon=1e-5)
        self.updates = 0  # also the version of the policy
        self.environment_steps = 0
        self.episodes = 0
        self.recent_returns: deque[float] = deque(maxlen=RECENT_EPISODES)
        self._observations = np.empty((0, OBSERVATION_SIZE), np.float32)

    def begin(self, sizes: list[int]) -> None:
        """Start from nothing, with `sizes[i]` environments in simulator i."""
        self._observations = self.simulators.reset(sizes, TRAINING_STREAM)

    def layers(self) -> dict[str, Any]:
        """Return the four layers of a checkpoint; together they decide all that comes after."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "experience": {"episodes": self.episodes, "recent_returns": np.array(self.recent_returns)},
            "state": {
                "updates": self.updates,
                "environment_steps": self.environment_steps,
                "random": randomness.capture(),
                "simulators": self.simulators.states(),
            },
        }

    def restore(self, layers: dict[str, Any]) -> None:
        """Continue exactly where `layers` were taken; the simulators may be new processes."""
        self.model.load_state_dict(layers["model"])
        self.optimizer.load_state_dict(layers["optimizer"])
        self.episodes = layers["experience"]["episodes"]
        self.recent_returns.extend(layers["experience"]["recent_returns"].tolist())
        state = layers["state"]
        self.updates, self.environment_steps = state["updates"], state["environment_steps"]
        self._observations = self.simulators.restore(state["simulators"])
        randomness.restore(state["random"])

    def sample(self, steps: int) -> Rollout:
        """Act `steps` times in every environment with the policy as it is."""
        columns: dict[str, list[NDArray[Any]]] = {name: [] for name in Rollout.__dataclass_fields__}
        for _ in range(steps):
            actions = self.model.sample(self._observations)
            stepped = self.simulators.step(actions)
            row = {**stepped, "observations": self._observations, "actions": actions.astype(np.int64)}
            for name, column in columns.items():
                column.append(row[name])
            self._observations = stepped["observations"]
            ended = stepped["returns"][stepped["flags"] != 0]
            self.episodes += len(ended)
            self.recent_returns.extend(ended.tolist())
        self.environment_steps += steps * len(self._observations)
        return Rollout(**{name: np.stack(column) for name, column in columns.items()})

    def learn(self, rollout: Rollout) -> float:
        """Improve the policy from one rollout and return the mean loss."""
        loss = learn(self.model, self.optimizer, rollout, self.settings)
        self.updates += 1
        return loss

    def recent_return(self) -> float:
        """Mean return of the last 100 training episodes; 0 until there are so many."""
        return float(np.mean(self.recent_returns)) if len(self.recent_returns) == RECENT_EPISODES else 0.0

    def evaluate(self, sizes: list[int]) -> float:
        """Return the mean return of the greedy policy over one fresh episode per environment.

        Training is not disturbed: the environments are put back after it, and a greedy policy draws no number.
        """
        before = self.simulators.states()
        observations = self.simulators.reset(sizes, EVALUATION_STREAM)
        returns = np.full(len(observations), np.nan)
        while np.isnan(returns).any():  # ends: CartPole-v1 truncates each episode at 500 steps
            stepped = self.simulators.step(self.model.greedy(observations))
            first_end = np.isnan(returns) & (stepped["flags"] != 0)
            returns[first_end] = stepped["returns"][first_end]
            observations = stepped["observations"]
        self.simulators.restore(before)
        return float(returns.mean())

    def weights_digest(self) -> str:
        """SHA-256 over names, types, shapes and bytes of all weights: equal only if every bit is."""
        digest = hashlib.sha256()
        for name, tensor in self.model.state_dict().items():
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            digest.update(tensor.contiguous().numpy().tobytes())
        return digest.hexdigest()
