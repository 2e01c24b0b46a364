"""`python -m tidegate_local.demo`: up, the main job, every check, down. Exits 0 only if all of it held."""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from tidegate_local import plan
from tidegate_local.commands import EXIT_FAILED
from tidegate_local.demo.checks import Check, check_all
from tidegate_local.demo.observed import Observed
from tidegate_local.demo.reading import read_back
from tidegate_local.demo.report import Reporter, line
from tidegate_local.demo.scenario import Scenario, ScenarioError, Stage
from tidegate_local.home import Home, HomeError
from tidegate_local.leftovers import Leftover

EXIT_INTERRUPTED = 130
MARKER = "made-by-the-demo"
# What the node offers whatever the machine has, so that both jobs never fit beside each other.
NODE_CPU_MILLIS = 2000


class _Refused(Exception):
    """The stack cannot run; its exit code is ours."""

    def __init__(self, code: int) -> None:
        super().__init__(f"`tidegate up` exited {code}")
        self.code = code


class _Demo:
    def __init__(self, options: argparse.Namespace) -> None:
        self._home = Home(options.home)
        self._example = options.example
        self._unisolated = options.unisolated
        self.level = "unisolated" if options.unisolated else "trusted"
        self.reporter = Reporter(level=self.level, as_json=options.json)
        self.seen = Observed(level=self.level, low="", high="")

    def prepare(self) -> None:
        """Start from an empty data directory; only one that an earlier demo made is removed."""
        root = self._home.root
        if root.is_dir() and any(root.iterdir()):
            if not (root / MARKER).exists():
                raise ScenarioError(f"{root} was not made by the demo; give another --home")
            if self._home.is_held():
                raise ScenarioError(f"a stack runs in {root}: `tidegate down --home {root}` ends it")
            shutil.rmtree(root)
        self._home.create()
        (root / MARKER).touch()

    def up(self) -> None:
        """Start the stack. Raises _Refused with the exit code of `tidegate up`."""
        self.reporter.say("starting the stack: bus, database, and every service as its own process")
        argv = ["up", "--home", str(self._home.root), "--cpu-millis", str(NODE_CPU_MILLIS)]
        argv += ["--unisolated"] if self._unisolated else []
        began = time.monotonic()
        process = subprocess.run(_tidegate(argv), stdout=sys.stderr, check=False)
        if process.returncode:
            raise _Refused(process.returncode)
        self.reporter.say(f"stack ready in {time.monotonic() - began:.1f} s")

    def play(self) -> None:
        """Run the scenario, then ask history and the command line about it."""
        record = self._home.read_record()
        if record is None:
            raise ScenarioError("the stack is up but left no record of itself")
        stage = Stage(
            gateway_url=record.gateway_url,
            level=self.level,
            example=self._example,
            home=self._home,
        )
        scenario = Scenario(stage, self.reporter.tell)
        self.seen = scenario.observed
        try:
            scenario.run()
        finally:
            scenario.close()
        self.reporter.say("both ended; verifying history, read models, traces and the command line")
        read_back(self._home, self.seen)

    def down(self) -> list[Leftover]:
        """End the stack and return what is left of it."""
        self.reporter.say("ending the stack")
        process = subprocess.run(
            _tidegate(["down", "--home", str(self._home.root), "--json"]), stdout=subprocess.PIPE, check=False
        )
        try:
            return msgspec.convert(json.loads(process.stdout)["leftovers"], list[Leftover])
        except (ValueError, KeyError):
            return [
                Leftover(kind="sweep", what=f"`tidegate down` exited {process.returncode} and did not say what is left")
            ]

    def remove_data(self) -> None:
        """Remove the data directory."""
        shutil.rmtree(self._home.root)


def _tidegate(argv: list[str]) -> list[str]:
    return [plan.console_script("tidegate"), *argv]


def main(argv: list[str] | None = None) -> int:
    """Run the demo; return its exit code: 0 all held, 1 something did not, 3 this machine cannot, 130 interrupted."""
    options = _options(argv)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    demo = _Demo(options)
    checks: list[Check] = []
    code = EXIT_FAILED
    began = time.monotonic()
    try:
        demo.prepare()
        demo.up()
        demo.play()
        checks = check_all(demo.seen)
    except _Refused as refusal:
        demo.reporter.say(f"[red]{refusal}[/]")
        return refusal.code
    except (ScenarioError, HomeError) as error:
        checks = [Check(claim="the run came to its end", ok=False, detail=str(error))]
        demo.reporter.say(f"[red]{error}[/]")
    except KeyboardInterrupt:
        checks = [Check(claim="the run came to its end", ok=False, detail="interrupted")]
        demo.reporter.say("[red]interrupted[/]")
        code = EXIT_INTERRUPTED
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # ending the stack is bounded; half of it would leave things behind
        left = demo.down()
    return _close(demo, options, checks, left, code=code, wall_seconds=time.monotonic() - began)


def _close(
    demo: _Demo,
    options: argparse.Namespace,
    checks: list[Check],
    left: list[Leftover],
    *,
    code: int,
    wall_seconds: float,
) -> int:
    demo.seen.wall_seconds = wall_seconds
    last = line(demo.seen, checks, left)
    if demo.seen.low and demo.seen.high and demo.seen.jobs:
        demo.reporter.show(demo.seen, checks, left)
    if last.ok and not options.keep:
        demo.remove_data()
    else:
        demo.reporter.say(f"logs and journal stay in {options.home}")
    demo.reporter.say("[green]everything held[/]" if last.ok else "[bold red]not everything held[/]")
    if options.json:
        print(msgspec.json.encode(last).decode(), flush=True)
    return 0 if last.ok else code


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/demo", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON line last; everything else goes to stderr")
    parser.add_argument("--unisolated", action="store_true", help="plain processes instead of sandboxes")
    parser.add_argument("--keep", action="store_true", help="keep the data directory (it always stays after a failure)")
    parser.add_argument("--home", type=Path, default=Path(".tidegate/demo"), help="data directory of the demo's stack")
    parser.add_argument("--example", type=Path, default=Path("examples/cartpole"), help="directory of the example")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
