"""The fed inputs of a step: what was fed, into `.npy` files, and back. This module runs on Python 3.7.

`feeds.json` beside the files says which tensor each file is: names alone do not (`a/b:0` and `a_b:0`).
"""

import contextlib
import fcntl
import io
import json
import os
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, BinaryIO, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from precision_tool.lib.data.settings import load_settings
from precision_tool.lib.data.workspace import Workspace, make_writable
from precision_tool.lib.io.files import open_binary, read_text
from precision_tool.lib.messages import Message, render
from precision_tool.lib.messages.errors import FormatError, PrecisionToolError
from precision_tool.lib.training.packages import ScriptError, numpy, reason_of, say, tensorflow_v1
from precision_tool.lib.training.passport import BENCHMARK, NPU, Recorder, begin, begun, side_of
from precision_tool.lib.training.session_runs import RESTORE_TYPES, SETUP_TYPES, ancestors, flat_feeds, purpose_of

MANIFEST_NAME = "feeds.json"

_MAX_MANIFEST = 1 << 24
#: numpy's parser of headers takes time with the square of their length; what it writes itself is far shorter.
_MAX_HEADER = 1 << 10


class SavedFeed(NamedTuple):
    """A fed tensor that was saved: `file` lies beside the manifest."""

    tensor: str
    file: str


class SavedFeeds(NamedTuple):
    """All that is known of the feeds of a step; `left_out` has a reason for each tensor that was not saved.

    `train_ops` are the training ops that the saved run reached; empty where that is not known.
    """

    folder: Path
    saved: Tuple[SavedFeed, ...]
    left_out: Mapping[str, str]
    train_ops: Tuple[str, ...] = ()


def file_name(tensor: str) -> str:
    """The documented name of the file of a fed tensor."""
    return tensor.replace("/", "_").replace(":", "_") + ".npy"


