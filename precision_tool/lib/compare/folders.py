"""Compares two folders: finds what was dumped, the graph, the pairs, and runs the engine. Prints nothing."""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from precision_tool.lib.compare.compat import vendor_rows
from precision_tool.lib.compare.custom_metrics import CustomMetrics
from precision_tool.lib.compare.element_errors import compare_elements
from precision_tool.lib.compare.noise import NoiseFloor
from precision_tool.lib.compare.pairwise import Measures, compare_pairs
from precision_tool.lib.compare.scheduler import ALL_CORES, Resources, WorkStoppedError
from precision_tool.lib.data.dumped_ops import BenchmarkSide, DumpIndex, GoldenDumps, GoldenFiles, NoBenchmark
from precision_tool.lib.data.fusion_pair import check_fits, pair_notes
from precision_tool.lib.data.graph_choice import NAMED, GraphChoice, GraphChooser, UnreadGraphError
from precision_tool.lib.data.kinds import kind_of_both, pair_h5_files
from precision_tool.lib.data.matching import Counterpart, GraphDumps, GraphMatcher, NameMatcher, same_name
from precision_tool.lib.data.origins import counterparts
from precision_tool.lib.data.pair_selection import Selection, is_by_number, select
from precision_tool.lib.data.settings import DEFAULT_THRESHOLD, check_options
from precision_tool.lib.data.sides import Inputs, find_inputs, golden_leaf, own_benchmark
from precision_tool.lib.io.files import exists
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import DataNotFoundError, PrecisionToolError, UsageError
from precision_tool.lib.model.comparison import Pair
from precision_tool.lib.model.elements import Detail
from precision_tool.lib.model.graph import GraphFile
from precision_tool.lib.model.pytorch import H5Dump
from precision_tool.lib.model.run import DumpLeaf, Run
from precision_tool.lib.model.table import ColumnChoice, Row, Table

#: Pairs that are wanted beside those of a leaf, given its dumps and its graph.
ExtraPairs = Callable[[DumpIndex, GraphFile], Sequence[Pair]]


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """The choice of what is compared and measured, and what counts as wrong.

    Attributes
    ----------
    graph, other_graph : str, optional
        A graph file or a folder of them, by default the one that fits; and that of the benchmark side, an NPU run that
        is then matched by the ops of the training script (empty: the one that fits).
    threshold : float
        Cosine similarity, -1 to 1, below which a tensor counts as wrong.
    noise : NoiseFloor, optional
        Judges each tensor by its own noise.
    selection : Selection, optional
        The ops that are compared.
    metrics : tuple of str, optional
        The vendor's columns that are written, by default all.
    limit : int
        Elements of each tensor that are compared; 0: all.
    overflow : bool
        Count overflow too.
    custom : CustomMetrics, optional
        The user's own metrics.
    worst : int
        How many of the worst elements of each tensor are kept for a detailed table; 0: no table.
    pairs_only : bool
        Compare nothing: the rows only tell which tensors belong together.
    compat : bool
        The result has the rows and columns that the vendor's tool would write, and no others.
    prefix : str
        Begins the names of the result files; empty: as fits the selection.
    extremes : bool
        Find how near every NPU tensor comes to the limits of its type.
    figures : bool
        Summarize the NPU tensors that have no benchmark too.
    extra_pairs : callable, optional
        Gives further pairs that are compared in the same go.
    """

    graph: str | None = None
    threshold: float = DEFAULT_THRESHOLD
    noise: NoiseFloor | None = None
    selection: Selection | None = None
    metrics: tuple[str, ...] | None = None
    limit: int = 0
    overflow: bool = False
    custom: CustomMetrics | None = None
    worst: int = 0
    pairs_only: bool = False
    compat: bool = False
    prefix: str = ""
    other_graph: str | None = None
    extremes: bool = False
    figures: bool = False
    extra_pairs: ExtraPairs | None = None

    def __post_init__(self) -> None:
        check_options(self, threshold="threshold", limit="limit", worst="limit")

    @property
    def measures(self) -> Measures:
        """The measurements of the engine."""
        return Measures(
            divergence=self.metrics is None or "KullbackLeiblerDivergence" in self.metrics,
            limit=self.limit,
            overflow=self.overflow,
            extremes=self.extremes,
            figures=self.figures,
            custom=self.custom,
        )

    @property
    def choice(self) -> ColumnChoice:
        """The columns of the result file."""
        return ColumnChoice(
            # As the vendor's: with a selection by number, and only then.
            sequence=is_by_number(self.selection),
            overflow=self.overflow,
            metrics=self.metrics,
            custom=self.custom.names if self.custom is not None else (),
            compat=self.compat,
        )


