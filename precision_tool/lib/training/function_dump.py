"""TensorFlow 2 on a CPU or GPU: one step of a function, of which every tensor becomes a file of the benchmark.

On the NPU, npu_device hands GE the graph that `tf.function` traces, with the functions that it calls traced into it, so
the ops of an NPU dump have the names of that graph. The step that is to be dumped is traced in the same way here, and
after every op stands one more, which writes the op's outputs when they are computed. The step runs once, in place of
the call that the script makes; all other steps run as they are.
This module runs on Python 3.7.
"""

import atexit
import contextlib
import functools
import importlib
import inspect
import os
import re
import sys
import time
import weakref
from typing import Any, Callable, Dict, FrozenSet, Iterator, List, MutableMapping, NamedTuple, Optional, Set, Tuple

from precision_tool.lib.data.settings import load_settings
from precision_tool.lib.data.workspace import Workspace
from precision_tool.lib.io.tfdbg_files import TYPES, DumpedTensor, npy_header, unwritable
from precision_tool.lib.messages import Message, render
from precision_tool.lib.training.benchmark_folder import NpySet
from precision_tool.lib.training.packages import ScriptError, numpy, reason_of, say, tensorflow_v1
from precision_tool.lib.training.passport import record_step
from precision_tool.lib.training.saved_graph import FUNCTION, save_graph
from precision_tool.lib.training.tfdbg_copy import Row, alike, name_files

#: Ops that change the variable of their first input, which is the output that they have in GE.
_ASSIGNS = re.compile(r"(?:Assign(?:Add|Sub)?VariableOp|Resource(?:Sparse)?Apply\w+|ResourceScatter\w+)\Z")
#: Ops that run a graph of its own: what they give is dumped, what is computed inside is not.
_CALLS = (
    "While", "StatelessWhile", "If", "StatelessIf", "Case", "StatelessCase", "PartitionedCall",
    "StatefulPartitionedCall",
)  # fmt: skip
#: In the names of a scratch graph's own placeholders.
_CAPTURED = "precision_tool_captured"
_OPTIMIZER_SWITCH = "disable_meta_optimizer"
_SHOWN = 3


def function_dump(function: Any, step: Optional[int] = None) -> Any:
    """`function`, a `tf.function` or any other; its call number `step` leaves its tensors in `tf/dump`."""
    if not callable(function):
        raise ScriptError(
            "training.not_a_session",
            function="function_dump",
            expected="a function",
            type=type(function).__name__,
            example="train_step = function_dump(train_step)",
        )
    return _DumpedFunction(function, _StepDump(step))


def keras_dump(step: Optional[int] = None) -> Any:
    """A callback for `Model.fit`: batch number `step` leaves its tensors in `tf/dump`."""
    dump = _StepDump(step)
    tensorflow_v1()
    base = importlib.import_module("tensorflow").keras.callbacks.Callback
    return type("KerasDump", (_KerasDump, base), {})(dump)


class _DumpedFunction:
    """A function of which one call is dumped. All else that is asked of it is answered by the function itself."""

    def __init__(self, function: Any, dump: "_StepDump") -> None:
        tensorflow_v1()
        tensorflow = importlib.import_module("tensorflow")
        self._function = function
        self._dump = dump
        # Inside of another function AutoGraph converts what is called there: the function, but not this.
        self._chosen = tensorflow.autograph.experimental.do_not_convert(lambda: dump.chosen(function))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._chosen()(*args, **kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """Bind a method, as its own function does."""
        return self if instance is None else _DumpedFunction(self._function.__get__(instance, owner), self._dump)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)


class _KerasDump:
    """The Keras callback. For one batch it takes the place of the function that `fit` calls."""

    model: Any

    def __init__(self, dump: "_StepDump") -> None:
        parent: Any = super()
        parent.__init__()
        self._dump = dump

    def on_train_batch_begin(self, batch: int, logs: Optional[Any] = None) -> None:
        """Called by Keras."""
        model, function = self.model, self.model.train_function
        chosen = self._dump.chosen(function, model)
        if chosen is function:
            return
        several: Any = getattr(model, "steps_per_execution", None) or getattr(model, "_steps_per_execution", None) or 1
        together = int(several.numpy() if hasattr(several, "numpy") else several)
        if together > 1:
            raise ScriptError("training.function.steps_per_execution", count=together)

        def dumped(iterator: Any) -> Any:
            model.train_function = function
            return chosen(iterator)

        model.train_function = dumped


