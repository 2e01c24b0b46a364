"""Policies and costs by name or by file, and what is said of those that cannot be used."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tidegate_events import events as e
from tidegate_events.resources import Resources
from tidegate_scheduler import draft
from tidegate_scheduler.policy.parameters import Parameters
from tidegate_scheduler.simulator import choice
from tidegate_scheduler.simulator.costs import Costs
from tidegate_scheduler.simulator.errors import InputError
from tidegate_scheduler.simulator.workload import Span, Truth

from tests.scheduler.simulator.small import arrival, ends, node, run, workload
from tests.support.cluster import spec

SMALL = workload([node("n1")], arrival("a", 0, spec(gpus=1), 10))


def written(tmp_path: Path, document: object) -> str:
    path = tmp_path / "policy.json"
    path.write_bytes(msgspec.json.encode(document))
    return str(path)


def test_a_bare_name_is_a_policy_as_it_is_by_itself() -> None:
    rules = choice.rules_for(choice.choose("elastic"), SMALL)
    assert (rules.name, rules.parameters, rules.knows_durations, rules.queues) == ("elastic", Parameters(), False, ())
    assert ends(run(SMALL, rules=rules)) == {"a": 11}


@pytest.mark.parametrize("name", choice.NAMES)
def test_every_name_makes_rules_under_which_jobs_end(name: str) -> None:
    work = workload(
        [node("n1"), node("n2")],
        *(arrival(f"j{number}", number, spec(gpus=1 + number % 4, expected_seconds=20), 20) for number in range(8)),
    )
    result = run(work, rules=choice.rules_for(choice.choose(name), work))
    assert [job.outcome for job in result.jobs] == ["completed"] * 8


def test_a_file_says_what_differs(tmp_path: Path) -> None:
    document = {
        "rules": "elastic",
        "parameters": {"ageing_seconds": 0, "preemptions_max": 3},
        "estimates": True,
        "queues": [{"tenant": "t", "weight": 2, "guaranteed": {"gpus": 4}}],
    }
    rules = choice.rules_for(choice.choose(written(tmp_path, document)), SMALL)
    assert rules.parameters == Parameters(ageing_seconds=0, preemptions_max=3)
    assert (rules.knows_durations, rules.name) == (True, "elastic with estimates")
    assert [(each.tenant, each.weight, each.guaranteed) for each in rules.queues] == [("t", 2, Resources(gpus=4))]


def test_a_queue_bounds_what_its_tenant_has(tmp_path: Path) -> None:
    work = workload([node("n1")], arrival("a", 0, spec(gpus=2), 10), arrival("b", 1, spec(gpus=2), 10))
    document = {"rules": "elastic", "queues": [{"tenant": "t", "ceiling": {"gpus": 2}}]}
    rules = choice.rules_for(choice.choose(written(tmp_path, document)), work)
    assert ends(run(work)) == {"a": 11, "b": 12}
    assert ends(run(work, rules=rules)) == {"a": 11, "b": 22}


def test_a_stopped_queue_is_stopped_from_the_beginning(tmp_path: Path) -> None:
    document = {"rules": "elastic", "queues": [{"tenant": "t", "stopped": True}]}
    rules = choice.rules_for(choice.choose(written(tmp_path, document)), SMALL)
    assert ends(run(SMALL, rules=rules)) == {"a": None}


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ({"rules": "magic"}, "there are no rules 'magic'; accepted are elastic, fifo"),
        ({}, "missing required field `rules`"),
        ([], "Expected `object`"),
        ({"rules": "elastic", "parameter": {}}, "unknown field `parameter`"),
        ({"rules": "elastic", "parameters": {"aging": 1}}, "there are no parameters aging; accepted are"),
        ({"rules": "elastic", "parameters": {"ageing_seconds": -1}}, "the parameters are refused: Expected `int` >= 0"),
        ({"rules": "elastic", "parameters": {"ageing_seconds": "1"}}, "Expected `int`, got `str`"),
        ({"rules": "elastic", "queues": [{"tenant": "a", "weight": 0}]}, "the weight of the queue of a is less than 1"),
        (
            {"rules": "elastic", "queues": [{"tenant": "a", "ceiling": {"gpus": -3}}]},
            "the queue of a is bounded by less than nothing; 0 is the least",
        ),
        ({"rules": "elastic", "queues": [{"tenant": "a", "gpus": 0}]}, "unknown field `gpus`"),
        ({"rules": "elastic", "queues": [{"tenant": "a"}, {"tenant": "a"}]}, "the queue of a is said more than once"),
        (
            {"rules": "fifo", "queues": [{"tenant": "t", "weight": 2, "ceiling": {"gpus": 1}}]},
            "fifo reads no weights and guarantees, as the queue of t has; accepted are `ceiling` and `stopped`, or",
        ),
        (
            {"rules": "easy", "parameters": {"slice_steps": 3}},
            "easy does not read slice_steps; it reads node_lost_seconds",
        ),
        ({"rules": "srtf", "estimates": False}, "srtf reads no estimates, .* or one of elastic, easy"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path, document: object, why: str) -> None:
    with pytest.raises(InputError, match=why):
        choice.choose(written(tmp_path, document))


def test_a_queue_of_somebody_who_is_not_there_is_refused() -> None:
    arrivals = [arrival(f"j{number}", 0, spec(tenant=f"t{number:02}"), 10) for number in range(10)]
    chosen = choice.Choice("elastic", queues=(choice.QueueChoice("t3"),))
    with pytest.raises(InputError, match=r"there is no tenant 't3' here for a queue; accepted are t00, .* and 2 more"):
        choice.rules_for(chosen, workload([node("n1")], *arrivals))
    assert choice.rules_for(chosen, workload([node("n1")], *arrivals), ["t3"]).queues[0].tenant == "t3"


def test_what_baselines_are_said_to_read_is_what_they_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more and no less, whatever happens to jobs: nodes and jobs fail, one takes too long, one fits nowhere."""
    read: set[str] = set()

    class Noted(Parameters, frozen=True):
        def __getattribute__(self, name: str) -> object:
            if not name.startswith("_"):
                read.add(name)
            return super().__getattribute__(name)

    monkeypatch.setattr(draft, "as_parameters", lambda values: msgspec.convert(values, Noted))
    window = e.MaintenancePlanned(
        id="m", at_ns=0, actor="a", name="m", nodes=("n2",), start_ns=10**12, end_ns=2 * 10**12
    )
    work = workload(
        [node("n1"), node("n2")],
        *(arrival(f"j{number}", number, spec(gpus=2, attempts=2), 4000) for number in range(6)),
        arrival("fails", 3, spec(gpus=1, attempts=2), Truth((Span("default", 50),), fails_after_seconds=20)),
        arrival("overruns", 4, spec(gpus=1, time_limit_seconds=30), 600),
        arrival("large", 5, spec(gpus=16), 60),
        facts=(window,),
    )
    costs = Costs(node_failures_per_day_millis=24_000, node_repair_seconds=90)
    for name in choice.BASELINES:
        run(work, costs, rules=choice.rules_for(choice.Choice(name), work))
    assert read == set(choice.SETTLING)


