"""The derivation of seeds never changes: these values are part of the contract."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidegate import UsageError, seeds

from tests.support.libraries import needed


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((0, "main", 0, 0), 4116483793016590313),
        ((42, "learner", 0, 0), 1073850148330225143),
        ((42, "simulator", 3, 7), 6807900786189937676),
        ((2**63 - 1, "größe", 1, 0), 3687702485217044686),
        ((-1, "main", 0, 0), 7035753035077678849),
    ],
)
def test_golden_process_seeds(arguments: tuple[int, str, int, int], expected: int) -> None:
    assert seeds.derive(*arguments) == expected


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((1, "env", 0), 1331371697936774017),
        ((1, "env", 1), 5371945517580245405),
        ((1, "torch", 0), 1138601682139743621),
    ],
)
def test_golden_purpose_seeds(arguments: tuple[int, str, int], expected: int) -> None:
    assert seeds.derive_purpose(*arguments) == expected


@given(
    st.integers(), st.text(max_size=20).filter(lambda text: "\n" not in text and text.isprintable()), st.integers(0, 99)
)
def test_seeds_fit_and_differ(job_seed: int, component: str, rank: int) -> None:
    seed = seeds.derive(job_seed, component, rank, 0)
    assert 0 <= seed < 2**63
    assert len({seed, seeds.derive(job_seed, component, rank, 1), seeds.derive(job_seed, component, rank + 1, 0)}) == 3


def test_names_cannot_run_into_each_other() -> None:
    with pytest.raises(UsageError, match="no line break"):
        seeds.derive(1, "a\n0", 0, 0)
    with pytest.raises(UsageError, match="no line break"):
        seeds.derive_purpose(1, "a\n0")


def test_apply_seeds_every_generator_in_use() -> None:
    numpy, torch = needed("numpy"), needed("torch")
    drawn = []
    for _ in range(2):
        seeds.Seeds(7).apply()
        drawn.append((random.random(), float(numpy.random.rand()), float(torch.rand(1))))
    assert drawn[0] == drawn[1]
    seeds.Seeds(8).apply()
    assert random.random() != drawn[0][0]
