"""What a passport says of a step: hashes of variables and batch, seeds and optimizers, taken before the step runs.

Recording is a side job: what goes wrong with it is a line on stderr, and the training goes on. This module runs on
Python 3.7.
"""

from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple

from precision_tool.lib.collect.packages import ScriptError, numpy, reason_of, say, tensorflow_module, tensorflow_v1
from precision_tool.lib.collect.passport import BENCHMARK, NPU, Passport, begin, begun, optimizers_of, plain
from precision_tool.lib.collect.session_runs import (
    element_of,
    flat_feeds,
    flat_fetches,
    initializers_of,
    is_setup,
    train_ops_of,
)

#: What a recorded run says: nothing yet, some run, one that trains.
_SOME, _TRAINS = 1, 2

#: Of variables that are read in one run.
_MOST_BYTES = 1 << 28

#: Name and value of a variable or of what is fed.
Named = Tuple[str, Any]


def passport(subject: Any, batch: Any = None) -> str:
    """Write the hashes of the variables of `subject` and of `batch` as they are now; returns the passport's path.

    `subject` is a TensorFlow 1 session, whose `batch` is a `feed_dict`, or a model, a `tf.Module` or variables.
    """
    is_session = hasattr(subject, "run") and hasattr(subject, "graph")
    if not is_session and _variables_of(subject) is None:
        raise ScriptError(
            f"passport takes a session or a model, not a {type(subject).__name__}", "passport(sess, feed_dict)"
        )
    record = begun(side_of(subject) if is_session else None)
    if record is None:
        record = begin(side_of(subject) or BENCHMARK)
    if is_session:
        _record_session(record, _raw(subject), flat_feeds(subject.graph, batch))
    else:
        _record_model(record, subject, batch)
    record.save()
    return str(record.path)


class Recorder:
    """Fills the passport of a session with the first run that trains; until then with the first that computes."""

    def __init__(self, record: Passport) -> None:
        self._passport = record
        self._rank = 0

    def before_run(self, session: Any, fetches: Any, feed_dict: Any) -> None:
        """To be called before each run; nothing is raised."""
        if self._rank == _TRAINS:
            return
        try:
            rank = self._rank_of(session.graph, fetches)
            if rank > self._rank:
                _record_session(self._passport, _raw(session), flat_feeds(session.graph, feed_dict))
                self._passport.save()
                self._rank = rank
        except Exception as error:  # whatever a script's session or graph is, its training goes on
            say(f"the passport lacks the hashes of variables and inputs: {reason_of(error)}")
            self._rank = _TRAINS

    def _rank_of(self, graph: Any, fetches: Any) -> int:
        fetched = [element_of(graph, each) for each in flat_fetches(fetches)]
        initializers = initializers_of(graph)
        if all(is_setup(each, initializers) for each in fetched):
            return 0
        return _SOME if train_ops_of(graph, fetched) == [] else _TRAINS


def record_replay(record: Passport, graph: Any, checkpoint: str, feeds: Mapping[Any, Any]) -> None:
    """Fill the passport of a replayed step: its variables are those of the checkpoint. Nothing is raised."""
    try:
        reader = tensorflow_v1().train.load_checkpoint(checkpoint)
        shapes = reader.get_variable_to_shape_map()
        names = [each.op.name for each in graph.get_collection(tensorflow_v1().GraphKeys.GLOBAL_VARIABLES)]
        _record_graph(record, graph)
        record.set_tensors("variables", ((name, reader.get_tensor(name)) for name in names if name in shapes))
        record.set_tensors("batch", ((tensor.name, value) for tensor, value in feeds.items()))
        record.save()
    except Exception as error:  # as above: the replay is what was asked for
        say(f"the passport lacks the hashes of variables and inputs: {reason_of(error)}")


def recording_hook() -> Any:
    """A hook for `EstimatorSpec(training_hooks=[…])` that fills the passport of the run."""
    base = tensorflow_v1().train.SessionRunHook
    return type("PassportHook", (_Hook, base), {})()


class _Hook:
    """Called by TensorFlow around each run of an Estimator."""

    _recorder: Optional[Recorder] = None

    def before_run(self, run_context: Any) -> None:
        """Called by TensorFlow."""
        if self._recorder is None:
            self._recorder = Recorder(begun() or begin(BENCHMARK))
        arguments = run_context.original_args
        self._recorder.before_run(run_context.session, arguments.fetches, arguments.feed_dict)


def _record_session(record: Passport, session: Any, feeds: Iterable[Tuple[Any, Any]]) -> None:
    graph = session.graph
    feeds = list(feeds)
    _record_graph(record, graph)
    record.set_tensors("variables", _session_variables(record, session))
    record.set_tensors("batch", ((tensor.name, value) for tensor, value in _numbers(record, feeds)))


