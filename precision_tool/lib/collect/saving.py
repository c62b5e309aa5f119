"""The session that saves a training step: fed inputs, then a checkpoint.

Saving is a side job: once the session is made, what goes wrong with it is a line on stderr, and the training goes on.
This module runs on Python 3.7.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Callable, Iterator, List, Optional, Set, Tuple

from precision_tool.lib.collect.feeds import FeedWriter
from precision_tool.lib.collect.packages import ScriptError, reason_of, say, tensorflow_v1
from precision_tool.lib.settings import load_settings
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
#: What the value of a fed variable may have gone through.
_PLACEHOLDER_TYPES = ("Placeholder", "PlaceholderV2", "PlaceholderWithDefault")
_UNCHANGED_TYPES = ("Identity", "Cast", "Reshape")
#: What reads a Saver's file name.
_SAVER_TYPES = (*_RESTORE_TYPES, "Save", "SaveSlices", "SaveV2", "ShardedFilename", "MergeV2Checkpoints")
#: What reads the handle of an iterator.
_HANDLE_TYPES = ("IteratorFromStringHandle", "IteratorFromStringHandleV2")

#: Begins the name of the folder that inputs wait in until the step is complete.
_WAITING = ".input_"
#: A folder just made may not be locked yet.
_SECONDS_TO_LOCK = 60.0


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
        try:
            return step.run(self, fetches, feed_dict, lambda: parent.run(fetches, feed_dict, options, run_metadata))
        finally:
            if not step.finished:
                self._step = step

    def close(self) -> None:
        """As `tf.Session.close`."""
        step, self._step = self._step, None
        if step is not None:
            step.close()
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
        self.finished = False  # saved, or given up
        self._folder = folder
        self._waiting: Optional[_WaitingFolder] = None
        self._writer: Optional[FeedWriter] = None
        self._savers = _Savers()
        self._said: Set[str] = set()
        _tidy(folder)

    def run(self, session: Any, fetches: Any, feed_dict: Any, run: Callable[[], Any]) -> Any:
        """One run of the session; saves its inputs, and when it trains, a checkpoint after it."""
        graph = session.graph
        try:
            fed = list(_flat_feeds(graph, feed_dict))
        except (KeyError, TypeError, ValueError):
            return run()  # TensorFlow says it better
        fetched = [_element(graph, each) for each in _flat(fetches)]
        if any(_is_read_by(tensor, _SAVER_TYPES) for tensor, _ in fed):
            return run()
        initializers = _initializers(graph)
        if all(_is_setup(each, initializers) for each in fetched):
            self._savers.prepare(graph)
            needed = ancestors([getattr(each, "op", each) for each in fetched])
            if any(each.type in _SETUP_TYPES for each in needed):  # the replay sets iterators up again
                self._save_feeds(fed)
            return run()
        train_ops = _train_ops(graph, fetched)
        if train_ops is not None and not train_ops:
            return run()
        saver, reason = self._savers.find(graph)
        if saver is None:
            self._say_once(f"the step is not saved: {reason}")
            return run()
        self._save_feeds(fed)
        result = run()
        if not self.finished:
            self._publish(session, saver, train_ops)
        return result

    def close(self) -> None:
        """The session ends, and the step never came."""
        if not self._said:
            say("no step is saved: no run has trained; what trains is what the collection train_op holds")
        self._give_up()

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            say(text)

    def _fail(self, what: str, error: OSError) -> None:
        self._say_once(f"the step is not saved: {self._folder}: {what} cannot be saved ({error.strerror or error})")
        self._give_up()

    def _give_up(self) -> None:
        """No more of this, and nothing temporary stays."""
        self.finished = True
        if self._waiting is not None:
            self._waiting.remove()
            self._waiting = None

    def _save_feeds(self, fed: List[Tuple[Any, Any]]) -> None:
        try:
            if self._waiting is None or self._writer is None:
                self._waiting = _WaitingFolder(self._folder)
                self._writer = FeedWriter(self._waiting.inputs)
            for tensor, value in fed:
                if _is_read_by(tensor, _HANDLE_TYPES):
                    self._writer.leave_out(tensor, "an iterator's handle, which only its own session knows")
                else:
                    self._writer.save(tensor, value)
        except OSError as error:
            self._fail("the fed inputs", error)

    def _publish(self, session: Any, saver: Any, train_ops: Optional[List[str]]) -> None:
        v1 = tensorflow_v1()
        if self._writer is None or self._waiting is None:
            raise RuntimeError("published before anything was saved")
        checkpoint = self._folder / CHECKPOINT_NAME
        try:
            # Names are relative: data folders are moved to other machines.
            saver.save(session, str(checkpoint), latest_filename="checkpoint", write_state=True)
        except (v1.errors.OpError, ValueError, OSError) as error:
            if _is_uninitialized(error):  # then it was no training, which may come yet
                hint = "initialise all variables first; a later run may be saved"
                self._say_once(f"the step is not saved: {reason_of(error)}; {hint}")
                return
            self._say_once(f"the step is not saved: {checkpoint} cannot be saved ({reason_of(error)})")
            self._give_up()
            return
        try:
            names = self._writer.finish(train_ops or [])
            target = self._folder / "input"
            if target.exists():
                os.rename(str(target), str(self._waiting.path / "old"))
            os.rename(str(self._writer.folder), str(target))
        except OSError as error:
            self._fail("the fed inputs", error)
            return
        self._give_up()
        inputs = "1 fed input" if len(names) == 1 else f"{len(names)} fed inputs"
        then = "precision-tool train replays this step"
        if not session.graph.get_collection(v1.GraphKeys.TRAIN_OP):
            then = "the collection train_op is empty: precision-tool train needs the training op there"
        say(f"saved {inputs} and checkpoint {checkpoint}; {then}")
        for name, reason in self._writer.left_out.items():
            say(f"fed input {name} is not saved: {reason}")


class _WaitingFolder:
    """The folder that inputs wait in. Locked while its process lives, so that what a killed one left is known."""

    def __init__(self, parent: Path) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=_WAITING, dir=str(parent)))
        self._handle = os.open(str(self.path), os.O_RDONLY | os.O_DIRECTORY)
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.inputs = self.path / "input"
        self.inputs.mkdir()

    def remove(self) -> None:
        """Remove it with all that is in it."""
        shutil.rmtree(str(self.path), ignore_errors=True)
        os.close(self._handle)


def _tidy(folder: Path) -> None:
    """Remove what scripts that were killed have left in `folder`."""
    for path in folder.glob(_WAITING + "*"):
        try:
            handle = os.open(str(path), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if time.time() - os.fstat(handle).st_mtime > _SECONDS_TO_LOCK:
                shutil.rmtree(str(path), ignore_errors=True)
        except OSError:  # in use; or nobody can tell
            pass
        finally:
            os.close(handle)


class _Savers:
    """What saves all variables of a graph. Made while the graph can still be changed."""

    def __init__(self) -> None:
        self._saver: Any = None
        self._variables: List[Any] = []
        self._reason = ""

    def prepare(self, graph: Any) -> None:
        """Make a Saver of what is to be saved by now. Its ops have names of their own, so the user's keep theirs."""
        v1 = tensorflow_v1()
        keys = (v1.GraphKeys.GLOBAL_VARIABLES, v1.GraphKeys.SAVEABLE_OBJECTS)
        variables = [each for key in keys for each in graph.get_collection(key)]
        if graph.finalized or [id(each) for each in variables] == [id(each) for each in self._variables]:
            return
        self._saver, self._variables, self._reason = None, variables, ""
        with graph.as_default():
            try:
                self._saver = v1.train.Saver(save_relative_paths=True, name="precision_tool_save")
            except (TypeError, ValueError) as error:
                self._reason = f"no checkpoint can be made ({reason_of(error)})"

    def find(self, graph: Any) -> Tuple[Optional[Any], str]:
        """A Saver of all variables; or None, and why there is none."""
        v1 = tensorflow_v1()
        self.prepare(graph)
        if not graph.finalized:
            return self._saver, self._reason or "no checkpoint can be made (No variables to save)"
        if self._saver is not None and _covers(graph, self._saver.saver_def):
            return self._saver, ""
        for each in graph.get_collection(v1.GraphKeys.SAVERS):
            definition = getattr(each, "saver_def", None)
            if definition is not None and _covers(graph, definition):
                own = type(definition)()
                own.CopyFrom(definition)
                own.max_to_keep = 0  # the user's Saver counts, and deletes, its own files only, and this one none
                return v1.train.Saver(saver_def=own, save_relative_paths=True), ""
        return None, (
            "the graph is finalized, and has no Saver of all its variables; "
            "tf.add_to_collection('savers', tf.train.Saver()) before it is finalized"
        )


