"""The tiers on an S3 server, and behind a network that loses, cuts, repeats and lies.

Whatever happens: what was acknowledged can be restored, and what is restored is what was saved.
"""

from __future__ import annotations

import http.client
import os
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
from moto.server import ThreadedMotoServer
from tidegate.checkpoint import packing
from tidegate.errors import CheckpointError
from tidegate.tiers import collecting, moving, objects, retaining
from tidegate.tiers.collecting import PAUSE_SECONDS
from tidegate.tiers.holding import HotHolding
from tidegate.tiers.job import JobTier
from tidegate.tiers.objects import Objects, TierUnavailableError
from tidegate.tiers.scrubbing import Scrub
from tidegate.tiers.tiers import Settings, Tiers

from tests.sdk.tiers import faults
from tests.sdk.tiers.faults import PASS, FaultProxy
from tests.sdk.tiers.moved import JOB, TENANT, Node

REQUEST_SECONDS_MAX = 0.5
BACKOFF = {"init_backoff": timedelta(milliseconds=5), "max_backoff": timedelta(milliseconds=20), "base": 2}


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, int]]:
    moto = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    moto.start()
    yield moto.get_host_and_port()
    moto.stop()


@pytest.fixture
def bucket(server: tuple[str, int]) -> str:
    name = f"b-{uuid.uuid4().hex[:12]}"
    connection = http.client.HTTPConnection(*server, timeout=10)
    connection.request("PUT", f"/{name}", headers={"Content-Length": "0"})
    assert connection.getresponse().status == 200
    connection.close()
    return name


@pytest.fixture
def proxy(server: tuple[str, int]) -> Iterator[FaultProxy]:
    made = FaultProxy(*server)
    yield made
    made.close()


def tier(bucket: str, url: str, request_seconds_max: float = REQUEST_SECONDS_MAX) -> JobTier:
    store = objects.s3(
        f"s3://{bucket}/checkpoints",
        endpoint=url,
        access_key_id="k",
        secret_access_key="s",
        region="us-east-1",
        client_options={"timeout": timedelta(seconds=request_seconds_max), "allow_http": True},
        retry_config={
            "max_retries": 2,
            "retry_timeout": timedelta(seconds=5),
            "backoff": BACKOFF,
        },
    )
    return JobTier("warm", Objects(store, f"s3://{bucket}/checkpoints"), TENANT, JOB)


@pytest.fixture
def clean(bucket: str, server: tuple[str, int]) -> JobTier:
    """Return the tier without a proxy before it."""
    return tier(bucket, f"http://{server[0]}:{server[1]}")


@pytest.fixture
def faulty(bucket: str, proxy: FaultProxy) -> JobTier:
    """Return the same tier behind the proxy."""
    return tier(bucket, proxy.url)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(Tiers(Settings(tmp_path / "n1")))


def fetch(source: JobTier, name: str, hot: Path) -> Node:
    there = Node(Tiers(Settings(hot)))
    with there.tiers.hot_store(TENANT, JOB) as held:
        moving.move(name, [source], HotHolding(held), held.staging)
    return there


def test_the_same_code_promotes_restores_collects_and_repairs(node: Node, clean: JobTier, tmp_path: Path) -> None:
    first, second = node.save(1), node.save(2)
    node.promote(first, clean)
    assert node.promote(second, clean).sent == 1
    assert clean.roots() == [first.name, second.name]
    assert fetch(clean, second.name, tmp_path / "n2").find().committed.root == second.root
    retaining.pin(clean, first.name, "kept")
    assert retaining.pins(clean) == [first.name]
    retaining.unpin(clean, first.name)
    assert retaining.retain(clean, retaining.Policy(1), 0) == [first.name]
    now = 3_000_000_000
    apart = collecting.collect(clean, now)
    assert len(apart.quarantined) == 3
    assert len(collecting.collect(clean, now + PAUSE_SECONDS).deleted) == 3
    (pack,) = clean.packs()
    name = clean.path("packs", f"{pack}.pack")
    clean.objects.put(name, b"\1" * 8192)
    with node.tiers.holdings(TENANT, JOB) as held, node.tiers.staging() as staging:
        (damage,) = Scrub(clean, held, staging).run().damages
    assert damage.repaired_from == "hot"
    assert fetch(clean, second.name, tmp_path / "n3").find().skipped == 0


