"""The table of all ops whose formula is known, with every family imported."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module

from precision_tool.lib.ops.base import OPS, OpSpec, registered
from precision_tool.lib.ops.torch_gradient_formulas import BY_ELEMENT

#: Each puts its ops into the table when it is imported.
_FAMILIES = (
    "activations",
    "attention",
    "convolution",
    "elementwise",
    "images",
    "losses",
    "matrix",
    "movement",
    "norms",
    "optimizers",
    "pooling",
    "quantization",
    "recurrent",
    "reductions",
    "torch_formulas",
    "torch_gradient_formulas",
    "torch_rarer_formulas",
    "windows",
)
for _family in _FAMILIES:
    import_module(f"precision_tool.lib.ops.{_family}")


def find(op_type: str) -> OpSpec | None:
    """Return the formula of an op type by GE's or TensorFlow's name; None where there is none."""
    return OPS.get(op_type)


#: Ops each element of whose result comes from the elements of the inputs in the same place, or from an input that
#: broadcasts: any part of them can be computed alone.
_BY_ELEMENT = frozenset({
    "Identity", "TransData", "Cast",
    "Add", "AddV2", "AddN", "AccumulateNV2", "Sub", "Mul", "MulNoNan", "RealDiv", "Div", "DivNoNan", "Square", "Neg",
    "SquaredDifference", "FusedMulAdd", "Abs", "Sign", "Maximum", "Minimum", "ClipByValue", "ClipByValueV2", "Muls",
    "Adds", "Axpy", "AxpyV2", "Sqrt", "Rsqrt", "Reciprocal", "Inv", "Exp", "Log", "Expm1", "Log1p", "Pow",
    "Relu", "Relu6", "LeakyRelu", "Elu", "Selu", "Sigmoid", "Tanh", "Softplus", "Softsign", "Gelu", "FastGelu", "Mish",
    "HardSwish", "Swish", "ReluGrad", "Relu6Grad", "LeakyReluGrad", "SigmoidGrad", "TanhGrad", "SoftplusGrad",
    "SoftsignGrad", "EluGrad", "SeluGrad", "GeluGrad", "FastGeluGrad", "SqrtGrad", "RsqrtGrad", "ReciprocalGrad",
    "GeluV2", "Addcmul", "Addcdiv", "torch.scaled", "torch.lerp", "torch.axpy",
    "Equal", "NotEqual", "Greater", "GreaterEqual", "Less", "LessEqual", "LogicalAnd", "LogicalOr", "LogicalNot",
    "SelectV2",  # not Select, whose condition of one axis chooses along the first
    "ApplyGradientDescent", "ApplyMomentum", "ApplyMomentumD", "ApplyKerasMomentum", "ApplyAdam", "ApplyAdamD",
    "ApplyRMSProp", "ApplyRMSPropD", "ApplyAdagrad", "ApplyAdagradD",
})  # fmt: skip


def is_by_element(op_type: str) -> bool:
    """Return True if any part of an op's result can be computed from the same part of its inputs."""
    return (op_type in _BY_ELEMENT or op_type in BY_ELEMENT) and op_type in registered()


def spelled(word: str) -> str | None:
    """Return the op type that is written like a word but for capitals; None if there is none."""
    return OPS.spelled.get(word.lower())


def all_types() -> Iterable[str]:
    """Return all op types that have a formula."""
    return OPS.all().keys()
