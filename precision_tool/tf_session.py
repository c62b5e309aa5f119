"""A session that saves a training step: `from precision_tool.tf_session import PrecisionTfSession`.

`sess = PrecisionTfSession(config=config)` is a `tf.Session` in all ways. With the first run that trains it also saves

- the fed inputs, before the run: `precision_data/tf/checkpoints/input/{name with / and : as _}.npy`, and `feeds.json`
  there, which says which file is which tensor's;
- a checkpoint, after the run: `precision_data/tf/checkpoints/ckpt`.

`precision-tool train` replays that step. Runs that only initialise or restore are not taken for it.
This module runs on Python 3.7.
"""

from typing import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    PrecisionTfSession: Any


def __getattr__(name: str) -> Any:
    """The class is made when first asked for: it needs TensorFlow (PEP 562)."""
    if name != "PrecisionTfSession":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from precision_tool.lib.training import saving

    globals()[name] = saving.session_class()
    return globals()[name]
