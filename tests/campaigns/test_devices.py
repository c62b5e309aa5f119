"""Sets of simulated devices: every family and fault can be written, what is written is read, and clean is acquitted."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from devices.compiler import Compiler, Options
from devices.families import FAMILIES
from devices.faults import FAULTS
from devices.formulas import compute
from devices.numerics import FUNCTIONS, MODELS, Arithmetic, Device, rounded, truncated
from devices.script import Script, golden_values
from devices.sets import Plan, make, plans, write_set
from devices.simulation import simulate
from diagnosing import blame_of

from precision_tool.lib.diagnose.verdict_model import Cause


@pytest.mark.parametrize("family", FAMILIES)
def test_a_clean_network_on_an_ideal_device_is_acquitted(tmp_path: Path, family: str) -> None:
    made = make(Plan(tree="t0000", seed=17, family=family, device="ideal", device_seed=1), tmp_path)
    assert made.truth["accept"] == []
    assert made.files > 30
    assert blame_of(tmp_path / "t0000" / "precision_data") == (None, Cause.NONE)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_changes_what_its_truth_names(tmp_path: Path, fault: str) -> None:
    """The culprit is an op or a variable of the tree, its cause one that a verdict can name."""
    plan = Plan(tree="t0000", seed=7, family="transformer", device="ideal", device_seed=1, fault=fault)
    truth = make(plan, tmp_path).truth
    assert truth["cause"] in {str(cause) for cause in Cause}
    assert truth["cause"] in truth["causes"]
    graph = next((tmp_path / "t0000/precision_data/npu/debug_0/graph").iterdir()).read_text()
    assert truth["culprit"] is None or truth["culprit"] in truth["accept"]
    assert all(f'name: "{name}"' in graph for name in truth["accept"])
    assert bool(truth["accept"]) is (truth["cause"] != "loss_scale")


def test_the_verdict_names_a_gross_fault_of_a_kernel(tmp_path: Path) -> None:
    truth = make(Plan(tree="t", seed=3, family="mlp", device="ideal", device_seed=1, fault="shift"), tmp_path).truth
    assert blame_of(tmp_path / "t" / "precision_data") == (truth["culprit"], Cause.KERNEL)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_a_device_are_imprecise_by_as_much_as_its_model_says(model: str, name: str) -> None:
    x = np.concatenate([np.geomspace(0.01, 30, 4000), -np.geomspace(0.01, 8, 4000)]).astype(np.float32)
    x = x[x > 0] if name in ("log", "log1p", "sqrt", "rsqrt") else x
    device = Device(MODELS[model], seed=11)
    arithmetic = device.arithmetic("Some", "float32", "op")
    right = FUNCTIONS[name](x.astype(np.float64))
    errors = np.abs(arithmetic.function(name, x) - right) / np.abs(right)
    if name == "log":  # near 1 a logarithm is judged by its absolute error
        errors = errors[np.abs(right) > 0.1]
    assert 2.0**-18 < np.max(errors) < 2.0**-8.5
    assert np.array_equal(arithmetic.function(name, x), device.arithmetic("Some", "float32", "other").function(name, x))


def test_a_device_has_one_precision_per_type_and_another_seed_another() -> None:
    x = np.linspace(0.1, 5, 500, dtype=np.float32)
    model = MODELS["curves"]

    def made(seed: int, op_type: str) -> bytes:
        return bytes(Device(model, seed=seed).arithmetic(op_type, "float32", "op").function("exp", x).tobytes())

    assert made(1, "Exp") == made(1, "Exp")
    assert len({made(1, "Exp"), made(2, "Exp"), made(1, "SoftmaxV2")}) == 3


def test_mantissas_are_cut_and_rounded() -> None:
    x = np.array([1 + 2**-10 + 2**-11, -(1 + 2**-10 + 2**-12), 3.0, np.inf], np.float32)
    assert truncated(x, 11).tolist() == [1 + 2**-10, -(1 + 2**-10), 3.0, np.inf]
    assert rounded(x, 11).tolist() == [1 + 2**-9, -(1 + 2**-10), 3.0, np.inf]


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_are_those_of_differences(family: str) -> None:
    """The step of a variable along its gradient changes the loss as the gradient says."""
    script = Script(9)
    loss = FAMILIES[family](script)
    scale = script.constant("loss_scale", 1.0)
    gradients = script.gradients(loss, scale)

    def loss_with(name: str, change: float) -> float:
        # The values of the script are float32: differences need float64.
        values: dict[tuple[str, int], np.ndarray] = {}
        for node in script.nodes.values():
            made = [v.astype(np.float64) if v.dtype.kind == "f" else v for v in node.values]
            if node.name == name:
                made = [made[0] + change * direction]
            if node.inputs:
                made = compute(Arithmetic(), node.type, node.attrs, [values[ref] for ref in node.inputs])
            values |= {(node.name, index): value for index, value in enumerate(made)}
            if node.name == loss.node:
                return float(values[loss.ref])
        raise AssertionError

    for variable in script.variables[:: max(1, len(script.variables) // 5)]:
        direction = np.random.default_rng(1).standard_normal(variable.shape)
        slope = (loss_with(variable.node, 1e-5) - loss_with(variable.node, -1e-5)) / 2e-5
        expected = float(np.sum(gradients[variable.ref].value * direction))
        size = float(np.sqrt(np.sum(gradients[variable.ref].value ** 2)))
        assert abs(slope - expected) < 1e-3 * abs(slope) + 1e-3 * size + 1e-6, variable.node


def test_a_fused_network_computes_what_the_unfused_does() -> None:
    script = Script(4)
    script.train(FAMILIES["cnn"](script), "adam", 1.0)
    golden = golden_values(script.nodes, None)
    for fuses, formats in ((False, False), (True, True)):
        kernels = Compiler(script, Options(mixed=False, fuses=fuses, formats=formats)).compile()
        assert any(len(kernel.stages) > 1 for kernel in kernels.values()) is fuses
        assert any(kernel.type == "TransData" for kernel in kernels.values()) is formats
        run = simulate(kernels, Device(None), sources={})
        for kernel in kernels.values():
            for index, origin in enumerate(kernel.origins):
                if origin is not None:
                    made, right = run.outputs[kernel.name, index], golden[origin]
                    np.testing.assert_allclose(made, right, rtol=1e-3, atol=1e-5 * float(np.abs(right).max() + 1e-30))


def test_a_set_has_what_was_asked_for(tmp_path: Path) -> None:
    listed = plans(count=6, seed=2, devices=["ideal", "halves"], faults=["weights", "tail"], clean=1 / 3,
                   families=["mlp", "autoencoder"], degraded=["outputs", "missing"])  # fmt: skip
    assert sum(plan.fault is None for plan in listed) == 2
    assert {plan.device for plan in listed} == {"ideal", "halves"}
    write_set(tmp_path / "set", listed)
    index = json.loads((tmp_path / "set" / "index.json").read_text())
    assert [tree["tree"] for tree in index["trees"]] == [plan.tree for plan in listed]
    for plan in listed:
        truth = json.loads((tmp_path / "set" / "truth" / f"{plan.tree}.json").read_text())
        assert (truth["degraded"], truth["device"]) == (plan.degraded, plan.device)


def test_without_a_benchmark_no_fault_is_made_that_needs_one(tmp_path: Path) -> None:
    plan = Plan(tree="t", seed=1, family="mlp", device="ideal", device_seed=1, fault="tail", degraded="alone")
    make(plan, tmp_path)
    assert not (tmp_path / "t/precision_data/tf").exists()


@pytest.mark.parametrize("second", ["repeat", "unfused"])
def test_a_second_run_stands_beside_the_first(tmp_path: Path, second: str) -> None:
    plan = Plan(tree="t", seed=1, family="mlp", device="curves", device_seed=1, fault="shift", second=second)
    truth = make(plan, tmp_path).truth
    graphs = [(tmp_path / f"t/precision_data/npu/{run}").rglob("*_Build.txt") for run in ("debug_0", "debug_1")]
    first, other = [next(found).read_text() for found in graphs]
    assert (first.count('type: "BiasAdd"') < other.count('type: "BiasAdd"')) is (second == "unfused")
    assert truth["second"] == second
    assert truth["fault_in_debug_1"] is True


def test_a_folded_mask_is_infinite_without_a_cast(tmp_path: Path) -> None:
    subs = set()
    for seed in range(6):
        plan = Plan(tree=f"t{seed}", seed=seed, family="transformer", device="ideal", device_seed=1, fault="masked_nan")
        truth = make(plan, tmp_path).truth
        assert "attention/mask" in truth["accept"]
        subs.add(truth["cause"])
    assert subs == {"cast", "overflow"}