class _StepDump:
    """Counts steps, and runs the step that is to be dumped."""

    def __init__(self, step: Any) -> None:
        self._settings = load_settings()
        if step is None:
            digits = re.match("[0-9]+", self._settings.tf_dump_step)
            step = int(digits.group()) if digits else 0
        if isinstance(step, bool) or not isinstance(step, int) or step < 0:
            raise ScriptError("training.function.step", step=repr(step))
        self._step = step
        self._count = 0
        atexit.register(self._say_if_never)

    def chosen(self, function: Any, model: Optional[Any] = None) -> Any:
        """Count a call of `function`, and return what is to be called: if it is the chosen step, what dumps it.

        No step is a call inside the trace of another function, nor one on the NPU.
        """
        v1 = tensorflow_v1()
        if not v1.executing_eagerly_outside_functions():
            raise ScriptError("training.function.graph_mode")
        if "npu_device" in sys.modules or not v1.executing_eagerly():
            return function
        self._count += 1
        return functools.partial(self._run, function, model) if self._count == self._step + 1 else function

    def _say_if_never(self) -> None:
        if "npu_device" in sys.modules:
            say("function.npu")
        elif self._count <= self._step:
            say("function.never", step=self._step, count=self._count)

    def _run(self, function: Any, model: Optional[Any], *args: Any, **kwargs: Any) -> Any:
        """Call `function` as the script does; what it computes takes the place of the tensors of `tf/dump`.

        Raises ScriptError if it cannot be traced, OutputError if a tensor cannot be written: then the old set stays.
        """
        tensorflow = importlib.import_module("tensorflow")
        writer = _Writer(tensorflow)
        traced = _traced_function(tensorflow, function, writer)
        with NpySet(os.path.abspath(str(Workspace(self._settings.data).tf_dump_dir))) as new_set, _npu_like(
            tensorflow, type(traced)
        ) as call:
            try:
                graph = traced.get_concrete_function(*args, **kwargs).graph
            except Exception as error:
                name = getattr(function, "__name__", type(function).__name__)
                raise ScriptError("training.function.not_traced", function=name, reason=reason_of(error)) from error
            record_step(list(graph.variables) if model is None else model, self._settings)
            writer.folder = new_set.start(writer.planned.nbytes)
            writer.write_variables()
            result = call(traced, *args, **kwargs)
            count, nbytes = writer.written()
            replaced = new_set.commit()
        save_graph(graph, FUNCTION, self._settings, writer.planned.ops)
        folder = new_set.folder
        say(
            "function.written", step=self._step, count=count, nbytes=nbytes, folder=folder, old=replaced.tensors or None
        )
        for note in (*new_set.notes, *writer.planned.notes):
            print(f"precision_tool: {render(note)}", file=sys.stderr, flush=True)
        return result


def _traced_function(tensorflow: Any, function: Any, writer: "_Writer") -> Any:
    """A new `tf.function` of the same Python function, at the end of whose graph `writer` adds what it needs."""
    inner = getattr(function, "python_function", function)
    add_writers = tensorflow.autograph.experimental.do_not_convert(writer.add_to_graph)

    # AutoGraph converts this, as it would convert the function itself; what it calls is converted from here.
    def traced(*args: Any, **kwargs: Any) -> Any:
        result = inner(*args, **kwargs)
        add_writers()
        return result

    signature: Any = inspect.signature(inner)
    traced.__signature__ = signature  # type: ignore[attr-defined]  # placeholders are named as the arguments
    return tensorflow.function(
        traced,
        input_signature=getattr(function, "input_signature", None),
        autograph=getattr(function, "_autograph", True),
    )


