"""Randomness taken out of a saved graph: dropout rates become 0, unseeded random ops get a seed.

Works on the protobuf messages of a graph before it is imported, where every op can still be changed; ops that
`tf.nn.dropout` makes are found by their structure, in TensorFlow 1.15 and 2. This module runs on Python 3.7.
"""

import zlib
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Tuple

_RANDOM_UNIFORM = ("RandomUniform", "StatelessRandomUniform", "StatelessRandomUniformV2")
#: Lie between a random number and its use: ranges and casts.
_BETWEEN = ("Add", "AddV2", "Mul", "Sub", "Cast", "Identity")


class Fixed(NamedTuple):
    """What was changed, by op name. `unknown` are random ops of dropouts whose rate was not found."""

    rates: Tuple[str, ...]
    seeds: Tuple[str, ...]
    unknown: Tuple[str, ...]


def fix_randomness(graph_def: Any, seed: int, make_value: Callable[[float, int], Any]) -> Fixed:
    """Change a `GraphDef` and its functions in place. `make_value(number, dtype)` makes a scalar TensorProto."""
    rates: List[str] = []
    seeds: List[str] = []
    unknown: List[str] = []
    functions = [(each.node_def, each.signature.name + ":", ":y:0") for each in graph_def.library.function]
    for nodes, prefix, output in [(graph_def.node, "", ""), *functions]:
        part = _Nodes(nodes, output, make_value)
        found = list(part.fix_dropouts())
        rates += [prefix + name for name, _ in found]
        generators = {generator for _, generator in found}
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
    return name.rpartition("/")[0] + "/"


class _Nodes:
    """The nodes of a graph or of a function."""

    def __init__(self, nodes: Any, output: str, make_value: Callable[[float, int], Any]) -> None:
        self._nodes = nodes
        self._output = output
        self._make_value = make_value
        self._by_name: Dict[str, Any] = {node.name: node for node in nodes}
        self._users: Dict[str, List[Any]] = {}
        for node in nodes:
            for reference in node.input:
                self._users.setdefault(_name(reference), []).append(node)

    def fix_dropouts(self) -> Iterator[Tuple[str, str]]:
        """Set rates to 0: name of each dropout's mask, and of its random generator."""
        masks = [node for node in self._nodes if node.op == "GreaterEqual"]
        for mask in masks:  # random >= rate keeps a value
            generator = self._generator(mask.input[0])
            if not generator:
                continue
            scope, rate = _scope(mask.name), mask.input[1]
            if self._keeps_scale(mask, scope, rate):
                self._zero(scope, rate, mask)
                yield mask.name, generator

    def _generator(self, reference: str) -> str:
        """The op of random numbers behind an input; '' when there is none."""
        waiting, seen = [_name(reference)], 0
        while waiting and seen < 20:
            seen += 1
            node = self._by_name.get(waiting.pop())
            if node is not None and node.op in _RANDOM_UNIFORM:
                return str(node.name)
            if node is not None and node.op in _BETWEEN:
                waiting += [_name(each) for each in node.input if not each.startswith("^")]
        return ""

    def _keeps_scale(self, mask: Any, scope: str, rate: str) -> bool:
        """Whether what is kept is scaled by 1 / (1 - rate), as dropouts do; scales that are constants become 1."""
        for node in self._users.get(_name(rate), []):
            if node.op == "Sub" and _scope(node.name) == scope and node.input[1] == rate:
                return True  # follows the rate
        for node in self._users.get(mask.name, []):  # TensorFlow 2 with a number for a rate
            if node.op not in ("Select", "SelectV2", "Cast") or _scope(node.name) != scope:
                continue
            kept = self._by_name.get(_name(node.input[1])) if node.op != "Cast" else None
            if kept is None or kept.op != "Mul":
                continue
            scale = self._by_name.get(_name(kept.input[1]))
            if scale is not None and scale.op == "Const" and _scope(scale.name) == scope:
                self._set_constant(scale, 1.0)
                return True
        return False

    def _zero(self, scope: str, rate: str, mask: Any) -> None:
        source = self._by_name.get(_name(rate))
        users = self._users.get(_name(rate), [])
        if source is not None and source.op == "Const" and all(scope in user.name for user in users):
            self._set_constant(source, 0.0)
            return
        # Fed, computed or shared: the dropout takes a zero made from it, so that it stays in the same loop or branch.
        zero = self._nodes.add()
        zero.name, zero.op = scope + "precision_tool_zero_rate", "ZerosLike"
        zero.input.append(rate)
        zero.attr["T"].type = mask.attr["T"].type
        for user in users:
            if user.name.startswith(scope):
                for position, reference in enumerate(user.input):
                    if reference == rate:
                        user.input[position] = zero.name + self._output

    def _set_constant(self, node: Any, number: float) -> None:
        node.attr["value"].tensor.CopyFrom(self._make_value(number, node.attr["dtype"].type))