DEFAULT_OPTIONS = CompareOptions()


@dataclass(frozen=True, kw_only=True)
class LeafResult:
    """The comparison of one leaf of the NPU side. `graph` is None when ops were matched by name alone.

    `choice` says which columns were asked for, `details` are the tensors that were looked at element by element.
    """

    leaf: DumpLeaf = field(repr=False)
    golden_root: str
    rows: Sequence[Row] = field(default=(), repr=False)
    #: What is below `golden_root`; None for PyTorch dumps, and where nothing is of the leaf's step and rank.
    golden: GoldenFiles | Run | None = field(default=None, repr=False)
    graph: GraphChoice | None = field(default=None, repr=False)
    notes: tuple[Message, ...] = ()
    choice: ColumnChoice = field(default_factory=ColumnChoice)
    details: tuple[Detail, ...] = field(default=(), repr=False)
    #: The graph of the other run, where that is matched by it.
    other_graph: GraphChoice | None = field(default=None, repr=False)
    #: The leaf's dump files as they were opened, and the rows of what was compared beside its own pairs.
    dumps: DumpIndex | None = field(default=None, repr=False)
    extra_rows: tuple[Row, ...] = field(default=(), repr=False)
    #: Why a graph that is there could not be read. Ops matched by name do not tell which is the first wrong one.
    unread_graph: Message | None = None

    @property
    def golden_is_dump(self) -> bool:
        """True if the other side is an NPU run as well."""
        return isinstance(self.golden, Run)

    @property
    def table(self) -> Table:
        """The rows with the columns that were asked for."""
        return Table(tuple(self.rows), self.choice)


class ComparisonStoppedError(PrecisionToolError):
    """The comparison ended early; `results` hold what is done, rows that were not reached say so."""

    def __init__(
        self, kind: str, hint: str = "", results: Sequence[LeafResult] = (), exit_code: int = 130, **fields: Any
    ) -> None:
        super().__init__(kind, hint, **fields)
        self.results = list(results)
        self.exit_code = exit_code

    @classmethod
    def after(
        cls, stop: WorkStoppedError | ComparisonStoppedError, results: Sequence[LeafResult]
    ) -> ComparisonStoppedError:
        """Return an error with these results that says of the end what another one does."""
        return cls(stop.kind, results=results, exit_code=stop.exit_code, **stop.fields)


def no_other_graph(golden: str) -> UsageError:
    """Return the error for `-cf` with a benchmark that is no NPU run."""
    return UsageError("compare.no_benchmark_graph", folder=golden)


def match_leaf(
    leaf: DumpLeaf,
    inputs: Inputs,
    position: int,
    graphs: GraphChooser,
    options: CompareOptions = DEFAULT_OPTIONS,
) -> tuple[list[Pair], LeafResult]:
    """Return the pairs of one leaf that `options` select, and the result they will be part of, its rows still empty."""
    dumps, graph = DumpIndex(leaf), options.graph
    if isinstance(inputs.golden, GoldenFiles):
        own = own_benchmark(inputs.golden, leaf, len(inputs.run.leaves))
        own.check_same_network(leaf)
        inputs = replace(inputs, golden=own, is_shared=bool(own.files) and own.root == inputs.golden.root)
    golden = _golden_of(leaf, inputs, position, graphs, options.other_graph)
    other, other_choice, side = golden.index, golden.choice, golden.side
    notes = [*golden.notes]
    choice: GraphChoice | None = None
    unread_graph = None
    # Two NPU runs are matched by op name unless a graph is asked for: that keeps TransData and Cast apart.
    if other is None or graph is not None or other_choice is not None:
        try:
            models = {other_leaf.model_name for other_leaf in inputs.run.leaves}
            choice = graphs.of(leaf, graph, models)
        except DataNotFoundError as error:
            if graph is not None or other_choice is not None:
                raise
            unread_graph = error.full_message if isinstance(error, UnreadGraphError) else None
            notes.append(Message("note.compare.by_name", reason=error.full_message))
    if choice is not None:
        if other_choice is not None:
            check_fits(choice, "-g")
            notes += pair_notes(choice, other_choice)
        pairs = list(GraphMatcher(dumps, choice.file, side).pairs())
        name = posixpath.basename(choice.file.path)
        notes += [Message("error.place", where=name, reason=note) for note in choice.file.notes]
        if choice.doubt:
            notes.append(choice.doubt)
        if choice.matched < choice.total:
            notes.append(Message("note.compare.graph_names", matched=choice.matched, total=choice.total))
    else:
        pairs = list(NameMatcher(dumps, side, _counterpart(inputs, leaf, other, graphs)).pairs())
    result = LeafResult(
        leaf=leaf,
        golden_root=golden.root,
        golden=_what_is_there(inputs.golden) if other is None else Run(root=golden.root, leaves=(other.leaf,)),
        graph=choice,
        other_graph=other_choice,
        dumps=dumps,
        unread_graph=unread_graph,
        notes=(*notes, *_ignored_notes(leaf)),
    )
    return select_pairs(pairs, result, options)


