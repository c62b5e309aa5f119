"""The ops and tensors of PyTorch `.h5` dumps, found by name and listed. Prints nothing."""

from __future__ import annotations

import difflib
import posixpath
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from precision_tool.lib.errors import DataNotFoundError, PrecisionToolError, UsageError
from precision_tool.lib.formats.h5 import read_h5
from precision_tool.lib.io.files import exists, real_path
from precision_tool.lib.model.comparison import Pair
from precision_tool.lib.model.pytorch import INPUT, OUTPUT, H5Dump, H5Op, H5Value
from precision_tool.lib.model.wording import counted, first_of
from precision_tool.lib.pairing.pytorch_match import Matched, OpMatch, match_ops, pairs_of, unpaired
from precision_tool.lib.sources.h5_files import PYTORCH
from precision_tool.lib.sources.names import is_number, op_number, pattern

NPU, BENCHMARK = "NPU", "benchmark"
#: Of many names as many are listed.
_LISTED = 10
#: A name as it is in the file.
_OWN_NAME = re.compile(r"/?[A-Za-z_]\w*/\d+(/.*)?", re.ASCII | re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class H5Side:
    """A dump of the data folder, and what stands for it on the other side where there is something."""

    dump: H5Dump
    side: str
    other: H5Dump | None = None
    matched: Matched | None = None

    def pairs_of(self, op: H5Op) -> tuple[Pair, ...]:
        """A row for each tensor of an op, as `vc` has them."""
        golden = self.counterpart(op)
        if golden is None:
            why = (
                "no dump of another device belongs to its file"
                if self.other is None
                else f"no op there belongs to {op.name}"
            )
            is_golden = self.side == BENCHMARK or (not self.side and self.dump.device in ("GPU", "CPU"))
            return tuple(unpaired(op, why, is_golden=is_golden))
        return tuple(pairs_of(OpMatch(op, golden), op.seq, compare_inputs=self.dump.has_inputs))

    def counterpart(self, op: H5Op) -> H5Op | None:
        """The benchmark's op that stands for this one."""
        return None if self.matched is None else self.matched.counterpart(op)


@dataclass(frozen=True, slots=True, kw_only=True)
class H5Data:
    """All dumps of a data folder, the NPU's first, and the files that could not be read."""

    sides: tuple[H5Side, ...]
    problems: tuple[str, ...] = ()


def load_h5_data(npu: Sequence[str], golden: Sequence[str], pairs: Sequence[tuple[str, str]]) -> H5Data:
    """Reads the dumps of both sides; `pairs` are the files that are compared with each other.

    A file that cannot be read is one of `problems`, unless nothing can be: then its error is raised.
    """
    read: dict[str, H5Dump] = {}
    errors: list[PrecisionToolError] = []
    for path in dict.fromkeys((*npu, *golden)):
        try:
            read[path] = read_h5(path)
        except PrecisionToolError as error:
            errors.append(error)
    if errors and not read:
        raise errors[0]
    partner = dict(pairs)
    sides = []
    for path in npu:
        if path in read:
            other = read.get(partner.get(path, ""))
            matched = None if other is None else match_ops(read[path], other)
            sides.append(H5Side(dump=read[path], side=NPU, other=other, matched=matched))
    sides += [H5Side(dump=read[path], side=BENCHMARK) for path in golden if path in read]
    return H5Data(sides=tuple(sides), problems=tuple(error.advice for error in errors))


@dataclass(frozen=True, slots=True, kw_only=True)
class H5Name:
    """What a name asks for: a file, if it names one, and what of it, as `/Addmm/4/output`."""

    text: str
    file: str = ""
    inside: str = ""


def is_own_name(name: str) -> bool:
    """Whether an op or a data set is named as it is in the file."""
    return _OWN_NAME.fullmatch(name) is not None


def parse_h5_name(text: str) -> H5Name | None:
    """`FILE.h5`, `FILE.h5:/Addmm/4/output/result` or `/Addmm/4`; None for what can be no name in a `.h5` file."""
    if PYTORCH.owns(text):
        return H5Name(text=text, file=text)
    for position, char in enumerate(text):
        if char == ":" and PYTORCH.owns(text[:position]):
            return H5Name(text=text, file=text[:position], inside=text[position + 1 :])
    return H5Name(text=text, inside=text) if "\0" not in text else None


@dataclass(frozen=True, slots=True, kw_only=True)
class H5Hit:
    """An op that was found; `values` are those of it that were asked for, all where none was named."""

    side: H5Side
    op: H5Op
    values: tuple[H5Value, ...]
    #: Whether less than the whole op was asked for.
    is_part: bool


def find_by_name(
    name: str, files: Sequence[str], load: Callable[[], H5Data | None], *, many: bool = False
) -> tuple[H5Hit, ...]:
    """The ops and data sets of a name: in a file that it names, else in the dumps of the data folder.

    `files` are those of the data folder, `load` reads them. Those of the NPU are found, each with its counterpart; of
    the benchmark only if the NPU has none of the name.
    """
    asked = parse_h5_name(name)
    if asked is not None and asked.file:
        sides = _sides_of_file(asked.file, files, load)
        return find_h5(sides, asked.inside, many=many) if asked.inside else _all_of(sides)
    data = load()
    if data is None:
        raise DataNotFoundError(
            f"{name}: there is no PyTorch dump", "put .h5 files into pt/npu and pt/gpu, or name a file"
        )
    npu = [side for side in data.sides if side.other is not None] or list(data.sides)
    try:
        return find_h5(npu, name, many=many)
    except DataNotFoundError:
        return find_h5(data.sides, name, many=many)


def _sides_of_file(path: str, files: Sequence[str], load: Callable[[], H5Data | None]) -> tuple[H5Side, ...]:
    """The dump of a file, which may be called as one of the data folder, with its counterpart where it has one."""
    is_known = real_path(path) in map(real_path, files)
    data = load() if is_known or not exists(path) else None
    sides = () if data is None else data.sides
    known = tuple(side for side in sides if _is_path(side.dump.path, path))
    return known or (H5Side(dump=read_h5(path), side=""),)


def _is_path(known: str, asked: str) -> bool:
    """Whether a path, or merely the name of a file, is that of a known file."""
    return posixpath.basename(known) == asked or real_path(known) == real_path(asked)


def find_h5(sides: Iterable[H5Side], name: str, *, many: bool = False) -> tuple[H5Hit, ...]:
    """The ops, or data sets, of this name in each dump: `/Addmm/4/output/result`, `Addmm/4`, or a part of one.

    UsageError if a part fits several ops of one dump, unless `many` may be; DataNotFoundError if nothing fits, with
    the closest names.
    """
    sides = tuple(sides)
    hits = [hit for side in sides for hit in _find_in(side, name)]
    if not hits:
        raise _not_found(sides, name)
    for side in sides:
        ops = [hit.op.name for hit in hits if hit.side is side]
        if len(ops) > 1 and not many:
            more = f" and {len(ops) - _LISTED} more" if len(ops) > _LISTED else ""
            raise UsageError(
                f"{name}: {len(ops)} ops fit: {', '.join(ops[:_LISTED])}{more}", "name one of them, as /Addmm/4"
            )
    return tuple(hits)


def _all_of(sides: Iterable[H5Side]) -> tuple[H5Hit, ...]:
    """Every op of some dumps."""
    return tuple(H5Hit(side=side, op=op, values=op.values, is_part=False) for side in sides for op in side.dump.ops)


def _exact_ops(side: H5Side, parts: Sequence[str]) -> list[H5Op]:
    """The op that the parts of a name begin with, as `Addmm`, `4`."""
    if len(parts) < 2 or not is_number(parts[1]):
        return []
    return [op for op in side.dump.ops if op.seq == int(parts[1]) and op.type == parts[0]]


def _values_named(op: H5Op, place: Sequence[str]) -> tuple[H5Value, ...]:
    """The data sets of an op that a path in it leads to.

    `ac` calls them without `input` and `output`, which may be left out where only one of the two has such a path.
    """

    def at(*place: str) -> tuple[H5Value, ...]:
        inside = "/".join((op.name, *place))
        return tuple(one for one in op.values if one.path == inside or one.path.startswith(f"{inside}/"))

    short = [values for direction in (INPUT, OUTPUT) if (values := at(direction, *place))]
    return at(*place) or (short[0] if len(short) == 1 else ())


def _not_found(sides: Sequence[H5Side], name: str) -> DataNotFoundError:
    """What there is instead: the data sets of the op if the name begins with one, else the closest ops."""
    parts = [part for part in name.split("/") if part]
    values = list(dict.fromkeys(one.path for side in sides for op in _exact_ops(side, parts) for one in op.values))
    known = values or list(dict.fromkeys(op.name for side in sides for op in side.dump.ops))
    close = difflib.get_close_matches(name, known, n=5, cutoff=0.4) or known[:5]
    dumps = [f"{counted(len(side.dump.ops), 'op')} of {side.dump.path}" for side in sides]
    return DataNotFoundError(
        f"{name}: no such op or data set among {first_of(dumps, _LISTED) or 'the ops of no .h5 dump'}",
        f"closest are {', '.join(close)}" if close else "`ls dump` lists what there is",
    )


def _find_in(side: H5Side, name: str) -> list[H5Hit]:
    """The exact op, or what is inside it; else every op that a part of a name fits."""
    parts = [part for part in name.split("/") if part]
    exact = _exact_ops(side, parts)
    for op in exact:
        values = _values_named(op, parts[2:])
        if values:
            return [H5Hit(side=side, op=op, values=values, is_part=len(parts) > 2)]
    if exact:
        return []
    if not parts:
        return []
    number, fits = op_number(name), pattern(name)
    by_type = [op for op in side.dump.ops if op.type == name.strip("/")]
    found = by_type or [op for op in side.dump.ops if (fits(op.name) if number is None else op.seq == number)]
    return [H5Hit(side=side, op=op, values=op.values, is_part=False) for op in found]


# --- lists ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class H5Row:
    """An op that fits, and of its values those that do."""

    op: H5Op
    values: tuple[H5Value, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class H5Listing:
    """The ops of one dump that fit, in the order they ran."""

    side: H5Side
    rows: tuple[H5Row, ...]

    @property
    def values(self) -> int:
        """How many data sets fit."""
        return sum(len(row.values) for row in self.rows)


def list_h5(
    sides: Sequence[H5Side], name: str | None, op_type: str | None, *, of_ops: bool = False
) -> tuple[H5Listing, ...]:
    """The ops and data sets of each dump that fit both patterns, which may be None. DataNotFoundError if none does.

    With `of_ops` the name is that of an op, not of a data set in it.
    """
    fits_name = pattern(name) if name is not None else lambda text: True
    number = None if name is None else op_number(name)
    fits_type = pattern(op_type) if op_type is not None else lambda text: True
    listings = []
    for side in sides:
        rows = []
        for op in side.dump.ops:
            values = op.values
            if number is not None:
                values = values if op.seq == number else ()
            elif not fits_name(op.name):
                values = () if of_ops else tuple(one for one in op.values if fits_name(one.path))
            if values and fits_type(op.type):
                rows.append(H5Row(op=op, values=values))
        listings.append(H5Listing(side=side, rows=tuple(rows)))
    if not any(listing.rows for listing in listings):
        asked = " ".join(f"{option} {text}" for option, text in (("-n", name), ("-t", op_type)) if text is not None)
        known = list(dict.fromkeys(op.type for side in sides for op in side.dump.ops))
        close = difflib.get_close_matches(op_type or name or "", known, n=5, cutoff=0.4)
        raise DataNotFoundError(
            f"no {'op' if of_ops else 'data set'} of {counted(len(sides), '.h5 dump')} fits {asked}".rstrip(),
            f"closest are {', '.join(close)}" if close else f"`{'ls' if of_ops else 'ls dump'}` lists all",
        )
    return tuple(listings)
