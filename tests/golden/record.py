"""Record the journals of `tests/golden/journals` anew: `scripts/record-journals --reason "why" [NAME...]`.

Each is the export of a real run; `recorded.json` says what it holds, by which policy, and why it was recorded. A change
of policy should rather get a new policy version: then the old journals stay as they are and still verify.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path

from tidegate_events.bus import BusSettings
from tidegate_scheduler.history.carrying import export
from tidegate_scheduler.history.commands.proving import as_text, prove
from tidegate_scheduler.history.moment import Moment
from tidegate_scheduler.history.source import open_bus, open_file
from tidegate_scheduler.version import CORE_VERSION, POLICY_VERSION

from tests.golden.scenarios import SCENARIOS
from tests.golden.stage import Stage

JOURNALS = Path(__file__).with_name("journals")
INDEX = JOURNALS / "recorded.json"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


async def record(name: str, reason: str) -> dict[str, object]:
    """Run one scenario, export its journal in place of the old one, and return what the index says of it."""
    with tempfile.TemporaryDirectory(prefix="tidegate-") as directory:
        stage = Stage(Path(directory))
        await stage.open()
        try:
            await SCENARIOS[name](stage)
            made = Path(directory) / "export.tgj"
            async with open_bus(BusSettings(url=stage.server.url), None) as source:
                info = await export(source, made, lambda _: None)
        finally:
            await stage.close()
        report = await prove(open_file(made), Moment(), Moment(), lambda _: None)
        if not report.ok:
            raise RuntimeError(f"{name} was recorded and does not verify:\n{as_text(report)}")
        (JOURNALS / f"{name}.tgj").write_bytes(made.read_bytes())
    return {
        "core": CORE_VERSION,
        "policy": POLICY_VERSION,
        "frames": info.frames,
        "decisions": report.decisions,
        "digest": info.digest,
        "state_digest": report.state_digest,
        "reason": reason,
    }


def main() -> None:
    """Record the journals that are named, or all."""
    parser = argparse.ArgumentParser(prog="scripts/record-journals", description=__doc__.splitlines()[0])
    parser.add_argument("--reason", required=True, help="why the old recordings no longer do")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(SCENARIOS)}; all without one")
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.names) - set(SCENARIOS)):
        parser.error(f"no scenario {unknown[0]!r}; there are {', '.join(SCENARIOS)}")
    JOURNALS.mkdir(exist_ok=True)
    index = json.loads(INDEX.read_text()) if INDEX.exists() else {}
    for name in arguments.names or SCENARIOS:
        _say(f"recording {name}")
        index[name] = asyncio.run(record(name, arguments.reason))
        INDEX.write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")
        _say(f"  {index[name]['frames']} frames, {index[name]['decisions']} decisions")


if __name__ == "__main__":
    main()
