"""What an op may compute: its own formula, or the ways in which the parts of a fused one may hang together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import islice

from precision_tool.lib.model.graph import GraphFile, Op
from precision_tool.lib.ops import table
from precision_tool.lib.ops.base import Input
from precision_tool.lib.verdict.beside import Beside
from precision_tool.lib.verdict.chains import ChainSearch, Kinds, Known, rebound, rows_of_chain
from precision_tool.lib.verdict.formulas import Formula, UnfusedGraph, direct, is_fused, script_tensor
from precision_tool.lib.verdict.rows import Rows, spread
from precision_tool.lib.verdict.values import Fed, RunValues

#: Elements of a large op's output that are looked at to find out how its parts hang together, and the fewest rows.
_SEARCHED_ELEMENTS, _FEWEST_ROWS = 1 << 16, 2
#: In how many pieces these rows lie at most: each of the benchmark's is a read of its own.
_PIECES = 32


class Ways:
    """The formulas of a run's ops. `unfused` is a graph that has the original ops of its fused ones."""

    def __init__(self, values: RunValues, beside: Beside, unfused: GraphFile | None = None) -> None:
        self.values, self.beside, self.unfused = values, beside, unfused
        self._unfused = UnfusedGraph(unfused) if unfused is not None else None
        self._kinds = Kinds(values.file)
        #: Ways in which ops are fused that fitted the benchmark or a dump, by type, passes and types of stages.
        self.fitting: dict[object, tuple[object, ...]] = {}

    def key(self, op: Op) -> object:
        """What ops that are fused alike share."""
        return op.type, op.pass_names, tuple(self._kinds.of(name) for name in op.original_names or ())

    def known(self, op: Op, fed: Fed) -> Iterator[Formula]:
        """What the op may compute as far as that need not be found out; no number that it is fed is looked at."""
        return self.formulas(op, fed, {}, known_only=True)

    def formulas(self, op: Op, fed: Fed, got: Mapping[int, Input], *, known_only: bool = False) -> Iterator[Formula]:
        """What the op may compute, best first; with `known_only` nothing that has to be found out first."""
        slots = self.values.input_slots(op)
        graph_slots = {slot.graph_index: slot.index for slot in slots}
        if not is_fused(op):
            yield direct(op, graph_slots)
            return
        # Whether the op's own type is known to be a part of what it does: then it is not all of it.
        is_known = False
        puts_out = {}
        for number in range(max(len(op.output_descs), 1)):
            key = script_tensor(self.values.origins, op, number)
            if key is not None:
                puts_out[number] = key
        if self._unfused is not None:
            keys: dict[tuple[str, int], int] = {}
            parameters: set[int] = set()
            for slot in slots:
                root = self.values.fed_by.get((id(op), slot.graph_index))
                if root is not None and self.values.parameter_of(root) is not None:
                    parameters.add(slot.index)
                key = script_tensor(self.values.origins, root.op, root.index) if root is not None else None
                if key is not None:
                    keys.setdefault(key, slot.index)
            formula = self._unfused.formula(op, keys, puts_out)
            if formula is None:  # parameters may have been folded into others: then those that it is fed are not they
                own = {key: slot for key, slot in keys.items() if slot not in parameters}
                formula = self._unfused.formula(op, own, puts_out, self.beside.lend)
            if formula is not None:
                is_known = op.type in formula.how
                yield formula
        alike = self.fitting.get(self.key(op))
        if alike is not None and not fed.missing and {slot.index for slot in slots} == set(fed.inputs):
            again = rebound(op, alike, puts_out)
            if again is not None:
                yield again
        if known_only:
            if alike is None and not is_known and not fed.missing and got:
                yield from self._on_some_rows(op, fed.inputs, got, puts_out)
            return
        if not fed.missing:
            few = next(self._on_some_rows(op, fed.inputs, got, puts_out), None) if alike is not None else None
            if few is not None and few.shape == alike:
                # What other ops showed, and some rows say again, all rows need not be asked about.
                yield few
                return
            known = self._known(op, fed.inputs, got, puts_out)
            for formula in ChainSearch(op, self._kinds, known, puts_out).formulas():
                is_known = is_known or (formula.is_certain and op.type in formula.how)
                yield formula
        if not is_known and table.find(op.type) is not None:
            yield replace(direct(op, graph_slots), is_certain=False)

    def _known(
        self,
        op: Op,
        inputs: Mapping[int, Input],
        got: Mapping[int, Input],
        puts_out: Mapping[int, tuple[str, int]],
        rows: Rows | None = None,
        cut: frozenset[int] = frozenset(),
    ) -> Known:
        """What a chain is held against; with `rows` only these of the benchmark's, as `inputs` (`cut`) and `got`."""
        return Known(
            inputs=inputs,
            golden_inputs=self.beside.inputs(op, inputs, rows, cut),
            golden=partial(self.beside.golden, rows=rows),
            put_out={key: got[slot] for slot, key in puts_out.items() if slot in got},
        )

    def _on_some_rows(
        self, op: Op, inputs: Mapping[int, Input], got: Mapping[int, Input], puts_out: Mapping[int, tuple[str, int]]
    ) -> Iterator[Formula]:
        """The chain that fits some rows of a large op best; whether it fits all of them shows when it is judged by it.

        Trying the ways in which ops may hang together takes many times what one of them takes.
        """
        found = rows_of_chain(op, self._kinds, inputs, got)
        size = sum(one.array.size for one in got.values())
        if found is None or size < _SEARCHED_ELEMENTS:
            return
        count, cut = found
        rows = spread(count, max(_FEWEST_ROWS, count * _SEARCHED_ELEMENTS // size), _PIECES)
        if rows.chosen * 2 > count:
            return
        few = {slot: one.in_doubles() for slot, one in rows.cut(inputs, cut).items()}
        some = {slot: one.in_doubles() for slot, one in rows.cut(got, frozenset(got)).items()}
        search = ChainSearch(op, self._kinds, self._known(op, few, some, puts_out, rows, cut), puts_out)
        yield from islice(search.formulas(), 1)