class FeedWriter:
    """Saves feeds into a folder. A tensor fed again replaces what was saved of it before."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: Dict[str, str] = {}
        self.left_out: Dict[str, Message] = {}

    def save(self, tensor: Any, value: Any) -> None:
        """Save what is fed to `tensor`; what `.npy` cannot hold is left out with a reason. Raises OSError."""
        np = numpy()
        array = _as_array(tensor, value)
        if isinstance(array, Message):
            self.leave_out(tensor, array)
            return
        self.left_out.pop(tensor.name, None)
        name, number = file_name(tensor.name), 1
        while any(used == name and other != tensor.name for other, used in self._files.items()):
            number += 1
            name = f"{file_name(tensor.name)[:-4]}.{number}.npy"
        np.save(str(self.folder / name), array, allow_pickle=False)
        self._files[tensor.name] = name

    def leave_out(self, tensor: Any, reason: Message) -> None:
        """What is fed to `tensor` is not saved; the manifest says why."""
        self.left_out[tensor.name] = reason

    def finish(self, train_ops: Sequence[str] = ()) -> List[str]:
        """Write the manifest; returns the names of the saved tensors."""
        feeds = [{"tensor": tensor, "file": name} for tensor, name in self._files.items()]
        left_out = {name: render(reason, "en") for name, reason in self.left_out.items()}
        content = {"version": 1, "feeds": feeds, "left_out": left_out, "train_ops": list(train_ops)}
        (self.folder / MANIFEST_NAME).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        return list(self._files)


def _as_array(tensor: Any, value: Any) -> Any:
    """What is fed as an array, or a message: why there is none."""
    np = numpy()
    if tensor.dtype.name == "string":
        array = np.asarray(value, dtype=object)
        flat = [item.encode("utf-8") if isinstance(item, str) else item for item in array.ravel().tolist()]
        if not all(isinstance(item, bytes) for item in flat):
            return Message("note.training.saving.no_text")
        if any(item.endswith(b"\0") for item in flat):
            return Message("note.training.saving.zero_byte")  # numpy cuts it off
        return np.array(flat, dtype=bytes).reshape(array.shape)
    try:
        array = np.asarray(value, dtype=tensor.dtype.as_numpy_dtype)
    except (TypeError, ValueError) as error:
        return Message("note.training.saving.no_array", dtype=tensor.dtype.name, reason=str(error))
    if array.dtype.hasobject:
        return Message("note.training.saving.no_numbers", dtype=tensor.dtype.name)
    return array


def read_feeds(folder: Path, tensors: List[str]) -> SavedFeeds:
    """What was saved in `folder`. Without a manifest, files are found by the documented names of `tensors`."""
    path = folder / MANIFEST_NAME
    if not os.path.lexists(str(path)):
        named = ((tensor, file_name(tensor)) for tensor in tensors)
        return SavedFeeds(folder, tuple(SavedFeed(*pair) for pair in named if (folder / pair[1]).is_file()), {})
    try:
        content = json.loads(read_text(str(path), _MAX_MANIFEST))
        saved = tuple(SavedFeed(str(each["tensor"]), str(each["file"])) for each in content["feeds"])
        left_out = {str(name): str(reason) for name, reason in content["left_out"].items()}
        train_ops = tuple(str(name) for name in content.get("train_ops", ()))
        if any("/" in each.file for each in saved):
            raise ValueError("a file outside the folder")
    except PrecisionToolError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, MemoryError) as error:
        raise FormatError.of(path, "training.saving.damaged", reason=reason_of(error)) from None
    return SavedFeeds(folder, saved, left_out, train_ops)


def load_feed(folder: Path, feed: SavedFeed, tensor: Any) -> Any:
    """The array of a saved feed, of the type of the tensor it is for. Raises FormatError."""
    np = numpy()
    path = folder / feed.file
    try:
        with open_binary(str(path)) as file:
            array = _read_array(file)
    except PrecisionToolError:
        raise
    except Exception as error:  # numpy's reading of a header raises whatever Python makes of a damaged literal
        raise FormatError.of(path, "training.saving.unreadable", reason=reason_of(error)) from None
    dtype = np.dtype(tensor.dtype.as_numpy_dtype)
    if array.dtype.kind == "V" and array.dtype.itemsize == dtype.itemsize:
        return array.view(dtype)  # numpy has no name for bfloat16
    return array


def _read_array(file: BinaryIO) -> Any:
    """The array of a `.npy` file, whose header must agree with the file's size before anything is made for it."""
    np = numpy()
    formats = np.lib.format
    head = io.BytesIO(file.read(_MAX_HEADER))
    readers = {(1, 0): formats.read_array_header_1_0, (2, 0): formats.read_array_header_2_0}
    version = formats.read_magic(head)  # a .npz archive has another one
    if version not in readers:
        raise ValueError(f"version {version[0]}.{version[1]} of .npy")
    shape, fortran_order, dtype = readers[version](head)
    if dtype.hasobject:
        raise ValueError("an array of Python objects, which would have to be unpickled")
    count = 1
    for size in shape:
        if size < 0:
            raise ValueError(f"shape {shape} has a negative dimension")
        count *= int(size)
    needed, there = count * dtype.itemsize, os.fstat(file.fileno()).st_size - head.tell()
    if needed > there:
        raise ValueError(f"shape {list(shape)} of {dtype} needs {needed} bytes, and {there} are there")
    file.seek(head.tell())
    array = np.fromfile(file, dtype=dtype, count=count)
    return array.reshape(shape, order="F" if fortran_order else "C")


# --- The session that saves a training step: fed inputs, then a checkpoint ---


#: Name of the checkpoint, below `tf/checkpoints`.
CHECKPOINT_NAME = "ckpt"

