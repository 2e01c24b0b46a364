"""The learning algorithm: proximal policy optimisation with a small actor and critic, on one CPU thread."""

from dataclasses import dataclass

import numpy as np
import torch
from adam import Adam
from numpy.typing import NDArray
from torch import nn
from wire import OBSERVATION_SIZE, TERMINATED

ACTIONS = 2
HIDDEN = 64


@dataclass(frozen=True)
class Settings:
    """The hyperparameters of one update."""

    learning_rate: float = 1e-3
    discount: float = 0.99
    trace_decay: float = 0.95
    clip: float = 0.2
    entropy_weight: float = 0.005
    value_weight: float = 0.5
    gradient_norm_max: float = 0.5
    epochs: int = 4
    minibatch: int = 512


@dataclass(frozen=True)
class Rollout:
    """What one sampling phase brought: arrays of shape [steps, environments, ...]."""

    observations: NDArray[np.float32]
    reached: NDArray[np.float32]
    actions: NDArray[np.int64]
    rewards: NDArray[np.float32]
    flags: NDArray[np.uint8]


class ActorCritic(nn.Module):
    """Two separate networks, so that the critic's error cannot disturb the policy."""

    def __init__(self) -> None:
        super().__init__()
        self.actor = _network(ACTIONS, output_gain=0.01)
        self.critic = _network(1, output_gain=1.0)

    def sample(self, observations: NDArray[np.float32]) -> NDArray[np.uint8]:
        """Draw one action per observation from the policy, with torch's global generator."""
        with torch.inference_mode():
            chances = self.actor(torch.from_numpy(observations)).softmax(-1)
            return _as_actions(torch.multinomial(chances, 1).squeeze(-1))

    def greedy(self, observations: NDArray[np.float32]) -> NDArray[np.uint8]:
        """Choose the likeliest action per observation; draws nothing."""
        with torch.inference_mode():
            return _as_actions(self.actor(torch.from_numpy(observations)).argmax(-1))


def learn(model: ActorCritic, optimizer: Adam, rollout: Rollout, settings: Settings) -> float:
    """Improve the policy from one rollout and return the mean loss; minibatches are drawn by torch's generator."""
    observations = torch.from_numpy(rollout.observations).flatten(0, 1)
    actions = torch.from_numpy(rollout.actions).flatten()
    advantages, targets = _advantages(model, rollout, settings)
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    with torch.no_grad():
        chosen_before = _log_chances(model, observations).gather(1, actions[:, None]).squeeze(1)
    losses = []
    for _ in range(settings.epochs):
        order = torch.randperm(len(actions))
        for start in range(0, len(order), settings.minibatch):
            rows = order[start : start + settings.minibatch]
            log_chances = _log_chances(model, observations[rows])
            chosen = log_chances.gather(1, actions[rows, None]).squeeze(1)
            ratio = (chosen - chosen_before[rows]).exp()
            clipped = ratio.clamp(1 - settings.clip, 1 + settings.clip)
            policy_loss = -torch.min(ratio * advantages[rows], clipped * advantages[rows]).mean()
            value_loss = (model.critic(observations[rows]).squeeze(-1) - targets[rows]).square().mean()
            entropy = -(log_chances.exp() * log_chances).sum(-1).mean()
            loss = policy_loss + settings.value_weight * value_loss - settings.entropy_weight * entropy
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), settings.gradient_norm_max)
            optimizer.step()
            losses.append(float(loss.detach()))
    return float(np.mean(losses))


def _advantages(model: ActorCritic, rollout: Rollout, settings: Settings) -> tuple[torch.Tensor, torch.Tensor]:
    """Generalised advantage estimates and value targets, flat (Schulman et al. 2016, equation 16).

    Rewards are scaled by (1 - discount), so that values stay near [0, 1] and the critic needs no normaliser. A
    truncated episode bootstraps from where it was cut; only a terminated one is worth nothing afterwards.
    """
    with torch.no_grad():
        values = model.critic(torch.from_numpy(rollout.observations)).squeeze(-1).numpy()
        beyond = model.critic(torch.from_numpy(rollout.reached)).squeeze(-1).numpy()
    alive = 1.0 - (rollout.flags & TERMINATED).astype(np.float32)
    goes_on = (rollout.flags == 0).astype(np.float32)
    surprises = rollout.rewards * (1 - settings.discount) + settings.discount * beyond * alive - values
    advantages = np.zeros_like(values)
    running = np.zeros(values.shape[1], np.float32)
    for step in reversed(range(len(values))):
        running = surprises[step] + settings.discount * settings.trace_decay * goes_on[step] * running
        advantages[step] = running
    return torch.from_numpy(advantages).flatten(), torch.from_numpy(advantages + values).flatten()


def _as_actions(chosen: torch.Tensor) -> NDArray[np.uint8]:
    return chosen.numpy().astype(np.uint8)


def _log_chances(model: ActorCritic, observations: torch.Tensor) -> torch.Tensor:
    log_chances: torch.Tensor = model.actor(observations).log_softmax(-1)
    return log_chances


def _network(outputs: int, output_gain: float) -> nn.Sequential:
    """Tanh layers with orthogonal weights; a small last layer makes the first policy nearly uniform."""
    layers = [nn.Linear(OBSERVATION_SIZE, HIDDEN), nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, outputs)]
    for layer, gain in zip(layers, (2**0.5, 2**0.5, output_gain), strict=True):
        nn.init.orthogonal_(layer.weight, gain)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])
