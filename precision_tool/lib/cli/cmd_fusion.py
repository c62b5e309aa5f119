"""`fusion`: the passes in effect, the switch files, the pass that computes wrong."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from precision_tool.lib.cli.cmd_fusion_bisect import bisect
from precision_tool.lib.cli.cmd_fusion_blame import blame
from precision_tool.lib.cli.cmd_fusion_switches import all_off, note_bisected, reset, show, switch
from precision_tool.lib.cli.command import (
    DONE,
    Command,
    Completion,
    Output,
    Parser,
    add_json,
    add_workers,
    completes,
    cosine,
    count,
    spaced,
    tell_notes,
)
from precision_tool.lib.cli.switch_files import find_switch_file
from precision_tool.lib.diagnose.run_checks import fusion_graphs
from precision_tool.lib.io.fusion_passes import SECTIONS
from precision_tool.lib.io.fusion_switch import Switches
from precision_tool.lib.messages.errors import PrecisionToolError, UsageError
from precision_tool.lib.session import Session
from precision_tool.lib.training.switches import FILE_VARIABLE
from precision_tool.lib.view import fusion_screen as report

_ACTIONS = ("list", "show", "off", "on", "all-off", "reset", "blame", "bisect")


def _parser(session: Session) -> Parser:
    settings = session.settings
    parser = Parser(
        prog="fusion",
        description="Without a word: the fusion passes in effect. show: the switch files that the training helper "
        "points to, those of the data folder, or the installed ones where it has none. off, on PASS: switches passes; "
        "all-off: all of them; reset: as installed. blame: which pass computes wrong, from a run with fusion and one "
        "without, or from one with fusion and the benchmark. bisect: which passes must be off for a command of yours "
        "to succeed (exit code 1 if that does not help).",
        epilog="example: fusion blame --benchmark; fusion off SoftmaxFusionPass --file my.cfg",
    )
    parser.add_argument(
        "action", nargs="?", choices=_ACTIONS, default="list", metavar="WORD",
        help="list (the default), show, off, on, all-off, reset, blame or bisect",
    )  # fmt: skip
    completes(
        parser.add_argument("passes", nargs="*", metavar="PASS", help="with off, on and bisect: names of passes"),
        Completion.PASS,
    )
    files = parser.add_mutually_exclusive_group()
    completes(
        files.add_argument(
            "--file", metavar="FILE", help="another switch file than the fusion_switch.cfg of the data folder"
        ),
        Completion.FILE,
    )
    files.add_argument("--off-file", action="store_true", help="the fusion_off.cfg of the data folder")
    parser.add_argument(
        "--installed", action="store_true", help="the installed file, which all users and data folders share"
    )
    parser.add_argument(
        "--section", choices=SECTIONS, help="with off and on: the section of a pass that no data tells of"
    )
    parser.add_argument(
        "--force", action="store_true", help="with off, on and bisect: take names that the data does not have"
    )
    _add_blame(parser, session)
    _add_bisect(parser)
    parser.add_argument(
        "-l", "--limit", dest="limit", metavar="N", type=count(1),
        help=f"with blame: how many ops of a pass to show (default {settings.limit})",
    )  # fmt: skip
    add_json(parser)
    return parser


def _add_blame(parser: Parser, session: Session) -> None:
    for options, dest, metavar, what, kind in (
        ("-lt", "left", "DIR", "with blame: the dump of the run with fusion", Completion.FOLDER),
        ("-rt", "right", "DIR", "with blame: the dump without fusion, or benchmark .npy files", Completion.FOLDER),
        ("-g", "graph", "GRAPH", "with blame: the graph of the run with fusion", Completion.GRAPH),
        ("-cf", "other_graph", "GRAPH", "with blame: the graph of the run without fusion", Completion.GRAPH),
    ):
        named = session.workspace.named
        completes(parser.add_argument(options, dest=dest, metavar=metavar, type=named, help=what), kind)
    parser.add_argument(
        "--benchmark",
        action="store_true",
        help="with blame: compare with tf/dump even if there is a run without fusion",
    )
    parser.add_argument(
        "--threshold", metavar="COS", type=cosine,
        help="with blame: cosine similarity below which a tensor counts as wrong "
        f"(default {session.settings.threshold})",
    )  # fmt: skip
    add_workers(parser, None, "with blame: processes that share the work (default: one per core)")
    parser.add_argument(
        "--write", action="store_true", help="with blame and bisect: switch off what was found in the switch file"
    )
    parser.add_argument(
        "--fail", action="store_true", help="with blame: exit code 1 if a pass is not clean, or nothing could be judged"
    )


def _add_bisect(parser: Parser) -> None:
    parser.add_argument(
        "--check",
        metavar="CMD",
        help="with bisect: the command that succeeds (exit code 0) without the fault; the switch file of the try is "
        f"the one of the data folder, or --file; its path is in ${FILE_VARIABLE} of its environment",
    )
    completes(
        parser.add_argument(
            "--passes", dest="more_passes", nargs="+", metavar="PASS", default=(),
            help="with bisect: search these passes only (default: all that the data names)",
        ),
        Completion.PASS,
    )  # fmt: skip
    parser.add_argument(
        "--timeout", metavar="SECONDS", type=count(1), help="with bisect: a try that takes longer fails"
    )
    parser.add_argument(
        "--repeat", metavar="N", type=count(1),
        help="with bisect: run each try so often; different answers end it (default 1)",
    )  # fmt: skip
    parser.add_argument("--fresh", action="store_true", help="with bisect: do not use the tries of an earlier attempt")


#: What each option goes with; others are refused.
_GOES_WITH = {
    "--file": ("show", "off", "on", "all-off", "reset", "blame", "bisect"),
    "--installed": ("show", "off", "on", "all-off", "reset"),
    "--off-file": ("show", "off", "on", "all-off", "reset"),
    "--section": ("off", "on"),
    "--force": ("off", "on", "bisect"),
    "-lt": ("blame",),
    "-rt": ("blame",),
    "-g": ("blame", "list"),
    "-cf": ("blame",),
    "--benchmark": ("blame",),
    "--threshold": ("blame",),
    "--workers": ("blame",),
    "-l": ("blame",),
    "--write": ("blame", "bisect"),
    "--fail": ("blame",),
    "--check": ("bisect",),
    "--passes": ("bisect",),
    "--timeout": ("bisect",),
    "--repeat": ("bisect",),
    "--fresh": ("bisect",),
    "PASS": ("off", "on", "bisect"),
}


def _run(session: Session, args: argparse.Namespace, output: Output) -> int:
    values = {
        "--file": args.file, "--off-file": args.off_file, "--installed": args.installed, "--section": args.section,
        "--force": args.force, "-lt": args.left, "-rt": args.right, "-g": args.graph, "-cf": args.other_graph,
        "--benchmark": args.benchmark, "--threshold": args.threshold, "--workers": args.workers, "-l": args.limit,
        "--write": args.write, "--fail": args.fail, "--check": args.check, "--passes": args.more_passes,
        "--timeout": args.timeout, "--repeat": args.repeat, "--fresh": args.fresh, "PASS": args.passes,
    }  # fmt: skip
    for name, value in values.items():
        is_given = bool(value) or (value == 0 and value is not False)
        if is_given and args.action not in _GOES_WITH[name]:
            what = args.passes[0] if name == "PASS" else name
            raise UsageError("cli.fusion_option", action=args.action, option=what, actions=_GOES_WITH[name])
    args.threshold = session.settings.threshold if args.threshold is None else args.threshold
    args.limit = args.limit or session.settings.limit
    args.repeat = args.repeat or 1
    return _WORDS[args.action](session, args, output)


def _list(session: Session, args: argparse.Namespace, output: Output) -> int:
    switches: Switches | None = None
    try:
        file = find_switch_file(session.workspace)
        note_bisected(session, [file])
        switches = file.read()
    except PrecisionToolError as error:
        session.workspace.notes.append(error.message)
    session.data.check_data()
    graphs = fusion_graphs(session.data, args.graph, switches)
    tell_notes(session, output)
    if args.json:
        output.out.file.write(report.passes_json(graphs) + "\n")
    else:
        output.show(*spaced([*report.passes_lines(graphs, session.settings.threshold)]))
    return DONE


_WORDS: dict[str, Callable[[Session, argparse.Namespace, Output], int]] = {
    "list": _list,
    "show": show,
    "off": switch,
    "on": switch,
    "all-off": all_off,
    "reset": reset,
    "blame": blame,
    "bisect": bisect,
}

COMMAND = Command(_parser, _run)
