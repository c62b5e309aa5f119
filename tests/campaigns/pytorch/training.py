"""Trains a network for two steps under msprobe, on the side to judge and on the benchmark's, each in its own process.

A process that has imported PyTorch and msprobe is forked for each run. A fault is planted before msprobe is set up,
because it then wraps the functions that it finds.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import torch
import torch.distributed as dist
from msprobe.pytorch import PrecisionDebugger, seed_all

from pytorch.faults import FAULTS, Plant, unrecorded
from pytorch.networks import MAKERS
from pytorch.sets import OTHER_SIDES, Plan

Tensor = torch.Tensor
_STEPS = 2
_TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


class Lamb(torch.optim.Optimizer):
    """A step as long as the parameter is, in the direction of Adam."""

    def __init__(self, parameters: Any, lr: float, eps: float) -> None:
        super().__init__(parameters, {"lr": lr, "eps": eps})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["mean"], state["square"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
                state["mean"].mul_(0.9).add_(parameter.grad, alpha=0.1)
                state["square"].mul_(0.999).addcmul_(parameter.grad, parameter.grad, value=0.001)
                update = state["mean"] / state["square"].sqrt().add_(group["eps"])
                update = update + 0.01 * parameter
                size, length = parameter.norm(), update.norm()
                trust = torch.where((size > 0) & (length > 0), (size / length).clamp(max=10.0), 1.0)
                parameter.add_(-group["lr"] * trust * update)


def optimizer_of(plan: Plan, module: torch.nn.Module, setting: float) -> torch.optim.Optimizer:
    """The optimizer of a plan; `setting` is the factor of the other side's learning rate."""
    eps = 1e-8 if plan.precision in ("fp32", "autocast") else 1e-4  # what a short type can hold
    parameters, lr = list(module.parameters()), 1e-3 * setting
    if plan.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=0.05 * setting, momentum=0.9, weight_decay=1e-4, nesterov=True)
    if plan.optimizer == "lamb":
        return Lamb(parameters, lr, eps)
    return torch.optim.AdamW(parameters, lr=lr, eps=eps, weight_decay=0.01, fused=plan.optimizer == "fused" or None)


