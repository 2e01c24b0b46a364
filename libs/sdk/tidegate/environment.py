"""Who this process is: read once from the TIDEGATE_* variables that the agent sets."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Mapping, Optional

from tidegate import protocol, seeds
from tidegate.errors import EnvironmentInvalidError, InvalidNameError

LOCAL_DIR_DEFAULT = "tidegate-local"


@dataclass(frozen=True)
class Identity:
    """The job, attempt and process that the SDK speaks for."""

    job: str
    tenant: str
    attempt: int
    rank: int
    world_size: int
    component: str
    replica: int
    replicas: int
    seed: int
    job_seed: int
    trace_id: str
    determinism: str
    stop_group: str
    socket: Optional[str]
    checkpoints: Path
    local_dir: Optional[Path]
    phase_entry: str = "told"
    node_rank: int = 0
    local_rank: int = 0
    local_size: Optional[int] = None
    """Of a gang on several nodes: this node's place among them, and this rank's among the `local_size` here."""
    devices: Mapping[str, str] = field(default_factory=dict)
    """The variables that tell the process its devices, as they were at its start."""


def read_identity(environ: Mapping[str, str], stop_group: Optional[str] = None) -> Identity:
    """Return the identity in `environ`; without TIDEGATE_SOCKET, that of a local run."""
    socket = environ.get("TIDEGATE_SOCKET") or None
    local_dir = None
    if socket is None:
        local_dir = Path(environ.get("TIDEGATE_LOCAL_DIR") or LOCAL_DIR_DEFAULT).absolute()
    component = environ.get("TIDEGATE_COMPONENT") or "main"
    replica = _number(environ, "TIDEGATE_REPLICA", 0)
    rank = _number(environ, "TIDEGATE_RANK", 0)
    job_seed = _number(environ, "TIDEGATE_JOB_SEED", 0)
    return Identity(
        job=environ.get("TIDEGATE_JOB_ID") or "local",
        tenant=environ.get("TIDEGATE_TENANT") or "local",
        attempt=_number(environ, "TIDEGATE_ATTEMPT", 0),
        rank=rank,
        world_size=_number(environ, "TIDEGATE_WORLD_SIZE", 1),
        component=component,
        replica=replica,
        replicas=_number(environ, "TIDEGATE_REPLICAS", 1),
        seed=_number(environ, "TIDEGATE_SEED", seeds.derive(job_seed, component, rank, replica)),
        job_seed=job_seed,
        trace_id=environ.get("TIDEGATE_TRACE_ID") or os.urandom(16).hex(),
        determinism=environ.get("TIDEGATE_DETERMINISM") or "relaxed",
        stop_group=_stop_group(stop_group, component, replica),
        socket=socket,
        checkpoints=_checkpoints(environ, local_dir),
        local_dir=local_dir,
        phase_entry=environ.get("TIDEGATE_PHASE_ENTRY") or "told",
        node_rank=_number(environ, "TIDEGATE_NODE_RANK", 0),
        local_rank=_number(environ, "TIDEGATE_LOCAL_RANK", 0),
        local_size=_number(environ, "TIDEGATE_LOCAL_SIZE", 0) or None,
        devices={name: environ[name] for name in protocol.DEVICE_VARIABLES if name in environ},
    )


def _checkpoints(environ: Mapping[str, str], local_dir: Optional[Path]) -> Path:
    declared = environ.get("TIDEGATE_CHECKPOINTS")
    if declared:
        return Path(declared).absolute()
    if local_dir is not None:
        return local_dir / "checkpoints"
    raise EnvironmentInvalidError(
        "TIDEGATE_SOCKET is set but TIDEGATE_CHECKPOINTS is not: the agent sets both, a local run neither"
    )


def _stop_group(asked: Optional[str], component: str, replica: int) -> str:
    group = f"{component}/{replica}" if asked is None else asked
    if not protocol.STOP_GROUP.match(group):
        raise InvalidNameError(
            f"stop_group {group!r} was refused: up to {protocol.NAME_CHARS_MAX} letters, digits and ._/- are accepted"
        )
    return group


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name)
    if text is None or text == "":
        return default
    try:
        return int(text)
    except ValueError as error:
        raise EnvironmentInvalidError(f"{name}={text!r} was refused: a whole number is expected") from error
