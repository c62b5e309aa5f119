"""A session that saves a training step: `from precision_tool.tf_session import PrecisionTfSession`.

`sess = PrecisionTfSession(config=config)` is a `tf.Session` in all ways. With the first run that trains, which is
the first that reaches an op of the collection `train_op` (TensorFlow's optimizers fill it), it also saves

- the fed inputs, before the run: `precision_data/tf/checkpoints/input/{name with / and : as _}.npy`, and `feeds.json`
  there, which says which file is which tensor's, and which training ops ran;
- a checkpoint, after the run: `precision_data/tf/checkpoints/ckpt`.

`precision-tool train` replays that step. Where the collection is empty, the first run is saved that does not only
initialise, restore or assign what is fed; `train` needs the training op in it: `tf.add_to_collection('train_op', op)`.
When saving fails, a line on stderr says so, and the training goes on.
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
