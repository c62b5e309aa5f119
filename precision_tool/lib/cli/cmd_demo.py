"""`demo`: generates a network's dump with one faulty op, and finds it; or the dumps of a training of many ranks."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from shlex import join, quote

from precision_tool.lib.cli import flags
from precision_tool.lib.cli.arguments import program
from precision_tool.lib.cli.command import DONE, Output, Parser, command, load_command
from precision_tool.lib.demo.device import FAULTS
from precision_tool.lib.demo.generate import DemoTruth, generate_demo
from precision_tool.lib.demo.msprobe_demo import generate_msprobe
from precision_tool.lib.demo.pytorch_demo import generate_pytorch
from precision_tool.lib.demo.ranks import BENCHMARKS, RANK_FAULTS, RanksTruth, generate_ranks
from precision_tool.lib.messages import text
from precision_tool.lib.messages.errors import UsageError
from precision_tool.lib.session import Session

#: The commands that find what `ac -c` alone does not.
_MORE = {
    "overflow": ["ac -c", "overflow"],
    "scale": ["ac -c", "overflow"],
    "random": ["ac -c", "random"],
    "stomp": ["ac -c", "random"],
    "fusion": ["fusion blame"],
}

_COMPARE = ("ac -c",)
#: Faults of a single op, which can be mended, and shrunk to a smaller case.
_OF_ONE_OP = frozenset({"fused", "nan", "fusion"})
#: Stands for the command of the user's that `bisect` runs.
_CHECK = "python3 train.py"
#: What is computed wrong where nothing else is asked for.
_FAULT = "fused"
_STEPS = 3
#: So many ranks has a fault that takes several.
_RANKS = 4
#: The options that make the single network larger.
_SIZES = ("--ops", "--size", "--bytes", "--giant")


def _options(parser: Parser, session: Session) -> None:
    parser.add_argument(
        "folder", nargs="?", default="demo_data", metavar="DIR", help="created if missing (default %(default)s)"
    )
    parser.add_argument(
        "--seed", type=flags.count(0), default=1, metavar="N", help="seed of the random numbers (default %(default)s)"
    )
    parser.add_argument(
        "--fault", choices=sorted(FAULTS | RANK_FAULTS), default=_FAULT,
        help="the fault to generate (default %(default)s)",
    )  # fmt: skip
    parser.add_argument("--ops", type=flags.count(1), metavar="N", help="add about this many ops, for benchmarks")
    parser.add_argument("--size", type=flags.count(1), metavar="N", help="elements per hidden activation of those ops")
    parser.add_argument("--bytes", type=flags.count(1), metavar="N", help="approximate size of the data in bytes")
    parser.add_argument("--giant", type=flags.count(1), metavar="N", help="add one tensor of this many bytes")
    frameworks = parser.add_mutually_exclusive_group()
    frameworks.add_argument(
        "--pytorch", action="store_true", help="generate msprobe's dumps of a step of PyTorch 2 instead, of NPU and GPU"
    )
    frameworks.add_argument(
        "--h5", action="store_true", help="generate .h5 dumps of a step of PyTorch 1.5 instead (needs h5py)"
    )
    ranks = parser.add_argument_group("training on several ranks")
    ranks.add_argument(
        "--ranks", type=flags.count(1), metavar="N",
        help="number of NPUs, eight per data folder (default 1, "
        f"with --fault {' or '.join(sorted(set(RANK_FAULTS) - set(FAULTS)))} {_RANKS})",
    )  # fmt: skip
    ranks.add_argument("--steps", type=flags.count(1), metavar="N", help=f"number of steps (default {_STEPS})")
    ranks.add_argument(
        "--fault-step", type=flags.count(0), metavar="K",
        help="first step with the fault (default: halfway)",
    )  # fmt: skip
    ranks.add_argument(
        "--fault-rank", type=flags.count(0), metavar="R", help="the fault is only on this rank, at that step"
    )
    ranks.add_argument("--benchmark", choices=BENCHMARKS, help="which ranks have a benchmark (default one: rank 0)")
    ranks.add_argument(
        "--statistics", action="store_true", help="dump statistics (minimum, maximum, …) instead of tensors"
    )
    parser.add_argument("--generate-only", action="store_true", help="generate only, run no command on the data")


@command(
    "demo",
    "Generate the NPU dump of a small network with one faulty op, its graph and its benchmark tensors, then run "
    "`ac -c` on them, and `overflow` or `random` if these find the fault. With --fault fusion, also generate a run "
    "without fusion and run `fusion blame`. With --ranks or --steps, generate the dumps of a data-parallel "
    "training and run `ac --all`. With --pytorch, generate what msprobe dumps, with the training script.",
    _options,
    example="demo /tmp/demo --fault nan",
)
def run(session: Session, args: argparse.Namespace, output: Output) -> int:
    root = Path(args.folder) / "precision_data"
    of_ranks = _set_options(args, "--ranks", "--steps", "--fault-step", "--fault-rank", "--benchmark", "--statistics")
    if args.pytorch or args.h5:
        return _run_pytorch(session, args, of_ranks, root, output)
    if not of_ranks and args.fault not in FAULTS:  # what replicas have in common takes several
        args.ranks, of_ranks = _RANKS, [f"--fault {args.fault}"]
    if of_ranks:
        return _run_ranks(args, of_ranks[0], output)
    truth: DemoTruth = generate_demo(
        root,
        seed=args.seed,
        fault=args.fault,
        ops=args.ops,
        size=args.size,
        bytes_total=args.bytes,
        giant_bytes=args.giant,
    )
    _show_made(output, [root], truth)
    if args.generate_only:
        return DONE
    if truth.culprit is not None and args.fault in _OF_ONE_OP:
        _show_more(root, truth.culprit, output)
    return _find(session, root, truth.culprit, FAULTS[args.fault].did, _MORE.get(args.fault, _COMPARE), output)


def _show_more(root: Path, culprit: str, output: Output) -> None:
    """Print what else can be asked of the generated data, or of the command that a user's own data is of."""
    commands = {
        "demo_whatif": ["whatif", culprit],
        "demo_minimize": ["repro", culprit, "--minimize"],
        "demo_bisect": ["bisect", "--check", _CHECK],
    }
    for name, words in commands.items():
        command = f"{output.command or program()} --data {quote(str(root))} {join(words)}"
        output.print_line(text(f"screen.cli.{name}", command=command))


