"""Reads GPUs by NVML, where a driver is. Blocks on the driver: call it in a thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import structlog
from tidegate_events.telemetry import GpuReading

log = structlog.get_logger()


class GpuReader:
    """Holds NVML open between readings; `close` at the end."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._handles: list[Any] = []

    def open(self) -> None:
        """Find the GPUs; without a driver there are none."""
        import pynvml  # noqa: PLC0415 - the binding loads a driver library; nothing else of this module needs it

        try:
            pynvml.nvmlInit()
            handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        except pynvml.NVMLError as error:
            log.info("gpus_not_sampled", why=str(error))
            return
        self._nvml, self._handles = pynvml, handles

    def close(self) -> None:
        """Let the driver go."""
        if self._nvml is not None:
            self._nvml.nvmlShutdown()
            self._nvml, self._handles = None, []

    def read(self) -> tuple[GpuReading, ...]:
        """Return every GPU's readings; what a GPU does not report is left out."""
        return tuple(GpuReading(index=index, gauges=self._gauges(handle)) for index, handle in enumerate(self._handles))

    def _gauges(self, handle: Any) -> dict[str, float]:
        nvml = self._nvml
        asked: tuple[Callable[[], dict[str, float]], ...] = (
            lambda: {"utilization_ratio": nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100},
            lambda: _memory(nvml.nvmlDeviceGetMemoryInfo(handle)),
            lambda: {"power_watts": nvml.nvmlDeviceGetPowerUsage(handle) / 1000},
            lambda: {
                "temperature_celsius": float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
            },
        )
        found: dict[str, float] = {}
        for ask in asked:
            try:
                found |= ask()
            except nvml.NVMLError as error:  # this card does not tell, or is lost: the others still count
                log.debug("gpu_reading_missing", why=str(error))
        return found


def versions() -> dict[str, str]:
    """Return the versions of the driver and of the CUDA that it gives; nothing without a driver. Blocks."""
    import pynvml  # noqa: PLC0415 - the binding loads a driver library; nothing else of this module needs it

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        log.info("no_driver", why=str(error))
        return {}
    try:
        cuda = pynvml.nvmlSystemGetCudaDriverVersion()  # 1000 * major + 10 * minor
        return {"driver": _text(pynvml.nvmlSystemGetDriverVersion()), "cuda": f"{cuda // 1000}.{cuda % 1000 // 10}"}
    finally:
        pynvml.nvmlShutdown()


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _memory(info: Any) -> dict[str, float]:
    return {"memory_used_bytes": float(info.used), "memory_total_bytes": float(info.total)}
