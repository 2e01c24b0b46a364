"""What no checkpoint needs leaves a tier in two steps, and nothing that one needs ever does."""

from __future__ import annotations

import json
import threading
import time

import pytest
from tidegate.checkpoint import hashes
from tidegate.checkpoint import root as roots
from tidegate.checkpoint.manifest import canonical
from tidegate.errors import CorruptCheckpointError, UsageError
from tidegate.tiers import moving, retaining
from tidegate.tiers.collecting import PAUSE_SECONDS, Collected, collect
from tidegate.tiers.holding import missing_of
from tidegate.tiers.job import LEASE_SECONDS
from tidegate.tiers.retaining import Policies, Policy

from tests.sdk.tiers.moved import JOB, TENANT, Node, layers

NOW = 2_000_000_000


def promoted(node: Node, *steps: int) -> list[str]:
    names = []
    for step in steps:
        committed = node.save(step)
        node.promote(committed)
        names.append(committed.name)
    return names


def test_what_nothing_needs_is_deleted_after_a_pause(node: Node, elsewhere: Node) -> None:
    first, second = promoted(node, 1, 2)
    before = node.warm.packs()
    node.warm.remove_root(first)
    apart = collect(node.warm, NOW)
    assert (len(apart.quarantined), apart.deleted) == (3, [])  # a pack and two manifests
    assert node.warm.packs() < before
    assert collect(node.warm, NOW + PAUSE_SECONDS - 1).deleted == []
    done = collect(node.warm, NOW + PAUSE_SECONDS)
    assert sorted(done.deleted) == sorted(apart.quarantined)
    assert done.deleted_bytes > 40_000
    assert [each.name for each in node.warm.objects.names(node.warm.path("quarantine"))] == []
    elsewhere.fetch(second)
    assert elsewhere.find().committed.name == second


def test_what_a_new_root_needs_comes_back(node: Node, elsewhere: Node) -> None:
    (first,) = promoted(node, 1)
    data = node.warm.objects.read(node.warm.path("roots", f"{first}.json"), 1 << 20)
    node.warm.remove_root(first)
    apart = collect(node.warm, NOW)
    node.warm.objects.put(node.warm.path("roots", f"{first}.json"), data)
    back = collect(node.warm, NOW + PAUSE_SECONDS)
    assert (sorted(back.returned), back.deleted) == (sorted(apart.quarantined), [])
    elsewhere.fetch(first)
    assert elsewhere.find().skipped == 0


def test_a_lease_keeps_what_no_root_names_yet(node: Node) -> None:
    committed = node.save(1)
    root = committed.root
    packs = sorted({pack for layer in root.layers for pack in layer.packs})
    with node.warm.leased(root.layers, packs):
        for pack in packs:
            with node.tiers.holdings(TENANT, JOB) as held, node.tiers.staging() as staging:
                moving.send_pack(pack, held[:1], node.warm, staging, lambda size: None)
        now = int(time.time())
        assert collect(node.warm, now).quarantined == []
        # Whoever died with a lease keeps nothing for ever.
        assert collect(node.warm, now + LEASE_SECONDS + 60).quarantined == [f"packs/{pack}.pack" for pack in packs]


