"""`tidegate checkpoint` on the tiers: what is there, whole, different, exported, kept, collected, repaired."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import numpy
import pytest
import torch
from tidegate.checkpoint.store import Committed
from tidegate.tiers import repacking
from tidegate.tiers.tiers import Settings, Tiers

from tests.cli.conftest import Cli
from tests.sdk.tiers.moved import JOB, TENANT, Node


@pytest.fixture
def node(tmp_path: Path) -> Node:
    home = tmp_path / "home"
    return Node(Tiers(Settings(home / "hot", str(home / "warm"), str(home / "cold"))))


@pytest.fixture
def saved(node: Node) -> Committed:
    """Return a checkpoint that lies in all tiers."""
    committed = node.save(3)
    node.promote(committed)
    node.promote(committed, node.cold)
    return committed


def test_show_names_layers_and_tiers(offline: Cli, node: Node, saved: Committed) -> None:
    second = node.save(4)
    shown = offline("checkpoint", "show", JOB, saved.root.id[:8], "--json").document
    assert (shown["checkpoint_id"], shown["tenant"], shown["step"]) == (saved.root.id, TENANT, 3)
    assert shown["tiers"] == {"hot": [], "warm": [], "cold": []}
    assert [layer["name"] for layer in shown["layers"]] == ["model", "state"]
    newest = offline("checkpoint", "show", JOB)
    assert second.root.id in newest.out
    assert "hot: has all of it" in newest.out
    node.pack_files("cold")[0].unlink()
    assert "is in no pack" in offline("checkpoint", "show", JOB, saved.name).out


def test_what_is_not_there_is_not_found(offline: Cli, saved: Committed) -> None:
    ran = offline("checkpoint", "show", JOB, "feedc0ffee")
    assert ran.code == 4
    assert saved.root.id[:12] in ran.err
    assert offline("checkpoint", "show", "j-nobody").code == 4
    assert offline("checkpoint", "verify", JOB, "--tier", "lukewarm").code == 4
    assert offline("checkpoint", "export", JOB).code == 2


def test_nothing_is_made_where_there_are_no_tiers(offline: Cli, tmp_path: Path) -> None:
    assert offline("checkpoint", "show", "j-1").code == 4
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("command", ["gc", "scrub", "repair"])
def test_upkeep_where_there_are_no_tiers_is_an_error(offline: Cli, tmp_path: Path, command: str) -> None:
    ran = offline("checkpoint", command)
    assert (ran.code, ran.out) == (4, "")
    assert "There are no checkpoint tiers here" in ran.err
    assert "TIDEGATE_WARM" in ran.err
    assert offline("checkpoint", command, "--json").code == 4


@pytest.mark.usefixtures("saved")
@pytest.mark.parametrize("command", ["gc", "scrub", "repair", "show j-1", "verify j-1", "diff j-1 a b", "pin j-1"])
def test_a_tier_that_is_named_and_not_there_is_an_error(
    offline: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    for variable in ("TIDEGATE_HOT_DIR", "TIDEGATE_WARM", "TIDEGATE_COLD"):
        monkeypatch.setenv(variable, str(tmp_path / "nowhere"))
        ran = offline("checkpoint", *command.split())
        assert (ran.code, ran.out) == (3, "")
        assert f"{variable}={tmp_path}/nowhere is no directory" in ran.err
        monkeypatch.delenv(variable)
    monkeypatch.setenv("TIDEGATE_COLD", "nfs:cold")
    ran = offline("checkpoint", *command.split())
    assert (ran.code, "s3://BUCKET" in ran.err) == (2, True)


def test_the_hot_tier_alone_is_scrubbed_and_not_collected(
    offline: Cli, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.save(3)
    monkeypatch.setenv("TIDEGATE_HOT_DIR", str(node.tiers.hot))
    assert offline("checkpoint", "scrub").out == "1 checkpoints and 1 packs are whole.\n"
    node.damage(node.pack_files("hot")[0])
    assert offline("checkpoint", "scrub").code == 1
    ran = offline("checkpoint", "gc")
    assert (ran.code, ran.out) == (3, "")
    assert "TIDEGATE_WARM" in ran.err


@pytest.mark.parametrize("command", ["gc", "scrub", "repair"])
def test_upkeep_of_a_job_that_no_tier_holds_is_not_found(offline: Cli, saved: Committed, command: str) -> None:
    ran = offline("checkpoint", command, "j-nobody")
    assert (ran.code, ran.out) == (4, "")
    assert "j-nobody" in ran.err


def test_verify_reads_every_tier(offline: Cli, node: Node, saved: Committed) -> None:
    ran = offline("checkpoint", "verify", JOB)
    assert (ran.code, ran.err) == (0, "")
    assert "whole in hot, warm, cold" in ran.out
    node.damage(node.pack_files("warm")[0])
    ran = offline("checkpoint", "verify", JOB, "--json")
    assert ran.code == 1
    assert [damage["tier"] for damage in ran.document["damages"]] == ["warm"]
    assert offline("checkpoint", "verify", JOB, "--tier", "cold").code == 0


def test_scrub_names_damage_and_repair_ends_it(offline: Cli, node: Node, saved: Committed) -> None:
    node.damage(node.pack_files("warm")[0])
    node.damage(node.pack_files("hot")[0])
    found = offline("checkpoint", "scrub", "--json")
    assert (found.code, len(found.document["damages"])) == (1, 2)
    repaired = offline("checkpoint", "repair", JOB)
    assert repaired.code == 0
    assert repaired.out.count("repaired from cold") >= 1
    assert offline("checkpoint", "scrub").out == "3 checkpoints and 3 packs are whole.\n"
    for tier in ("hot", "warm", "cold"):
        node.damage(node.pack_files(tier)[0])
    lost = offline("checkpoint", "repair")
    assert lost.code == 1
    assert "not repaired" in lost.out


def test_gc_leaves_the_newest_and_what_is_pinned(offline: Cli, node: Node, saved: Committed) -> None:
    names = [saved.name]
    for step in (5, 6):
        committed = node.save(step)
        node.promote(committed)
        names.append(committed.name)
    assert offline("checkpoint", "pin", JOB, saved.name, "--reason", "the best").code == 0
    assert offline("checkpoint", "show", JOB, saved.name, "--json").document["pinned"] == ["cold", "warm"]
    ran = offline("checkpoint", "gc", JOB, "--keep-last", "1", "--json")
    warm = next(each for each in ran.document["collected"] if each["tier"] == "warm")
    assert warm["retired"] == [names[1]]
    assert warm["quarantined"]
    assert node.warm.roots() == [names[0], names[2]]
    assert offline("checkpoint", "pin", JOB, saved.name, "--remove").code == 0
    ran = offline("checkpoint", "gc", "--keep-last", "1", "--pause-seconds", "0")
    assert ran.code == 0
    assert node.warm.roots() == [names[2]]
    offline("checkpoint", "gc", "--pause-seconds", "0")
    assert len(node.warm.packs()) == 1


def test_gc_writes_what_lives_of_dead_packs_again(offline: Cli, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repacking, "DEAD_BYTES_MIN", 10_000)
    frozen = os.urandom(30_000)
    for step in (1, 2):
        node.promote(node.save(step, model={"frozen": frozen, "w": os.urandom(200_000)}))
    ran = offline("checkpoint", "gc", JOB, "--keep-last", "1", "--json")
    warm = next(each for each in ran.document["collected"] if each["tier"] == "warm")
    assert (len(warm["retired"]), len(warm["repacked"]), warm["repacking_failed"]) == (1, 1, None)
    assert f"packs/{warm['repacked'][0]}.pack" in warm["quarantined"]
    assert "1 retired" not in offline("checkpoint", "gc", JOB).out
    assert offline("checkpoint", "verify", JOB, "--tier", "warm").code == 0
    for path in node.pack_files("warm"):
        node.damage(path)
    monkeypatch.setattr(repacking, "DEAD_BYTES_MIN", 0)
    monkeypatch.setattr(repacking, "DEAD_PERCENT_MIN", 0)
    failed = offline("checkpoint", "gc", JOB)
    assert failed.code == 0
    assert "no pack was written again" in failed.err
    assert "is damaged" in failed.err


def test_diff_names_tensors(offline: Cli, node: Node) -> None:
    weights = os.urandom(40_000)
    first = node.save(1, model={"a": weights, "b": b"x" * 5000, "n": 1}, state={"step": 1})
    second = node.save(2, model={"a": weights, "c": b"y" * 5000, "n": 2}, state={"step": 1})
    ran = offline("checkpoint", "diff", JOB, first.name, second.name, "--json")
    model, state = ran.document["layers"]
    assert (model["status"], model["added"], model["removed"]) == ("changed", ["c"], ["b"])
    assert model["changed"] == ["(other values)"]
    assert model["shared_bytes"] == 40_000
    assert state["status"] == "same"
    assert "~ (other values)" in offline("checkpoint", "diff", JOB, first.name, second.name).out


def test_export_writes_what_safetensors_reads(offline: Cli, node: Node, tmp_path: Path) -> None:
    base = torch.arange(48, dtype=torch.float32).reshape(6, 8)
    model = {
        "w": base,
        "t": base.t(),
        "half": torch.ones(3000, dtype=torch.bfloat16),
        "none": torch.zeros(0, 4),
        "n": numpy.arange(2000, dtype=numpy.int64),
        "nested": {"flag": torch.tensor(True)},
        "note": b"text",
    }
    node.promote(node.save(1, model=model))
    node.damage(node.pack_files("hot")[0])
    target = tmp_path / "model.safetensors"
    ran = offline("checkpoint", "export", JOB, "--safetensors", str(target), "--json")
    assert (ran.code, ran.document["tensors"], ran.document["left_out"]) == (0, 6, ["note"])
    read = _read(target)
    assert torch.equal(read["w"], base)
    assert torch.equal(read["t"], base.t())
    assert torch.equal(read["half"], model["half"])
    assert read["none"].shape == (0, 4)
    assert read["n"].tolist() == list(range(2000))
    assert bool(read["nested.flag"])
    again = offline("checkpoint", "export", JOB, "--safetensors", str(target))
    assert (again.code, "there already" in again.err) == (3, True)
    assert offline("checkpoint", "export", JOB, "--layer", "state", "--safetensors", str(tmp_path / "s")).code != 0


def _read(path: Path) -> dict[str, torch.Tensor]:
    """Read a safetensors file by its specification alone."""
    types = {"F32": torch.float32, "BF16": torch.bfloat16, "I64": torch.int64, "BOOL": torch.bool}
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    assert length % 8 == 0
    header.pop("__metadata__")
    body, end, found = bytearray(data[8 + length :]), 0, {}
    for name, entry in header.items():
        start, stop = entry["data_offsets"]
        assert start == end
        end = stop
        flat = torch.frombuffer(body[start:stop], dtype=types[entry["dtype"]]) if stop > start else torch.empty(0)
        found[name] = flat.reshape(entry["shape"])
    assert end == len(body)
    return found
