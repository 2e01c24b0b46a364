"""The index by node says what a look at everything would say, whoever comes, moves and goes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tidegate_events.seating import Seating

NODES = ("n1", "n2", "n3", "n4")
MOVES = st.lists(
    st.tuples(st.sampled_from("abcde"), st.lists(st.sampled_from(NODES), unique=True, max_size=4)), max_size=40
)


@given(MOVES)
def test_it_says_what_a_look_at_everything_says(moves: list[tuple[str, list[str]]]) -> None:
    seating, where = Seating(), dict[str, tuple[str, ...]]()
    for name, nodes in moves:
        seating.seat(name, tuple(nodes))
        where[name] = tuple(nodes)
        for node in NODES:
            assert sorted(seating.on(node)) == sorted(each for each, nodes_of in where.items() if node in nodes_of)
        assert seating.nodes_of == {each: nodes_of for each, nodes_of in where.items() if nodes_of}


def test_nothing_is_kept_of_who_is_gone() -> None:
    seating = Seating()
    seating.seat("a", ("n1", "n2"))
    seating.seat("a", ())
    assert (seating.on("n1"), seating.nodes_of, vars(seating)["_names_on"]) == ((), {}, {})


def test_those_on_a_node_come_in_the_order_in_which_they_came() -> None:
    seating = Seating()
    for name in ("b", "c", "a"):
        seating.seat(name, ("n1",))
    seating.seat("c", ("n2",))
    seating.seat("c", ("n2", "n1"))
    assert (seating.on("n1"), seating.on("n2")) == (("b", "a", "c"), ("c",))
