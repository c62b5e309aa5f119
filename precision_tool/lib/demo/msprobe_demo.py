"""A training step of a small vision transformer as msprobe records it, on an NPU in bfloat16 and on a GPU in float32.

Both are computed for real: the NPU's values are rounded to bfloat16 after every API. On the NPU, the kernel of GELU
works on blocks of 32 bytes, and leaves the rest of a row that is no multiple of that at zero. `train.py`, which is
written beside the dumps, is the program that would make them.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from precision_tool.lib.demo.generate import TRUTH, WORK, check_folder, move_in, write_errors
from precision_tool.lib.demo.msprobe_writer import Frames, Trace, Traced, learned

Array = npt.NDArray[Any]
#: What the backward of a layer makes of the gradient of its output.
Backward = Callable[[Array], Array]

#: The program whose step is recorded; the source lines of stack.json are its lines.
SCRIPT = '''\
"""One step of a small vision transformer under msprobe: torchrun train.py DUMP_PATH DTYPE DEVICE"""

import sys

import torch
import torch.nn.functional as F
from msprobe.pytorch import PrecisionDebugger, seed_all
from torch import nn


class Block(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.act, self.down = nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width)

    def attention(self, x):
        batch, length, width = x.shape
        q, k, v = (z.view(batch, length, 2, width // 2).transpose(1, 2) for z in self.qkv(x).chunk(3, -1))
        weights = F.softmax(torch.matmul(q, k.transpose(-1, -2)) / (width // 2) ** 0.5, -1)
        return self.out(torch.matmul(weights, v).transpose(1, 2).reshape(batch, length, width))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(self.act(self.up(self.norm2(x))))


class Vit(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches, self.position = nn.Conv2d(3, 32, 4, 4), nn.Embedding(16, 32)
        self.blocks = nn.ModuleList([Block(32, 128), Block(32, 124)])
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 10)

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = x + self.position(torch.arange(16, device=images.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


def main():
    dump_path, dtype, device = sys.argv[1], getattr(torch, sys.argv[2]), sys.argv[3]
    torch.distributed.init_process_group()
    debugger = PrecisionDebugger(dump_path=dump_path, task="tensor", level="mix", step=[0])
    seed_all(seed=1, mode=True)
    model = Vit().to(device, dtype)
    images, labels = torch.randn(4, 3, 16, 16).to(device, dtype), torch.randint(0, 10, (4,)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    debugger.start(model=model)
    loss = F.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    debugger.stop()
    debugger.step()


main()
'''
#: What that program has: images, their size and channels; patches, their size and width; heads, classes.
_BATCH, _SIZE, _CHANNELS, _PATCH, _WIDTH, _HEADS, _CLASSES = 4, 16, 3, 4, 32, 2, 10
_HIDDEN = (128, 124)
_LENGTH = (_SIZE // _PATCH) ** 2
_EPSILON = 1e-5
#: AdamW's.
_RATE, _BETA, _BETA_2, _ADAM_EPSILON, _DECAY = 1e-3, 0.9, 0.999, 1e-8, 1e-2
#: Elements of bfloat16 in a block of the wrong kernel.
_BLOCK = 16

# Where the program and torch lie on the machine that collected, and the source lines of PyTorch 2.13 between a call in
# the program and the hooks of msprobe.
_HOME, _TORCH = "/home/user/vit", "/usr/local/lib/python3.11/site-packages/torch"
_SCRIPT_FILE = "train.py"


def _torch_frames(*lines: tuple[str, int, str, str]) -> Frames:
    return tuple(f"File {_TORCH}/{file}, line {number}, in {name}, \n {code}" for file, number, name, code in lines)


_MODULE = "nn/modules/module.py"
_CALLED = (
    (_MODULE, 1884, "_call_impl", "return inner()"),
    (_MODULE, 1778, "_wrapped_call_impl", "return self._call_impl(*args, **kwargs)"),
)
_HOOK = (_MODULE, 1811, "inner", "args_kwargs_result = hook(self, args, kwargs)  # type: ignore[misc]")
#: The call of a module that has hooks, what stands between it and its forward, and this of a module without hooks.
_TO_MODULE = _torch_frames(_HOOK, *_CALLED)
_IN_MODULE = _torch_frames((_MODULE, 1832, "inner", "result = forward_call(*args, **kwargs)"), *_CALLED)
_IN_ROOT = _torch_frames((_MODULE, 1789, "_call_impl", "return forward_call(*args, **kwargs)"), _CALLED[1])
_LAYERS = {
    "Conv2d": _torch_frames(
        ("nn/modules/conv.py", 560, "_conv_forward", "return F.conv2d("),
        ("nn/modules/conv.py", 565, "forward", "return self._conv_forward(input, self.weight, self.bias)"),
    ),
    "Embedding": _torch_frames(("nn/modules/sparse.py", 189, "forward", "return F.embedding(")),
    "LayerNorm": _torch_frames(("nn/modules/normalization.py", 228, "forward", "return F.layer_norm(")),
    "Linear": _torch_frames(("nn/modules/linear.py", 134, "forward", "return F.linear(input, self.weight, self.bias)")),
    "GELU": _torch_frames(
        ("nn/modules/activation.py", 816, "forward", "return F.gelu(input, approximate=self.approximate)")
    ),
}
_OPTIMIZER = "optim/optimizer.py"
_TO_ADAM = _torch_frames(
    ("optim/adam.py", 970, "adam", "func("),
    (_OPTIMIZER, 148, "maybe_fallback", "return func(*args, **kwargs)"),
    ("optim/adam.py", 248, "step", "adam("),
    (_OPTIMIZER, 80, "_use_grad", "ret = func(*args, **kwargs)"),
    (_OPTIMIZER, 530, "wrapper", "out = func(*args, **kwargs)"),
)


def _line(code: str, function: str) -> str:
    """The frame of the line of the program that contains this code."""
    number, line = next((number, line) for number, line in enumerate(SCRIPT.splitlines(), 1) if code in line)
    return f"File {_HOME}/{_SCRIPT_FILE}, line {number}, in {function}, \n {line.strip()}"


_MAIN = (SCRIPT.rstrip().count("\n") + 1, "main()")
_IN_SCRIPT = (f"File {_HOME}/{_SCRIPT_FILE}, line {_MAIN[0]}, in <module>, \n {_MAIN[1]}",)
_IN_MAIN = (_line("F.cross_entropy", "main"), *_IN_SCRIPT)
_IN_VIT = (*_IN_ROOT, *_IN_MAIN)
_IN_BLOCK = (*_IN_MODULE, _line("x = block(x)", "forward"), *_IN_VIT)
_ATTENTION = (_line("self.attention(self.norm1(x))", "forward"), *_IN_BLOCK)
_MLP = (_line("self.down(self.act", "forward"), *_IN_BLOCK)


@dataclass(frozen=True, slots=True, kw_only=True)
class MsprobeTruth:
    """Contents of a demo of msprobe's dumps and the fault in it; `culprit` is empty without one.

    `npu` and `golden` are dump paths, `ops` the entries of each side, `module` and `source` the culprit's module and
    source line.
    """

    npu: Path
    golden: Path
    ops: int
    tensors: int
    culprit: str
    module: str
    source: str


def generate_msprobe(root: Path, *, seed: int = 1, fault: bool = True) -> MsprobeTruth:
    """Write the dumps of a training step, `npu` and `gpu`, with the program and the truth, and return the truth.

    Parameters
    ----------
    root : Path
        A new or empty folder, or one that holds an unchanged demo, which is replaced.
    seed : int
        Seed of all random numbers.
    fault : bool
        Let the NPU compute the second GELU wrong.

    Raises
    ------
    UsageError
        If `root` holds something else.
    OutputError
        If writing fails.
    """
    root = Path(root)
    with write_errors(root):
        check_folder(root)
        work = root / WORK
        if work.exists():
            shutil.rmtree(work)
        work.mkdir(parents=True)
        try:
            for side, dtype in (("npu", np.dtype(ml_dtypes.bfloat16)), ("gpu", np.dtype(np.float32))):
                place = f"{side}/step0/rank0"
                trace = Trace(work / place)
                step = _Step(trace, dtype, seed, fault=fault and side == "npu")
                step.run()
                trace.close(f"{_HOME}/{place}")
            (work / _SCRIPT_FILE).write_text(SCRIPT, encoding="utf-8")
            truth = MsprobeTruth(
                npu=root / "npu", golden=root / "gpu", ops=trace.calls, tensors=trace.tensors,
                culprit="Functional.gelu.1.forward" if fault else "",
                module="blocks.1.act" if fault else "",
                source=_MLP[0] if fault else "",
            )  # fmt: skip
            content = {"seed": seed} | {
                key: value for key, value in asdict(truth).items() if key not in ("npu", "golden")
            }
            (work / TRUTH).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
            move_in(work, root)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return truth


# --- formulas, in float64 ---------------------------------------------------------------------------------------------

_erf = np.vectorize(math.erf, otypes=[np.float64])


def _gelu(x: Array) -> Array:
    values: Array = x * (1 + _erf(x / math.sqrt(2))) / 2
    return values


def _gelu_grad(x: Array, gradient: Array) -> Array:
    slope = (1 + _erf(x / math.sqrt(2))) / 2 + x * np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    values: Array = gradient * slope
    return values


def _softmax(x: Array) -> Array:
    powers = np.exp(x - x.max(-1, keepdims=True))
    values: Array = powers / powers.sum(-1, keepdims=True)
    return values


def _normalized(x: Array) -> tuple[Array, Array]:
    """The values of each row with mean 0 and deviation 1, and the reciprocals of the deviations."""
    scale = 1 / np.sqrt(x.var(-1, keepdims=True) + _EPSILON)
    return (x - x.mean(-1, keepdims=True)) * scale, scale


def _patches(images: Array) -> Array:
    """A row for each patch, in the order of a filter's elements."""
    count = _SIZE // _PATCH
    cut = images.reshape(_BATCH, _CHANNELS, count, _PATCH, count, _PATCH)
    rows: Array = cut.transpose(0, 2, 4, 1, 3, 5).reshape(_BATCH, _LENGTH, -1)
    return rows


