"""The replay of a saved training step: checkpoint and inputs back in, one training run, on the CPU or on the NPU.

This module runs on Python 3.7.
"""

import os
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from precision_tool.lib.data.settings import Settings
from precision_tool.lib.data.workspace import Workspace
from precision_tool.lib.io.files import read_bytes
from precision_tool.lib.messages.errors import DataNotFoundError, FormatError, PrecisionToolError
from precision_tool.lib.training import dumping, switches
from precision_tool.lib.training.packages import reason_of, require_npu_bridge, tensorflow_module, tensorflow_v1
from precision_tool.lib.training.passport import NPU, begun, record_replay
from precision_tool.lib.training.randomness import Fixed, fix_randomness
from precision_tool.lib.training.saving import MANIFEST_NAME, SavedFeeds, load_feed, read_feeds
from precision_tool.lib.training.session_runs import ancestors

_MAX_BYTES = 1 << 31  # of a MetaGraphDef: protobuf reads no more


class SavedStep(NamedTuple):
    """A saved step, ready to be imported: `meta_graph` has had its randomness taken out, by `seed`."""

    checkpoint: Path
    meta_graph: Any
    fixed: Fixed
    input_dir: Path
    seed: int


class Replayed(NamedTuple):
    """What a replay did: the training ops that ran, and the saved inputs they were fed."""

    train_ops: Tuple[str, ...]
    feeds: Tuple[str, ...]


def load_step(workspace: Workspace, seed: int) -> SavedStep:
    """Read the saved step of a data folder, to be replayed with this seed. Raises DataNotFoundError, FormatError."""
    v1 = tensorflow_v1()
    checkpoint = _newest_checkpoint(workspace.tf_checkpoint_dir)
    path = Path(str(checkpoint) + ".meta")
    meta_graph = v1.MetaGraphDef()
    try:
        meta_graph.ParseFromString(read_bytes(str(path), _MAX_BYTES))
    except PrecisionToolError as error:
        raise DataNotFoundError("training.replay.no_step", reason=error.full_message) from None
    except Exception as error:  # protobuf's DecodeError has no public place in all releases
        raise FormatError.of(path, "training.replay.damaged", reason=str(error)) from None
    try:
        fixed = fix_randomness(meta_graph.graph_def, seed, tensorflow_module("python.framework.tensor_util"))
    except IndexError:
        raise FormatError.of(path, "training.replay.lacks_inputs") from None
    return SavedStep(checkpoint, meta_graph, fixed, workspace.tf_input_dir, seed)


def replay_on_cpu(step: SavedStep, settings: Settings) -> Replayed:
    """Run the step once under tfdbg, into `tf/tf_debug`."""
    v1 = tensorflow_v1()
    config = v1.ConfigProto(device_count={"GPU": 0}, allow_soft_placement=True)
    # Optimised away or fused, an op has no tensor for the NPU's to be compared with.
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = v1.OptimizerOptions.L0
    return _replay(step, config, "the CPU", settings)


def npu_config(action: str, settings: Settings) -> Any:
    """The session config of an NPU run with the switches of `action`, its folders made.

    Raises MissingPackageError without npu_bridge.
    """
    require_npu_bridge()
    return switches.session_dump_config(None, action, settings)


def replay_on_npu(step: SavedStep, config: Any) -> Replayed:
    """Run the step once with `npu_config`."""
    return _replay(step, config, "the NPU", None)


def _newest_checkpoint(folder: Path) -> Path:
    v1 = tensorflow_v1()
    latest = v1.train.latest_checkpoint(str(folder)) if folder.is_dir() else None
    if latest is not None:  # a moved folder may still name its old place
        name = os.path.basename(str(latest))
        if (folder / f"{name}.meta").is_file():
            return folder / name
    graphs = sorted(folder.glob("ckpt*.meta"), key=lambda path: path.stat().st_mtime) if folder.is_dir() else []
    if not graphs:
        raise DataNotFoundError.of(folder, "training.replay.no_checkpoint")
    return graphs[-1].with_suffix("")


