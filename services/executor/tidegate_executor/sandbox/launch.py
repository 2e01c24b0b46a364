"""Start a shim and hear whether its sandbox stands."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from tidegate_executor.sandbox.base import InfrastructureError
from tidegate_executor.sandbox.shim import main as shim_main

STANDING_SECONDS_MAX = 60.0


async def launch_shim(python: str, config: dict[str, Any]) -> None:
    """Return when the sandbox stands. The configuration travels by pipe: it may hold secrets.

    The shim leaves the agent's session and parentage at once; nothing of ours remains but its control socket.
    """
    process = await asyncio.create_subprocess_exec(
        python,
        "-I",
        "-S",
        shim_main.__file__,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={},
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(STANDING_SECONDS_MAX):
            answer, complaint = await process.communicate(msgspec.json.encode(config))
    except TimeoutError:
        raise InfrastructureError(f"no sandbox within {STANDING_SECONDS_MAX} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if not answer:
        text = complaint.decode(errors="replace").strip()[-2000:]
        raise InfrastructureError(f"the sandbox's shim failed before it could say why: {text}")
    report: dict[str, Any] = msgspec.json.decode(answer)
    if "error" in report:
        raise InfrastructureError(f"the sandbox could not be set up: {report['error']}")
