"""One seed for everything random in a training script. This module runs on Python 3.7."""

import os
import random
import sys
import zlib
from collections import deque
from typing import Any, Deque, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

from precision_tool.lib.data.settings import load_settings

#: `off` leaves all random generators alone when `tf_config` is imported, a number is the seed to take.
SEED_VARIABLE = "PRECISION_TOOL_SEED"

_LARGEST_SEED = 2**32 - 1  # numpy takes no more
#: What was seeded last in this process.
_LAST: List[int] = []


def last_seed() -> Optional[int]:
    """The seed that this process has set last; None where it has set none."""
    return _LAST[-1] if _LAST else None


def seed_at_import() -> None:
    """Seed `random` and what is imported already of numpy and TensorFlow: nothing is imported for it."""
    text = os.environ.get(SEED_VARIABLE, "").strip()
    if text.lower() == "off":
        return
    if text and not (text.isascii() and text.isdigit()):
        raise ValueError(f"environment variable {SEED_VARIABLE} must be a number or 'off' but is {text!r}")
    later = [name for name in ("numpy", "tensorflow") if name not in sys.modules]
    seed = int(text) if text else load_settings().dump_seed
    _seed(seed, sys.modules.get("numpy"), sys.modules.get("tensorflow"), later)


def seed_everything(seed: Optional[int] = None) -> None:
    """Seed `random`, numpy and TensorFlow as far as they are installed, and hashing of child processes.

    Parameters
    ----------
    seed : int, optional
        From 0 to 2**32 - 1; by default the setting DUMP_SEED.

    Raises
    ------
    ValueError
        For another seed.
    """
    from precision_tool.lib.training import packages

    seed = load_settings().dump_seed if seed is None else seed
    numpy = packages.numpy() if packages.is_installed("numpy") else None
    tensorflow = packages.tensorflow_v1() if packages.is_installed("tensorflow") else None
    _seed(seed, numpy, sys.modules.get("tensorflow") if tensorflow else None)


def _seed(seed: object, numpy: Optional[Any], tensorflow: Optional[Any], later: Sequence[str] = ()) -> None:
    from precision_tool.lib.training.packages import say

    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed <= _LARGEST_SEED:
        raise ValueError(f"seed must be a whole number from 0 to {_LARGEST_SEED} but is {seed!r}")
    _LAST[:] = [seed]
    os.environ["PYTHONHASHSEED"] = str(seed)
    random.seed(seed)
    done: List[str] = ["random"]
    if numpy is not None and hasattr(numpy, "random"):
        numpy.random.seed(seed)
        done.append("numpy")
    v1 = getattr(getattr(tensorflow, "compat", None), "v1", None)
    if v1 is not None:
        v1.set_random_seed(seed)  # of the default graph, or of eager mode
        done.append("tensorflow")
    say("seed", seed=seed, packages=done, later=tuple(later))


# --- Randomness taken out of a saved graph: dropout rates become 0, unseeded random ops get a seed ---


_RANDOM_UNIFORM = ("RandomUniform", "StatelessRandomUniform", "StatelessRandomUniformV2")
#: Lie between a random number and its use: ranges and casts.
_BETWEEN = ("Add", "AddV2", "Mul", "Sub", "Cast", "Identity")
_SAME = ("Cast", "Identity")
_SELECTS = ("Select", "SelectV2")
#: From a mask to the product, and from there back to the scale, there are no more ops than these.
_FORWARD, _BACK = 4, 4


class Fixed(NamedTuple):
    """What was changed, by op name. `unknown` are random ops of dropouts whose rate was not found."""

    rates: Tuple[str, ...]
    seeds: Tuple[str, ...]
    unknown: Tuple[str, ...]


class _Dropout(NamedTuple):
    """A dropout's ops: `scale` is the `1 - rate` that is divided by, or the constant that is multiplied with."""

    mask: Any
    generator: str
    scale: Any


