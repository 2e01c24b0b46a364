"""Texts of others (file names, a kernel's or a job's words) as an event and every reader of it can hold them. Pure."""

from __future__ import annotations

DETAIL_CHARS_MAX = 2000


def plain(text: str, chars_max: int = DETAIL_CHARS_MAX) -> str:
    """Return valid Unicode without NUL, cut to `chars_max`: what is neither shows by its number."""
    return text[:chars_max].encode(errors="backslashreplace").decode().replace("\0", "\\x00")[:chars_max]