#: What reads a Saver's file name.
_SAVER_TYPES = (*RESTORE_TYPES, "Save", "SaveSlices", "SaveV2", "ShardedFilename", "MergeV2Checkpoints")
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
            raise ScriptError("training.saving.eager")
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
        step.record(self, fetches, feed_dict)
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
        self._said: Set[Message] = set()
        self._recorder: Optional[Recorder] = None
        _tidy(folder)

    def record(self, session: Any, fetches: Any, feed_dict: Any) -> None:
        """Fill the passport of the run; on the NPU only of one that dumps."""
        if self._recorder is None:
            passport = begun(NPU) if side_of(session) == NPU else begin(BENCHMARK)
            self._recorder = Recorder(passport) if passport is not None else None
        if self._recorder is not None:
            self._recorder.before_run(session, fetches, feed_dict)

    def run(self, session: Any, fetches: Any, feed_dict: Any, run: Callable[[], Any]) -> Any:
        """One run of the session; saves its inputs, and when it trains, a checkpoint after it."""
        graph = session.graph
        try:
            feeds = list(flat_feeds(graph, feed_dict))
        except (KeyError, TypeError, ValueError):
            return run()  # TensorFlow says it better
        if any(_is_read_by(tensor, _SAVER_TYPES) for tensor, _ in feeds):
            return run()
        purpose = purpose_of(graph, fetches)
        if purpose.is_setup:
            self._savers.prepare(graph)
            needed = ancestors([getattr(each, "op", each) for each in purpose.fetched])
            if any(each.type in SETUP_TYPES for each in needed):  # the replay sets iterators up again
                self._save_feeds(feeds)
            return run()
        if purpose.train_ops == []:
            return run()
        saver, reason = self._savers.find(graph)
        if saver is None:
            self._say_once("saving.not_saved", reason=reason)
            return run()
        self._save_feeds(feeds)
        result = run()
        if not self.finished:
            self._publish(session, saver, purpose.train_ops)
        return result

    def close(self) -> None:
        """The session ends, and the step never came."""
        if not self._said:
            say("saving.no_step")
        self._give_up()

    def _say_once(self, kind: str, **fields: Any) -> None:
        said = Message(kind, **fields)
        if said not in self._said:
            self._said.add(said)
            say(kind, **fields)

    def _fail_feeds(self, error: OSError) -> None:
        self._say_once("saving.feeds", folder=str(self._folder), reason=error.strerror or str(error))
        self._give_up()

    def _give_up(self) -> None:
        """No more of this, and nothing temporary stays."""
        self.finished = True
        if self._waiting is not None:
            self._waiting.remove()
            self._waiting = None

    def _save_feeds(self, feeds: List[Tuple[Any, Any]]) -> None:
        try:
            if self._waiting is None or self._writer is None:
                self._waiting = _WaitingFolder(self._folder)
                self._writer = FeedWriter(self._waiting.inputs)
            for tensor, value in feeds:
                if _is_read_by(tensor, _HANDLE_TYPES):
                    self._writer.leave_out(tensor, Message("note.training.saving.handle"))
                else:
                    self._writer.save(tensor, value)
        except OSError as error:
            self._fail_feeds(error)

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
                self._say_once("saving.uninitialized", reason=reason_of(error))
                return
            self._say_once("saving.checkpoint", path=str(checkpoint), reason=reason_of(error))
            self._give_up()
            return
        try:
            names = self._writer.finish(train_ops or [])
            target = self._folder / "input"
            if target.exists():
                os.rename(str(target), str(self._waiting.path / "old"))
            os.rename(str(self._writer.folder), str(target))
        except OSError as error:
            self._fail_feeds(error)
            return
        self._give_up()
        has_train_op = bool(session.graph.get_collection(v1.GraphKeys.TRAIN_OP))
        say("saving.saved", inputs=len(names), path=str(checkpoint), train_op=has_train_op)
        for name, reason in self._writer.left_out.items():
            say("saving.left_out", name=name, reason=reason)


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
        self._reason: Optional[Message] = None

    def prepare(self, graph: Any) -> None:
        """Make a Saver of what is to be saved by now. Its ops have names of their own, so the user's keep theirs."""
        v1 = tensorflow_v1()
        keys = (v1.GraphKeys.GLOBAL_VARIABLES, v1.GraphKeys.SAVEABLE_OBJECTS)
        variables = [each for key in keys for each in graph.get_collection(key)]
        if graph.finalized or [id(each) for each in variables] == [id(each) for each in self._variables]:
            return
        self._saver, self._variables, self._reason = None, variables, None
        with graph.as_default():
            try:
                self._saver = v1.train.Saver(save_relative_paths=True, name="precision_tool_save")
            except (TypeError, ValueError) as error:
                self._reason = self._no_checkpoint(reason_of(error))

    @staticmethod
    def _no_checkpoint(reason: str) -> Message:
        return Message("note.training.saving.no_checkpoint", reason=reason)

    def find(self, graph: Any) -> Tuple[Optional[Any], Optional[Message]]:
        """A Saver of all variables; or None, and why there is none."""
        v1 = tensorflow_v1()
        self.prepare(graph)
        if not graph.finalized:
            return self._saver, self._reason or self._no_checkpoint("No variables to save")
        if self._saver is not None and _covers(graph, self._saver.saver_def):
            return self._saver, None
        for each in graph.get_collection(v1.GraphKeys.SAVERS):
            definition = getattr(each, "saver_def", None)
            if definition is not None and _covers(graph, definition):
                own = type(definition)()
                own.CopyFrom(definition)
                own.max_to_keep = 0  # the user's Saver counts, and deletes, its own files only, and this one none
                return v1.train.Saver(saver_def=own, save_relative_paths=True), None
        return None, Message("note.training.saving.finalized")


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


def _is_read_by(tensor: Any, types: Tuple[str, ...]) -> bool:
    """Whether a fed tensor is a text, such as a Saver's file name, that ops of these types read."""
    if tensor.dtype.name != "string":
        return False
    readers = list(tensor.consumers())
    for reader in list(readers):  # one op between
        readers += [other for output in reader.outputs for other in output.consumers()]
    return any(reader.type in types for reader in readers)
