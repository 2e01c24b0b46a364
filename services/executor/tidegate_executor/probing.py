"""`tidegate-executor probe`: try every isolation level for real, without an agent, and say what works here.

It uses a cgroup of its own, so that it may be run beside an agent whose sandboxes live in the same data directory.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from tidegate_executor import backends
from tidegate_executor.sandbox.base import ProbeResult
from tidegate_executor.sandbox.settings import SandboxSettings
from tidegate_executor.settings import NodePaths


async def probe(data_dir: Path) -> list[ProbeResult]:
    """Return what trying each level showed; nothing of it is left."""
    paths = NodePaths(data_dir)
    paths.ensure()
    settings = SandboxSettings(sandboxes_dir=str(paths.sandboxes), cgroup_name=f"tidegate-probe-{os.getpid()}")
    results = []
    for backend in backends.make(settings).values():
        try:
            results.append(await backend.probe())
        finally:
            await backend.release()
    return results


def as_text(results: list[ProbeResult], *, as_json: bool) -> str:
    """Return the results for people, or as one line of JSON."""
    if as_json:
        return msgspec.json.encode(results).decode()
    lines = []
    for result in results:
        verdict = f"works, limits by {result.limits}" if result.available else f"does not work. {result.remedy}"
        lines.append(f"{result.level} ({result.backend}): {verdict}")
        lines += [f"  {note}" for note in result.notes]
    return "\n".join(lines)
