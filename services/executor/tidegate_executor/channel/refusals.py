"""The log of what a sandbox's processes were refused: every kind of it shows, and no flood of it fills the disk."""

import structlog

from tidegate_executor.channel.rate import Bucket

LINES_PER_SECOND, LINES_BURST = 1.0, 50
TEXT_CHARS_MAX = 200

_log = structlog.get_logger("tidegate.channel")


class Refusals:
    """One per sandbox. The first of each code is always logged; lines that are left out are counted, and told."""

    def __init__(self, sandbox: str) -> None:
        self._sandbox = sandbox
        self._lines = Bucket(LINES_PER_SECOND, LINES_BURST)
        self._seen: set[str] = set()
        self._left_out = 0

    def note(self, code: str, text: str, now: float, client: str = "") -> None:
        """Log a refusal at the loop's time `now`, seconds."""
        if self._lines.take(now) and code in self._seen:
            self._left_out += 1
            return
        self._seen.add(code)
        more = {"client": client} if client else {}
        if self._left_out:
            more["left_out"] = str(self._left_out)
            self._left_out = 0
        _log.warning("channel.refused", sandbox=self._sandbox, code=code, text=text[:TEXT_CHARS_MAX], **more)
