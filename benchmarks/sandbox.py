"""How fast sandboxes start, how many there is room for, and what an image costs that is here, all in one run.

Prints one JSON line, milliseconds and MiB; keys of what this machine has not are absent. Cycles of all that is compared
alternate, so that a busy machine slows them alike. `trusted` is the first start of an image on a node as agents keep
it: sandboxes stand ready, and none has the image; `trusted_unprepared` is one where these are used up. The least of
each goes to standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import structlog
import uvloop
from sandbox_baselines import COMMAND, QUOTA, BareFork, Baseline, DockerRun, RawBwrap, RawRunc, docker_answers
from sandbox_images import image_ms
from tidegate_executor.cgroups.base import Driver
from tidegate_executor.oci import mounting
from tidegate_executor.sandbox.base import ComponentProcess, Layer, Limits, Sandbox, SandboxSpec
from tidegate_executor.sandbox.bwrap import BwrapBackend
from tidegate_executor.sandbox.docker import DockerBackend
from tidegate_executor.sandbox.gvisor import GvisorBackend
from tidegate_executor.sandbox.settings import DOCKER_SOCKET_DEFAULT, RUNSC_DEFAULT, SandboxSettings
from tidegate_executor.sandbox.shimmed import ShimmedBackend

CYCLES_DEFAULT = 30
WARMUP_CYCLES = 3
SLOW_CYCLES = 10  # of what takes hundreds of milliseconds
BURST = 100
IDLE_DEFAULT = 500
IDLE_AT_ONCE = 8
PAUSE_SECONDS = 0.05
IN_MODIFY, IN_NONBLOCK, IN_CLOEXEC = 2, os.O_NONBLOCK, os.O_CLOEXEC  # inotify(7)
TOLD_BYTES_MAX = 65536
OUTPUT_SECONDS_MAX = 60.0
ENGINE_SECONDS_MAX = 60.0
MIB = 1024**2
LIMITS = Limits(cpu_millis=QUOTA.cpu_millis, memory_mib=QUOTA.memory_mib, pids=1024)  # as the agent asks for
IDLE_COMMAND = ("/bin/sh", "-c", "echo up; exec sleep 3600")


class Bench:
    """One backend, and the names of what it starts."""

    def __init__(self, backend: ShimmedBackend, directory: Path) -> None:
        self.backend = backend
        self._directory = directory
        self._number = 0
        self._outputs = Outputs()

    def spec(self) -> SandboxSpec:
        self._number += 1
        name = f"bench.{self._number}.0"
        return SandboxSpec(
            id=name,
            hostname="bench",
            log_dir=str(self._directory / "logs" / name),
            uid_slot=self._number % 2048,
            workdir=str(self._directory / "lower"),
            layers=(Layer(source="/usr", target="/usr"),),
        )

    async def start(self, sandbox: Sandbox, log_dir: str, argv: tuple[str, ...] = COMMAND) -> None:
        """Return at the first output."""
        process = ComponentProcess(component="main", replica=0, argv=argv, limits=LIMITS, cwd="/workspace")
        written = self._outputs.watch(log_dir)
        await sandbox.start(process)
        async with asyncio.timeout(OUTPUT_SECONDS_MAX):
            await written.wait()

    async def warm_ms(self) -> float:
        """Return create to first output where a sandbox of the image stood ready."""
        spec = self.spec()
        return await self._from_ready_ms(spec, spec.layers)

    async def first_ms(self) -> float:
        """Return the same where one stood ready that had no image: what the first start of an image finds on a node."""
        return await self._from_ready_ms(self.spec(), ())

    async def cold_ms(self) -> float:
        """Return the same where only shims waited."""
        return await self._first_output_ms(self.spec())

    async def _from_ready_ms(self, spec: SandboxSpec, layers: tuple[Layer, ...]) -> float:
        ready = self.backend.ready
        await self.backend.make_ready(layers, spec.uid_slot)
        ready.promise(spec.layers, spec.id)
        await asyncio.sleep(PAUSE_SECONDS)
        hits = ready.hits + ready.hits_without_image
        took = await self._first_output_ms(spec)
        if ready.hits + ready.hits_without_image != hits + 1:
            raise SystemExit("the sandbox that stood ready was not used")
        return took

    async def _first_output_ms(self, spec: SandboxSpec) -> float:
        began = time.perf_counter()
        sandbox = await self.backend.create(spec)
        await self.start(sandbox, spec.log_dir)
        took = (time.perf_counter() - began) * 1000
        await sandbox.destroy()
        return took


class Outputs:
    """Says as the kernel does that something was written: looking every millisecond would be seen in the results."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._watching = self._checked(self._libc.inotify_init1(IN_NONBLOCK | IN_CLOEXEC))
        self._written: dict[int, asyncio.Event] = {}
        asyncio.get_running_loop().add_reader(self._watching, self._look)

    def watch(self, directory: str) -> asyncio.Event:
        """Return what is set at the first write to a file in there."""
        number = self._checked(self._libc.inotify_add_watch(self._watching, directory.encode(), IN_MODIFY))
        return self._written.setdefault(number, asyncio.Event())

    def _look(self) -> None:
        told = os.read(self._watching, TOLD_BYTES_MAX)
        while told:
            number, _, _, length = struct.unpack_from("=iIII", told)  # struct inotify_event
            self._written[number].set()
            told = told[struct.calcsize("=iIII") + length :]

    @staticmethod
    def _checked(result: int) -> int:
        if result < 0:
            raise OSError(ctypes.get_errno(), "inotify")
        return result


