"""The groups of the map: no edge leads back, lanes are told apart, the same graph always looks the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from precision_tool.lib.view.report_map import MOST_CHILDREN, Edge, Lane, Layout, execution_order, lay_out
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
    assert len(layout.parents) == len(layout.orders) == len(layout.lanes) == count
    spots = {(layout.parents[item], layout.orders[item]) for item in range(count)}
    assert len(spots) == count
    children = [0] * (len(layout.groups) + 1)
    for item in range(count):
        children[layout.parents[item] + 1] += 1
        assert groups_above(layout, item, ops)[-1] == -1
        for group in groups_above(layout, item, ops)[:-1]:
            assert layout.lanes[group] == layout.lanes[item]
    assert max(children) <= MOST_CHILDREN
    assert all(size > 1 for size, group in zip(children[1:], layout.groups, strict=True) if not group.is_section)
    is_acyclic = all(a < b for a, b in edges)
    position = execution_order(ops, edges)
    for edge in edges:
        a, b = siblings(layout, edge, ops)
        if edge[0] != edge[1] and layout.lanes[a] == layout.lanes[b] and position[edge[0]] < position[edge[1]]:
            assert layout.orders[a] < layout.orders[b] or not is_acyclic
    sizes = [0] * len(layout.groups)
    for op in range(ops):
        for group in groups_above(layout, op, ops)[:-1]:
            sizes[group - ops] += 1
    assert sizes == [group.ops for group in layout.groups]
    for backward, forward in layout.mirrors:
        assert (layout.lanes[backward], layout.lanes[forward]) == (Lane.BACKWARD, Lane.FORWARD)
        assert layout.parents[backward] == layout.parents[forward]
    assert len({forward for _, forward in layout.mirrors}) == len(layout.mirrors) == len(dict(layout.mirrors))
    return layout


def layout_of(names: Sequence[str], edges: Sequence[Edge]) -> Layout:
    return check([place_of(name) for name in names], edges)


def chain(count: int) -> list[Edge]:
    return [(at, at + 1) for at in range(count - 1)]


def shown(layout: Layout, names: Sequence[str], lane: Lane = Lane.FORWARD, parent: int = -1) -> list[str]:
    """The children of a group in one lane: ops by the last part of their names, groups by their own."""
    labels = [*(name.rpartition("/")[2] for name in names), *(group.name for group in layout.groups)]
    items = [item for item, above in enumerate(layout.parents) if above == parent and layout.lanes[item] == lane]
    return [labels[item] for item in sorted(items, key=layout.orders.__getitem__)]


def test_a_chain_is_in_order() -> None:
    layout = layout_of(["a", "b", "c"], chain(3))
    assert list(layout.orders) == [0, 1, 2]
    assert not layout.groups


def test_variables_come_right_before_what_reads_them() -> None:
    """The compiler numbers all of them first; in sections of a large group they stood together."""
    names = ["w1", "w2", "w2/cast", "x", "one", "two"]
    assert shown(layout_of(names, [(0, 4), (1, 2), (2, 5), (3, 4), (4, 5)]), names) == [
        "w1", "x", "one", "w2", "cast", "two",
    ]  # fmt: skip


def test_a_scope_that_is_left_and_entered_again_is_a_group_for_each_visit() -> None:
    """A block that calls one ReLU module three times."""
    names = ["conv1/x", "conv1/y", "relu/a", "relu/b", "conv2/x", "conv2/y", "relu/c", "relu/d", "conv3/x", "conv3/y"]
    layout = layout_of([*names, "relu/e"], chain(len(names) + 1))
    assert shown(layout, [*names, "relu/e"]) == ["conv1", "relu", "conv2", "relu", "conv3", "e"]


def test_groups_that_only_their_order_tells_apart_stay_whole() -> None:
    names = ["a/1", "b/1", "a/2", "b/2"]
    assert shown(layout_of(names, [(0, 2), (1, 3)]), names) == ["a", "b"]


def test_groups_that_feed_each_other_without_a_way_back() -> None:
    """x/a feeds y, another op of y feeds x/b: no path leaves x and comes back, but not both can stand first."""
    names = ["x/a", "y/a", "y/b", "x/b", "x/c", "y/c"]
    layout_of(names, [(0, 1), (2, 3), (3, 4), (1, 5)])


def test_the_backward_pass_stands_beside_what_it_is_the_gradient_of() -> None:
    names = [f"{layer}/{op}" for layer in ("one", "two", "three") for op in ("MatMul", "Relu")]
    names += [f"gradients/{layer}/{op}_grad/X" for layer in ("three", "two", "one") for op in ("Relu", "MatMul")]
    names += ["train/update_one", "train/update_two"]
    layout = layout_of(names, [*chain(len(names) - 2), (11, 12), (9, 13)])
    assert shown(layout, names) == ["one", "two", "three"]
    assert shown(layout, names, Lane.BACKWARD) == ["gradients/three", "gradients/two", "gradients/one"]
    assert shown(layout, names, Lane.UPDATE) == ["train"]
    labels = [*names, *(group.name for group in layout.groups)]
    assert {(labels[a], labels[b]) for a, b in layout.mirrors} == {
        ("gradients/one", "one"), ("gradients/two", "two"), ("gradients/three", "three"),
    }  # fmt: skip


def test_a_gradient_that_is_one_op_belongs_to_its_op() -> None:
    names = ["a/Relu", "b/Relu", "gradients/b/Relu_grad/ReluGrad", "gradients/a/Relu_grad/ReluGrad"]
    assert sorted(layout_of(names, chain(4)).mirrors) == [(2, 1), (3, 0)]


def test_a_constant_of_the_gradients_moves_no_op_of_the_forward_pass() -> None:
    names = ["x", "gradients/zeros", "positive", "loss", "gradients/loss_grad/y"]
    layout = layout_of(names, [(0, 2), (1, 2), (2, 3), (3, 4), (1, 4)])
    assert list(layout.lanes) == [Lane.FORWARD] * 4 + [Lane.BACKWARD]


def test_the_scope_of_the_whole_network_is_left_out() -> None:
    names = [f"net/block{number}/{op}" for number in range(3) for op in "abc"]
    names += [f"gradients/net/block{number}/{op}_grad/X" for number in (2, 1, 0) for op in "cba"]
    layout = layout_of(["images", *names], chain(len(names) + 1))
    assert shown(layout, ["images", *names]) == ["images", "net/block0", "net/block1", "net/block2"]
    assert len(layout.mirrors) >= 3


def test_a_group_of_one_is_its_op() -> None:
    layout = layout_of(["block/inner/a", "block/inner/b", "alone/c", "d", "e", "f"], chain(6))
    assert [group.name for group in layout.groups] == ["block/inner"]
    assert layout.parents[2] == -1


def test_a_large_group_is_cut_into_sections() -> None:
    names = [f"net/op{number}" for number in range(3000)]
    layout = layout_of(names, chain(3000))
    sections = [group for group in layout.groups if group.is_section]
    assert len(sections) > 3000 / MOST_CHILDREN


def test_a_cycle_is_drawn() -> None:
    layout = layout_of(["a", "b", "c"], [(0, 1), (1, 2), (2, 0), (1, 1)])
    assert list(layout.orders) == [0, 1, 2]


def test_nothing_at_all() -> None:
    assert layout_of([], []).parents == []


def test_order_of_execution_keeps_the_numbers_where_edges_allow() -> None:
    assert execution_order(4, [(3, 0)]) == [3, 0, 1, 2]
    assert execution_order(3, []) == [0, 1, 2]
    assert execution_order(3, [(0, 1), (1, 0), (1, 2)]) == [0, 1, 2]


def test_tensorflow_2_names_the_backward_pass_otherwise() -> None:
    place = place_of("gradient_tape/model/dense/MatMul/MatMul_1")
    assert place == Place(("gradient_tape/model", "dense", "MatMul"), True, ("model", "dense", "MatMul"), "MatMul_1")
    assert not replace(place_of("model/dense/MatMul"), leaf="").is_backward


SCOPES = st.lists(st.sampled_from(["a", "b", "gradients", "gradients_1", "c_grad", "<script>"]), max_size=4)


@given(st.data())
def test_any_graph(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 60))
    names = ["/".join([*data.draw(SCOPES), f"op{number}"]) for number in range(count)]
    op = st.integers(0, count - 1)
    edges = data.draw(st.lists(st.tuples(op, op), max_size=120))
    layout_of(names, edges)
    layout_of(names, [(min(edge), max(edge)) for edge in edges if edge[0] != edge[1]])


@given(st.integers(0, 400), st.integers(1, 7))
def test_any_width_of_a_flat_graph(count: int, step: int) -> None:
    layout_of([f"op{number}" for number in range(count)], [(at, at + step) for at in range(count - step)])