def _configuration(plan: Plan, folder: Path, rank: int) -> Path:
    common = {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": plan.summary}
    path = folder.parent / f"{folder.name}_config_{rank}.json"
    path.write_text(json.dumps({
        "task": plan.task, "dump_path": str(folder), "rank": [], "step": list(plan.steps), "level": plan.level,
        "risk_level": plan.scope, "async_dump": False, "extra_info": True,
        "statistics": {**common, "tensor_list": []}, "tensor": common,
    }))  # fmt: skip
    return path


def train(plan: Plan, folder: Path, rank: int = 0, plants: Sequence[Plant] = ()) -> dict[str, Any]:
    """Train and dump one rank of one side into a folder; return what a fault that is no kernel's changed."""
    for plant in plants:
        plant.put()
    torch.set_num_threads(1)
    if plan.ranks > 1:
        dist.init_process_group("gloo", init_method=f"file://{folder}.store", rank=rank, world_size=plan.ranks)
    seed_all(seed=plan.seed + (1000 if plan.fault == "seed" else 0), mode=True)
    debugger = PrecisionDebugger(config_path=str(_configuration(plan, folder, rank)))
    torch.manual_seed(plan.seed)
    network = MAKERS[plan.network](Random(plan.seed))
    changed = _changed_weights(plan, network.module) if plan.fault == "weights" else {}
    dtype = _TYPES.get(plan.precision)
    module = network.module if dtype is None else network.module.to(dtype)
    factor = 1.5 if plan.fault == "setting" else 1.0
    optimizer = optimizer_of(plan, module, factor)
    generator = torch.Generator().manual_seed(plan.seed + 7 + 100 * rank + (50 if plan.fault == "input" else 0))
    scale = 64.0 if plan.precision == "fp16" else 1.0
    if plan.fault == "seed":
        torch.manual_seed(plan.seed + 1000)
    else:
        torch.manual_seed(plan.seed + 1)
    stomp = _stomp(plan, module) if plan.fault == "overwritten" else None
    for step in range(_STEPS):
        batch = network.batch(generator)
        for plant in plants:
            plant.is_active = step >= plan.since
        if stomp is not None:
            stomp["is_active"] = step >= plan.since
        debugger.start(model=module)
        context = torch.autocast("cpu", torch.bfloat16) if plan.precision == "autocast" else contextlib.nullcontext()
        with context:
            loss = module(*batch)
        (loss * scale if scale != 1 else loss).backward()
        for parameter in module.parameters():
            if parameter.grad is not None and scale != 1:
                parameter.grad /= scale
        if plan.ranks > 1:
            for parameter in module.parameters():
                if parameter.grad is not None:
                    dist.all_reduce(parameter.grad)
                    parameter.grad /= plan.ranks
        if plan.optimizer != "fused":
            torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        debugger.stop()
        debugger.step()
    if plan.ranks > 1:
        dist.barrier()
        dist.destroy_process_group()
    return {**changed, "loss": float(loss.detach()), **({} if stomp is None else stomp)}


def _changed_weights(plan: Plan, module: torch.nn.Module) -> dict[str, Any]:
    random = Random(f"weights {plan.seed}")
    name, parameter = random.choice([pair for pair in module.named_parameters() if pair[1].dim() > 1])
    with torch.no_grad():
        if random.random() < 0.5:
            parameter.mul_(1.1)
        else:
            parameter.copy_(parameter.flip(0))
    return {"parameter": name}


def _stomp(plan: Plan, module: torch.nn.Module) -> dict[str, Any]:
    """Other memory is written over the input of a layer, after it was made and before it is read."""
    random = Random(f"stomp {plan.seed}")
    kinds = (torch.nn.Linear, torch.nn.Conv2d, torch.nn.LayerNorm, torch.nn.GroupNorm, torch.nn.Conv1d)
    layers = [(name, layer) for name, layer in module.named_modules() if isinstance(layer, kinds)]
    name, layer = random.choice(layers[1:])
    state: dict[str, Any] = {"module": f"{name}.{type(layer).__name__}", "is_active": False}

    def overwrite(_: Any, args: tuple[Tensor, ...]) -> None:
        if state["is_active"] and args[0].is_floating_point():
            with unrecorded(), torch.no_grad():
                x = args[0].data
                x[..., x.shape[-1] // 2 :] = 7.0

    layer.register_forward_pre_hook(overwrite)
    return state


# --- a pair -----------------------------------------------------------------------------------------------------------


def _all_forked(works: list[Callable[[], Any]], log: Path) -> list[Any]:
    children = []
    for work in works:
        reading, writing = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(reading)
            with log.open("a") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
                try:
                    answer = json.dumps(work())
                except BaseException:  # whatever it is, the parent has to know
                    traceback.print_exc()
                    answer = "null"
                sys.stdout.flush()
            os.write(writing, answer.encode())
            os._exit(0)
        os.close(writing)
        children.append((pid, reading))
    answers = []
    for pid, reading in children:
        with os.fdopen(reading) as file:
            answers.append(json.loads(file.read() or "null"))
        os.waitpid(pid, 0)
    return answers


def _side(plan: Plan, folder: Path, plants: Sequence[Plant] = ()) -> list[Any]:
    """Train one side, each rank in a process; a kernel is wrong in the last rank only."""

    def work(rank: int) -> Callable[[], Any]:
        own = plants if rank == plan.ranks - 1 else ()
        as_clean = replace(plan, fault="none") if rank != plan.ranks - 1 and plan.fault in OTHER_SIDES else plan

        def run() -> Any:
            changed = train(as_clean, folder, rank, own)
            entries = {name: effect for plant in own for name, effect in plant.entries.items()}
            return {"changed": changed, "entries": entries}

        return run

    folder.mkdir(parents=True)
    Path(f"{folder}.store").unlink(missing_ok=True)
    answers = _all_forked([work(rank) for rank in range(plan.ranks)], folder.parent / "log.txt")
    Path(f"{folder}.store").unlink(missing_ok=True)
    if any(answer is None for answer in answers):
        raise RuntimeError(f"{plan}: see {folder.parent}/log.txt")
    return answers


def make(plan: Plan, folder: Path) -> dict[str, Any]:
    """Write both sides of a plan below a folder and return the truth.

    A network without a place for its fault is replaced by the next of its kind. RuntimeError where none has one.
    """
    for attempt in range(15):
        made = _attempt(replace(plan, seed=plan.seed + 100_003 * attempt), folder / plan.tree)
        if made is not None:
            return made
    raise RuntimeError(f"no place for {plan.fault} in {plan.network} from seed {plan.seed} on")


def _attempt(plan: Plan, whole: Path) -> dict[str, Any] | None:
    shutil.rmtree(whole, ignore_errors=True)
    chosen: list[Plant] = []
    if plan.fault in FAULTS:
        plants = [Plant(api=api, kind=plan.fault, seed=plan.seed, is_probe=True) for api in FAULTS[plan.fault].apis]
        probed = replace(plan, task="statistics", scope="FOCUS", steps=(plan.since,))
        places = _side(probed, whole / "npu", plants)[-1]["entries"]
        if not places:
            return None
        shutil.rmtree(whole / "npu")
        random = Random(f"{plan.seed} {plan.fault}")
        api, _, count = random.choice(sorted(places)).rsplit(".", 1)[0].rpartition(".")
        one = random.random() < 0.6 and plan.fault != "stale"
        chosen = [Plant(api=api, kind=plan.fault, seed=plan.seed, count=int(count) if one else None)]
    answer = _side(plan, whole / "npu", chosen)[-1]
    if chosen and not answer["entries"]:
        return None
    _side(replace(plan, precision="fp32", fault="none"), whole / "gpu")
    return _truth(plan, answer["entries"], answer["changed"])


def _truth(plan: Plan, entries: dict[str, float], changed: dict[str, Any]) -> dict[str, Any]:
    """The truth about a pair: `accept` are the entries that a verdict may name, `cause` why they are wrong."""
    cause = {"none": "none", "weights": "weights", "input": "input", "seed": "random", "overwritten": "stomp",
             "setting": "setting"}.get(plan.fault, "kernel")  # fmt: skip
    first = next(iter(entries), None)
    return {
        **plan.document(), "cause": cause, "causes": [cause], "culprit": first, "accept": list(entries), "pass": None,
        "net": plan.network, "effects": entries, "changed": changed, "rank": plan.ranks - 1 if plan.ranks > 1 else None,
        "step": plan.since if cause != "none" else None, "note": plan.fault,
    }  # fmt: skip
