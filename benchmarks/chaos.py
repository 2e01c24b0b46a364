"""A stack of several under load: processes killed and stopped at random, a full journal, a restarted database.

    benchmarks/chaos.py --minutes 10 --seed 7

Three bus servers, two schedulers, three nodes; every choice is drawn from the seed. Ends with one JSON line; exit code
0 only if nothing acknowledged was lost or doubled, nothing ran twice, nothing was left behind, every job ended well and
every decision in the journal was recomputed and equal. Progress goes to stderr. Needs what `tidegate up` needs.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import structlog
from tidegate_local import launch, preflight
from tidegate_local.chaos import image, remains
from tidegate_local.chaos.reckoning import Report, Verified, reckon
from tidegate_local.chaos.run import Chaos, plan_of
from tidegate_local.home import Home
from tidegate_local.plan import StackOptions, console_script
from tidegate_local.topology import Topology

TOPOLOGY = Topology(bus_servers=3, schedulers=2, nodes=3)
CPU_MILLIS = 6000
MEMORY_MIB = 6144
GENERATION_BYTES_DEFAULT = 1024**2
VERIFY_SECONDS_MAX = 60.0  # and as long again as the run took
LOG_LINES = 25
EXIT_CANNOT_RUN_HERE = 3

log = structlog.get_logger()


def verify(home: Home, seconds_max: float) -> Verified:
    """Recompute every decision, by the command that operators use."""
    try:
        done = subprocess.run(
            [console_script("tidegate"), "history", "verify", "--json"],
            env={**os.environ, "TIDEGATE_HOME": str(home.root)},
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds_max,
        )
    except subprocess.TimeoutExpired as error:
        said = (error.stderr or b"").decode(errors="replace")
        return Verified(refused=f"no answer in {seconds_max:.0f} s: {said[-2000:]}")
    try:
        return msgspec.json.decode(done.stdout, type=Verified)
    except msgspec.MsgspecError:
        return Verified(refused=f"exit code {done.returncode}: {(done.stdout + done.stderr)[-2000:]}")


def measure(options: StackOptions, seed: int, seconds: float) -> Report:
    """Bring the stack up, run, take it down, reckon."""
    home = Home(options.home)
    record = launch.start_detached(options, lambda record: None)
    log.info("stack_up", services=len(record.services), home=str(home.root))
    try:
        plan = plan_of(seed, seconds, options.generation_bytes, record)
        log.info("begins", jobs=len(plan.jobs), faults=len(plan.faults), seconds=seconds)
        outcome = asyncio.run(Chaos(home, record, plan).run())
        log.info("verifies", drained_in_seconds=round(outcome.drain_seconds, 1))
        verified = verify(home, VERIFY_SECONDS_MAX + seconds)
        log.info("goes_down", decisions=verified.decisions)
    except BaseException:
        print(remains.newest_logs(home, LOG_LINES), file=sys.stderr)
        raise
    finally:
        ended = asyncio.run(launch.stop(home))
        log.info("is_down", left=len(ended.leftovers))
    return reckon(seed, outcome, verified, [f"{left.kind} {left.what}" for left in ended.leftovers])


def main() -> int:
    """Run, print the line, return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--generation-bytes", type=int, default=GENERATION_BYTES_DEFAULT)
    parser.add_argument("--home", type=Path, help="the stack's data directory, kept; else a temporary one")
    arguments = parser.parse_args()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    root = arguments.home or Path(tempfile.mkdtemp(prefix="tidegate-chaos-"))
    options = StackOptions(
        home=root / "home",
        cpu_millis=CPU_MILLIS,
        memory_mib=MEMORY_MIB,
        topology=TOPOLOGY,
        generation_bytes=arguments.generation_bytes,
    )
    root.mkdir(parents=True, exist_ok=True)
    root.chmod(0o711)  # sandboxes pass through it
    config = image.executor_config(root / "executor.json", image.build(root / "image"))
    os.environ["TIDEGATE_EXECUTOR_CONFIG"] = str(config)
    try:
        if problems := asyncio.run(preflight.check(options)):
            print("\n".join(f"cannot run here: {each.what}; {each.remedy}" for each in problems), file=sys.stderr)
            return EXIT_CANNOT_RUN_HERE
        report = measure(options, arguments.seed, arguments.minutes * 60)
    finally:
        if not arguments.home:
            shutil.rmtree(root, ignore_errors=True)
    print(msgspec.json.encode(report).decode(), flush=True)
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
