"""Reads request bodies and headers within bounds of size and time."""

from __future__ import annotations

import asyncio
import re

from starlette.requests import ClientDisconnect, Request

from tidegate_gateway.http.errors import ApiError
from tidegate_gateway.submission.problems import Problems

BODY_SECONDS_MAX = 30.0
DRAIN_BYTES_MAX = 16 * 1024 * 1024
"""Read and thrown away of a body that is too large, so that its sender gets to read the answer."""


async def read_body(request: Request, bytes_max: int, problems: Problems) -> bytes | None:
    """Return the body; None with a problem noted when it is too large. Raises ApiError for one that never comes."""
    kept, size = bytearray(), 0
    try:
        async with asyncio.timeout(BODY_SECONDS_MAX):
            async for chunk in request.stream():
                size += len(chunk)
                if size > DRAIN_BYTES_MAX:
                    break
                if size <= bytes_max:
                    kept += chunk
    except TimeoutError as error:
        raise ApiError(
            408, "too_slow", f"the body did not come in {BODY_SECONDS_MAX:g} s", "a faster sender"
        ) from error
    except ClientDisconnect as error:
        raise ApiError(400, "disconnected", "the client left while it was sending", "the whole body") from error
    if size > bytes_max:
        problems.add("$", f"the body has more than {bytes_max} bytes", f"at most {bytes_max} bytes")
        return None
    return bytes(kept)


def read_header(request: Request, name: str, pattern: re.Pattern[str], accepted: str, problems: Problems) -> str | None:
    """Return a header that matches `pattern`, None when it is not given or does not."""
    value = request.headers.get(name)
    if value is not None and not pattern.fullmatch(value):
        problems.add(f"header:{name}", "has a form that cannot be used here", accepted)
        return None
    return value