async def starts(bench: Bench, baselines: dict[str, Baseline], cycles: int) -> dict[str, list[float]]:
    """Return the milliseconds of each, taken in turns."""
    own = {"trusted": bench.first_ms, "trusted_warm": bench.warm_ms, "trusted_unprepared": bench.cold_ms}
    found: dict[str, list[float]] = {name: [] for name in (*own, *baselines)}
    names = list(found)
    for number in range(cycles + WARMUP_CYCLES):
        for name in names[number % len(names) :] + names[: number % len(names)]:  # nobody always comes after the same
            if name in ("docker", "runc") and number >= SLOW_CYCLES + WARMUP_CYCLES:
                continue
            await asyncio.sleep(PAUSE_SECONDS)
            one = await (own[name]() if name in own else asyncio.to_thread(baselines[name].first_output_ms))
            if number >= WARMUP_CYCLES:
                found[name].append(one)
    return found


async def burst_ms(bench: Bench) -> list[float]:
    """Return what each of many took that were asked for at once."""
    made: list[Sandbox] = []

    async def one() -> float:
        began = time.perf_counter()
        spec = bench.spec()
        sandbox = await bench.backend.create(spec)
        await bench.start(sandbox, spec.log_dir)
        made.append(sandbox)
        return (time.perf_counter() - began) * 1000

    took = await asyncio.gather(*(one() for _ in range(BURST)))
    await asyncio.gather(*(sandbox.destroy() for sandbox in made))
    return took


async def burst_bwrap_ms(bwrap: RawBwrap) -> list[float]:
    """Return what each of as many took that were started by hand at once."""
    with ThreadPoolExecutor(BURST) as threads:
        loop = asyncio.get_running_loop()
        made = await asyncio.gather(*(loop.run_in_executor(threads, bwrap.start) for _ in range(BURST)))
        await asyncio.gather(*(loop.run_in_executor(threads, one.remove) for one in made))
    return [one.first_output_ms for one in made]


async def idle(bench: Bench, count: int) -> dict[str, float]:
    """Have so many sandboxes with a process that sleeps; return how many answer, and what each takes."""
    at_once = asyncio.Semaphore(IDLE_AT_ONCE)
    before = available_mib()

    async def one() -> Sandbox:
        async with at_once:
            spec = bench.spec()
            sandbox = await bench.backend.create(spec)
            await bench.start(sandbox, spec.log_dir, IDLE_COMMAND)
            return sandbox

    standing = await asyncio.gather(*(one() for _ in range(count)))
    taken = before - available_mib()
    answering = 0
    for sandbox in standing:
        stats = await sandbox.stats()
        answering += [replica.component for replica in stats.replicas] == ["main"]

    async def end(sandbox: Sandbox) -> None:
        async with at_once:
            await sandbox.destroy()

    await asyncio.gather(*(end(sandbox) for sandbox in standing))
    return {"idle_sandboxes": answering, "idle_mib_each": round(taken / count, 2)}


def available_mib() -> float:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")) / 1024


