"""What the prompt says first: what the data folder holds, and what to type next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from precision_tool.lib.graph.overview import DataOverview, RunOverview
from precision_tool.lib.present.text import LabelledLines, counted, plain, whole_path
from precision_tool.lib.workspace import shown_path

_COLLECT = (
    ("npu/debug_0/dump", "what the NPU dumped (dump_path of the training script)"),
    ("npu/debug_0/graph", "its graphs ge_proto_*_Build.txt (DUMP_GE_GRAPH=2)"),
    ("tf/dump", "benchmark tensors {op}.{output}.{timestamp}.npy"),
)


def _run_line(run: RunOverview) -> Text:
    dumps = len(run.dumps)
    parts = [
        counted(run.dump_files, "dump file") if dumps else "no dump",
        f"in {counted(dumps, 'folder')}" if dumps > 1 else "",
        f"and {counted(run.graph_files, 'graph file')}" if run.graph_files else "and no graph",
    ]
    return plain(" ".join(filter(None, parts)), "" if dumps and run.graph_files else "yellow")


def _next_step(overview: DataOverview) -> Text:
    has_dump = any(run.dumps for run in overview.runs)
    if overview.newest_result:
        steps = ("ac", "shows the newest result again", "ac -c", "compares anew")
    elif has_dump and (overview.benchmark_tensors or sum(bool(run.dumps) for run in overview.runs) > 1):
        steps = ("ac -c", "compares and names the first faulty op", "help", "lists the commands")
    elif all(overview.pytorch_files) and not has_dump:
        steps = ("ac -c", "compares and names the first faulty op", "ls", "lists the ops")
    elif has_dump:
        steps = ("ls", "lists the ops", "vc -rt DIR", "compares with a benchmark elsewhere")
    else:
        steps = ("graphs", "shows the graphs", "help", "lists the commands")
    first, what, second, more = steps
    return Text.assemble((first, "bold cyan"), f" {what}; ", (second, "bold cyan"), f" {more}; Tab completes")


def _collect(overview: DataOverview) -> RenderableType:
    """What a folder without data should get, and how."""
    state = "nothing to work with in it yet" if overview.exists else "no such folder"
    head = Text.assemble(whole_path(overview.root), ": ", (state, "yellow"))
    table = Table.grid(padding=(0, 2))
    for place, what in _COLLECT:
        table.add_row(Text(f"  {place}", style="bold"), Text(what))
    return Group(
        head,
        Text("Collect, as the README says under Collect, and put it there:"),
        table,
        Text.assemble(
            ("data DIR", "bold cyan"), " goes on with another folder; ",
            ("demo", "bold cyan"), " makes one to try; ", ("help", "bold cyan"), " lists the commands",
        ),
    )  # fmt: skip


def banner(overview: DataOverview) -> RenderableType:
    """A few lines: the data folder, what was found in it, what to type."""
    if overview.is_empty:
        return _collect(overview)
    rows = [("data", whole_path(overview.root))]
    rows += [(f"debug_{run.number}", _run_line(run)) for run in overview.runs]
    if overview.graphs_here:
        rows.append(("graphs", plain(f"{counted(overview.graphs_here, 'graph file')} in the working folder")))
    tensors = overview.benchmark_tensors
    if any(overview.pytorch_files):
        npu, golden = overview.pytorch_files
        rows.append(("PyTorch", plain(f"{counted(npu, '.h5 file')} of the NPU, {golden} of the benchmark")))
    if overview.runs or tensors or not any(overview.pytorch_files):
        where = f" in {counted(overview.benchmark_runs, 'run')} of tfdbg" if overview.benchmark_runs else ""
        found = f"{counted(tensors, 'tensor')}{where}" if tensors else "none"
        rows.append(("benchmark", plain(found, "" if tensors else "yellow")))
    if overview.overflow_files:
        rows.append(("overflow", plain(counted(overview.overflow_files, "status file"))))
    if overview.newest_result:
        rows.append(("result", whole_path(shown_path(overview.newest_result))))
    rows.append(("next", _next_step(overview)))
    return LabelledLines(rows)


def command_list(families: Mapping[str, Sequence[tuple[str, str]]]) -> RenderableType:
    """Every command with a line of help, by family."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column()
    for number, (family, commands) in enumerate(families.items()):
        if number:
            table.add_row()
        table.add_row(Text(family, style="bold"))
        for name, help_ in commands:
            table.add_row(Text(f"  {name}", style="cyan"), Text(help_))
    table.add_row()
    table.add_row(Text("help COMMAND", style="cyan"), Text("arguments and an example; COMMAND -h is the same"))
    return table
