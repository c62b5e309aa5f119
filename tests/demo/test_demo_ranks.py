"""The demo of a training on many ranks: what its ranks have in common, and where its fault shows first."""

from __future__ import annotations

import csv
import io
import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import tool

from precision_tool.lib.api import run as run_word
from precision_tool.lib.data.dump_tree import find_run
from precision_tool.lib.demo.ranks import RANK_FAULTS, RanksTruth, data_folders, generate_ranks
from precision_tool.lib.io.readers import open_op_dump
from precision_tool.lib.messages.errors import UsageError
from precision_tool.lib.model.tensor import Tensor
from precision_tool.lib.session import Session

RANKS, STEPS = 3, 3


def values(path: Path, side: str, slot: int = 0) -> Any:
    tensor = getattr(open_op_dump(str(path)), side)[slot]
    assert isinstance(tensor, Tensor)
    data = path.read_bytes()[tensor.offset : tensor.offset + tensor.nbytes]
    return np.frombuffer(data, tensor.dtype)


@dataclass
class Made:
    """A demo, and each rank and step's dump files by their op's flattened name, in the order of their times."""

    root: Path
    truth: RanksTruth
    files: Mapping[tuple[int, int], Mapping[str, Path]]

    def first_other(self, other: Made, rank: int, step: int) -> str | None:
        """The first op with other outputs than in another demo; headers differ by nothing but times."""
        for name, path in self.files[rank, step].items():
            one, two = open_op_dump(str(path)), open_op_dump(str(other.files[rank, step][name]))
            for slot in range(len(one.outputs)):
                left, right = values(path, "outputs", slot), values(Path(two.path), "outputs", slot)
                if left.tobytes() != right.tobytes():
                    return name
        return None


def made(root: Path, **options: Any) -> Made:
    wanted: dict[str, Any] = {"ranks": RANKS, "steps": STEPS, "benchmark": "none"}
    truth = generate_ranks(root, **wanted | options)
    files = {}
    for leaf in truth.leaves:
        paths = sorted((root / leaf.dump_dir).iterdir(), key=lambda path: int(path.name.split(".")[4]))
        files[leaf.rank, leaf.step] = {path.name.split(".")[1]: path for path in paths}
    return Made(root, truth, files)


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return made(tmp_path_factory.mktemp("clean"), fault="none")


def flat(name: str | None) -> str:
    return str(name).replace("/", "_")


def test_replicas_agree_bit_for_bit_behind_the_all_reduce(clean: Made) -> None:
    assert len(clean.truth.all_reduces) == len(clean.truth.variables) == 8
    shared = [flat(name) for name in clean.truth.all_reduces]
    shared += [flat(f"GradientDescent/update_{name}/ApplyGradientDescent") for name in clean.truth.variables]
    for step in range(STEPS):
        for name in shared:
            of_ranks = {values(clean.files[rank, step][name], "outputs").tobytes() for rank in range(RANKS)}
            assert len(of_ranks) == 1, name
        own = {values(clean.files[rank, step]["IteratorGetNext"], "outputs").tobytes() for rank in range(RANKS)}
        assert len(own) == RANKS, "every rank has data of its own"


def test_the_all_reduce_adds_up_what_the_ranks_have(clean: Made) -> None:
    for name in map(flat, clean.truth.all_reduces):
        parts = [values(clean.files[rank, 1][name], "inputs").astype(np.float64) for rank in range(RANKS)]
        total = values(clean.files[0, 1][name], "outputs").astype(np.float64)
        limit = 1e-6 * sum(np.abs(part) for part in parts) + 1e-12
        assert (np.abs(total - sum(parts)) <= limit).all()
        assert not np.array_equal(parts[0], parts[1])


