"""Capture and put back every generator a training process may draw from: torch, numpy, Python.

This example draws from torch alone; the other two are kept so that code added later stays exactly resumable.
"""

import random
from typing import Any

import numpy as np
import torch


def capture() -> dict[str, Any]:
    """Take the state of the three global generators."""
    return {"torch": torch.get_rng_state(), "numpy": np.random.get_state(), "python": random.getstate()}


def restore(saved: dict[str, Any]) -> None:
    """Continue the three global generators where `capture` took them."""
    torch.set_rng_state(saved["torch"])
    np.random.set_state(saved["numpy"])
    random.setstate(saved["python"])