def _find(session: Session, root: Path, culprit: str | None, did: str, lines: Sequence[str], output: Output) -> int:
    """Run the command lines that find the fault of the generated data, and print what it is."""
    code = DONE
    for line in lines:
        output.print_line(f"$ {output.command or program()} --data {quote(str(root))} {line}")
        word, *arguments = line.split()
        code = load_command(word)(Session(replace(session.settings, data=root)), arguments, output)
    output.print_line(text("screen.cli.demo_truth", culprit=culprit, did=did, rank=None, step=None))
    return code


def _show_made(output: Output, folders: Sequence[Path], truth: DemoTruth | RanksTruth) -> None:
    made = text(
        "screen.cli.demo_made",
        folders=[str(folder) for folder in folders],
        dumps=truth.dump_files,
        golden=truth.golden_files,
        size=truth.nbytes,
    )
    output.print_line(made)


def _set_options(args: argparse.Namespace, *options: str) -> list[str]:
    """Return those of the options that are set."""
    values = vars(args)
    return [option for option in options if values[option.strip("-").replace("-", "_")] not in (None, False)]


def _run_ranks(args: argparse.Namespace, option: str, output: Output) -> int:
    if options := _set_options(args, *_SIZES):
        raise UsageError("cli.options_exclude", command="demo", option=options[0], other=option)
    root = Path(args.folder)
    truth = generate_ranks(
        root,
        ranks=args.ranks or 1,
        steps=args.steps or _STEPS,
        seed=args.seed,
        fault=args.fault,
        fault_step=args.fault_step,
        fault_rank=args.fault_rank,
        benchmark=args.benchmark or BENCHMARKS[0],
        statistics=args.statistics,
    )
    _show_made(output, [root / folder for folder in truth.data], truth)
    wrong = text(
        "screen.cli.demo_truth", culprit=truth.culprit, did=truth.did, rank=truth.fault_rank, step=truth.fault_step
    )
    output.print_line(wrong)
    data = " ".join(f"--data {quote(str(root / folder))}" for folder in truth.data)
    command = f"{output.command or program()} {data} ac --all"
    output.print_line(text("screen.cli.demo_find", command=command))
    return DONE


def _run_pytorch(
    session: Session, args: argparse.Namespace, of_ranks: Sequence[str], root: Path, output: Output
) -> int:
    options = _set_options(args, *_SIZES, *of_ranks)
    if args.fault != _FAULT:
        options.append("--fault")
    if options:
        other = "--pytorch" if args.pytorch else "--h5"
        raise UsageError("cli.options_exclude", command="demo", option=options[0], other=other)
    truth = generate_msprobe(root, seed=args.seed) if args.pytorch else generate_pytorch(root, seed=args.seed)
    made = text(
        "screen.cli.demo_made_pytorch",
        npu=str(truth.npu),
        tensors=truth.tensors,
        ops=truth.ops,
        golden=str(truth.golden),
    )
    output.print_line(made)
    if args.generate_only:
        return DONE
    if args.pytorch:  # whose benchmark tells how its calls hang together
        command = f"{output.command or program()} --data {quote(str(root))} preflight"
        output.print_line(text("screen.cli.demo_preflight", command=command))
        _show_more(root, truth.culprit, output)
    return _find(session, root, truth.culprit, "wrong", _COMPARE, output)
