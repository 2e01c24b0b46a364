"""Time from asking for a sandbox to its first output, against raw bubblewrap with the same mounts, in one run.

Prints one JSON line, milliseconds. Cycles of both alternate, so that a busy machine slows both.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path

from tidegate_executor.sandbox.base import ComponentProcess, Layer, Limits, Sandbox, SandboxSpec
from tidegate_executor.sandbox.bwrap import BwrapBackend, find_bwrap
from tidegate_executor.sandbox.settings import SandboxSettings

CYCLES_DEFAULT = 50
WARMUP_CYCLES = 3
COMMAND = ("/bin/sh", "-c", "echo out")
LIMITS = Limits(cpu_millis=2000, memory_mib=128, pids=32)


def raw_arguments(directory: Path) -> list[str]:
    """bubblewrap alone, as one would call it by hand: the same namespaces and overlays, no limits, no filter."""
    binary, _ = find_bwrap()
    for name in ("lower", "upper", "work"):
        (directory / name).mkdir(exist_ok=True)
    links = [item for name in ("bin", "lib", "lib64") for item in ("--symlink", f"usr/{name}", f"/{name}")]
    return [
        binary, "--unshare-all", "--unshare-user", "--disable-userns", "--uid", "1000", "--gid", "1000",
        "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv",
        "--overlay-src", "/usr", "--tmp-overlay", "/usr", *links, "--ro-bind", "/etc/ld.so.cache", "/etc/ld.so.cache",
        "--overlay-src", str(directory / "lower"), "--overlay", str(directory / "upper"), str(directory / "work"),
        "/workspace", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--", *COMMAND,
    ]  # fmt: skip


def raw_ms(arguments: list[str]) -> float:
    began = time.perf_counter()
    with subprocess.Popen(arguments, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        first = process.stdout.read(1)
        took = (time.perf_counter() - began) * 1000
    if process.returncode or not first:
        raise SystemExit(f"raw bubblewrap failed with {process.returncode}")
    return took


async def first_output(sandbox: Sandbox) -> None:
    while not (await sandbox.logs("main", 0)).data:  # noqa: ASYNC110 - the log is a file
        await asyncio.sleep(0.0002)


async def ours_ms(backend: BwrapBackend, spec: SandboxSpec) -> tuple[float, float]:
    """(until the empty sandbox stands, until the first output)."""
    began = time.perf_counter()
    sandbox = await backend.create(spec)
    created = time.perf_counter()
    await sandbox.start(ComponentProcess(component="main", replica=0, argv=COMMAND, limits=LIMITS))
    await first_output(sandbox)
    ended = time.perf_counter()
    await sandbox.destroy()
    for entry in os.scandir(spec.log_dir):
        os.unlink(entry.path)
    return (created - began) * 1000, (ended - began) * 1000


def percentile(values: list[float], percent: int) -> float:
    ordered = sorted(values)
    return round(ordered[min(len(ordered) * percent // 100, len(ordered) - 1)], 2)


async def measure(cycles: int, directory: Path) -> dict[str, float | int]:
    settings = SandboxSettings(sandboxes_dir=str(directory / "sandboxes"), cgroup_name=f"tidegate-bench-{os.getpid()}")
    backend = BwrapBackend(settings)
    probe = await backend.probe()
    if not probe.available:
        raise SystemExit(f"{probe.remedy} ({'; '.join(probe.notes)})")
    arguments = raw_arguments(directory)
    raw: list[float] = []
    created: list[float] = []
    ours: list[float] = []
    for number in range(cycles + WARMUP_CYCLES):
        spec = SandboxSpec(
            id=f"bench.{number}.0",
            hostname="bench",
            log_dir=str(directory / "logs"),
            workdir=str(directory / "lower"),
            layers=(Layer(source="/usr", target="/usr"),),
        )
        one_raw = await asyncio.to_thread(raw_ms, arguments)
        standing, one = await ours_ms(backend, spec)
        if number >= WARMUP_CYCLES:
            raw.append(one_raw)
            created.append(standing)
            ours.append(one)
    await backend.release()
    return {
        "cycles": cycles,
        "trusted_p50_ms": percentile(ours, 50),
        "trusted_p99_ms": percentile(ours, 99),
        "trusted_create_p50_ms": percentile(created, 50),
        "bwrap_p50_ms": percentile(raw, 50),
        "bwrap_p99_ms": percentile(raw, 99),
        "trusted_over_bwrap": round(percentile(ours, 50) / percentile(raw, 50), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cycles", type=int, default=CYCLES_DEFAULT)
    cycles = parser.parse_args().cycles
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as directory:
        print(json.dumps(asyncio.run(measure(cycles, Path(directory)))))


if __name__ == "__main__":
    main()
