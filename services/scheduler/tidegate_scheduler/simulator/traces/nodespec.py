"""Which nodes a simulated cluster has: `8x8`, `8x(cpu=32,gpus=4,memory=128G)`, joined by `+`, or a list in a file.

`COUNTxGPUS` gives each GPU of a node eight CPUs and 64 GiB of memory, so that only GPUs are scarce.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
from tidegate_events.events import NodeJoined
from tidegate_events.resources import GpuDevice, Resources

from tidegate_scheduler.simulator.errors import InputError
from tidegate_scheduler.simulator.traces import table

NODES_MAX = 20_000
GPUS_MAX = 64
CPU_MILLIS_PER_GPU = 8000
MEMORY_MIB_PER_GPU = 64 * 1024
MODEL = "gpu"
IMAGES = {"host": "host"}
LIST_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")

_PART = re.compile(r"(\d{1,6})x(?:(\d{1,3})|\(([^()]*)\))\Z", re.ASCII)
_MEMORY = re.compile(r"(\d{1,9})([MG])\Z", re.ASCII)
ACCEPTED = "COUNTxGPUS as in 8x8, COUNTx(cpu=32,gpus=4,memory=128G,model=A100), several joined by +, or a node list CSV"


class Kind(msgspec.Struct, frozen=True):
    """What nodes of one kind have."""

    cpu_millis: int
    memory_mib: int
    gpus: int
    model: str = MODEL


def parse(text: str) -> tuple[NodeJoined, ...]:
    """Return the nodes that the text describes, or that the file of that name lists. Raises InputError."""
    parts = [_PART.match(part.strip()) for part in text.split("+")]
    if not all(parts):
        path = Path(text)
        if path.suffix == ".csv" or path.is_file():
            return read(path)
        raise InputError(f"the nodes {text!r} are not understood; accepted is {ACCEPTED}")
    kinds = [(int(part[1]), _kind(part, text)) for part in parts if part is not None]
    total = sum(count for count, _ in kinds)
    if not 1 <= total <= NODES_MAX:
        raise InputError(f"the nodes {text!r} are {total}; accepted are 1 to {NODES_MAX}")
    each = [kind for count, kind in kinds for _ in range(count)]
    width = len(str(total))
    return tuple(node(f"node-{number:0{width}}", kind) for number, kind in enumerate(each, start=1))


def read(path: Path) -> tuple[NodeJoined, ...]:
    """Return the nodes of a list in the columns of the openb traces. Raises InputError."""
    found: dict[str, NodeJoined] = {}
    for row in table.rows(path, LIST_COLUMNS):
        name = row.text("sn")
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) or name in found:
            raise row.refused("sn", "a name of its own, of 1 to 64 of A-Z a-z 0-9 _ -")
        if row.whole("gpu") > GPUS_MAX:
            raise row.refused("gpu", f"at most {GPUS_MAX}")
        kind = Kind(
            row.whole("cpu_milli", least=1), row.whole("memory_mib", least=1), row.whole("gpu"), row.text("model")
        )
        found[name] = node(name, kind)
    if len(found) > NODES_MAX:
        raise InputError(f"{path} lists {len(found)} nodes; accepted are at most {NODES_MAX}")
    return tuple(found.values())


def node(name: str, kind: Kind) -> NodeJoined:
    """Return what a node of the kind says when it joins."""
    return NodeJoined(
        id=f"joined-{name}",
        at_ns=0,
        node=name,
        incarnation=1,
        capacity=Resources(kind.cpu_millis, kind.memory_mib, kind.gpus),
        levels=("trusted",),
        images=IMAGES,
        gpus=tuple(GpuDevice(index, f"{name}-gpu-{index}", kind.model, 0) for index in range(kind.gpus)),
    )


def _kind(part: re.Match[str], text: str) -> Kind:
    if part[2] is not None:
        gpus = int(part[2])
        if not 1 <= gpus <= GPUS_MAX:
            raise InputError(
                f"{part[0]!r} in the nodes {text!r}: accepted are 1 to {GPUS_MAX} GPUs; without any, say "
                "COUNTx(cpu=32,memory=128G)"
            )
        return Kind(gpus * CPU_MILLIS_PER_GPU, gpus * MEMORY_MIB_PER_GPU, gpus)
    given: dict[str, str] = {}
    for item in part[3].split(","):
        name, _, value = item.partition("=")
        if name.strip() not in ("cpu", "gpus", "memory", "model") or not value.strip() or name.strip() in given:
            raise InputError(
                f"{item!r} in the nodes {text!r} is not understood; accepted are cpu, gpus, memory and model, each once"
            )
        given[name.strip()] = value.strip()
    if missing := [name for name in ("cpu", "memory") if name not in given]:
        raise InputError(
            f"{part[0]!r} in the nodes {text!r} lacks {' and '.join(missing)}, as in cpu=32 or memory=128G"
        )
    return Kind(
        cpu_millis=_number(given["cpu"], "cpu", text, (1, 4096)) * 1000,
        memory_mib=_memory_mib(given["memory"], text),
        gpus=_number(given.get("gpus", "0"), "gpus", text, (0, GPUS_MAX)),
        model=given.get("model", MODEL),
    )


def _number(value: str, name: str, text: str, bounds: tuple[int, int]) -> int:
    least, most = bounds
    if not (value.isascii() and value.isdigit()) or not least <= int(value) <= most:
        raise InputError(f"{name}={value} in the nodes {text!r}: accepted is a whole number from {least} to {most}")
    return int(value)


def _memory_mib(value: str, text: str) -> int:
    match = _MEMORY.match(value)
    if match is None or not int(match[1]):
        raise InputError(f"memory={value} in the nodes {text!r}: accepted is a number of MiB or GiB as in 512M or 128G")
    return int(match[1]) * (1024 if match[2] == "G" else 1)