@contextlib.contextmanager
def _npu_like(tensorflow: Any, function_class: Any) -> Iterator[Callable[..., Any]]:
    """Functions are traced as npu_device does it, and ops are computed as they are traced.

    Gives what calls a function. npu_device replaces `Function.__call__` in the same way: inside of a function others
    are called as plain Python, which puts their ops into its graph; where that fails, as for the control flow of
    AutoGraph, they stay calls. There npu_device leaves the ops of the attempt in the graph, which would run twice what
    has an effect; here only their names are taken.
    """
    call = function_class.__call__
    v1, scratch_class = tensorflow_v1(), _scratch_class()
    attempts: MutableMapping[Any, List[_Attempt]] = weakref.WeakKeyDictionary()

    def inlined(self: Any, *args: Any, **kwargs: Any) -> Any:
        if v1.executing_eagerly():  # in tf.init_scope, or in Python that the step calls while it runs
            return call(self, *args, **kwargs)
        graph = v1.get_default_graph()
        if isinstance(graph, scratch_class):
            return graph.attempt(self, call, args, kwargs)
        # A call makes AutoGraph convert a method for good, so what was tried in an outer attempt is not tried again.
        known = attempts.setdefault(graph, [])
        if not known or known[0].function is not self:
            scratch = scratch_class(graph)
            with scratch.as_default(), scratch.name_scope(scratch.scope), contextlib.suppress(Exception):
                scratch.attempt(self, None, args, kwargs)
            known[:] = scratch.attempts
        attempt = known.pop(0)
        if attempt.names is None:
            return self.python_function(*args, **kwargs)
        for name, count in attempt.names.items():
            graph._names_in_use[name] = max(count, graph._names_in_use.get(name, 0))
        return call(self, *args, **kwargs)

    optimizer = tensorflow.config.optimizer
    is_off = optimizer.get_experimental_options().get(_OPTIMIZER_SWITCH, False)
    is_eager = tensorflow.config.functions_run_eagerly()
    function_class.__call__ = inlined
    optimizer.set_experimental_options({_OPTIMIZER_SWITCH: True})
    tensorflow.config.run_functions_eagerly(False)
    try:
        yield call
    finally:
        tensorflow.config.run_functions_eagerly(is_eager)
        optimizer.set_experimental_options({_OPTIMIZER_SWITCH: is_off})
        function_class.__call__ = call


def _scratch_class() -> Any:
    """The class of graphs that take the ops of an attempt, under the names that they would have in the graph itself."""
    base = importlib.import_module("tensorflow.python.framework.func_graph").FuncGraph
    return type("ScratchGraph", (_ScratchGraph, base), {})


class _Attempt:
    """To inline a call of a function: the names that are taken then, if it failed."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.names: Optional[Dict[str, int]] = None


class _ScratchGraph:
    """What a scratch graph adds to TensorFlow's FuncGraph. It is never run."""

    _names_in_use: Dict[str, int]

    def __init__(self, graph: Any) -> None:
        parent: Any = super()
        parent.__init__("precision_tool_scratch")
        self.attempts: List[_Attempt] = []
        scope = graph.get_name_scope()
        self.scope = f"{scope}/" if scope else None
        self._names_in_use = dict(graph._names_in_use)

    def capture(self, tensor: Any, name: Optional[str] = None, shape: Any = None) -> Any:
        """Called by TensorFlow for each input of an op. What stands for a tensor of another graph has no op there."""
        parent: Any = super()
        return parent.capture(tensor, name=_CAPTURED, shape=shape)

    def attempt(self, function: Any, call: Optional[Callable[..., Any]], args: Any, kwargs: Any) -> Any:
        """Inline a call of `function`; where that fails, it stays a `call`, if there is one."""
        attempt = _Attempt(function)
        self.attempts.append(attempt)
        place = len(self.attempts)
        try:
            return function.python_function(*args, **kwargs)
        except Exception:
            del self.attempts[place:]
            attempt.names = {name: count for name, count in self._names_in_use.items() if _CAPTURED not in name}
            if call is None:
                raise
            return call(function, *args, **kwargs)


class _Planned(NamedTuple):
    """What a traced graph will write: bytes, as far as shapes are known, and what the user should be told."""

    nbytes: int = 0
    notes: Tuple[Message, ...] = ()
    #: The ops of the step, without those that write.
    ops: FrozenSet[str] = frozenset()
    #: Variables that exist before the step: the name of the file, the type, and the variable's handle.
    variables: Tuple[Tuple[str, int, Any], ...] = ()