def fix_randomness(graph_def: Any, seed: int, tensor_util: Any) -> Fixed:
    """Change a `GraphDef` and its functions in place. `tensor_util` is TensorFlow's module of that name."""
    rates: List[str] = []
    seeds: List[str] = []
    unknown: List[str] = []
    functions = [(each.node_def, each.signature.name + ":", ":y:0") for each in graph_def.library.function]
    for nodes, prefix, output in [(graph_def.node, "", ""), *functions]:
        part = _Nodes(nodes, output, tensor_util)
        dropouts = part.fix_dropouts()
        rates += [prefix + each.mask.name for each in dropouts]
        generators = {each.generator for each in dropouts}
        for node in nodes:
            if _is_unseeded(node):
                node.attr["seed"].i = seed + 1  # 0 and 0 would mean unseeded
                node.attr["seed2"].i = zlib.crc32(node.name.encode("utf-8"))
                seeds.append(prefix + node.name)
            if node.op in _RANDOM_UNIFORM and "dropout" in node.name.lower() and node.name not in generators:
                unknown.append(prefix + node.name)
    return Fixed(tuple(rates), tuple(seeds), tuple(unknown))


def _is_unseeded(node: Any) -> bool:
    has_seeds = "seed" in node.attr and "seed2" in node.attr
    return has_seeds and node.attr["seed"].i == 0 and node.attr["seed2"].i == 0


def _name(reference: str) -> str:
    """The op that an input such as `^a/b`, `a/b:1` or (in functions) `a/b:y:0` comes from."""
    return reference.lstrip("^").split(":")[0]


def _scope(name: str) -> str:
    """What the names of ops beside this one begin with."""
    return name[: name.rfind("/") + 1]


