"""The optimizer Adam (Kingma and Ba 2015, algorithm 1), step by step as torch's own takes it, bit for bit.

Torch's own class loads torch's compiler when it is made: more than all else that a learner has to do before its first
step, and nothing here is compiled.
"""

from collections.abc import Iterable
from typing import Any

import torch


class Adam:
    """Moves parameters by their gradients, each by running means of its gradient and of that one's square."""

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter],
        learning_rate: float,
        decays: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
    ) -> None:
        self._parameters = list(parameters)
        self._learning_rate = learning_rate
        self._decays = decays
        self._epsilon = epsilon
        self._steps = 0
        self._means = [torch.zeros_like(parameter) for parameter in self._parameters]
        self._squares = [torch.zeros_like(parameter) for parameter in self._parameters]

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Move every parameter once."""
        self._steps += 1
        kept_mean, kept_square = self._decays
        size = self._learning_rate / (1 - kept_mean**self._steps)
        correction = (1 - kept_square**self._steps) ** 0.5
        for parameter, mean, square in zip(self._parameters, self._means, self._squares, strict=True):
            mean.lerp_(parameter.grad, 1 - kept_mean)
            square.mul_(kept_square).addcmul_(parameter.grad, parameter.grad, value=1 - kept_square)
            parameter.addcdiv_(mean, (square.sqrt() / correction).add_(self._epsilon), value=-size)

    def state_dict(self) -> dict[str, Any]:
        """Return what the next step depends on besides the parameters."""
        return {"steps": self._steps, "means": self._means, "squares": self._squares}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken."""
        self._steps = state["steps"]
        for name, own in (("means", self._means), ("squares", self._squares)):
            for tensor, saved in zip(own, state[name], strict=True):
                tensor.copy_(saved)
