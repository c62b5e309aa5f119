"""Sets of dumps: which network, precision and fault each has. Without PyTorch, which `training` runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

NETWORKS = ("decoder", "unet", "rnn", "moe", "vit", "detector")
PRECISIONS = ("fp32", "fp16", "bf16", "autocast")
OPTIMIZERS = ("adamw", "sgd", "sgd", "lamb", "fused", "fused")
#: What another side has, not another kernel.
OTHER_SIDES = ("weights", "input", "seed", "setting", "overwritten")
#: Kinds of wrong kernels, as `faults.FAULTS` has them.
KERNELS = (
    "block", "element", "nan_head", "epsilon", "axis", "scale_forgotten", "transposed", "narrow_sums", "not_masked",
    "sign", "other_expert", "next_rows", "other_class", "other_gelu", "aligned", "loss_option", "clipped", "coarse",
    "stale", "race", "update", "norm", "noisy", "channel", "scaled", "gradient_block", "gradient_scaled",
    "gradient_sign", "gradient_element", "average",
)  # fmt: skip
#: Networks that have a place for a kind, where not all have.
_WHERE = {
    "seed": ("rnn", "vit"),
    "not_masked": ("decoder", "rnn"), "sign": ("decoder", "unet"), "other_expert": ("moe",), "other_class": ("moe",),
    "next_rows": ("decoder", "moe", "detector", "rnn"), "other_gelu": ("vit", "moe"),
    "aligned": ("unet", "detector"), "loss_option": ("vit", "rnn", "detector"), "channel": ("unet", "detector"),
    "axis": ("decoder", "unet", "moe", "vit", "rnn"), "epsilon": ("unet", "vit", "moe", "detector", "rnn"),
    "nan_head": ("decoder", "unet", "vit"), "transposed": ("decoder", "vit", "unet"), "stale": ("vit", "moe", "unet"),
    "noisy": ("unet", "detector", "rnn"), "coarse": ("vit", "moe", "unet", "detector"), "race": ("unet", "moe", "vit"),
    "scale_forgotten": ("decoder", "unet"), "narrow_sums": ("decoder", "vit", "unet", "rnn"),
}  # fmt: skip
#: Kinds whose effect a short type would hide.
_FINE = frozenset({"other_gelu", "coarse", "narrow_sums", "update"})


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One pair of runs, the one to judge and its benchmark: everything that they are made from.

    `scope` is msprobe's `risk_level`: by default it is FOCUS, which leaves out what only moves elements; ALL does not.
    `ranks` is 1 where the training is not distributed. A fault is there from the step `since` on.
    """

    tree: str
    seed: int
    network: str
    precision: str
    optimizer: str
    fault: str = "none"
    task: str = "tensor"
    summary: str = "statistics"
    level: str = "mix"
    scope: str = "FOCUS"
    ranks: int = 1
    since: int = 0
    #: The steps that are dumped, of the two that are trained.
    steps: tuple[int, ...] = (0, 1)

    def document(self) -> dict[str, Any]:
        """It as a JSON object."""
        return asdict(self)


def plans(*, count: int, seed: int, faults: Sequence[str] = (), clean: float = 1 / 3) -> list[Plan]:
    """Return the plans of a set: networks, precisions and faults each as often as the others, mixed.

    Parameters
    ----------
    count : int
        The number of pairs.
    seed : int
        Another number gives another set.
    faults : sequence of str, optional
        The kinds of faults; all by default.
    clean : float, optional
        The share of runs without a fault.
    """
    random = Random(f"plans {seed}")
    number_clean = round(count * clean)
    kinds = list(faults or (*KERNELS, *OTHER_SIDES))
    random.shuffle(kinds)
    chosen = ["none"] * number_clean + [kinds[at % len(kinds)] for at in range(count - number_clean)]
    precisions = [PRECISIONS[at % len(PRECISIONS)] for at in range(count)]
    networks = [NETWORKS[at % len(NETWORKS)] for at in range(count)]
    for column in (chosen, precisions, networks):
        random.shuffle(column)
    return [
        _plan(random, f"t{number:03d}", seed + number, *row)
        for number, row in enumerate(zip(chosen, precisions, networks, strict=True))
    ]


def _plan(random: Random, tree: str, seed: int, fault: str, precision: str, network: str) -> Plan:
    if network not in _WHERE.get(fault, NETWORKS):
        network = random.choice(_WHERE[fault])
    if fault in _FINE:
        precision = "fp32"
    if network == "unet" and precision == "fp16":
        precision = "bf16"  # PyTorch's transposed convolution for processors adds up in float16: a fault of its own
    optimizer = random.choice(OPTIMIZERS)
    if fault == "update":
        optimizer = random.choice(["adamw", "lamb"])
    if fault == "race" and network == "vit":
        optimizer = "adamw"
    since = int(random.random() < 0.25)
    task = random.choices(["tensor", "statistics"], [4, 1])[0]
    return Plan(
        tree=tree,
        seed=seed,
        network=network,
        precision=precision,
        optimizer=optimizer,
        fault=fault,
        task=task,
        summary=random.choice(["statistics", "md5"]) if task == "statistics" else "statistics",
        level="L1" if random.random() < 0.2 else "mix",
        scope="ALL" if random.random() < 0.3 else "FOCUS",
        ranks=2 if fault == "average" or random.random() < 0.1 else 1,
        since=since,
        steps=random.choice([(0, 1), (since,), (since,)]),
    )