def match_alone(
    leaf: DumpLeaf, graphs: GraphChooser, options: CompareOptions = DEFAULT_OPTIONS
) -> tuple[list[Pair], LeafResult]:
    """Return the tensors of a leaf that there is no benchmark for, as pairs, and the result they will be part of."""
    dumps, side = DumpIndex(leaf), NoBenchmark()
    result = LeafResult(leaf=leaf, golden_root="", dumps=dumps)
    try:
        choice = graphs.of(leaf, options.graph, {leaf.model_name})
    except DataNotFoundError as error:
        if options.graph is not None:
            raise
        return list(NameMatcher(dumps, side).pairs()), replace(result, notes=(error.full_message,))
    return list(GraphMatcher(dumps, choice.file, side).pairs()), replace(result, graph=choice)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Golden:
    """The benchmark side of a leaf; another NPU run has an `index`, and with -cf the `choice` of its graph."""

    side: BenchmarkSide
    root: str
    notes: Sequence[Message]
    index: DumpIndex | None = None
    choice: GraphChoice | None = None


def _what_is_there(golden: GoldenFiles | Run) -> GoldenFiles | Run | None:
    """Return the benchmark; None for one without any tensors of the leaf's step and rank."""
    return None if isinstance(golden, GoldenFiles) and not golden.files else golden


def _golden_of(leaf: DumpLeaf, inputs: Inputs, position: int, graphs: GraphChooser, other_graph: str | None) -> _Golden:
    """Return the benchmark side of a leaf."""
    if not isinstance(inputs.golden, Run):
        if other_graph is not None:
            raise no_other_graph(inputs.golden.root)
        steps = {other_leaf.step for other_leaf in inputs.run.leaves}
        notes = []
        if len(steps) > 1 and inputs.is_shared:
            notes.append(Message("note.compare.one_benchmark"))
        if not inputs.golden.files:
            notes.append(Message("note.compare.nothing_of_step", step=leaf.step, device=leaf.device))
        return _Golden(side=inputs.golden, root=inputs.golden.root, notes=notes)
    counterpart = golden_leaf(inputs.golden, leaf, position, len(inputs.run.leaves))
    notes = [
        Message(f"note.compare.other_{what}", npu=getattr(leaf, what), golden=getattr(counterpart, what))
        for what in ("device", "step")
        if getattr(leaf, what) != getattr(counterpart, what)
    ]
    if other_graph is None:
        dumps = GoldenDumps(counterpart)
        return _Golden(side=dumps, root=dumps.root, notes=notes, index=dumps.index)
    models = {other_leaf.model_name for other_leaf in inputs.golden.leaves}
    choice = replace(graphs, extra_folders=()).of(counterpart, other_graph or None, models)
    if choice.reason == NAMED:
        choice = replace(choice, reason=Message("note.data.graph.named", option="-cf"))
    check_fits(choice, "-cf")
    by_graph = GraphDumps(counterpart, choice.file)
    return _Golden(side=by_graph, root=by_graph.root, notes=notes, index=by_graph.index, choice=choice)


def _counterpart(inputs: Inputs, leaf: DumpLeaf, other: DumpIndex | None, graphs: GraphChooser) -> Counterpart:
    """Which op of another NPU run an op belongs to: by both graphs where there are any, else by its name alone."""
    if other is not None and isinstance(inputs.golden, Run):
        with suppress(PrecisionToolError):
            models, others = ({each.model_name for each in run.leaves} for run in (inputs.run, inputs.golden))
            npu_graph = graphs.of(leaf, models=models, prefers_chosen=False)
            golden_graph = graphs.of(other.leaf, models=others, prefers_chosen=False)
            return counterparts(npu_graph.file, golden_graph.file)
    return same_name


def _ignored_notes(leaf: DumpLeaf) -> list[Message]:
    """Return how many files of the leaf are no dump files, or no files at all, with the first of them."""
    count = len(leaf.ignored)
    notes = [Message("note.compare.no_dump_files", count=count, name=name, why=why) for name, why in leaf.ignored[:1]]
    odd = [posixpath.basename(file.path) for file in leaf.files if not file.is_file]
    if odd:
        notes.append(Message("note.compare.no_files", count=len(odd), first=odd[0]))
    return notes