def test_a_large_pack_goes_in_parts_and_comes_in_ranges(node: Node, clean: JobTier, tmp_path: Path) -> None:
    committed = node.save(1, model={"w": os.urandom(2 * objects.PART_BYTES + 12_345)})
    node.promote(committed, clean)
    assert fetch(clean, committed.name, tmp_path / "n2").find().committed.root == committed.root


def test_a_part_or_range_that_failed_is_sent_or_read_again_and_no_other(
    node: Node, proxy: FaultProxy, bucket: str, tmp_path: Path
) -> None:
    faulty = tier(bucket, proxy.url, 30)  # else a busy machine is a fault as well
    committed = node.save(1, model={"w": os.urandom(5 * objects.PART_BYTES)})
    asked: Counter[str] = Counter()
    failed: list[str] = []

    def plan(method: str, path: str) -> str:
        what = f"{method} {path.partition('uploadId')[0]}"
        is_part = method == "PUT" and "partNumber=" in path
        if is_part:
            asked[what] += 1
            if "partNumber=3" in path and asked[what] <= 2:
                failed.append(what)
                return faults.ERROR
        return PASS

    proxy.plan = plan
    node.promote(committed, faulty)
    assert len(failed) == 2
    assert sorted(asked.values()) == [1, 1, 1, 1, 1, 3], "six parts, of which one was sent three times"
    ranges: Counter[str] = Counter()

    def cutting(method: str, path: str) -> str:
        if method == "GET" and path.endswith(".pack"):
            ranges["asked"] += 1
            return faults.CUT if ranges["asked"] in (3, 4) else PASS
        return PASS

    proxy.plan = cutting
    assert fetch(faulty, committed.name, tmp_path / "n2").find().committed.root == committed.root
    assert ranges["asked"] <= 2 + 6 + 2 + 4, "index, six ranges, two again and what they began with"


def test_a_promotion_that_died_goes_on_with_the_packs_that_are_not_there(
    node: Node, proxy: FaultProxy, faulty: JobTier, clean: JobTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "PACK_BYTES_MAX", 4 << 20)
    committed = node.save(1, model={str(number): os.urandom(3 << 20) for number in range(5)})
    assert len(node.pack_files("hot")) == 5
    sent: Counter[str] = Counter()

    def plan(method: str, path: str) -> str:
        if method == "PUT" and ".pack" in path:
            sent[path.partition("?")[0]] += 1
            return PASS if len(sent) <= 3 else faults.ERROR
        return PASS

    proxy.plan = plan
    with pytest.raises(TierUnavailableError):
        node.promote(committed, faulty)
    assert clean.roots() == []
    assert len(clean.packs()) == 3
    first = set(clean.packs())
    sent.clear()
    proxy.plan = lambda method, path: sent.update([path] if method == "PUT" and ".pack" in path else []) or PASS
    moved = node.promote(committed, faulty)
    assert (moved.sent, moved.kept) == (2, 3)
    assert not any(pack in path for pack in first for path in sent)


