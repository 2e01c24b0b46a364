"""The tiers of a cluster: hot is a directory of the node; warm and cold are directories or object stores.

TIDEGATE_HOT_DIR, TIDEGATE_WARM and TIDEGATE_COLD name them; a cluster may do without warm, cold or both. With
TIDEGATE_HOME, the local stack's directory, they are `hot`, `warm` and `cold` in it. TIDEGATE_TIER_MIB_PER_SECOND bounds
what moves between them, TIDEGATE_WARM_MIB_PER_SECOND and TIDEGATE_COLD_MIB_PER_SECOND what moves to and from one.
"""

from __future__ import annotations

import logging
import os
import re
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Iterator, List, Mapping, NamedTuple, Optional, Tuple

from tidegate.checkpoint import files, places
from tidegate.checkpoint.places import Places
from tidegate.errors import CorruptCheckpointError, UsageError
from tidegate.tiers import job as jobs
from tidegate.tiers import objects
from tidegate.tiers.bandwidth import Bandwidth
from tidegate.tiers.holding import Holding, HotHolding
from tidegate.tiers.job import JobTier
from tidegate.tiers.objects import Objects

HOT, WARM, COLD = "hot", "warm", "cold"
NAMES = (HOT, WARM, COLD)
STAGING = ".staging"
"""Below the hot directory: where what goes to a job's store is compared first, out of the job's reach."""
MIB_PER_SECOND_MAX = 1 << 20

_log = logging.getLogger("tidegate.tiers")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}\Z")


class Settings(NamedTuple):
    """Where the tiers are, and how fast all of them together and each may be read and written; 0 means no bound."""

    hot: Path
    warm: Optional[str] = None
    cold: Optional[str] = None
    mib_per_second: int = 0
    warm_mib_per_second: int = 0
    cold_mib_per_second: int = 0


def from_environment(environ: Mapping[str, str], home: Optional[Path] = None) -> Settings:
    """Return what TIDEGATE_* variables say, else the tiers of the local stack in `home`.

    Raises UsageError where nothing names the hot tier, or a number is none.
    """
    if home is None and environ.get("TIDEGATE_HOME"):
        home = Path(environ["TIDEGATE_HOME"])
    named = environ.get("TIDEGATE_HOT_DIR")
    if not named and home is None:
        raise UsageError("no hot directory is named: set TIDEGATE_HOT_DIR to the one that holds <tenant>/<job>")
    # Whoever names the hot tier alone has no others: a cluster's nodes share no home.
    beside = None if named else home
    return Settings(
        hot=Path(named) if named else Path(str(home)) / HOT,
        warm=environ.get("TIDEGATE_WARM") or (str(beside / WARM) if beside else None),
        cold=environ.get("TIDEGATE_COLD") or (str(beside / COLD) if beside else None),
        mib_per_second=_rate(environ, "TIDEGATE_TIER_MIB_PER_SECOND"),
        warm_mib_per_second=_rate(environ, "TIDEGATE_WARM_MIB_PER_SECOND"),
        cold_mib_per_second=_rate(environ, "TIDEGATE_COLD_MIB_PER_SECOND"),
    )


def _rate(environ: Mapping[str, str], variable: str) -> int:
    text = environ.get(variable, "0")
    if not text.isascii() or not text.isdigit() or int(text) > MIB_PER_SECOND_MAX:
        raise UsageError(
            f"{variable}={text[:40]!r} was refused: a whole number from 0 (no bound) to "
            f"{MIB_PER_SECOND_MAX} is accepted"
        )
    return int(text)


class Tiers:
    """The tiers, opened. `shared` are warm and cold, as far as there are any, the nearest first."""

    def __init__(self, settings: Settings, *, make: bool = True) -> None:
        """Open them. Where directories are not to be made, those that are missing count as no tier."""
        self.hot = settings.hot
        whole = Bandwidth(settings.mib_per_second << 20)
        self.shared: Tuple[Tuple[str, Objects], ...] = tuple(
            (name, objects.opened(address, Bandwidth(rate << 20, within=whole)))
            for name, address, rate in (
                (WARM, settings.warm, settings.warm_mib_per_second),
                (COLD, settings.cold, settings.cold_mib_per_second),
            )
            if address and (make or not Path(address).is_absolute() or Path(address).is_dir())
        )

    def names(self) -> List[str]:
        """Return the names of the tiers, the nearest first."""
        return [HOT, *(name for name, _ in self.shared)]

    def of_job(self, tenant: str, job: str) -> List[JobTier]:
        """Return a job's checkpoints in the shared tiers, the nearest first."""
        checked(tenant, job)
        return [JobTier(name, held, tenant, job) for name, held in self.shared]

    @contextmanager
    def holdings(self, tenant: str, job: str) -> Iterator[List[Holding]]:
        """Yield all that holds a job's checkpoints, the nearest first; hot is left out where it has no store of it."""
        with ExitStack() as stack:
            found: List[Holding] = [*self.of_job(tenant, job)]
            try:
                found.insert(0, HotHolding(stack.enter_context(places.opened(self.hot / tenant / job))))
            except (OSError, CorruptCheckpointError) as error:
                _log.debug("the hot tier has no store of %s/%s: %s", tenant, job, error)
            yield found

    @contextmanager
    def hot_store(self, tenant: str, job: str) -> Iterator[Places]:
        """Yield a job's store on this node, made where it is missing; what goes there is compared elsewhere first."""
        checked(tenant, job)
        (self.hot / tenant / job).mkdir(parents=True, exist_ok=True)
        with self.staging() as staging, places.opened(self.hot / tenant / job, create=True, working=staging) as held:
            yield held

    @contextmanager
    def staging(self) -> Iterator[int]:
        """Yield the directory where packs are compared; what dead processes left there is removed."""
        path = self.hot / STAGING
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = files.open_directory(path)
        try:
            files.clean_temporary(descriptor)
            yield descriptor
        finally:
            os.close(descriptor)

    def find_job(self, job: str) -> str:
        """Return the tenant of a job, by looking for it. Raises UsageError where no tier holds it, or several do."""
        checked("x", job)
        tenants = {path.parent.name for path in self.hot.glob(f"*/{job}")}
        for _, held in self.shared:
            tenants |= {tenant for tenant in held.below(None) if job in held.below(tenant)}
        if len(tenants) != 1:
            why = f"those of {', '.join(sorted(tenants))} do" if tenants else "none does"
            raise UsageError(f"exactly one tenant's tiers ({', '.join(self.names())}) may hold job {job!r}: {why}")
        return tenants.pop()

    def jobs(self) -> List[Tuple[str, str]]:
        """Return (tenant, job) of all that the shared tiers hold; what else lies there is somebody else's."""
        found = {each for _, held in self.shared for each in jobs.jobs_of(held)}
        return sorted(each for each in found if all(_NAME.match(name) for name in each))

    def all_jobs(self) -> List[Tuple[str, str]]:
        """Return (tenant, job) of all that any tier holds, the node's own too."""
        here = {(path.parent.name, path.name) for path in self.hot.glob("*/*") if path.is_dir()}
        found = {each for each in here if all(_NAME.match(name) for name in each)}
        return sorted(found | set(self.jobs()))


def checked(tenant: str, job: str) -> None:
    """Raise CorruptCheckpointError for names that could lead elsewhere."""
    for name in (tenant, job):
        if not _NAME.match(name):
            raise CorruptCheckpointError(f"{name[:80]!r} names no checkpoints: letters, digits and _ . - are accepted")
