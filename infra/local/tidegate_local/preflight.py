"""Whether this machine can run the stack, found out by trying, before anything is started."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import msgspec

from tidegate_local import account, plan, postgres
from tidegate_local.bus import store_dir
from tidegate_local.home import LOOPBACK, Home
from tidegate_local.topology import BUS_SERVERS, EXECUTOR, NATS, Topology, TopologyError
from tidegate_local.topology import check as check_topology

DISK_BYTES_MIN = 1024**3
PROBE_SECONDS_MAX = 30.0
COMMANDS = ("nats-server", *(f"tidegate-{kind}" for kind in (*plan.BUS_CLIENTS, *plan.DATABASE_CLIENTS)))


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Why the stack cannot run here, and what to do about it."""

    what: str
    remedy: str


class _Probe(msgspec.Struct, kw_only=True):
    """What `tidegate-executor probe --json` says of one isolation level."""

    level: str
    available: bool
    remedy: str = ""


async def check(options: plan.StackOptions) -> list[Problem]:
    """Return everything that stands in the way; nothing is started, and nothing is left behind."""
    problems = [*_numbers(options), *_commands(), *_database(), *_disk(options.home), *_loopback()]
    if not problems:
        problems += await _isolation(options)
    return problems


def _numbers(options: plan.StackOptions) -> list[Problem]:
    """Another number of bus servers keeps history in other places: it would seem to be gone."""
    wanted = options.topology.bus_servers
    try:
        check_topology(options.topology)
    except TopologyError as error:
        return [Problem(what=str(error), remedy="see `tidegate up --help`")]
    home = Home(options.home)
    for other in BUS_SERVERS:
        servers = Topology(bus_servers=other).processes(NATS)
        if other != wanted and any((store_dir(home, server) / "jetstream").exists() for server in servers):
            what = f"the history in {home.root} is that of a bus of {other}, not of {wanted}"
            return [Problem(what=what, remedy=f"use --bus-servers {other}, or give another directory with --home")]
    return []


def _commands() -> list[Problem]:
    missing = [name for name in COMMANDS if not os.access(plan.console_script(name), os.X_OK)]
    if not missing:
        return []
    return [
        Problem(
            what=f"not installed beside this Python: {', '.join(missing)}",
            remedy="install tidegate-server into this environment; in a checkout `scripts/demo` does it",
        )
    ]


def _database() -> list[Problem]:
    """PostgreSQL refuses to run as root, and making its files takes an account with a name."""
    try:
        account.named()
    except account.NoAccountError as error:
        what = f"the database's server refuses to run as root, and {error}"
        return [Problem(what=what, remedy="run as an ordinary user, or make that account available")]
    if os.access(postgres.program("postgres"), os.X_OK):
        return []
    return [Problem(what=f"no program {postgres.program('postgres')}", remedy=f"install {postgres.PACKAGE} again")]


def _disk(home: Path) -> list[Problem]:
    existing = home
    while not existing.exists():
        existing = existing.parent
    free = shutil.disk_usage(existing).free
    if not os.access(existing, os.W_OK):
        return [Problem(what=f"{existing} is not writable", remedy="give another directory with --home")]
    if free < DISK_BYTES_MIN:
        remedy = f"free some space, or give another directory with --home; needed are {DISK_BYTES_MIN // 1024**2} MiB"
        return [Problem(what=f"{existing} has {free // 1024**2} MiB free", remedy=remedy)]
    return []


def _loopback() -> list[Problem]:
    try:
        plan.free_port()
    except OSError as error:
        return [Problem(what=f"no port can be opened on {LOOPBACK}: {error}", remedy="bring the loopback up")]
    return []


async def _isolation(options: plan.StackOptions) -> list[Problem]:
    home = Home(options.home)
    home.create()
    agent = options.topology.processes(EXECUTOR)[0]
    process = await asyncio.create_subprocess_exec(
        plan.console_script("tidegate-executor"),
        "probe",
        "--json",
        env={**plan.common_env(options), **plan.executor_env(agent, options)},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(PROBE_SECONDS_MAX):
            output, errors = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        return [Problem(what=f"the isolation probe did not end in {PROBE_SECONDS_MAX:.0f} s", remedy=_UNISOLATED)]
    try:
        probes = msgspec.json.decode(output, type=list[_Probe])
    except msgspec.MsgspecError:
        text = errors.decode(errors="replace").strip()[-500:]
        return [Problem(what=f"the isolation probe failed (exit {process.returncode}): {text}", remedy=_UNISOLATED)]
    return _missing(probes, options.level)


def _missing(probes: list[_Probe], level: str) -> list[Problem]:
    for probe in probes:
        if probe.level == level:
            return [] if probe.available else [Problem(what=f"no isolation at level {level!r}", remedy=probe.remedy)]
    return [Problem(what=f"the node agent knows no isolation level {level!r}", remedy=_UNISOLATED)]


_UNISOLATED = "with --unisolated jobs run as plain processes, without any isolation: only for code you trust"