def test_what_is_neither_a_name_nor_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no policy 'elastc': accepted are elastic, fifo"):
        choice.choose("elastc")
    with pytest.raises(InputError, match="No such file or directory; accepted is a JSON object with rules, parameters"):
        choice.choose(str(tmp_path / "none.json"))
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(InputError, match="is refused: Input data was truncated"):
        choice.choose(str(tmp_path / "broken.json"))


@pytest.mark.parametrize(
    ("document", "doubled"),
    [
        ('{"rules": "fifo", "rules": "elastic"}', "'rules'"),
        ('{"rules": "elastic", "parameters": {"ageing_seconds": 0, "ageing_seconds": 9}}', "'ageing_seconds'"),
        ('{"rules": "elastic", "queues": [{"tenant": "a", "weight": 2, "weight": 3}]}', "'weight'"),
    ],
)
def test_a_file_that_says_something_twice_is_refused(tmp_path: Path, document: str, doubled: str) -> None:
    (tmp_path / "policy.json").write_text(document)
    with pytest.raises(InputError, match=f"says {doubled} more than once; accepted is each once"):
        choice.choose(str(tmp_path / "policy.json"))


def test_costs_are_stated_in_a_file(tmp_path: Path) -> None:
    found = choice.costs_in(Path(written(tmp_path, {"start_ms": 5000, "checkpoint_seconds": 60})))
    assert found == Costs(start_ms=5000, checkpoint_seconds=60)
    with pytest.raises(InputError, match="Expected `int` >= 1"):
        choice.costs_in(Path(written(tmp_path, {"pass_interval_ms": 0})))
    with pytest.raises(InputError, match="unknown field `start`"):
        choice.costs_in(Path(written(tmp_path, {"start": 5000})))