def test_a_step_begins_with_the_variables_of_the_one_before(clean: Made) -> None:
    for name in clean.truth.variables:
        update = flat(f"GradientDescent/update_{name}/ApplyGradientDescent")
        before = values(clean.files[1, 0][update], "outputs")
        assert before.tobytes() == values(clean.files[1, 1][update], "inputs").tobytes()
        assert before.tobytes() != values(clean.files[1, 0][update], "inputs").tobytes()


@pytest.mark.parametrize("fault", sorted(set(RANK_FAULTS) - {"none"}))
def test_a_kernels_fault_begins_at_its_step_on_all_ranks(tmp_path: Path, clean: Made, fault: str) -> None:
    wrong = made(tmp_path, fault=fault, fault_step=1)
    assert (wrong.truth.fault_step, wrong.truth.fault_rank) == (1, None)
    for rank in range(RANKS):
        assert wrong.first_other(clean, rank, 0) is None
        first = wrong.first_other(clean, rank, 1)
        if fault == "stomp":  # the bytes that the op is fed are others; its name is the truth's
            culprit = wrong.files[rank, 1][flat(wrong.truth.culprit)]
            right = clean.files[rank, 1][flat(wrong.truth.culprit)]
            assert values(culprit, "inputs").tobytes() != values(right, "inputs").tobytes()
        assert first == flat(wrong.truth.culprit)


@pytest.mark.parametrize("fault", ["fused", "update", "allreduce"])
def test_a_devices_fault_is_on_its_rank_alone(tmp_path: Path, clean: Made, fault: str) -> None:
    wrong = made(tmp_path, fault=fault, fault_step=1, fault_rank=2)
    first = {rank: wrong.first_other(clean, rank, 1) for rank in range(RANKS)}
    assert first[2] == flat(wrong.truth.culprit)
    if fault == "fused":  # the others get it with the sum of the gradients
        assert first[0] == first[1]
        assert first[0] in [flat(name) for name in wrong.truth.all_reduces]
    else:
        assert first[0] is first[1] is None


def test_many_ranks_are_on_several_servers(tmp_path: Path) -> None:
    truth = generate_ranks(tmp_path, ranks=10, steps=1, fault="update", fault_rank=9, benchmark="one")
    assert truth.data == data_folders(10) == ("server_0/precision_data", "server_1/precision_data")
    for folder, devices in zip(truth.data, (8, 2), strict=True):
        run = find_run(str(tmp_path / folder / "npu/debug_0/dump"))
        assert [leaf.device for leaf in run.leaves] == [str(device) for device in range(devices)]
        assert {leaf.model_name for leaf in run.leaves} == {truth.model_name}
        assert json.loads((tmp_path / folder / "truth.json").read_text())["fault_rank"] == 9
    graphs = sorted(tmp_path.glob("server_*/precision_data/npu/debug_0/graph/*/ge_proto_*_graph_1_Build.txt"))
    assert len(graphs) == 10
    assert len({path.read_bytes() for path in graphs}) == 1
    assert sorted(path.parent.name for path in tmp_path.glob("*/*/tf/dump/*/*")) == ["rank_0"]


def test_the_benchmark_is_of_one_rank_or_of_all(tmp_path: Path) -> None:
    truth = generate_ranks(tmp_path, ranks=2, steps=2, fault="none", benchmark="all")
    golden = [leaf.golden_dir for leaf in truth.leaves]
    assert golden == [f"precision_data/tf/dump/rank_{rank}/step_{step}" for rank in range(2) for step in range(2)]
    means = [np.load(next((tmp_path / str(folder)).glob("loss_Mean.0.*.npy"))) for folder in golden]
    assert len({float(mean) for mean in means}) == 4
    again = generate_ranks(tmp_path, ranks=2, steps=1, fault="none")
    assert [leaf.golden_dir for leaf in again.leaves] == ["precision_data/tf/dump/rank_0/step_0", None]
    assert not list(tmp_path.glob("precision_data/tf/dump/rank_1"))


