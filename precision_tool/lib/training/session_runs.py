"""What one run of a TensorFlow 1 session does: what is fetched and fed, and whether it trains or only prepares.

This module runs on Python 3.7.
"""

from typing import Any, Iterator, List, NamedTuple, Optional, Set, Tuple

from precision_tool.lib.training.packages import tensorflow_v1

#: Ops that only prepare a run.
SETUP_TYPES = (
    "MakeIterator",
    "InitializeTable",
    "InitializeTableV2",
    "InitializeTableFromTextFile",
    "InitializeTableFromTextFileV2",
    "LookupTableImport",
    "LookupTableImportV2",
)
_ASSIGN_TYPES = ("Assign", "AssignVariableOp")
RESTORE_TYPES = ("Restore", "RestoreSlice", "RestoreV2")
#: What the value of a fed variable may have gone through.
_PLACEHOLDER_TYPES = ("Placeholder", "PlaceholderV2", "PlaceholderWithDefault")
_UNCHANGED_TYPES = ("Identity", "Cast", "Reshape")


def _flat_fetches(fetches: Any) -> Iterator[Any]:
    """The single fetches of what `Session.run` takes."""
    if isinstance(fetches, dict):
        fetches = list(fetches.values())
    if isinstance(fetches, (list, tuple)):
        for each in fetches:
            yield from _flat_fetches(each)
    else:
        yield from tensorflow_v1().nest.flatten(fetches, expand_composites=True)  # sparse ones are three


def _element_of(graph: Any, fetch: Any) -> Any:
    """The op or tensor that a fetch means; None for what is of no known kind, or a mistake."""
    try:
        return graph.as_graph_element(fetch, allow_tensor=True, allow_operation=True)
    except (KeyError, TypeError, ValueError):
        return None


def flat_feeds(graph: Any, feed_dict: Any) -> Iterator[Tuple[Any, Any]]:
    """Tensor and value of everything in a `feed_dict`."""
    v1 = tensorflow_v1()
    for key, value in (feed_dict or {}).items():
        yield from _feed_parts(v1, graph, key, value)


def _feed_parts(v1: Any, graph: Any, key: Any, value: Any) -> Iterator[Tuple[Any, Any]]:
    names: Tuple[str, ...] = ()
    if isinstance(key, v1.SparseTensor):
        names = ("indices", "values", "dense_shape")
    elif isinstance(key, v1.IndexedSlices):
        names = ("values", "indices") if key.dense_shape is None else ("values", "indices", "dense_shape")
    if names:
        for name, part in zip(names, tuple(value)):
            yield graph.as_graph_element(getattr(key, name), allow_operation=False), part
    elif isinstance(key, (list, tuple)):
        for each, part in zip(key, value):
            yield from _feed_parts(v1, graph, each, part)
    else:
        yield graph.as_graph_element(key, allow_operation=False), value


class RunPurpose(NamedTuple):
    """What a run fetches, and what for. `train_ops` is None where it cannot be told: then any run may be the one."""

    fetched: List[Any]
    is_setup: bool
    train_ops: Optional[List[str]]


def purpose_of(graph: Any, fetches: Any) -> RunPurpose:
    """Return what a run with these fetches does: it trains, or only prepares, or neither."""
    fetched = [_element_of(graph, each) for each in _flat_fetches(fetches)]
    initializers = _initializers_of(graph)
    is_setup = all(_is_setup(each, initializers) for each in fetched)
    return RunPurpose(fetched, is_setup, None if is_setup else _train_ops_of(graph, fetched))


def _initializers_of(graph: Any) -> Set[str]:
    v1 = tensorflow_v1()
    keys = (v1.GraphKeys.GLOBAL_VARIABLES, v1.GraphKeys.LOCAL_VARIABLES)
    variables = [each for key in keys for each in graph.get_collection(key)]
    return {each.initializer.name for each in variables if getattr(each, "initializer", None) is not None}


def _is_setup(element: Any, initializers: Set[str], depth: int = 0) -> bool:
    """Whether a fetch only initialises variables, tables and iterators, restores or feeds them."""
    if element is None:
        return False
    if not hasattr(element, "control_inputs"):  # a tensor: somebody wants its value, unless it is an assignment's
        operation = element.op
        if operation.type == "ReadVariableOp":  # what a resource variable's assign() gives
            before = operation.control_inputs
            return bool(before) and all(_is_assigned_setup(each) for each in before)
        return _is_assigned_setup(operation)
    if element.type in SETUP_TYPES or element.name in initializers or _is_assigned_setup(element):
        return True
    grouped = element.type == "NoOp" and depth < 10  # tf.group groups by device, then all
    return grouped and all(_is_setup(each, initializers, depth + 1) for each in element.control_inputs)


def _is_assigned_setup(operation: Any) -> bool:
    """Whether an op assigns what is fed or restored."""
    if operation.type not in _ASSIGN_TYPES:
        return False
    source = operation.inputs[1].op
    while source.type in _UNCHANGED_TYPES:
        source = source.inputs[0].op
    return source.type in RESTORE_TYPES + _PLACEHOLDER_TYPES


def _train_ops_of(graph: Any, fetched: List[Any]) -> Optional[List[str]]:
    """Names of the training ops that a run reaches."""
    v1 = tensorflow_v1()
    train_ops = {getattr(each, "op", each) for each in graph.get_collection(v1.GraphKeys.TRAIN_OP)}
    if not train_ops or None in fetched:
        return None
    reached = ancestors([getattr(each, "op", each) for each in fetched])
    return sorted(each.name for each in train_ops & reached)


def ancestors(operations: List[Any]) -> Set[Any]:
    """Every op that must run for `operations`, themselves included."""
    ops: Set[Any] = set()
    waiting = list(operations)
    while waiting:
        operation = waiting.pop()
        if operation not in ops:
            ops.add(operation)
            waiting += [tensor.op for tensor in operation.inputs]
            waiting += operation.control_inputs
    return ops
