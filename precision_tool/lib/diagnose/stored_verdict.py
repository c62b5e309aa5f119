"""A verdict with the verdicts on all ops, stored as JSON next to its result.

The file is read as if somebody had made it up: what is odd about it makes it worthless and no more.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from precision_tool.lib.compare.result_files import find_results, kept_place, newest_results, placed, results_in
from precision_tool.lib.data.workspace import VERDICTS, Workspace
from precision_tool.lib.diagnose.verdict_model import Cause, Proof, Suspect, Verdict
from precision_tool.lib.io.cache import folder_fingerprint
from precision_tool.lib.io.files import atomic_text, exists, is_folder, list_folder, open_binary, read_text, real_path
from precision_tool.lib.io.urls import is_remote
from precision_tool.lib.messages import Message, render
from precision_tool.lib.messages.errors import DataNotFoundError, FormatError, PrecisionToolError
from precision_tool.lib.model.documents import AS_TABLE, NOT_STORED, column_of, from_document, to_document
from precision_tool.lib.model.finding import reason_kind
from precision_tool.lib.model.graph import OpsByName
from precision_tool.lib.model.op_verdict import OpVerdict

if TYPE_CHECKING:
    from precision_tool.lib.data.graph_catalog import RunGraph
    from precision_tool.lib.diagnose.decide import RunVerdict


#: To be raised with every change of what is kept; files of other versions are not read.
_VERSION = 9
_PREFIX = "verdict_"
#: What a file begins with: its version, and the hash of what follows.
_START = re.compile(r'\{"version":(\d{1,9}),"check":"([0-9a-f]{64})",')
_PIECE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """The ops of one run that were judged; absolute paths of its dump files' folder and of its graph.

    `dump` tells its files from those of another collection, "" where they are not known; `scales` are the run's loss
    scale by the op that holds it.
    """

    number: int | None
    npu: str
    graph: str
    ops: Sequence[OpVerdict] = field(metadata=AS_TABLE)
    dump: str = ""
    scales: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredVerdict:
    """A verdict, and the runs that were judged, the one that it is about first.

    `path` is its file, empty as long as it has none; `threshold` the cosine below which tensors counted as wrong.
    `result` and `digest` are the name and the hash of the result file that it is on, empty without one.
    """

    threshold: float
    verdict: Verdict
    runs: Sequence[StoredRun]
    result: str = ""
    digest: str = ""
    path: str = field(default="", metadata=NOT_STORED)

    @property
    def blamed(self) -> tuple[str, ...]:
        """The culprits, and what is to blame with them, the likeliest first. They are of the first run."""
        return tuple(dict.fromkeys(name for item in self.verdict.suspects for name in (item.culprit, *item.also)))

    def run_of(self, npu: str) -> StoredRun | None:
        """Return the run with this folder of dump files; None for one that was not judged."""
        path = real_path(npu)
        return next((run for run in self.runs if real_path(run.npu) == path), None)

    def ops_of(self, npu: str, graph: str) -> Mapping[str, OpVerdict]:
        """Return the ops of the run with this dump and graph, by name; {} for one that was not judged."""
        paths = real_path(npu), real_path(graph)
        for run in self.runs:
            if (real_path(run.npu), real_path(run.graph)) == paths:
                return OpsByName(run.ops, {name: at for at, name in enumerate(column_of(run.ops, "name"))})
        return {}


# --- writing ----------------------------------------------------------------------------------------------------------


def stored(judged: RunVerdict, threshold: float) -> StoredVerdict:
    """Return what is kept of a verdict."""
    runs = tuple(map(_run, (judged, *judged.blameless)))
    return StoredVerdict(threshold=threshold, verdict=judged.verdict, runs=runs)


def _run(judged: RunVerdict) -> StoredRun:
    return StoredRun(
        number=judged.run,
        npu=posixpath.abspath(judged.npu),
        graph=posixpath.abspath(judged.graph),
        ops=tuple(result.verdict() for result in judged.ops),
        dump=_collection(judged.npu),
        scales=judged.scales,
    )


def _collection(folder: str) -> str:
    """Return what tells the files of a dump from those of another collection, by names, sizes and times of change."""
    if is_remote(folder):  # a request for each file
        return ""
    with suppress(PrecisionToolError):
        return folder_fingerprint(folder, list_folder(folder))[1]
    return ""


def verdict_path(result: str) -> str:
    """Return where the verdict on a result file is kept."""
    folder, name = posixpath.split(result)
    return posixpath.join(folder, f"{_PREFIX}{posixpath.splitext(name)[0]}.json")


def write_verdict(verdict: StoredVerdict, result: str, root: str) -> None:
    """Write the verdict next to a result file of the data folder `root`. OutputError if that fails."""
    verdict = replace(verdict, result=posixpath.basename(result), digest=_digest(result))
    _write(verdict, verdict_path(result), root)


def write_alone(verdict: StoredVerdict, space: Workspace, time: str, number: int) -> str:
    """Write a verdict without a result to the folder of results; return its path. OutputError if that fails."""
    path = str(space.output_dir(VERDICTS) / f"{_PREFIX}{time}_{number}.json")
    _write(verdict, path, str(space.root))
    return path


def _write(verdict: StoredVerdict, path: str, root: str) -> None:
    folder = posixpath.dirname(posixpath.abspath(path))
    body = to_document(verdict)
    for run in body["runs"]:
        run |= {name: kept_place(run[name], folder, root) for name in ("npu", "graph")}
    with atomic_text(path) as file:
        file.write(signed(body))


def signed(body: object) -> str:
    """Return a document as text that begins with its version and the hash by which one that was changed is known."""
    text = json.dumps(body, separators=(",", ":"))[1:] + "\n"
    return f'{{"version":{_VERSION},"check":"{_check(text)}",{text}'


def _check(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _digest(path: str) -> str:
    digest = hashlib.sha256()
    with open_binary(path) as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()


# --- reading ----------------------------------------------------------------------------------------------------------


def read_beside(result: str, threshold: float | None = None) -> StoredVerdict | None:
    """Return the verdict on a result file as it is now; None if missing, unsound or of another threshold."""
    with suppress(PrecisionToolError, OSError):
        verdict = _read(verdict_path(result))
        if verdict.digest == _digest(result) and threshold in (None, verdict.threshold):
            return verdict
    return None


def read_verdict(path: str) -> StoredVerdict:
    """Return a verdict file, or that beside a result file, or the first below a folder of results.

    DataNotFoundError where there is none, FormatError for what is no verdict file.
    """
    if not exists(path):
        raise DataNotFoundError.of(path, "diagnose_verdict.no_result")
    if not is_folder(path) and path.endswith(".json"):
        return _read(path)
    for result in find_results(path):
        if exists(verdict_path(result)):
            return _read(verdict_path(result))
    raise DataNotFoundError.of(path, "diagnose_verdict.no_verdict")


def stored_verdicts(space: Workspace) -> Iterator[StoredVerdict]:
    """Yield every sound verdict of the folder of results, newest first."""
    paths = [verdict_path(result) for folder in space.compare_dirs() for result in results_in(folder)]
    for base in space.judged_dirs():
        with suppress(PrecisionToolError):
            alone = base / VERDICTS
            if is_folder(alone):
                names = (
                    name for name in list_folder(str(alone)) if name.startswith(_PREFIX) and name.endswith(".json")
                )
                paths += sorted((str(alone / name) for name in names), reverse=True)
    for path in paths:
        with suppress(PrecisionToolError):
            yield _read(path)


def newest_verdicts(space: Workspace) -> list[StoredVerdict]:
    """Return the verdicts on the newest results; without results those of the newest dump that was judged alone."""
    paths: list[str] = []
    with suppress(PrecisionToolError):  # no comparison yet
        paths = newest_results(space)
    if paths:
        return [verdict for path in paths if (verdict := read_beside(path)) is not None]
    alone = [(posixpath.basename(verdict.path).rpartition("_")[0], verdict) for verdict in stored_verdicts(space)]
    return [verdict for time, verdict in alone if time == alone[0][0]]


def op_verdicts(space: Workspace, run: RunGraph) -> Mapping[str, OpVerdict]:
    """Return what the newest verdicts say of each op of a run, by name; {} where none is of it."""
    if run.leaf is None:
        return {}
    of_run = (verdict.ops_of(run.leaf.path, run.file.path) for verdict in newest_verdicts(space))
    return next(filter(None, of_run), {})


def _read(path: str) -> StoredVerdict:
    folder = posixpath.dirname(posixpath.abspath(path))
    try:
        text = read_text(path, newline="")
        start = _START.match(text)
        if start is None or int(start[1]) != _VERSION or start[2] != _check(text[start.end() :]):
            raise ValueError("of another version, or changed")
        document = json.loads(text)
        del document["version"], document["check"]
        for run in document["runs"]:
            run |= {name: placed(run[name], folder) for name in ("npu", "graph")}
        verdict = from_document(StoredVerdict, document)
        if not verdict.runs or (verdict.verdict.culprit is not None and not verdict.verdict.suspects):
            raise ValueError("of nothing")
        return replace(verdict, path=path)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError.of(path, "diagnose_verdict.unsound_verdict") from error


# --- changes since an earlier verdict ---------------------------------------------------------------------------------


#: What is still so of an op whose own error is not what accuses it.
_STILL = {
    Cause.OVERFLOW: "overflows", Cause.STOMP: "overwritten", Cause.CAST: "narrows", Cause.RANDOM: "draws",
    Cause.INPUT: "differs", Cause.WEIGHTS: "differs", Cause.ARGUMENTS: "differs",
}  # fmt: skip
#: What is no more.
_NO_MORE = {
    Cause.OVERFLOW: "fits",
    Cause.STOMP: "whole",
    Cause.CAST: "keeps",
    Cause.RANDOM: "agrees",
    Cause.ARGUMENTS: "agrees",
}
_MENDED = frozenset({"right", "gone", "agrees", "repeats", *_NO_MORE.values()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One thing that a switch may have changed: `what` is "pass", "type" or "scale", of `name`; before and now.

    `is_in_effect` tells that a pass makes ops now; `why`, for such a pass, what is wrong with how it was switched off,
    and `code` the lines of the training script that mend it.
    """

    what: str
    name: str
    before: Message | str
    now: Message | str
    is_in_effect: bool = False
    why: Message | None = None
    code: tuple[str, ...] = ()

    @property
    def is_changed(self) -> bool:
        """True if it is another one now."""
        return self.before != self.now