def select_pairs(pairs: list[Pair], result: LeafResult, options: CompareOptions) -> tuple[list[Pair], LeafResult]:
    """Return the pairs that `options` select, and the result with notes on the selection."""
    notes = list(result.notes)
    if options.selection is not None:
        selected = select(pairs, options.selection, result.graph.file if result.graph is not None else None)
        pairs = selected.pairs
        notes += selected.notes
    if options.limit:
        notes.append(Message("note.compare.limit", count=options.limit))
    return pairs, replace(
        result, choice=replace(options.choice, golden_address=result.golden_is_dump), notes=tuple(notes)
    )


def _custom_notes(rows: Sequence[Row]) -> list[Message]:
    """Return how often each of the user's own metrics failed, and where first."""
    total = sum(bool(row.custom) for row in rows)
    failed = [(name, row.pair.tensor_index, why) for row in rows for name, why in row.custom_errors]
    first = {name: (where, why) for name, where, why in reversed(failed)}
    return [
        Message(
            "note.compare.custom_failed", name=name, count=count, all=total, first=first[name][0], why=first[name][1]
        )
        for name, count in Counter(name for name, _, _ in failed).items()
    ]


def _details(rows: Sequence[Row], worst: int, resources: Resources) -> tuple[Detail, ...]:
    if not worst:
        return ()
    compared = [row.pair for row in rows if row.metrics is not None]
    return tuple(
        compare_elements(pair, Resources(resources.workers), atol=0.0, rtol=0.0, shown=worst) for pair in compared
    )


