"""The checkpoints of one job in an object tier: `<tenant>/<job>/{packs,manifests,roots}/...`, as on a node's disk.

Beside them: `pins/<root>.json`, see retaining.py, `leases/<id>.json` and `quarantine/<second>/...`, see collecting.py,
`repacked/<pack>.json`, see repacking.py.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Optional, Sequence, Set, Tuple

from tidegate.checkpoint import files, hashes, pack
from tidegate.checkpoint import manifest as manifests
from tidegate.checkpoint import root as roots
from tidegate.checkpoint.manifest import Manifest
from tidegate.checkpoint.pack import Index, Pack
from tidegate.checkpoint.places import MANIFESTS, PACKS, ROOTS
from tidegate.checkpoint.root import LayerEntry, Root
from tidegate.errors import CheckpointError, CorruptCheckpointError
from tidegate.tiers.holding import OnMoved
from tidegate.tiers.objects import Objects, TierUnavailableError

LEASES, PINS, QUARANTINE, REPACKED = "leases", "pins", "quarantine", "repacked"
LEASE_SECONDS = 6 * 3600
"""How long a move may take. One that takes longer looks again at its end whether all is there."""
PART_BYTES_MAX = 64 << 20
SENDS_MAX = 2
"""How often a pack is sent that did not come back as it was sent."""


class JobTier:
    """One job's checkpoints in one tier."""

    def __init__(self, name: str, objects: Objects, tenant: str, job: str) -> None:
        self.name = name
        self.objects = objects
        self.tenant = tenant
        self.job = job
        self.prefix = f"{tenant}/{job}"

    def path(self, *parts: str) -> str:
        """Return the name of an object of this job."""
        return "/".join((self.prefix, *parts))

    def listed(self, kind: str, suffix: str) -> Dict[str, int]:
        """Return the objects of one kind by their names without prefix and suffix, and their sizes."""
        start = len(self.path(kind)) + 1
        return {
            each.name[start : -len(suffix)]: each.size_bytes
            for each in self.objects.names(self.path(kind))
            if each.name.endswith(suffix)
        }

    def roots(self) -> List[str]:
        """Return the names of the roots."""
        return [name for name in self.listed(ROOTS, roots.SUFFIX) if roots.NAME.match(name)]

    def root(self, name: str) -> Root:
        """Return a root, proven to be the one of that name."""
        data = self._read(ROOTS, name + roots.SUFFIX, roots.ROOT_BYTES_MAX, f"root {name}")
        try:
            root = roots.decode(data)
        except ValueError as error:
            raise CorruptCheckpointError(f"root {name} in {self.name} is malformed: {error}") from error
        if root.name != name:
            raise CorruptCheckpointError(f"root {name} in {self.name} holds {root.name}")
        return root

    def manifest(self, manifest_id: str) -> Manifest:
        """Return a manifest, its hash compared."""
        what = f"manifest {manifest_id[:12]}"
        data = self._read(MANIFESTS, manifest_id + manifests.SUFFIX, manifests.MANIFEST_BYTES_MAX, what)
        if hashes.sha256(data) != manifest_id:
            raise CorruptCheckpointError(f"{what} in {self.name} is damaged: its SHA-256 is another")
        try:
            return manifests.decode(data)
        except ValueError as error:
            raise CorruptCheckpointError(f"{what} in {self.name} is malformed: {error}") from error

    def _read(self, kind: str, name: str, bytes_max: int, what: str) -> bytes:
        try:
            return self.objects.read(self.path(kind, name), bytes_max)
        except FileNotFoundError as error:
            raise CorruptCheckpointError(f"{what} is not in {self.name}") from error

    def packs(self) -> Set[str]:
        """Return the ids of the packs."""
        return {name for name in self.listed(PACKS, pack.SUFFIX) if pack.NAME.match(name + pack.SUFFIX)}

    def replaced(self) -> Set[str]:
        """Return the ids of packs that were written again, into others: see repacking.py."""
        return set(self.listed(REPACKED, roots.SUFFIX))

    def is_busy(self) -> bool:
        """Say whether something is being brought here."""
        return bool(self.objects.names(self.path(LEASES)))

    def known(self) -> List[Root]:
        """Return all roots. Raises CorruptCheckpointError where one cannot be read."""
        return [self.root(name) for name in self.roots()]

    def record(self, pack_id: str, offset: int, length: int) -> bytes:
        """Return bytes of a pack."""
        try:
            return self.objects.read_range(self.path(PACKS, pack_id + pack.SUFFIX), offset, length)
        except FileNotFoundError as error:
            raise CorruptCheckpointError(f"pack {pack_id[:12]} is not in {self.name}") from error

    def note_repacked(self, pack_id: str) -> None:
        """Say that every chunk of a pack that lives is in another one too."""
        self.objects.put(self.path(REPACKED, pack_id + roots.SUFFIX), b"{}")

    def forget_repacked(self, pack_id: str) -> None:
        """Undo `note_repacked`: no root names that pack any more."""
        self.objects.remove(self.path(REPACKED, pack_id + roots.SUFFIX))

    def index(self) -> Index:
        """Return the index over all packs, read without the records."""
        index = Index()
        for pack_id, size in self.listed(PACKS, pack.SUFFIX).items():
            try:
                index.add(self._pack(pack_id, size))
            except (CorruptCheckpointError, FileNotFoundError):
                continue  # scrub names it; what needs it is refused for the chunks that it lacks
        return index

    def _pack(self, pack_id: str, size: int) -> Pack:
        name = pack_id + pack.SUFFIX
        return pack.read_index_by(
            lambda at, length: self.objects.read_range(self.path(PACKS, name), at, length), size, name
        )

    def fill(self, pack_id: str, descriptor: int, on_moved: OnMoved) -> None:
        """Write the bytes of a pack into an open file."""
        name = self.path(PACKS, pack_id + pack.SUFFIX)
        try:
            self.objects.download(name, descriptor, 2 * pack.PACK_BYTES_MAX, on_moved)
        except FileNotFoundError as error:
            raise CorruptCheckpointError(f"pack {pack_id[:12]} is not in {self.name}") from error

    def put_pack(self, pack_id: str, temporary: files.Temporary) -> None:
        """Send a pack, and read back that it arrived: only what was compared there may be named by a root."""
        name = self.path(PACKS, pack_id + pack.SUFFIX)
        why: Optional[CheckpointError] = None
        for _ in range(SENDS_MAX):
            with os.fdopen(os.dup(temporary.descriptor), "rb", buffering=0) as file:
                self.objects.upload(name, file)
                why = self._differs(name, file)
            if why is None:
                return
        raise TierUnavailableError(f"{self.name} did not keep pack {pack_id[:12]}, sent {SENDS_MAX} times: {why}")

    def _differs(self, name: str, file: Any) -> Optional[CheckpointError]:
        size = os.fstat(file.fileno()).st_size
        found = self.objects.size_of(name)
        if found != size:
            return CorruptCheckpointError(f"{size} bytes were sent, {found} are there")
        for start in range(0, size, pack.CHUNK_BYTES):
            length = min(pack.CHUNK_BYTES, size - start)
            if self.objects.read_range(name, start, length) != os.pread(file.fileno(), length, start):
                return CorruptCheckpointError(f"its bytes at offset {start} are others")
        return None

    def put_manifests(self, given: Sequence[Manifest]) -> None:
        """Write manifests; one that is there as it should be is not written again."""
        for each in given:
            manifest_id, data = manifests.encode(each)
            name = self.path(MANIFESTS, manifest_id + manifests.SUFFIX)
            if not self.objects.create(name, data):
                self.objects.put(name, data)  # a damaged one
                if self.objects.read(name, len(data)) != data:
                    raise TierUnavailableError(f"{self.name} did not keep manifest {manifest_id[:12]}")

    def create_root(self, root: Root) -> None:
        """Create a root. Raises CheckpointError where another checkpoint has its name."""
        if not self.objects.create(self.path(ROOTS, root.name + roots.SUFFIX), roots.encode(root)):
            raise CheckpointError(
                f"{self.name} has something else under {root.name}: a checkpoint is never overwritten"
            )

    def has_manifest(self, manifest_id: str) -> bool:
        """Say whether a manifest is there."""
        return self.objects.size_of(self.path(MANIFESTS, manifest_id + manifests.SUFFIX)) is not None

    @contextmanager
    def leased(self, layers: Sequence[LayerEntry], packs: Sequence[str]) -> Iterator[None]:
        """Say in the tier what is being brought there; a lease whose holder died counts for LEASE_SECONDS."""
        manifest_ids = [layer.manifest for layer in layers]
        document = {"expires": int(time.time()) + LEASE_SECONDS, "manifests": manifest_ids, "packs": list(packs)}
        name = self.path(LEASES, os.urandom(8).hex() + roots.SUFFIX)
        self.objects.put(name, manifests.canonical(document))
        try:
            yield
        finally:
            self.objects.remove(name)

    def keep_part(self, part: Root, manifest_ids: Sequence[str], packs: Sequence[str], seconds: int) -> None:
        """Keep one node's part of a checkpoint until it is joined with the others, as a lease that says what it is."""
        document = {"expires": int(time.time()) + seconds, "manifests": list(manifest_ids), "packs": list(packs)}
        data = manifests.canonical({**document, "part": json.loads(roots.encode(part))})
        self.objects.put(self._part(part.name), data)

    def part(self, name: str) -> Root:
        """Return a part that is kept here. Raises CorruptCheckpointError where it is not there whole."""
        try:
            document = json.loads(self.objects.read(self._part(name), PART_BYTES_MAX))
            part = roots.decode(manifests.canonical(document["part"]))
        except FileNotFoundError as error:
            raise CorruptCheckpointError(f"part {name} is not in {self.name}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptCheckpointError(f"part {name} in {self.name} is malformed: {error!r}") from error
        if part.name != name:
            raise CorruptCheckpointError(f"part {name} in {self.name} holds {part.name}")
        return part

    def forget_part(self, name: str) -> None:
        """Keep a part no longer: a root names what is in it, or nothing will."""
        self.objects.remove(self._part(name))

    def _part(self, name: str) -> str:
        return self.path(LEASES, f"part-{name}{roots.SUFFIX}")

    def remove_root(self, name: str) -> None:
        """Remove a checkpoint's name; what only it needed is collected later."""
        self.objects.remove(self.path(ROOTS, name + roots.SUFFIX))


def jobs_of(objects: Objects) -> List[Tuple[str, str]]:
    """Return (tenant, job) of all that a tier holds."""
    return [(tenant, job) for tenant in objects.below(None) for job in objects.below(tenant)]