@dataclass(frozen=True, slots=True, kw_only=True)
class Since:
    """An earlier verdict held against today's.

    `state` is what became of the former culprit. Where today's verdict names it still, it is by today's cause, "wrong"
    or one of `_STILL`; where it does not, one of `_NO_MORE`, "agrees" for data and variables, which nothing recomputes,
    "one_run" where the fault takes two runs to be seen, "unseen" where it takes
    a benchmark or a dump that is missing, "gone" for an op that is no longer in the graph, or one of
    `OpVerdict.state`. `next_culprit` is whom today's verdict names, None for nobody. `is_same_dump` tells that nothing
    was collected since.
    """

    file: str
    culprit: str
    cause: str
    state: str
    own_error_before: float | None = None
    own_error: float | None = None
    changes: Sequence[Change] = ()
    next_culprit: str | None = None
    next_cause: str = "none"
    is_same_dump: bool = False

    @property
    def is_mended(self) -> bool:
        """True if the former culprit is one no more."""
        return self.culprit != self.next_culprit and self.state in _MENDED

    def to_dict(self) -> dict[str, Any]:
        """Return the object `since` of JSON."""
        return {
            "file": self.file, "culprit": self.culprit, "cause": self.cause, "state": self.state,
            "mended": self.is_mended, "own_error_before": self.own_error_before, "own_error": self.own_error,
            "changes": [
                {
                    "what": change.what, "name": change.name, "before": render(change.before),
                    "now": render(change.now), "changed": change.is_changed,
                    "why": render(change.why) if change.why is not None else None,
                }
                for change in self.changes
            ],
            "same_dump": self.is_same_dump, "next_culprit": self.next_culprit, "next_cause": self.next_cause,
        }  # fmt: skip


