"""An NPU run that is matched by its own graph as the benchmark side: fused against unfused (FORMATS.md §5, `-cf`).

Every tensor of the other run that stands for a tensor of the training script is one to compare with: the output of the
op that made it; where that was not dumped (variables, constants, reshapes), its copy behind `Cast` and `TransData`, or
the input of an op that read it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from precision_tool.lib.graph.neighbourhood import TRANSPARENT_TYPES
from precision_tool.lib.model.comparison import NO_OPS
from precision_tool.lib.model.graph import GraphFile, Op
from precision_tool.lib.model.run import DumpLeaf
from precision_tool.lib.pairing.groups import groups_of, in_order, originals
from precision_tool.lib.pairing.match import input_places
from precision_tool.lib.pairing.origins import NoOrigin, Origins
from precision_tool.lib.sources.dumps import BenchmarkSide, DumpIndex, Found, Missing, NoBenchmark
from precision_tool.lib.sources.names import flatten

#: Places of one tensor that are looked at, best first.
_PLACES = 16


@dataclass(frozen=True, slots=True)
class _Place:
    """A slot of an op whose dump has the tensor; inputs are places of their producer's output."""

    op: Op
    side: str
    index: int


class GraphDumps(BenchmarkSide):
    """The dump of an NPU run, asked for tensors of the training script."""

    def __init__(self, leaf: DumpLeaf, file: GraphFile) -> None:
        self.index = DumpIndex(leaf)
        self._file = file
        #: In the order in which they are tried: outputs of the op itself, of its copies, inputs of its readers.
        self._places: dict[tuple[str, int], list[_Place]] = {}
        self._inside: dict[str, Op] = {}
        #: The ops of the run by the ops of the training script whose work they do.
        self._doing: dict[str, list[str]] = {}
        for op in in_order(file):
            for name in originals(op):
                self._doing.setdefault(name, []).append(op.name)
        ranked: tuple[list[tuple[tuple[str, int], _Place]], ...] = ([], [], [])
        for rank, key, place in self._all_places():
            ranked[rank].append((key, place))
        for places in ranked:
            for key, place in places:
                known = self._places.setdefault(key, [])
                if len(known) < _PLACES:
                    known.append(place)

    @property
    def root(self) -> str:
        """The folder of the dump files."""
        return self.index.leaf.path

    def _all_places(self) -> Iterator[tuple[int, tuple[str, int], _Place]]:
        origins = Origins(self._file, groups_of(self._file))
        nothing = NoBenchmark()  # so that the first origin on the way back counts
        for op in in_order(self._file):
            for name in op.original_names or ():
                self._inside.setdefault(flatten(name), op)
            dumped = flatten(op.name) in self.index
            is_copy = op.type in TRANSPARENT_TYPES
            if not dumped:
                continue
            for slot in range(len(op.output_descs)):
                origin = origins.of(op, slot, nothing)
                if not isinstance(origin, NoOrigin):
                    yield int(is_copy), (flatten(origin.op_name), origin.index), _Place(op, "output", slot)
            for slot, edge in enumerate(op.inputs):
                producer = None if edge is None else origins.producer(op, edge)
                if edge is None or producer is None:
                    continue
                origin = origins.of(producer, edge.index, nothing)
                if not isinstance(origin, NoOrigin):
                    yield 2, (flatten(origin.op_name), origin.index), _Place(op, "input", slot)

    def ops_of(self, originals: tuple[str, ...]) -> tuple[str, ...]:
        """The ops that this run made of ops of the training script, as the vendor names them; `*` for none."""
        return tuple(dict.fromkeys(op for name in originals for op in self._doing.get(name, ()))) or NO_OPS

    def output(self, op_name: str, index: int) -> Found:
        """The tensor that output `index` of the script's op with this flattened name became in this run."""
        damaged: Missing | None = None
        for place in self._places.get((op_name, index), ()):
            found = self._at(place)
            if not isinstance(found, Missing):
                return found
            if found.damaged and damaged is None:
                damaged = found
        if damaged is not None:
            return damaged
        inside = self._inside.get(op_name)
        if inside is not None and flatten(inside.name) != op_name:
            also = f", made by {', '.join(inside.pass_names)}" if inside.pass_names else ""
            return Missing(f"in the other run it is inside {inside.name}{also}")
        return Missing(f"the other run has no dump of {op_name}:{index}, nor of what read it")

    def _at(self, place: _Place) -> Found:
        name = flatten(place.op.name)
        dump = self.index.op(name)
        slots = dump.outputs if place.side == "output" else dump.inputs
        slot = place.index
        if place.side == "input":
            # Dumps of some releases leave out unconnected inputs.
            places = input_places(place.op, max(slots, default=-1) + 1)
            edge = place.op.inputs[place.index]
            slot = next((at for at, (one, _) in enumerate(places) if one is edge), -1)
        found = slots.get(slot)
        if found is not None:
            return found
        if dump.errors:
            return dump.errors[0]
        return Missing(f"the other run's dump of {name} has no {place.side} {slot}")