class _Writer:
    """Adds ops to a graph that write its tensors into `folder`, and counts what they wrote.

    A variable has a tensor as well, under the name of what stands for it in the graph: what it was before the step.
    """

    def __init__(self, tensorflow: Any) -> None:
        self._tf = tensorflow
        self.folder = ""
        self.planned = _Planned()
        self._sizes: List[int] = []
        self._error: Optional[Tuple[str, OSError]] = None

    def add_to_graph(self) -> None:
        """Called at the end of the trace, inside the graph; again if TensorFlow traces again."""
        graph = tensorflow_v1().get_default_graph()
        operations = graph.get_operations()
        tensors = {(op.name, slot): each for op in operations for slot, each in enumerate(op.outputs)}
        variables = {inside.op.name: (outside, _type_of_variable(inside)) for outside, inside in graph.captures}
        tensors.update(self._assigned(operations))
        now = time.time_ns() // 1000
        dumps = [
            DumpedTensor("", op, slot, now + number, 0, "", 0)
            for number, ((op, slot), tensor) in enumerate(tensors.items())
            if tensor.dtype.as_datatype_enum in TYPES or (op in variables and variables[op][1] in TYPES)
        ]
        named, skipped = name_files(dumps)
        nbytes = 0
        before: List[Tuple[str, int, Any]] = []
        for dump in named:
            tensor = tensors[dump.op, dump.slot]
            if tensor.dtype.as_datatype_enum not in TYPES:
                handle, dtype = variables[dump.op]
                before.append((dump.npy_name, dtype, handle))
                continue
            nbytes += (tensor.shape.num_elements() or 0) * TYPES[tensor.dtype.as_datatype_enum].item_size
            # One at a time: each is let go when it is written, which all outputs of a function would not be.
            self._tf.numpy_function(self._write_to(dump.npy_name, tensor.dtype.as_datatype_enum), [tensor], [])
        names = frozenset(op.name for op in operations)
        self.planned = _Planned(nbytes, _notes(operations, named, skipped), names, tuple(before))

    def write_variables(self) -> None:
        """Write the variables as they are now, those that have a value."""
        for name, dtype, handle in self.planned.variables:
            try:
                value = self._tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype).numpy()
            except self._tf.errors.OpError:
                continue
            self._write_to(name, dtype)(value)

    def _assigned(self, operations: List[Any]) -> Iterator[Tuple[Tuple[str, int], Any]]:
        """The variable after each op that changes it last: TensorFlow's op has no output, GE's has.

        A loop or call that takes the variable may change it too.
        """
        last: Dict[int, Any] = {}
        for op in operations:
            if _ASSIGNS.match(op.type) or op.type in _CALLS:
                last.update((id(tensor), op) for tensor in op.inputs if tensor.dtype == self._tf.resource)
        done: Set[str] = set()
        for op in last.values():
            if op.name not in done and _ASSIGNS.match(op.type) and last[id(op.inputs[0])] is op:
                done.add(op.name)
                dtype = op.get_attr("dtype" if "VariableOp" in op.type or "Scatter" in op.type else "T")
                with self._tf.control_dependencies([op]):
                    yield (op.name, 0), self._tf.raw_ops.ReadVariableOp(resource=op.inputs[0], dtype=dtype)

    def _write_to(self, name: str, dtype: int) -> Callable[[Any], None]:
        """What an op of the graph calls with the array, from any thread. An error ends the step when all is computed:
        raised here it would leave the variables of the script as they are in the middle of a step."""

        def write(array: Any) -> None:
            if self._error is not None:
                return
            np = numpy()
            flat = np.ascontiguousarray(array).reshape(-1)
            path = os.path.join(self.folder, name)
            try:
                with open(path, "xb") as file:
                    file.write(npy_header(TYPES[dtype].descr, tuple(map(int, np.shape(array)))))
                    file.write(flat.view(np.uint8))
                self._sizes.append(os.path.getsize(path))
            except OSError as error:
                self._error = (path, error)

        return write

    def written(self) -> Tuple[int, int]:
        """Files and bytes that were written. Raises OutputError if one could not be."""
        if self._error is not None:
            raise unwritable(*self._error)
        return len(self._sizes), sum(self._sizes)


def _type_of_variable(inside: Any) -> int:
    """The number of the type of the variable that a tensor of a graph stands for; 0 where its readers do not tell."""
    for op in inside.consumers():
        if "VariableOp" in op.type or _ASSIGNS.match(op.type) or op.type in ("ResourceGather", "ResourceGatherNd"):
            is_named = "VariableOp" in op.type or "Scatter" in op.type or "Gather" in op.type
            return int(op.get_attr("dtype" if is_named else "T").as_datatype_enum)
    return 0


def _notes(operations: List[Any], named: List[DumpedTensor], skipped: List[Row]) -> Tuple[Message, ...]:
    notes = alike(named)
    if skipped:
        first, reason = skipped[0]
        notes.append(Message("note.training.function.skipped", count=len(skipped), reason=reason, first=first))
    inner = [op.name for op in operations if op.type in _CALLS]
    if inner:
        notes.append(Message("note.training.function.inside", count=len(inner), first=inner[:_SHOWN]))
    return tuple(notes)
