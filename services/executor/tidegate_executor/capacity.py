"""What this node has: CPU, memory, GPUs and the processor's name, as the kernel and the driver say."""

from __future__ import annotations

import hashlib
import math
import os
from pathlib import Path

import msgspec
import structlog
from tidegate_events.resources import GpuDevice, Resources

from tidegate_executor.settings import Settings

MIB = 1024 * 1024
CGROUP_ROOT = Path("/sys/fs/cgroup")
CGROUP_V1_UNLIMITED_BYTES = 1 << 60  # the kernel writes "no limit" as a number near 2**63
# Instruction sets that change what numeric libraries compute, so that results are only compared within one of them.
NUMERIC_FLAGS = ("sse4_2", "avx", "avx2", "fma", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve", "bf16")

log = structlog.get_logger()


class NodeCapacity(msgspec.Struct, frozen=True, kw_only=True):
    """All that a node offers."""

    resources: Resources
    gpus: tuple[GpuDevice, ...]
    cpu_model: str
    isa: str


class CapacityError(Exception):
    """Nothing is left to offer after the reserve."""


def detect(settings: Settings) -> NodeCapacity:
    """Return what the node offers, after overrides and reserve. Raises CapacityError when that is nothing."""
    gpus = gpu_devices()[settings.share_index :: settings.share_count]
    cpu_millis = settings.cpu_millis or (cpu_millis_available() - settings.reserved_cpu_millis) // settings.share_count
    memory_mib = settings.memory_mib or (memory_mib_available() - settings.reserved_memory_mib) // settings.share_count
    if cpu_millis <= 0 or memory_mib <= 0:
        raise CapacityError(
            f"cpu_millis={cpu_millis}, memory_mib={memory_mib} left to offer; "
            "reserve less, or set cpu_millis and memory_mib"
        )
    resources = Resources(cpu_millis, memory_mib, len(gpus), min((gpu.memory_mib for gpu in gpus), default=0))
    model, isa = processor()
    return NodeCapacity(resources=resources, gpus=gpus, cpu_model=model, isa=isa)


def cpu_millis_available() -> int:
    """Return thousandths of a CPU this process may use: its affinity, or the cgroup's quota where that is less."""
    by_affinity = len(os.sched_getaffinity(0)) * 1000
    quotas = [quota for quota in (_cpu_quota_v2(), _cpu_quota_v1()) if quota is not None]
    return min([by_affinity, *quotas])


def memory_mib_available() -> int:
    """Return the machine's memory in MiB, or the cgroup's limit where that is less."""
    total = _meminfo_bytes("MemTotal")
    limits = [limit for limit in (_memory_limit_v2(), _memory_limit_v1()) if limit is not None]
    return min([total, *limits]) // MIB


def gpu_devices() -> tuple[GpuDevice, ...]:
    """Return the GPUs in the driver's order; none where there is no driver, which is logged."""
    import pynvml  # noqa: PLC0415 - the binding loads a driver library; nothing else of this module needs it

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        log.info("no_gpus", why=str(error))
        return ()
    try:
        found = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                found.append(_gpu(pynvml, index))
            except pynvml.NVMLError as error:  # it fell off the bus, or keeps its memory's size to itself
                log.error("gpu_not_offered", index=index, why=str(error))
        return tuple(found)
    finally:
        pynvml.nvmlShutdown()


def _gpu(pynvml: object, index: int) -> GpuDevice:
    nvml: object = pynvml
    handle = nvml.nvmlDeviceGetHandleByIndex(index)  # type: ignore[attr-defined]
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)  # type: ignore[attr-defined]
    return GpuDevice(
        index=index,
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),  # type: ignore[attr-defined]
        model=_text(nvml.nvmlDeviceGetName(handle)),  # type: ignore[attr-defined]
        memory_mib=int(memory.total) // MIB,
    )


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> tuple[str, str]:
    """Return the CPU's model and its instruction sets: architecture, the numeric ones, and a digest of all flags."""
    fields: dict[str, str] = {}
    for line in cpuinfo.read_text().splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    flags = sorted((fields.get("flags") or fields.get("Features") or "").split())
    digest = hashlib.sha256(" ".join(flags).encode()).hexdigest()[:12]
    numeric = [flag for flag in NUMERIC_FLAGS if flag in flags]
    model = fields.get("model name") or fields.get("CPU part") or "unknown"
    return model, " ".join([os.uname().machine, *numeric, f"flags:{digest}"])


def _own_cgroup(controller: str) -> str | None:
    """Return this process's path in the hierarchy of `controller` ("" is v2); None where there is none."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path
    return None


def _read_upwards(base: Path, path: str, file: str) -> list[str]:
    """Return the contents of `file` in the cgroup and in each of its ancestors: the tightest of them counts."""
    found = []
    here = base / path.lstrip("/")
    while here.is_relative_to(base):
        if (here / file).is_file():
            found.append((here / file).read_text().strip())
        here = here.parent
    return found


def _cpu_quota_v2() -> int | None:
    if (path := _own_cgroup("")) is None:
        return None
    quotas = []
    for text in _read_upwards(CGROUP_ROOT, path, "cpu.max"):
        quota, _, period = text.partition(" ")
        if quota != "max":
            quotas.append(int(quota) * 1000 // int(period))
    return min(quotas, default=None)


def _cpu_quota_v1() -> int | None:
    if (path := _own_cgroup("cpu")) is None:
        return None
    base = CGROUP_ROOT / "cpu"
    pairs = zip(
        _read_upwards(base, path, "cpu.cfs_quota_us"), _read_upwards(base, path, "cpu.cfs_period_us"), strict=True
    )
    return min((math.floor(int(quota) * 1000 / int(period)) for quota, period in pairs if int(quota) > 0), default=None)


def _memory_limit_v2() -> int | None:
    if (path := _own_cgroup("")) is None:
        return None
    return min((int(text) for text in _read_upwards(CGROUP_ROOT, path, "memory.max") if text != "max"), default=None)


def _memory_limit_v1() -> int | None:
    if (path := _own_cgroup("memory")) is None:
        return None
    limits = (int(text) for text in _read_upwards(CGROUP_ROOT / "memory", path, "memory.limit_in_bytes"))
    return min((limit for limit in limits if limit < CGROUP_V1_UNLIMITED_BYTES), default=None)


def _meminfo_bytes(field: str) -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    raise CapacityError(f"/proc/meminfo has no {field}; set memory_mib")
