"""The environment of a component's process: who it is, where things are for it, and its seed. Pure.

Secrets are never in here: they travel beside it and are kept out of every record.
"""

from __future__ import annotations

import hashlib

import msgspec
from tidegate import seeds
from tidegate_events import trace
from tidegate_events.orders import LOOPBACK, GangPlace, SandboxOrder
from tidegate_events.spec import DEFAULT_PHASE, Component, JobSpec, member_floor, phase_need

MASTER_PORT_FIRST, MASTER_PORTS = 20_000, 10_000
"""Where a gang's ranks meet, unless the job opens no port: below those that Linux gives to outgoing connections."""

GPU_MILLIS = 1000  # one whole device


class Places(msgspec.Struct, frozen=True, kw_only=True):
    """Paths as the job sees them. `checkpoint_dir` is the directory that a job without the SDK declared.

    `master_address` is rank 0's in the job's private network, empty where its members have none or are not all here.
    """

    workspace: str
    socket: str
    checkpoints: str
    sdk: str
    home: str
    cache: str
    temporary: str
    path: tuple[str, ...]
    inputs: dict[str, str] = {}
    outputs: dict[str, str] = {}
    checkpoint_dir: str | None = None
    master_address: str = ""


def of_process(order: SandboxOrder, component: Component, replica: int, places: Places) -> dict[str, str]:
    """Return the whole environment: the system's defaults, then the job's own, then what cannot be overridden."""
    spec = order.spec
    threads = str(spec.threads)
    defaults = {
        "PATH": ":".join(places.path),
        "LANG": "C.UTF-8",
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
        "TMPDIR": places.temporary,
        "XDG_CACHE_HOME": places.cache,
    }
    own = {**defaults, **spec.env, **component.env}
    python_path = [places.sdk, *filter(None, [own.get("PYTHONPATH")])]
    return {
        **own,
        "HOME": places.home,
        "PYTHONPATH": ":".join(python_path),
        **_visible(order.gpu_indices),
        **_gang(order, places.master_address),
        **_gpu_share(order),
        "TRACEPARENT": order.traceparent or trace.traceparent(order.job),
        **_identity(order, component, replica),
        **_declared(places),
        "TIDEGATE_SOCKET": places.socket,
        "TIDEGATE_CHECKPOINTS": places.checkpoints,
    }


def master_port(job: str, attempt: int) -> int:
    """Return the port at which the ranks of an attempt meet: the same on every node, another one for each attempt."""
    digest = hashlib.sha256(f"{job}.{attempt}".encode()).digest()
    return MASTER_PORT_FIRST + int.from_bytes(digest[:8], "big") % MASTER_PORTS


def _gang(order: SandboxOrder, master_address: str) -> dict[str, str]:
    """Return the variables by which torchrun tells a process its place; one node where the order names none."""
    size = order.spec.gang_size
    place = order.gang or GangPlace(nodes=("",), local_rank=order.rank, local_size=size, master_address=LOOPBACK)
    return {
        "RANK": str(order.rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(place.local_rank),
        "LOCAL_WORLD_SIZE": str(place.local_size),
        "NODE_RANK": str(place.node_rank),
        "MASTER_ADDR": master_address or place.master_address,
        "MASTER_PORT": str(master_port(order.job, order.attempt)),
        **_on_node(place),
    }


def _on_node(place: GangPlace) -> dict[str, str]:
    """Return what tells the SDK its place on this node of several, where nothing the job starts changes it."""
    if len(place.nodes) == 1:
        return {}
    return {
        "TIDEGATE_NODE_RANK": str(place.node_rank),
        "TIDEGATE_LOCAL_RANK": str(place.local_rank),
        "TIDEGATE_LOCAL_SIZE": str(place.local_size),
    }


def in_phase(spec: JobSpec, phase: str, gpu_indices: tuple[int, ...]) -> dict[str, str]:
    """Return what tells a process, and those it starts, its devices in a phase; a whole one is a share of 1000."""
    share = phase_need(spec, phase).gpu_millis or GPU_MILLIS
    return {**_visible(gpu_indices), **({"TIDEGATE_GPU_MILLIS": str(share)} if gpu_indices else {})}


def _visible(gpu_indices: tuple[int, ...]) -> dict[str, str]:
    # By the driver's order, as the agent counts them; CUDA's own default is the fastest first.
    return {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(str(index) for index in gpu_indices),
    }


def _gpu_share(order: SandboxOrder) -> dict[str, str]:
    """Return how much of its one device the member may use in its phase: nothing but the job itself keeps to it."""
    asks = order.spec.phase_entry == "asked"
    need = phase_need(order.spec, order.phase or DEFAULT_PHASE) if asks else member_floor(order.spec)
    share = need.gpu_millis
    return {"TIDEGATE_GPU_MILLIS": str(share)} if share and order.gpu_indices else {}


def _identity(order: SandboxOrder, component: Component, replica: int) -> dict[str, str]:
    spec = order.spec
    return {
        "TIDEGATE_JOB_ID": order.job,
        "TIDEGATE_TENANT": order.tenant,
        "TIDEGATE_ATTEMPT": str(order.attempt),
        "TIDEGATE_RANK": str(order.rank),
        "TIDEGATE_WORLD_SIZE": str(spec.gang_size),
        "TIDEGATE_COMPONENT": component.name,
        "TIDEGATE_REPLICA": str(replica),
        "TIDEGATE_REPLICAS": str(component.replicas),
        "TIDEGATE_JOB_SEED": str(spec.seed),
        "TIDEGATE_SEED": str(seeds.derive(spec.seed, component.name, order.rank, replica)),
        **({"TIDEGATE_REPLICAS_MAX": str(component.replicas_max)} if component.replicas_max is not None else {}),
        "TIDEGATE_DETERMINISM": spec.determinism,
        **({"TIDEGATE_PHASE_ENTRY": spec.phase_entry} if spec.phase_entry != "told" else {}),
        "TIDEGATE_TRACE_ID": trace.trace_id(order.job),
    }


def _declared(places: Places) -> dict[str, str]:
    """Where declared paths really are: the same as declared in a sandbox, elsewhere at level `unisolated`."""
    found = {f"TIDEGATE_INPUT_{_variable(name)}": path for name, path in places.inputs.items()}
    found |= {f"TIDEGATE_OUTPUT_{_variable(name)}": path for name, path in places.outputs.items()}
    if places.checkpoint_dir is not None:
        found["TIDEGATE_CHECKPOINT_DIR"] = places.checkpoint_dir
    return found


def _variable(name: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in name).upper()
