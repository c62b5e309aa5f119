"""`demo`: generates a network's dump with one faulty op, and finds it."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from precision_tool.lib.demo.generate import DemoTruth, generate_demo
from precision_tool.lib.demo.network import FAULTS
from precision_tool.lib.report.text import byte_size, plain
from precision_tool.lib.session import Session
from precision_tool.lib.shell.commands.base import DONE, Command, Output, Parser, count
from precision_tool.lib.shell.commands.registry import load_command

#: The commands that find what `ac -c` alone does not.
_MORE = {
    "overflow": ["ac -c", "overflow"],
    "scale": ["ac -c", "overflow"],
    "random": ["ac -c", "random"],
    "stomp": ["ac -c", "random"],
    "fusion": ["fusion blame"],
}


def _parser(session: Session) -> Parser:
    parser = Parser(
        prog="demo",
        description="Generate a small network's NPU dump with one op computed wrong, its graph and its benchmark "
        "tensors, then run `ac -c` on them, and `overflow` or `random` where these find the fault; with --fault fusion "
        "a second run without fusion, then `fusion blame`.",
        epilog="example: demo /tmp/demo --fault nan",
    )
    parser.add_argument(
        "folder", nargs="?", default="demo_data", metavar="DIR", help="made if missing (default %(default)s)"
    )
    parser.add_argument(
        "--seed", type=count(0), default=1, metavar="N", help="another seed, other numbers (default %(default)s)"
    )
    parser.add_argument(
        "--fault", choices=sorted(FAULTS), default="fused", help="what is computed wrong (default %(default)s)"
    )
    parser.add_argument("--ops", type=count(1), metavar="N", help="about this many ops more, for benchmarks")
    parser.add_argument("--size", type=count(1), metavar="N", help="elements of a hidden activation of those ops")
    parser.add_argument("--bytes", type=count(1), metavar="N", help="about this many bytes in all")
    parser.add_argument("--giant", type=count(1), metavar="N", help="one tensor of this many bytes as well")
    parser.add_argument("--generate-only", action="store_true", help="do not run `ac -c`")
    return parser


def _run(session: Session, args: argparse.Namespace, output: Output) -> int:
    root = Path(args.folder) / "precision_data"
    truth: DemoTruth = generate_demo(
        root,
        seed=args.seed,
        fault=args.fault,
        ops=args.ops,
        size=args.size,
        bytes_total=args.bytes,
        giant_bytes=args.giant,
    )
    output.out.print(
        plain(
            f"{root}: {truth.dump_files} dump files, {truth.golden_files} benchmark tensors, {byte_size(truth.nbytes)}"
        ),
        soft_wrap=True,
    )
    if args.generate_only:
        return DONE
    code = DONE
    for line in _MORE.get(args.fault, ["ac -c"]):
        output.out.print(plain(f"$ precision-tool --data {root} {line}"), soft_wrap=True)
        word, *arguments = line.split()
        code = load_command(word)(Session(replace(session.settings, data=root)), arguments, output)
    wrong = f"{truth.culprit} {FAULTS[args.fault].did}" if truth.culprit else "nothing was computed wrong"
    output.out.print(plain(f"truth of this demo: {wrong}"), soft_wrap=True)
    return code


DEMO = Command(_parser, _run)
