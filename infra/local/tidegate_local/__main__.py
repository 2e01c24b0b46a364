"""The supervisor as a process of its own: `python -m tidegate_local OPTIONS`, started by `tidegate up`."""

from __future__ import annotations

import asyncio
import sys

import msgspec

from tidegate_local.commands import log_to_stderr
from tidegate_local.plan import StackOptions
from tidegate_local.supervisor import run_stack


def main() -> int:
    """Run the stack that the one argument (JSON of StackOptions) describes."""
    log_to_stderr()
    options = msgspec.json.decode(sys.argv[1], type=StackOptions)
    return asyncio.run(run_stack(options, lambda record: None))


if __name__ == "__main__":
    sys.exit(main())
