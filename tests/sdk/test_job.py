"""The job API on a laptop, and what it says to who misuses it."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import tidegate
from tidegate import errors, protocol
from tidegate.environment import read_identity
from tidegate.session import open_job

from tests.support.libraries import needed


@pytest.fixture
def job(tmp_path: Path) -> Any:
    job = open_job(read_identity({"TIDEGATE_LOCAL_DIR": str(tmp_path / "local")}))
    yield job
    job.close()


def log(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tmp_path / "local" / "log.jsonl").read_text().splitlines()]


def reopened(tmp_path: Path) -> Any:
    return open_job(read_identity({"TIDEGATE_LOCAL_DIR": str(tmp_path / "local")}))


def test_without_an_agent_everything_works_and_is_logged(job: Any, tmp_path: Path) -> None:
    assert job.local
    assert (job.id, job.attempt, job.rank, job.world_size, job.component) == ("local", 0, 0, 1, "main")
    assert job.latest_checkpoint() is None
    with job.phase("sampling"):
        job.report({"loss": 0.5}, step=3, progress=0.1)
    job.publish("CurriculumAdvanced", level=3)
    assert job.should_stop() is False
    assert job.stop_reason is None
    assert job.stop_seconds_left is None
    job.save(model={"w": [1]}, state={"n": 3}, step=3)
    assert job.finish(result={"mean_return": 200.0})
    kinds = [entry["kind"] for entry in log(tmp_path)]
    assert kinds[0] == "hello"
    assert kinds[-1] == "finished"
    assert sorted(set(kinds)) == ["finished", "hello", "phase", "publish", "report", "saved"]
    later = reopened(tmp_path)
    assert later.latest_checkpoint().load() == {"model": {"w": [1]}, "state": {"n": 3}}
    assert later.latest_checkpoint() is later.latest_checkpoint()
    later.close()


def test_metrics_stay_with_a_checkpoint(job: Any, tmp_path: Path) -> None:
    job.save(model=[1], step=1, metrics={"reward": 2, "loss": float("nan"), "z": 0.5}, wait=True)
    (path,) = (tmp_path / "local").rglob("roots/*.json")
    assert json.loads(path.read_text())["metrics"] == [["reward", 2.0], ["z", 0.5]]
    with pytest.raises(errors.InvalidReportError, match="not one number"):
        job.save(model=[1], step=2, metrics={"reward": "high"})


def test_a_checkpoint_of_files(job: Any, tmp_path: Path) -> None:
    with job.checkpoint(4) as directory:
        (directory / "model" / "weights.bin").write_bytes(b"w")
        (directory / "optimizer" / "deep").mkdir()
        (directory / "optimizer" / "deep" / "o.bin").write_bytes(b"o")
    checkpoint = reopened(tmp_path).latest_checkpoint()
    assert (checkpoint.step, checkpoint.layers) == (4, ("model", "optimizer"))
    with checkpoint.as_directory() as directory:
        assert (directory / "optimizer" / "deep" / "o.bin").read_bytes() == b"o"


def test_an_exception_discards_a_checkpoint_of_files(job: Any, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), job.checkpoint(4) as directory:  # noqa: PT012
        (directory / "model" / "weights.bin").write_bytes(b"w")
        raise ZeroDivisionError
    checkpoints = tmp_path / "local" / "checkpoints"
    assert [path for path in checkpoints.rglob("*") if path.is_file()] == []
    assert not list(checkpoints.glob(".tmp*"))


def test_step_defaults_to_the_last_one_known(job: Any) -> None:
    job.report({}, step=12)
    assert job.save(model=[1], wait=True).step == 12


def test_a_failed_save_is_raised_by_the_next_one(job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", no_space)
        pending = job.save(model=[1], step=1)
        while not pending.done:
            pass
    with pytest.raises(errors.SaveFailedError, match=r"step 1 was not written.*No space"):
        job.save(model=[2], step=2)
    job.save(model=[2], step=2, wait=True)


@pytest.mark.parametrize("end", ["finish", "exit_suspended", "wait_saves", "close"])
def test_a_failed_save_is_raised_at_the_end(job: Any, end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", no_space)
        job.save(model=[1], step=1)
        with pytest.raises(errors.SaveFailedError):
            getattr(job, end)()


def test_exit_suspended_exits_with_75(job: Any, tmp_path: Path) -> None:
    job.save(state=[1], step=1)
    with pytest.raises(SystemExit) as caught:
        job.exit_suspended()
    assert caught.value.code == protocol.EXIT_SUSPENDED == 75
    assert log(tmp_path)[-1]["kind"] == "suspended"


CASES: list[tuple[Any, type[errors.TidegateError], str]] = [
    (lambda job: job.phase("Sampling").__enter__(), errors.InvalidNameError, "lower-case name"),
    (lambda job: job.report({"loss": "low"}), errors.InvalidReportError, "'loss' was refused: str is not one number"),
    (lambda job: job.report([1.0]), errors.InvalidReportError, "a report of a list was refused: a dict"),
    (lambda job: job.report(None), errors.InvalidReportError, "a report of a NoneType was refused"),
    (lambda job: job.report({"bad name": 1.0}), errors.InvalidNameError, "'bad name' was refused"),
    (lambda job: job.report({f"m{n}": 1.0 for n in range(65)}), errors.InvalidReportError, "64 are accepted"),
    (lambda job: job.report({}, progress=1.5), errors.InvalidReportError, "a fraction from 0 to 1"),
    (lambda job: job.report({}, progress=float("nan")), errors.InvalidReportError, "a fraction from 0 to 1"),
    (lambda job: job.report({}, step=-1), errors.UsageError, "step -1 was refused"),
    (lambda job: job.report({}, step=1.5), errors.UsageError, "a whole number"),
    (lambda job: job.publish("lower"), errors.InvalidNameError, "CurriculumAdvanced"),
    (lambda job: job.publish("JobCompleted"), errors.ReservedKindError, "one of Tidegate's own"),
    (lambda job: job.publish("Thing", x=object()), errors.InvalidPayloadError, "not JSON data"),
    (lambda job: job.publish("Thing", x=float("nan")), errors.InvalidPayloadError, "not JSON data"),
    (lambda job: job.publish("Thing", x="y" * 17_000), errors.InvalidPayloadError, "16384 are accepted"),
    (lambda job: job.publish("Thing", x=json.loads("[" * 50 + "]" * 50)), errors.InvalidPayloadError, "flatter"),
    (lambda job: job.publish("Thing", x="\ud800"), errors.InvalidPayloadError, "not JSON data"),
    (lambda job: job.save(step=1), errors.UsageError, "give at least one"),
    (lambda job: job.save(model=[1]), errors.UsageError, "pass step="),
    (lambda job: job.save(weights=[1], step=1), errors.UnknownLayerError, "layer 'weights' was refused"),
    (lambda job: job.save(state={"a": [object()]}, step=1), errors.UnsupportedObjectError, r"state\.a\[0\]"),
    (lambda job: job.finish(result={"x": "y" * 5000}), errors.InvalidPayloadError, "4096 are accepted"),
    (lambda job: job.finish(result={"x": [1]}), errors.InvalidPayloadError, "'x' was refused: list"),
]


@pytest.mark.parametrize("case", range(len(CASES)))
def test_misuse_says_what_to_do(job: Any, case: int) -> None:
    call, kind, text = CASES[case]
    with pytest.raises(kind, match=text):
        call(job)
    job.report({"fine": 1.0}, step=1)


def test_phases_do_not_nest(job: Any) -> None:
    with (
        job.phase("sampling"),
        pytest.raises(errors.NestedPhaseError, match="'learning' was refused: this process is in phase 'sampling'"),
    ):
        job.phase("learning").__enter__()
    with job.phase("learning"):
        pass


def test_a_checkpoint_of_files_needs_a_file(job: Any) -> None:
    with pytest.raises(errors.UsageError, match="without a file"), job.checkpoint(3):
        pass


def test_finish_comes_once_and_last(job: Any) -> None:
    job.finish()
    with pytest.raises(errors.AlreadyFinishedError, match="called before"):
        job.finish()
    with pytest.raises(errors.JobClosedError, match=r"report was refused after finish\(\)"):
        job.report({"x": 1.0})
    with pytest.raises(errors.JobClosedError):
        job.save(model=[1], step=1)


def test_numbers_of_other_libraries_are_reported(job: Any, tmp_path: Path) -> None:
    numpy, torch = needed("numpy"), needed("torch")
    job.report(
        {
            "a": numpy.float32(1.5),
            "b": torch.tensor(2.5),
            "c": True,
            "d": 3,
            "e": numpy.int64(4),
            "f": numpy.float64(5),
        },
        step=numpy.int64(6),
    )
    job.finish({"score": numpy.float32(0.5)})
    entries = {entry["kind"]: entry for entry in log(tmp_path)}
    assert entries["report"]["metrics"] == {"a": 1.5, "b": 2.5, "c": 1.0, "d": 3.0, "e": 4.0, "f": 5.0}
    assert entries["report"]["step"] == 6
    assert entries["finished"]["result"] == {"score": 0.5}


def test_the_environment_says_who_we_are(tmp_path: Path) -> None:
    environ = {
        "TIDEGATE_JOB_ID": "j-9",
        "TIDEGATE_ATTEMPT": "2",
        "TIDEGATE_RANK": "1",
        "TIDEGATE_WORLD_SIZE": "4",
        "TIDEGATE_COMPONENT": "simulator",
        "TIDEGATE_REPLICA": "3",
        "TIDEGATE_JOB_SEED": "42",
        "TIDEGATE_TRACE_ID": "ab" * 16,
        "TIDEGATE_DETERMINISM": "strict",
        "TIDEGATE_LOCAL_DIR": str(tmp_path),
    }
    identity = read_identity(environ)
    assert identity.seed == tidegate.seeds.derive(42, "simulator", 1, 3), "the agent's derivation, where it set none"
    assert identity.stop_group == "simulator/3"
    assert (identity.determinism, identity.trace_id) == ("strict", "ab" * 16)
    with pytest.raises(errors.EnvironmentInvalidError, match="TIDEGATE_RANK='x' was refused"):
        read_identity({**environ, "TIDEGATE_RANK": "x"})
    with pytest.raises(errors.EnvironmentInvalidError, match="TIDEGATE_CHECKPOINTS is not"):
        read_identity({"TIDEGATE_SOCKET": "/run/x.sock"})
    with pytest.raises(errors.InvalidNameError, match="stop_group"):
        read_identity(environ, "no spaces please")


def test_reserved_kinds_are_those_of_the_journal() -> None:
    events = needed("tidegate_events.events")
    own = {
        kind.__name__
        for kind in vars(events).values()
        if isinstance(kind, type) and issubclass(kind, events.Event) and kind.__struct_config__.tag == kind.__name__
    } - {"Event", "JobEvent", "AttemptEvent", "Decision"}
    assert own <= protocol.RESERVED_EVENT_KINDS
    assert len(own) > 20


# Restoring ---------------------------------------------------------------------------------------------------------


def test_layers_come_back_alone_and_from_where_they_are_asked(job: Any, tmp_path: Path) -> None:
    for step in (1, 2):
        job.save(model={"w": bytes([step]) * 5000, "deep": {"b": b"b"}}, state={"n": step}, step=step, wait=True)
    later = reopened(tmp_path)
    assert later.restore(layers=["state"]) == {"state": {"n": 2}}
    assert later.restore(layers=["state"], at=1) == {"state": {"n": 1}}
    first = later.restore(at=1)
    assert first is not None
    assert first["model"]["w"] == bytes([1]) * 5000
    assert later.restore(layers=["model"], tensors=["deep.*"]) == {"model": {"deep.b": b"b"}}
    with pytest.raises(errors.UnknownLayerError, match="holds nothing named 'v'"):
        later.restore(layers=["model"], tensors=["v"])
    with pytest.raises(errors.UsageError, match=r"no checkpoint 7: .* there are [0-9a-f]{12} \(step 2\)"):
        later.restore(at=7)
    later.close()


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(job: Any, tmp_path: Path) -> None:
    for step in (1, 2):
        job.save(model={"w": os.urandom(5000)}, state={"n": step}, step=step, wait=True)
    job.close()
    newest = max((tmp_path / "local" / "checkpoints" / "packs").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    newest.chmod(0o644)
    newest.write_bytes(b"\0" + newest.read_bytes()[1:] if newest.read_bytes()[0] else b"\1" + newest.read_bytes()[1:])
    later = reopened(tmp_path)
    found = later.restore()
    assert found is not None
    assert found["state"] == {"n": 1}
    assert later.latest_checkpoint().step == 1
    later.close()


def test_where_nothing_was_saved_nothing_is_restored(job: Any) -> None:
    assert job.restore() is None


def test_a_save_says_how_far_it_is(job: Any) -> None:
    pending = job.save(model={"w": os.urandom(5000)}, step=1, wait=True)
    assert (pending.progress, pending.done) == (1.0, True)
