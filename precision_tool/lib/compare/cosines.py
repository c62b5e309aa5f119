"""The cosines of the newest result by op, for those who only want to know how an op came out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan

from precision_tool.lib.compare.result_source import ResultSource, read_source
from precision_tool.lib.graph.catalog import RunGraph
from precision_tool.lib.graph.lookup import where_of
from precision_tool.lib.io.cache import CacheFiles
from precision_tool.lib.io.files import real_path, signature_of
from precision_tool.lib.model.table import Row
from precision_tool.lib.results.result_csv import OutputFigures, read_output_figures
from precision_tool.lib.sources.names import flatten

#: To be raised with every change of what is kept.
_VERSION = 2
#: A run with fewer of the ops of a result than this share is not what the result is of.
_ENOUGH = 0.5


class Cosines(Mapping[str, float]):
    """Op name → cosine; a name is also found where one side spells it with `/` and the other with `_`."""

    def __init__(self, values: Mapping[str, float], scalars: Mapping[str, tuple[float, float]] | None = None) -> None:
        self._values = dict(values)
        #: The values of both sides of ops that put out single numbers, by flattened name.
        self.scalars = {flatten(name): pair for name, pair in (scalars or {}).items()}
        self._flat = {flatten(name): value for name, value in self._values.items()}

    def __getitem__(self, name: str) -> float:
        known = self._values.get(name)
        return self._flat[flatten(name)] if known is None else known

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


@dataclass(frozen=True, slots=True)
class FileCosines:
    """The lowest cosine of the outputs of each op in one result file, and what the file is of, if it says so."""

    values: Mapping[str, float]
    scalars: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    source: ResultSource | None = None


@dataclass(frozen=True)
class ResultCosines:
    """The cosines of all files of one result; `whole` takes them together, NaN lowest of all."""

    files: tuple[FileCosines, ...]
    whole: Cosines = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "whole", _together(self.files))

    def of_run(self, run: RunGraph, others: Sequence[RunGraph]) -> tuple[Cosines, str]:
        """The cosines of a run's dump, and, where no run has any, why. `others` are the other runs there are.

        Files that do not say what they are of, as the vendor's, count for the only run that has their ops.
        """
        runs = (run, *others)
        owners = [_owners(one, runs) for one in self.files]
        mine = [one for one, owning in zip(self.files, owners, strict=True) if owning == [0]]
        if mine:
            return (self.whole if len(mine) == len(self.files) else _together(mine)), ""
        if any(len(owning) == 1 for owning in owners):  # it is of another run, which shows it
            return Cosines({}), ""
        return Cosines({}), _why_nobodys(self.files, [[runs[at] for at in owning] for owning in owners])


def _together(files: Iterable[FileCosines]) -> Cosines:
    lowest: dict[str, float] = {}
    scalars: dict[str, tuple[float, float]] = {}
    for file in files:
        scalars |= file.scalars
        for name, cosine in file.values.items():
            known = lowest.get(name, cosine)
            lowest[name] = known if isnan(known) or known <= cosine else cosine
    return Cosines(lowest, scalars)


def _owners(file: FileCosines, runs: Sequence[RunGraph]) -> list[int]:
    """The places of the runs that a result file may be of."""
    if file.source is not None:
        return [at for at, run in enumerate(runs) if _is_of(file.source, run)][:1]
    if len(runs) == 1:
        return [0]
    wanted = set(map(flatten, file.values))
    shares = [len(wanted & {flatten(op.name) for op in run.file.ops}) for run in runs]
    return [at for at, share in enumerate(shares) if share and share >= _ENOUGH * len(wanted)]


def _is_of(source: ResultSource, run: RunGraph) -> bool:
    """Whether the dump of the run was compared; without a dump, whether its graph was used."""
    paths = [leaf.path for leaf in run.leaves] or [run.file.path]
    compared = source.npu if run.leaves else source.graph
    return compared in paths or real_path(compared) in map(real_path, paths)


def _why_nobodys(files: Sequence[FileCosines], owners: Sequence[Sequence[RunGraph]]) -> str:
    again = "`vc` compares again"
    for file, owning in zip(files, owners, strict=True):
        if file.source is not None:
            return f"no cosines are shown: the newest result is of another dump, {file.source.npu}; {again}"
        if owning:
            runs = where_of(sorted(owning, key=lambda run: run.number or 0))
            return (
                f"no cosines are shown: the newest result does not say what it is of, and its ops are those of {runs}; "
                f"{again}"
            )
    return f"no cosines are shown: the newest result has other ops than the graphs in use; {again}" if files else ""


def cosines_of(tables: Iterable[Iterable[Row]]) -> Cosines:
    """The lowest cosine of the outputs of each op in tables that are at hand, rounded as result files have them."""
    values = (
        {row.op_name: round(row.cosine, 6)}
        for table in tables
        for row in table
        if row.slot.startswith("output") and row.cosine is not None
    )
    return _together(map(FileCosines, values))


def result_cosines(paths: Sequence[str], cache: CacheFiles) -> ResultCosines:
    """The lowest cosine of the outputs of each op in some result files."""
    return ResultCosines(tuple(FileCosines(*_of_file(path, cache), read_source(path)) for path in paths))


def _of_file(path: str, cache: CacheFiles) -> OutputFigures:
    signature = signature_of(path)
    if signature is None:
        return read_output_figures(path)  # which says what is wrong
    payload = cache.read(path, signature, _VERSION)
    known = None if payload is None else _decoded(payload)
    if known is None:
        known = read_output_figures(path)
        cache.write(path, signature, _VERSION, json.dumps(known).encode())
    return known


def _decoded(payload: bytes) -> OutputFigures | None:
    try:
        values, pairs = json.loads(payload)
    except (ValueError, TypeError, RecursionError):
        return None
    if not isinstance(values, dict) or any(type(value) is not float for value in values.values()):
        return None
    if not isinstance(pairs, dict):
        return None
    scalars = {name: tuple(pair) for name, pair in pairs.items() if isinstance(pair, list)}
    if len(scalars) < len(pairs) or any([*map(type, pair)] != [float, float] for pair in scalars.values()):
        return None
    return OutputFigures(values, scalars)
