"""Images by digest, workdirs from a gateway, secrets by reference, logs in pieces, checkpoints nobody told of."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import os
import sys
import tarfile
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from tidegate.checkpoint import root as roots
from tidegate_events.frame import MAX_FRAME_BYTES
from tidegate_events.orders import GangPlace, SandboxOrder
from tidegate_events.resources import GpuDevice, Resources
from tidegate_events.spec import Component, ResourceRange
from tidegate_executor import (
    admission,
    archives,
    checkpoints,
    environment,
    images,
    log_queries,
    retention,
    sdk_copy,
    secret_store,
    settings,
    trees,
    workdirs,
)
from tidegate_executor.attempts import facts, transitions
from tidegate_executor.attempts.state import AttemptState, Replica
from tidegate_executor.capacity import NodeCapacity, gpu_devices, processor
from tidegate_executor.images import Image
from tidegate_executor.sandbox import logs
from tidegate_executor.sandbox.shim.output import LogFile
from tidegate_executor.secret_store import SecretError
from tidegate_executor.workdirs import WorkdirError, Workdirs

from tests.executor.agent.conftest import component, job
from tests.support import stores

# ---- images ----


def measured(tree: Path, cache: Path) -> str:
    hashes = trees.HashCache(cache)
    hashes.load()
    layers = [(str(tree), "/usr")]
    used: dict[trees.Key, str] = {}
    digest = trees.digest(layers, hashes, used)
    hashes.store(layers, used)
    # Whatever changes the digest changes the fingerprint, by which a digest is known again.
    measured.by_fingerprint.setdefault(trees.fingerprint(layers), digest)  # type: ignore[attr-defined]
    assert measured.by_fingerprint[trees.fingerprint(layers)] == digest  # type: ignore[attr-defined]
    return digest


measured.by_fingerprint = {}  # type: ignore[attr-defined]


def test_a_digest_changes_with_what_matters_and_with_nothing_else(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "bin").mkdir(parents=True)
    (tree / "bin" / "tool").write_text("one")
    (tree / "link").symlink_to("bin/tool")
    seen = [measured(tree, tmp_path / "cache")]

    os.utime(tree / "bin" / "tool", ns=(1, 1))
    (tree / "bin" / "__pycache__").mkdir()
    (tree / "bin" / "__pycache__" / "x.pyc").write_text("derived")
    assert measured(tree, tmp_path / "cache") == seen[0]

    def changed() -> None:
        seen.append(measured(tree, tmp_path / "cache"))

    (tree / "bin" / "tool").write_text("two")
    changed()
    (tree / "bin" / "tool").chmod(0o755)
    changed()
    (tree / "bin" / "tool").rename(tree / "bin" / "other")
    changed()
    (tree / "link").unlink()
    (tree / "link").symlink_to("bin/other")
    changed()
    (tree / "bin" / "empty").mkdir()
    changed()
    assert len(set(seen)) == len(seen)
    assert all(digest.startswith("b3:") for digest in seen)


def test_a_second_measurement_reads_no_file_that_did_not_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    for number in range(5):
        (tree / f"f{number}").write_text(str(number))
    first = measured(tree, tmp_path / "cache")
    read: list[str] = []
    original = trees._hash_file
    monkeypatch.setattr(trees, "_hash_file", lambda path: read.append(path) or original(path))
    assert measured(tree, tmp_path / "cache") == first
    assert read == []
    (tree / "f3").write_text("three")
    assert measured(tree, tmp_path / "cache") != first
    assert read == [str(tree / "f3")]


def test_one_images_hashes_do_not_push_out_anothers(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f").write_text(name)
        measured(tmp_path / name, tmp_path / "cache")
    (tmp_path / "one" / "f").unlink()
    measured(tmp_path / "one", tmp_path / "cache")
    rows = msgspec.msgpack.decode((tmp_path / "cache").read_bytes(), type=list[tuple[trees.Key, str]])
    assert [key[0] for key, _ in rows] == [str(tmp_path / "two" / "f")]


async def test_an_image_that_did_not_change_is_known_by_its_fingerprint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = tmp_path / "layer"
    (layer / "bin").mkdir(parents=True)
    (layer / "bin" / "tool").write_text("one")
    wanted = {"tiny": {"layers": [{"source": str(layer), "target": "/usr"}]}}
    chosen = msgspec.convert(
        {"node": "n1", "data_dir": str(tmp_path / "n1"), "image_cache_dir": str(tmp_path / "cache"),
         "hot_dir": str(tmp_path), "secrets_dir": str(tmp_path), "offer_host_image": False, "images": wanted},
        settings.Settings,
    )  # fmt: skip
    measured_layers: list[object] = []
    digest = trees.digest
    monkeypatch.setattr(trees, "digest", lambda layers, *more: measured_layers.append(layers) or digest(layers, *more))
    first = (await images.catalogue(chosen))["tiny"].digest
    assert (await images.catalogue(chosen))["tiny"].digest == first
    assert len(measured_layers) == 1
    (layer / "bin" / "tool").write_text("two")
    assert (await images.catalogue(chosen))["tiny"].digest != first
    assert len(measured_layers) == 2
    (tmp_path / "cache" / "digests.json").write_text("{")
    again = (await images.catalogue(chosen))["tiny"].digest
    assert (again, len(measured_layers)) != (first, 2)
    assert len(measured_layers) == 3


def test_a_damaged_cache_costs_time_only(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "f").write_text("x")
    first = measured(tmp_path / "tree", tmp_path / "cache")
    (tmp_path / "cache").write_bytes(b"\xc1garbage")
    assert measured(tmp_path / "tree", tmp_path / "cache") == first


# ---- workdirs ----


class Gateway:
    """Answers GET /v1/blobs/<digest> from memory."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.asked = 0
        self.url = ""

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.asked += 1
        body = self.blobs.get(request.split()[1].removeprefix("/v1/blobs/"))
        head = "404 Not Found" if body is None else "200 OK"
        data = body or b""
        writer.write(f"HTTP/1.1 {head}\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode() + data)
        await writer.drain()
        writer.close()

    def add(self, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        self.blobs[digest] = data
        return digest


@pytest_asyncio.fixture
async def gateway() -> AsyncIterator[Gateway]:
    answering = Gateway()
    server = await asyncio.start_server(answering.answer, "127.0.0.1", 0)
    answering.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    yield answering
    server.close()
    await server.wait_closed()


def tarred(**files: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    return buffer.getvalue()


async def test_a_workdir_is_fetched_once_and_shared(tmp_path: Path, gateway: Gateway) -> None:
    cache = Workdirs(tmp_path, gateway.url)
    digest = gateway.add(tarred(main="print(1)"))
    paths = await asyncio.gather(*(cache.get(reference) for reference in (digest, f"sha256:{digest}", digest)))
    assert {path.name for path in paths} == {digest}
    assert (paths[0] / "main").read_text() == "print(1)"
    assert gateway.asked == 1
    assert os.listdir(tmp_path) == [digest]


async def test_a_cancelled_unpacking_leaves_nothing_and_no_half_directory(
    tmp_path: Path, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, go_on = threading.Event(), threading.Event()
    unpack = archives.unpack

    def slow(archive: Path, target: Path) -> None:
        began.set()
        go_on.wait(10)
        unpack(archive, target)

    monkeypatch.setattr(archives, "unpack", slow)
    cache = Workdirs(tmp_path, gateway.url)
    digest = gateway.add(tarred(a="1", b="2"))
    getting = asyncio.ensure_future(cache.get(digest))
    await asyncio.to_thread(began.wait, 10)
    getting.cancel()
    await asyncio.sleep(0.1)
    assert not getting.done(), "the thread still works in the directory"
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await getting
    assert sorted(os.listdir(tmp_path / digest)) == ["a", "b"]
    assert os.listdir(tmp_path) == [digest]


async def test_what_vanishes_while_it_is_counted_is_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = tmp_path / "logs"
    (logs / "j.1.0").mkdir(parents=True)
    (logs / "j.1.0" / "main.0.log").write_text("x")
    real = os.scandir

    class Vanishing:
        def __init__(self, path: Path) -> None:
            self._entries = real(path)

        def __enter__(self) -> Any:
            self._entries.__enter__()
            return self

        def __exit__(self, *error: object) -> None:
            self._entries.close()

        def __iter__(self) -> Any:
            for entry in self._entries:
                os.unlink(entry.path)
                yield entry

    monkeypatch.setattr(os, "scandir", Vanishing)
    assert retention.trim_logs(logs, set()) == []


async def test_bytes_of_another_digest_and_unsafe_archives_leave_nothing(tmp_path: Path, gateway: Gateway) -> None:
    cache = Workdirs(tmp_path, gateway.url)
    gateway.blobs["0" * 64] = tarred(main="other")
    with pytest.raises(WorkdirError, match="another digest") as wrong:
        await cache.get("0" * 64)
    assert not wrong.value.refused
    with pytest.raises(WorkdirError, match="refused") as unsafe:
        await cache.get(gateway.add(tarred(**{"../evil": "x"})))
    assert unsafe.value.refused
    with pytest.raises(WorkdirError, match="answered 404"):
        await cache.get("1" * 64)
    with pytest.raises(WorkdirError, match="not a SHA-256"):
        await cache.get("../../etc")
    assert os.listdir(tmp_path) == []


async def test_a_blob_that_is_too_large_is_refused(
    tmp_path: Path, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workdirs, "ARCHIVE_BYTES_MAX", 1000)
    with pytest.raises(WorkdirError, match="larger than 1000"):
        await Workdirs(tmp_path, gateway.url).get(gateway.add(tarred(main="x" * 2000)))


async def test_the_cache_keeps_the_newest_and_what_is_in_use(
    tmp_path: Path, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workdirs, "CACHED_MAX", 1)
    cache = Workdirs(tmp_path, gateway.url)
    digests = [gateway.add(tarred(main=str(number))) for number in range(3)]
    for age, digest in enumerate(digests):
        path = await cache.get(digest)
        os.utime(path, ns=(age, age))
    cache.trim({digests[0]})
    assert sorted(os.listdir(tmp_path)) == sorted([digests[0], digests[2]])


def test_what_an_earlier_boot_unpacked_is_not_believed(tmp_path: Path) -> None:
    cache = Workdirs(tmp_path, "")
    kept = tmp_path / ("0" * 64)
    for _ in range(2):
        cache.open()
        kept.mkdir(exist_ok=True)
        (tmp_path / ".tmp-x").touch()
    cache.open()
    assert sorted(os.listdir(tmp_path)) == [".boot", kept.name]
    (tmp_path / ".boot").write_text("another boot")
    cache.open()
    assert os.listdir(tmp_path) == [".boot"]


def test_a_damaged_copy_of_the_sdk_is_made_anew(tmp_path: Path) -> None:
    first = sdk_copy.install(tmp_path)
    assert sdk_copy.install(tmp_path) == first
    (first / "tidegate" / "job.py").write_text("")
    assert "class Job" in (sdk_copy.install(tmp_path) / "tidegate" / "job.py").read_text()


# ---- secrets ----


def test_a_secret_is_read_only_from_a_private_regular_file(tmp_path: Path) -> None:
    (tmp_path / "lab").mkdir()
    good = tmp_path / "lab" / "good"
    good.write_text("v\u00e4lue\n")
    good.chmod(0o600)
    assert secret_store.read(tmp_path, "lab", {"A": "good"}) == {"A": "v\u00e4lue"}
    (tmp_path / "lab" / "link").symlink_to(good)
    os.mkfifo(tmp_path / "lab" / "pipe", 0o600)
    (tmp_path / "lab" / "large").write_bytes(b"x" * (secret_store.SECRET_BYTES_MAX + 1))
    (tmp_path / "lab" / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "lab" / "empty").touch()
    (tmp_path / "lab" / "open").write_text("seen")
    for name in ("large", "binary", "empty"):
        (tmp_path / "lab" / name).chmod(0o600)
    (tmp_path / "lab" / "open").chmod(0o640)
    codes = {
        "absent": "SecretMissing",
        "link": "SecretMissing",
        "pipe": "SecretExposed",
        "open": "SecretExposed",
        "large": "SecretTooLarge",
        "binary": "SecretNotText",
        "empty": "SecretNotText",
        "../lab/good": "SecretNameRefused",
    }
    for name, code in codes.items():
        with pytest.raises(SecretError) as refused:
            secret_store.read(tmp_path, "lab", {"A": name})
        assert refused.value.code == code
        assert "seen" not in str(refused.value)


# ---- logs ----


def test_pieces_of_a_log_join_and_say_where_the_bound_dropped_bytes(tmp_path: Path) -> None:
    written = LogFile(str(tmp_path), "main.0", 400)
    text = b"".join(b"%09d\n" % number for number in range(200))
    written.write(text)
    written.close()
    offset, parts, gaps = 0, [], 0
    while True:
        piece = log_queries.piece(tmp_path, ("main", 0), offset, 64)
        data = base64.b64decode(piece["data"])
        assert piece["size"] == len(text)
        assert text[piece["offset"] : piece["offset"] + len(data)] == data
        gaps += piece["truncated"]
        if not data:
            break
        parts.append(data)
        offset = piece["offset"] + len(data)
    assert offset == len(text)
    assert gaps == 1
    assert parts[0].startswith(b"000000000\n")
    tail = log_queries.piece(tmp_path, ("main", 0), -10, 64)
    assert base64.b64decode(tail["data"]) == b"000000199\n"
    assert log_queries.piece(tmp_path / "nowhere", ("main", 0), 0, 64)["size"] == 0


def test_a_file_that_the_bound_drops_meanwhile_is_a_gap_and_never_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = LogFile(str(tmp_path), "main.0", 400)
    text = b"".join(b"%09d\n" % number for number in range(30))
    written.write(text)
    written.close()
    read = logs._read

    def drop_the_second(path: str, position: int, bytes_max: int) -> bytes:
        if path.endswith("000000000000100.log"):
            Path(path).unlink(missing_ok=True)
        return read(path, position, bytes_max)

    monkeypatch.setattr(logs, "_read", drop_the_second)
    first = log_queries.piece(tmp_path, ("main", 0), 0, 400)
    assert base64.b64decode(first["data"]) == text[:100]
    after = log_queries.piece(tmp_path, ("main", 0), 100, 400)
    assert (after["offset"], after["truncated"]) == (200, True)
    assert base64.b64decode(after["data"]) == text[200:]


class _Known:
    """An agent that remembers one attempt."""

    def __init__(self, state: AttemptState) -> None:
        self._state = state

    def find(self, sandbox: str) -> AttemptState | None:
        return self._state if sandbox == self._state.id else None

    def newest(self, job: str, rank: int) -> AttemptState | None:
        return self._state if (job, rank) == (self._state.job, self._state.rank) else None

    def main_component(self, sandbox: str) -> str | None:
        return "main"


@pytest.mark.parametrize(("ended_ns", "why"), [(5, "or it was removed"), (0, "has not begun to run")])
def test_a_log_that_is_not_there_says_why(tmp_path: Path, ended_ns: int, why: str) -> None:
    replica = Replica(component="main", replica=0)
    state = AttemptState(
        job="j", tenant="t", attempt=1, rank=0, level="trusted", replicas=(replica,), ended_ns=ended_ns
    )
    question = msgspec.json.encode({"job": "j"})
    assert why in msgspec.json.decode(log_queries.answer(question, _Known(state), tmp_path))["error"]
    (tmp_path / state.id).mkdir()
    answer = msgspec.json.decode(log_queries.answer(question, _Known(state), tmp_path))
    assert (answer["size"], answer["components"]) == (0, ["main"])


# ---- checkpoints ----


def committed(hot: Path, step: int, rank: int = 0) -> str:
    stamp = roots.Stamp(job="j", attempt=1, rank=rank, component="learn", replica=0, world_size=1, seed=0)
    name = stores.save_tree(hot, step, {"state/f": f"{step}".encode()}, stamp).name
    time.sleep(0.002)
    return name


def test_what_a_member_saved_and_did_not_get_to_say_is_found(tmp_path: Path) -> None:
    state = transitions.accept(job("j", component("learn", "")), 0, level="trusted", image_digest="", uid_slot=0)
    names = [committed(tmp_path, step) for step in (10, 20, 15)]
    committed(tmp_path, 30, rank=1)
    (tmp_path / "roots" / f"{'9' * 12}-1-aaaaaaaa.json").mkdir()
    (tmp_path / ".tmp-000000000099-deadbeef").mkdir()
    assert [ref.directory for ref in checkpoints.unreported(tmp_path, state)] == names
    told = transitions.saved(state, names[0], 10)
    assert [ref.step for ref in checkpoints.unreported(tmp_path, told)] == [20, 15]
    told = transitions.saved(told, names[2], 15)
    assert checkpoints.unreported(tmp_path, told) == []
    with pytest.raises(ValueError, match="cannot name"):
        checkpoints.job_directory(tmp_path, "lab", "../other")


def test_however_many_a_job_left_they_fit_one_frame(tmp_path: Path) -> None:
    state = transitions.accept(job("j", component("learn", "")), 0, level="trusted", image_digest="", uid_slot=0)
    names = [committed(tmp_path, step) for step in range(1, checkpoints.UNREPORTED_MAX + 5)]
    found = checkpoints.unreported(tmp_path, state)
    assert [ref.directory for ref in found] == names[4:]
    events = [facts.checkpoint_saved(state, "n1", ref, 0) for ref in found]
    assert len(msgspec.json.encode(events)) < MAX_FRAME_BYTES / 2
    assert checkpoints.unreported(tmp_path / "none", state) == []


# ---- admission ----

GPU = GpuDevice(index=0, uuid="u", model="m", memory_mib=1000)
OFFER = admission.Offer(
    capacity=NodeCapacity(resources=Resources(1000, 300, 1, 1000), gpus=(GPU,), cpu_model="", isa=""),
    levels=frozenset({"unisolated"}),
    images={"tiny": Image(name="tiny", digest="b3:1", layers=(), path=())},
)


def test_room_and_gpus_are_counted_over_all_that_is_here() -> None:
    order = job("a", component("main", ""))
    assert admission.refusal(order, OFFER, []) is None
    held = [admission.claim_of(job("b", component("main", ""), component("more", "")))]
    refused = admission.refusal(order, OFFER, held)
    assert refused is not None
    assert (refused.code, refused.numbers) == ("CapacityExceeded", {"needed": 500, "free": 0})
    on_gpu = msgspec.structs.replace(order, gpu_indices=(0,))
    assert admission.refusal(on_gpu, OFFER, []) is None
    taken = admission.refusal(on_gpu, OFFER, [admission.Claim(job="c", floor=Resources(), gpu_indices=(0,))])
    assert taken is not None
    assert taken.code == "GpuTaken"
    by_digest = msgspec.structs.replace(order, spec=msgspec.structs.replace(order.spec, image="b3:1"))
    assert admission.refusal(by_digest, OFFER, []) is None
    refused = admission.refusal(msgspec.structs.replace(order, job="../up"), OFFER, [])
    assert refused is not None
    assert refused.code == "NameRefused"
    assert admission.offerable(OFFER.capacity, frozenset({"trusted"})).resources.gpus == 0
    known_by_cdi = frozenset({"trusted", "unisolated"})
    assert admission.offerable(OFFER.capacity, frozenset({"trusted"}), known_by_cdi).resources.gpus > 0


def test_a_gpu_enters_an_isolated_sandbox_where_cdi_knows_it_and_does_not_follow_phases() -> None:
    order = msgspec.structs.replace(job("a", component("main", "")), gpu_indices=(0,))
    order = msgspec.structs.replace(order, spec=msgspec.structs.replace(order.spec, isolation="trusted"))
    offer = msgspec.structs.replace(OFFER, levels=frozenset({"trusted"}))
    refused = admission.refusal(order, offer, [])
    assert refused is not None
    assert refused.code == "GpuNotPassed"
    assert refused.detail == "this node passes GPUs at no level, and not at trusted: no CDI file names all of its GPUs"
    for level in ("guarded", "vm"):
        there = msgspec.structs.replace(offer, levels=frozenset({level, "unisolated"}))
        guest = msgspec.structs.replace(order, spec=msgspec.structs.replace(order.spec, isolation=level))
        refused = admission.refusal(guest, there, [])
        assert refused is not None
        assert refused.detail.startswith(f"this node passes GPUs at unisolated, and not at {level}: a guest's kernel")
    assert admission.gpu_levels(offer) == ()
    assert admission.gpu_levels(msgspec.structs.replace(OFFER, levels=frozenset({"trusted", "unisolated"}))) == (
        "unisolated",
    )
    without = msgspec.structs.replace(offer, capacity=msgspec.structs.replace(offer.capacity, gpus=()))
    assert admission.gpu_levels(without) is None
    by_cdi = msgspec.structs.replace(offer, gpu_levels=frozenset({"trusted", "unisolated"}))
    assert admission.refusal(order, by_cdi, []) is None
    assert admission.gpu_levels(by_cdi) is None
    asking = msgspec.structs.replace(order, spec=msgspec.structs.replace(order.spec, phase_entry="asked"))
    refused = admission.refusal(asking, by_cdi, [])
    assert refused is not None
    assert "comes and goes" in refused.detail


def test_a_gang_that_is_here_as_a_whole_meets_in_its_private_network() -> None:
    order = job("a", component("main", ""))
    places = environment.Places(
        workspace="", socket="", checkpoints="", sdk="", home="", cache="", temporary="", path=()
    )
    assert environment.of_process(order, order.spec.components[0], 0, places)["MASTER_ADDR"] == "127.0.0.1"
    private = msgspec.structs.replace(places, master_address="10.201.0.1")
    assert environment.of_process(order, order.spec.components[0], 0, private)["MASTER_ADDR"] == "10.201.0.1"


def test_a_gpu_that_does_not_answer_is_left_out_and_the_others_are_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    class NVMLError(Exception):
        pass

    def memory(handle: int) -> Any:
        if handle == 1:
            raise NVMLError("GPU is lost")
        return SimpleNamespace(total=80 << 30)

    driver = SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: 3,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetMemoryInfo=memory,
        nvmlDeviceGetUUID=lambda handle: f"GPU-{handle}",
        nvmlDeviceGetName=lambda handle: b"H",
    )
    monkeypatch.setitem(sys.modules, "pynvml", driver)  # type: ignore[arg-type]
    assert [(gpu.index, gpu.memory_mib) for gpu in gpu_devices()] == [(0, 81920), (2, 81920)]


def test_a_process_sees_the_gpus_by_the_numbers_the_agent_knows() -> None:
    order = msgspec.structs.replace(job("a", component("main", "")), gpu_indices=(1, 3))
    places = environment.Places(
        workspace="", socket="", checkpoints="", sdk="", home="", cache="", temporary="", path=()
    )
    found = environment.of_process(order, order.spec.components[0], 0, places)
    assert (found["CUDA_VISIBLE_DEVICES"], found["CUDA_DEVICE_ORDER"]) == ("1,3", "PCI_BUS_ID")


GANG_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR")
GANG_PLACES = [
    (1, 0, None, ("0", "1", "0", "1", "0", "127.0.0.1")),
    (4, 2, None, ("2", "4", "2", "4", "0", "127.0.0.1")),
    (
        4,
        2,
        GangPlace(nodes=("n1", "n2"), node_rank=1, local_rank=0, local_size=3, master_address="10.0.0.1"),
        ("2", "4", "0", "3", "1", "10.0.0.1"),
    ),
]


@pytest.mark.parametrize(("size", "rank", "place", "expected"), GANG_PLACES)
def test_a_process_is_told_its_place_as_torchrun_tells_it(
    size: int, rank: int, place: GangPlace | None, expected: tuple[str, ...]
) -> None:
    order = msgspec.structs.replace(job("a", component("main", ""), gang_size=size), rank=rank, gang=place)
    places = environment.Places(
        workspace="", socket="", checkpoints="", sdk="", home="", cache="", temporary="", path=()
    )
    found = environment.of_process(order, order.spec.components[0], 0, places)
    assert tuple(found[name] for name in GANG_VARIABLES) == expected
    assert found["MASTER_PORT"] == str(environment.master_port("a", 1))


def test_every_attempt_meets_at_a_port_of_its_own_in_the_range() -> None:
    ports = {environment.master_port("j-1", attempt) for attempt in range(50)}
    assert len(ports) >= 49
    assert all(20_000 <= port < 30_000 for port in ports)
    assert environment.master_port("j-1", 1) == 27_659, "as it was: nodes of different versions must meet"


def sharing(gpu_millis: int) -> SandboxOrder:
    need = Resources(100, 64, gpu_millis=gpu_millis)
    main = Component(name="main", command=("true",), resources={"default": ResourceRange(minimum=need)})
    return msgspec.structs.replace(job("s", main), gpu_indices=(0,))


def test_shares_of_one_gpu_are_taken_until_it_is_full() -> None:
    held = [
        admission.Claim(job="a", floor=Resources(gpu_millis=300), gpu_indices=(0,)),
        admission.Claim(job="b", floor=Resources(gpu_millis=300), gpu_indices=(0,)),
        admission.Claim(job="c", floor=Resources(gpu_millis=900), gpu_indices=(1,)),
    ]
    assert admission.refusal(sharing(400), OFFER, held) is None
    refused = admission.refusal(sharing(401), OFFER, held)
    assert refused is not None
    assert (refused.code, refused.numbers) == ("GpuTaken", {"needed": 401, "free": 400})
    whole = [admission.Claim(job="a", floor=Resources(gpus=1), gpu_indices=(0,))]
    taken = admission.refusal(sharing(1), OFFER, whole)
    assert taken is not None
    assert taken.code == "GpuTaken"


def phased(**shares: int) -> SandboxOrder:
    """The order of a member that asks for its phases, in each of which it needs such a share of a device."""
    resources = {name: ResourceRange(minimum=Resources(100, 64, gpu_millis=share)) for name, share in shares.items()}
    main = Component(name="main", command=("true",), resources=resources)
    order = job("s", main, phase_entry="asked")
    return msgspec.structs.replace(order, gpu_indices=(0,))


def test_a_share_that_follows_phases_is_claimed_as_it_is_now() -> None:
    order = phased(default=0, low=300, high=700)
    claims = [admission.claim_of(order, 0, (0,), phases) for phases in ((), ("low",), ("low", "high"))]
    assert [(each.gpu_indices, each.share_millis) for each in claims] == [((), 0), ((0,), 300), ((0,), 700)]
    assert admission.refusal(sharing(1000), OFFER, claims[:1]) is None, "it lends all of it"
    assert admission.refusal(sharing(700), OFFER, claims[1:2]) is None
    refused = admission.refusal(sharing(701), OFFER, claims[1:2])
    assert refused is not None
    assert refused.numbers == {"needed": 701, "free": 700}
    begins = phased(default=400, high=900)
    assert admission.refusal(begins, OFFER, [admission.claim_of(sharing(600))]) is None, "with what its phase needs"
    assert admission.refusal(begins, OFFER, [admission.claim_of(sharing(601))]) is not None


def test_a_process_is_told_the_share_of_its_phase() -> None:
    places = environment.Places(
        workspace="", socket="", checkpoints="", sdk="", home="", cache="", temporary="", path=()
    )
    order = phased(default=0, low=300, high=700)
    for phase, indices, share in (("low", (0,), "300"), ("high", (0,), "700"), ("", (), None)):
        at = msgspec.structs.replace(order, phase=phase, gpu_indices=indices)
        assert environment.of_process(at, order.spec.components[0], 0, places).get("TIDEGATE_GPU_MILLIS") == share
    assert environment.in_phase(order.spec, "low", (0,))["TIDEGATE_GPU_MILLIS"] == "300"


def test_a_process_is_told_its_share_of_a_gpu() -> None:
    places = environment.Places(
        workspace="", socket="", checkpoints="", sdk="", home="", cache="", temporary="", path=()
    )
    order = sharing(250)
    assert environment.of_process(order, order.spec.components[0], 0, places)["TIDEGATE_GPU_MILLIS"] == "250"
    alone = msgspec.structs.replace(sharing(0), gpu_indices=())
    assert "TIDEGATE_GPU_MILLIS" not in environment.of_process(alone, alone.spec.components[0], 0, places)


def test_members_of_one_job_share_a_uid_and_jobs_do_not() -> None:
    claims = [
        admission.Claim(job="a", floor=Resources(), uid_slot=0),
        admission.Claim(job="b", floor=Resources(), uid_slot=2),
    ]
    assert admission.free_uid_slot("b", claims) == 2
    assert admission.free_uid_slot("c", claims) == 1


# ---- settings and capacity ----


def test_settings_come_from_file_environment_and_command_line_in_that_order(tmp_path: Path) -> None:
    file = tmp_path / "agent.json"
    file.write_text('{"node": "from-file", "cpu_millis": 1, "memory_mib": 1, "bus": {"url": "nats://file"}}')
    environ = {
        "TIDEGATE_HOME": "/home/t",
        "TIDEGATE_EXECUTOR_CONFIG": str(file),
        "TIDEGATE_CPU_MILLIS": "2",
        "TIDEGATE_MEMORY_MIB": "2",
        "TIDEGATE_BUS_PASSWORD": "p",
        "TIDEGATE_INPUT_ROOTS": "/a:/b",
        "TIDEGATE_LEVELS": "unisolated",
        "TIDEGATE_NODE_RACK": "hall-1/r7",
        "TIDEGATE_NODE_SWITCH": "leaf-3",
        "TIDEGATE_NODE_ADDRESS": "fd00::7",
    }
    loaded = settings.load(environ, {"memory_mib": 3, "node": None})
    assert (loaded.node, loaded.cpu_millis, loaded.memory_mib) == ("from-file", 2, 3)
    assert (loaded.bus.url, loaded.bus.password) == ("nats://file", "p")
    assert (loaded.data_dir, loaded.hot_dir) == ("/home/t/nodes/from-file", "/home/t/hot")
    assert loaded.input_roots == ("/a", "/b")
    assert (loaded.offer_trusted, loaded.offer_unisolated) == (False, True)
    assert (loaded.rack, loaded.switch, loaded.address) == ("hall-1/r7", "leaf-3", "fd00::7")


@pytest.mark.parametrize(
    ("environ", "text"),
    [
        ({}, "node"),
        ({"TIDEGATE_NODE": "a.b"}, "1 to 64"),
        ({"TIDEGATE_CPU_MILLIS": "many"}, "whole number"),
        ({"TIDEGATE_DATA_DIR": "relative"}, "absolute path"),
        ({"TIDEGATE_LEVELS": "bubble"}, "trusted, guarded, vm, unisolated"),
        ({"TIDEGATE_GATEWAY_URL": "ftp://x"}, "http"),
        ({"TIDEGATE_EXECUTOR_CONFIG": "/nowhere.json"}, "JSON object"),
        ({"TIDEGATE_NODE_RACK": "row one"}, "rack"),
        ({"TIDEGATE_NODE_ADDRESS": "-10.0.0.1"}, "address"),
    ],
)
def test_settings_that_cannot_be_used_say_what_is_accepted(environ: dict[str, str], text: str) -> None:
    base = {"TIDEGATE_HOME": "/home/t", "TIDEGATE_NODE": "n1"} if environ else {}
    with pytest.raises(settings.SettingsError, match=text):
        settings.load({**base, **environ}, {})


def test_the_processor_is_named_with_the_instruction_sets_that_change_numbers(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor : 0\nmodel name : Fast One\nflags : fpu avx2 fma sse4_2\n")
    model, isa = processor(tmp_path / "cpuinfo")
    assert model == "Fast One"
    assert isa.split()[1:4] == ["sse4_2", "avx2", "fma"]