def since(earlier: StoredVerdict, now: StoredVerdict) -> Since | None:
    """Return what became of the culprit of an earlier verdict; None where it named none."""
    culprit = earlier.verdict.culprit
    if culprit is None:
        return None
    was = earlier.runs[0]
    named = next((suspect for suspect in now.verdict.suspects if _names(suspect, culprit)), None)
    run = (
        next((suspect for suspect in now.runs if suspect.number == was.number), now.runs[0])
        if named is None
        else now.runs[0]
    )
    before, after = _op(was, culprit), _op(run, culprit)
    return Since(
        file=earlier.path,
        culprit=culprit,
        cause=earlier.verdict.cause,
        state=_no_more(earlier, now, before, after) if named is None else _still(named),
        own_error_before=before.own_error if before is not None else None,
        own_error=after.own_error if after is not None else None,
        changes=(*_passes(earlier, was, run, before), *_types(before, after), *_scale_changes(was, run)),
        next_culprit=now.verdict.culprit,
        next_cause=now.verdict.cause,
        is_same_dump=was.dump == run.dump != "",
    )


def _names(suspect: Suspect, culprit: str) -> bool:
    """Return whether a suspicion is of an op; what overwrote memory is further named with it, and computes right."""
    return suspect.culprit == culprit or (suspect.cause is not Cause.STOMP and culprit in suspect.also)


