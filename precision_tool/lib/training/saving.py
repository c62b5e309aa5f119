"""The session that saves a training step: fed inputs, then a checkpoint. This module runs on Python 3.7."""

import os
import tempfile
import threading
from pathlib import Path
from typing import Any, Callable, Iterator, List, Optional, Set, Tuple

from precision_tool.lib.errors import OutputError
from precision_tool.lib.settings import load_settings
from precision_tool.lib.training.feeds import FeedWriter
from precision_tool.lib.training.packages import ScriptError, say, tensorflow_v1
from precision_tool.lib.workspace import Workspace, make_writable

#: Name of the checkpoint, below `tf/checkpoints`.
CHECKPOINT_NAME = "ckpt"

#: Ops that only prepare a run.
_SETUP_TYPES = (
    "MakeIterator",
    "InitializeTable",
    "InitializeTableV2",
    "InitializeTableFromTextFile",
    "InitializeTableFromTextFileV2",
    "LookupTableImport",
    "LookupTableImportV2",
)
_ASSIGN_TYPES = ("Assign", "AssignVariableOp")
_RESTORE_TYPES = ("Restore", "RestoreSlice", "RestoreV2")
#: What reads a Saver's file name.
_SAVER_TYPES = (*_RESTORE_TYPES, "Save", "SaveSlices", "SaveV2", "ShardedFilename", "MergeV2Checkpoints")


class _SavingSession:
    """What PrecisionTfSession adds to `tf.Session`."""

    _step: Optional["_Step"] = None
    _session: Any = None  # what TensorFlow frees, also of a session that could not be made

    def __init__(self, target: str = "", graph: Any = None, config: Any = None) -> None:
        v1 = tensorflow_v1()
        if graph is None and v1.executing_eagerly():
            raise ScriptError(
                "PrecisionTfSession: TensorFlow runs eagerly, and there is no graph to run",
                "call tf.compat.v1.disable_eager_execution() first thing in the script, or give graph=",
            )
        self._step = _Step(make_writable(Workspace(load_settings().data).tf_checkpoint_dir))
        self._guard = threading.Lock()
        parent: Any = super()
        parent.__init__(target, graph, config)

    def run(self, fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None) -> Any:
        """As `tf.Session.run`."""
        parent: Any = super()
        with self._guard:  # one thread saves, and its own runs of the Saver pass
            step, self._step = self._step, None
        if step is None:
            return parent.run(fetches, feed_dict, options, run_metadata)
        finished = False
        try:
            result = step.run(self, fetches, feed_dict, lambda: parent.run(fetches, feed_dict, options, run_metadata))
            finished = step.saved
        finally:
            if not finished:
                self._step = step
        return result

    def close(self) -> None:
        """As `tf.Session.close`."""
        step, self._step = self._step, None
        if step is not None:
            step.give_up()
        parent: Any = super()
        parent.close()


def session_class() -> type:
    """The class `PrecisionTfSession`. Imports TensorFlow."""
    documentation = "A `tf.Session` that saves its first training step; see `precision_tool.tf_session`."
    attributes = {"__doc__": documentation, "__module__": "precision_tool.tf_session"}
    return type("PrecisionTfSession", (_SavingSession, tensorflow_v1().Session), attributes)


class _Step:
    """The step to save: waits for the run that trains."""

    def __init__(self, folder: Path) -> None:
        self.saved = False
        self._folder = folder
        self._temporary: Optional[tempfile.TemporaryDirectory[str]] = None
        self._writer: Optional[FeedWriter] = None

    def run(self, session: Any, fetches: Any, feed_dict: Any, run: Callable[[], Any]) -> Any:
        """One run of the session; saves its inputs, and when it trains, a checkpoint after it."""
        graph = session.graph
        try:
            fed = list(_flat_feeds(graph, feed_dict))
        except (KeyError, TypeError, ValueError):
            return run()  # TensorFlow says it better
        fetched = [_element(graph, each) for each in _flat(fetches)]
        if any(_is_saver_name(tensor) for tensor, _ in fed):
            return run()
        if all(_is_setup(each, _initializers(graph)) for each in fetched):
            self._save_feeds(fed)  # of iterators and tables: the replay sets them up again
            return run()
        if not fed and not _trains(graph, fetched):
            return run()
        saver = _saver(graph)
        self._save_feeds(fed)
        result = run()
        self._publish(session, saver)
        return result

    def give_up(self) -> None:
        """Remove what was saved of a step that never came."""
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None

    def _save_feeds(self, fed: List[Tuple[Any, Any]]) -> None:
        try:
            if self._temporary is None:
                self._temporary = tempfile.TemporaryDirectory(prefix=".input_", dir=str(self._folder))
                folder = Path(self._temporary.name) / "input"
                folder.mkdir()
                self._writer = FeedWriter(folder)
            for tensor, value in fed:
                if self._writer is not None:
                    self._writer.save(tensor, value)
        except OSError as error:
            raise OutputError(f"{self._folder}: the fed inputs cannot be saved ({error.strerror})") from None

    def _publish(self, session: Any, saver: Any) -> None:
        v1 = tensorflow_v1()
        if self._writer is None or self._temporary is None:
            raise RuntimeError("published before anything was saved")
        checkpoint = self._folder / CHECKPOINT_NAME
        try:
            # Names are relative: data folders are moved to other machines.
            saver.save(session, str(checkpoint), latest_filename="checkpoint", write_state=True)
        except (v1.errors.OpError, ValueError) as error:
            self.give_up()
            reason = str(error).splitlines()[0]
            raise ScriptError(f"{checkpoint} cannot be saved ({reason})", "initialise all variables first") from None
        try:
            names = self._writer.finish()
            target = self._folder / "input"
            if target.exists():
                os.rename(str(target), str(Path(self._temporary.name) / "old"))
            os.rename(str(self._writer.folder), str(target))
        except OSError as error:
            raise OutputError(f"{self._folder}: the fed inputs cannot be saved ({error.strerror})") from None
        self.saved = True
        self.give_up()
        inputs = "1 fed input" if len(names) == 1 else f"{len(names)} fed inputs"
        say(f"saved {inputs} and checkpoint {checkpoint}; precision-tool train replays this step")
        for name, reason in self._writer.left_out.items():
            say(f"fed input {name} is not saved: {reason}")


