"""What `preflight` says of a step: values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from precision_tool.lib.messages import Message


class Risk(StrEnum):
    """What a 16-bit type does to an op."""

    #: A result is beyond the type's range.
    OVERFLOW = "overflow"
    #: Something that the op computes on its way is: a square, a sum, an exponential.
    OVERFLOW_INSIDE = "overflow_inside"
    #: Many of its results become 0.
    UNDERFLOW = "underflow"
    #: Rounding leaves nothing of its result: it is a small difference of large numbers.
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpRange:
    """The range of an op's results, and what a type does to them.

    Attributes
    ----------
    name, op_type, module : str
        The op; the module of a recorded call.
    largest, smallest : float
        Largest absolute value of its results, and the smallest that is not 0.
    headroom : float
        Powers of two between the largest value and the limit of the type; negative beyond it.
    inside : str
        What is largest on the way ("square", "sum", "exp"; "other" else); "" where nothing is larger than inputs and
        results.
    inside_headroom : float or None
        The same for that.
    underflow : float
        Share of the results that are not 0 which become 0.
    rounding : float
        Relative change of the results by rounding inputs and results.
    is_gradient : bool
        Whether it belongs to the backward pass, so that a loss scale makes its results larger.
    risks : tuple of Risk
        What is to be expected.
    """

    name: str
    op_type: str
    module: str = ""
    largest: float
    smallest: float
    headroom: float
    inside: str = ""
    inside_headroom: float | None = None
    underflow: float = 0.0
    rounding: float = 0.0
    is_gradient: bool = False
    risks: tuple[Risk, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """How much the rounding of one op moves the end of the step.

    Attributes
    ----------
    name : str
        The op.
    loss : float
        Change of the loss over the loss, with this op alone rounded.
    gradients : float
        Largest relative change of a weight's gradient, with this op alone rounded; NaN where it was not computed.
    by : str
        "adjoint" for the first order by dumped gradients, "emulation" for one emulated change.
    """

    name: str
    loss: float
    gradients: float
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Errors of an emulated step against the same in float32.

    Attributes
    ----------
    loss : float
        Relative error of the loss, of a step without one of its final outputs; infinite where it is not finite; NaN
        without either, and where no unbroken path of emulated ops leads there.
    gradients : float
        Largest relative error of a weight's gradient; NaN without gradients, where no unbroken path leads to any, and
        where the loss alone is beyond its bound, so that the backward pass was not emulated.
    not_finite : int
        Ops whose results are not finite, where those of float32 are.
    """

    loss: float
    gradients: float
    not_finite: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchStep:
    """One emulated step of the search.

    Attributes
    ----------
    float32 : tuple of str
        Names of the ops kept in float32.
    errors : Errors
        What came of it.
    seconds : float
        How long the emulation took.
    """

    float32: tuple[str, ...]
    errors: Errors
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LossScale:
    """Loss scales that keep every gradient in range.

    Attributes
    ----------
    advised : float
        A power of two with room on both sides; 1 where none is needed. Every emulation has it.
    lowest, highest : float
        Below `lowest` gradients vanish, above `highest` they overflow. `lowest` > `highest`: no scale keeps all.
    """

    advised: float
    lowest: float
    highest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeForecast:
    """What one 16-bit type makes of the step.

    Attributes
    ----------
    dtype : str
        "float16" or "bfloat16".
    ranges : tuple of OpRange
        Every op with floating-point results, in order.
    scale : LossScale
        Loss scales that fit.
    sensitivities : tuple of Sensitivity
        Ops, the most sensitive first.
    all_narrow : Errors
        The step with every op in the type.
    kept : tuple of str
        Names of the ops to keep in float32, the most important first.
    kept_types : tuple of str
        Types of which every op is to be kept in float32.
    kept_modules : tuple of str
        Modules of recorded calls to keep out of autocast.
    kept_not_emulated : tuple of str
        Those of `kept` that are not emulated, and whose recorded results the type cannot hold.
    with_kept : Errors
        The step with those and all ops of `kept_types` in float32 and all others in the type, emulated.
    is_enough : bool or None
        Whether that is within the bound; None where that is not known, because no unbroken path of emulated ops leads
        to the loss, or to any gradient.
    steps : tuple of SearchStep
        Every emulation of the search, in order; of the one through all smaller sets that which succeeds.
    is_finished : bool
        Whether the search came to its end: no op of `kept` can be left out, or all ops in float32 are not enough. False
        where the time was up or Ctrl+C ended it.
    smallest : int or None
        Size of the smallest set that stays within the bound, where all smaller ones were tried; None elsewhere.
    """

    dtype: str
    ranges: tuple[OpRange, ...]
    scale: LossScale
    sensitivities: tuple[Sensitivity, ...]
    all_narrow: Errors
    kept: tuple[str, ...]
    kept_types: tuple[str, ...]
    kept_modules: tuple[str, ...]
    with_kept: Errors
    is_enough: bool | None
    steps: tuple[SearchStep, ...]
    is_finished: bool = True
    smallest: int | None = None
    kept_not_emulated: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Preflight:
    """What is to be expected of a step in 16 bits.

    Attributes
    ----------
    source, graph : str
        The benchmark's folder, and its graph.
    framework : str
        "TensorFlow", "PyTorch", "MindSpore".
    ops : int
        Ops that compute.
    loss_name : str
        The loss; "" where there is none.
    loss : float
        Its value in float32; NaN without one.
    bound_loss, bound_gradients : float
        Largest relative errors that are allowed.
    types : tuple of TypeForecast
        The types that were asked for.
    not_emulated : mapping of str to Message
        Ops that could not be emulated, with the reason: their recorded results stand.
    emulated : int
        How many of `ops` were emulated.
    between : tuple of str
        Those of `not_emulated` that read what ops which were emulated put out: a change does not go on behind them.
    unconnected : int
        Tensors that no recorded call put out and that are no view, part or sum of what calls did: a change does not
        reach them.
    seconds : float
        How long it took.
    is_interrupted : bool
        Whether Ctrl+C ended the search.
    """

    source: str
    graph: str
    framework: str
    ops: int
    loss_name: str
    loss: float
    bound_loss: float
    bound_gradients: float
    types: tuple[TypeForecast, ...]
    emulated: int
    not_emulated: Mapping[str, Message] = field(default_factory=dict)
    between: tuple[str, ...] = ()
    unconnected: int = 0
    seconds: float = 0.0
    is_interrupted: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether every change goes on to the end of the step: else nothing is verified."""
        return not self.between and not self.unconnected
