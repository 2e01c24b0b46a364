"""Upcasters: how events of earlier versions, as they lie in old journals, become what today's code reads.

An upcaster takes the JSON document of one event of its kind and version and returns that of the next version; it sets
no `v`, which is counted here. It is kept for ever, since a journal is. `docs/how-to/change-an-event.md` says how to
write one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

Document = dict[str, Any]
Upcaster = Callable[[Document], Document]

UPCASTERS: dict[tuple[str, int], Upcaster] = {}
"""By kind and the version it takes. No event has changed yet since the first version of each."""


class UpcastError(Exception):
    """The event cannot be brought to today's version: it is newer than this code, or was never written so."""


def version_of(kind: type[Any]) -> int:
    """Return the version that a kind of event has in this code, as its field `v` allows it."""
    hint = get_type_hints(kind, include_extras=True)["v"]
    return int(hint.__metadata__[0].ge)


def upcast(event: Document, versions: Mapping[str, int], upcasters: Mapping[tuple[str, int], Upcaster]) -> Document:
    """Return `event` in the version that `versions` gives for its kind; an unknown kind is returned as it is."""
    kind, version = event.get("kind"), event.get("v", 1)
    if not isinstance(kind, str) or type(version) is not int or (known := versions.get(kind)) is None:
        return event
    if version > known:
        raise UpcastError(f"{kind} v{version} is newer than this reader, which knows v{known}")
    while version < known:
        step = upcasters.get((kind, version))
        if step is None:
            raise UpcastError(f"{kind} v{version} cannot be read: no upcaster takes it")
        try:
            lifted = step(event)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise UpcastError(f"{kind} v{version} is not what its upcaster takes: {error!r}") from error
        version += 1
        event = {**lifted, "kind": kind, "v": version}
    return event
