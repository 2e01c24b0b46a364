"""What the calls of a job accept: each check returns the value as it is sent, or says what would be accepted."""

from __future__ import annotations

import json
import operator
from typing import Any, Dict, Mapping, Optional

from tidegate import protocol
from tidegate.errors import (
    InvalidNameError,
    InvalidPayloadError,
    InvalidReportError,
    ReservedKindError,
    UnknownLayerError,
    UsageError,
)

STEP_MAX = 999_999_999_999
TIMEOUT_SECONDS_MAX = 1_000_000
_PROGRESS_SLACK = 1e-6


def metrics(values: Mapping[str, Any]) -> Dict[str, float]:
    """Return the metrics as plain floats."""
    if not isinstance(values, Mapping):
        raise InvalidReportError(
            f"a report of a {type(values).__name__} was refused: a dict from metric names to numbers is accepted"
        )
    checked = {}
    for name, value in values.items():
        _check_metric_name(name)
        kind = type(value)
        checked[name] = value if kind is float else _metric(name, value)
    if len(checked) > protocol.METRICS_MAX:
        raise InvalidReportError(f"a report of {len(checked)} metrics was refused: {protocol.METRICS_MAX} are accepted")
    return checked


def _check_metric_name(name: Any) -> None:
    if not isinstance(name, str) or not protocol.METRIC_NAME.match(name):
        raise InvalidNameError(
            f"metric {name!r} was refused: a name starts with a letter and has up to {protocol.NAME_CHARS_MAX} "
            "letters, digits and any of _ . / : -"
        )


def _metric(name: str, value: Any) -> float:
    """Return a number of another type as a float: int, bool, a numpy scalar, a tensor of one element."""
    try:
        return float(value.item() if hasattr(value, "item") else operator.index(value))
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        if isinstance(value, float):
            return float(value)
        raise InvalidReportError(
            f"metric {name!r} was refused: {type(value).__name__} is not one number; pass a float, int, numpy scalar "
            "or a tensor with one element"
        ) from error


def progress(value: Any) -> Optional[float]:
    """Return progress as a fraction from 0 to 1, or None."""
    if value is None:
        return None
    try:
        fraction = float(value)
    except (TypeError, ValueError) as error:
        raise InvalidReportError(f"progress {value!r} was refused: a fraction from 0 to 1 is accepted") from error
    if not -_PROGRESS_SLACK <= fraction <= 1 + _PROGRESS_SLACK:
        raise InvalidReportError(f"progress {fraction} was refused: a fraction from 0 to 1 is accepted (step / total)")
    return min(1.0, max(0.0, fraction))


def step(value: Any) -> int:
    """Return a step as an int from 0 to STEP_MAX."""
    if type(value) is int and 0 <= value <= STEP_MAX:
        return value
    try:
        number = operator.index(value)
    except TypeError as error:
        raise UsageError(f"step {value!r} was refused: a whole number is accepted") from error
    if not 0 <= number <= STEP_MAX:
        raise UsageError(f"step {number} was refused: 0 to {STEP_MAX} are accepted")
    return number


def phase(name: Any) -> str:
    """Return a phase's name."""
    if not isinstance(name, str) or not protocol.PHASE_NAME.match(name):
        raise InvalidNameError(
            f"phase {name!r} was refused: a lower-case name of up to 32 letters, digits, _ and - is accepted"
        )
    return name


def timeout(seconds: Any) -> Optional[float]:
    """Return how long to wait, None for as long as it takes."""
    if seconds is None:
        return None
    try:
        limit = float(seconds)
    except (TypeError, ValueError) as error:
        raise UsageError(f"timeout {seconds!r} was refused: seconds are accepted, or None to wait on") from error
    if isinstance(seconds, (bool, str)) or not 0.0 < limit <= TIMEOUT_SECONDS_MAX:
        raise UsageError(
            f"timeout {seconds!r} was refused: more than 0 and up to {TIMEOUT_SECONDS_MAX} seconds are accepted, or "
            "None to wait on"
        )
    return limit


def event_kind(kind: Any) -> str:
    """Return the kind of a user's event."""
    if not isinstance(kind, str) or not protocol.EVENT_KIND.match(kind):
        raise InvalidNameError(
            f"event kind {kind!r} was refused: a name like CurriculumAdvanced is accepted, up to "
            f"{protocol.NAME_CHARS_MAX} letters and digits"
        )
    if kind in protocol.RESERVED_EVENT_KINDS or kind.startswith("Tidegate"):
        raise ReservedKindError(f"event kind {kind!r} was refused: it is one of Tidegate's own; choose another")
    return kind


def payload(values: Dict[str, Any]) -> Dict[str, Any]:
    """Return the payload of a user's event: JSON data within protocol.PAYLOAD_BYTES_MAX."""
    if not protocol.within_depth(values):
        raise InvalidPayloadError(
            f"a payload nested more than {protocol.PAYLOAD_DEPTH_MAX} deep was refused: make it flatter"
        )
    _json("a payload", values, protocol.PAYLOAD_BYTES_MAX)
    return values


def result(values: Optional[Mapping[str, Any]]) -> Dict[str, Any]:
    """Return a job's result: names to str, int, float, bool or None, within protocol.RESULT_BYTES_MAX."""
    checked: Dict[str, Any] = {}
    for name, value in (values or {}).items():
        if not isinstance(name, str):
            raise InvalidPayloadError(f"a result's key {name!r} was refused: keys are strings")
        plain = value.item() if hasattr(value, "item") else value
        if plain is not None and not isinstance(plain, (str, int, float, bool)):
            raise InvalidPayloadError(
                f"result {name!r} was refused: {type(value).__name__} is not a string, number, bool or None; "
                "write larger things to an output path or a checkpoint"
            )
        checked[name] = plain
    _json("a result", checked, protocol.RESULT_BYTES_MAX)
    return checked


def _json(what: str, values: Any, bytes_max: int) -> None:
    try:
        size = len(json.dumps(values, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidPayloadError(f"{what} was refused: it is not JSON data ({error})") from error
    if size > bytes_max:
        raise InvalidPayloadError(f"{what} of {size} bytes was refused: {bytes_max} are accepted")


def layers(given: Dict[str, Any], unknown: Dict[str, Any]) -> Dict[str, Any]:
    """Return the layers to save, in their order; those that are None were not given."""
    if unknown:
        raise UnknownLayerError(
            f"layer {sorted(unknown)[0]!r} was refused: a checkpoint has the layers {', '.join(protocol.LAYERS)}; "
            "other data belongs into state={...}"
        )
    chosen = {name: given[name] for name in protocol.LAYERS if given[name] is not None}
    if not chosen:
        raise UsageError(f"a save without a layer was refused: give at least one of {', '.join(protocol.LAYERS)}")
    return chosen
