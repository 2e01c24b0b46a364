"""The command line of the agent: what may be given, and how it becomes settings."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tidegate_executor import image_store, images
from tidegate_executor.settings import Settings, SettingsError


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
    storing = commands.add_parser(
        "publish", help="put an image of the settings into the store, where other nodes fetch it"
    )
    storing.add_argument("image", help="its name in the settings")
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
    return {name: value for name, value in vars(arguments).items() if name not in ("command", "image")}


def print_images(settings: Settings) -> None:
    """Measure and list the images."""
    settings.paths.ensure()
    for name, image in asyncio.run(images.catalogue(settings)).items():
        print(f"{name}\t{image.digest}")


def publish_image(settings: Settings, name: str) -> None:
    """Put an image into the store and say what it is there. Raises SettingsError and StoreError."""
    if not settings.image_store_dir:
        raise SettingsError("image_store_dir is not set; name the directory that the nodes share")
    settings.paths.ensure()
    known = asyncio.run(images.catalogue(settings))
    if name not in known:
        raise SettingsError(f"image {name!r} is not of these settings; there are: {', '.join(sorted(known)) or 'none'}")
    store = Path(settings.image_store_dir)
    stored = image_store.publish(known[name], store, images.cache_directory(settings))
    print(f"{stored.name}\t{stored.digest}\t{stored.size_bytes} bytes")


def complain(error: Exception, code: int) -> int:
    """Say what was refused on standard error; return the exit code."""
    print(f"tidegate-executor: {error}", file=sys.stderr)
    return code