def _still(suspect: Suspect) -> str:
    """Return what is wrong with the former culprit now."""
    return "unsteady" if suspect.proof is Proof.RUNS else _STILL.get(suspect.cause, "wrong")


def _no_more(earlier: StoredVerdict, now: StoredVerdict, before: OpVerdict | None, after: OpVerdict | None) -> str:
    """Return what became of the former culprit, whom today's verdict does not name."""
    cause = earlier.verdict.cause
    is_bare = earlier.verdict.has_benchmark and not now.verdict.has_benchmark
    if after is None:  # data or a variable, which no op computes, if it was not judged before
        return "gone" if before is not None else "unseen" if is_bare else "agrees"
    if after.state == "wrong":
        return "wrong"
    if earlier.verdict.suspects[0].proof is Proof.RUNS:
        return "repeats" if len(now.runs) > 1 else "one_run"
    if cause is Cause.OVERFLOW and after.overflowed:
        return "overflows"
    if cause is Cause.RANDOM:  # this needs no recomputing to be seen, but another side
        return "unseen" if is_bare else _NO_MORE[cause]
    if cause is Cause.STOMP and after.is_fed_by_others:
        return "unseen"
    if cause is Cause.STOMP and before is not None and _is_as_before(before, after):
        return _NO_MORE[cause]  # what it reads is known as it was then
    if after.state == "right":
        return _NO_MORE.get(cause, "right")
    return after.state


def _is_as_before(before: OpVerdict, after: OpVerdict) -> bool:
    """Return whether an op was judged, or not judged, for the same reason."""
    return (before.state, reason_kind(before.reason)) == (after.state, reason_kind(after.reason))


def _op(run: StoredRun, name: str) -> OpVerdict | None:
    names = column_of(run.ops, "name")
    return run.ops[names.index(name)] if name in names else None


def _passes(earlier: StoredVerdict, was: StoredRun, run: StoredRun, before: OpVerdict | None) -> Iterator[Change]:
    """Yield the passes that made the culprit: of how many ops in each run."""
    names = set(before.passes) if before is not None else set()
    if earlier.verdict.pass_name is not None:
        names.add(earlier.verdict.pass_name)
    for name in sorted(names):
        before_count, count = (sum(name in op.passes for op in each.ops) for each in (was, run))
        yield Change(
            what="pass", name=name, before=Message("since.ops", count=before_count),
            now=Message("since.ops", count=count), is_in_effect=count > 0,
        )  # fmt: skip


def _types(before: OpVerdict | None, after: OpVerdict | None) -> Iterator[Change]:
    if before is None or after is None:
        return
    for number, (old, new) in enumerate(zip(before.output_types, after.output_types, strict=False)):
        yield Change(what="type", name=f"{after.name}:output:{number}", before=old, now=new)


def _scale_changes(was: StoredRun, run: StoredRun) -> Iterator[Change]:
    """Yield the loss scale of each run, as far as they tell it."""
    for name in sorted(was.scales.keys() & run.scales.keys()):
        yield Change(what="scale", name=name, before=f"{was.scales[name]:g}", now=f"{run.scales[name]:g}")
    for name in sorted(was.scales.keys() ^ run.scales.keys()):
        before, now = (
            f"{each.scales[name]:g}" if name in each.scales else Message("since.not_seen") for each in (was, run)
        )
        yield Change(what="scale", name=name, before=before, now=now)
