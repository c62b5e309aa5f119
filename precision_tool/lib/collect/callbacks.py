"""The Keras callback that prints the loss scale. This module runs on Python 3.7."""

import importlib
from typing import Any, Optional

from precision_tool.lib.collect.packages import ScriptError, tensorflow_v1


class _PrintLossScale:
    """Prints the loss scale before every batch, and whether the last step was free of overflow.

    `optimizer` is the loss scale optimizer that the model is trained with. For TensorFlow 2:
    `model.fit(…, callbacks=[NpuPrintLossScaleCallBack(optimizer)])`.
    """

    def __init__(self, optimizer: Any, loss: Any = None) -> None:
        parent: Any = super()
        parent.__init__()
        if not hasattr(optimizer, "loss_scale"):
            raise ScriptError(
                f"{type(optimizer).__name__} has no loss scale", "give the loss scale optimizer that wraps it"
            )
        self.optimizer = optimizer
        self.loss = loss

    def on_train_batch_begin(self, batch: int, logs: Optional[Any] = None) -> None:
        """Called by Keras."""
        text = f"precision_tool: batch {batch}: loss scale {float(_value(self.optimizer.loss_scale)):g}"
        finite = getattr(self.optimizer, "last_step_finite", None)
        if finite is not None:
            text += f", last step {'finite' if bool(_value(finite)) else 'overflowed'}"
        print(text, flush=True)


def _value(variable: Any) -> Any:
    if callable(variable):
        variable = variable()
    return variable.numpy() if hasattr(variable, "numpy") else variable


def loss_scale_callback() -> type:
    """The class `NpuPrintLossScaleCallBack`. Imports TensorFlow and Keras."""
    tensorflow_v1()
    base = importlib.import_module("tensorflow").keras.callbacks.Callback
    return type("NpuPrintLossScaleCallBack", (_PrintLossScale, base), {"__doc__": _PrintLossScale.__doc__})
