"""The ops of a graph in groups: those made from the same original ops, named in the same order, share an index."""

from __future__ import annotations

from dataclasses import dataclass

from precision_tool.lib.model.comparison import NO_OPS
from precision_tool.lib.model.graph import Graph, GraphFile, Op


@dataclass(slots=True)
class Group:
    """Ops made from the same original ops, in graph order."""

    ops: list[Op]
    original_names: tuple[str, ...]
    #: True for ops the compiler put in, which have no original op.
    inserted: bool = False

    @property
    def golden_ops(self) -> tuple[str, ...]:
        """The ops of the benchmark side."""
        return NO_OPS if self.inserted else self.original_names


def originals(op: Op) -> tuple[str, ...]:
    """Names of the ops of the training script that `op` does the work of; () if the compiler put it in."""
    if op.original_names is None or op.original_names == ("",):
        return (op.name,)
    return op.original_names


def in_order(file: GraphFile) -> list[Op]:
    """All ops in the order they run: those of a subgraph before the op that calls it, where it first is called."""
    graphs: dict[str, Graph] = {}
    for graph in file.graphs:
        graphs.setdefault(graph.name, graph)
    called = {name for op in file.ops for name in op.subgraph_names}
    roots = [graph for graph in file.graphs if graph.name not in called] or list(file.graphs[:1])
    ops: list[Op] = []
    done: set[int] = set()
    stack: list[tuple[Graph, int]] = []
    for root in [*roots, *file.graphs]:  # the second round finds graphs that only call each other
        if id(root) in done:
            continue
        done.add(id(root))
        stack.append((root, 0))
        while stack:
            graph, start = stack.pop()
            for position in range(start, len(graph.ops)):
                op = graph.ops[position]
                subgraphs = (graphs[name] for name in op.subgraph_names if name in graphs)
                below = next((each for each in subgraphs if id(each) not in done), None)
                if below is not None:
                    done.add(id(below))
                    stack += [(graph, position), (below, 0)]
                    break
                ops.append(op)
    return ops


def groups_of(file: GraphFile) -> list[Group]:
    """The ops of all graphs in groups, in the order in which a group first runs."""
    groups: dict[object, Group] = {}
    for op in in_order(file):
        names = originals(op)
        key: object = ("L1", op.l1_fusion_group) if op.l1_fusion_group else names
        if not names and not op.l1_fusion_group:
            key = ("inserted", id(op))
        group = groups.get(key)
        if group is None:
            groups[key] = Group([op], names or (op.name,), inserted=not names)
        else:
            group.ops.append(op)
            known = group.original_names
            group.original_names = (*known, *(name for name in names if name not in known))
    return list(groups.values())