def _replay(step: SavedStep, config: Any, where: str, dump: Optional[Settings]) -> Replayed:
    """Run the step once; under tfdbg when `dump` has the settings for that."""
    v1 = tensorflow_v1()
    npu_passport = begun(NPU)
    with v1.Graph().as_default() as graph:
        try:
            saver = v1.train.import_meta_graph(step.meta_graph, clear_devices=True)
        except (KeyError, ValueError, v1.errors.OpError) as error:
            raise _not_imported(step, error) from None
        if saver is None:
            raise FormatError.of(f"{step.checkpoint}.meta", "training.replay.no_checkpoint_name")
        v1.set_random_seed(step.seed)
        placeholders = [op.outputs[0] for op in graph.get_operations() if op.type in ("Placeholder", "PlaceholderV2")]
        saved = read_feeds(step.input_dir, [tensor.name for tensor in placeholders])
        train_ops = _train_ops(graph, step, saved)
        needed = ancestors(train_ops)
        iterators = [op for op in graph.get_operations() if op.type == "MakeIterator" and op.inputs[1].op in needed]
        feeds = _feeds(graph, step, saved, [each for each in placeholders if each.op in needed | ancestors(iterators)])
        session, dumping_session = v1.Session(graph=graph, config=config), None
        try:
            session.run([v1.local_variables_initializer(), v1.tables_initializer()])
            saver.restore(session, str(step.checkpoint))
            if iterators:
                session.run(iterators, feeds)
            if dump is not None:
                session = dumping_session = dumping.sess_dump(session, dump)
            elif npu_passport is not None:
                record_replay(npu_passport, graph, str(step.checkpoint), feeds)
            session.run(train_ops, feeds)
        except PrecisionToolError:
            raise
        except (v1.errors.OpError, ValueError) as error:
            if dumping_session is not None:
                dumping_session.discard()  # half a dump
            raise PrecisionToolError(
                "training.replay.fails", where=where, reason=reason_of(error), checkpoint=str(step.checkpoint)
            ) from None
        finally:
            session.close()
    return Replayed(tuple(op.name for op in train_ops), tuple(tensor.name for tensor in feeds))


def _not_imported(step: SavedStep, error: Exception) -> FormatError:
    """Why TensorFlow does not take the graph: damaged, or made with ops of another package."""
    is_unknown = isinstance(error, tensorflow_v1().errors.NotFoundError)
    kind = "training.replay.unknown_op" if is_unknown else "training.replay.not_imported"
    return FormatError.of(f"{step.checkpoint}.meta", kind, reason=reason_of(error))


def _train_ops(graph: Any, step: SavedStep, saved: SavedFeeds) -> List[Any]:
    """The training ops of the saved run; all there are when it is not known which ran."""
    v1 = tensorflow_v1()
    train_ops = graph.get_collection(v1.GraphKeys.TRAIN_OP)
    if not train_ops:
        raise DataNotFoundError("training.replay.no_train_op", file=f"{step.checkpoint}.meta")
    operations = {op.name: op for op in (getattr(each, "op", each) for each in train_ops)}
    strange = [name for name in saved.train_ops if name not in operations]
    if strange:
        raise FormatError.of(
            step.input_dir / MANIFEST_NAME,
            "training.replay.other_train_op",
            op=strange[0],
            file=f"{step.checkpoint}.meta",
        )
    return [op for name, op in operations.items() if not saved.train_ops or name in saved.train_ops]


def _feeds(graph: Any, step: SavedStep, saved: SavedFeeds, needed: List[Any]) -> Dict[Any, Any]:
    """The saved inputs by tensor. Raises DataNotFoundError that names every needed input that was not saved."""
    feeds: Dict[Any, Any] = {}
    for each in saved.saved:
        try:
            tensor = graph.as_graph_element(each.tensor, allow_operation=False)
        except (KeyError, ValueError):
            raise FormatError.of(
                step.input_dir / each.file,
                "training.replay.other_tensor",
                tensor=each.tensor,
                file=f"{step.checkpoint}.meta",
            ) from None
        feeds[tensor] = load_feed(step.input_dir, each, tensor)
    have = {tensor.name for tensor in feeds}
    missing = sorted(tensor.name for tensor in needed if tensor.name not in have)
    if missing:
        raise DataNotFoundError(
            "training.replay.missing_inputs",
            names=tuple(_with_reason(name, saved) for name in missing),
            folder=str(step.input_dir),
        )
    return feeds


def _with_reason(name: str, saved: SavedFeeds) -> str:
    reason = saved.left_out.get(name)
    return f"{name} ({reason})" if reason else name
