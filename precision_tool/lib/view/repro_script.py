"""The script of a reproduction that makes a recorded call again, on any device; it needs the framework, not this one.

Inputs are files of the reproduction; whether what the call puts out is right its `check.py` says.
"""

from __future__ import annotations

from collections.abc import Collection

from precision_tool.lib.diagnose.recorded_formulas import autocast_type
from precision_tool.lib.diagnose.recorded_script import NoCodeError, call_code
from precision_tool.lib.model.graph import Op
from precision_tool.lib.model.msprobe import Direction, RecordedCall, RecordedTensor

_HEAD = '''"""Makes a recorded call again: python3 run.py [DEVICE], which is {default} if none is named.

It needs {needs}. What it puts out here is saved beside the NPU's, and checked as that is.
"""
{comments}

import json
import os
import sys

import numpy as np
{imports}

import check

device = sys.argv[1] if len(sys.argv) > 1 else "{default}"
folder = os.path.dirname(os.path.abspath(__file__))
{setup}


'''
_TORCH_SETUP = """if device.startswith("npu"):
    try:
        import torch_npu  # noqa: F401
    except ImportError:
        if len(sys.argv) > 1:
            raise
        print("torch_npu is not installed: this is the CPU")
        device = "cpu"


def load(number, dtype):
    array = np.load(os.path.join(folder, "input_%d.npy" % number))
    return torch.from_numpy(np.ascontiguousarray(array)).to(dtype).to(device)


def as_array(tensor):
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()"""
_MINDSPORE_SETUP = """mindspore.set_device(device)


def load(number, dtype):
    return mindspore.Tensor(np.load(os.path.join(folder, "input_%d.npy" % number))).astype(dtype)


def as_array(tensor):
    return (tensor.astype(mindspore.float32) if tensor.dtype == mindspore.bfloat16 else tensor).asnumpy()"""
#: Recorded gradients are those of some of the inputs, in their order; which they are their shapes tell.
_GRADIENTS = """given = [tensor for tensor in ({inputs},) if tensor.requires_grad]
results = made if isinstance(made, (tuple, list)) else [made]
results = [tensor for tensor in results if isinstance(tensor, torch.Tensor) and tensor.requires_grad]
gradients = torch.autograd.grad(results, given, [{gradients}][: len(results)], allow_unused=True)
left = [gradient for gradient in gradients if gradient is not None]
made = {{}}
for number, shape in {shapes}:
    at = next((at for at, gradient in enumerate(left) if list(gradient.shape) == shape), None)
    if at is not None:
        made[number] = left.pop(at)"""
_OUTPUTS = """results = made if isinstance(made, (tuple, list)) else [made]
made = dict(enumerate(tensor for tensor in results if isinstance(tensor, {tensor})))"""
_TAIL = """
with open(os.path.join(folder, "op.json"), encoding="utf-8") as file:
    op = json.load(file)
print("%s on %s" % (op["op"], device))
for output in op["outputs"]:
    tensor = made.get(output["slot"])
    if tensor is None:
        print("output %d: not made here" % output["slot"])
        continue
    name = "output_%d.here.npy" % output["slot"]
    np.save(os.path.join(folder, name), as_array(tensor))
    check.report(dict(output, npu=name), folder, op["slack"], op["doubt"])
"""


def run_script(op: Op, framework: str, there: Collection[int]) -> str:
    """Return the script that makes the call of an op again.

    Parameters
    ----------
    op : Op
        The op, with what was recorded of it.
    framework : str
        What `dump.json` says it is of.
    there : collection of int
        The input slots of which there is a file.

    Returns
    -------
    str
        Python code; "" where the call cannot be written, as that of a module, or one with a process group, or where an
        input is missing.
    """
    recorded = op.recorded
    if recorded is None or recorded.has_parameters_grad:
        return ""
    numbers = {slot: number for number, slot in enumerate(recorded.input_slots)}
    is_backward = recorded.call.call is not None and recorded.call.call.direction is Direction.BACKWARD
    call = recorded.forward if is_backward else recorded.call
    if call is None or (is_backward and framework == "mindspore"):
        return ""
    used: dict[int, RecordedTensor] = {}

    def tensor(slot: str, recorded_tensor: RecordedTensor) -> str:
        number = numbers.get(f"forward.{slot}" if is_backward else slot, -1)
        if number not in there:
            raise NoCodeError
        used[number] = recorded_tensor
        return f"input_{number}"

    try:
        expression = call_code(call, framework, tensor)
    except NoCodeError:
        return ""
    gradients = range(len(recorded.gradients)) if is_backward else range(0)
    if not set(gradients) <= set(there):
        return ""
    shapes = [(number, list(out.shape)) for number, out in enumerate(recorded.outputs)]
    if is_backward and not any(shape == list(tensor_.shape) for _, shape in shapes for tensor_ in used.values()):
        return ""  # gradients of views of the inputs
    is_torch = framework != "mindspore"
    default = "npu" if is_torch else "Ascend"
    comments = "\n".join(f"# {_in_one_line(each)}" for each in (op.name, op.module, op.source) if each)
    imports = "import torch" if is_torch else "import mindspore"
    needs = "PyTorch, and torch_npu on an NPU" if is_torch else "MindSpore"
    head = _HEAD.format(
        default=default, needs=needs, comments=comments, imports=imports,
        setup=_TORCH_SETUP if is_torch else _MINDSPORE_SETUP,
    )  # fmt: skip
    dtypes = dict(sorted(used.items()))
    lines = [f"input_{number} = load({number}, {_type(tensor_.dtype, is_torch)})" for number, tensor_ in dtypes.items()]
    if is_backward:
        lines += [
            f"input_{number}.requires_grad_()" for number, tensor_ in dtypes.items() if _is_float(tensor_.dtype)
        ]  # fmt: skip
        lines += [
            f"gradient_{number} = load({number}, {_type(recorded.gradients[number].dtype, is_torch)})"
            for number in gradients
        ]
    lines += _made(call, expression) if is_torch else [f"made = {expression}"]
    if is_backward:
        lines.append(
            _GRADIENTS.format(
                inputs=", ".join(f"input_{number}" for number in dtypes),
                gradients=", ".join(f"gradient_{number}" for number in gradients), shapes=shapes,
            )
        )  # fmt: skip
    else:
        lines.append(_OUTPUTS.format(tensor="torch.Tensor" if is_torch else "mindspore.Tensor"))
    return head + "\n".join(lines) + "\n" + _TAIL


def _in_one_line(name: str) -> str:
    """Return a name that cannot end the comment it stands in."""
    return "".join(character if character.isprintable() else "?" for character in name)


def _type(dtype: str, is_torch: bool) -> str:
    name = dtype.rpartition(".")[2]
    if not name.isidentifier():
        raise NoCodeError
    return f"torch.{name}" if is_torch else f"mindspore.{name.lower()}"


def _is_float(dtype: str) -> bool:
    return dtype.rpartition(".")[2].startswith(("float", "bfloat", "complex"))


def _made(call: RecordedCall, expression: str) -> list[str]:
    """Return the lines of the call: under autocast where that made halves of float32."""
    lower = autocast_type(call)
    if not lower:
        return [f"made = {expression}"]
    return [f'with torch.autocast(device.partition(":")[0], dtype=torch.{lower}):', f"    made = {expression}"]
