"""What a process has in a phase: the devices, and the variables by which its children find them."""

from __future__ import annotations

from typing import Dict, Mapping, Tuple


class Grant:
    """The phase that was entered, and what there is in it. What `with job.phase(...) as grant` gives."""

    def __init__(self, phase: str, devices: Mapping[str, str]) -> None:
        self.phase = phase
        self._devices = dict(devices)

    def __repr__(self) -> str:
        return f"<tidegate grant of phase {self.phase}, GPUs {', '.join(self.gpus) or 'none'}>"

    @property
    def gpus(self) -> Tuple[str, ...]:
        """Return the devices of this phase as CUDA_VISIBLE_DEVICES names them: numbers by the driver's order."""
        named = self._devices.get("CUDA_VISIBLE_DEVICES", "")
        return tuple(name.strip() for name in named.split(",") if name.strip())

    def environment(self) -> Dict[str, str]:
        """Return the variables to start children with: `{**os.environ, **grant.environment()}`."""
        return dict(self._devices)
