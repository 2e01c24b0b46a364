"""What a job can write in its store is refused, however it looks, and nothing is read for ever."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from tidegate import CorruptCheckpointError, UnsupportedObjectError
from tidegate.checkpoint import files, places
from tidegate.checkpoint import manifest as manifests
from tidegate.checkpoint import root as roots
from tidegate.checkpoint.directory import DirectorySave
from tidegate.checkpoint.handle import Checkpoint
from tidegate.checkpoint.store import CheckpointStore, Committed

from tests.support import stores
from tests.support.stores import STAMP, save


def test_a_root_of_a_job_is_not_trusted(store: CheckpointStore) -> None:
    document = json.loads(stores.root_path(save(store.directory, 3)).read_text())
    for field in ("manifest", "layout", "parent"):
        layer = {**document["layers"][0], field: "../../secret"}
        with pytest.raises(ValueError, match="is no hash"):
            roots.decode(forged({**document, "layers": [layer]}))
    with pytest.raises(ValueError, match="is no hash"):
        roots.decode(forged({**document, "layers": [{**document["layers"][0], "packs": ["../x"]}]}))


def forged(document: dict[str, Any]) -> bytes:
    """Return a root with a proper id over whatever it says."""
    fields = {key: value for key, value in document.items() if key != "id"}
    return json.dumps({**fields, "id": hashlib.sha256(manifests.canonical(fields)).hexdigest()}).encode()


@pytest.mark.parametrize(
    "data", [b"[]", b"null", b"7", b'"id"', b"[[]]", b'{"id": 1}', b"\xff", b"[" * 100_000, b'{"id": {}, "format": 2}']
)
def test_a_root_that_is_any_json_is_corrupt_and_nothing_else(store: CheckpointStore, data: bytes) -> None:
    done = save(store.directory, 3)
    stores.root_path(done).chmod(0o644)
    stores.root_path(done).write_bytes(data)
    with places.opened(store.directory) as held, pytest.raises(CorruptCheckpointError, match="malformed"):
        roots.read(held.roots, done.name)
    assert store.committed() == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("step", True),
        ("rank", -1),
        ("replica", 10**30),
        ("created_ns", 2**63),
        ("seed", "1"),
        ("job", "a\udcff"),
        ("job", ["j"]),
        ("phase", ""),
        ("phase", {}),
        ("component", "x" * 300),
        ("adopted", ""),
        ("adopted", "a\0b"),
        ("adopted", 7),
        ("layers", [7]),
        ("layers", {"model": 1}),
    ],
)
def test_no_field_of_a_root_can_be_what_an_event_or_a_file_name_cannot(
    store: CheckpointStore, field: str, value: Any
) -> None:
    document = json.loads(stores.root_path(save(store.directory, 3)).read_text())
    with pytest.raises(ValueError, match=r"is not a (whole number|text)|another shape"):
        roots.decode(forged({**document, field: value}))


@pytest.mark.parametrize(
    "path",
    ["a\0b", "\udc80", "b//a", "b/./a", "../a", "/a", "", "x/" * 70 + "y", "x" * 1100, 7],
)
def test_no_file_of_a_manifest_can_have_a_path_that_cannot_be_opened(store: CheckpointStore, path: Any) -> None:
    document = manifest_of(stores.save_tree(store.directory, 3, {"model/a": b"w"}))
    document["blobs"][0]["path"] = path
    with pytest.raises(ValueError, match="not accepted"):
        manifests.decode(json.dumps(document).encode())


def manifest_of(committed: Committed) -> Any:
    return json.loads(stores.manifest_path(committed, "model").read_text())


@pytest.mark.parametrize("size", [2**60, 1.0, True, 2])
def test_no_blob_of_a_manifest_has_another_size_than_its_bytes(store: CheckpointStore, size: Any) -> None:
    document = manifest_of(stores.save_tree(store.directory, 3, {"model/a": b"w"}))
    document["blobs"][0]["bytes"] = size
    with pytest.raises(ValueError, match="size"):
        manifests.decode(json.dumps(document).encode())


@pytest.mark.parametrize("data", [b"", b"[]", b"7", b"{}", b"\xff", b"[" * 100_000, b'{"format":2,"kind":"values"}'])
def test_a_manifest_that_is_any_json_is_malformed_and_nothing_else(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - whatever it says, nothing else is raised
        manifests.decode(data)


class Growing:
    """A file that somebody appends to for as long as it is read."""

    def __init__(self) -> None:
        self.given = 0

    def read(self, size: int) -> bytes:
        self.given += size
        assert self.given < 100 << 20, "read without a bound"
        return b"x" * size


def test_a_file_that_grows_is_not_read_for_ever() -> None:
    growing = Growing()
    assert sum(len(block) for block in files.blocks(growing, 5_000_001)) == 5_000_001  # type: ignore[arg-type]
    assert growing.given == 5_000_001


def test_a_directory_without_files_is_no_part_of_a_checkpoint(store: CheckpointStore) -> None:
    with DirectorySave(store) as saving:
        (saving.path / "model" / "empty" / "deep").mkdir(parents=True)
        (saving.path / "model" / "a").write_bytes(b"w")
        done = saving.commit(3, STAMP)
    assert done is not None
    with Checkpoint(done.committed).as_directory() as found:
        assert os.listdir(found / "model") == ["a"]


def test_file_names_that_cannot_be_told_are_refused_when_saved(store: CheckpointStore) -> None:
    with DirectorySave(store) as saving:
        Path(os.fsdecode(os.fsencode(saving.path / "model") + b"/\xff")).write_bytes(b"w")
        with pytest.raises(UnsupportedObjectError, match="printable"):
            saving.commit(3, STAMP)


# The thread that writes --------------------------------------------------------------------------------------------
