"""Ranks of sharded trainings under msprobe, on the CPU with gloo: hand-sharded layers, and one fault or none.

Started by `sharded_cases.py` with the Python that has torch and msprobe. The argument is a JSON file, a list of
objects: `out`, `layout` (a name of LAYOUTS), `fault`, `precision`, `seed`. Each rank of each is a process, forked when
torch is there, which takes most of the time.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from msprobe.pytorch import PrecisionDebugger, seed_all
from torch import nn

WIDTH, HEADS, LENGTH, BATCH, VOCABULARY, LAYERS, EXPERTS = 32, 4, 8, 8, 64, 4, 4
#: Sizes of the groups, micro-batches; `sp`: sequence parallel, `fsdp`: weights in flat slices, `moe`: experts.
LAYOUTS: dict[str, dict[str, int]] = {
    "whole": {},
    "whole_moe": {"moe": 1},
    "whole_fused": {"fused": 1},
    "tp2_fused": {"tp": 2, "fused": 1},
    "tp4_fused": {"tp": 4, "fused": 1},
    "dp2_fused": {"dp": 2, "fused": 1},
    "tp2": {"tp": 2},
    "tp4": {"tp": 4},
    "dp2": {"dp": 2},
    "dp2tp2": {"dp": 2, "tp": 2},
    "sp2": {"tp": 2, "sp": 1},
    "micro2": {"micro": 2},
    "tp2micro2": {"tp": 2, "micro": 2},
    "pp2": {"pp": 2, "micro": 2},
    "pp2tp2": {"pp": 2, "tp": 2},
    "fsdp2": {"dp": 2, "fsdp": 1},
    "fsdp4": {"dp": 4, "fsdp": 1},
    "ep2": {"tp": 2, "moe": 1},
}


class Mesh:
    """The groups of this rank: tensor parallel within data parallel within pipeline stages."""

    def __init__(self, rank: int, sizes: dict[str, int]) -> None:
        self.rank = rank
        self.tp, self.dp, self.pp = (sizes.get(name, 1) for name in ("tp", "dp", "pp"))
        self.sp, self.fsdp, self.moe, self.fused = (bool(sizes.get(name)) for name in ("sp", "fsdp", "moe", "fused"))
        self.micro = sizes.get("micro", 1)
        self.tp_rank, rest = rank % self.tp, rank // self.tp
        self.dp_rank, self.pp_rank = rest % self.dp, rest // self.dp
        self.tp_group = self.dp_group = None
        for stage in range(self.pp):
            for replica in range(self.dp):
                ranks = [(stage * self.dp + replica) * self.tp + number for number in range(self.tp)]
                group = dist.new_group(ranks) if self.tp > 1 else None
                self.tp_group = group if rank in ranks else self.tp_group
            for number in range(self.tp):
                ranks = [(stage * self.dp + replica) * self.tp + number for replica in range(self.dp)]
                group = dist.new_group(ranks) if self.dp > 1 else None
                self.dp_group = group if rank in ranks else self.dp_group


class Faults:
    """The fault that is to be planted, as `kind`, `kind:layer` or `kind:layer:rank`."""

    def __init__(self, text: str, rank: int) -> None:
        kind, _, rest = text.partition(":")
        layer, _, number = rest.partition(":")
        self.kind, self.layer, self.rank = kind, int(layer or 0), int(number) if number else None
        self.is_here = self.rank is None or self.rank == rank

    def at(self, kind: str, layer: int) -> bool:
        return self.is_here and (self.kind, self.layer) == (kind, layer)


class _Reduce(torch.autograd.Function):
    """Sums over the group in the forward; the gradient goes to each rank as it is."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any, is_kept: bool) -> torch.Tensor:
        total = x.clone()
        torch.distributed.all_reduce(total, group=group)
        return x.clone() if is_kept else total

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0], None, None


class _Copy(torch.autograd.Function):
    """Copies to the ranks of the group; their gradients are added up."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any, skips: bool) -> torch.Tensor:
        ctx.group, ctx.skips = group, skips
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        total = gradients[0].clone()
        if not ctx.skips:
            torch.distributed.all_reduce(total, group=ctx.group)
        return total, None, None


class _Gather(torch.autograd.Function):
    """Gathers slices of the sequence; the gradients are added up and scattered."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, group: Any, count: int, rank: int, turned: bool, is_last: bool
    ) -> torch.Tensor:
        ctx.group, ctx.count, ctx.rank, ctx.is_last = group, count, rank, is_last
        parts = [torch.empty_like(x) for _ in range(count)]
        torch.distributed.all_gather(parts, x.contiguous(), group=group)
        return torch.cat(parts[::-1] if turned else parts, 1)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        total = gradients[0].contiguous().clone()
        if not ctx.is_last:  # behind the last one each rank computes all of the loss
            torch.distributed.all_reduce(total, group=ctx.group)
        return total.chunk(ctx.count, 1)[ctx.rank].contiguous(), None, None, None, None, None


