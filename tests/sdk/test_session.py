"""A process's one job: opened once, left at exit, not inherited by a fork; and the whole of it on the oldest Python."""

import ast
import asyncio
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tidegate
from tidegate import aio, session
from tidegate.member import Member
from tidegate.phasing import Phasing

SDK = Path(tidegate.__file__).parents[1]
IN_JOB = [
    path
    for path in sorted((SDK / "tidegate").rglob("*.py"))
    if path.relative_to(SDK / "tidegate").parts[0] not in ("client", "client.py", "cli", "tiers")
]
SPARED = {"numpy", "zstandard", "blake3"}
"""What makes checkpoints faster where the job's interpreter has it."""


def run(code: str, tmp_path: Path, python: str = sys.executable, **environ: str) -> "subprocess.CompletedProcess[str]":
    # -S and -I: neither site-packages nor the directory, so that only the standard library can be imported.
    program = f"import sys; sys.path.insert(0, {str(SDK)!r})\n{code}"
    return subprocess.run(
        [python, "-I", "-S", "-W", "error", "-c", program],
        env={"TIDEGATE_LOCAL_DIR": str(tmp_path), "PATH": os.environ["PATH"], **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_init_returns_the_same_job_and_current_finds_it(tmp_path: Path) -> None:
    done = run(
        """
import tidegate
try:
    tidegate.current()
except tidegate.NotInitialisedError as error:
    print(error)
job = tidegate.init()
assert tidegate.init() is job is tidegate.current()
job.finish()
assert tidegate.init() is not job
""",
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "no job is open in this process: call tidegate.init() first\n"


def test_pending_saves_are_written_at_exit(tmp_path: Path) -> None:
    done = run("import tidegate\ntidegate.init().save(state=list(range(100000)), step=1)", tmp_path)
    assert done.returncode == 0, done.stderr
    assert [path.name[:12] for path in (tmp_path / "checkpoints").rglob("roots/*")] == ["000000000001"]


def test_a_save_that_failed_unseen_is_not_exit_code_zero(tmp_path: Path) -> None:
    done = run(
        """
import os, tidegate
job = tidegate.init()
def no_space(descriptor):
    raise OSError(28, "No space left on device")
os.fsync = no_space
job.save(state=[1], step=1)
print("the loop ended")
""",
        tmp_path,
    )
    assert done.returncode == 74
    assert "No space left on device" in done.stderr
    assert done.stdout == "the loop ended\n"


def test_a_fork_has_to_join_by_itself(tmp_path: Path) -> None:
    done = run(
        """
import os, tidegate
job = tidegate.init()
job.report({"x": 1.0})
child = os.fork()
if child == 0:
    try:
        job.publish("Thing")
    except tidegate.JobClosedError as error:
        print(error, flush=True)
    own = tidegate.init()
    own.publish("Thing")
    assert own is not job
    own.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
job.publish("Thing")
""",
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "publish was refused after a fork: call tidegate.init() in the child\n"


def test_the_client_is_an_extra(tmp_path: Path) -> None:
    done = run(
        """
import tidegate
sys.modules["tidegate.client"] = None  # as if what it needs were not installed
try:
    tidegate.Client
except tidegate.MissingExtraError as error:
    print(error)
assert not hasattr(tidegate, "other")
""",
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "pip install 'tidegate[cli]'" in done.stdout


def test_the_version_is_that_of_the_distribution() -> None:
    declared = tomllib.loads((SDK / "pyproject.toml").read_text())["project"]
    assert tidegate.__version__ == declared["version"]
    assert declared["requires-python"] == ">=3.9"
    assert declared["dependencies"] == []


@pytest.mark.parametrize("path", IN_JOB, ids=lambda path: str(path.relative_to(SDK)))
def test_what_a_job_imports_is_python_3_9(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 9))
    tried = {id(each) for node in ast.walk(tree) if isinstance(node, ast.Try) for each in node.body}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            for name in names:
                top = name.split(".")[0]
                guarded = top in SPARED and (id(node) in tried or path.name == "arrays.py")
                assert top == "tidegate" or guarded or top in sys.stdlib_module_names, f"{path.name} imports {name}"


WHOLE = """
import asyncio, tidegate
import tidegate.aio, tidegate.checkpoint.adopt
job = tidegate.init()
with job.phase("sampling"):
    job.report({"loss": 0.5}, step=1, progress=0.5)
job.publish("Thing", x=1)
job.save(model={"w": (1, 2.5, b"x")}, state=[None], step=1, wait=True)
with job.checkpoint(2) as directory:
    (directory / "model" / "w").write_bytes(b"w")
assert job.should_stop() is False
job.finish({"x": 1})
job = tidegate.init()
assert job.latest_checkpoint().step == 2
print("whole")
"""


def pythons() -> list[str]:
    """Return this interpreter, and the older and newer ones that happen to be installed and work."""
    found = [shutil.which(f"python3.{minor}") for minor in range(9, 15)]
    works = [
        path
        for path in found
        if path and subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0
    ]
    return [sys.executable, *works]


@pytest.mark.parametrize("python", pythons())
def test_a_whole_run_with_the_standard_library_only(tmp_path: Path, python: str) -> None:
    done = run(WHOLE, tmp_path, python=python)
    assert (done.returncode, done.stdout) == (0, "whole\n"), done.stderr


async def test_the_async_mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_LOCAL_DIR", str(tmp_path))
    monkeypatch.delenv("TIDEGATE_SOCKET", raising=False)
    monkeypatch.setattr(session, "_job", None)
    job = await aio.init()
    assert (job.id, job.rank, job.seed, job.local) == ("local", 0, job.seeds.process, True)
    assert await job.latest_checkpoint() is None
    async with job.phase("sampling"):
        job.report({"loss": 0.5}, step=1)
    await job.publish("Thing", x=1)
    assert await job.should_stop() is False
    saved = await (await job.save(model=[1], step=1)).wait()
    async with job.checkpoint(2) as directory:
        (directory / "model" / "w").write_bytes(b"w")
    with pytest.raises(ZeroDivisionError):
        async with job.checkpoint(3) as directory:
            raise ZeroDivisionError
    with pytest.raises(tidegate.NestedPhaseError):
        async with job.phase("sampling"), job.phase("learning"):
            pass
    assert (saved.step, await saved.load("model")) == (1, {"model": [1]})
    await job.wait_saves()
    with pytest.raises(SystemExit) as caught:
        await job.exit_suspended()
    assert caught.value.code == 75
    again = await aio.init()
    checkpoint: Any = await again.latest_checkpoint()
    async with checkpoint.as_directory() as directory:
        assert (directory / "model" / "w").read_bytes() == b"w"
    assert await again.finish({"x": 1})


def test_the_async_mirror_has_the_same_names() -> None:
    mirrored = {name for name in vars(aio.AsyncJob) if not name.startswith("_")} | aio._PROPERTIES
    own = {name for kind in (Member, Phasing, tidegate.Job) for name in vars(kind) if not name.startswith("_")}
    assert own - mirrored == {"acknowledge_suspension"}
    assert all(
        asyncio.iscoroutinefunction(getattr(aio.AsyncJob, name))
        for name in (
            "latest_checkpoint",
            "publish",
            "restore",
            "should_stop",
            "save",
            "finish",
            "exit_suspended",
            "close",
        )
    )