# --- the step ---------------------------------------------------------------------------------------------------------


class _Step:
    """Forward, backward and update of the program's network on one device, as its debugger sees them."""

    def __init__(self, trace: Trace, dtype: np.dtype[Any], seed: int, *, fault: bool) -> None:
        self._trace, self._dtype, self._fault = trace, dtype, fault
        rng = np.random.default_rng(seed)
        self._parameters = {name: self._keep(values) for name, values in _initial(rng).items()}
        self._images = self._keep(rng.normal(size=(_BATCH, _CHANNELS, _SIZE, _SIZE)).astype(np.float32))
        self._labels = rng.integers(0, _CLASSES, _BATCH)
        self._gradients: dict[str, Array] = {}

    def _keep(self, values: Array) -> Array:
        """What an API returns on this device: a kernel computes in float32 and rounds once."""
        return values.astype(np.float32).astype(self._dtype)

    def run(self) -> None:
        """The whole step."""
        self._backward(*self._forward())
        self._update()

    def _forward(self) -> tuple[Array, list[Backward]]:
        """The logits, and what goes back from them, the last layer first."""
        at = (_line("self.patches(images)", "forward"), *_IN_VIT)
        patches, patches_back = self._patch_embedding(at)
        at = (_line("self.position(", "forward"), *_IN_VIT)
        self._trace.moved("Torch.arange")
        position, position_back = self._position_embedding(at)
        x, call = self._add(at, patches, position)

        def embedded_back(gradient: Array) -> Array:
            summed = self._keep(gradient.astype(np.float64).sum(0))
            self._trace.backward(call, gradient, [gradient, summed])
            position_back(summed)
            return patches_back(gradient)

        back: list[Backward] = [embedded_back]
        for number in range(len(_HIDDEN)):
            x, block_back = self._block(number, x)
            back.append(block_back)
        at = (_line("self.head(", "forward"), *_IN_VIT)
        x, norm_back = self._layer_norm("norm", at, x)
        back.append(norm_back)
        pooled = self._keep(x.astype(np.float64).mean(1))
        mean_call = self._trace.forward("Tensor.mean", at, [learned(x), 1], learned(pooled))

        def mean_back(gradient: Array) -> Array:
            spread = self._keep(np.repeat(gradient[:, None].astype(np.float64) / _LENGTH, _LENGTH, 1))
            self._trace.backward(mean_call, gradient, [spread])
            return spread

        logits, head_back = self._linear("head", at, pooled)
        return logits, [head_back, mean_back, *back[::-1]]

    def _backward(self, logits: Array, back: list[Backward]) -> None:
        """The loss, and all gradients."""
        chances = _softmax(logits.astype(np.float64))
        rows = np.arange(_BATCH)
        loss = self._keep(np.asarray(-np.log(chances[rows, self._labels]).mean()))
        arguments = [learned(logits), Traced(self._labels)]
        call = self._trace.forward("Functional.cross_entropy", _IN_MAIN, arguments, learned(loss))
        chosen = np.zeros((_BATCH, _CLASSES))
        chosen[rows, self._labels] = 1
        # The last node of autograd in the API is that of nll_loss: what it returns goes on into log_softmax.
        self._trace.backward(call, self._keep(np.ones(())), [self._keep(-chosen / _BATCH)])
        gradient = self._keep((chances - chosen) / _BATCH)
        for layer in back:
            gradient = layer(gradient)

    def _update(self) -> None:
        """AdamW's first step, parameter by parameter."""
        at = (*_TO_ADAM, _line("optimizer.step()", "main"), *_IN_SCRIPT)
        self._trace.run_optimizer()
        for name, parameter in self._parameters.items():
            self._update_parameter(at, parameter, self._gradients[name])

    def _update_parameter(self, at: Frames, parameter: Array, gradient: Array) -> None:
        def note(api: str, number: int, code: str, arguments: list[Any], output: Traced, **kwargs: Any) -> Array:
            frames = (*_torch_frames(("optim/adam.py", number, "_single_tensor_adam", code)), *at)
            self._trace.forward(f"Tensor.{api}", frames, arguments, output, **kwargs)
            return output.array

        def call(api: str, number: int, code: str, values: Array, *arguments: Any, **kwargs: Any) -> Array:
            return note(api, number, code, list(arguments), Traced(self._keep(values)), **kwargs)

        zero, wide = self._keep(np.zeros(parameter.shape)), gradient.astype(np.float64)
        steps = np.zeros((), np.float32)
        note("__iadd__", 414, "step_t += 1", [Traced(steps), 1], Traced(steps + np.float32(1)))
        factor = 1 - _RATE * _DECAY
        decayed = learned(self._keep(parameter.astype(np.float64) * factor))
        note("mul_", 419, "param.mul_(1 - lr * weight_decay)", [learned(parameter), factor], decayed)
        code = "exp_avg.lerp_(grad, 1 - device_beta1)"
        mean = call("lerp_", 456, code, wide * (1 - _BETA), Traced(zero), Traced(gradient), 1 - _BETA)
        code = "exp_avg_sq.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)  # type: ignore[arg-type]"
        call("mul_", 475, code, zero, Traced(zero), _BETA_2)
        arguments = [Traced(zero), Traced(gradient), Traced(gradient)]
        square = call("addcmul_", 475, code, wide**2 * (1 - _BETA_2), *arguments, value=1 - _BETA_2)
        code = "denom = (exp_avg_sq.sqrt() / bias_correction2_sqrt).add_(eps)"
        root = call("sqrt", 544, code, np.sqrt(square.astype(np.float64)), Traced(square))
        correction = (1 - _BETA_2) ** 0.5
        ratio = call("__truediv__", 544, code, root.astype(np.float64) / correction, Traced(root), correction)
        denominator = call("add_", 544, code, ratio.astype(np.float64) + _ADAM_EPSILON, Traced(ratio), _ADAM_EPSILON)
        rate = -(_RATE / (1 - _BETA))
        moved = decayed.array.astype(np.float64) + rate * mean.astype(np.float64) / denominator.astype(np.float64)
        code = "param.addcdiv_(exp_avg, denom, value=-step_size)  # type: ignore[arg-type]"
        arguments = [decayed, Traced(mean), Traced(denominator)]
        note("addcdiv_", 546, code, arguments, learned(self._keep(moved)), value=rate)

    # --- layers: each returns its output and what goes back through it ---

    def _add(self, at: Frames, x: Array, y: Array) -> tuple[Array, str]:
        total = self._keep(x.astype(np.float64) + y.astype(np.float64))
        return total, self._trace.forward("Tensor.__add__", at, [learned(x), learned(y)], learned(total))

    def _divided(self, at: Frames, x: Array, by: float) -> tuple[Array, str]:
        ratio = self._keep(x.astype(np.float64) / by)
        return ratio, self._trace.forward("Tensor.__truediv__", at, [learned(x), by], learned(ratio))

    def _matmul(self, at: Frames, x: Array, y: Array) -> tuple[Array, str]:
        product = self._keep(x.astype(np.float64) @ y.astype(np.float64))
        return product, self._trace.forward("Torch.matmul", at, [learned(x), learned(y)], learned(product))

    def _block(self, number: int, x: Array) -> tuple[Array, Backward]:
        path, name = f"blocks.{number}", f"Module.blocks.{number}.Block"
        trace = self._trace
        trace.enter(f"{name}.forward.0", (*_TO_MODULE, _line("x = block(x)", "forward"), *_IN_VIT))
        normal, norm1_back = self._layer_norm(f"{path}.norm1", _ATTENTION, x)
        attended, attention_back = self._attention(path, normal)
        middle, first_add = self._add(_ATTENTION, x, attended)
        normal, norm2_back = self._layer_norm(f"{path}.norm2", _MLP, middle)
        up, up_back = self._linear(f"{path}.up", _MLP, normal)
        active, gelu_back = self._activation(f"{path}.act", up, is_wrong=self._fault and number == 1)
        down, down_back = self._linear(f"{path}.down", _MLP, active)
        y, second_add = self._add(_MLP, middle, down)
        trace.leave(input_args=[learned(x)], input_kwargs={}, output=[learned(y)], parameters={})

        def back(gradient: Array) -> Array:
            trace.enter(f"{name}.backward.0")
            summed = gradient
            for call, layers in (
                (second_add, (down_back, gelu_back, up_back, norm2_back)),
                (first_add, (attention_back, norm1_back)),
            ):
                trace.backward(call, summed, [summed, summed])
                branch = summed
                for layer in layers:
                    branch = layer(branch)
                summed = self._keep(summed.astype(np.float64) + branch.astype(np.float64))
            trace.leave(input=[Traced(gradient)], output=[Traced(summed)])
            return summed

        return y, back

    def _attention(self, path: str, x: Array) -> tuple[Array, Backward]:
        trace, width = self._trace, _WIDTH // _HEADS
        at = (_line("self.qkv(x)", "attention"), *_ATTENTION)
        joined, qkv_back = self._linear(f"{path}.qkv", at, x)
        chunk = trace.moved("Tensor.chunk")
        q, k, v = (
            part.reshape(_BATCH, _LENGTH, _HEADS, width).transpose(0, 2, 1, 3) for part in np.split(joined, 3, -1)
        )
        moves = [trace.moved("Tensor.transpose") for _ in range(4)]
        at = (_line("F.softmax", "attention"), *_ATTENTION)
        scores, scores_call = self._matmul(at, q, k.swapaxes(-1, -2))
        scaled, scaled_call = self._divided(at, scores, width**0.5)
        weights = self._keep(_softmax(scaled.astype(np.float64)))
        softmax_call = trace.forward("Functional.softmax", at, [learned(scaled), -1], learned(weights))
        at = (_line("self.out(", "attention"), *_ATTENTION)
        mixed, mixed_call = self._matmul(at, weights, v)
        merges = [trace.moved("Tensor.transpose"), trace.moved("Tensor.reshape")]
        y, out_back = self._linear(f"{path}.out", at, mixed.swapaxes(1, 2).reshape(_BATCH, _LENGTH, _WIDTH))

        def flat(array: Array) -> Array:
            """The product as its last node sees it, which is a view."""
            return array.reshape(-1, *array.shape[-2:])

        def back(gradient: Array) -> Array:
            gradient = out_back(gradient).reshape(_BATCH, _LENGTH, _HEADS, width).swapaxes(1, 2)
            for call in merges[::-1]:
                trace.moved_back(call)
            trace.backward(mixed_call, gradient, [flat(gradient)])
            wide = gradient.astype(np.float64)
            grad_weights = self._keep(wide @ v.swapaxes(-1, -2).astype(np.float64))
            grad_v = self._keep(weights.swapaxes(-1, -2).astype(np.float64) @ wide)
            chances, slopes = weights.astype(np.float64), grad_weights.astype(np.float64)
            grad_scaled = self._keep(chances * (slopes - (chances * slopes).sum(-1, keepdims=True)))
            trace.backward(softmax_call, grad_weights, [grad_scaled])
            grad_scores = self._keep(grad_scaled.astype(np.float64) / width**0.5)
            trace.backward(scaled_call, grad_scaled, [grad_scores, None])
            trace.backward(scores_call, grad_scores, [flat(grad_scores)])
            wide = grad_scores.astype(np.float64)
            grad_q = self._keep(wide @ k.astype(np.float64))
            grad_k = self._keep(wide.swapaxes(-1, -2) @ q.astype(np.float64))
            for call in moves[::-1]:
                trace.moved_back(call)
            parts = [part.transpose(0, 2, 1, 3).reshape(_BATCH, _LENGTH, _WIDTH) for part in (grad_q, grad_k, grad_v)]
            trace.moved_back(chunk)
            return qkv_back(np.concatenate(parts, -1))

        return y, back

    def _patch_embedding(self, at: Frames) -> tuple[Array, Backward]:
        weight, bias = self._parameters["patches.weight"], self._parameters["patches.bias"]
        rows = _patches(self._images.astype(np.float64))
        out = rows @ weight.reshape(_WIDTH, -1).T.astype(np.float64) + bias.astype(np.float64)
        count = _SIZE // _PATCH
        y = self._keep(out.transpose(0, 2, 1).reshape(_BATCH, _WIDTH, count, count))
        arguments = [Traced(self._images), learned(weight), learned(bias), [_PATCH] * 2, [0] * 2, [1] * 2, 1]
        call = self._layer("patches", "Conv2d", "conv2d", at, Traced(self._images), arguments, y)
        moves = [self._trace.moved("Tensor.flatten"), self._trace.moved("Tensor.transpose")]

        def back(gradient: Array) -> Array:
            for move in moves[::-1]:
                self._trace.moved_back(move)
            gradient = gradient.transpose(0, 2, 1).reshape(y.shape)
            wide = gradient.reshape(_BATCH, _WIDTH, -1).astype(np.float64)
            gradients = {
                "weight": self._keep(np.einsum("bwl,ble->we", wide, rows).reshape(weight.shape)),
                "bias": self._keep(wide.sum((0, 2))),
            }
            # Its input needs no gradient: the module is done before its API.
            self._trace.enter("Module.patches.Conv2d.backward.0")
            self._trace.leave(input=[Traced(gradient)], output=[])
            self._trace.backward(call, gradient, [None, *gradients.values()])
            self._note_gradients("patches", "Conv2d", gradients)
            return gradient

        return y.reshape(_BATCH, _WIDTH, _LENGTH).transpose(0, 2, 1), back

    def _position_embedding(self, at: Frames) -> tuple[Array, Backward]:
        places, weight = Traced(np.arange(_LENGTH)), self._parameters["position.weight"]
        arguments = [places, learned(weight), None, None, 2.0, False, False]
        call = self._layer("position", "Embedding", "embedding", at, places, arguments, weight)

        def back(gradient: Array) -> Array:
            self._trace.enter("Module.position.Embedding.backward.0")
            self._trace.leave(input=[Traced(gradient)], output=[])
            self._trace.backward(call, gradient, [gradient])
            self._note_gradients("position", "Embedding", {"weight": gradient})
            return gradient

        return weight, back

    def _linear(self, path: str, at: Frames, x: Array) -> tuple[Array, Backward]:
        weight, bias = self._parameters[f"{path}.weight"], self._parameters.get(f"{path}.bias")
        out = x.astype(np.float64) @ weight.T.astype(np.float64)
        y = self._keep(out if bias is None else out + bias.astype(np.float64))
        arguments = [learned(x), learned(weight), None if bias is None else learned(bias)]
        call = self._layer(path, "Linear", "linear", at, learned(x), arguments, y)

        def back(gradient: Array) -> Array:
            wide = gradient.reshape(-1, gradient.shape[-1]).astype(np.float64)
            grad_weight = self._keep(wide.T @ x.reshape(-1, x.shape[-1]).astype(np.float64))
            gradients = {} if bias is None else {"bias": self._keep(wide.sum(0))}
            grad_x = self._keep(wide @ weight.astype(np.float64)).reshape(x.shape)
            # The last node of autograd is addmm for a matrix, whose weight is transposed, and else a view of it.
            outputs = [*gradients.values(), grad_x, grad_weight.T] if x.ndim == 2 else [gradient.reshape(wide.shape)]
            self._layer_back(path, "Linear", call, gradient, outputs, grad_x, {**gradients, "weight": grad_weight})
            return grad_x

        return y, back

    def _layer_norm(self, path: str, at: Frames, x: Array) -> tuple[Array, Backward]:
        weight, bias = self._parameters[f"{path}.weight"], self._parameters[f"{path}.bias"]
        normal, scale = _normalized(x.astype(np.float64))
        y = self._keep(normal * weight.astype(np.float64) + bias.astype(np.float64))
        arguments = [learned(x), [_WIDTH], learned(weight), learned(bias), _EPSILON]
        call = self._layer(path, "LayerNorm", "layer_norm", at, learned(x), arguments, y)

        def back(gradient: Array) -> Array:
            wide = gradient.astype(np.float64)
            inner = wide * weight.astype(np.float64)
            shift = inner.mean(-1, keepdims=True) + normal * (inner * normal).mean(-1, keepdims=True)
            grad_x = self._keep(scale * (inner - shift))
            gradients = {"weight": self._keep((wide * normal).sum((0, 1))), "bias": self._keep(wide.sum((0, 1)))}
            outputs = [grad_x, *gradients.values()]
            self._layer_back(path, "LayerNorm", call, gradient, outputs, grad_x, gradients)
            return grad_x

        return y, back

    def _activation(self, path: str, x: Array, *, is_wrong: bool) -> tuple[Array, Backward]:
        y = self._keep(_gelu(x.astype(np.float64)))
        if is_wrong:
            y[..., x.shape[-1] // _BLOCK * _BLOCK :] = 0
        call = self._layer(path, "GELU", "gelu", _MLP, learned(x), [learned(x)], y, approximate="none")

        def back(gradient: Array) -> Array:
            grad_x = self._keep(_gelu_grad(x.astype(np.float64), gradient.astype(np.float64)))
            self._layer_back(path, "GELU", call, gradient, [grad_x], grad_x, {})
            return grad_x

        return y, back

    def _layer(
        self, path: str, kind: str, api: str, at: Frames, x: Traced, arguments: list[Any], y: Array, **kwargs: Any
    ) -> str:  # fmt: skip
        """Record the call of a module of torch, and in it of the API, whose name is returned."""
        self._trace.enter(f"Module.{path}.{kind}.forward.0", (*_TO_MODULE, *at))
        frames = (*_LAYERS[kind], *_IN_MODULE, *at)
        call = self._trace.forward(f"Functional.{api}", frames, arguments, learned(y), **kwargs)
        own = {name: f"{path}.{name}" for name in ("weight", "bias")}
        parameters = {
            name: learned(self._parameters[full]) for name, full in own.items() if full in self._parameters
        }  # fmt: skip
        self._trace.leave(input_args=[x], input_kwargs={}, output=[learned(y)], parameters=parameters)
        return call

    def _layer_back(
        self, path: str, kind: str, call: str, gradient: Array, outputs: list[Array], grad_x: Array,
        gradients: Mapping[str, Array],
    ) -> None:  # fmt: skip
        """Record the backward of such a call: of the API, of the parameters, of the module."""
        self._trace.enter(f"Module.{path}.{kind}.backward.0")
        self._trace.backward(call, gradient, outputs)
        self._note_gradients(path, kind, gradients)
        self._trace.leave(input=[Traced(gradient)], output=[Traced(grad_x)])

    def _note_gradients(self, path: str, kind: str, gradients: Mapping[str, Array]) -> None:
        if gradients:
            self._trace.parameters_grad(f"Module.{path}.{kind}", gradients)
        for name, values in gradients.items():
            self._gradients[f"{path}.{name}"] = values


def _initial(rng: np.random.Generator) -> dict[str, Array]:
    """The parameters in the order of the program's modules, as torch initializes them."""
    parameters: dict[str, Array] = {}

    def uniform(path: str, inputs: int, shape: tuple[int, ...], *, has_bias: bool = True) -> None:
        bound = 1 / math.sqrt(inputs)
        parameters[f"{path}.weight"] = rng.uniform(-bound, bound, shape)
        if has_bias:
            parameters[f"{path}.bias"] = rng.uniform(-bound, bound, shape[0])

    def norm(path: str) -> None:
        parameters[f"{path}.weight"], parameters[f"{path}.bias"] = np.ones(_WIDTH), np.zeros(_WIDTH)

    uniform("patches", _CHANNELS * _PATCH**2, (_WIDTH, _CHANNELS, _PATCH, _PATCH))
    parameters["position.weight"] = rng.normal(size=(_LENGTH, _WIDTH))
    for number, hidden in enumerate(_HIDDEN):
        path = f"blocks.{number}"
        norm(f"{path}.norm1")
        norm(f"{path}.norm2")
        uniform(f"{path}.qkv", _WIDTH, (3 * _WIDTH, _WIDTH), has_bias=False)
        uniform(f"{path}.out", _WIDTH, (_WIDTH, _WIDTH), has_bias=False)
        uniform(f"{path}.up", _WIDTH, (hidden, _WIDTH))
        uniform(f"{path}.down", hidden, (_WIDTH, hidden))
    norm("norm")
    uniform("head", _WIDTH, (_CLASSES, _WIDTH))
    return parameters