def percentile(values: list[float], percent: int) -> float:
    ordered = sorted(values)
    return round(ordered[min(len(ordered) * percent // 100, len(ordered) - 1)], 2)


@contextmanager
def engine(directory: Path) -> Iterator[bool]:
    """Have a Docker engine to compare with: the one that answers, else one of our own where there is a dockerd."""
    if docker_answers():
        yield True
        return
    if shutil.which("dockerd") is None or shutil.which("docker") is None or os.geteuid() != 0:
        yield False
        return
    script = Path(__file__).parents[1] / "scripts" / "private-dockerd"
    place = directory / "engine"
    with (directory / "dockerd.log").open("wb") as log:
        process = subprocess.Popen([script, place], stdout=log, stderr=log)
    os.environ["DOCKER_HOST"] = f"unix://{place}/docker.sock"
    try:
        deadline = time.monotonic() + ENGINE_SECONDS_MAX
        while not docker_answers():
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"dockerd did not come: {(directory / 'dockerd.log').read_text()[-2000:]}")
            time.sleep(0.2)
        yield True
    finally:
        process.terminate()
        process.wait(ENGINE_SECONDS_MAX)
        del os.environ["DOCKER_HOST"]


@asynccontextmanager
async def baselines_of(directory: Path, driver: Driver, with_docker: bool) -> AsyncIterator[dict[str, Baseline]]:
    """Everything there is here to compare with."""
    found: dict[str, Baseline] = {"fork": BareFork(), "bwrap": RawBwrap(directory / "raw", driver)}
    if shutil.which("runc") is not None:
        found["runc"] = RawRunc(directory)
    docker = await asyncio.to_thread(DockerRun, directory) if with_docker else None
    if docker is not None:
        found["docker"] = docker
    try:
        yield found
    finally:
        if docker is not None:
            await asyncio.to_thread(docker.close)


async def measure(arguments: argparse.Namespace, directory: Path, with_docker: bool) -> dict[str, float]:
    settings = SandboxSettings(
        sandboxes_dir=str(directory / "sandboxes"),
        cgroup_name=f"tidegate-bench-{os.getpid()}",
        runsc=os.environ.get("TIDEGATE_RUNSC", RUNSC_DEFAULT),
        docker_socket=os.environ.get("DOCKER_HOST", DOCKER_SOCKET_DEFAULT).removeprefix("unix://"),
    )
    (directory / "lower").mkdir()
    bwrap = BwrapBackend(settings)
    probe = await bwrap.probe()
    if not probe.available:
        raise SystemExit(f"{probe.remedy} ({'; '.join(probe.notes)})")
    bench = Bench(bwrap, directory)
    driver = (await bwrap.limits()).driver
    assert driver is not None, "the probe found control groups"
    async with baselines_of(directory, driver, with_docker) as baselines:
        took = await starts(bench, baselines, arguments.cycles)
        burst = {
            "burst100_bwrap_p99_ms": percentile(await burst_bwrap_ms(RawBwrap(directory / "burst", driver)), 99),
            "burst100_p99_ms": percentile(await burst_ms(bench), 99),
        }
    p50 = {name: percentile(values, 50) for name, values in took.items()}
    least = {name: percentile(values, 0) for name, values in took.items()}
    print(f"p50 {p50}; least, which neighbours disturb least {least}", file=sys.stderr)
    result: dict[str, float] = {
        "trusted_p50_ms": p50["trusted"],
        "trusted_p99_ms": percentile(took["trusted"], 99),
        "bwrap_p50_ms": p50["bwrap"],
        "trusted_over_bwrap": round(p50["trusted"] / p50["bwrap"], 2),
        "unprepared_over_bwrap": round(p50["trusted_unprepared"] / p50["bwrap"], 2),
        "fork_p50_ms": p50["fork"],
    }
    for name in ("trusted_warm", "trusted_unprepared", "runc", "docker"):
        if name in took:
            result |= {f"{name}_p{rank}_ms": percentile(took[name], rank) for rank in (50, 99)}
    if with_docker:
        over = {
            "trusted": "trusted",
            "trusted_warm": "trusted_warm",
            "unprepared": "trusted_unprepared",
            "bwrap": "bwrap",
        }
        result |= {f"docker_over_{key}": round(p50["docker"] / p50[name], 1) for key, name in over.items()}
    result |= await cold_and_warm(GvisorBackend(settings), directory, "guarded")
    if with_docker:
        result |= await cold_and_warm(DockerBackend(settings), directory, "trusted_by_docker")
        result |= await cold_and_warm(DockerBackend(settings, "guarded"), directory, "guarded_by_docker")
    result |= await asyncio.to_thread(image_ms, directory)
    result |= burst
    result |= await idle(bench, arguments.idle)
    await bwrap.release()
    return result


async def cold_and_warm(backend: GvisorBackend | DockerBackend, directory: Path, name: str) -> dict[str, float]:
    """Return what a start takes there, cold and in a sandbox that stood ready; nothing where it does not work."""
    probe = await backend.probe()
    if not probe.available:
        print(f"{name}: {probe.remedy} ({'; '.join(probe.notes)})", file=sys.stderr)
        return {}
    bench = Bench(backend, directory / name)
    (directory / name / "lower").mkdir(parents=True)
    taken = [(await bench.cold_ms(), await bench.warm_ms()) for _ in range(SLOW_CYCLES + WARMUP_CYCLES)][WARMUP_CYCLES:]
    await backend.release()
    found: dict[str, float] = {}
    for how, values in zip(("cold", "warm"), zip(*taken, strict=True), strict=True):
        found |= {f"{name}_{how}_p{rank}_ms": percentile(list(values), rank) for rank in (50, 99)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cycles", type=int, default=CYCLES_DEFAULT)
    parser.add_argument("--idle", type=int, default=IDLE_DEFAULT)
    arguments = parser.parse_args()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))  # one line on standard output
    if os.geteuid() == 0:
        mounting.enter_own_namespace()
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as made, engine(Path(made)) as with_docker:
        print(json.dumps(uvloop.run(measure(arguments, Path(made), with_docker))))


if __name__ == "__main__":
    main()
