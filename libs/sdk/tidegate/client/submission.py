"""Make a specification ready to be sent: read it, pack its working directory, record where the code came from."""

from __future__ import annotations

import json
import re
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Union

from tidegate.client.errors import NotFound, PackingError, SpecError
from tidegate.client.flow import Call, Flow, ask_document, exchange
from tidegate.client.packing import Archive, pack
from tidegate.client.source import source_record, submitter

SpecLike = Union[Mapping[str, Any], str, Path]
OnUpload = Callable[[int, int], None]
"""Told (bytes sent, bytes in all) while a working directory is uploaded."""

SPEC_BYTES_MAX = 1024 * 1024
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Submission:
    """An accepted job; the same idempotency key gives the same answer again."""

    job_id: str
    trace_id: str
    tenant: str
    state: str


@dataclass
class Prepared:
    """A specification as it goes to the gateway, its key, and the packed directory that it names."""

    spec: Dict[str, Any]
    idempotency_key: str
    archive: Optional[Archive]

    def close(self) -> None:
        """Free the packed bytes."""
        if self.archive is not None:
            self.archive.close()


def prepare(
    spec: SpecLike,
    workdir: Union[str, Path, None] = None,
    idempotency_key: Optional[str] = None,
    overrides: Optional[Mapping[str, Any]] = None,
    argv: Optional[Sequence[str]] = None,
) -> Prepared:
    """Read `spec` (a mapping, or the path of a JSON file) and pack its working directory.

    `workdir` wins over the field of that name. A relative path in a file counts from the file's directory and may not
    leave it. `overrides` replace fields. A key is drawn where none is given, so that the client's own retries are safe.
    """
    base, confined = Path.cwd(), False
    if isinstance(spec, (str, Path)):
        path = Path(spec)
        spec, base, confined = _read(path), path.resolve().parent, True
    if workdir is not None:
        directory: Optional[Path] = Path(workdir).expanduser()
    else:
        directory = _named_directory(spec.get("workdir"), base, confined=confined)
    ready = {**spec, **(overrides or {})}
    key = idempotency_key or str(ready.get("idempotency_key") or "") or uuid.uuid4().hex
    ready.pop("idempotency_key", None)
    ready.setdefault("submitter", submitter())
    if "source" not in ready:
        secrets = ready.get("secrets")
        names = list(secrets) if isinstance(secrets, Mapping) else []
        ready["source"] = source_record(directory or base, sys.argv if argv is None else argv, names)
    archive = pack(directory) if directory is not None else None
    if archive is not None:
        ready["workdir"] = archive.digest
    return Prepared(ready, key, archive)


def submit(prepared: Prepared, on_upload: Optional[OnUpload] = None) -> Flow[Submission]:
    """Upload the working directory unless the gateway has it, then submit; every try bears the same key."""
    if prepared.archive is not None:
        yield from _upload(prepared.archive, on_upload)
    headers = {"Idempotency-Key": prepared.idempotency_key}
    answer = yield from ask_document(Call("POST", "/v1/jobs", content=prepared.spec, headers=headers))
    return Submission(*(str(answer[name]) for name in ("job_id", "trace_id", "tenant", "state")))


def dry_run(prepared: Prepared) -> Flow[Dict[str, Any]]:
    """Ask what would become of the job. Its working directory is packed, which finds what is wrong, but not sent."""
    spec = {name: value for name, value in prepared.spec.items() if prepared.archive is None or name != "workdir"}
    return (yield from ask_document(Call("POST", "/v1/jobs", params={"dry_run": "1"}, content=spec)))


def _upload(archive: Archive, on_upload: Optional[OnUpload]) -> Flow[None]:
    path = f"/v1/blobs/{archive.digest}"
    try:
        yield from exchange(Call("HEAD", path))
    except NotFound:

        def on_sent(sent: int) -> None:
            if on_upload is not None:
                on_upload(sent, archive.size_bytes)

        yield from exchange(Call("PUT", path, archive=archive, on_sent=on_sent))


def _read(path: Path) -> Dict[str, Any]:
    try:
        with path.open("rb") as file:
            text = file.read(SPEC_BYTES_MAX + 1)
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror}.", "Give the path of a job's JSON file.") from error
    if len(text) > SPEC_BYTES_MAX:
        raise SpecError(f"{path} is larger than {SPEC_BYTES_MAX:,} bytes.", "Put data into the working directory.")
    try:
        spec = json.loads(text)
    except ValueError as error:
        raise SpecError(f"{path} is not JSON: {error}.", "Accepted is one JSON object in UTF-8.") from error
    if not isinstance(spec, dict):
        raise SpecError(f"{path} holds a JSON {type(spec).__name__}.", "Accepted is one JSON object.")
    return spec


def _named_directory(named: Any, base: Path, *, confined: bool) -> Optional[Path]:
    """Return the local directory that a specification names, None where it names a blob or nothing."""
    if not isinstance(named, str) or not named or _DIGEST.fullmatch(named):
        # A value of another type goes to the gateway as it is, which says what would be accepted.
        return None
    path = Path(named).expanduser()
    if path.is_absolute():
        return path
    directory = base / path
    if confined and base.resolve() not in (directory.resolve(), *directory.resolve().parents):
        message = f"`workdir` is {named!r}, which leaves the directory of the specification ({base})."
        raise PackingError(message, "Name the directory outright: an absolute path, or `--workdir` (`workdir=`).")
    return directory