def _saver(graph: Any) -> Any:
    """A Saver of all that `graph` keeps. Its ops have names of their own, so the user's keep theirs."""
    v1 = tensorflow_v1()
    if graph.finalized:
        savers = graph.get_collection(v1.GraphKeys.SAVERS)
        if not savers:
            raise ScriptError(
                "PrecisionTfSession: the graph is finalized, and has no Saver to save it with",
                "make a tf.train.Saver() before it is finalized",
            )
        return savers[0]
    with graph.as_default():
        try:
            return v1.train.Saver(save_relative_paths=True, name="precision_tool_save")
        except ValueError as error:
            raise ScriptError(f"PrecisionTfSession: no checkpoint can be saved ({error})", "train something") from None


def _flat(fetches: Any) -> Iterator[Any]:
    """The single fetches of what `Session.run` takes."""
    if isinstance(fetches, dict):
        fetches = list(fetches.values())
    if isinstance(fetches, (list, tuple)):
        for each in fetches:
            yield from _flat(each)
    else:
        yield fetches


def _element(graph: Any, fetch: Any) -> Any:
    """The op or tensor that a fetch means; None when it is of several tensors, or a mistake."""
    try:
        return graph.as_graph_element(fetch, allow_tensor=True, allow_operation=True)
    except (KeyError, TypeError, ValueError):
        return None


def _flat_feeds(graph: Any, feed_dict: Any) -> Iterator[Tuple[Any, Any]]:
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


def _is_saver_name(tensor: Any) -> bool:
    """Whether a fed tensor is the file name of a Saver, which restores or saves with this run."""
    if tensor.dtype.name != "string":
        return False
    readers = list(tensor.consumers())
    for reader in list(readers):  # one op between
        readers += [other for output in reader.outputs for other in output.consumers()]
    return any(reader.type in _SAVER_TYPES for reader in readers)


def _initializers(graph: Any) -> Set[str]:
    v1 = tensorflow_v1()
    keys = (v1.GraphKeys.GLOBAL_VARIABLES, v1.GraphKeys.LOCAL_VARIABLES)
    variables = [each for key in keys for each in graph.get_collection(key)]
    return {each.initializer.name for each in variables if getattr(each, "initializer", None) is not None}


def _is_setup(element: Any, initializers: Set[str], depth: int = 0) -> bool:
    """Whether an op only initialises variables, tables and iterators, or restores them."""
    if not hasattr(element, "control_inputs"):  # a tensor: somebody wants its value
        return False
    if element.type in _SETUP_TYPES or element.name in initializers:
        return True
    if element.type in _ASSIGN_TYPES:
        source = element.inputs[1].op
        while source.type == "Identity":
            source = source.inputs[0].op
        return source.type in _RESTORE_TYPES
    grouped = element.type == "NoOp" and depth < 10  # tf.group groups by device, then all
    return grouped and all(_is_setup(each, initializers, depth + 1) for each in element.control_inputs)


def _trains(graph: Any, fetched: List[Any]) -> bool:
    """Whether the run reaches a training op. True where that cannot be told: then any run may be the one."""
    v1 = tensorflow_v1()
    wanted = {getattr(each, "op", each) for each in graph.get_collection(v1.GraphKeys.TRAIN_OP)}
    if not wanted or None in fetched:
        return True
    return bool(wanted & ancestors([getattr(each, "op", each) for each in fetched]))


def ancestors(operations: List[Any]) -> Set[Any]:
    """Every op that must run for `operations`, themselves included."""
    found: Set[Any] = set()
    waiting = list(operations)
    while waiting:
        operation = waiting.pop()
        if operation not in found:
            found.add(operation)
            waiting += [tensor.op for tensor in operation.inputs]
            waiting += operation.control_inputs
    return found
