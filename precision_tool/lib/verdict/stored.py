"""A verdict with every op's judgement, kept as JSON beside the result that it is of.

The file is read as if somebody had made it up: what is odd about it makes it worthless and no more.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from precision_tool.lib.compare.result_source import kept_place, placed
from precision_tool.lib.errors import DataNotFoundError, FormatError, PrecisionToolError
from precision_tool.lib.io.cache import folder_fingerprint
from precision_tool.lib.io.files import atomic_text, exists, is_folder, list_folder, open_binary, read_text, real_path
from precision_tool.lib.io.urls import is_remote
from precision_tool.lib.model.judged import JudgedOp
from precision_tool.lib.model.reason import read_reason
from precision_tool.lib.model.wording import without_nan
from precision_tool.lib.results.result_files import find_results, newest_results, results_in
from precision_tool.lib.workspace import Workspace

if TYPE_CHECKING:  # `ls` and `ni` read what is kept without what judges
    from precision_tool.lib.graph.catalog import RunGraph
    from precision_tool.lib.verdict.decide import Judged
    from precision_tool.lib.verdict.model import Verdict

#: To be raised with every change of what is kept; files of other versions are not read.
_VERSION = 4
_PREFIX = "verdict_"
#: The folder of verdicts that have no result, as there was nothing to compare with.
_ALONE = "verdict"
_PIECE = 1 << 20
#: Of a judged op, the numbers; NaN and Inf stand in JSON as text.
_NUMBERS = ("own_error", "rounding", "fed", "benchmark_own", "worst", "slack", "largest")


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedRun:
    """The ops of one run that were judged; absolute paths of its dump files' folder and of its graph.

    `dump` tells its files from those of another collection, "" where they are not known; `scales` are the run's loss
    scale by the op that holds it.
    """

    number: int | None
    npu: str
    graph: str
    ops: Sequence[JudgedOp]
    dump: str = ""
    scales: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredVerdict:
    """The object `verdict` of JSON, and the runs that were judged, the one that it is about first.

    `path` is its file, empty as long as it has none; `threshold` the cosine below which tensors counted as wrong.
    """

    path: str
    threshold: float
    verdict: Mapping[str, Any]
    runs: Sequence[JudgedRun]

    def as_verdict(self) -> Verdict:
        """The verdict as an object."""
        from precision_tool.lib.verdict.model import Verdict

        return Verdict.from_dict(self.verdict)

    @property
    def blamed(self) -> tuple[str, ...]:
        """The culprits, and what is to blame with them, the likeliest first. They are of the first run."""
        suspects = self.verdict.get("suspects", ())
        names = (name for one in suspects for name in (one.get("culprit"), *one.get("also", ())))
        return tuple(dict.fromkeys(filter(None, names)))

    def run_of(self, npu: str) -> JudgedRun | None:
        """The run with this folder of dump files; None for one that was not judged."""
        wanted = real_path(npu)
        return next((run for run in self.runs if real_path(run.npu) == wanted), None)

    def ops_of(self, npu: str, graph: str) -> Mapping[str, JudgedOp]:
        """The ops of the run with this dump and graph, by name; {} for one that was not judged."""
        wanted = real_path(npu), real_path(graph)
        for run in self.runs:
            if (real_path(run.npu), real_path(run.graph)) == wanted:
                return {op.name: op for op in run.ops}
        return {}


# --- made and written -------------------------------------------------------------------------------------------------


def stored(judged: Judged, threshold: float, path: str = "") -> StoredVerdict:
    """What is kept of a verdict."""
    return StoredVerdict(
        path=path,
        threshold=threshold,
        verdict=judged.verdict.to_dict(),
        runs=[_run(one) for one in (judged, *judged.beside)],
    )


def _run(judged: Judged) -> JudgedRun:
    return JudgedRun(
        number=judged.run,
        npu=posixpath.abspath(judged.npu),
        graph=posixpath.abspath(judged.graph),
        ops=[one.to_keep() for one in judged.ops],
        dump=_collection(judged.npu),
        scales=judged.scales,
    )


def _collection(folder: str) -> str:
    """What tells the files of a dump from those of another collection, by names, sizes and times of change."""
    if is_remote(folder):  # a request for each file
        return ""
    with suppress(PrecisionToolError):
        return folder_fingerprint(folder, list_folder(folder))[1]
    return ""


def verdict_path(result: str) -> str:
    """Where the verdict on a result file is kept."""
    folder, name = posixpath.split(result)
    return posixpath.join(folder, f"{_PREFIX}{posixpath.splitext(name)[0]}.json")


def write_verdict(one: StoredVerdict, result: str, root: str) -> None:
    """Writes the verdict beside a result file of the data folder `root`. OutputError when it cannot be written."""
    _write(one, verdict_path(result), root, {"result": posixpath.basename(result), "digest": _digest(result)})


def write_alone(one: StoredVerdict, space: Workspace, time: str, number: int) -> str:
    """Writes a verdict that has no result to the folder of results; its path. OutputError when that cannot be done."""
    path = str(space.output_dir(_ALONE) / f"{_PREFIX}{time}_{number}.json")
    _write(one, path, str(space.root), {"result": "", "digest": ""})
    return path


def _write(one: StoredVerdict, path: str, root: str, result: Mapping[str, str]) -> None:
    folder = posixpath.dirname(posixpath.abspath(path))
    body: dict[str, Any] = {
        **result,
        "threshold": one.threshold,
        "verdict": one.verdict,
        "runs": [
            {
                "run": run.number,
                "npu": kept_place(run.npu, folder, root),
                "graph": kept_place(run.graph, folder, root),
                "dump": run.dump,
                "scales": dict(run.scales),
                "ops": list(map(_kept_op, run.ops)),
            }
            for run in one.runs
        ],
    }
    text = _text(body)
    document = {"version": _VERSION, "check": hashlib.sha256(text.encode()).hexdigest(), **json.loads(text)}
    with atomic_text(path) as file:
        file.write(json.dumps(document, indent=1) + "\n")


def _kept_op(op: JudgedOp) -> dict[str, Any]:
    kept = {each.name: getattr(op, each.name) for each in fields(JudgedOp)}
    return kept | {"reason": op.reason if isinstance(op.reason, str) else op.reason.to_dict()}


def _text(body: object) -> str:
    """The one way to write a document down, by which a changed one is known."""
    return json.dumps(without_nan(body), sort_keys=True, separators=(",", ":"))


def _digest(path: str) -> str:
    digest = hashlib.sha256()
    with open_binary(path) as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()


# --- read -------------------------------------------------------------------------------------------------------------


def read_beside(result: str, threshold: float | None = None) -> StoredVerdict | None:
    """The verdict on a result file as it is now; None if there is none, of another threshold, or nothing sound."""
    path = verdict_path(result)
    with suppress(PrecisionToolError, OSError):
        document, found = _read(path)
        if document["digest"] == _digest(result) and threshold in (None, found.threshold):
            return found
    return None


def read_verdict(path: str) -> StoredVerdict:
    """A verdict file, or that beside a result file, or the first below a folder of results.

    DataNotFoundError where there is none, FormatError for what is no verdict file.
    """
    if not exists(path):
        raise DataNotFoundError.of(path, "no such file or folder", "name a result, or a verdict_*.json beside one")
    if not is_folder(path) and path.endswith(".json"):
        return _read(path)[1]
    for result in find_results(path):
        if exists(verdict_path(result)):
            return _read(verdict_path(result))[1]
    raise DataNotFoundError.of(path, "no verdict is kept beside this result", "`ac -c` keeps one with each result")


def stored_verdicts(space: Workspace) -> Iterator[StoredVerdict]:
    """Every sound verdict of the folder of results, newest first."""
    paths = [verdict_path(result) for folder in space.compare_dirs() for result in results_in(folder)]
    for base in space.result_dirs():
        with suppress(PrecisionToolError):
            alone = base / _ALONE
            if is_folder(alone):
                names = (
                    name for name in list_folder(str(alone)) if name.startswith(_PREFIX) and name.endswith(".json")
                )
                paths += sorted((str(alone / name) for name in names), reverse=True)
    for path in paths:
        with suppress(PrecisionToolError):
            yield _read(path)[1]


def newest_verdicts(space: Workspace) -> list[StoredVerdict]:
    """Return the verdicts on the newest results; without results those of the newest dump that was judged alone."""
    paths: list[str] = []
    with suppress(PrecisionToolError):  # no comparison yet
        paths = newest_results(space)
    if paths:
        return [one for path in paths if (one := read_beside(path)) is not None]
    alone = [(posixpath.basename(one.path).rpartition("_")[0], one) for one in stored_verdicts(space)]
    return [one for time, one in alone if time == alone[0][0]]


def op_verdicts(space: Workspace, run: RunGraph) -> Mapping[str, JudgedOp]:
    """Return what the newest verdicts say of each op of a run, by name; {} where none is of it."""
    if run.leaf is None:
        return {}
    of_run = (verdict.ops_of(run.leaf.path, run.file.path) for verdict in newest_verdicts(space))
    return next(filter(None, of_run), {})


def _read(path: str) -> tuple[dict[str, Any], StoredVerdict]:
    no_verdict = FormatError.of(path, "no verdict of this version, or it was changed", "`ac -c` writes a new one")
    try:
        document = json.loads(read_text(path))
        version, check = document.pop("version"), document.pop("check")
        if version != _VERSION or check != hashlib.sha256(_text(document).encode()).hexdigest():
            raise no_verdict
        folder = posixpath.dirname(posixpath.abspath(path))
        return document, StoredVerdict(
            path=path,
            threshold=float(document["threshold"]),
            verdict=document["verdict"],
            runs=[_run_read(one, folder) for one in document["runs"]],
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise no_verdict from error


def _run_read(run: Mapping[str, Any], folder: str) -> JudgedRun:
    npu, graph = placed(run["npu"], folder), placed(run["graph"], folder)
    if npu is None or graph is None:
        raise ValueError("no place")
    return JudgedRun(
        number=run["run"],
        npu=npu,
        graph=graph,
        ops=[_op_read(op) for op in run["ops"]],
        dump=str(run.get("dump", "")),
        scales={str(name): float(scale) for name, scale in run.get("scales", {}).items()},
    )


def _op_read(op: Mapping[str, Any]) -> JudgedOp:
    numbers = {name: float(op[name]) for name in _NUMBERS if op.get(name) is not None}
    return JudgedOp(**{**op, **numbers, "reason": read_reason(op.get("reason"))})
