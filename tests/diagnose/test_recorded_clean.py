"""Nobody is accused of what PyTorch and msprobe themselves make of odd but right calls."""

from __future__ import annotations

from pathlib import Path

import pytest
from diagnosing import verdict_of
from msprobe_python import run_torch
from torch_oracle import adds_up_in_type

from precision_tool.lib.compare.scheduler import THIS_THREAD
from precision_tool.lib.data.msprobe_tree import find_msprobe
from precision_tool.lib.diagnose.recorded_figures import judge_figures

#: One step of odd calls, each with a loss of its own: OUT TASK TYPE.
CALLS = """
import json, os, sys, torch
from math import inf
from torch import nn
import torch.nn.functional as F
out, task, dtype = sys.argv[1:]
D = getattr(torch, dtype)
from msprobe.pytorch import PrecisionDebugger, seed_all
seed_all(seed=11, mode=True)
torch.set_num_threads(1)
common = {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics"}
os.makedirs(out, exist_ok=True)
with open(out + ".json", "w") as file:
    json.dump({"task": task, "dump_path": out, "rank": [], "step": [], "level": "mix", "async_dump": False,
               "extra_info": True, "statistics": {**common, "tensor_list": []}, "tensor": common}, file)
debugger = PrecisionDebugger(config_path=out + ".json")

def plain(*shape):
    return torch.randn(*shape).to(D)

def x(*shape):  # with a node before it
    return plain(*shape).requires_grad_() * 2

def parts():
    a, b = x(4, 8).chunk(2, 1)
    c, d, e = x(4, 9).split([2, 3, 4], 1)
    f, g, h = torch.unbind(x(3, 8), 0)
    i, j = torch.split(x(4, 8), 2)
    k = torch.tensor_split(x(4, 6), 3, 1)
    yield b * b
    yield (c * c).sum() + (e * e).sum()
    yield g * g
    yield torch.sigmoid(j) * j
    yield k[1] * k[1]

def matrices():
    a = x(4, 4)
    square = (a @ a.T).float() + torch.eye(4)
    yield torch.linalg.inv(square)
    yield torch.linalg.det(square)
    yield torch.linalg.matmul(a, a)
    yield torch.linalg.norm(a)
    for order in (inf, 1, 2, "nuc"):
        yield torch.linalg.norm(a.float(), order)
    yield torch.linalg.norm(a, dim=1)
    yield torch.linalg.vector_norm(a, 3, 0)
    yield torch.linalg.matrix_norm(x(2, 3, 4))
    yield torch.norm(a, 1)
    yield torch.linalg.diagonal(x(2, 3, 4))
    yield torch.diagonal(x(2, 3, 4), 0, 1, 2)
    yield torch.linalg.cross(x(3, 3), plain(3, 3))
    yield torch.cross(x(3, 3), plain(3, 3), dim=0)
    yield torch.linalg.vecdot(a, a + 1)
    yield torch.linalg.multi_dot([a, a, a])
    yield torch.einsum("ij,jk,k->i", a, a, x(4))

def losses():
    a, b, classes = x(6, 5), torch.rand(6, 5).to(D), torch.tensor([0, 1, 2, -100, 4, 3])
    for reduction in ("mean", "sum", "none"):
        yield F.smooth_l1_loss(a, b, beta=0.0, reduction=reduction)
        yield F.smooth_l1_loss(a, b, beta=0.5, reduction=reduction)
        yield F.l1_loss(a, b, reduction=reduction)
        yield F.mse_loss(a, b, reduction=reduction)
        yield F.huber_loss(a, b, delta=0.3, reduction=reduction)
        yield F.cross_entropy(a, classes, reduction=reduction)
        yield F.kl_div(F.log_softmax(a, 1), b.softmax(1), reduction=reduction)
    yield F.cross_entropy(a, b.softmax(1), label_smoothing=0.1)
    yield F.binary_cross_entropy_with_logits(a, b, pos_weight=torch.rand(5).to(D))
    yield F.cross_entropy(x(3, 5), torch.full((3,), -100), reduction="sum")

def elements():
    a = x(40)
    yield torch.div(a, 2, rounding_mode="floor") + a
    yield torch.div(a, 3.0, rounding_mode="trunc") * a
    yield torch.tensor([-1000.0, 2, inf, 5]).to(D).where(torch.tensor([True, True, False, True]), plain(4))
    yield torch.where(condition=a > 0, input=a, other=torch.zeros_like(a))
    yield torch.addcmul(input=a, tensor1=a, tensor2=a, value=0.3)
    yield torch.remainder(a, -1.5) + torch.fmod(a, 1.5)
    yield torch.tensor(3.0).to(D) * torch.tensor(2) / torch.tensor(2.5).to(D)
    yield (x(4, 1, 5) * x(3, 1)) ** 2
    logits = plain(3, 5)
    logits[1, 1:] = -inf
    yield F.softmax(logits, -1)
    mask = torch.ones(6, 6).triu(1).bool()
    yield x(2, 6, 6).masked_fill(mask, -inf).softmax(-1)
    whole = torch.arange(20).view(4, 5)
    yield (whole * whole // 3 % 7).sum() * a.sum()
    empty = torch.zeros(0, 4).to(D)
    yield torch.cat([empty, x(3, 4)]) + empty.sum() + F.linear(empty, plain(3, 4)).sum()
    target = torch.empty(4, 4).to(D)
    torch.matmul(plain(4, 4), plain(4, 4), out=target)
    yield x(4, 4) + target

def choices():
    ties = torch.randint(0, 3, (6, 20)).to(D)
    yield ties.topk(5).values.sum() + ties.max(1).values.sum() + ties.sort(descending=True).values.sum() + x(1)
    yield ties.argmax(1).sum() + ties.median(1).values.sum() + ties.kthvalue(3, 1).values.sum() + x(1)
    a = x(6, 20)
    yield a.max(1)[0] ** 2
    yield torch.topk(a, 3, 1)[0] ** 2
    yield torch.sort(a, 1)[0] ** 3
    yield torch.var_mean(a, 1)[0]
    yield a.amax((0, 1))
    yield a[a > 0] ** 2
    yield a.gather(1, torch.tensor([[0, 0, 1]])) ** 2

def images():
    a = x(2, 4, 16, 16)
    yield F.conv2d(a, x(5, 4, 3, 3), x(5), 2, 2, 2)
    yield F.conv2d(a, x(8, 2, 3, 3), padding="same", groups=2)
    yield F.conv_transpose2d(x(2, 4, 5, 5), x(4, 3, 3, 3), x(6), 2, 1, 1, 2, 2)
    yield F.avg_pool2d(a, 3, 2, 1, True, False)
    yield F.max_pool2d(a, 3, 2, 1, return_indices=True)[0]
    grid = (torch.rand(2, 9, 9, 2) * 2.4 - 1.2).to(D)
    grid[:, 0] = torch.linspace(-1, 1, 17)[:9, None].to(D)  # at pixels
    for align in (False, True):
        yield F.grid_sample(a, grid, align_corners=align)
    yield F.grid_sample(a, grid, padding_mode="border", align_corners=True)
    yield F.interpolate(a, scale_factor=1.7, mode="bilinear", align_corners=True)

def layers():
    tied = nn.Embedding(9, 6).to(D)
    yield F.linear(F.layer_norm(tied(torch.tensor([[1, 2], [2, 0]])), [6]), tied.weight)
    layer = nn.Linear(8, 8).to(D)
    yield layer(layer(x(4, 8)).relu())
    y, (h, c) = nn.LSTM(6, 5, batch_first=True).to(D)(x(3, 4, 6))
    yield y.sum() + c.square().sum()
    y = torch.sigmoid(x(4, 8)) + 0
    y += x(4, 8)
    y[:, 0].add_(1)
    yield F.relu(y.mul_(2), inplace=True)
    yield F.batch_norm(x(4, 6, 5), torch.zeros(6).to(D), torch.ones(6).to(D), x(6), x(6), True)
    yield F.rms_norm(x(4, 6), [6], x(6)) + F.normalize(x(4, 6), dim=0)
    q = x(2, 4, 6, 8)
    yield F.scaled_dot_product_attention(q, x(2, 2, 6, 8), x(2, 2, 6, 8), is_causal=True, enable_gqa=True)

class Model(nn.Module):
    def forward(self):
        groups = parts, matrices, losses, elements, choices, images, layers
        return [y for group in groups for y in group()]

model = Model()
debugger.start(model=model)
results = model()
for y in results:
    if y.requires_grad:
        y.float().square().mean().backward(retain_graph=True)
for make in (lambda each: torch.optim.AdamW(each, amsgrad=True, foreach=False),
             lambda each: torch.optim.SGD(each, 0.1, momentum=0.9, nesterov=True, foreach=True)):
    parameters = [nn.Parameter(plain(4, 5)), nn.Parameter(plain(7))]
    optimizer = make(parameters)
    for _ in range(2):
        for each in parameters:
            each.grad = torch.randn_like(each)
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
debugger.stop()
debugger.step()
print(len(results))
"""


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_clean_run_is_never_accused(tmp_path: Path, dtype: str) -> None:
    for task in ("tensor", "statistics"):
        folder = tmp_path / task
        folder.mkdir()
        printed = run_torch(CALLS, folder, str(folder / "npu"), task, dtype)
        assert int(printed.split()[-1]) > 80
        (leaf,) = find_msprobe(str(folder / "npu")).leaves
        assert judge_figures(leaf).suspects == ()
    verdict = verdict_of(tmp_path / "tensor", resources=THIS_THREAD)
    accused = [suspect.culprit for suspect in verdict.suspects]
    assert [name for name in accused if not adds_up_in_type(name, dtype)] == []
    assert verdict.culprit is None or accused
    assert verdict.tally.right > 500
