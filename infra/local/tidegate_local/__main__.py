"""The supervisor as a process of its own: `python -m tidegate_local OPTIONS`, started by `tidegate up`."""

from __future__ import annotations

import asyncio
import sys

from tidegate_events.process import log_as

from tidegate_local.plan import StackOptions
from tidegate_local.supervisor import run_stack
from tidegate_local.topology import INSTANCE


def main() -> int:
    """Run the stack that the one argument (`StackOptions.to_json`) describes."""
    log_as("supervisor", INSTANCE)
    return asyncio.run(run_stack(StackOptions.from_json(sys.argv[1]), lambda record: None))


if __name__ == "__main__":
    sys.exit(main())
