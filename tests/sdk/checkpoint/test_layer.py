"""Layer files give back what was saved, of the same types, and refuse by path what they do not store."""

import math
import random
from collections import OrderedDict, namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidegate import UnsupportedObjectError
from tidegate.checkpoint import layer
from tidegate.checkpoint import snapshot as snapshots
from tidegate.checkpoint.commit import Occasion
from tidegate.checkpoint.direct import Arenas
from tidegate.checkpoint.handle import Checkpoint

from tests.support import stores
from tests.support.libraries import needed

torch = needed("torch")


def round_trip(value: Any, path: Path) -> Any:
    return Checkpoint(stores.save(path, 1, model=value)).load("model")["model"]


def stored_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])) | st.integers(), inner, max_size=4)
    ),
    max_leaves=20,
)


@settings(max_examples=150, deadline=None)
@given(value=plain)
def test_plain_data_keeps_value_and_type(value: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    back = round_trip(value, tmp_path_factory.mktemp("layer") / "x.layer")
    assert repr(back) == repr(value)


def test_floats_that_are_not_finite_and_large_integers(tmp_path: Path) -> None:
    back = round_trip({"f": [math.nan, math.inf, -math.inf, -0.0], 7: 2**200, -1: -(2**200)}, tmp_path / "x")
    assert math.isnan(back["f"][0])
    assert back["f"][1:3] == [math.inf, -math.inf]
    assert math.copysign(1, back["f"][3]) == -1
    assert back[7] == 2**200
    assert back[-1] == -(2**200)


def test_random_generator_states(tmp_path: Path) -> None:
    generator = np.random.default_rng(5)
    python = random.Random(5)
    state = {"python": python.getstate(), "numpy": generator.bit_generator.state, "torch": torch.get_rng_state()}
    back = round_trip(state, tmp_path / "x")
    other, other_python = np.random.default_rng(), random.Random()
    other.bit_generator.state = back["numpy"]
    other_python.setstate(back["python"])
    assert other.random(5).tolist() == generator.random(5).tolist()
    assert other_python.random() == python.random()
    assert torch.equal(back["torch"], state["torch"])


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.int16).reshape(2, 3).T,
        np.array(3.5),
        np.zeros((0, 3), np.float32),
        np.array([1, 2], dtype=">i4"),
        np.array([True, False]),
        np.array(["ab", "c"]),
        np.array([b"ab", b"c"]),
        np.array([1 + 2j]),
        np.array(["2020-01-01"], dtype="M8[D]"),
        np.array([(1, [2.0, 3.0])], dtype=[("a", "i4"), ("b", "f8", (2,))]),
        np.arange(10)[::2],
        np.arange(5)[::-1],
    ],
)
def test_numpy_arrays(array: Any, tmp_path: Path) -> None:
    back = round_trip([array], tmp_path / "x")[0]
    assert type(back) is np.ndarray
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert back.tobytes() == array.tobytes()
    assert back.flags.writeable


@pytest.mark.parametrize("scalar", [np.float32(1.5), np.int64(-3), np.bool_(True), np.datetime64("2020-01-01")])
def test_numpy_scalars(scalar: Any, tmp_path: Path) -> None:
    back = round_trip([scalar], tmp_path / "x")[0]
    assert type(back) is type(scalar)
    assert back == scalar


def tensors() -> list[Any]:
    base = torch.arange(24.0).reshape(4, 6)
    return [
        base,
        base.t(),
        base[:, 1],
        base[1:3, ::2],
        torch.zeros(()),
        torch.empty(0, 3),
        torch.ones(1).expand(5),
        torch.randn(3, 3).to(torch.bfloat16),
        torch.randn(4).to(torch.float16),
        torch.randn(4).to(torch.float8_e4m3fn),
        torch.randn(4).to(torch.float8_e5m2),
        torch.randn(2, 3, dtype=torch.complex128).t(),
        torch.randn(3, dtype=torch.complex64).imag.neg(),
        torch._neg_view(torch.randn(5)),
        torch.empty(3, 0, 2, dtype=torch.bfloat16),
        torch.zeros((), dtype=torch.bfloat16),
        torch.randn(4, dtype=torch.complex64).conj(),
        torch.tensor([True, False]),
        torch.arange(5, dtype=torch.int8),
        torch.randn(100, 100)[:, 0],
        torch.randn(1, 2, 3, 4).to(memory_format=torch.channels_last),
    ]


@pytest.mark.parametrize("index", range(len(tensors())))
def test_torch_tensors(index: int, tmp_path: Path) -> None:
    tensor = tensors()[index]
    back = round_trip({"t": tensor}, tmp_path / "x")["t"]
    assert type(back) is torch.Tensor
    assert back.dtype is tensor.dtype
    assert back.shape == tensor.shape
    assert (
        back.contiguous().view(torch.uint8).tolist()
        == tensor.resolve_conj().resolve_neg().contiguous().view(torch.uint8).tolist()
        if (tensor.numel() and tensor.dim())
        else torch.equal(back, tensor)
    )


