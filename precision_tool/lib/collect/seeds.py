"""One seed for everything random in a training script. This module runs on Python 3.7."""

import os
import random
import sys
from typing import Any, List, Optional

from precision_tool.lib.settings import load_settings

#: `off` leaves all random generators alone when `tf_config` is imported, a number is the seed to take.
SEED_VARIABLE = "PRECISION_TOOL_SEED"

_LARGEST_SEED = 2**32 - 1  # numpy takes no more
#: What was seeded last in this process.
_LAST: List[int] = []


def last_seed() -> Optional[int]:
    """The seed that this process has set last; None where it has set none."""
    return _LAST[-1] if _LAST else None


def seed_at_import() -> None:
    """Seed `random` and what is imported already of numpy and TensorFlow: nothing is imported for it."""
    text = os.environ.get(SEED_VARIABLE, "").strip()
    if text.lower() == "off":
        return
    if text and not (text.isascii() and text.isdigit()):
        raise ValueError(f"environment variable {SEED_VARIABLE} must be a number or 'off' but is {text!r}")
    later = [name for name in ("numpy", "tensorflow") if name not in sys.modules]
    note = f" ({', '.join(later)} not imported yet: call seed_everything() after)" if later else ""
    seed = int(text) if text else load_settings().dump_seed
    _seed(seed, sys.modules.get("numpy"), sys.modules.get("tensorflow"), note)


def seed_everything(seed: Optional[int] = None) -> None:
    """Seed `random`, numpy and TensorFlow as far as they are installed, and hashing of child processes.

    Parameters
    ----------
    seed : int, optional
        From 0 to 2**32 - 1; by default the setting DUMP_SEED.

    Raises
    ------
    ValueError
        For another seed.
    """
    from precision_tool.lib.collect import packages

    seed = load_settings().dump_seed if seed is None else seed
    numpy = packages.numpy() if packages.is_installed("numpy") else None
    tensorflow = packages.tensorflow_v1() if packages.is_installed("tensorflow") else None
    _seed(seed, numpy, sys.modules.get("tensorflow") if tensorflow else None)


def _seed(seed: object, numpy: Optional[Any], tensorflow: Optional[Any], note: str = "") -> None:
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed <= _LARGEST_SEED:
        raise ValueError(f"seed must be a whole number from 0 to {_LARGEST_SEED} but is {seed!r}")
    _LAST[:] = [seed]
    os.environ["PYTHONHASHSEED"] = str(seed)
    random.seed(seed)
    done: List[str] = ["random"]
    if numpy is not None and hasattr(numpy, "random"):
        numpy.random.seed(seed)
        done.append("numpy")
    v1 = getattr(getattr(tensorflow, "compat", None), "v1", None)
    if v1 is not None:
        v1.set_random_seed(seed)  # of the default graph, or of eager mode
        done.append("tensorflow")
    print(f"precision_tool: seed {seed} set for {', '.join(done)}{note}", file=sys.stderr, flush=True)