def test_a_move_survives_a_collection_in_its_middle(
    node: Node, elsewhere: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = layers(1)
    first = node.save(1, **value)
    node.promote(first)
    node.warm.remove_root(first.name)
    second = node.save(2, model=value["model"], state={"step": 2})
    create = type(node.warm).create_root

    def collected_before(tier: object, root: object) -> None:
        for lease in node.warm.objects.names(node.warm.path("leases")):
            node.warm.objects.remove(lease.name)  # as if the collector had looked before the lease was there
        collect(node.warm, NOW)
        create(tier, root)  # type: ignore[arg-type]

    monkeypatch.setattr(type(node.warm), "create_root", collected_before)
    node.promote(second)
    assert missing_of(node.warm, second.root) == []
    collect(node.warm, NOW + PAUSE_SECONDS)
    elsewhere.fetch(second.name)
    assert elsewhere.find().committed.root == second.root


def test_collections_race_with_moves(node: Node, elsewhere: Node) -> None:
    value = layers(1)
    saved = [
        node.save(step, model=value["model"], state={"step": step, "raw": bytes([step]) * 3000}) for step in range(8)
    ]
    ended = threading.Event()
    failures: list[Exception] = []
    passes: list[Collected] = []

    def collecting_all_the_time() -> None:
        while not ended.is_set():
            try:
                passes.append(collect(node.warm, int(time.time()), 0))
            except Exception as error:  # noqa: BLE001 - whatever it is fails the test
                failures.append(error)
                return

    collector = threading.Thread(target=collecting_all_the_time)
    collector.start()
    try:
        for committed in saved:
            node.promote(committed)
            # Whatever was shared with it is garbage now, until the next one needs it again.
            if committed is not saved[-1]:
                node.warm.remove_root(committed.name)
    finally:
        ended.set()
        collector.join()
    assert failures == []
    assert sum(len(each.quarantined) for each in passes) > 0
    for _ in range(2):
        collect(node.warm, int(time.time()) + 1, 0)
    assert elsewhere.fetch(saved[-1].name).sent > 0
    assert elsewhere.find().committed.root == saved[-1].root


def test_where_a_root_cannot_be_read_everything_stays(node: Node) -> None:
    first, second = promoted(node, 1, 2)
    node.warm.objects.put(node.warm.path("roots", f"{first}.json"), b"{")
    node.warm.remove_root(second)
    before = node.warm.packs()
    with pytest.raises(CorruptCheckpointError, match="malformed"):
        collect(node.warm, NOW)
    assert node.warm.packs() == before


def test_a_malformed_lease_stops_the_collection(node: Node) -> None:
    promoted(node, 1)
    node.warm.objects.put(node.warm.path("leases", "x.json"), b"[]")
    with pytest.raises(CorruptCheckpointError, match=r"lease .* is malformed"):
        collect(node.warm, NOW)


def test_a_policy_keeps_the_last_every_so_many_and_the_pinned(node: Node) -> None:
    names = promoted(node, 5, 10, 15, 20, 25)
    retaining.pin(node.warm, names[2], "the one in the paper")
    removed = retaining.retain(node.warm, Policy(keep_last=1, keep_every=10), NOW * 10**9)
    assert removed == []  # 5, 10 and 20 begin a stretch of ten steps, 15 is pinned, 25 is the newest
    retaining.unpin(node.warm, names[2])
    assert retaining.retain(node.warm, Policy(keep_last=1, keep_every=10), NOW * 10**9) == [names[2]]
    assert retaining.retain(node.warm, Policy(keep_last=1), NOW * 10**9) == [names[0], names[1], names[3]]
    assert node.warm.roots() == [names[4]]


def test_only_what_is_whole_counts_as_kept(node: Node) -> None:
    first, second = promoted(node, 1, 2)
    root = node.warm.root(second)
    lost = next(pack for layer in root.layers for pack in layer.packs)
    node.warm.objects.remove(node.warm.path("packs", f"{lost}.pack"))
    assert retaining.retain(node.warm, Policy(keep_last=1), NOW * 10**9) == []
    assert node.warm.roots() == sorted([first, second])


def test_the_young_stay(node: Node) -> None:
    names = promoted(node, 1, 2)
    created = node.warm.root(names[0]).created_ns
    assert retaining.retain(node.warm, Policy(1, 0, 60), created + 59 * 10**9) == []
    assert retaining.retain(node.warm, Policy(1, 0, 60), created + 60 * 10**9) == [names[0]]


def test_the_best_by_a_metric_stay() -> None:
    values = {1: 5.0, 2: 9.0, 3: -1.0, 4: 9.0, 5: None, 6: 0.0}
    known = []
    for step, value in values.items():
        stamp = roots.Stamp("j", 1, 0, "l", 0, 1, 0, metrics=(("reward", value),) if value is not None else ())
        layer = roots.LayerEntry("model", "values", "0" * 64, 1)
        known.append(roots.decode(roots.encode(roots.Draft(step, step, stamp, (layer,)).finished())))

    def steps(policy: Policy) -> list[int]:
        names = retaining.kept(known, set(), policy, 0)
        return sorted(root.step for root in known if root.name in names)

    assert steps(Policy(1, best_metric="reward")) == [4, 6]  # of equal ones the newest
    assert steps(Policy(1, best_metric="reward", keep_best=3)) == [1, 2, 4, 6]
    assert steps(Policy(1, best_metric="reward", best_is_least=True)) == [3, 6]
    assert steps(Policy(1, best_metric="loss")) == [6]


@pytest.mark.parametrize("metrics", [[["a", 1.0], ["a", 2.0]], [["a", "x"]], [["", 1]], [[1, 2]], 5, [["a", 1, 2]]])
def test_a_root_with_other_metrics_is_malformed(metrics: object) -> None:
    stamp = roots.Stamp("j", 1, 0, "l", 0, 1, 0)
    draft = roots.Draft(1, 1, stamp, (roots.LayerEntry("model", "values", "0" * 64, 1),)).finished()
    fields = json.loads(roots.encode(draft))
    fields["metrics"] = metrics
    del fields["id"]
    fields["id"] = hashes.sha256(canonical(fields))
    with pytest.raises(ValueError, match=r"metric|shape|unpack"):
        roots.decode(canonical(fields))


def test_policies_are_by_job_tenant_and_for_all() -> None:
    policies = retaining.parse('{"default": {"keep_last": 2}, "tenants": {"a": {"keep_every": 9}}, "jobs": {"j": {}}}')
    assert policies.of("b", "k") == Policy(2)
    assert policies.of("a", "k") == Policy(keep_every=9)
    assert policies.of("a", "j") == Policy()
    assert retaining.parse("") == Policies()
    for text in (
        "[",
        "[]",
        '{"x": 1}',
        '{"default": {"keep_last": 0}}',
        '{"jobs": {"j": {"keep": 1}}}',
        '{"default": {"best_metric": 5}}',
    ):
        with pytest.raises(UsageError, match=r"accepted|not JSON"):
            retaining.parse(text)
