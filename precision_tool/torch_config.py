"""What PyTorch scripts import so that `precision-tool bisect` can switch their precision. Python 3.7 and newer.

    import precision_tool.torch_config as npu_torch_config
    model = npu_torch_config.configure(model)  # after the model is made, before autocast is used
    scaler = GradScaler(init_scale=npu_torch_config.loss_scale(65536.0))

Without the environment variable `PRECISION_TOOL_SWITCHES`, which names a file of switches, both change nothing.
`npu_torch_config.keep_in_float32(model, ["head"])` keeps modules in float32 without one.
"""

from typing import Any

from precision_tool.lib.training.keep_in_float32 import keep_in_float32 as keep_in_float32
from precision_tool.tf_config import loss_scale as loss_scale


def configure(model: Any) -> Any:
    """Set what the file of `PRECISION_TOOL_SWITCHES` asks for: ``model = npu_torch_config.configure(model)``.

    Modules that it names compute in float32, outside of autocast; autocast as a whole, HF32, deterministic kernels,
    the private formats of the NPU and the compilation of its kernels are switched.

    Parameters
    ----------
    model : torch.nn.Module
        Whose modules may be named; it is changed.

    Returns
    -------
    torch.nn.Module
        The same.

    Raises
    ------
    ValueError
        The file is none of switches, or names a module that the model has not.
    """
    from precision_tool.lib.training import torch_switches

    return torch_switches.configure(model)
