"""What training scripts import: `import precision_tool.tf_config as npu_tf_config`. Python 3.7 and newer.

Actions: `dump`, `overflow`, `fusion_off`, `fusion_switch`, `prof`, `mixlist`, combined with `|` (`'fusion_off|dump'`).
Without an action, the `npu_dump` or `npu_overflow` that runs the script decides. `run_options` of the calls that take
an action win over the settings of the same names. What a dump holds: `dump_mode` ('input', 'output', 'all'),
`dump_data` ('tensor', 'stats'), `dump_layer` (names of ops, in a list or with spaces between them), `quant_dumpable`
(True: also what quantised ops were before). How precise the run is, with and without an action: `precision_mode` or
`precision_mode_v2`; `op_precision_mode` and `customize_dtypes`, each a file or, by op, what is in it
(`{'fc1/MatMul': 'high_precision'}`, `{'fc1/MatMul': 'InputDtype:float,float,OutputDtype:float'}`, and
`'OpType::MatMulV2'` for all ops of a type); `allow_hf32` (False: matrix units multiply float32 as float32);
`deterministic` (True: kernels repeat themselves).
Mistakes are `ValueError`s that say what to do.
Importing this imports neither TensorFlow nor numpy; it seeds what is random (`PRECISION_TOOL_SEED=off`
in the environment leaves that alone, a number there is the seed).
"""

from typing import Any, Iterable, Mapping, Optional, Union

from precision_tool.lib.training.randomness import seed_at_import
from precision_tool.lib.training.randomness import seed_everything as seed_everything

TYPE_CHECKING = False
if TYPE_CHECKING:
    NpuPrintLossScaleCallBack: Any
    #: The fusion switch files of the data folder, where there are any, else the installed ones; absolute paths.
    FUSION_OFF_FILE: str
    FUSION_SWITCH_FILE: str


def session_dump_config(session_config: Any = None, action: Optional[str] = None, **run_options: Any) -> Any:
    """Session config for the NPU: ``config = npu_tf_config.session_dump_config(config, action='dump')``.

    Parameters
    ----------
    session_config : tf.ConfigProto, optional
        The script's own, which is changed; by default a new one.
    action : str, optional
        What the run is for; by default what `npu_dump` or `npu_overflow` has asked for, else nothing.
    **run_options
        What a dump holds and how precise the run is, instead of the settings of these names: see above.

    Returns
    -------
    tf.ConfigProto
        With `NpuOptimizer` and what the action asks for.

    Raises
    ------
    ValueError
        The action or an option is wrong, or contradicts what is set already.
    OSError
        A folder that the device writes to cannot be made.
    """
    from precision_tool.lib.training import switches

    return switches.session_dump_config(session_config, action, **run_options)


def update_custom_op(custom_op: Any, action: Optional[str] = None, **run_options: Any) -> Any:
    """Set what `action` asks for: ``custom_op = npu_tf_config.update_custom_op(custom_op, action='dump')``.

    Parameters
    ----------
    custom_op : custom optimizer
        The `NpuOptimizer` that the script has configured, which is changed.
    action, **run_options
        As of `session_dump_config`.

    Returns
    -------
    custom optimizer
        The same.

    Raises
    ------
    ValueError, OSError
        As `session_dump_config`.
    """
    from precision_tool.lib.training import switches

    return switches.update_custom_op(custom_op, action, **run_options)


def estimator_dump_config(action: Optional[str] = None, **run_options: Any) -> Any:
    """The `DumpConfig` of an Estimator: ``NPURunConfig(dump_config=estimator_dump_config(action='dump'))``.

    Parameters
    ----------
    action, **run_options
        As of `session_dump_config`.

    Returns
    -------
    npu_bridge DumpConfig
        For `NPURunConfig`.

    Raises
    ------
    ValueError, OSError
        As `session_dump_config`.
    """
    from precision_tool.lib.training import switches

    return switches.estimator_dump_config(action, **run_options)


def estimator_run_options(action: Optional[str] = None, **run_options: Any) -> Any:
    """What a `DumpConfig` has no place for: ``NPURunConfig(dump_config=…, **estimator_run_options(allow_hf32=False))``.

    Parameters
    ----------
    action, **run_options
        As of `session_dump_config`, but not `prof`.

    Returns
    -------
    dict
        Arguments of `NPURunConfig` by name.

    Raises
    ------
    ValueError
        The action or an option is wrong, or this npu_bridge is too old for it.
    OSError
        A folder or file cannot be made.
    """
    from precision_tool.lib.training import switches

    return switches.estimator_run_options(action, **run_options)


def npu_device_dump_config(npu_device: Any, action: Optional[str] = None, **run_options: Any) -> Any:
    """TensorFlow 2: set what `action` asks for, before ``npu_device.open()``.

    Parameters
    ----------
    npu_device : module
        Whose global options are changed.
    action, **run_options
        As of `session_dump_config`.

    Returns
    -------
    module
        The same.

    Raises
    ------
    ValueError, OSError
        As `session_dump_config`.
    """
    from precision_tool.lib.training import switches

    return switches.npu_device_dump_config(npu_device, action, **run_options)


def sess_dump(sess: Any) -> Any:
    """CPU or GPU: the session under tfdbg, ``sess = npu_tf_config.sess_dump(sess=sess)``.

    Parameters
    ----------
    sess : tf.Session
        The script's own.

    Returns
    -------
    DumpingDebugWrapperSession
        Writes every run to `precision_data/tf/tf_debug`, for `tf_dump`.

    Raises
    ------
    ValueError
        An older dump lies there.
    OSError
        The folder cannot be made.
    """
    from precision_tool.lib.training import dumping

    return dumping.sess_dump(sess)


