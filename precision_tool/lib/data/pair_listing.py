"""Ops of the graphs in use, and dump files, that fit a filter: what `ls` lists."""

from __future__ import annotations

import posixpath
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isnan
from typing import overload

from precision_tool.lib.data import graph_catalog as lookup
from precision_tool.lib.data.dump_names import base_name, flatten, op_number, pattern
from precision_tool.lib.data.graph_catalog import (
    FoundOp,
    RunFolder,
    RunGraph,
    closest_hint,
    every_op,
    module_path,
    where_of,
)
from precision_tool.lib.data.origins import groups_of
from precision_tool.lib.io.files import stat_of
from precision_tool.lib.io.stores import Kind
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import DataNotFoundError
from precision_tool.lib.model.graph import Op
from precision_tool.lib.model.op_verdict import OpVerdict
from precision_tool.lib.model.run import DumpFile, DumpLeaf


@dataclass(frozen=True, slots=True, kw_only=True)
class OpFilter:
    """Patterns that all must fit; None fits everything. `below`: only ops with a cosine below this (or NaN).

    `wrong`: only ops that compute wrong by themselves.
    """

    name: str | None = None
    op_type: str | None = None
    pass_name: str | None = None
    kernel: str | None = None
    below: float | None = None
    wrong: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OpRow:
    """An op that fits. `index` is its number in execution order, as results have it."""

    index: int
    op: Op
    #: Name of the (sub)graph it is in.
    graph: str
    dumped: bool
    #: The lowest cosine of its outputs; None where nothing was compared.
    cosine: float | None = None
    #: The values of both sides where its output is a single number.
    scalar: tuple[float, float] | None = None
    #: What recomputing said of it; None where no verdict is kept.
    judged: OpVerdict | None = None
    #: The op of the training script by which it was found, where its own name does not tell.
    found_by: str = ""


