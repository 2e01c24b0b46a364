"""A root: the record that makes layers a checkpoint. `roots/<step, 12 digits>-<attempt>-<start of its id>.json`.

The id is the SHA-256 of the canonical JSON (sorted keys, no spaces, ASCII) of everything but the id itself. There is no
"latest" that changes: whoever wants the newest looks at all of them. A job writes roots, so every field is checked.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any, Dict, Optional, Tuple

from tidegate import protocol
from tidegate.checkpoint import files, hashes
from tidegate.checkpoint.manifest import DIGEST, KINDS, NUMBER_MAX, canonical, is_number, is_text
from tidegate.errors import CorruptCheckpointError

ROOT_BYTES_MAX = 16 << 20
"""Longest root: JSON takes some twenty times its size in memory, and agents read what jobs wrote."""
FORMAT = 2
NAME = re.compile(r"[0-9]{12}-[0-9]{1,9}-[0-9a-z]{8}\Z")
SUFFIX = ".json"
TEXT_CHARS_MAX = 256
PACKS_MAX = 100_000

_NUMBERS = ("step", "attempt", "rank", "replica", "world_size")
_TEXTS = ("job", "component", "phase", "adopted", "frontier")
_OPTIONAL = ("phase", "adopted", "frontier")


@dataclass(frozen=True)
class LayerEntry:
    """One layer of a checkpoint: `manifest` says what it is, `packs` where its chunks were when it was written.

    `requires` maps another layer to the layout that this one was saved beside: an optimizer fits one shape of model.
    `parent` is the manifest of the same layer in the checkpoint before.
    """

    name: str
    kind: str
    manifest: str
    bytes: int
    packs: Tuple[str, ...] = ()
    layout: Optional[str] = None
    requires: Tuple[Tuple[str, str], ...] = ()
    parent: Optional[str] = None


@dataclass(frozen=True)
class Stamp:
    """What a root records besides its layers."""

    job: str
    attempt: int
    rank: int
    component: str
    replica: int
    world_size: int
    seed: int
    phase: Optional[str] = None
    adopted: Optional[str] = None
    """For a checkpoint taken over from a declared directory: the name it had there."""
    policy_version: Optional[int] = None
    frontier: Optional[str] = None
    """How far the data was consumed, in the job's own words."""
    metrics: Tuple[Tuple[str, float], ...] = ()
    """What the job measured of what it saved, by name: retention may keep the best."""


