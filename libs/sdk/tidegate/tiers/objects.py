"""An object store as the tiers use it: whole objects under names, created, read in ranges, listed, moved, removed.

Every call is bounded and tried again a few times. What an answer says is believed as little as the network it came
through: lengths are compared here, hashes by whoever knows them. A directory is an object store like any other, with
everything that is written made durable.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any, BinaryIO, Callable, Iterator, List, NamedTuple, Optional, TypeVar

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import LocalStore, S3Store

from tidegate.checkpoint import files
from tidegate.errors import CheckpointError, CorruptCheckpointError
from tidegate.tiers import partial
from tidegate.tiers.bandwidth import Bandwidth

TRIES_MAX = 4
"""How often a call is tried whose answer was an error, or of another length than it should have."""
RANGE_BYTES = 8 << 20
"""A large object is read in ranges: what arrived is not asked for again when the next one fails."""
PART_BYTES = 8 << 20
UPLOADS_MAX = 4
REQUEST_SECONDS_MAX = 30
RETRY_SECONDS_MAX = 60
LIST_BATCH = 1000

Answer = TypeVar("Answer")


class TierUnavailableError(CheckpointError):
    """A tier did not answer, or refused: nothing is known of what lies in it. The same may work later."""


class Stored(NamedTuple):
    """An object's name, relative to the tier, and its size."""

    name: str
    size_bytes: int


class Objects:
    """The objects below one address, through one bandwidth."""

    def __init__(self, store: Any, address: str, bandwidth: Optional[Bandwidth] = None) -> None:
        self._store = store
        self.address = address
        self.bandwidth = bandwidth or Bandwidth()
        self._directory = Path(address) if isinstance(store, LocalStore) else None

    def _trying(self, what: str, call: Callable[[], Answer]) -> Answer:
        """Return what `call` returns, tried again after an error of the store or the network."""
        for left in reversed(range(TRIES_MAX)):
            try:
                return call()
            except (FileNotFoundError, AlreadyExistsError):
                raise
            except (BaseError, OSError, _ShortError) as error:
                if left == 0:
                    why = _first_line(error)
                    raise TierUnavailableError(f"{self.address}: {what} failed {TRIES_MAX} times: {why}") from error
        raise AssertionError("the last try returns or raises")

    def create(self, name: str, data: bytes) -> bool:
        """Create an object where nothing has its name; say whether the name was free.

        Returns True only when the very same bytes were read back: so a create whose answer was lost, or was a lie, is
        told from one that happened. False means that something else has the name.
        """

        def once() -> bool:
            lost: Optional[BaseException] = None
            try:
                self._written(name, lambda: obstore.put(self._store, name, data, mode="create"))
            except (BaseError, OSError) as error:
                lost = error  # it may have happened all the same: what is there now says so
            try:
                return self._read_once(name, len(data)) == data
            except FileNotFoundError as error:
                raise _ShortError(_first_line(lost) if lost else "it was said to be there, and is not") from error
            except CorruptCheckpointError:
                return False  # longer than what was to be created, so something else

        self.bandwidth.take(len(data))
        return self._trying(f"creating {name}", once)

    def put(self, name: str, data: bytes) -> None:
        """Write a small object, over one of that name."""
        self.bandwidth.take(len(data))
        self._trying(f"writing {name}", lambda: self._written(name, lambda: obstore.put(self._store, name, data)))

    def upload(self, name: str, file: BinaryIO) -> None:
        """Write a large object in parts, over one of that name; it is there as a whole or not at all.

        In a directory what an earlier process wrote of it counts: see partial.py. In an object store a multipart
        upload is of no use to anybody but who began it (obstore tells nobody its id), and begins anew.
        """

        def blocks() -> Iterator[bytes]:
            file.seek(0)
            for block in files.blocks(file):
                self.bandwidth.take(len(block))
                yield block

        def once() -> None:
            if self._directory is None or not partial.write(self._directory, name, file, self.bandwidth.take):
                obstore.put(self._store, name, blocks(), chunk_size=PART_BYTES, max_concurrency=UPLOADS_MAX)

        self._trying(f"sending {name}", lambda: self._written(name, once))

    def forget_partial(self, job: str, before_seconds: int) -> int:
        """Remove what was begun of large objects of a job, `<tenant>/<job>`, and left alone since; return the bytes."""
        return 0 if self._directory is None else partial.forget(self._directory, job, before_seconds)

    def _written(self, name: str, write: Callable[[], Any]) -> None:
        write()
        if self._directory is not None:
            path = self._directory / name
            with path.open("rb") as file:
                os.fsync(file.fileno())
            for parent in path.relative_to(self._directory).parents:
                files.sync_directory(self._directory / parent)

    def size_of(self, name: str) -> Optional[int]:
        """Return an object's size; None where there is none of that name."""
        try:
            return int(self._trying(f"looking at {name}", lambda: obstore.head(self._store, name))["size"])
        except FileNotFoundError:
            return None

    def read(self, name: str, bytes_max: int) -> bytes:
        """Return a whole object. Raises FileNotFoundError, and CorruptCheckpointError where it is longer."""
        data = self._trying(f"reading {name}", lambda: self._read_once(name, bytes_max))
        self.bandwidth.take(len(data))
        return data

    def _read_once(self, name: str, bytes_max: int) -> bytes:
        result = obstore.get(self._store, name)
        size = int(result.meta["size"])
        if size > bytes_max:
            raise CorruptCheckpointError(f"{name} has {size} bytes; at most {bytes_max} are read")
        data = bytes(result.bytes())
        if len(data) != size:
            raise _ShortError(f"{len(data)} of {size} bytes arrived")
        return data

    def read_range(self, name: str, start: int, length: int) -> bytes:
        """Return `length` bytes of an object from `start` on. Raises FileNotFoundError."""

        def once() -> bytes:
            data = bytes(obstore.get_range(self._store, name, start=start, length=length))
            if len(data) != length:
                raise _ShortError(f"{len(data)} of {length} bytes arrived")
            return data

        self.bandwidth.take(length)
        return self._trying(f"reading {name} at {start}", once)

    def download(self, name: str, descriptor: int, bytes_max: int, on_read: Callable[[int], None]) -> None:
        """Write an object into an open file. Raises FileNotFoundError, CorruptCheckpointError where it is longer."""
        size = self.size_of(name)
        if size is None:
            raise FileNotFoundError(f"{self.address} has no {name}")
        if size > bytes_max:
            raise CorruptCheckpointError(f"{name} has {size} bytes; at most {bytes_max} are read")
        for start in range(0, size, RANGE_BYTES):
            data = self.read_range(name, start, min(RANGE_BYTES, size - start))
            files.write_all(descriptor, memoryview(data))
            on_read(len(data))

    def names(self, prefix: str) -> List[Stored]:
        """Return the objects whose names begin with the path `prefix`."""

        def once() -> List[Stored]:
            found = []
            for batch in obstore.list(self._store, prefix, chunk_size=LIST_BATCH):
                found += [Stored(each["path"], each["size"]) for each in batch]
            return found

        return sorted(self._trying(f"listing {prefix or 'everything'}", once))

    def below(self, prefix: Optional[str]) -> List[str]:
        """Return the names of what lies right below a path, as a directory would list its directories."""
        listed = self._trying(f"listing {prefix}", lambda: obstore.list_with_delimiter(self._store, prefix))
        return sorted(each.rpartition("/")[2] for each in listed["common_prefixes"])

    def move(self, name: str, to: str) -> None:
        """Give an object another name. Raises FileNotFoundError where it is gone.

        The old name goes only once the new one was seen: a copy that was said to be made need not be there.
        """
        size = self.size_of(name)
        if size is None:
            raise FileNotFoundError(f"{self.address} has no {name}")

        def once() -> None:
            self._written(to, lambda: obstore.copy(self._store, name, to))
            if self.size_of(to) != size:
                raise _ShortError(f"{to} is not there as it should be")

        self._trying(f"moving {name}", once)
        self.remove(name)

    def remove(self, name: str) -> None:
        """Remove an object; that it is gone already is as good."""
        try:
            self._trying(f"removing {name}", lambda: obstore.delete(self._store, name))
        except FileNotFoundError:
            return