class _Nodes:
    """The nodes of a graph or of a function."""

    def __init__(self, nodes: Any, output: str, tensor_util: Any) -> None:
        self._nodes = nodes
        self._output = output
        self._tensor_util = tensor_util
        self._by_name: Dict[str, Any] = {node.name: node for node in nodes}
        self._users: Dict[str, List[Any]] = {}
        for node in nodes:
            for reference in node.input:
                self._users.setdefault(_name(reference), []).append(node)

    def fix_dropouts(self) -> List[_Dropout]:
        """Set the rates of all dropouts to 0; returns them."""
        dropouts = list(self._dropouts())  # all, before the first is changed: they may share rates and scales
        changed: Dict[str, List[Any]] = {}
        for each in dropouts:
            rate = each.mask.input[1]
            users = changed.setdefault(rate, [])
            users.append(each.mask)
            if each.scale.op == "Const":
                self._set_constant(each.scale, 1.0)
            elif each.scale not in users:
                users.append(each.scale)
        for rate, users in changed.items():
            self._zero(rate, users)
        return dropouts

    def _dropouts(self) -> Iterator[_Dropout]:
        taken: Set[str] = set()
        for mask in self._nodes:
            if mask.op != "GreaterEqual":  # random >= rate keeps a value
                continue
            generator = self._generator(mask.input[0])
            scales = {each.name: each for each in self._scales(mask)} if generator else {}
            if scales:  # each has its own, the nearest; unless the script computes one for all
                name = next((name for name in scales if name not in taken), next(iter(scales)))
                taken.add(name)
                yield _Dropout(mask, generator, scales[name])

    def _generator(self, reference: str) -> str:
        """The op of random numbers behind an input; '' when there is none."""
        waiting, visited = [_name(reference)], 0
        while waiting and visited < 20:
            visited += 1
            node = self._by_name.get(waiting.pop())
            if node is not None and node.op in _RANDOM_UNIFORM:
                return str(node.name)
            if node is not None and node.op in _BETWEEN:
                waiting += [_name(each) for each in node.input if not each.startswith("^")]
        return ""

    def _scales(self, mask: Any) -> Iterator[Any]:
        """What scales the values that `mask` keeps, nearest first. Where nothing does, that is no dropout."""
        rate = mask.input[1]
        waiting: Deque[Tuple[Any, int]] = deque([(mask, 0)])
        while waiting:
            node, steps = waiting.popleft()
            for user in self._users.get(node.name, []) if steps < _FORWARD else []:
                position = next(i for i, each in enumerate(user.input) if _name(each) == node.name)
                if user.input[position].startswith("^"):
                    continue
                if user.op in _SELECTS and position == 0:
                    yield from self._scales_behind(user.input[1], rate)
                elif user.op == "Mul":
                    yield from self._scales_behind(user.input[1 - position], rate)
                elif user.op == "RealDiv" and position == 0:
                    yield from self._keep_probabilities(user.input[1], rate)
                elif user.op not in _SAME:
                    continue
                waiting.append((user, steps + 1))

    def _scales_behind(self, reference: str, rate: str) -> Iterator[Any]:
        """The factors of a product that are 1 / (1 - rate), nearest first."""
        waiting: Deque[Tuple[str, int]] = deque([(reference, 0)])
        while waiting:
            reference, steps = waiting.popleft()
            node = self._by_name.get(_name(reference))
            if node is None or steps == _BACK:
                continue
            if node.op == "RealDiv":
                yield from self._keep_probabilities(node.input[1], rate)
                waiting.append((node.input[0], steps + 1))
            elif node.op == "Mul":
                waiting += [(each, steps + 1) for each in node.input[:2]]
            elif node.op in _SAME:
                waiting.append((node.input[0], steps + 1))
            elif self._is_constant_scale(node, rate):
                yield node

    def _keep_probabilities(self, reference: str, rate: str) -> Iterator[Any]:
        """The op of `1 - rate`, if a denominator is that."""
        node = self._source(reference)
        if node is not None and node.op == "Sub" and node.input[1] == rate and self._number(node.input[0]) == 1:
            yield node

    def _is_constant_scale(self, node: Any, rate: str) -> bool:
        """Whether a constant is the 1 / (1 - rate) of a rate that is constant too."""
        scale, number = self._number(node.name), self._number(rate)
        return scale is not None and number is not None and 0 < number < 1 and abs(scale * (1 - number) - 1) < 0.01

    def _number(self, reference: str) -> Optional[float]:
        """The value of a constant scalar; None for all else."""
        node = self._source(reference)
        if node is None or node.op != "Const":
            return None
        proto = node.attr["value"].tensor
        if proto.tensor_shape.dim:
            return None
        try:
            return float(self._tensor_util.MakeNdarray(proto).ravel()[0])
        except (TypeError, ValueError, IndexError):  # texts, and what is damaged
            return None

    def _source(self, reference: str) -> Optional[Any]:
        """The op of an input, seen through what changes no value."""
        node = self._by_name.get(_name(reference))
        for _ in range(_BACK):
            if node is None or node.op not in _SAME:
                break
            node = self._by_name.get(_name(node.input[0]))
        return node

    def _zero(self, rate: str, users: List[Any]) -> None:
        """Give `users` of a rate the rate 0."""
        source = self._by_name.get(_name(rate))
        is_number = source is not None and source.op == "Const" and self._number(source.name) is not None
        if source is not None and is_number and all(each in users for each in self._users[source.name]):
            self._set_constant(source, 0.0)
            return
        # Fed, computed or shared: they take a zero made from it, so that it stays in the same loop or branch.
        zero = self._nodes.add()
        zero.name, zero.op = self._new_name(_scope(users[0].name) + "precision_tool_zero_rate"), "ZerosLike"
        zero.input.append(rate)
        zero.attr["T"].type = users[0].attr["T"].type
        self._by_name[zero.name] = zero
        for user in users:
            for position, reference in enumerate(user.input):
                if reference == rate:
                    user.input[position] = zero.name + self._output

    def _new_name(self, name: str) -> str:
        number, unused = 1, name
        while unused in self._by_name:
            number += 1
            unused = f"{name}_{number}"
        return unused

    def _set_constant(self, node: Any, number: float) -> None:
        made = self._tensor_util.make_tensor_proto(number, dtype=node.attr["dtype"].type, shape=[])
        node.attr["value"].tensor.CopyFrom(made)
