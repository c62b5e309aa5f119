"""torch_npu's functions for mixtures of experts against their documentation; what else kernels may do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from opvalues import Array, close, same, values
from test_torch_apis import outputs_of_api, outputs_of_call, recorded
from torch_oracle import Torch

from precision_tool.lib.ops.base import Input, NotComputedError, Output
from precision_tool.lib.ops.torch_apis import builder_of, other_call, torch_call


def arrays(outputs: list[Output | None]) -> list[Array]:
    """The outputs, all of which have a formula."""
    return [np.asarray(output.array) for output in outputs if output is not None]


def softmax(x: Array) -> Array:
    """The softmax along the last axis."""
    powers: Array = np.exp(x - x.max(-1, keepdims=True))
    result: Array = powers / powers.sum(-1, keepdims=True)
    return result


def test_rows_go_to_their_experts_and_come_back() -> None:
    tokens, experts = values((4, 3), 1), np.array([[2, 0], [1, 2], [0, 1], [2, 1]])
    order = np.argsort(experts.reshape(-1), kind="stable")
    moved, places = arrays(outputs_of_api("NPU.npu_moe_token_permute", tokens, experts))
    same(moved, tokens[order // 2])
    chances = softmax(values((4, 2), 2))
    (back,) = arrays(outputs_of_api("NPU.npu_moe_token_unpermute", moved, places, chances))
    close(back, tokens, 1e-12)


def test_routing_as_the_documents_have_it() -> None:
    x, row_idx = values((3, 4), 3), np.array([[0, 3], [1, 4], [2, 5]], np.int32)
    experts = np.array([[1, 0], [2, 1], [0, 2]], np.int32)
    order = np.argsort(experts.reshape(-1), kind="stable")
    rows, places, sorted_experts = arrays(outputs_of_api("NPU.npu_moe_init_routing", x, row_idx, experts, 3))
    source = row_idx.reshape(-1)[order]
    same(rows, x[source % 3])
    same(sorted_experts, np.sort(experts.reshape(-1)))
    same(places[source], np.arange(6, dtype=np.int32))
    (ends,) = arrays(outputs_of_api("NPU.npu_moe_compute_expert_tokens", sorted_experts, 3))
    same(ends, np.array([2, 4, 6], np.int32))
    scales, bias, skip = values((3, 2), 4), values((3, 4), 5), values((3, 4), 6)
    (whole,) = arrays(
        outputs_of_api("NPU.npu_moe_finalize_routing", rows, skip, None, bias, scales, places, experts, drop_pad_mode=0)
    )
    expected = skip.copy()
    for row in range(3):
        for k in range(2):
            expected[row] += scales[row, k] * (rows[places[k * 3 + row]] + bias[experts[row, k]])
    close(whole, expected, 1e-12)


@pytest.mark.parametrize("norm_type", [0, 1])
@pytest.mark.parametrize("mode", [0, 1])
def test_gating_takes_the_best_experts_of_the_best_groups(norm_type: int, mode: int) -> None:
    x, bias = values((5, 8), 7), values((8,), 8) * 0.1
    chosen, places, scores = arrays(
        outputs_of_api("NPU.npu_moe_gating_top_k", x, 3, bias=bias, k_group=2, group_count=4, group_select_mode=mode,
                       renorm=1, norm_type=norm_type, routed_scaling_factor=2.5)
    )  # fmt: skip
    right = 1 / (1 + np.exp(-x)) if norm_type else softmax(x)
    close(scores, right, 1e-12)
    for row in range(5):
        ranked = right[row] + bias
        of_group = [part.sum() if mode else part.max() for part in ranked.reshape(4, 2)]
        allowed = np.repeat(np.argsort(np.argsort(of_group)) >= 2, 2)
        best = np.argsort(np.where(allowed, -ranked, np.inf))[:3]
        same(places[row], best.astype(np.int32))
        close(chosen[row], right[row][best] / right[row][best].sum() * 2.5, 1e-12)


def test_fused_activations() -> None:
    x = values((2, 3, 8), 9)
    first, second = np.split(x, 2, -1)
    (gelu,) = arrays(outputs_of_api("Functional.gelu", second))
    gated, of_gate = arrays(outputs_of_api("NPU.npu_geglu", x, -1, 0))
    close(gated, first * gelu, 1e-12)
    close(of_gate, gelu, 1e-12)
    left, *_ = arrays(outputs_of_api("NPU.npu_gelu_mul", x))
    (of_first,) = arrays(outputs_of_api("Functional.gelu", first))
    close(left, of_first * second, 1e-12)
    images = values((2, 6, 3, 2), 10)
    normed, *_ = arrays(outputs_of_api("Functional.group_norm", images, 3, None, None, 1e-3))
    silu, mean, _ = arrays(outputs_of_api("NPU.npu_group_norm_silu", images, None, None, 3, 1e-3))
    close(silu, normed / (1 + np.exp(-normed)), 1e-11)
    close(mean, images.reshape(2, 3, -1).mean(-1), 1e-12)


def test_both_queries_and_keys_are_turned() -> None:
    query, key = values((2, 3, 1, 4), 11), values((2, 3, 2, 4), 12)
    angle = values((1, 3, 1, 4), 13)
    both = outputs_of_api("NPU.npu_apply_rotary_pos_emb", query, key, np.cos(angle), np.sin(angle))
    for tensor, output in zip((query, key), arrays(both), strict=True):
        (alone,) = arrays(outputs_of_api("NPU.npu_rotary_mul", tensor, np.cos(angle), np.sin(angle)))
        same(output, alone)


def test_names_of_mindspore_are_those_of_pytorch() -> None:
    for name, of_torch in (("Mint.add_ex", "Torch.add"), ("Functional.dense", "Functional.linear"),
                           ("Functional.expand_dims", "Torch.unsqueeze")):  # fmt: skip
        assert builder_of(name) is builder_of(of_torch) is not None


# --- what kernels may do ----------------------------------------------------------------------------------------------


def short(x: Array) -> Any:
    """A tensor in float16, as a dump has it."""
    return Input(array=x.astype(np.float16).astype(np.float64), dtype="float16")


def test_a_batch_norm_of_short_parameters_holds_its_statistics_in_their_type(torch: Torch) -> None:
    x, scale, offset = values((4, 5, 6, 7), 14) * 2 + 3, values((5,), 15), values((5,), 16)
    running = [np.zeros(5, np.float16), np.ones(5, np.float16)]
    half = [array.astype(np.float16) for array in (x, scale, offset)]
    (got,) = torch.run("Functional.batch_norm", half[0], *running, half[1], half[2], True, 0.1, 1e-5)
    tensors = [short(array) for array in (half[0], *running, half[1], half[2])]
    call = torch_call("Functional.batch_norm", [*tensors, True, 0.1, 1e-5], {})
    other = other_call(call)
    assert other is not None
    unit = 2.0**-11 * np.abs(got)
    for each, is_right in ((call, False), (other, True)):
        output = outputs_of_call(each)[0]
        assert output is not None
        allowed = unit * 1.01 + 16 * 0.425 * 2.0**-24 * np.asarray(output.summed)
        assert bool((np.abs(got - output.array) <= allowed).all()) is is_right
    assert other_call(torch_call("Functional.batch_norm", recorded([x, *running, scale, offset, True]), {})) is None


def test_places_of_a_grid_are_computed_in_a_short_type(torch: Torch) -> None:
    """A place is off by as much as that type rounds numbers of the image's size; at a pixel other neighbours count."""
    image, grid = (values(shape, seed).astype(np.float16) for shape, seed in (((1, 3, 40, 50), 18), ((1, 9, 9, 2), 19)))
    grid = np.clip(grid, -1.2, 1.2)
    (got,) = torch.run("Functional.grid_sample", image, grid, align_corners=False)
    output = outputs_of_call(torch_call("Functional.grid_sample", [short(image), short(grid)], {}))[0]
    assert output is not None
    assert output.doubtful is not None
    off = np.abs(got - output.array)
    unit = 0.425 * np.hypot(2.0**-11 * output.array, 2.0**-24 * np.asarray(output.summed))
    assert ((off <= 6 * unit) | output.doubtful).all()
    assert not output.doubtful.all()
    narrow = np.asarray(output.summed) * 2.0**-13  # as places in float32 are off
    assert (off > 6 * 0.425 * np.hypot(2.0**-11 * output.array, 2.0**-24 * narrow)).any()
    exact = outputs_of_api("Functional.grid_sample", image.astype(np.float32), grid.astype(np.float32))[0]
    assert exact is not None
    assert exact.doubtful is not None
    assert exact.doubtful.sum() < output.doubtful.sum()


