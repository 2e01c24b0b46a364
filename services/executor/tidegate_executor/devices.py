"""The GPUs of this node as a sandbox is given them: by the Container Device Interface, one name for each index.

Only what a member was placed with enters its sandbox, and stays there as long as the sandbox does: so a lease that
comes and goes with phases needs level `unisolated`, where every process sees every device and keeps to what it is told.
"""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from tidegate_executor.admission import LEVELS_WITH_GPUS
from tidegate_executor.sandbox import cdi
from tidegate_executor.settings import Settings

LEVELS_BY_CDI = frozenset({"trusted"})

log = structlog.get_logger()


def gpu_levels(settings: Settings, indices: Iterable[int]) -> frozenset[str]:
    """Return the levels at which a member can have GPUs here: isolated ones if CDI files know them all. Blocks."""
    try:
        cdi.granted(names(settings, indices), cdi.specifications(settings.cdi_dirs))
    except cdi.CdiError as error:
        log.info("gpus_not_known_by_cdi", why=str(error))
        return LEVELS_WITH_GPUS
    return LEVELS_WITH_GPUS | LEVELS_BY_CDI


def granted(settings: Settings, level: str, indices: Iterable[int]) -> cdi.Granted:
    """Return what a sandbox of that level needs for these GPUs. Raises CdiError. Blocks."""
    if level in LEVELS_WITH_GPUS:
        return cdi.Granted()
    wanted = names(settings, indices)
    return cdi.granted(wanted, cdi.specifications(settings.cdi_dirs)) if wanted else cdi.Granted()


def names(settings: Settings, indices: Iterable[int]) -> list[str]:
    """Return the qualified names of GPUs by the driver's numbers."""
    return [f"{settings.cdi_gpu_kind}={index}" for index in indices]
