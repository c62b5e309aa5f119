"""Curves over steps and ranks: what is in the rows, which band is left first, and the event files."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from command_line import tool
from diagnosing import studied
from training_side import tensorflow_python

from precision_tool.lib.compare.tensor_figures import summary_of_statistics
from precision_tool.lib.demo.ranks import RanksTruth, generate_ranks
from precision_tool.lib.diagnose.curves import (
    CURVE_COLUMNS,
    FIGURES,
    Curves,
    CurveTaker,
    LeafRows,
    ReadLeaves,
    curves_of,
)
from precision_tool.lib.diagnose.roles import roles_of
from precision_tool.lib.diagnose.study import Study
from precision_tool.lib.diagnose.study_table import Columns, coded, columns_of
from precision_tool.lib.model.comparison import Pair
from precision_tool.lib.model.graph import Edge, Graph, GraphFile, Op, TensorDesc
from precision_tool.lib.model.table import Row
from precision_tool.lib.model.tensor import Tensor, TensorStatistics

# --- bands, of made-up rows ---

NAMES = ("loss", "w", "g")
ROLES = ("loss", "variable", "gradient")

#: Changes the columns of a step and rank.
Change = Callable[[int, int, dict[str, Any]], None]


def leaf(norms: list[float], **more: list[float]) -> dict[str, Any]:
    """Rows of the loss, a variable and its gradient, of a hundred elements each."""
    count = len(NAMES)
    columns: dict[str, Any] = {name: np.full(count, np.nan) for name in CURVE_COLUMNS}
    columns |= {name: np.zeros(count, np.int64) for name in ("nan", "inf", "scalar", "mismatches")}
    columns |= {"op": coded(NAMES), "slot": coded(["output:0"] * count), "role": coded(ROLES), "variable": coded(NAMES)}
    columns |= {"npu_type": coded(["float32"] * count), "number": np.arange(count), "elements": np.full(count, 100)}
    norm = np.array(norms)
    columns |= {"npu_norm": norm, "npu_mean": norm / 10, "npu_minimum": -norm, "npu_maximum": norm}
    columns |= {"zero_share": np.zeros(count)} | {name: np.array(values) for name, values in more.items()}
    return columns


def training(ranks: int, steps: int, change: Change = lambda step, rank, columns: None, seed: int = 1) -> ReadLeaves:
    """A training: all ranks have the same variable, and losses and gradients of their own."""
    rng = np.random.default_rng(seed)
    leaves: list[LeafRows] = []
    for step in range(steps):
        for rank in range(ranks):
            noise = np.exp(0.3 * rng.standard_normal(2))
            columns: Columns = leaf([2.0 * noise[0] * 0.9**step, 10 - 0.1 * step, 5 * noise[1]])
            change(step, rank, columns)
            leaves.append((step, rank, columns, True))
    return lambda wanted: (item for item in leaves if wanted is None or item[1] in wanted)


def of(ranks: int, steps: int, change: Change = lambda step, rank, columns: None, seed: int = 1) -> Curves:
    return curves_of(training(ranks, steps, change, seed), ranks)


def at(step: int, rank: int, name: str, column: str, value: float) -> Change:
    """From this step on a rank has another value."""

    def change(now: int, of_rank: int, columns: dict[str, Any]) -> None:
        if now >= step and of_rank == rank:
            columns[column] = columns[column].copy()
            columns[column][NAMES.index(name)] = value

    return change


def first(curves: Curves) -> tuple[str, str, str, int, tuple[int, ...]] | None:
    if curves.first is None:
        return None
    curve, leaving = curves.first
    return curve.name, leaving.against, leaving.figure, leaving.step, leaving.ranks


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 16])
def test_clean_trainings_leave_no_band(ranks: int) -> None:
    for seed in range(12):
        for steps in (1, 8):
            assert first(of(ranks, steps, seed=seed)) is None


@pytest.mark.parametrize(
    ("name", "column", "value", "figure"),
    [
        ("w", "npu_norm", 9.0, "norm"), ("w", "npu_mean", 0.5, "mean"), ("w", "zero_share", 0.4, "zeros"),
        ("w", "nan", 3, "not_finite"), ("g", "inf", 1, "not_finite"), ("g", "npu_norm", 5e9, "norm"),
        ("g", "npu_norm", 0.0, "norm"),
    ],
)  # fmt: skip
def test_the_first_step_of_the_rank_that_leaves(name: str, column: str, value: float, figure: str) -> None:
    found = of(8, 8, at(3, 5, name, column, value))
    assert first(found) == (name, "ranks", figure, 3, (5,))
    others = [curve for curve in found.curves if curve.name != name]
    assert not any(curve.leaves for curve in others)


def test_two_ranks_that_part_are_both_named() -> None:
    assert first(of(2, 6, at(2, 1, "w", "npu_norm", 9.0))) == ("w", "ranks", "norm", 2, (0, 1))
    # Shards of a variable differ from the start, and so do gradients of other data.
    assert first(of(2, 6, at(0, 1, "w", "npu_norm", 9.0))) is None


def test_nan_on_all_ranks_accuses_none() -> None:
    def change(step: int, rank: int, columns: dict[str, Any]) -> None:
        at(2, rank, "g", "nan", 4)(step, rank, columns)

    found = of(4, 4, change)
    assert first(found) == ("g", "all", "not_finite", 2, (0, 1, 2, 3))


def test_a_rank_off_its_own_benchmark() -> None:
    def change(step: int, rank: int, columns: dict[str, Any]) -> None:
        off = step >= 2
        columns["benchmark_norm"] = columns["npu_norm"] * (1.0 if not off else 2.0)
        columns["cosine"] = np.array([np.nan, 0.9 if off else 1.0, np.nan])  # of others there are statistics only
        columns["relative_euclidean_distance"] = np.array([np.nan, 0.45 if off else 0.0, np.nan])

    found = of(1, 4, change)
    assert [(curve.name, [leaving.step for leaving in curve.leaves]) for curve in found.curves] == [
        ("loss", [2]), ("w", [2]), ("g", [2]),
    ]  # fmt: skip
    assert found.curves[1].leaves[0].value == 0.45
    # Another rank's benchmark, or another step's, has other data.
    leaves = [(step, rank, columns, False) for step, rank, columns, _ in training(1, 4, change)(None)]
    assert first(curves_of(lambda ranks: iter(leaves), 1)) is None


def test_many_ranks_leave_only_bands_behind() -> None:
    def rows(ranks: Any) -> Iterator[LeafRows]:
        for step in range(3):
            for rank in range(300) if ranks is None else ranks:
                columns = leaf([2.0, 10.0, 5.0])
                at(2, 200, "w", "npu_norm", 9.0)(step, rank, columns)
                yield step, rank, columns, True

    taker = CurveTaker(300)
    for item in rows(None):
        taker.take(*item)
    kept = taker._steps[0]
    assert max(part.size for part in (kept.bands, kept.far_ranks, kept.far_values)) < 200
    found = curves_of(rows, 300)
    assert first(found) == ("w", "ranks", "norm", 2, (200,))
    assert {line.rank for curve in found.curves for line in curve.lines} == {200}


# --- what is a variable, a gradient, the loss ---


def test_roles_of_a_graph() -> None:
    """Adam's gradient by its prototype, momentum's by its size; the loss by its name before an accuracy."""
    scalar, wide = TensorDesc(dtype="float32", shape=()), TensorDesc(dtype="float32", shape=(8,))

    def op(name: str, op_type: str, *fed: str, desc: TensorDesc = wide) -> Op:
        return Op(
            name=name, type=op_type, inputs=tuple(Edge(producer=each, index=0) for each in fed), output_descs=(desc,)
        )

    numbers = ("m", "v", "b1", "b2", "lr", "beta1", "beta2", "eps")
    ops = [
        *(op(name, "Variable") for name in ("w", "accum", "k", "m", "v")), op("x", "Data"), op("y", "MatMul", "x", "w"),
        op("cross_entropy/Mean", "ReduceMeanD", "y", desc=scalar), op("equal", "Equal", "y"),
        op("cast", "Cast", "equal"), op("more", "Mul", "cast"), op("accuracy", "ReduceMeanD", "more", desc=scalar),
        op("gradients/y", "MatMul", "cross_entropy/Mean"), *(op(name, "Const", desc=scalar) for name in numbers[2:]),
        op("AdamW", "ApplyAdam", "w", *numbers, "gradients/y"),
        op("Step", "ApplyMomentum", "k", "accum", "lr", "gradients/y"),
        op("Count", "AssignAdd", "steps", "lr"),
    ]  # fmt: skip
    file = GraphFile(path="g", graphs=(Graph(name="g", ops=tuple(ops)),))

    def row(name: str, slot: str, op_type: str, dtype: str = "float32", shape: tuple[int, ...] = (8,)) -> Row:
        tensor = Tensor(path="f", offset=0, nbytes=32, dtype=dtype, shape=shape)
        return Row(
            pair=Pair(index=0, op_name=name, op_type=op_type, npu_ops=(name,), golden_ops=(), slot=slot, npu=tensor)
        )

    rows = [
        row("cross_entropy/Mean", "output:0", "ReduceMeanD", shape=()),
        row("accuracy", "output:0", "ReduceMeanD", shape=()),
        row("AdamW", "input:0", "ApplyAdam"), row("AdamW", "input:9", "ApplyAdam"),
        row("AdamW", "output:0", "ApplyAdam"),
        *(row("Step", f"input:{slot}", "ApplyMomentum") for slot in (0, 1, 3)),
        row("Count", "input:0", "AssignAdd", "int64", ()),
    ]  # fmt: skip
    assert roles_of(rows, file) == {
        "cross_entropy/Mean:output:0": ("loss", "cross_entropy/Mean"),
        "AdamW:output:0": ("variable", "w"), "AdamW:input:9": ("gradient", "w"),
        "Step:input:0": ("variable", "k"), "Step:input:3": ("gradient", "k"),
    }  # fmt: skip
    assert roles_of(rows, None)["AdamW:output:0"] == ("variable", "AdamW")


# --- a whole study, its table, and the command ---


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RanksTruth, Study]:
    root = tmp_path_factory.mktemp("curves")
    truth = generate_ranks(root, ranks=3, steps=2, fault="update", fault_step=1, fault_rank=1)
    data = root / truth.data[0]
    work = root / "work" / "study"
    work.parent.mkdir()
    return data, truth, studied(work, data, table=str(root / "study.parquet"))


def test_a_study_has_the_figures_of_every_rank(made: tuple[Path, RanksTruth, Study]) -> None:
    _, _, study = made
    assert first(study.curves) == ("fc1/kernel", "ranks", "norm", 1, (1,))
    roles = [curve.role for curve in study.curves.curves]
    assert (roles[0], roles.count("variable"), roles.count("gradient")) == ("loss", 8, 8)
    table = pq.read_table(study.table).to_pylist()
    rows = {(row["step"], row["rank"], f"{row['op']}:{row['slot']}"): row for row in table}
    # Rank 0 alone has a benchmark; behind the sum all ranks have the same gradient, and so the same figures.
    names = ("npu_norm", "npu_mean", "npu_std", "npu_minimum", "npu_maximum", "zero_share", "elements")
    [tensor] = [
        f"{row['op']}:{row['slot']}" for row in table if (row["role"], row["variable"]) == ("gradient", "fc1/kernel")
    ][:1]
    with_benchmark, without = rows[0, 0, tensor], rows[0, 2, tensor]
    assert (with_benchmark["status"], without["status"]) == ("compared", "no_benchmark")
    assert [without[name] for name in names] == pytest.approx([with_benchmark[name] for name in names], rel=1e-5)
    assert 0 < without["zero_share"] < 0.1
    assert without["benchmark_norm"] is None


def test_the_command_and_its_event_files(made: tuple[Path, RanksTruth, Study], tmp_path: Path) -> None:
    data, truth, _ = made
    out = tool(
        "--data",
        data,
        "--work",
        data.parent / "work",
        "curves",
        "--json",
        "--tensorboard",
        tmp_path / "events",
        cwd=tmp_path,
    ).out
    document = json.loads(out)
    assert document["first"] | {"low": 0, "high": 0, "value": 0} == {
        "tensor": f"{truth.culprit}:output:0", "against": "ranks", "figure": "norm", "step": 1, "ranks": [1],
        "count": 1, "low": 0, "high": 0, "value": 0,
    }  # fmt: skip
    script = (
        "import json, sys, types\n"
        "sys.modules['tensorboard.compat.notf'] = types.ModuleType('notf')  # it reads these without TensorFlow\n"
        "from tensorboard.backend.event_processing.event_accumulator import EventAccumulator\n"
        "events = EventAccumulator(sys.argv[1]); events.Reload()\n"
        "print(json.dumps([[e.step, e.value] for e in events.Scalars(sys.argv[2])]))\n"
    )
    python = tensorflow_python("2.15")
    run = [python, "-c", script, str(tmp_path / "events" / "rank_1"), "norm/variable/fc1/kernel"]
    read = json.loads(subprocess.run(run, capture_output=True, check=True, text=True).stdout)
    [curve] = [curve for curve in document["curves"] if (curve["role"], curve["name"]) == ("variable", "fc1/kernel")]
    assert [step for step, _ in read] == [0, 1]
    assert [value for _, value in read] == pytest.approx(curve["lines"][1]["norm"])
    runs = {path.name for path in (tmp_path / "events").iterdir()}
    assert runs == {"rank_0", "rank_1", "rank_2", "ranks_low", "ranks_median", "ranks_high", "benchmark"}


def test_the_screen_ends_with_its_conclusion(made: tuple[Path, RanksTruth, Study], tmp_path: Path) -> None:
    data, truth, _ = made
    said = tool("--data", data, "--work", data.parent / "work", "curves", cwd=tmp_path, env={"LANG": "C.UTF-8"}).out
    lines = said.splitlines()
    assert lines[0].startswith("step 1: rank 1 leaves the band")
    assert said.rindex("step 1: rank 1 leaves the band") > said.index("loss/Mean")
    assert f"ni {truth.culprit} --step 1 --rank 1" in lines[-1]
    named = json.loads(
        tool("--data", data, "--work", data.parent / "work", "curves", "conv1*Relu", "--json", cwd=tmp_path).out
    )
    assert {curve["role"] for curve in named["curves"]} == {"tensor"}
    assert tool("--data", data, "--work", data.parent / "work", "curves", "--fail", cwd=tmp_path, code=1).out
    wrong = tool("--data", data, "--work", data.parent / "work", "curves", "nothing/*", cwd=tmp_path, code=2)
    assert "nothing/*" in wrong.err


def test_without_a_study_it_says_what_to_run(made: tuple[Path, RanksTruth, Study], tmp_path: Path) -> None:
    assert "ac --all" in tool("--data", made[0], "curves", cwd=tmp_path, code=2).err


def test_statistics_tell_norms_and_no_zeros() -> None:
    tensor = TensorStatistics(path="f", dtype="float32", shape=(8,), maximum=2.0, minimum=-1.0, mean=0.5, l2_norm=3.0)
    pair = Pair(index=0, op_name="a", op_type="Relu", npu_ops=("a",), golden_ops=(), slot="output:0", npu=tensor)
    columns = columns_of([Row(pair=pair, npu=summary_of_statistics(tensor))], {"a:output:0": ("variable", "w")})
    taker = CurveTaker(1)
    taker.take(0, 0, columns)
    [curve] = taker.curves().curves
    figures = dict(zip(FIGURES, curve.bands[:, 0, 1].tolist(), strict=True))
    assert [figures[name] for name in ("norm", "mean", "minimum", "maximum", "not_finite")] == [
        3.0,
        0.5,
        -1.0,
        2.0,
        0.0,
    ]
    assert np.isnan(figures["zeros"])
