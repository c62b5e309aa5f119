"""The passport of a run: what it was, in `passport.json` of the data folder, so that two runs can be held together.

Its format stands in FORMATS.md. Writing it is a side job: what goes wrong with it is a line on stderr, and the training
goes on. Of the environment only the variables named here are written. This module runs on Python 3.7.
"""

import glob
import hashlib
import json
import os
import platform
import re
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple

from precision_tool.lib.data.settings import Settings, load_settings
from precision_tool.lib.data.workspace import Workspace
from precision_tool.lib.io.files import read_bytes
from precision_tool.lib.messages.errors import PrecisionToolError
from precision_tool.lib.training.mixlist import write_whole
from precision_tool.lib.training.packages import ScriptError, numpy, reason_of, say, tensorflow_module, tensorflow_v1
from precision_tool.lib.training.randomness import last_seed
from precision_tool.lib.training.session_runs import flat_feeds, purpose_of

#: To be raised when a key changes its meaning or goes; not for a new one.
VERSION = 1
NPU, BENCHMARK = "npu", "benchmark"
#: The longest text in a passport.
MOST_CHARACTERS = 4096

#: The variables that are written: they change what is computed, or say where. None of them holds a secret.
ENVIRONMENT = (
    "ASCEND_DEVICE_ID", "DEVICE_ID", "RANK_ID", "RANK_SIZE", "ASCEND_RT_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES",
    "ENABLE_HF32_EXECUTION", "HCCL_DETERMINISTIC", "ENABLE_FORCE_V2_CONTROL", "NPU_LOOP_SIZE", "SOC_VERSION",
    "NVIDIA_TF32_OVERRIDE", "OMP_NUM_THREADS", "PYTHONHASHSEED", "TF_CUDNN_DETERMINISTIC", "TF_DETERMINISTIC_OPS",
    "TF_ENABLE_AUTO_MIXED_PRECISION", "TF_ENABLE_ONEDNN_OPTS", "TF_NUM_INTEROP_THREADS", "TF_NUM_INTRAOP_THREADS",
    "TF_XLA_FLAGS", "XLA_FLAGS",
)  # fmt: skip
#: The options of the NPU that are written: those of precision, and those that change which ops there are.
SWITCHES = (
    "precision_mode", "precision_mode_v2", "op_precision_mode", "customize_dtypes", "modify_mixlist",
    "op_select_implmode", "optypelist_for_implmode", "fusion_switch_file", "enable_scope_fusion_passes",
    "deterministic", "enable_reduce_precision", "mix_compile_mode", "use_off_line", "graph_run_mode", "jit_compile",
    "iterations_per_loop", "oo_level", "dump_step", "dump_mode", "dump_data", "dump_layer",
)  # fmt: skip
#: Of these options the content counts, not the name.
_FILES = ("op_precision_mode", "customize_dtypes", "modify_mixlist", "fusion_switch_file")

_MODULES = ("tensorflow", "numpy", "npu_bridge", "npu_device", "keras", "horovod")
#: Files of an installation that tell its version, by what they are below its folder.
_CANN_FILES = (
    "version.cfg",
    "version.info",
    "runtime/version.info",
    "compiler/version.info",
    "*/ascend_*_install.info",
)
_VERSION_LINE = re.compile(r"^\s*(?:version|Version|runtime_running_version)\s*=\s*\[?([\w.:\- ]{1,64})\]?", re.M)
#: Huawei's devices on the PCI bus.
_VENDOR = "0x19e5"
_CHIPS = {"0xd100": "Ascend 310", "0xd500": "Ascend 310P", "0xd801": "Ascend 910", "0xd802": "Ascend 910B"}
_SMALL = 1 << 16
_MOST_BYTES = 1 << 24
#: Arguments of the ops of optimizers that are hyperparameters, when they are constants.
_HYPERPARAMETERS = (
    "lr", "alpha", "learning_rate", "momentum", "beta1", "beta2", "beta1_power", "beta2_power", "epsilon", "rho",
    "l1", "l2", "lr_power", "decay", "weight_decay", "logbase", "sign_decay",
)  # fmt: skip
_APPLIES = re.compile(r"(?:Resource)?(?:Sparse)?Apply[A-Z]\w*\Z")