def _covers(graph: Any, definition: Any) -> bool:
    """Whether a Saver saves every variable of the graph."""
    v1 = tensorflow_v1()
    try:
        saving = graph.as_graph_element(definition.save_tensor_name)
    except (KeyError, ValueError):
        return False
    reached = ancestors([getattr(saving, "op", saving)])
    return all(each.op in reached for each in graph.get_collection(v1.GraphKeys.GLOBAL_VARIABLES))


def _is_uninitialized(error: Exception) -> bool:
    """Whether saving failed for a variable without a value: files fail with the same kind of error."""
    failed = isinstance(error, tensorflow_v1().errors.FailedPreconditionError)
    return failed and any(text in str(error) for text in ("uninitialized", "Could not find variable"))


def _flat(fetches: Any) -> Iterator[Any]:
    """The single fetches of what `Session.run` takes."""
    if isinstance(fetches, dict):
        fetches = list(fetches.values())
    if isinstance(fetches, (list, tuple)):
        for each in fetches:
            yield from _flat(each)
    else:
        yield from tensorflow_v1().nest.flatten(fetches, expand_composites=True)  # sparse ones are three


def _element(graph: Any, fetch: Any) -> Any:
    """The op or tensor that a fetch means; None for what is of no known kind, or a mistake."""
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


def _is_read_by(tensor: Any, types: Tuple[str, ...]) -> bool:
    """Whether a fed tensor is a text, such as a Saver's file name, that ops of these types read."""
    if tensor.dtype.name != "string":
        return False
    readers = list(tensor.consumers())
    for reader in list(readers):  # one op between
        readers += [other for output in reader.outputs for other in output.consumers()]
    return any(reader.type in types for reader in readers)


def _initializers(graph: Any) -> Set[str]:
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
    if element.type in _SETUP_TYPES or element.name in initializers or _is_assigned_setup(element):
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
    return source.type in _RESTORE_TYPES + _PLACEHOLDER_TYPES


def _train_ops(graph: Any, fetched: List[Any]) -> Optional[List[str]]:
    """Names of the training ops that a run reaches. None where that cannot be told: then any run may be the one."""
    v1 = tensorflow_v1()
    wanted = {getattr(each, "op", each) for each in graph.get_collection(v1.GraphKeys.TRAIN_OP)}
    if not wanted or None in fetched:
        return None
    reached = ancestors([getattr(each, "op", each) for each in fetched])
    return sorted(each.name for each in wanted & reached)


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