def estimator_dump() -> Any:
    """CPU or GPU: the tfdbg hook of an Estimator, ``EstimatorSpec(training_hooks=[estimator_dump()])``.

    Returns
    -------
    DumpingDebugHook
        Writes every run to `precision_data/tf/tf_debug`, for `tf_dump`.

    Raises
    ------
    ValueError, OSError
        As `sess_dump`.
    """
    from precision_tool.lib.training import dumping

    return dumping.estimator_dump()


def function_dump(function: Any, step: Optional[int] = None) -> Any:
    """TensorFlow 2 on a CPU or GPU: dump one call of a function, ``step = npu_tf_config.function_dump(step)``.

    Parameters
    ----------
    function : callable
        A `tf.function`, a Python function that runs eagerly, or a model. Also as a decorator, above `@tf.function`.
    step : int, optional
        The call to dump, 0 for the first; by default the first of the setting TF_DUMP_STEP, else 0.

    Returns
    -------
    callable
        The same function. The chosen call is traced as a graph, as npu_device does it, and its tensors take the place
        of those in `precision_data/tf/dump`: no `tf_dump` is needed. Where npu_device is loaded nothing is dumped.

    Raises
    ------
    ValueError
        `function` cannot be called, or `step` is no number; from the chosen call, if it cannot be traced.
    """
    from precision_tool.lib.training import function_dump as dumping

    return dumping.function_dump(function, step)


def keras_dump(step: Optional[int] = None) -> Any:
    """The same for Keras: ``model.fit(..., callbacks=[npu_tf_config.keras_dump()])``.

    Parameters
    ----------
    step : int, optional
        The training batch to dump, counted over all epochs from 0; by default as of `function_dump`.

    Returns
    -------
    tf.keras.callbacks.Callback
        For `fit` of a compiled model, with `run_eagerly` or without.

    Raises
    ------
    ValueError
        As `function_dump`; from `fit`, if the model runs several steps in one execution.
    """
    from precision_tool.lib.training import function_dump as dumping

    return dumping.keras_dump(step)


def passport(subject: Any, batch: Any = None) -> str:
    """What the run is, with hashes of the variables and of the batch as they are now: ``passport(sess, feed_dict)``.

    The calls that begin a dump write `passport.json` into the data folder by themselves; on the NPU they cannot see the
    variables. `ac` begins with what differs between the passports of the two runs. Call it before the step, on both
    sides.

    Parameters
    ----------
    subject : tf.Session, tf.keras.Model, tf.Module or list of variables
        What holds the variables.
    batch : dict, array or list, optional
        What is fed: the `feed_dict` of a session; arrays or tensors for a model.

    Returns
    -------
    str
        The file, below `precision_data/npu/debug_0` in an NPU run, else below `precision_data/tf`.

    Raises
    ------
    ValueError
        `subject` is none of these.
    """
    from precision_tool.lib.training import passport as recording

    return recording.passport(subject, batch)


def estimator_passport() -> Any:
    """The same for an Estimator on the NPU: ``EstimatorSpec(training_hooks=[estimator_passport()])``.

    Returns
    -------
    tf.train.SessionRunHook
        Takes the hashes before the first training step. `estimator_dump` does that by itself.
    """
    from precision_tool.lib.training import passport as recording

    return recording.recording_hook()


def mixed_precision_list(
    black: Union[str, Iterable[str]] = (),
    white: Union[str, Iterable[str]] = (),
    gray: Union[str, Iterable[str], Mapping[str, str]] = (),
    path: Optional[str] = None,
) -> str:
    """Write op types into a `modify_mixlist` file for mixed precision.

    Parameters
    ----------
    black, white, gray : str or iterable of str
        Types of ops, ``"Softmax"``, that are computed in float32, in float16, or as the op before them. `gray` may be
        a mapping that names the list each is taken out of, ``{"Add": "black"}``: GE ignores another one.
    path : str, optional
        The file; by default one in the data folder, which the action `mixlist` sets.

    Returns
    -------
    str
        Its absolute path.

    Raises
    ------
    ValueError
        A type stands in two lists.
    OSError
        The file cannot be written.
    """
    from precision_tool.lib.training import mixlist

    return mixlist.mixed_precision_list(black, white, gray, path)


def keep_dtype(ops: Union[str, Iterable[str]]) -> str:
    """Print the lines of a training script that make ops keep their data type, for the TensorFlow in use.

    Parameters
    ----------
    ops : str or iterable of str
        Names of ops of the script.

    Returns
    -------
    str
        The same lines.
    """
    from precision_tool.lib.training import mixlist

    return mixlist.keep_dtype(ops)


def loss_scale(value: float) -> float:
    """Return the loss scale to use: ``FixedLossScaleManager(loss_scale=npu_tf_config.loss_scale(1024.0))``.

    Parameters
    ----------
    value : float
        The script's own.

    Returns
    -------
    float
        That of the file that `PRECISION_TOOL_SWITCHES` names, as `precision-tool bisect` does; else `value`.

    Raises
    ------
    ValueError
        The file is none of switches.
    """
    from precision_tool.lib.training import given_switches

    return given_switches.loss_scale(value)


def __getattr__(name: str) -> Any:
    """What is only known when it is asked for (PEP 562): the switch files in use, and what needs Keras."""
    if name in ("FUSION_OFF_FILE", "FUSION_SWITCH_FILE"):
        from precision_tool.lib.training import switches

        return switches.file_in_use(is_off=name == "FUSION_OFF_FILE")
    if name != "NpuPrintLossScaleCallBack":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from precision_tool.lib.training import dumping as callbacks

    globals()[name] = callbacks.loss_scale_callback()
    return globals()[name]


seed_at_import()
