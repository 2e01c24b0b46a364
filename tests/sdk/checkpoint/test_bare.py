"""The store with the standard library alone, and what passes between that and an interpreter that has more."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import tidegate
from tidegate.checkpoint.handle import Checkpoint

from tests.support import stores

BARE = """
import sys
for name in ("blake3", "numpy", "zstandard"):
    sys.modules[name] = None
import random
from pathlib import Path
from tidegate.checkpoint import hashes, root as roots, snapshot
from tidegate.checkpoint.commit import Occasion
from tidegate.checkpoint.direct import Arenas
from tidegate.checkpoint.handle import Checkpoint
from tidegate.checkpoint.store import CheckpointStore
from tidegate.errors import TidegateError

assert hashes.BEST == "blake2b"
stamp = roots.Stamp("j-1", 1, 0, "learner", 0, 1, 42)
store = CheckpointStore(Path(sys.argv[1]), stamp)
store.open()

def content(step):
    numbers = bytearray(random.Random(1).randbytes(9000))
    numbers[step] ^= 1
    return {"model": {"numbers": bytes(numbers), "zeros": bytes(20000)}}

if sys.argv[2] == "save":
    kept = None
    for step in (1, 2, 3):
        committed, kept = store.save(Occasion(step, stamp), snapshot.take(content(step), Arenas(0)), kept)
        assert Checkpoint(committed).load() == content(step)
else:
    (item,) = store.committed()
    try:
        Checkpoint(item).load()
    except TidegateError as error:
        print(error)
"""


def bare(directory: Path, what: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", BARE, str(directory), what], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_what_a_bare_interpreter_saved_is_read_anywhere(tmp_path: Path) -> None:
    bare(tmp_path, "save")
    found = stores.opened(tmp_path).committed()
    assert [item.root.step for item in found] == [3, 2, 1]
    for item in found:
        numbers = bytearray(random.Random(1).randbytes(9000))
        numbers[item.root.step] ^= 1
        assert Checkpoint(item).load() == {"model": {"numbers": bytes(numbers), "zeros": bytes(20000)}}
    smallest = min(path.stat().st_size for path in (tmp_path / "packs").iterdir())
    assert smallest == 3 * 4096, "a step is stored as its difference: one block, an index and a footer"


def test_what_a_bare_interpreter_cannot_read_is_refused_by_name(tmp_path: Path) -> None:
    stores.save(tmp_path, 1, model={"w": random.Random(1).randbytes(9000)})
    assert "named by blake3, which this interpreter lacks: install the package blake3" in bare(tmp_path, "load")


@pytest.mark.parametrize("module", ["layer", "store", "saver", "adopt", "handle"])
def test_the_store_imports_nothing_but_the_standard_library_where_nothing_else_is(module: str) -> None:
    code = f"""
import sys
for name in ("blake3", "numpy", "zstandard"):
    sys.modules[name] = None
import tidegate.checkpoint.{module}
allowed = sys.stdlib_module_names | {{"tidegate", "__main__"}}
other = {{name.partition(".")[0] for name, module in sys.modules.items() if module is not None}} - allowed
print(sorted(name for name in other if not name.startswith("_")))
"""
    # Without `site` nothing of the environment is found, Tidegate neither: only that is named.
    environment = {**os.environ, "PYTHONPATH": str(Path(tidegate.__file__).parents[1])}
    ran = subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, text=True, check=False, env=environment
    )
    assert (ran.returncode, ran.stdout.strip()) == (0, "[]"), ran.stderr
