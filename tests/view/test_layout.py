"""The map's layout: ranks follow the edges, no two items share a place, and the same graph always looks the same."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from precision_tool.lib.view.report_map import MOST_CHILDREN, Edge, Layout, execution_order, lay_out
from precision_tool.lib.view.report_places import Place, place_of


def groups_above(layout: Layout, item: int, ops: int) -> list[int]:
    """The groups that an item stands in, innermost first, as items; -1 is the top."""
    found = []
    parent = layout.parents[item]
    while parent >= 0:
        found.append(ops + parent)
        parent = layout.parents[ops + parent]
    return [*found, -1]


def siblings(layout: Layout, edge: Edge, ops: int) -> tuple[int, int]:
    """The two items of one group that an edge leads from and to."""
    a, b = ([item, *groups_above(layout, item, ops)] for item in edge)
    common = next(group for group in a if group in b)
    return a[a.index(common) - 1], b[b.index(common) - 1]


def check(places: Sequence[Place], edges: Sequence[Edge]) -> Layout:
    """The properties that every layout has."""
    ops = len(places)
    layout = lay_out(places, edges)
    assert layout == lay_out(places, edges)
    count = ops + len(layout.groups)
    assert len(layout.parents) == len(layout.ranks) == len(layout.orders) == len(layout.backward) == count
    taken = set()
    children = [0] * (len(layout.groups) + 1)
    for item in range(count):
        spot = (layout.parents[item], layout.ranks[item], layout.backward[item], layout.orders[item])
        assert spot not in taken
        taken.add(spot)
        assert layout.ranks[item] >= 0
        children[layout.parents[item] + 1] += 1
        assert groups_above(layout, item, ops)[-1] == -1
    assert max(children) <= MOST_CHILDREN
    assert all(children[1:])
    against = set(layout.against)
    for number, edge in enumerate(edges):
        a, b = siblings(layout, edge, ops)
        if number in against or max(a, b) >= ops or layout.backward[a] != layout.backward[b]:
            continue
        if layout.backward[a]:
            assert layout.ranks[b] < layout.ranks[a]
        else:
            assert layout.ranks[a] < layout.ranks[b]
    sizes = [0] * len(layout.groups)
    for op in range(ops):
        for group in groups_above(layout, op, ops)[:-1]:
            sizes[group - ops] += 1
    assert sizes == [group.ops for group in layout.groups]
    return layout


def layout_of(names: Sequence[str], edges: Sequence[Edge]) -> Layout:
    return check([place_of(name) for name in names], edges)


def test_a_chain_goes_down() -> None:
    layout = layout_of(["a", "b", "c"], [(0, 1), (1, 2)])
    assert list(layout.ranks) == [0, 1, 2]
    assert not layout.groups


def test_what_nobody_feeds_stands_above_its_first_reader() -> None:
    layout = layout_of(["a", "b", "c", "weight"], [(0, 1), (1, 2), (3, 2)])
    assert list(layout.ranks) == [0, 1, 2, 1]


def test_the_backward_pass_stands_beside_the_forward_one_and_goes_up() -> None:
    names = [f"{layer}/{op}" for layer in ("one", "two", "three") for op in ("MatMul", "Relu")]
    names += [f"gradients/{layer}/{op}_grad/X" for layer in ("three", "two", "one") for op in ("Relu", "MatMul")]
    edges = [(at, at + 1) for at in range(len(names) - 1)]
    layout = layout_of(names, edges)
    ops = len(names)
    places = {group.name: (layout.backward[ops + at], layout.ranks[ops + at]) for at, group in enumerate(layout.groups)}
    assert places == {
        "one": (False, 0), "two": (False, 1), "three": (False, 2),
        "gradients/three": (True, 2), "gradients/two": (True, 1), "gradients/one": (True, 0),
    }  # fmt: skip


def test_a_group_of_one_is_its_op() -> None:
    layout = layout_of(["block/inner/a", "block/inner/b", "alone/c"], [(0, 1), (1, 2)])
    assert [group.name for group in layout.groups] == ["block/inner"]
    assert layout.parents[2] == -1


def test_a_large_group_is_cut_into_sections() -> None:
    names = [f"net/op{number}" for number in range(3000)]
    layout = layout_of(names, [(at, at + 1) for at in range(2999)])
    sections = [group for group in layout.groups if group.is_section]
    assert len(sections) > 3000 / MOST_CHILDREN


def test_a_cycle_is_drawn_and_marked() -> None:
    layout = layout_of(["a", "b", "c"], [(0, 1), (1, 2), (2, 0), (1, 1)])
    assert list(layout.against) == [2, 3]
    assert list(layout.ranks) == [0, 1, 2]


def test_groups_that_feed_each_other() -> None:
    layout = layout_of(["x/a", "y/b", "x/c", "y/d"], [(0, 1), (1, 2), (2, 3)])
    assert sorted(layout.ranks[4:]) == [0, 1]
    assert not layout.against


def test_nothing_at_all() -> None:
    assert layout_of([], []).parents == []


def test_order_of_execution_keeps_the_numbers_where_edges_allow() -> None:
    assert execution_order(4, [(3, 0)]) == [3, 0, 1, 2]
    assert execution_order(3, []) == [0, 1, 2]
    assert execution_order(3, [(0, 1), (1, 0), (1, 2)]) == [0, 1, 2]


SCOPES = st.lists(st.sampled_from(["a", "b", "gradients", "gradients_1", "c_grad", "<script>"]), max_size=4)


@given(st.data())
def test_any_graph(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 60))
    names = ["/".join([*data.draw(SCOPES), f"op{number}"]) for number in range(count)]
    op = st.integers(0, count - 1)
    layout_of(names, data.draw(st.lists(st.tuples(op, op), max_size=120)))


@given(st.integers(0, 400), st.integers(1, 7))
def test_any_width_of_a_flat_graph(count: int, step: int) -> None:
    layout_of([f"op{number}" for number in range(count)], [(at, at + step) for at in range(count - step)])