class _ShortError(Exception):
    """Fewer bytes arrived than were announced."""


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


def opened(address: str, bandwidth: Optional[Bandwidth] = None, *, make: bool = True) -> Objects:
    """Open a tier: a directory (absolute), or s3://BUCKET[/PREFIX] with AWS_* variables for endpoint and credentials.

    Raises ValueError for another address, TierUnavailableError where a directory is not there and not to be made.
    """
    if address.startswith("s3://"):
        return Objects(s3(address), address, bandwidth)
    path = Path(address)
    if not path.is_absolute():
        raise ValueError(f"tier {address!r} was refused: an absolute directory or s3://BUCKET[/PREFIX] is accepted")
    if not make and not path.is_dir():
        raise TierUnavailableError(f"there is no {path}: the tier is not mounted here")
    # Whose checkpoints lie there is no job's business: sandboxed processes may run as users of the same machine.
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return Objects(LocalStore(path, automatic_cleanup=True), address, bandwidth)


def s3(address: str, request_seconds_max: float = REQUEST_SECONDS_MAX, **settings: Any) -> S3Store:
    """Return the store of an s3:// address; `settings` are obstore's own, over those in AWS_* variables."""
    settings.setdefault("client_options", {"timeout": timedelta(seconds=request_seconds_max), "allow_http": True})
    settings.setdefault(
        "retry_config", {"max_retries": TRIES_MAX, "retry_timeout": timedelta(seconds=RETRY_SECONDS_MAX)}
    )
    # The store compares what arrives with a hash that goes along: bytes that a network changed are refused by it.
    return S3Store.from_url(address, checksum_algorithm="SHA256", conditional_put="etag", **settings)
