"""What a training script gets to look inside a run: tfdbg around a session or an Estimator, and a Keras callback.

This module runs on Python 3.7.
"""

import contextlib
import fcntl
import importlib
import os
import shutil
from pathlib import Path
from typing import Any, Optional

from precision_tool.lib.data.settings import Settings, load_settings
from precision_tool.lib.data.workspace import Workspace, make_writable
from precision_tool.lib.messages import text
from precision_tool.lib.training.packages import ScriptError, tensorflow_module, tensorflow_v1
from precision_tool.lib.training.passport import BENCHMARK, Recorder, begin
from precision_tool.lib.training.saved_graph import GraphSaver


class _Claim:
    """One dump's sole right to a folder: it must be empty, and no other session, thread or process may use it.

    The lock on the folder goes with the process, so none is ever left behind.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._handle = os.open(str(folder), os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            raise ScriptError("training.dump_running", folder=str(folder)) from None
        except OSError:  # a file system without locks
            pass
        there = sorted(os.listdir(str(folder)))
        if there:
            self.release()
            raise ScriptError("training.dump_there", folder=str(folder), name=there[0], more=len(there) - 1 or None)

    def discard(self) -> None:
        """Remove what was dumped: all that is in the folder, which was empty."""
        for name in os.listdir(str(self.folder)):
            shutil.rmtree(str(self.folder / name), ignore_errors=True)

    def release(self) -> None:
        """Let others dump there. May be called again."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, OSError):
            self.release()


class _DumpingSession:
    """tfdbg's dumping session, sure of its folder until it is closed."""

    def __init__(self, session: Any, claim: _Claim, recorder: Recorder, saver: GraphSaver) -> None:
        self._claim = claim
        self._recorder = recorder
        self._saver = saver
        self._plain = session
        parent: Any = super()
        parent.__init__(session, str(claim.folder))

    def on_run_start(self, request: Any) -> Any:
        """Called by tfdbg before each run."""
        self._recorder.before_run(self._plain, request.fetches, request.feed_dict)
        self._saver.before_run(self._plain.graph)
        parent: Any = super()
        return parent.on_run_start(request)

    def on_run_end(self, request: Any) -> Any:
        """Called by tfdbg, which makes an error the value of the run: a script would go on with it."""
        parent: Any = super()
        response = parent.on_run_end(request)
        if request.tf_error is not None:
            raise request.tf_error
        return response

    def discard(self) -> None:
        """Close the session and remove what it has dumped."""
        self._claim.discard()
        self.close()

    def close(self) -> None:
        """Close the session; its folder is free for another dump."""
        parent: Any = super()
        parent.close()
        self._claim.release()


class _DumpingHook:
    """tfdbg's dumping hook. Looks at its folder with its first run: model functions make hooks that never run."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self._folder = folder
        self._settings = settings
        self._recorder: Optional[Recorder] = None
        self._saver = GraphSaver(settings)
        self._claim: Optional[_Claim] = None
        parent: Any = super()
        parent.__init__(str(folder))

    def before_run(self, run_context: Any) -> Any:
        """Called by TensorFlow."""
        if self._claim is None:
            self._claim = _Claim(self._folder)
            self._recorder = _recorder(self._settings)
        if self._recorder is not None:
            run_args = run_context.original_args
            self._recorder.before_run(run_context.session, run_args.fetches, run_args.feed_dict)
        self._saver.before_run(run_context.session.graph)
        parent: Any = super()
        return parent.before_run(run_context)

    def end(self, session: Any) -> None:
        """Called by TensorFlow."""
        if self._claim is not None:
            self._claim.release()


def sess_dump(session: Any, settings: Optional[Settings] = None) -> Any:
    """`session` under tfdbg: every run leaves a `run_*` folder in `tf/tf_debug`. Raises ScriptError, OutputError."""
    v1 = tensorflow_v1()
    if _is_closed(session):
        raise ScriptError("training.closed_session")
    graph = getattr(session, "graph", None)
    if v1.executing_eagerly() and (graph is None or not graph.get_operations()):
        raise ScriptError("training.eager", function="sess_dump")
    if graph is None or not hasattr(session, "run"):
        raise ScriptError(
            "training.not_a_session",
            function="sess_dump",
            expected="a session",
            type=type(session).__name__,
            example="sess = tf.Session()",
        )
    wrapper = tensorflow_module("python.debug.wrappers.dumping_wrapper").DumpingDebugWrapperSession
    settings = load_settings() if settings is None else settings
    claim = _Claim(_folder(settings))
    saver = GraphSaver(settings)
    return type("DumpingSession", (_DumpingSession, wrapper), {})(session, claim, _recorder(settings), saver)


def estimator_dump() -> Any:
    """A hook for `EstimatorSpec(training_hooks=[…])`: every run leaves a `run_*` folder in `tf/tf_debug`."""
    hook = tensorflow_module("python.debug.wrappers.hooks").DumpingDebugHook
    settings = load_settings()
    return type("DumpingHook", (_DumpingHook, hook), {})(_folder(settings), settings)


def _recorder(settings: Settings) -> Recorder:
    """Return what fills a new passport of the benchmark run, which is written with what is known by now."""
    passport = begin(BENCHMARK, settings)
    passport.save()
    return Recorder(passport)


def _folder(settings: Settings) -> Path:
    return make_writable(Workspace(settings.data).tf_debug_dir)


def _is_closed(session: Any) -> bool:
    """Whether a tf.Session or a MonitoredSession is closed: neither has a public word for it."""
    closed = getattr(session, "_closed", None)
    if closed is None:
        closed = getattr(session, "_is_closed", None)
    return bool(closed() if callable(closed) else closed)


# --- the Keras callback that prints the loss scale ---


class _PrintLossScale:
    """Prints the loss scale before every batch, and whether the last step was free of overflow.

    `optimizer` is the loss scale optimizer that the model is trained with. For TensorFlow 2:
    `model.fit(…, callbacks=[NpuPrintLossScaleCallBack(optimizer)])`.
    """

    def __init__(self, optimizer: Any, loss: Any = None) -> None:
        parent: Any = super()
        parent.__init__()
        if not hasattr(optimizer, "loss_scale"):
            raise ScriptError("training.no_loss_scale", optimizer=type(optimizer).__name__)
        self.optimizer = optimizer
        self.loss = loss

    def on_train_batch_begin(self, batch: int, logs: Optional[Any] = None) -> None:
        """Called by Keras."""
        scale = float(_value(self.optimizer.loss_scale))
        last = getattr(self.optimizer, "last_step_finite", None)
        finite = None if last is None else bool(_value(last))
        overflowed = None if finite is None else not finite
        line = text("note.training.loss_scale", batch=batch, scale=scale, finite=finite, overflowed=overflowed)
        print(f"precision_tool: {line}", flush=True)


def _value(variable: Any) -> Any:
    if callable(variable):
        variable = variable()
    return variable.numpy() if hasattr(variable, "numpy") else variable


def loss_scale_callback() -> type:
    """The class `NpuPrintLossScaleCallBack`. Imports TensorFlow and Keras."""
    tensorflow_v1()
    base = importlib.import_module("tensorflow").keras.callbacks.Callback
    return type("NpuPrintLossScaleCallBack", (_PrintLossScale, base), {"__doc__": _PrintLossScale.__doc__})