def test_a_factor_is_held_in_a_short_type(torch: Torch) -> None:
    """What is left of two numbers that nearly cancel is as far off as the factor is rounded."""
    b = values((64,), 17).astype(np.float16)
    a = (-0.3 * b.astype(np.float64)).astype(np.float16)
    (got,) = torch.run("Torch.add", a, b, alpha=0.3)
    output = outputs_of_call(torch_call("Torch.add", [short(a), short(b)], {"alpha": 0.3}))[0]
    assert output is not None
    off = np.abs(got - output.array)
    allowed = 0.425 * np.hypot(2.0**-11 * output.array, 2.0**-24 * np.asarray(output.summed))
    assert (off <= 6 * allowed).all()
    assert (off > 6 * 0.425 * np.hypot(2.0**-11 * output.array, 2.0**-24 * np.abs(a))).any()


def test_masked_scores_are_zero_and_nothing_else_is_doubtful() -> None:
    x = values((3, 5), 18)
    x[0, 1] = x[1, 3:] = -np.inf
    output = outputs_of_api("Torch.softmax", x, -1)[0]
    assert output is not None
    assert np.isfinite(np.asarray(output.summed)).all()
    assert (np.asarray(output.summed)[np.isneginf(x)] == 0).all()
    same(output.array[np.isneginf(x)], np.zeros(3))


def test_places_of_equal_numbers_have_no_formula() -> None:
    assert outputs_of_api("Torch.kthvalue", np.array([1.0, 1.0, 2.0]), 1)[1] is None
    with pytest.raises(NotComputedError):
        outputs_of_api("Torch.median", np.array([1.0, np.nan]))
