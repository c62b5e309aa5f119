"""`vc` and `ac -c`: compares, writes the files and judges the rows; or reads them back and judges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from precision_tool.lib.compare.data_folder import DataFolder, way_back_from
from precision_tool.lib.compare.folders import (
    DEFAULT_OPTIONS,
    CompareOptions,
    ComparisonStoppedError,
    Finders,
    LeafResult,
    compare_sides,
)
from precision_tool.lib.compare.noise import NoiseFloor, with_noise
from precision_tool.lib.compare.result_csv import read_result
from precision_tool.lib.compare.result_files import (
    PARTIAL_PREFIX,
    RUN_PREFIX,
    find_results,
    named_result,
    newest_results,
    part_of,
    prefix_of,
    read_source,
    write_results,
)
from precision_tool.lib.compare.scheduler import ALL_CORES, Resources, ctrl_c_ignored
from precision_tool.lib.data.fusion_pair import FusionPair, find_pair
from precision_tool.lib.data.settings import DEFAULT_THRESHOLD
from precision_tool.lib.data.sides import benchmark_folder, newer_run, pytorch_files
from precision_tool.lib.data.workspace import Workspace, check_data
from precision_tool.lib.diagnose.run_checks import Analysis, analyse
from precision_tool.lib.io.files import is_folder
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import DataNotFoundError, PrecisionToolError
from precision_tool.lib.model.table import Table

if TYPE_CHECKING:
    from precision_tool.lib.compare.toolkit import Tools

#: Reasons shown why none of many dump folders could be compared.
_MAX_REASONS = 3
#: The note that `forget_second_run` takes back.
_SECOND_RUN = "note.diagnose.second_run"


def compare(
    data: DataFolder,
    npu: str | None = None,
    golden: str | None = None,
    options: CompareOptions = DEFAULT_OPTIONS,
    resources: Resources = ALL_CORES,
) -> list[Analysis]:
    """Compare two folders, write the result files and check the rows.

    Parameters
    ----------
    data : DataFolder
        Where the results go, and where graphs are looked for.
    npu, golden : str, optional
        The two sides, by default those of the data folder.
    options : CompareOptions
        What is compared and measured.
    resources : Resources
        Who shares the work; progress is counted in bytes.

    Returns
    -------
    list of Analysis
        One a leaf; a leaf that could not be compared at all is without rows, file and path.

    Raises
    ------
    DataNotFoundError
        A side is not there, or nothing of it can be compared.
    ComparisonStoppedError
        Rows that are done were written as `partial_result_*.csv`; the error says where.
    """
    space = data.workspace
    npu, golden = _sides(data, npu, golden)
    chosen = data.chosen_graph() if options.graph is None else None
    folder = space.new_compare_dir()
    try:
        with way_back_from(chosen):
            results = compare_sides(npu, golden, options, resources, _finders(data, options))
            _check_any_rows(results)
    except ComparisonStoppedError as stop:
        with ctrl_c_ignored():  # once was enough: what is done is being saved
            paths = write_results(space, folder, stop.results, PARTIAL_PREFIX)
        written = tuple(filter(None, paths))
        if not written:
            raise
        raise ComparisonStoppedError(
            "diagnose.stopped", "", stop.results, stop.exit_code,
            reason=stop.full_message, paths=written, advice=stop.hint_message,
        ) from stop  # fmt: skip
    except BaseException:
        space.remove_empty(folder)
        raise
    paths = write_results(space, folder, results, prefix_of(options), options.pairs_only)
    return [
        analyse(path, with_noise(result.table, options.noise), options.threshold, result)
        for path, result in zip(paths, results, strict=True)
    ]


def _finders(data: DataFolder, options: CompareOptions) -> Finders:
    return Finders(inputs=data.inputs, graphs=data.graph_chooser(options.graph))


def _sides(data: DataFolder, npu: str | None, golden: str | None) -> tuple[str, str]:
    """Return the two folders, by default those of the data folder; notes tell what else could be compared."""
    space = data.workspace
    is_default = npu is None and golden is None
    if is_default and is_folder(space.dump_dir(1)) and benchmark_folder(space) is not None:
        space.notes.append(Message(_SECOND_RUN, folder=str(space.debug_dir(1))))
    npu = npu or data.default_npu()
    if golden is None:
        golden = data.default_golden(npu)
        newer = newer_run(space) if golden == str(space.tf_dump_dir) else None
        if newer is not None:
            space.notes.append(newer)
    if is_default and npu != str(space.pt_npu_dir) and any(pytorch_files(space)):
        space.notes.append(Message("note.diagnose.pytorch_too", folder=str(space.pt_npu_dir.parent)))
    return npu, golden


def forget_second_run(space: Workspace) -> None:
    """Take back the note on a second run: its results are shown instead."""
    space.notes[:] = [note for note in space.notes if getattr(note, "kind", "") != _SECOND_RUN]


@dataclass(frozen=True, kw_only=True)
class OtherRun:
    """The other of two runs of one network that differ in fusion, compared with the same benchmark."""

    number: int
    #: Whether it is the one with fusion.
    is_fused: bool
    analyses: tuple[Analysis, ...]


def compare_other_run(
    data: DataFolder, options: CompareOptions = DEFAULT_OPTIONS, resources: Resources = ALL_CORES
) -> OtherRun | None:
    """Compare the run beside debug_0 too where one of them was made with fusion and the other without it.

    That is how fusion faults are looked for: the result of debug_0 alone, without fusion, would say that all is well.
    None where there is no such run, no benchmark, or nothing of it can be compared.
    """
    space = data.workspace
    golden = benchmark_folder(space)
    if golden is None or len(space.debug_numbers()) < 2:
        return None
    try:
        pair = find_pair(data.run_graphs())
        own = [run for run in (pair.fused, pair.unfused) if run.number == 0]
        if len(own) != 1:
            return None
        other = pair.unfused if own[0] is pair.fused else pair.fused
        number = other.number or 0
        place = str(space.dump_dir(number))
        prefix = f"{RUN_PREFIX}{number}_"
        analyses = compare(data, place, str(golden), replace(options, prefix=prefix), resources)
    except ComparisonStoppedError:
        raise
    except PrecisionToolError:
        return None
    forget_second_run(space)
    return OtherRun(number=number, is_fused=other is pair.fused, analyses=tuple(analyses))


def fusion_pair(data: DataFolder) -> FusionPair:
    """Return the run with fusion and the one without, told apart by their graphs. Errors say what is missing."""
    data.check_data()
    return find_pair(data.run_graphs())


def compare_by_toolkit(
    data: DataFolder,
    tools: Tools,
    npu: str | None = None,
    golden: str | None = None,
    options: CompareOptions = DEFAULT_OPTIONS,
) -> list[Analysis]:
    """Compare as `compare` does, by the vendor's msaccucmp. Analyses of a mapping have no rows."""
    from precision_tool.lib.compare.toolkit_engine import compare_by_toolkit as run_toolkit  # loaded for few

    space = data.workspace
    npu = npu or data.default_npu()
    golden = golden or data.default_golden(npu)
    tools.toolkit.need("msaccucmp")
    folder = space.new_compare_dir()
    try:
        results = run_toolkit(npu, golden, str(folder), tools, options, _finders(data, options))
    except BaseException:
        space.remove_empty(folder)
        raise
    notes = dict.fromkeys(note for result in results for note in result.notes)
    space.notes += [note for note in notes if note not in space.notes]
    return [
        analyse(
            result.path,
            Table(()) if options.pairs_only else with_noise(read_result(result.path), options.noise),
            options.threshold,
        )
        for result in results
    ]


def read_results(
    data: DataFolder,
    path: str | None = None,
    threshold: float = DEFAULT_THRESHOLD,
    noise: NoiseFloor | None = None,
) -> list[Analysis]:
    """Read back the results of a file or folder, by default of the newest comparison, and check their rows.

    A name that is no path is looked for among the comparisons of the data folder.
    """
    if path is None:
        check_data(data.workspace.root)
    space = data.workspace
    paths = newest_results(space, notes_newer=True) if path is None else find_results(named_result(space, path))
    return [
        analyse(
            result, with_noise(read_result(result), noise), threshold, source=read_source(result), part=part_of(result)
        )
        for result in paths
    ]


def _check_any_rows(results: Sequence[LeafResult]) -> None:
    if any(result.rows for result in results):
        return
    notes = (note for result in results for note in result.notes)
    reasons = list(dict.fromkeys(note.reason if note.kind == "note.compare.not_compared" else note for note in notes))
    more = max(0, len(reasons) - _MAX_REASONS)
    raise DataNotFoundError(
        "diagnose.none_comparable", count=len(results), reasons=reasons[:_MAX_REASONS], more=more or None
    )