class _Scatter(torch.autograd.Function):
    """Adds partial sums up, of which each rank gets a slice of the sequence; the gradients are gathered."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any, count: int, rank: int, is_kept: bool) -> torch.Tensor:
        ctx.group, ctx.count = group, count
        total = x.contiguous().clone()
        torch.distributed.all_reduce(total, group=group)
        return (x if is_kept else total).chunk(count, 1)[rank].contiguous()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        parts = [torch.empty_like(gradients[0]) for _ in range(ctx.count)]
        torch.distributed.all_gather(parts, gradients[0].contiguous(), group=ctx.group)
        return torch.cat(parts, 1), None, None, None, None


class Column(nn.Module):
    """A linear layer of which each rank has some outputs."""

    def __init__(self, whole: torch.Tensor, mesh: Mesh, part: int, groups: int = 1, has_bias: bool = False) -> None:
        super().__init__()
        slices = [each.chunk(mesh.tp, 0)[part] for each in whole.chunk(groups, 0)]
        self.weight = nn.Parameter(torch.cat(slices, 0).clone())
        self.bias = nn.Parameter(0.1 * self.weight.detach().sum(1)) if has_bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight, self.bias)


class Row(nn.Module):
    """A linear layer of which each rank has some inputs: partial sums, which are added up."""

    def __init__(self, whole: torch.Tensor, mesh: Mesh, fault: Faults, layer: int) -> None:
        super().__init__()
        part = (mesh.tp_rank + 1) % mesh.tp if fault.at("wrong_row", layer) else mesh.tp_rank
        self.weight = nn.Parameter(whole.chunk(mesh.tp, 1)[part].clone())
        self.bias = nn.Parameter(0.1 * whole.sum(1)) if mesh.fused else None
        self.mesh, self.is_kept = mesh, fault.at("no_reduce", layer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mesh = self.mesh
        if mesh.tp == 1:
            return F.linear(x, self.weight, self.bias)
        y = F.linear(x, self.weight)
        if mesh.sp:
            return _Scatter.apply(y, mesh.tp_group, mesh.tp, mesh.tp_rank, self.is_kept)
        y = _Reduce.apply(y, mesh.tp_group, self.is_kept)
        return y if self.bias is None else y + self.bias


class Flat(nn.Module):
    """A linear layer whose weight lies in flat slices, padded, one a rank; it is gathered before it is used."""

    def __init__(self, whole: torch.Tensor, mesh: Mesh, fault: Faults, layer: int) -> None:
        super().__init__()
        self.shape = whole.shape
        size = -(-whole.numel() // mesh.dp)
        flat = F.pad(whole.reshape(-1), (0, size * mesh.dp - whole.numel()))
        part = (mesh.dp_rank + 1) % mesh.dp if fault.at("wrong_flat", layer) else mesh.dp_rank
        self.weight = nn.Parameter(flat.chunk(mesh.dp)[part].clone())
        self.mesh = mesh
        self.turned = fault.at("turned", layer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [torch.empty_like(self.weight) for _ in range(self.mesh.dp)]
        torch.distributed.all_gather(parts, self.weight.detach(), group=self.mesh.dp_group)
        flat = torch.cat(parts[::-1] if self.turned else parts)[: self.shape.numel()]
        gathered = _Unflat.apply(self.weight, flat.reshape(self.shape), self.mesh)
        return F.linear(x, gathered)


class _Unflat(torch.autograd.Function):
    """Gives the gradient of the gathered weight, averaged over the ranks, to the slice that a rank has."""

    @staticmethod
    def forward(ctx: Any, own: torch.Tensor, whole: torch.Tensor, mesh: Mesh) -> torch.Tensor:
        ctx.mesh, ctx.size = mesh, own.numel()
        return whole.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        mesh = ctx.mesh
        flat = gradients[0].reshape(-1)
        flat = F.pad(flat, (0, ctx.size * mesh.dp - flat.numel())).contiguous()
        torch.distributed.all_reduce(flat, group=mesh.dp_group)
        return flat.chunk(mesh.dp)[mesh.dp_rank] / mesh.dp, None, None


class Layer(nn.Module):
    """Attention and a network behind it, or experts, of which a rank has some heads and some hidden values."""

    def __init__(self, mesh: Mesh, number: int, fault: Faults, weights: Any) -> None:
        super().__init__()
        self.mesh, self.fault, self.number = mesh, fault, number
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        with torch.no_grad():
            for norm in (self.norm1, self.norm2):
                norm.weight.copy_(1 + 0.1 * weights(WIDTH))
                norm.bias.copy_(0.1 * weights(WIDTH))
        own = mesh.tp_rank
        other = (own + 1) % mesh.tp
        if mesh.fused:
            part = other if fault.at("wrong_column", number) else own
            self.qkv = Column(weights(3 * WIDTH, WIDTH), mesh, part, 3, True)
        for name in () if mesh.fused else ("q", "k", "v"):
            part = other if name == "k" and fault.at("wrong_column", number) else own
            setattr(self, name, Column(weights(WIDTH, WIDTH), mesh, part))
        self.out = Row(weights(WIDTH, WIDTH), mesh, fault, number)
        shapes = (4 * WIDTH, WIDTH), (WIDTH, 4 * WIDTH)
        if mesh.moe:
            each = [(weights(*shapes[0]), weights(*shapes[1])) for _ in range(EXPERTS)]
            count = EXPERTS // mesh.tp
            first = (other if fault.at("wrong_expert", number) else own) * count
            self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
            with torch.no_grad():
                self.gate.weight.copy_(3 * weights(EXPERTS, WIDTH))
            self.experts = nn.ModuleList(
                nn.ModuleDict(
                    {"up": nn.Linear(WIDTH, 4 * WIDTH, bias=False), "down": nn.Linear(4 * WIDTH, WIDTH, bias=False)}
                )
                for _ in range(count)
            )
            with torch.no_grad():
                for expert, (up, down) in zip(self.experts, each[first : first + count], strict=True):
                    expert["up"].weight.copy_(up)
                    expert["down"].weight.copy_(down)
        elif mesh.fsdp:
            self.up, self.down = (Flat(weights(*shape), mesh, fault, number) for shape in shapes)
        else:
            self.up = Column(weights(*shapes[0]), mesh, other if fault.at("wrong_up", number) else own, 1, mesh.fused)
            self.down = Row(weights(*shapes[1]), mesh, fault, -1)

    def enter(self, x: torch.Tensor, turned: bool = False) -> torch.Tensor:
        mesh = self.mesh
        if mesh.tp == 1:
            return x
        if mesh.sp:
            return _Gather.apply(x, mesh.tp_group, mesh.tp, mesh.tp_rank, turned, False)
        return _Copy.apply(x, mesh.tp_group, self.fault.at("no_backward_reduce", self.number))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mesh, turned = self.mesh, self.fault.at("turned", self.number)
        y = self.enter(self.norm1(x), turned)
        batch, length, _ = y.shape
        three = self.qkv(y).chunk(3, -1) if mesh.fused else (self.q(y), self.k(y), self.v(y))
        q, k, v = (z.view(batch, length, -1, WIDTH // HEADS).transpose(1, 2) for z in three)
        scores = F.softmax(torch.matmul(q, k.transpose(-1, -2)) / (WIDTH // HEADS) ** 0.5, -1)
        x = x + self.out(torch.matmul(scores, v).transpose(1, 2).reshape(batch, length, -1))
        y = self.enter(self.norm2(x))
        if not self.mesh.moe:
            return x + self.down(F.gelu(self.up(y)))
        return x + self.mix(y)

    def mix(self, y: torch.Tensor) -> torch.Tensor:
        """Sends each token to the expert that its gate chose; a rank has some of these, and adds up with the others."""
        choice = F.softmax(self.gate(y), -1)
        best = choice.argmax(-1)
        count = len(self.experts)
        total = torch.zeros_like(y)
        for number, expert in enumerate(self.experts):
            chosen = best == self.mesh.tp_rank * count + number
            hidden = expert["down"](F.gelu(expert["up"](y[chosen])))
            total[chosen] = hidden
        total = total * choice.max(-1, keepdim=True).values
        if self.mesh.tp == 1:
            return total
        return _Reduce.apply(total, self.mesh.tp_group, self.fault.at("no_reduce_mix", self.number))


class Stage(nn.Module):
    """The layers of this stage, with embedding and head where it is the first or the last."""

    def __init__(self, mesh: Mesh, fault: Faults, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)

        def weights(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator) / (shape[-1] ** 0.5 if len(shape) > 1 else 1)

        self.mesh = mesh
        embedding = nn.Embedding(VOCABULARY, WIDTH)
        with torch.no_grad():
            embedding.weight.copy_(weights(VOCABULARY, WIDTH) * WIDTH**0.5)
        per_stage = LAYERS // mesh.pp
        layers = [Layer(mesh, number, fault, weights) for number in range(LAYERS)]
        self.layers = nn.ModuleList(layers[mesh.pp_rank * per_stage : (mesh.pp_rank + 1) * per_stage])
        head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        with torch.no_grad():
            head.weight.copy_(weights(VOCABULARY, WIDTH))
        self.embedding = embedding if mesh.pp_rank == 0 else None
        self.head = head if mesh.pp_rank == mesh.pp - 1 else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mesh = self.mesh
        if self.embedding is not None:
            x = self.embedding(x)
            if mesh.sp:
                x = x.chunk(mesh.tp, 1)[mesh.tp_rank].contiguous()
        for layer in self.layers:
            x = layer(x)
        if self.head is not None:
            if mesh.sp:
                x = _Gather.apply(x, mesh.tp_group, mesh.tp, mesh.tp_rank, False, True)
            x = self.head(x)
        return x


def train(case: dict[str, Any]) -> None:
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    seed_all(seed=case["seed"], mode=True)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    path = os.path.join(os.path.dirname(case["out"]), f"config_{os.path.basename(case['out'])}_{rank}.json")
    task = {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics"}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(
            {
                "task": "tensor",
                "dump_path": case["out"],
                "rank": [],
                "step": [0, 1],
                "level": case.get("level", "mix"),
                "tensor": task,
            },
            file,
        )
    debugger = PrecisionDebugger(config_path=path)
    mesh = Mesh(rank, LAYOUTS[case["layout"]])
    fault = Faults(case["fault"], rank)
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[case["precision"]]
    model = Stage(mesh, fault, case["seed"]).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(2):
        tokens = torch.Generator().manual_seed(case["seed"] + 1 + step)
        data = torch.randint(0, VOCABULARY, (BATCH, LENGTH + 1), generator=tokens).chunk(mesh.dp)
        data = data[(mesh.dp_rank + fault.at("wrong_data", 0)) % mesh.dp]
        stale = None
        if fault.at("stale", fault.layer):
            module = model.layers[fault.layer % len(model.layers)].up
            stale = module.weight.detach().clone()
        debugger.start(model=model)
        for part in data.chunk(mesh.micro):
            run_part(model, mesh, part, dtype)
        skips_reduce = fault.at("no_gradient_reduce", fault.layer)
        if mesh.dp > 1:
            for name, parameter in model.named_parameters():
                if mesh.fsdp and parameter.dim() == 1 and "norm" not in name:
                    continue  # its slice is of the summed gradient already
                if skips_reduce and f"layers.{fault.layer}.up" in name:
                    continue
                torch.distributed.all_reduce(parameter.grad, group=mesh.dp_group)
                parameter.grad /= mesh.dp
        if mesh.tp > 1 and (mesh.sp or mesh.moe):  # what every rank has of these saw a part of the tokens only
            for name, parameter in model.named_parameters():
                if (mesh.sp and ("norm" in name or "embedding" in name)) or "gate" in name:
                    torch.distributed.all_reduce(parameter.grad, group=mesh.tp_group)
        optimizer.step()
        optimizer.zero_grad()
        if stale is not None:
            with torch.no_grad():
                module.weight.copy_(stale)
        debugger.stop()
        debugger.step()


def run_part(model: Stage, mesh: Mesh, part: torch.Tensor, dtype: torch.dtype) -> None:
    """Run a micro-batch forward and backward through the stages."""
    shape = (part.shape[0], LENGTH // (mesh.tp if mesh.sp else 1), WIDTH)
    ranks_of_stage = mesh.tp * mesh.dp
    if mesh.pp_rank == 0:
        x = part[:, :-1]
    else:
        x = torch.empty(shape, dtype=dtype)
        torch.distributed.recv(x, mesh.rank - ranks_of_stage)
        x.requires_grad_()
    y = model(x)
    if mesh.pp_rank == mesh.pp - 1:
        loss = F.cross_entropy(y.float().flatten(0, 1), part[:, 1:].flatten()) / mesh.micro
        loss.backward()
    else:
        torch.distributed.send(y.detach(), mesh.rank + ranks_of_stage)
        gradient = torch.empty_like(y)
        torch.distributed.recv(gradient, mesh.rank + ranks_of_stage)
        y.backward(gradient)
    if mesh.pp_rank:
        torch.distributed.send(x.grad, mesh.rank - ranks_of_stage)


def run_ranks(case: dict[str, Any], port: int) -> bool:
    """Run all ranks of a case in processes of their own; return whether all came to their end."""
    sizes = LAYOUTS[case["layout"]]
    count = sizes.get("tp", 1) * sizes.get("dp", 1) * sizes.get("pp", 1)
    os.environ |= {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    processes = []
    for rank in range(count):
        process = os.fork()
        if not process:
            os.environ["RANK"] = str(rank)
            status = 1
            try:
                train(case)
                status = 0
            finally:
                os._exit(status)
        processes.append(process)
    return all(os.waitpid(process, 0)[1] == 0 for process in processes)


if __name__ == "__main__":
    torch.set_num_threads(1)
    with open(sys.argv[1], encoding="utf-8") as cases:
        for number, each in enumerate(json.load(cases)):
            if not run_ranks(each, 20000 + (os.getpid() + number) % 20000):
                sys.exit(f"failed: {each}")