def test_strides_of_a_dense_tensor_are_kept(tmp_path: Path) -> None:
    tensor = torch.randn(1, 2, 3, 4).to(memory_format=torch.channels_last)
    assert round_trip(tensor, tmp_path / "x").stride() == tensor.stride()


def test_a_small_view_does_not_drag_its_storage_along(tmp_path: Path) -> None:
    round_trip(torch.randn(1000, 1000)[:, 0], tmp_path / "x")
    assert stored_bytes(tmp_path / "x") < 20_000


def test_tensors_that_share_storage_share_it_again(tmp_path: Path) -> None:
    base = torch.arange(12.0)
    back = round_trip({"a": base[2:8], "b": [base.view(3, 4)], "bytes": base.view(torch.uint8)}, tmp_path / "x")
    back["a"][0] = 99
    assert back["b"][0][0, 2] == 99
    assert back["bytes"].view(torch.float32)[2] == 99


def test_modules_and_optimizers_go_through_their_state_dicts(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(3, 4)).sum().backward()
    optimizer.step()
    back = round_trip({"m": model.state_dict(), "o": optimizer.state_dict()}, tmp_path / "x")
    assert type(back["m"]) is OrderedDict
    other = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8))
    other.load_state_dict(back["m"])
    other_optimizer = torch.optim.Adam(other.parameters())
    other_optimizer.load_state_dict(back["o"])
    for mine, yours in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, yours)
    assert back["o"]["param_groups"][0]["betas"] == optimizer.state_dict()["param_groups"][0]["betas"]


def test_parameters_stay_parameters(tmp_path: Path) -> None:
    back = round_trip([torch.nn.Parameter(torch.ones(2)), torch.ones(2, requires_grad=True)], tmp_path / "x")
    assert isinstance(back[0], torch.nn.Parameter)
    assert back[1].requires_grad


def test_a_copy_does_not_follow_later_changes(tmp_path: Path) -> None:
    tensor, array, items = torch.zeros(3000), np.zeros(3000), [1]
    small = torch.zeros(3)
    store = stores.opened(tmp_path)
    copied = snapshots.take({"model": {"t": tensor, "a": array, "l": items, "s": small}}, Arenas(0))
    tensor += 1
    array += 1
    small += 1
    items.append(2)
    committed, _ = store.save(Occasion(1, stores.STAMP), copied)
    back = Checkpoint(committed).load()["model"]
    assert back["t"].tolist() == [0] * 3000
    assert back["a"].tolist() == [0] * 3000
    assert back["s"].tolist() == [0] * 3
    assert back["l"] == [1]


Point = namedtuple("Point", "x y")


class Own:
    pass


class OwnTensor(torch.Tensor):
    pass


def loop() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    ("value", "path", "hint"),
    [
        ({"state": [0, 1, 2, Own()]}, "optimizer.state[3]", "Own"),
        ({"f": lambda: 1}, "optimizer.f", "function"),
        ({"s": {1, 2}}, "optimizer.s", "set"),
        ([Point(1, 2)], "optimizer[0]", "plain tuple"),
        ({3: {(1, 2): 1}}, "optimizer[3]", "keys are str or int"),
        ({1.5: 1}, "optimizer", "keys are str or int"),
        ({"o": np.array([Own()], dtype=object)}, "optimizer.o", "Python objects"),
        ({"m": torch.nn.Linear(1, 1)}, "optimizer.m", ".state_dict()"),
        ({"t": torch.eye(2).to_sparse()}, "optimizer.t", "sparse"),
        ({"t": torch.empty(2, device="meta")}, "optimizer.t", "meta"),
        ({"t": torch.ones(2).as_subclass(OwnTensor)}, "optimizer.t", "OwnTensor; a plain tensor is accepted"),
        ({"t": "\ud800"}, "optimizer.t", "UTF-8"),
        ({"b": bytearray(b"x")}, "optimizer.b", "bytearray"),
        (loop(), "optimizer[0]", "contain itself"),
    ],
)
def test_what_is_not_stored_is_refused_by_path(value: Any, path: str, hint: str) -> None:
    with pytest.raises(UnsupportedObjectError) as caught:
        layer.describe("optimizer", value)
    assert path in str(caught.value)
    assert hint in str(caught.value)


@pytest.mark.filterwarnings("ignore")  # torch warns of what it may take away again
@pytest.mark.parametrize(
    ("make", "hint"),
    [
        (lambda: torch.eye(2).to_sparse_csr(), "sparse tensor (torch.sparse_csr)"),
        (lambda: torch.eye(2).to_sparse_csc(), "sparse tensor (torch.sparse_csc)"),
        (lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8), "int_repr"),
        (lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]), "unbind"),
        (lambda: torch.nn.Parameter(torch.empty(3, device="meta")), "meta tensor"),
    ],
)
def test_a_tensor_that_is_no_plain_one_is_refused_by_path(make: Any, hint: str) -> None:
    with pytest.raises(UnsupportedObjectError) as caught:
        layer.describe("model", {"deep": [make()]})
    assert "model.deep[0]" in str(caught.value)
    assert hint in str(caught.value)
