"""What the op of an optimizer is given: meaning and producer of each input, its numbers, what summed its gradient."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from math import prod

from precision_tool.lib.data.dump_names import flatten
from precision_tool.lib.diagnose.op_values import PARAMETER_TYPES, PASSING
from precision_tool.lib.model.graph import Op
from precision_tool.lib.model.msprobe import Literal
from precision_tool.lib.ops.op_table import find, is_by_element


class Feed(StrEnum):
    """What is given to an update, or to the network; the values are causes of a study's culprit."""

    VARIABLE = "weights"
    #: What an optimizer remembers of earlier steps: momenta, powers of the rates of decay.
    STATE = "optimizer_state"
    LEARNING_RATE = "learning_rate"
    #: Another number that the script gives the optimizer.
    SETTING = "optimizer_setting"
    GRADIENT = "gradient"
    DATA = "input"


#: The inputs of optimizers as prototypes name them; those that stand nowhere here are numbers from the script.
_VARIABLES = frozenset({"var", "parameters"})
_STATES = frozenset({
    "accum", "accum_update", "m", "v", "vhat", "mom", "ms", "mg", "linear", "stat", "beta1_power", "beta2_power",
    "gradient_accumulator", "gradient_squared_accumulator", "global_step", "step", "max_grad_norm",
})  # fmt: skip
_GRADIENTS = frozenset({"grad", "gradient", "delta", "x1", "indices"})
_RATES = frozenset({"lr", "learning_rate"})
#: That of plain descent has another name.
_RATE_OF_DESCENT = "alpha"
_NUMBERS = (int, float)


def feed_of(op_type: str, slot: int, name: str, is_tensor: bool) -> Feed:
    """Return what an input of an update is; of a recorded call, which has no names, the first is the variable."""
    if name in _RATES or (name == _RATE_OF_DESCENT and "GradientDescent" in op_type):
        return Feed.LEARNING_RATE
    if not is_tensor:
        return Feed.SETTING
    if name in _VARIABLES or not slot:
        return Feed.VARIABLE
    if name in _STATES:
        return Feed.STATE
    return Feed.GRADIENT if not name or name in _GRADIENTS else Feed.SETTING


def fed_by(op_type: str, op: Op | None, count: int, variable: str = "") -> tuple[str, ...]:
    """Return name and producer of the first `count` inputs of an update, with a tab between; "" where not known.

    `variable` is what a recorded call updates, whatever its first input was put out by. Of parts of an optimizer, and
    of ops that no formula is known of, nothing is told: their inputs may be anything.
    """
    if op is not None and op.is_recorded:
        names = [""] * count
    else:
        spec = find(op_type)
        names = list(spec.inputs) if spec is not None else []
        if len(names) > count and op is not None:  # numbers may be attributes
            names = [name for name in names if name not in op.attrs]
        if len(names) != count or not _VARIABLES.issuperset(names[:1]):
            return ()
    edges = () if op is None else op.inputs
    producers = [edge.producer if edge is not None else "" for edge in edges[:count]]
    producers += [""] * (count - len(producers))
    if variable and producers:
        producers[0] = variable
    return tuple(f"{name}\t{producer}" for name, producer in zip(names, producers, strict=True))


def numbers_of(op: Op | None) -> dict[str, str]:
    """Return the numbers among the arguments of a recorded call, as texts, by keyword or place (`argument_1`)."""
    if op is None or op.recorded is None:
        return {}
    call = op.recorded.call
    arguments = {**{f"argument_{place}": value for place, value in enumerate(call.inputs)}, **call.kwargs}
    values = {key: value.value if isinstance(value, Literal) else value for key, value in arguments.items()}
    return {key: repr(value) for key, value in values.items() if isinstance(value, _NUMBERS)}


#: Ops between a sum over ranks and an update that are looked through.
_MOST_BETWEEN = 32
#: Recorded calls that change each element by itself, without the underscore of those in place.
_CALLS_BY_ELEMENT = frozenset({
    "mul", "div", "true_divide", "truediv", "itruediv", "imul", "add", "iadd", "neg", "to", "type", "float", "half",
    "bfloat16", "view", "reshape", "flatten", "unflatten", "narrow", "split", "copy", "clone", "contiguous", "detach",
    "lerp", "addcmul", "sqrt", "addcdiv", "clamp",
})  # fmt: skip


def summed_by(op: Op | None, by_name: Mapping[str, Op], is_communication: Callable[[str], bool]) -> str:
    """Return the communication op that an update's gradient came out of, by ops that work by element; "" for none.

    `by_name` has the ops by flattened names. Other ops end the search: the parts of a layer sum what goes between them,
    and have gradients of their own. So do single numbers: a norm over all ranks may scale gradients of one rank.
    """
    queue = [] if op is None else _producers(op)[1:]
    seen = set(queue)
    for name in queue:  # it grows
        producer = by_name.get(flatten(name))
        if producer is None:
            continue
        if is_communication(producer.type):
            return producer.name
        if len(seen) < _MOST_BETWEEN and _is_looked_through(producer):
            behind = [each for each in dict.fromkeys(_producers(producer)) if each and each not in seen]
            queue += behind
            seen.update(behind)
    return ""


def _producers(op: Op) -> list[str]:
    """Return what puts out each input of an op; "" for single numbers, and where nothing does."""
    sizes = [prod(desc.shape) for desc in op.input_descs] + [0] * len(op.inputs)
    return [
        edge.producer if edge is not None and size != 1 else "" for edge, size in zip(op.inputs, sizes, strict=False)
    ]


def _is_looked_through(op: Op) -> bool:
    if op.type in PARAMETER_TYPES:
        return False
    if op.is_recorded:
        return op.type.rpartition(".")[2].strip("_") in _CALLS_BY_ELEMENT
    return op.type in PASSING or is_by_element(op.type)
