"""`tidegate-executor`: the node agent, and the commands that look after what it leaves on a node."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from pathlib import Path

from tidegate_events.clock import SystemClock
from tidegate_events.process import log_as, run_until_signalled

from tidegate_executor import commands, probing, settings, shell
from tidegate_executor.backends import NoLevelError
from tidegate_executor.image_store import StoreError
from tidegate_executor.lock import DataDirectoryInUseError
from tidegate_executor.oci import mounting
from tidegate_executor.sandbox.state import living_shims
from tidegate_executor.sweep import sweep

EXIT_REFUSED = 2
EXIT_NO_ISOLATION = 3


def main() -> None:
    """Run the command; exit code 2 for settings that cannot be used, 3 where no isolation level can be given."""
    arguments = commands.parse(sys.argv[1:])
    os.umask(0o022)
    try:
        _run(arguments)
    except (settings.SettingsError, DataDirectoryInUseError, StoreError) as error:
        sys.exit(commands.complain(error, EXIT_REFUSED))
    except NoLevelError as error:
        sys.exit(commands.complain(error, EXIT_NO_ISOLATION))


def _run(arguments: argparse.Namespace) -> None:
    if arguments.command == "sweep":
        log_as("executor", "sweep")
        swept = asyncio.run(sweep(Path(settings.data_dir(os.environ, arguments.data_dir))))
        print(f"{len(swept)} sandboxes ended: {', '.join(swept) or 'none were left'}")
        return
    if arguments.command == "probe":
        log_as("executor", "probe")
        results = asyncio.run(probing.probe(Path(settings.data_dir(os.environ, arguments.data_dir))))
        print(probing.as_text(results, as_json=arguments.as_json))
        return
    loaded = settings.load(os.environ, commands.overrides(arguments))
    log_as("executor", loaded.node)
    if arguments.command == "images":
        commands.print_images(loaded)
    elif arguments.command == "publish":
        commands.publish_image(loaded, arguments.image)
    else:
        if os.geteuid() == 0 and not mounting.enter_own_namespace(living_shims(loaded.paths.sandboxes)):
            print("no mount namespace of its own was allowed: image layers are unpacked", file=sys.stderr)
        run_until_signalled(lambda: shell.serve(loaded, SystemClock()))