@dataclass(frozen=True)
class Root:
    """A committed checkpoint. `lost` names the layers that were to be saved and were not: their time was too short."""

    id: str
    step: int
    created_ns: int
    stamp: Stamp
    layers: Tuple[LayerEntry, ...]
    predecessor: Optional[str] = None
    lost: Tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return the name of its file, without the suffix: how events and the agent call it."""
        return f"{self.step:012d}-{self.stamp.attempt}-{self.id[:8]}"

    @property
    def bytes(self) -> int:
        """Return the size of all layers."""
        return sum(layer.bytes for layer in self.layers)

    @property
    def age_key(self) -> Tuple[int, int, int]:
        """Return what orders checkpoints of one job: a later attempt is newer, even at an earlier step."""
        return (self.stamp.attempt, self.step, self.created_ns)

    def layer(self, name: str) -> Optional[LayerEntry]:
        """Return the layer of that name, or None."""
        return next((layer for layer in self.layers if layer.name == name), None)


@dataclass(frozen=True)
class Draft:
    """A root without its id."""

    step: int
    created_ns: int
    stamp: Stamp
    layers: Tuple[LayerEntry, ...]
    predecessor: Optional[str] = None
    lost: Tuple[str, ...] = ()

    def finished(self) -> Root:
        """Return the root. Raises ValueError for layers that do not fit each other."""
        root = Root("", self.step, self.created_ns, self.stamp, self.layers, self.predecessor, self.lost)
        _check_layers(root.layers)
        fields = {key: value for key, value in vars(root).items() if key != "id"}
        return Root(hashes.sha256(canonical(_fields(root))), **fields)


def encode(root: Root) -> bytes:
    """Return the bytes of its file."""
    return canonical({**_fields(root), "id": root.id})


def _fields(root: Root) -> Dict[str, Any]:
    return {
        "format": FORMAT,
        "step": root.step,
        "created_ns": root.created_ns,
        "layers": [_layer_fields(layer) for layer in root.layers],
        "predecessor": root.predecessor,
        "lost": list(root.lost),
        **vars(root.stamp),
    }


def _layer_fields(layer: LayerEntry) -> Dict[str, Any]:
    return {**vars(layer), "packs": list(layer.packs), "requires": dict(layer.requires)}


def read(roots: int, name: str) -> Root:
    """Return a committed root by its name; CorruptCheckpointError when it is missing or not whole."""
    if not NAME.match(name):
        raise CorruptCheckpointError(f"{name[:80]!r} is no checkpoint's name")
    try:
        data = files.read_bounded(roots, name + SUFFIX, ROOT_BYTES_MAX)
    except OSError as error:
        raise CorruptCheckpointError(f"root {name} cannot be read: {error.strerror or error}") from error
    try:
        root = decode(data)
    except ValueError as error:
        raise CorruptCheckpointError(f"root {name} is malformed: {error}") from error
    if root.name != name:
        raise CorruptCheckpointError(f"root {name} holds {root.name}: it is not the file that was written so")
    return root


def decode(data: bytes) -> Root:
    """Return the root in `data`; ValueError when anything in it is not as written here, whatever the bytes are."""
    try:
        return _decode(data)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"it has another shape than a root: {error!r}") from error


def _decode(data: bytes) -> Root:
    fields = json.loads(data)
    if not isinstance(fields, dict):
        raise ValueError(f"a root is a JSON object, not a {type(fields).__name__}")
    claimed = fields.pop("id")
    if fields["format"] != FORMAT:
        raise ValueError(f"format {fields['format']!r} is not known; {FORMAT} is")
    if claimed != hashes.sha256(canonical(fields)):
        raise ValueError("its id is not the hash of its content")
    layers = tuple(_layer(entry) for entry in fields["layers"])
    _check_layers(layers)
    _check_digest(fields["predecessor"], "predecessor", optional=True)
    lost = tuple(fields["lost"])
    if not set(lost) <= set(protocol.LAYERS) - {layer.name for layer in layers}:
        raise ValueError("what it lost is not a layer that it lacks")
    return Root(claimed, fields["step"], fields["created_ns"], _stamp(fields), layers, fields["predecessor"], lost)


def _stamp(fields: Dict[str, Any]) -> Stamp:
    for name in _NUMBERS:
        if not is_number(fields[name], NUMBER_MAX):
            raise ValueError(f"{name} is not a whole number from 0 to {NUMBER_MAX}")
    # Times in nanoseconds and seeds take 64 bits.
    if not is_number(fields["created_ns"], 2**63 - 1) or type(fields["seed"]) is not int:
        raise ValueError("created_ns or seed is not a whole number")
    if fields["policy_version"] is not None and not is_number(fields["policy_version"], NUMBER_MAX):
        raise ValueError(f"policy_version is not a whole number from 0 to {NUMBER_MAX}")
    for name in _TEXTS:
        value = fields[name]
        if not (value is None and name in _OPTIONAL) and not is_text(value, TEXT_CHARS_MAX):
            raise ValueError(f"{name} is not a text of 1 to {TEXT_CHARS_MAX} printable characters")
    named = {**fields, "metrics": _metrics(fields.get("metrics", []))}
    return Stamp(**{name: named[name] for name in Stamp.__dataclass_fields__})


def _metrics(pairs: Any) -> Tuple[Tuple[str, float], ...]:
    found = tuple((name, value) for name, value in pairs)
    for name, value in found:
        if not is_text(name, TEXT_CHARS_MAX) or type(value) not in (int, float) or not math.isfinite(value):
            raise ValueError("a metric is not a name and a finite number")
    if len(found) > protocol.METRICS_MAX or len(dict(found)) != len(found):
        raise ValueError(f"it has a metric twice, or more than {protocol.METRICS_MAX}")
    return found


def _layer(fields: Dict[str, Any]) -> LayerEntry:
    if fields["name"] not in protocol.LAYERS or fields["kind"] not in KINDS:
        raise ValueError(f"layer {str(fields['name'])[:80]!r} of kind {str(fields['kind'])[:80]!r} is not known")
    _check_digest(fields["manifest"], "manifest")
    _check_digest(fields["layout"], "layout", optional=True)
    _check_digest(fields["parent"], "parent", optional=True)
    if not is_number(fields["bytes"], NUMBER_MAX):
        raise ValueError(f"layer {fields['name']} has no proper size")
    packs = tuple(fields["packs"])
    if len(packs) > PACKS_MAX:
        raise ValueError(f"layer {fields['name']} names more than {PACKS_MAX} packs")
    for pack in packs:
        _check_digest(pack, "pack")
    requires = tuple(sorted(fields["requires"].items()))
    for other, layout in requires:
        if other not in protocol.LAYERS:
            raise ValueError(f"layer {fields['name']} requires {other[:80]!r}, which is no layer")
        _check_digest(layout, "layout")
    named = {**fields, "packs": packs, "requires": requires}
    return LayerEntry(**{name: named[name] for name in LayerEntry.__dataclass_fields__})


def _check_digest(value: Any, what: str, *, optional: bool = False) -> None:
    if not (value is None and optional) and not (type(value) is str and DIGEST.match(value)):
        raise ValueError(f"{what} {str(value)[:80]!r} is no hash")


def _check_layers(layers: Tuple[LayerEntry, ...]) -> None:
    by_name = {layer.name: layer for layer in layers}
    if not layers or len(by_name) != len(layers):
        raise ValueError("a checkpoint has each of its layers once, and at least one")
    for layer in layers:
        for other, layout in layer.requires:
            held = by_name.get(other)
            if held is not None and held.layout != layout:
                raise ValueError(
                    f"layer {layer.name} belongs to another {other}: names, types or shapes of its tensors differ"
                )