def compare_matched(
    pairs: Sequence[Pair],
    result: LeafResult,
    options: CompareOptions,
    resources: Resources = ALL_CORES,
) -> LeafResult:
    """Return the result with the rows of its pairs, and what else the options ask for.

    ComparisonStoppedError has what was done when the work ended early.
    """
    if options.pairs_only:
        return replace(result, rows=[Row(pair=pair, reason=pair.reason) for pair in pairs])
    extra_pairs: Sequence[Pair] = ()
    if options.extra_pairs is not None and result.graph is not None and result.dumps is not None:
        extra_pairs = options.extra_pairs(result.dumps, result.graph.file)
    try:
        rows = compare_pairs([*pairs, *extra_pairs], resources, measures=options.measures)
    except WorkStoppedError as stop:
        done = [replace(result, rows=stop.rows[: len(pairs)])]
        raise ComparisonStoppedError.after(stop, done) from stop
    rows, others = rows[: len(pairs)], rows[len(pairs) :]
    result = replace(result, rows=rows, extra_rows=tuple(others), notes=(*result.notes, *_custom_notes(rows)))
    if options.compat:
        rows = vendor_rows(rows, result.graph.file if result.graph is not None else None)
        left_out = len(result.rows) - len(rows)
        notes = (Message("note.compare.left_out", count=left_out),) if left_out else ()
        result = replace(result, rows=rows, notes=(*result.notes, *notes))
    try:
        return replace(result, details=_details(rows, options.worst, resources))
    except (KeyboardInterrupt, WorkStoppedError) as stop:
        reason, advice, code = Message("note.compare.stopped"), None, 130
        if isinstance(stop, WorkStoppedError):
            reason, advice, code = stop.reason_message, stop.hint_message, stop.exit_code
        raise ComparisonStoppedError(
            "compare.details_missing", "", [result], code, reason=reason, advice=advice
        ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finders:
    """The functions that find what is below two folders, and the graph of a dump; a data folder has its own."""

    inputs: Callable[[str, str], Inputs] = find_inputs
    graphs: GraphChooser = field(default_factory=GraphChooser)


def add_compared(
    results: list[LeafResult], pairs: Sequence[Pair], result: LeafResult, options: CompareOptions, resources: Resources
) -> None:
    """Add what `compare_matched` returns to the results before it, which a ComparisonStoppedError has too."""
    try:
        results.append(compare_matched(pairs, result, options, resources))
    except ComparisonStoppedError as stop:
        raise ComparisonStoppedError.after(stop, [*results, *stop.results]) from stop


def compare_sides(
    npu: str,
    golden: str,
    options: CompareOptions = DEFAULT_OPTIONS,
    resources: Resources = ALL_CORES,
    finders: Finders | None = None,
) -> list[LeafResult]:
    """Compare two sides, of whatever kind they are. Nothing is printed or written.

    Parameters
    ----------
    npu, golden : str
        The NPU's dump and its benchmark, folders of any level of their trees; or two PyTorch dumps (`.h5`) or folders.
    options : CompareOptions
        Which ops, what is measured, the graph.
    resources : Resources
        Who does the work; progress is counted in bytes.
    finders : Finders, optional
        How folders and graphs are found; by default nothing is cached.

    Returns
    -------
    list of LeafResult
        One for each folder of dump files, or for each pair of `.h5` files.

    Raises
    ------
    UsageError
        The two sides are of different kinds, or options do not go with them.
    DataNotFoundError, FormatError
        A side is not there, or a graph that was named is damaged.
    ComparisonStoppedError
        The work ended early; it holds what was done.
    """
    kind = kind_of_both(npu, golden, {"-g": options.graph, "-cf": options.other_graph})
    if not kind.has_graph:
        return compare_h5(npu, golden, options, resources)
    return compare_folders(npu, golden, options, resources, finders)


def compare_folders(
    npu: str,
    golden: str,
    options: CompareOptions = DEFAULT_OPTIONS,
    resources: Resources = ALL_CORES,
    finders: Finders | None = None,
) -> list[LeafResult]:
    """Compare the NPU dumps below `npu` with the benchmark below `golden`; one result per leaf folder.

    As `compare_sides`. Rows that could not be compared carry the reason.
    """
    for path, option in ((options.graph, "-g"), (options.other_graph, "-cf")):
        if path and not exists(path):
            raise DataNotFoundError.of(path, "compare.no_graph", option=option)
    finders = finders or Finders()
    inputs = finders.inputs(npu, golden)
    results: list[LeafResult] = []
    for position, leaf in enumerate(inputs.run.leaves):
        try:
            pairs, result = match_leaf(leaf, inputs, position, finders.graphs, options)
        except PrecisionToolError as error:
            if len(inputs.run.leaves) == 1:
                raise
            note = Message("note.compare.not_compared", reason=error.full_message)
            results.append(LeafResult(leaf=leaf, golden_root=golden, notes=(note,)))
            continue
        add_compared(results, pairs, result, options, resources)
    if results:
        results[0] = replace(results[0], notes=(*inputs.notes, *results[0].notes))
    return results


# --- PyTorch dumps ---


def compare_h5(
    npu: str,
    golden: str,
    options: CompareOptions = DEFAULT_OPTIONS,
    resources: Resources = ALL_CORES,
) -> list[LeafResult]:
    """Compare two `.h5` dumps, or those below two folders that belong together; a result each.

    A file that cannot be read is a result without rows, unless it is the only one: then its error is raised.
    ComparisonStoppedError has what was done when the work ended early.
    """
    from precision_tool.lib.data.pytorch_pairing import match_dumps  # only where there are such dumps
    from precision_tool.lib.io.hdf5 import read_h5

    files, file_notes = pair_h5_files(npu, golden)
    results: list[LeafResult] = []
    for file in files:
        result = LeafResult(
            leaf=DumpLeaf(path=file.npu, files=(), model_name=_stem(file.npu) if len(files) > 1 else ""),
            golden_root=file.golden,
        )
        try:
            left, right = read_h5(file.npu), read_h5(file.golden)
            pairs, notes = match_dumps(left, right)
            _check_any(left)
            result = replace(result, notes=(*_file_notes(left, right), *notes))
            pairs, result = select_pairs(pairs, result, options)
            result = replace(result, choice=replace(result.choice, h5=True))
        except PrecisionToolError as error:
            if len(files) == 1:
                raise
            results.append(replace(result, notes=(Message("note.compare.not_compared", reason=error.full_message),)))
            continue
        add_compared(results, pairs, result, options, resources)
    results[0] = replace(results[0], notes=(*file_notes, *results[0].notes))
    return results


def _stem(path: str) -> str:
    return posixpath.splitext(posixpath.basename(path))[0]


def _check_any(dump: H5Dump) -> None:
    if not any(op.tensors for op in dump.ops):
        raise DataNotFoundError.of(dump.path, "compare.no_h5_tensor")


def _file_notes(npu: H5Dump, golden: H5Dump) -> list[Message]:
    """Return remarks on two files."""
    notes = []
    if (npu.device, golden.device) in (("GPU", "NPU"), ("CPU", "NPU")):
        notes.append(Message("note.compare.swapped"))
    for is_npu, dump in ((True, npu), (False, golden)):
        if dump.ignored:
            name, why = dump.ignored[0]
            count = len(dump.ignored)
            notes.append(Message("note.compare.data_sets_left_out", is_npu=is_npu, count=count, name=name, why=why))
    return notes
