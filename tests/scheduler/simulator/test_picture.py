"""Pictures: the numbers that they show, that the same runs give the same bytes, and what is said where none can be."""

from __future__ import annotations

from importlib import util
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidegate.cli.exits import ENVIRONMENT, REFUSED, USAGE, CommandError
from tidegate_scheduler.simulator import gantt, picture
from tidegate_scheduler.simulator.costs import Costs
from tidegate_scheduler.simulator.run import JobRun, Run, Sample, Stay

SECOND = 1_000_000_000
PNG = b"\x89PNG\r\n"


def stay(job: str, node: str, begin: int, end: int, *, ended: str = "completed", gpus: int = 1) -> Stay:
    return Stay(job, 0, node, gpus, 0, 1000, begin * SECOND, end * SECOND, ended)


def job_run(name: str, tenant: str = "t") -> JobRun:
    return JobRun(name, tenant, 0, 0, None, "", 1, 1, 0, 0, 0, 0, 0, ())


def run(stays: list[Stay], *, tenants: int = 1, gpus: int = 4, rules: str = "elastic") -> Run:
    names = list(dict.fromkeys(each.job for each in stays))
    jobs = tuple(job_run(name, f"lab-{number % tenants}") for number, name in enumerate(names))
    end = max((each.until_ns for each in stays), default=SECOND)
    samples = tuple(
        Sample(at * SECOND, at % 5, 2, 1, 2000, 1000, 3000, gpus * 1000) for at in range(0, end // SECOND, 2)
    )
    return Run("made", rules, 0, Costs(), jobs, tuple(stays), samples, (), 0, end)


def some_run(**more: object) -> Run:
    stays = [stay(f"j{n}", f"n{n % 3}", n, n + 7, ended=("completed", "suspended", "lost")[n % 3]) for n in range(20)]
    return run(stays, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_same_runs_give_the_same_picture(tmp_path: Path, suffix: str) -> None:
    one, two = tmp_path / f"one.{suffix}", tmp_path / f"two.{suffix}"
    for path in (one, two):
        picture.draw([some_run(), some_run(tenants=9, rules="fifo")], path)
    assert one.read_bytes() == two.read_bytes()
    if suffix == "png":
        assert one.read_bytes().startswith(PNG)
    else:
        text = one.read_text()
        for shown in ("elastic", "fifo", "n2", "GPUs", "suspended at its end", "since the beginning"):
            assert shown in text, shown
        assert "seed" not in text  # no node fails by chance


def test_it_says_the_rules_in_full_and_the_seed_where_chance_has_a_part(tmp_path: Path) -> None:
    stated = "elastic, ageing_seconds 0, preemptions_max 0, queue lab-a weight 2 ceiling 64 gpus, queue lab-b weight 3"
    costs = Costs(node_failures_per_day_millis=1)
    drawn = msgspec.structs.replace(some_run(), stated=stated, costs=costs, seed=7)
    picture.draw([drawn], tmp_path / "stated.svg")
    text = (tmp_path / "stated.svg").read_text()
    for shown in ("elastic, ageing_seconds 0", "lab-b weight 3", "seed 7"):
        assert shown in text, shown


def test_what_a_name_holds_is_shown_as_it_is(tmp_path: Path) -> None:
    """A dollar begins a formula in matplotlib, where that is not told otherwise."""
    picture.draw([run([stay("$pay$", "n_1$x", 0, 9)], rules="100% $rules$")], tmp_path / "names.svg")
    text = (tmp_path / "names.svg").read_text()
    assert "$pay$" in text
    assert "100% $rules$" in text


def test_where_no_node_has_gpus_it_shows_cpus(tmp_path: Path) -> None:
    picture.draw([some_run(gpus=0)], tmp_path / "cpus.svg")
    text = (tmp_path / "cpus.svg").read_text()
    assert "CPUs" in text
    assert "GPUs" not in text


def test_a_run_in_which_nothing_happened_can_be_drawn(tmp_path: Path) -> None:
    empty = Run("empty", "elastic", 0, Costs(), (), (), (), (), 5, 5)
    picture.draw([empty], tmp_path / "empty.png")
    assert (tmp_path / "empty.png").read_bytes().startswith(PNG)


def test_what_cannot_be_drawn_is_refused_with_what_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CommandError, match="no name for a picture") as found:
        picture.check(tmp_path / "run.pdf")
    assert (found.value.exit_code, found.value.remedy) == (USAGE, "Accepted are .png and .svg.")
    with pytest.raises(CommandError, match="no directory") as found:
        picture.check(tmp_path / "nowhere" / "run.png")
    assert found.value.exit_code == USAGE
    (tmp_path / "taken.png").mkdir()
    with pytest.raises(CommandError, match="cannot be written: it is a directory") as found:
        picture.check(tmp_path / "taken.png")
    assert found.value.exit_code == USAGE
    (tmp_path / "nowhere.png").symlink_to(tmp_path / "none" / "run.png")
    with pytest.raises(CommandError, match="cannot be written: No such file") as found:
        picture.draw([some_run()], tmp_path / "nowhere.png")
    assert found.value.exit_code == REFUSED
    monkeypatch.setattr(picture, "find_spec", lambda _name: None)
    with pytest.raises(CommandError, match="matplotlib, which is not installed") as found:
        picture.draw([some_run()], tmp_path / "run.png")
    assert found.value.exit_code == ENVIRONMENT
    assert "tidegate-server[picture]" in found.value.remedy
    assert not (tmp_path / "run.png").exists()


def test_the_extra_that_the_message_names_is_there() -> None:
    assert util.find_spec("matplotlib") is not None
    pyproject = Path(__file__).parents[3] / "pyproject.toml"
    assert 'picture = ["matplotlib==' in pyproject.read_text()


drawn_stays = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 10), st.integers(0, 4)), max_size=40
)