@pytest.mark.timeout(300)
def test_under_load_many_jobs_move_at_once_through_faults(
    tmp_path: Path, bucket: str, server: tuple[str, int], proxy: FaultProxy
) -> None:
    """Twelve jobs promote, restore, collect and scrub side by side while one request in twenty goes wrong."""
    kinds = tuple(kind for kind in faults.KINDS if kind != faults.HANG)
    proxy.plan = faults.seeded(11, 0.05, kinds)
    objects_behind, objects_clean = (
        tier(bucket, proxy.url).objects,
        tier(bucket, f"http://{server[0]}:{server[1]}").objects,
    )

    def work(number: int) -> tuple[int, list[str]]:
        node, job = Node(Tiers(Settings(tmp_path / f"n{number}"))), f"j-{number}"
        behind = JobTier("warm", objects_behind, TENANT, job)
        acknowledged, wrong = 0, []
        for step in range(1, 4):
            committed = node.save(step)
            for _ in range(8):
                try:
                    node.promote(committed, behind)
                    acknowledged += 1
                    break
                except CheckpointError:
                    continue
            try:
                retaining.retain(behind, retaining.Policy(2), 0)
                collecting.collect(behind, 3_000_000_000 + step * PAUSE_SECONDS)
            except CheckpointError:
                continue
        sound = JobTier("warm", objects_clean, TENANT, job)
        with node.tiers.staging() as staging:
            wrong += [damage.why for damage in Scrub(sound, [], staging).run().damages]
        for name in sound.roots():
            there = Node(Tiers(Settings(tmp_path / f"r{number}-{name}")))
            with there.tiers.hot_store(TENANT, JOB) as held:
                moving.move(name, [sound], HotHolding(held), held.staging)
            found = there.find()
            if found.skipped or found.committed.root != sound.root(name):
                wrong.append(name)
        return acknowledged, wrong

    with ThreadPoolExecutor(12) as pool:
        results = list(pool.map(work, range(12)))
    assert [wrong for _, wrong in results if wrong] == []
    assert sum(acknowledged for acknowledged, _ in results) >= 30
    assert sum(count for kind, count in proxy.seen.items() if kind != PASS) > 30


def test_create_if_absent_is_one_winner(clean: JobTier) -> None:
    assert clean.objects.create("x/one", b"mine")
    assert clean.objects.create("x/one", b"mine")  # the very same is a success: an answer may have been lost
    assert not clean.objects.create("x/one", b"other")
    assert clean.objects.read("x/one", 100) == b"mine"


@pytest.mark.parametrize("kind", [faults.LOST, faults.HANG, faults.ERROR, faults.REPEAT, faults.LIE_OK])
def test_a_create_that_went_wrong_once_still_tells_the_truth(proxy: FaultProxy, faulty: JobTier, kind: str) -> None:
    left = [1]

    def once(method: str, path: str) -> str:
        if method == "PUT" and left:
            left.pop()
            return kind
        return PASS

    proxy.plan = once
    assert faulty.objects.create("x/root", b"mine")
    assert proxy.seen[kind] == 1
    assert faulty.objects.read("x/root", 100) == b"mine"
    assert not faulty.objects.create("x/root", b"theirs")


@pytest.mark.parametrize("kind", [faults.LIE_OK, faults.HANG, faults.ERROR])
def test_what_never_arrives_is_never_acknowledged(node: Node, proxy: FaultProxy, faulty: JobTier, kind: str) -> None:
    proxy.plan = lambda method, path: kind if method == "PUT" and "/roots/" in path else PASS
    with pytest.raises(TierUnavailableError):
        node.promote(node.save(1), faulty)
    proxy.plan = lambda method, path: PASS
    assert faulty.roots() == []


@pytest.mark.parametrize("wrong", [1, 100])
def test_a_pack_that_was_kept_otherwise_than_sent_is_sent_again(
    node: Node, clean: JobTier, proxy: FaultProxy, faulty: JobTier, wrong: int
) -> None:
    left = list(range(wrong))

    def plan(method: str, path: str) -> str:
        return faults.FALSE_BODY if method == "PUT" and ".pack" in path and left and left.pop() >= 0 else PASS

    proxy.plan = plan
    committed = node.save(1)
    if wrong == 1:
        assert node.promote(committed, faulty).sent == 1
        with node.tiers.staging() as staging:
            assert Scrub(clean, [], staging).run().damages == []
    else:
        with pytest.raises(TierUnavailableError, match="did not keep pack"):
            node.promote(committed, faulty)
        assert clean.roots() == []
    assert proxy.seen[faults.FALSE_BODY] > 0


