"""How right `ac --all` is: 72 studies of own networks with one fault each, or none, and what is said of them.

usage: study_figures.py [--to DIR] [--only NAME ...] [--tool COMMAND] [--variant N] [--jobs N] [--write]

Each study is written below DIR (by default a temporary folder) with a truth.json: the step, ranks, ops and causes that
are right. Then `ac --all --json` runs on each, and the table says which are right. Studies that are there already are
not written again. `--tool` is the precision-tool to score, by default that of this Python.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from study_cases import CASES, TRUTH, Case, write_case


def main() -> int:
    """Write the studies, score them and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=Path)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--tool", default=str(Path(sys.executable).parent / "precision-tool"))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--variant", type=int, default=0, help="other random numbers")
    parser.add_argument("--write", action="store_true", help="only write the studies")
    args = parser.parse_args()
    cases = [case for case in CASES if not args.only or case.name in args.only]
    with tempfile.TemporaryDirectory() as temporary:
        root = args.to or Path(temporary)
        for case in cases:
            if not (root / case.name / TRUTH).exists():
                write_case(case, root / case.name, args.variant)
        if args.write:
            return 0
        with ThreadPoolExecutor(args.jobs) as pool:
            scores = list(pool.map(lambda case: score(case, root / case.name, args.tool), cases))
    print(table(scores))
    return 0


def score(case: Case, folder: Path, tool: str) -> dict[str, Any]:
    """Run `ac --all` on a study and say whether its conclusion is the truth."""
    truth = json.loads((folder / TRUTH).read_text(encoding="utf-8"))
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as work:
        data = []
        for name in truth["data"]:  # by links, as the tool keeps its progress beside the dumps
            (Path(work) / name).mkdir()
            for part in (folder / name).iterdir():
                (Path(work) / name / part.name).symlink_to(part)
            data += ["--data", name]
        done = subprocess.run(
            [tool, *data, "ac", "--all", "--json"], cwd=work, capture_output=True, text=True, check=False
        )
    seconds = time.monotonic() - began
    try:
        said = json.loads(done.stdout)
    except ValueError:
        said = {"failure": (done.stderr or done.stdout)[-300:]}
    return {"truth": truth, "seconds": seconds, "said": said, **judged(truth, said)}


def judged(truth: Mapping[str, Any], said: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of (step, rank, op, cause) is right."""
    if "failure" in said:
        return {"right": False, "wrong": ["failed"], "answer": said["failure"]}
    culprit = said["culprit"]
    answer = "nobody"
    if culprit is not None:
        answer = "step {step} rank {rank} {op} ({cause}, {ground}, {reach} {ranks})".format(**culprit)
    alike = sorted({rank for item in said.get("same_batch", ()) for rank in item["ranks"]})
    if alike:
        answer += f", ranks {alike} read the same batch"
    if truth["cause"] == "same_batch":
        wrong = ["nobody"] if not alike else [] if culprit is None and alike == truth["at"] else ["rank"]
        return {"right": not wrong, "wrong": wrong, "answer": answer}
    if truth["clean"]:
        right = culprit is None or any(_fits(other, culprit) == [] for other in truth["alternatives"])
        return {"right": right, "wrong": [] if right else ["accused"], "answer": answer}
    if culprit is None:
        return {"right": False, "wrong": ["nobody"], "answer": answer}
    wrong = _fits(truth, culprit)
    return {"right": not wrong, "wrong": wrong, "answer": answer}


def _fits(truth: Mapping[str, Any], culprit: Mapping[str, Any]) -> list[str]:
    wrong = []
    if truth.get("step") is not None and culprit["step"] != truth["step"]:
        wrong.append("step")
    if culprit["rank"] not in truth["at"] or not set(culprit["ranks"]) <= set(truth["at"]):
        wrong.append("rank")
    if len(truth["at"]) > 1 and culprit["reach"] == "one_rank" and "rank" not in wrong:
        wrong.append("rank")
    if truth["ops"] and culprit["op"] not in truth["ops"]:
        wrong.append("op")
    if culprit["cause"] not in truth["causes"]:
        wrong.append("cause")
    return wrong


def table(scores: list[dict[str, Any]]) -> str:
    """Return the table, and each miss with what was expected and said."""
    lines = [f"{'study':6} {'network':16} {'ranks':>5} {'steps':>5} {'device':10} {'expected':34} {'right':7} {'s':>5}"]
    for item in scores:
        truth = item["truth"]
        right = "yes" if item["right"] else ",".join(item["wrong"])
        lines.append(
            f"{truth['name']:6} {truth['network']:16} {truth['ranks']:5} {truth['steps']:5} {truth['device']:10} "
            f"{_expected(truth)[:34]:34} {right:7} {item['seconds']:5.1f}"
        )
    faulty = [item for item in scores if not item["truth"]["clean"]]
    clean = [item for item in scores if item["truth"]["clean"]]
    lines.append("")
    lines.append(f"faulty: {sum(item['right'] for item in faulty)} of {len(faulty)} right in step, rank, op and cause")
    for part in ("step", "rank", "op", "cause", "nobody", "failed"):
        lines.append(f"  wrong {part}: {sum(part in item['wrong'] for item in faulty)}")
    lines.append(f"clean: {sum(not item['right'] for item in clean)} of {len(clean)} accused")
    for item in scores:
        if not item["right"]:
            truth = item["truth"]
            lines += [
                "",
                f"{truth['name']} (item {truth['item']}): expected {_expected(truth)} {truth['note']}",
                f"    said {item['answer']}",
            ]
    return "\n".join(lines)


def _expected(truth: Mapping[str, Any]) -> str:
    if truth["clean"]:
        return "nobody"
    at = truth["at"]
    ranks = "all ranks" if len(at) == truth["ranks"] else f"ranks {at}" if len(at) > 1 else f"rank {at[0]}"
    step = "" if truth["step"] is None else f"step {truth['step']} "
    return f"{step}{ranks} {' or '.join(truth['ops'][:1]) or '-'} {truth['cause']}"


if __name__ == "__main__":
    sys.exit(main())