def _record_graph(record: Passport, graph: Any) -> None:
    """Seeds and optimizers."""
    random = [op for op in graph.get_operations() if "seed" in op.node_def.attr and "seed2" in op.node_def.attr]
    unseeded = sum(op.node_def.attr["seed"].i == 0 and op.node_def.attr["seed2"].i == 0 for op in random)
    record.set_seeds(graph.seed, unseeded)
    record.set_optimizers(optimizers_of(graph, tensorflow_module("python.framework.tensor_util").constant_value))


def _session_variables(record: Passport, session: Any) -> Iterator[Named]:
    """Each variable with its value, many in one run: on the NPU each run is a graph to compile."""
    variables = session.graph.get_collection(tensorflow_v1().GraphKeys.GLOBAL_VARIABLES)
    for some in _in_chunks(variables):
        for variable, value in _fetched(record, session, some):
            yield variable.op.name, value


def _in_chunks(variables: Iterable[Any]) -> Iterator[List[Any]]:
    """Variables in order, so many together as `_MOST_BYTES` hold; a larger one, or one of unknown size, alone."""
    some: List[Any] = []
    size = 0
    for variable in variables:
        elements = variable.shape.num_elements()
        own = _MOST_BYTES if elements is None else elements * variable.dtype.base_dtype.size
        if some and size + own > _MOST_BYTES:
            yield some
            some, size = [], 0
        some.append(variable)
        size += own
    if some:
        yield some


def _fetched(record: Passport, session: Any, variables: List[Any]) -> Iterator[Tuple[Any, Any]]:
    """The values of variables in one run; those of each half where one of them has none."""
    try:
        values = session.run(variables)
    except tensorflow_v1().errors.OpError as error:
        if len(variables) == 1:
            record.leave_out(variables[0].op.name, reason_of(error))
            return
        middle = len(variables) // 2
        for half in (variables[:middle], variables[middle:]):
            for pair in _fetched(record, session, half):
                yield pair
    else:
        for pair in zip(variables, values):
            yield pair


def _numbers(record: Passport, feeds: List[Tuple[Any, Any]]) -> Iterator[Tuple[Any, Any]]:
    """What is fed as arrays of the tensors' types, which is what is computed with."""
    np = numpy()
    for tensor, value in feeds:
        if tensor.dtype.name in ("string", "resource", "variant"):
            yield tensor, value
            continue
        try:
            yield tensor, np.asarray(value, dtype=tensor.dtype.as_numpy_dtype)
        except (TypeError, ValueError) as error:
            record.leave_out(tensor.name, reason_of(error))


def _record_model(record: Passport, model: Any, batch: Any) -> None:
    variables = _variables_of(model) or []
    record.set_tensors("variables", _unique((str(each.name).split(":")[0], each) for each in variables))
    record.set_tensors("batch", _unique(_flat_batch(batch, "batch")) if batch is not None else ())
    optimizer = getattr(model, "optimizer", None)
    settings: Optional[Callable[[], Dict[str, Any]]] = getattr(optimizer, "get_config", None)
    if settings is not None:
        values = {str(name): plain(value) for name, value in settings().items() if name != "name"}
        record.set_optimizers(
            [{"type": type(optimizer).__name__, "hyperparameters": values, "variables": len(variables)}]
        )


def _variables_of(model: Any) -> Optional[List[Any]]:
    """The variables of a model or module, or of a list of them; None for what has none."""
    listed = model if isinstance(model, (list, tuple)) else getattr(model, "variables", None)
    if listed is None or callable(listed) or not all(hasattr(each, "name") for each in listed):
        return None
    return list(listed)


def _flat_batch(batch: Any, name: str) -> Iterator[Named]:
    if isinstance(batch, Mapping):
        for key in batch:
            yield from _flat_batch(batch[key], f"{name}/{key}")
    elif isinstance(batch, (list, tuple)):
        for number, each in enumerate(batch):
            yield from _flat_batch(each, f"{name}/{number}")
    else:
        yield name, batch


def _unique(named: Iterable[Named]) -> Iterator[Named]:
    """Names that stand twice get a number."""
    counts: Dict[str, int] = {}
    for name, value in named:
        counts[name] = counts.get(name, 0) + 1
        yield (name if counts[name] == 1 else f"{name}#{counts[name]}"), value


def _raw(session: Any) -> Any:
    """The plain session below a monitored one, whose runs call no hooks."""
    inner = getattr(session, "_tf_sess", None)
    return inner() if callable(inner) else session


def side_of(session: Any) -> Optional[str]:
    """The side that a session's config says; None where it says nothing."""
    options = getattr(getattr(getattr(_raw(session), "_config", None), "graph_options", None), "rewrite_options", None)
    names = [each.name for each in getattr(options, "custom_optimizers", ())]
    return NPU if "NpuOptimizer" in names else None
