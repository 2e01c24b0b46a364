"""DTensors as FSDP2 and tensor parallelism make them, in real process groups: saved together, whole or in parts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tidegate.checkpoint.handle import Checkpoint
from tidegate.checkpoint.store import CheckpointStore

from tests.support import stores
from tests.support.libraries import needed
from tests.support.stores import STAMP

torch = needed("torch")
needed("torch.distributed.tensor")

PROLOGUE = """
import os, sys, warnings
from dataclasses import replace
from pathlib import Path
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from tidegate import UnsupportedObjectError
from tidegate.checkpoint import layer, sharding, snapshot as snapshots
from tidegate.checkpoint.commit import Occasion
from tidegate.checkpoint.direct import Arenas
from tidegate.checkpoint.gathering import Meeting
from tidegate.checkpoint.store import CheckpointStore
from tests.support.stores import STAMP

warnings.simplefilter("ignore")
top, rank, world = Path(sys.argv[1]), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo", init_method=f"file://{top}/meet", rank=rank, world_size=world)

def save(model):
    stamp = replace(STAMP, rank=rank, world_size=world)
    store = CheckpointStore(top / "store", stamp)
    meeting = Meeting(sharding.key(1, stamp, 1), rank, world, 60)
    return store.save_part(Occasion(1, stamp), snapshots.take({"model": model}, Arenas(0)), meeting)
"""

PLACED = """
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "parts"))
whole = torch.arange(7 * 5, dtype=torch.float32).reshape(7, 5)
large = torch.arange(1100 * 3, dtype=torch.float32).reshape(1100, 3).to(torch.bfloat16)
save({
    "both": distribute_tensor(whole, mesh, [Shard(0), Shard(1)]),
    "rows": distribute_tensor(whole, mesh, [Replicate(), Shard(0)]),
    "columns": distribute_tensor(large, mesh, [Shard(1), Replicate()]),
    "everywhere": distribute_tensor(whole, mesh, [Replicate(), Replicate()]),
    "few": distribute_tensor(whole[:1], mesh, [Replicate(), Shard(0)]),
})
"""

TRAINED = """
from torch.distributed.fsdp import fully_shard
torch.manual_seed(5)
net = torch.nn.Sequential(torch.nn.Linear(33, 65), torch.nn.ReLU(), torch.nn.Linear(65, 3))
for part in (net[0], net[2], net):
    fully_shard(part, mesh=init_device_mesh("cpu", (world,)))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
net(torch.ones(4, 33)).sum().backward()
optimizer.step()
state = net.state_dict()
assert all(isinstance(value, DTensor) for value in state.values())
save({"net": state, "moments": {str(n): optimizer.state[p]["exp_avg"] for n, p in enumerate(net.parameters())}})
full = {name: value.full_tensor() for name, value in state.items()}
if rank == 0:
    torch.save(full, top / "expected.pt")
"""

REFUSED = """
mesh = init_device_mesh("cpu", (2,))
one = DTensor.from_local(torch.ones(3), mesh, [Partial()])
outside = init_device_mesh("cpu", (1,))
for value, why in ((one, "Partial"), (distribute_tensor(torch.ones(4), outside, [Shard(0)]), "not in")):
    if why == "not in" and rank == 0:
        continue
    try:
        layer.describe("model", {"deep": [value]})
    except UnsupportedObjectError as error:
        assert "model.deep[0] was refused" in str(error) and why in str(error), error
    else:
        raise AssertionError(why)
"""


def run(top: Path, program: str, world: int) -> None:
    """Run a program in processes of one group; each has to end well."""
    stores.opened(top / "store")
    (top / "program.py").write_text(PROLOGUE + program)
    environment = os.environ | {
        "WORLD_SIZE": str(world),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    members = [
        subprocess.Popen(
            [sys.executable, str(top / "program.py"), str(top)],
            env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    try:
        said = [member.communicate(timeout=120)[1] for member in members]
    finally:
        for member in members:
            member.kill()
    assert [member.returncode for member in members] == [0] * world, said


def loaded(top: Path) -> Checkpoint:
    (item,) = CheckpointStore(top / "store", STAMP).committed()
    return Checkpoint(item)


def test_every_placement_loads_whole_and_in_parts(tmp_path: Path) -> None:
    run(tmp_path, PLACED, 4)
    whole = torch.arange(35, dtype=torch.float32).reshape(7, 5)
    large = torch.arange(3300, dtype=torch.float32).reshape(1100, 3).to(torch.bfloat16)
    found = loaded(tmp_path).load("model")["model"]
    expected = {"both": whole, "rows": whole, "columns": large, "everywhere": whole, "few": whole[:1]}
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert type(found[name]) is torch.Tensor
        assert torch.equal(found[name], tensor), name
    parts = [loaded(tmp_path).load("model", part=(at, 3))["model"]["both"].data for at in range(3)]
    assert torch.equal(torch.cat(parts), whole)


def test_a_model_and_its_moments_under_fsdp(tmp_path: Path) -> None:
    run(tmp_path, TRAINED, 2)
    expected = torch.load(tmp_path / "expected.pt", weights_only=True)
    found = loaded(tmp_path).load("model")["model"]
    assert found["net"].keys() == expected.keys()
    assert all(torch.equal(found["net"][name], expected[name]) for name in expected)
    net = torch.nn.Sequential(torch.nn.Linear(33, 65), torch.nn.ReLU(), torch.nn.Linear(65, 3))
    net.load_state_dict(found["net"])
    assert [moment.shape for moment in found["moments"].values()] == [p.shape for p in net.parameters()]


def test_what_cannot_be_put_together_is_refused_by_name(tmp_path: Path) -> None:
    run(tmp_path, REFUSED, 2)