class Passport:
    """What is known of one run by now; `save` writes all of it anew."""

    def __init__(self, side: str, path: Path, framework: str = "tensorflow") -> None:
        self.side = side
        self.path = path
        self._framework = framework
        self._parts: Dict[str, Any] = {"variables": [], "batch": [], "optimizers": [], "switches": {}}
        self._left_out: Dict[str, str] = {}

    def save(self) -> None:
        """Write the file, to a temporary name first. What goes wrong is said."""
        try:
            write_whole(self.path, json.dumps(_bounded(self._document()), indent=1, sort_keys=False) + "\n")
        except (PrecisionToolError, OSError, ValueError, TypeError) as error:
            say("passport.not_written", reason=reason_of(error))

    def _document(self) -> Dict[str, Any]:
        return {
            "format": "precision_tool passport",
            "version": VERSION,
            "side": self.side,
            "framework": self._framework,
            "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "versions": versions(),
            "environment": {name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
            "seeds": self._parts.get("seeds") or {"helper": last_seed()},
            **{name: self._parts[name] for name in ("switches", "optimizers", "variables", "batch")},
            "left_out": self._left_out,
        }

    def set_switches(self, options: Mapping[str, object]) -> None:
        """The options of the NPU as they are set, by the adapter's names; others than `SWITCHES` are left out."""
        self._parts["switches"] = {
            name: _option_text(name, options[name]) for name in SWITCHES if options.get(name) not in (None, "")
        }

    def set_hf32(self, is_on: Optional[bool]) -> None:
        """Whether HF32 is on; None leaves it to the device."""
        if is_on is not None:
            self._parts["switches"]["allow_hf32"] = "on" if is_on else "off"

    def set_seeds(self, graph_seed: Optional[int], unseeded: int) -> None:
        """The graph's seed, and how many random ops have none."""
        self._parts["seeds"] = {"helper": last_seed(), "graph": plain(graph_seed), "ops_without_seed": unseeded}

    def set_optimizers(self, optimizers: Iterable[Mapping[str, Any]]) -> None:
        """Kinds of optimizers with their hyperparameters."""
        self._parts["optimizers"] = list(optimizers)

    def set_tensors(self, part: str, values: Iterable[Tuple[str, Any]]) -> None:
        """Hash the arrays of `variables` or of the `batch`, by name, one after the other."""
        tensors: Dict[str, Dict[str, Any]] = {}
        for name, value in values:
            if name in tensors:  # a collection may hold a variable twice
                continue
            try:
                tensors[name] = dict(name=name, **fingerprint(value))
            except (TypeError, ValueError) as error:
                self.leave_out(name, reason_of(error))
            else:
                self._left_out.pop(name, None)  # of an earlier run of the same script
        self._parts[part] = list(tensors.values())

    def leave_out(self, name: str, reason: str) -> None:
        """Say why there is no hash of a tensor."""
        self._left_out[name] = reason


def _bounded(value: Any) -> Any:
    """The same with no text longer than its reader takes: the beginning of a long one, and its hash."""
    if isinstance(value, dict):
        return {_bounded(name): _bounded(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_bounded(item) for item in value]
    if isinstance(value, str) and len(value) > MOST_CHARACTERS:
        digest = hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()
        return f"{value[: MOST_CHARACTERS - 100]}… sha256:{digest}"
    return value


#: The passports that this process has begun, by side.
_BEGUN: Dict[str, Passport] = {}


def begin(side: str, settings: Optional[Settings] = None, framework: str = "tensorflow") -> Passport:
    """A new passport of a run of this process; nothing is written yet."""
    workspace = Workspace(os.path.abspath(str((settings or load_settings()).data)))
    path = workspace.npu_passport() if side == NPU else workspace.benchmark_passport
    _BEGUN[side] = Passport(side, path, framework)
    return _BEGUN[side]


def begun(side: Optional[str] = None) -> Optional[Passport]:
    """The passport that this process has begun for a side, or for any, the NPU's first."""
    passports = [_BEGUN[each] for each in ((side,) if side else (NPU, BENCHMARK)) if each in _BEGUN]
    return passports[0] if passports else None


def fingerprint(value: Any) -> Dict[str, Any]:
    """Type, shape and SHA-256 of an array: of `type shape` and its bytes in C order, texts with their lengths."""
    np = numpy()
    array = np.asarray(value.numpy() if hasattr(value, "numpy") else value)
    digest = hashlib.sha256()
    if array.dtype.kind in "OSU":
        kind = "string"
        digest.update(f"{kind} {list(array.shape)} ".encode())
        for item in array.ravel().tolist():
            text = item.encode("utf-8") if isinstance(item, str) else item
            if not isinstance(text, bytes):
                raise ValueError(f"no array of numbers or texts ({type(item).__name__})")
            digest.update(b"%d:" % len(text) + text)
    else:
        kind = array.dtype.name
        digest.update(f"{kind} {list(array.shape)} ".encode())
        flat = np.ascontiguousarray(array).reshape(-1)
        if array.dtype.byteorder == ">":
            flat = flat.astype(array.dtype.newbyteorder("<"))
        digest.update(flat.view(np.uint8))
    return {"type": kind, "shape": [int(size) for size in array.shape], "sha256": digest.hexdigest()}


def versions() -> Dict[str, str]:
    """Versions of what computes, as far as they can be read: nothing is imported or run for it."""
    by_package = {"python": platform.python_version(), "machine": platform.machine()}
    for name in _MODULES:
        version = getattr(sys.modules.get(name), "__version__", None)
        if version:
            by_package[name] = str(version)[:64]
    installed = str(load_settings().cmd_root_path)
    roots = [os.environ.get(name, "") for name in ("ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH")]
    roots.append(os.path.join(installed, "ascend-toolkit", "latest"))
    for name, candidates in (
        ("cann", [os.path.join(root, name) for root in roots if root for name in _CANN_FILES]),
        ("driver", [os.path.join(installed, "driver", "version.info")]),
        ("firmware", [os.path.join(installed, "firmware", "version.info")]),
    ):
        version = next((text for text in map(_version_in, candidates) if text), "")
        if version:
            by_package[name] = version
    chip = _chip()
    if chip:
        by_package["chip"] = chip
    return by_package


def _version_in(pattern: str) -> str:
    for path in sorted(glob.glob(pattern)):
        try:
            match = _VERSION_LINE.search(read_bytes(path, _SMALL).decode("utf-8", "replace"))
        except PrecisionToolError:
            continue
        if match:
            return match.group(1).strip()
    return ""


def _chip(root: str = "/sys/bus/pci/devices") -> str:
    """The NPUs of this machine by what the PCI bus says, without asking the driver."""
    kinds: Dict[str, int] = {}
    for vendor in sorted(glob.glob(os.path.join(root, "*", "vendor"))):
        try:
            with open(vendor, encoding="ascii") as file:
                is_npu = file.read(16).strip() == _VENDOR
            with open(os.path.join(os.path.dirname(vendor), "device"), encoding="ascii") as file:
                kind = file.read(16).strip()
        except (OSError, ValueError):
            continue
        if is_npu and kind.startswith("0xd"):
            kinds[kind] = kinds.get(kind, 0) + 1
    return ", ".join(f"{_CHIPS.get(kind, 'Ascend')} ({kind}) x{count}" for kind, count in sorted(kinds.items()))


def _option_text(name: str, value: object) -> str:
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    if name not in _FILES:
        return text
    try:
        digest = hashlib.sha256(read_bytes(text, _MOST_BYTES)).hexdigest()
    except PrecisionToolError as error:
        return f"{os.path.basename(text)} ({error.message})"
    return f"{os.path.basename(text)} sha256:{digest[:16]}"


def optimizers_of(graph: Any, constant: Any) -> List[Dict[str, Any]]:
    """The optimizers of a TensorFlow 1 graph. `constant` gives the value of a tensor that is one, else None."""
    optimizers: Dict[str, Dict[str, Any]] = {}
    for op in graph.get_operations():
        if not _APPLIES.match(op.type):
            continue
        values: Dict[str, Any] = {}
        for argument, tensor in zip(op.op_def.input_arg, op.inputs):
            if argument.name in _HYPERPARAMETERS:
                value = constant(tensor)
                values[argument.name] = "computed" if value is None else plain(value)
        if "use_nesterov" in op.node_def.attr:
            values["use_nesterov"] = bool(op.node_def.attr["use_nesterov"].b)
        optimizer = {"type": op.type.replace("Resource", "", 1), "hyperparameters": values}
        key = json.dumps(optimizer, sort_keys=True)
        optimizers.setdefault(key, dict(optimizer, variables=0))["variables"] += 1
    return list(optimizers.values())


def plain(value: Any) -> Any:
    """A scalar of numpy as JSON has it: numbers that are not finite as text."""
    item = value.item() if hasattr(value, "item") and getattr(value, "size", 1) == 1 else value
    if isinstance(item, bool) or item is None:
        return item
    if isinstance(item, (int, float)):
        return item if item == item and abs(item) != float("inf") else str(item)
    return str(item)[:200]


# --- What a passport says of a step: hashes of variables and batch, seeds and optimizers, taken before the step
#     runs


#: What a recorded run says: nothing yet, some run, one that trains.
_SOME, _TRAINS = 1, 2

#: Of variables that are read in one run.
_MAX_CHUNK_BYTES = 1 << 28

#: Name and value of a variable or of what is fed.
Named = Tuple[str, Any]


def passport(subject: Any, batch: Any = None) -> str:
    """Write the hashes of the variables of `subject` and of `batch` as they are now; returns the passport's path.

    `subject` is a TensorFlow 1 session, whose `batch` is a `feed_dict`, or a model, a `tf.Module` or variables.
    """
    is_session = hasattr(subject, "run") and hasattr(subject, "graph")
    if not is_session and _variables_of(subject) is None:
        raise ScriptError(
            "training.not_a_session",
            function="passport",
            expected="a session or a model",
            type=type(subject).__name__,
            example="passport(sess, feed_dict)",
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
            purpose = purpose_of(session.graph, fetches)
            rank = 0 if purpose.is_setup else _SOME if purpose.train_ops == [] else _TRAINS
            if rank > self._rank:
                _record_session(self._passport, _raw(session), flat_feeds(session.graph, feed_dict))
                self._passport.save()
                self._rank = rank
        except Exception as error:  # whatever a script's session or graph is, its training goes on
            say("passport.no_hashes", reason=reason_of(error))
            self._rank = _TRAINS


def record_step(subject: Any, settings: Optional[Settings] = None) -> None:
    """Write the benchmark's passport of a step of TensorFlow 2 that is about to run, unless the script has written it.

    `subject` is a model or a list of variables. Nothing is raised.
    """
    if begun(BENCHMARK) is not None:
        return
    record = begin(BENCHMARK, settings)
    try:
        _record_model(record, subject, None)
    except Exception as error:  # as above: the training goes on
        say("passport.no_hashes", reason=reason_of(error))
    record.save()


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
        say("passport.no_hashes", reason=reason_of(error))


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
    """Variables in order, so many together as `_MAX_CHUNK_BYTES` hold; a larger one, or one of unknown size, alone."""
    some: List[Any] = []
    size = 0
    for variable in variables:
        elements = variable.shape.num_elements()
        own = _MAX_CHUNK_BYTES if elements is None else elements * variable.dtype.base_dtype.size
        if some and size + own > _MAX_CHUNK_BYTES:
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
            yield from _fetched(record, session, half)
    else:
        yield from zip(variables, values)


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
