"""Checkpoints move between tiers: compared before they count, from the nearest that is whole, never sent twice."""

from __future__ import annotations

from pathlib import Path

import pytest
from tidegate.errors import CheckpointError, CorruptCheckpointError, UsageError
from tidegate.tiers.bandwidth import Bandwidth
from tidegate.tiers.objects import TierUnavailableError, opened
from tidegate.tiers.tiers import Settings, Tiers, from_environment

from tests.sdk.tiers.moved import JOB, TENANT, Node, layers


def test_what_was_promoted_is_resumed_on_another_node(node: Node, elsewhere: Node) -> None:
    committed = node.save(5)
    moved = node.promote(committed)
    assert (moved.sources, moved.kept) == (["hot"], 0)
    assert elsewhere.fetch(committed.name).sources == ["warm"]
    found = elsewhere.find()
    assert found.committed.root == committed.root
    assert found.skipped == 0


def test_what_is_there_is_not_sent_again(node: Node) -> None:
    value = layers(1)
    first = node.save(1, **value)
    sent = node.promote(first).sent
    second = node.save(2, model=value["model"], state={"step": 2, "raw": b"x" * 9000})
    again = node.promote(second)
    assert sent > 0
    assert again.kept == sent
    assert node.promote(second).sent == 0


def test_an_interrupted_move_names_nothing_and_goes_on(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    committed = node.save(1)
    monkeypatch.setattr(type(node.warm), "put_manifests", _refuse)
    with pytest.raises(TierUnavailableError):
        node.promote(committed)
    assert node.warm.roots() == []
    assert node.warm.packs()
    monkeypatch.undo()
    assert node.promote(committed).sent == 0
    assert node.warm.roots() == [committed.name]


def _refuse(*_: object) -> None:
    raise TierUnavailableError("the tier went away")


def test_a_damaged_pack_is_not_promoted(node: Node) -> None:
    committed = node.save(1)
    node.damage(node.pack_files("hot")[0])
    with pytest.raises(CorruptCheckpointError, match="offset 0 is damaged"):
        node.promote(committed)
    assert node.warm.roots() == []


def test_restore_falls_through_to_the_next_tier(node: Node, elsewhere: Node) -> None:
    committed = node.save(1)
    node.promote(committed)
    node.promote(committed, node.cold)
    for path in node.pack_files("warm"):
        node.damage(path)
    assert elsewhere.fetch(committed.name).sources == ["cold"]
    assert elsewhere.find().skipped == 0


def test_what_no_tier_holds_whole_is_refused_with_every_reason(node: Node, elsewhere: Node) -> None:
    committed = node.save(1)
    node.promote(committed)
    node.damage(node.pack_files("warm")[0])
    with pytest.raises(CorruptCheckpointError, match=r"could be taken from no tier: .*damaged.*is not in cold"):
        elsewhere.fetch(committed.name)
    assert not list((elsewhere.store / "roots").iterdir())
    with pytest.raises(CorruptCheckpointError, match=r"is not in warm.*is not in cold"):
        elsewhere.fetch("000000000009-1-abcdefgh")


def test_another_checkpoint_under_the_same_name_is_never_overwritten(node: Node) -> None:
    committed = node.save(1)
    node.promote(committed)
    path = Path(node.warm.objects.address) / TENANT / JOB / "roots" / f"{committed.name}.json"
    path.write_bytes(b"{}")
    with pytest.raises(CheckpointError, match="never overwritten"):
        node.promote(committed)
    assert path.read_bytes() == b"{}"


def test_a_name_that_leads_elsewhere_is_refused(tiers: Tiers) -> None:
    with pytest.raises(CorruptCheckpointError, match="names no checkpoints"):
        tiers.of_job("..", "j-1")


def test_what_else_lies_in_a_tier_is_no_job(node: Node, tmp_path: Path) -> None:
    node.promote(node.save(1))
    for stray in ("lost+found/x", ".hidden/j", "lab/j 2"):
        (tmp_path / "warm" / stray).mkdir(parents=True)
    assert node.tiers.jobs() == [(TENANT, JOB)]


def test_a_tier_is_a_directory_or_s3(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="an absolute directory or s3"):
        opened("warm")
    with pytest.raises(TierUnavailableError, match="not mounted"):
        opened(str(tmp_path / "absent"), make=False)


def test_settings_say_where_the_tiers_are(tmp_path: Path) -> None:
    home = from_environment({}, tmp_path)
    assert home == Settings(tmp_path / "hot", str(tmp_path / "warm"), str(tmp_path / "cold"))
    named = from_environment(
        {"TIDEGATE_HOT_DIR": "/h", "TIDEGATE_COLD": "s3://b/c", "TIDEGATE_TIER_MIB_PER_SECOND": "5"}
    )
    assert named == Settings(Path("/h"), None, "s3://b/c", 5)
    each = {"TIDEGATE_WARM_MIB_PER_SECOND": "7", "TIDEGATE_COLD_MIB_PER_SECOND": "2"}
    assert from_environment({"TIDEGATE_HOT_DIR": "/h", **each}) == Settings(Path("/h"), None, None, 0, 7, 2)
    for variable in each:
        with pytest.raises(UsageError, match=f"{variable}=.*whole number"):
            from_environment({"TIDEGATE_HOT_DIR": "/h", variable: "-1"})
    with pytest.raises(UsageError, match="whole number"):
        from_environment({"TIDEGATE_HOT_DIR": "/h", "TIDEGATE_TIER_MIB_PER_SECOND": "fast"})
    with pytest.raises(UsageError, match="TIDEGATE_HOT_DIR"):
        from_environment({})


def test_bandwidth_is_kept_over_all_that_share_it() -> None:
    clock = [100.0]
    bandwidth = Bandwidth(1000, now=lambda: clock[0], sleep=lambda seconds: clock.__setitem__(0, clock[0] + seconds))
    for _ in range(10):
        bandwidth.take(500)
    assert 4.5 <= clock[0] - 100.0 <= 5.0
    free = Bandwidth(sleep=lambda seconds: pytest.fail("it waited"))
    free.take(1 << 40)


def test_each_tier_has_a_bound_within_that_of_all(tmp_path: Path) -> None:
    clock = [100.0]

    def bound(rate: int, within: Bandwidth | None = None) -> Bandwidth:
        def sleep(seconds: float) -> None:
            clock[0] += seconds

        return Bandwidth(rate, now=lambda: clock[0], sleep=sleep, within=within)

    whole = bound(1000)
    warm, cold = bound(0, whole), bound(100, whole)
    for _ in range(10):
        warm.take(500)
    assert 4.5 <= clock[0] - 100.0 <= 5.0, "as fast as all together may be"
    began = clock[0]
    for _ in range(10):
        cold.take(50)
    assert 4.5 <= clock[0] - began <= 5.0, "as fast as it may be itself"
    opened_tiers = Tiers(Settings(tmp_path / "hot", str(tmp_path / "warm"), str(tmp_path / "cold"), 8, 4, 2))
    assert [held.bandwidth.bytes_per_second for _, held in opened_tiers.shared] == [4 << 20, 2 << 20]


def test_a_move_takes_of_the_bandwidth_what_it_sends_and_reads_back(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []
    monkeypatch.setattr(Bandwidth, "take", lambda self, size_bytes: taken.append(size_bytes))
    committed = node.save(1)
    node.promote(committed)
    (pack,) = node.pack_files("hot")
    assert 2 * pack.stat().st_size <= sum(taken) <= 2 * pack.stat().st_size + 20_000