@given(drawn_stays)
def test_no_bar_lies_over_another(drawn: list[tuple[int, int, int, int]]) -> None:
    stays = [stay(f"j{n}", f"n{node}", at, at + long, gpus=gpus) for n, (node, at, long, gpus) in enumerate(drawn)]
    (found,) = gantt.rows([run(stays)])
    assert len(found.bars) == len(stays)
    for one in found.bars:
        assert found.names[one.row] == one.stay.node
        assert one.width == max(1, one.stay.gpus)
        assert 0 <= one.lane < one.lane + one.width <= one.lanes
        for other in found.bars:
            apart = one.lane + one.width <= other.lane or other.lane + other.width <= one.lane
            if one is not other and one.row == other.row and not apart:
                assert one.stay.until_ns <= other.stay.from_ns or other.stay.until_ns <= one.stay.from_ns


def test_a_row_has_no_more_lanes_than_it_needs() -> None:
    stays = [stay("a", "n1", 0, 9, gpus=4), stay("b", "n1", 0, 5, gpus=4), stay("c", "n1", 5, 9, gpus=2)]
    (found,) = gantt.rows([run(stays)])
    assert [(bar.stay.job, bar.lane, bar.lanes) for bar in found.bars] == [("b", 0, 8), ("a", 4, 8), ("c", 0, 8)]
    share = Stay("s", 0, "n1", 1, 250, 1000, 0, SECOND, "")
    (found,) = gantt.rows([run([share])])
    assert (found.bars[0].width, found.bars[0].lanes) == (1, 1)


def test_nodes_stand_as_people_count_and_in_the_same_rows_of_all_runs() -> None:
    stays = [stay("a", "n10", 0, 5), stay("b", "n9", 0, 5), stay("c", "m1", 0, 5)]
    found = gantt.rows([run(stays), run([stay("a", "n2", 1, 2)])])
    assert found[0].names == found[1].names == ("m1", "n2", "n9", "n10")
    assert [found[1].names[bar.row] for bar in found[1].bars] == ["n2"]


def test_of_many_nodes_the_busiest_are_shown() -> None:
    stays = [stay(f"j{n}", f"n{n}", 0, n + 1) for n in range(200)]
    (found,) = gantt.rows([run(stays)])
    assert (len(found.names), found.nodes) == (gantt.ROWS_MAX, 200)
    assert "n199" in found.names
    assert "n0" not in found.names


def test_many_jobs_are_coloured_by_their_tenants_and_the_smallest_are_others() -> None:
    stays = [stay(f"j{n}", "n1", 10 * n, 10 * n + 1 + n % 9) for n in range(40)]
    found = gantt.groups([run(stays, tenants=9)], 7)
    assert sorted(set(found.values())) == sorted({*(f"lab-{n}" for n in range(3, 9)), gantt.OTHERS})
    few = gantt.groups([run(stays[:5])], 7)
    assert set(few) == set(few.values()) == {f"j{n}" for n in range(5)}
    assert set(gantt.groups([run(stays)], 7).values()) == {"lab-0"}


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 9)), min_size=1, max_size=60), st.integers(2, 12))
def test_a_curve_that_is_thinned_has_the_same_area(steps: list[tuple[int, int]], points: int) -> None:
    samples, at = [], 0
    for length, value in steps:
        samples.append(Sample(at, value, 0, 0, 0, 0, 0, 0))
        at += length
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gantt, "POINTS_MAX", points)
        times, values = gantt.curve(samples, at, lambda sample: sample.waiting)
    assert (times[0], times[-1]) == (0, at)
    area = sum(value * (later - now) for now, later, value in zip(times, times[1:], values, strict=False))
    assert area == pytest.approx(sum(length * value for length, value in steps))
    assert len(times) <= max(points, len(steps)) + 1


@pytest.mark.parametrize(
    ("begin", "end", "first", "last"),
    [
        (0, 0.5, 0, 0),
        (0, 7.5, 0, 7),
        (0, 100, 0, 100),
        (0, 5600, 0, 4800),
        (0, 30 * 86400, 0, 28 * 86400),
        (99_990, 100_020, 99_990, 100_020),
        (3601, 7199, 4200, 6600),
    ],
)
def test_times_are_round(begin: float, end: float, first: int, last: int) -> None:
    found = gantt.ticks(begin, end)
    assert len(found) <= gantt.TICKS_MAX + 1
    assert (found[0], found[-1]) == (first, last)


def test_it_shows_the_time_in_which_there_are_jobs() -> None:
    samples = tuple(
        Sample(at * SECOND, waiting, placed, 0, 0, 0, 0, 0)
        for at, waiting, placed in ((0, 0, 0), (1000, 1, 0), (1010, 0, 1), (1100, 0, 0))
    )
    quiet = Run("quiet", "elastic", 0, Costs(), (), (), samples, (), 0, 9000 * SECOND)
    assert gantt.window([quiet]) == (999.0, 1101.0)
    late = Run("late", "fifo", 0, Costs(), (), (), samples[:3], (), 0, 1200 * SECOND)
    assert gantt.window([quiet, late]) == (998.0, 1202.0)
    assert gantt.window([Run("empty", "", 0, Costs(), (), (), (), (), 7, 7)]) == (0.0, pytest.approx(0.00101))