def test_statistics_in_place_of_tensors(tmp_path: Path, clean: Made) -> None:
    truth = generate_ranks(tmp_path, ranks=1, steps=1, fault="none", statistics=True)
    (path,) = (tmp_path / truth.leaves[0].dump_dir).glob("*.fc1_MatMul*.csv")
    with path.open(newline="") as stream:
        row = next(row for row in csv.DictReader(stream) if row["Input/Output"] == "Output")
    output = values(clean.files[0, 0][path.name.split(".")[1]], "outputs").astype(np.float64)
    assert float(row["Max Value"]) == output.max()
    assert float(row["l2norm"]) == pytest.approx(np.sqrt((output**2).sum()))
    assert int(row["Count"]) == output.size


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"ranks": 0}, "demo.out_of_range"),
        ({"steps": 101}, "demo.out_of_range"),
        ({"fault_step": 3}, "demo.no_such_step"),
        ({"fault_rank": 3}, "demo.no_such_rank"),
        ({"fault": "random"}, "demo.no_fault_of_ranks"),
        ({"benchmark": "half"}, "demo.no_such_benchmark"),
    ],
)
def test_what_makes_no_sense(tmp_path: Path, options: dict[str, Any], kind: str) -> None:
    sizes: dict[str, Any] = {"ranks": RANKS, "steps": STEPS}
    with pytest.raises(UsageError) as caught:
        generate_ranks(tmp_path, **sizes | options)
    assert caught.value.kind == kind
    assert not list(tmp_path.iterdir())


def test_the_command(tmp_path: Path) -> None:
    run = tool("demo", "x", "--ranks", "2", "--steps", "2", "--fault", "update", "--fault-rank", "1", cwd=tmp_path)
    assert "was computed incorrectly on rank 1 alone, at step 1" in run.text
    assert (tmp_path / "x" / "precision_data" / "truth.json").is_file()
    (tmp_path / "x" / "precision_data" / "npu" / "mine").write_text("")
    (tmp_path / "x" / "precision_data" / "npu" / "debug_0" / "dump" / "mine").write_text("")
    assert "have been changed" in tool("demo", "x", "--ranks", "2", cwd=tmp_path, code=2).err
    for options in (["--ops", "3", "--ranks", "2"], ["--pytorch", "--steps", "2"], ["--h5", "--fault", "nan"]):
        assert "does not go with" in tool("demo", "y", *options, cwd=tmp_path, code=2).err


def test_a_fault_of_several_ranks_brings_them_and_what_finds_it_can_be_typed(tmp_path: Path) -> None:
    text = tool("demo", "y", "--fault", "allreduce", "--seed", "2", cwd=tmp_path).text
    truth = json.loads((tmp_path / "y/precision_data/truth.json").read_text())
    assert truth["ranks"] == 4
    line = text.partition("to find it: precision-tool ")[2]
    found = tool(*shlex.split(line), cwd=tmp_path).text
    assert f"rank 0: {truth['culprit']}" in " ".join(found.split())


def test_each_study_is_shown_while_new_steps_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    truth = generate_ranks(tmp_path, ranks=1, steps=1, fault="fused", fault_step=0)
    study_once = Session.study

    def study(self: Session, *arguments: Any, watch_seconds: float, on_study: Any, **more: Any) -> Any:
        assert watch_seconds == 7
        result = study_once(self, *arguments, **more)
        on_study(result)
        on_study(result)
        return result

    monkeypatch.setattr(Session, "study", study)
    for options, form in (("--json",), '"culprit": {'), ((), f"rank 0: {truth.culprit}"):
        out = io.StringIO()
        page = str(tmp_path / "page.html")
        run_word("ac", "--all", "--watch", "7", "--report", page, *options, data=tmp_path / "precision_data", file=out)
        assert " ".join(out.getvalue().split()).count(form) == 2
        if options:
            first, second = map(json.loads, out.getvalue().splitlines())  # a line each
            assert first == second
        assert Path(page).is_file()