@pytest.mark.parametrize("kind", [faults.LIE_BYTES, faults.SHORT, faults.CUT])
def test_false_bytes_are_never_restored(
    node: Node, proxy: FaultProxy, faulty: JobTier, tmp_path: Path, kind: str
) -> None:
    committed = node.save(1)
    node.promote(committed, faulty)
    proxy.plan = lambda method, path: (
        kind if method == "GET" and "/packs/" in path and "list-type" not in path else PASS
    )
    with pytest.raises(CheckpointError):
        fetch(faulty, committed.name, tmp_path / "n2")
    assert proxy.seen[kind] > 0
    assert list((tmp_path / "n2" / TENANT / JOB / "roots").iterdir()) == []
    proxy.plan = lambda method, path: PASS
    assert fetch(faulty, committed.name, tmp_path / "n2").find().committed.root == committed.root


@pytest.mark.parametrize("seed", range(6))
def test_under_many_faults_nothing_acknowledged_is_lost_and_nothing_wrong_is_restored(
    node: Node, clean: JobTier, proxy: FaultProxy, bucket: str, seed: int
) -> None:
    faulty, tmp_path = tier(bucket, proxy.url), node.tiers.hot.parent
    kinds = tuple(kind for kind in faults.KINDS if kind != faults.HANG)
    proxy.plan = faults.seeded(seed, 0.12, kinds)
    acknowledged, restored = {}, 0
    for step in range(1, 5):
        committed = node.save(step)
        for _ in range(6):
            try:
                node.promote(committed, faulty)
            except CheckpointError:
                continue
            acknowledged[committed.name] = committed.root
            break
        try:
            there = fetch(faulty, committed.name, tmp_path / f"f{step}")
        except CheckpointError:
            continue
        assert there.find().committed.root == committed.root
        restored += 1
    assert acknowledged
    assert sum(count for kind, count in proxy.seen.items() if kind != PASS) > 3
    for number, (name, root) in enumerate(acknowledged.items()):
        assert clean.root(name) == root
        assert fetch(clean, name, tmp_path / f"c{number}").find().skipped == 0


def test_a_collection_that_a_fault_ended_is_taken_up_again(
    node: Node, clean: JobTier, proxy: FaultProxy, faulty: JobTier, tmp_path: Path
) -> None:
    committed = [node.save(step) for step in (1, 2)]
    for each in committed:
        node.promote(each, clean)
    clean.remove_root(committed[0].name)
    proxy.plan = lambda method, path: faults.ERROR if path.endswith("?delete") else PASS
    now = 3_000_000_000
    with pytest.raises(TierUnavailableError):
        collecting.collect(faulty, now)
    proxy.plan = lambda method, path: PASS
    collecting.collect(faulty, now + 1)
    collecting.collect(faulty, now + 1 + PAUSE_SECONDS)
    assert len(faulty.packs()) == 1
    assert not faulty.objects.names(faulty.path("quarantine"))
    assert fetch(clean, committed[1].name, tmp_path / "n2").find().skipped == 0


def test_nothing_is_removed_because_a_copy_was_said_to_be_made(
    node: Node, clean: JobTier, proxy: FaultProxy, faulty: JobTier
) -> None:
    committed = node.save(1)
    node.promote(committed, clean)
    clean.remove_root(committed.name)
    before = clean.packs()
    proxy.plan = lambda method, path: faults.LIE_OK if method == "PUT" and "/quarantine/" in path else PASS
    with pytest.raises(TierUnavailableError):
        collecting.collect(faulty, 3_000_000_000)
    assert proxy.seen[faults.LIE_OK] > 0
    assert clean.packs() == before


def test_a_tier_that_is_away_says_so(node: Node, bucket: str) -> None:
    away = tier(bucket, "http://127.0.0.1:9")
    with pytest.raises(TierUnavailableError, match="s3://"):
        away.roots()
    with pytest.raises(CheckpointError):
        node.promote(node.save(1), away)