class OpRows(Sequence[OpRow]):
    """Rows that are made when they are asked for, and not kept: `make` gets the number of an op in its file."""

    def __init__(self, numbers: Sequence[int], make: Callable[[int], OpRow]) -> None:
        self._numbers = numbers
        self._make = make

    @overload
    def __getitem__(self, key: int) -> OpRow: ...
    @overload
    def __getitem__(self, key: slice) -> OpRows: ...
    def __getitem__(self, key: int | slice) -> OpRow | OpRows:
        return OpRows(self._numbers[key], self._make) if isinstance(key, slice) else self._make(self._numbers[key])

    def __iter__(self) -> Iterator[OpRow]:
        return map(self._make, self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpListing:
    """The ops of one graph that fit, in execution order, of how many."""

    run: RunGraph
    rows: OpRows
    total: int


def find_ops(runs: Sequence[RunGraph], name: str) -> tuple[FoundOp, ...]:
    """The op of this name in every graph that has it (see `lookup.find_ops`); `[17]` names it by its number.

    Ops that share a number, as the compiler made them of the same original, are all given.
    """
    number = op_number(name)
    if number is None:
        return lookup.find_ops(runs, name)
    hits = []
    for run in runs:
        groups = groups_of(run.file)
        ops = groups[number].ops if number < len(groups) else ()
        hits += [FoundOp(run=run, op=op, graph=run.file.graph_of(op)) for op in ops]
    if not hits:
        raise _no_number(runs, number)
    return tuple(hits)


def _no_number(runs: Sequence[RunGraph], number: int) -> DataNotFoundError:
    last = max((len(groups_of(run.file)) - 1 for run in runs), default=-1)
    return DataNotFoundError("data.no_op_number", number=number, place=where_of(runs), last=last if last >= 0 else None)


def list_ops(
    runs: Sequence[RunGraph],
    op_filter: OpFilter,
    cosines_of: Callable[[RunGraph], Mapping[str, float]],
    verdicts_of: Callable[[RunGraph], Mapping[str, OpVerdict]] = lambda _: {},
    scalars_of: Callable[[RunGraph], Mapping[str, tuple[float, float]]] = lambda _: {},
) -> tuple[OpListing, ...]:
    """Return the ops of each graph that fit.

    Parameters
    ----------
    runs : sequence of RunGraph
        The graphs in use.
    op_filter : OpFilter
        What ops have to fit; a name `[17]` is the number that results have.
    cosines_of : callable
        The cosines of a run by the names of its ops.
    verdicts_of : callable, optional
        What recomputing said of the ops of a run, by their names.
    scalars_of : callable, optional
        The values of both sides of the ops whose output is a single number, by flattened name.

    Raises
    ------
    DataNotFoundError
        No op has this name, type, pass or kernel.
    """
    number = None if op_filter.name is None else op_number(op_filter.name)
    if number is not None:
        op_filter = replace(op_filter, name=None)
    fits = _op_test(op_filter)
    listings = []
    for run in runs:
        total = len(run.file.ops)
        numbers: Iterable[int] = range(total)
        if _patterns(op_filter):
            numbers = [at for at in numbers if fits(run.file.glance(at)) is not None]
        make = _RowMaker(run, fits, cosines_of(run), verdicts_of(run), scalars_of(run))
        if number is not None:
            numbers = [at for at in numbers if make.indexes[at] == number]
        if op_filter.wrong or op_filter.below is not None:
            numbers = [at for at in numbers if _has_values(make(at), op_filter)]
        rows = OpRows(array("q", sorted(numbers, key=make.indexes.__getitem__)), make)
        listings.append(OpListing(run=run, rows=rows, total=total))
    if not any(listing.rows for listing in listings):
        if number is not None and not any(number < len(groups_of(run.file)) for run in runs):
            raise _no_number(runs, number)
        _check_each(runs, op_filter)
    return tuple(listings)


class _RowMaker:
    """Makes the row of an op of a graph by its place in the file."""

    def __init__(
        self,
        run: RunGraph,
        fits: Callable[[Op], str | None],
        cosines: Mapping[str, float],
        verdicts: Mapping[str, OpVerdict],
        scalars: Mapping[str, tuple[float, float]],
    ) -> None:
        self._file = run.file
        self._dumped = {base_name(file.name.op_name) for file in run.leaf.files} if run.leaf is not None else set()
        self._fits, self._cosines, self._verdicts, self._scalars = fits, cosines, verdicts, scalars
        #: The number that results have of each op.
        self.indexes = groups_of(run.file).indices

    def __call__(self, at: int) -> OpRow:
        op = self._file.glance(at)
        flat = flatten(op.name)
        return OpRow(
            index=self.indexes[at],
            op=op,
            graph=self._file.graph_at(at).name,
            dumped=base_name(flat) in self._dumped,
            cosine=self._cosines.get(op.name),
            scalar=self._scalars.get(flat),
            judged=self._verdicts.get(op.name),
            found_by=self._fits(op) or "",
        )


def _has_values(row: OpRow, op_filter: OpFilter) -> bool:
    """Return whether the cosine and the verdict of a row are those that the filter asks for."""
    if op_filter.wrong and (row.judged is None or not row.judged.is_wrong):
        return False
    return op_filter.below is None or bool(is_below(row.cosine, op_filter.below))


def _patterns(op_filter: OpFilter) -> list[tuple[str, str, Callable[[Op], Iterable[str]]]]:
    """The patterns of a filter: the property of an op, the pattern, and the texts of an op of which one has to fit."""
    patterns: tuple[tuple[str, str | None, Callable[[Op], Iterable[str]]], ...] = (
        ("name", op_filter.name, lambda op: (op.name, *(op.original_names or ()), *filter(None, (module_path(op),)))),
        ("type", op_filter.op_type, lambda op: (op.type,)),
        ("pass", op_filter.pass_name, lambda op: op.pass_names),
        ("kernel", op_filter.kernel, lambda op: (op.kernel_name, op.kernel_lib)),
    )
    return [(what, text, texts_of) for what, text, texts_of in patterns if text is not None]


def _op_test(op_filter: OpFilter) -> Callable[[Op], str | None]:
    """Return a test that gives None for an op that does not fit, else the original op by which it fits, or ""."""
    tests = [(what, pattern(text), texts_of) for what, text, texts_of in _patterns(op_filter)]

    def test(op: Op) -> str | None:
        found_by = ""
        for what, fits, texts_of in tests:
            text = next(filter(fits, texts_of(op)), None)
            if text is None:
                return None
            if what == "name" and text not in (op.name, module_path(op)):
                found_by = text
        return found_by

    return test


def _check_each(runs: Sequence[RunGraph], op_filter: OpFilter) -> None:
    """Raise DataNotFoundError for the first pattern that no op fits, whatever the others say."""
    for what, text, texts_of in _patterns(op_filter):
        candidates = list(dict.fromkeys(value for _, _, op in every_op(runs) for value in texts_of(op) if value))
        if any(map(pattern(text), candidates)):
            continue
        attribute = Message(f"note.data.property.{what}")
        otherwise = Message("note.data.nothing_with", property=attribute)
        if candidates:
            otherwise = Message("note.data.use_ls.without", option="-f" if what == "pass" else f"-{what[0]}")
        raise DataNotFoundError(
            "data.no_op_with",
            property=attribute,
            text=repr(text),
            ops=sum(1 for _ in every_op(runs)),
            place=where_of(runs),
            advice=closest_hint(text, candidates, otherwise),
        )


# --- dump files ---


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpRow:
    """A dump file that fits. `size` is None for what is no file that can be read."""

    file: DumpFile
    size: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpListing:
    """The dump files of one leaf that fit, in the order in which they were written, of how many.

    What is only named like one, a folder or a link to nothing, is a row, and does not count.
    """

    run: int
    leaf: DumpLeaf
    rows: tuple[DumpRow, ...]
    total: int


def list_dumps(
    folders: Sequence[RunFolder],
    name: str | None,
    op_type: str | None,
    root: str = "",
    ops: Collection[str] | None = None,
) -> tuple[DumpListing, ...]:
    """The dump files of each leaf of each run that fit. DataNotFoundError without any, and for what none fits.

    `root` is the data folder, for the message. `ops` are the flattened names of the only ops that fit, None for all.
    """
    leaves = [(folder.number, leaf) for folder in folders if folder.run is not None for leaf in folder.run.leaves]
    files = [file for _, leaf in leaves for file in leaf.files]
    if not files:
        looked_in = [posixpath.join(posixpath.dirname(folder.graph_folder), "dump") for folder in folders]
        raise DataNotFoundError(
            "data.no_dump_files", folders=looked_in or [posixpath.join(root, "npu", "debug_*", "dump")]
        )
    name_fits = _checked_pattern("name", name, [file.name.op_name for file in files])
    type_fits = _checked_pattern("type", op_type, [file.name.op_type for file in files])

    def fits(file: DumpFile) -> bool:
        dumped = file.name.op_name
        is_of_ops = ops is None or dumped in ops or base_name(dumped) in ops
        return is_of_ops and name_fits(dumped) and type_fits(file.name.op_type)

    listings = []
    for number, leaf in leaves:
        in_order = sorted(leaf.files, key=lambda file: (file.name.timestamp, file.name.task_id, file.path))
        rows = tuple(DumpRow(file=file, size=_size(file.path)) for file in filter(fits, in_order))
        listings.append(DumpListing(run=number, leaf=leaf, rows=rows, total=sum(file.is_file for file in leaf.files)))
    return tuple(listings)


def _checked_pattern(what: str, text: str | None, values: Sequence[str]) -> Callable[[str], bool]:
    """Return the test for a name or type of dump files. DataNotFoundError if none of `values` passes."""
    fits = pattern(text or "")
    if text is None or any(map(fits, values)):
        return fits
    raise DataNotFoundError(
        "data.no_dump_with",
        property=Message(f"note.data.property.{what}"),
        text=repr(text),
        files=len(values),
        advice=closest_hint(text, list(dict.fromkeys(values)), Message("note.data.use_ls.dumps")),
    )


def _size(path: str) -> int | None:
    entry = stat_of(path)
    return entry.size if entry is not None and entry.kind is Kind.FILE else None


def is_below(cosine: float | None, threshold: float) -> bool | None:
    """Return whether a cosine is below the threshold, as NaN is; None without one."""
    return None if cosine is None else isnan(cosine) or cosine < threshold
