"""The command line of the agent: what may be given, and how it becomes settings."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from typing import Any

from tidegate_executor import images
from tidegate_executor.settings import Settings


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Return the parsed command line; without a command the agent runs."""
    parser = argparse.ArgumentParser(prog="tidegate-executor", description="The node agent of Tidegate.")
    _add_settings(parser)
    commands = parser.add_subparsers(dest="command")
    commands.add_parser("run", help="run the agent (the default)")
    sweeping = commands.add_parser("sweep", help="end every sandbox of a data directory and remove what it left")
    sweeping.add_argument("--data-dir", default=argparse.SUPPRESS)
    measuring = commands.add_parser("images", help="measure the images, so that the next start is quick, and list them")
    measuring.add_argument("--data-dir", default=argparse.SUPPRESS)
    probing = commands.add_parser("probe", help="try every isolation level for real, and say what works here")
    probing.add_argument("--data-dir", default=argparse.SUPPRESS)
    probing.add_argument("--json", action="store_true", dest="as_json", help="one line of JSON")
    return parser.parse_args(argv)


def _add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", help="JSON file with any of the settings")
    parser.add_argument("--node")
    parser.add_argument("--data-dir")
    parser.add_argument("--hot-dir")
    parser.add_argument("--secrets-dir")
    parser.add_argument("--gateway-url")
    parser.add_argument("--cpu-millis", type=int)
    parser.add_argument("--memory-mib", type=int)
    parser.add_argument("--input-root", dest="input_roots", action="append")
    parser.add_argument("--output-root", dest="output_roots", action="append")
    parser.add_argument(
        "--offer-unisolated",
        action="store_true",
        default=None,
        help="let jobs that ask for it run as plain processes, without any isolation",
    )


def overrides(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what the command line sets."""
    return {name: value for name, value in vars(arguments).items() if name != "command"}


def print_images(settings: Settings) -> None:
    """Measure and list the images."""
    settings.paths.ensure()
    for name, image in asyncio.run(images.catalogue(settings)).items():
        print(f"{name}\t{image.digest}")


def complain(error: Exception, code: int) -> int:
    """Say what was refused on standard error; return the exit code."""
    print(f"tidegate-executor: {error}", file=sys.stderr)
    return code
