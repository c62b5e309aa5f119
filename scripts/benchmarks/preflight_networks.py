"""Networks for `preflight_figures.py`, a training step each, dumped by msprobe: OUT NAME... Needs torch and msprobe."""

import json
import os
import sys

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn


def layers(*widths, act=nn.ReLU):
    parts = []
    for width, after in zip(widths, widths[1:]):  # noqa: B905, RUF007
        parts += [nn.Linear(width, after), act()]
    return nn.Sequential(*parts[:-1])


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x):
        weights = F.softmax(torch.matmul(self.q(x), torch.transpose(self.k(x), -1, -2)) / x.shape[-1] ** 0.5, -1)
        return self.out(torch.matmul(weights, self.v(x)))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.attention, self.norm1, self.norm2 = Attention(width), nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = layers(width, 2 * width, width, act=nn.GELU)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ConvNorm(nn.Sequential):
    def __init__(self, channels, after, size, stride=1):
        super().__init__(nn.Conv2d(channels, after, size, stride, size // 2, bias=False), nn.BatchNorm2d(after))


class Bottleneck(nn.Module):
    def __init__(self, channels, width, stride):
        super().__init__()
        self.parts = nn.ModuleList(
            [ConvNorm(channels, width, 1), ConvNorm(width, width, 3, stride), ConvNorm(width, 4 * width, 1)]
        )
        same = stride == 1 and channels == 4 * width
        self.down = nn.Identity() if same else ConvNorm(channels, 4 * width, 1, stride)

    def forward(self, x):
        y = F.relu(self.parts[0](x))
        y = self.parts[2](F.relu(self.parts[1](y)))
        return F.relu(y + self.down(x))


def resnet50():
    blocks, channels = [], 64
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for number in range(count):
            blocks.append(Bottleneck(channels, width, stride if number == 0 else 1))
            channels = 4 * width
    stem = [ConvNorm(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


class TextConv(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.conv, self.head = nn.Embedding(50, 16), nn.Conv1d(16, 32, 3), nn.Linear(32, 5)

    def forward(self, x):
        return self.head(F.relu(self.conv(torch.transpose(self.words(x), 1, 2))).mean(2))


def network(name):
    """The model, and what computes its loss."""
    classes = torch.randint(0, 5, (8,))
    vectors, images, tokens = torch.randn(8, 16), torch.randn(8, 3, 12, 12), torch.randn(4, 10, 16)
    if name == "mlp":
        net = layers(16, 32, 32, 5)
        return net, lambda: F.cross_entropy(net(vectors), classes)
    if name == "cnn_batch_norm":
        net = nn.Sequential(
            ConvNorm(3, 8, 3), nn.ReLU(), ConvNorm(8, 16, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Linear(16, 5),
        )  # fmt: skip
        return net, lambda: F.cross_entropy(net(images), classes)
    if name == "transformer":
        net = nn.Sequential(Block(16), Block(16))
        return net, lambda: F.mse_loss(net(tokens), tokens.flip(1))
    if name == "text_conv":
        net, text = TextConv(), torch.randint(0, 50, (8, 12))
        return net, lambda: F.cross_entropy(net(text), classes)
    if name == "large_logits":
        net = layers(16, 32, 5)
        return net, lambda: F.cross_entropy(net(vectors * 300) * 100, classes)
    if name == "large_variance":
        net = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.Linear(32, 5))
        return net, lambda: F.cross_entropy(net(vectors * 1000), classes)
    if name == "deep_small":
        net = layers(16, *[16] * 12, 5, act=nn.Tanh)
        return net, lambda: F.cross_entropy(net(vectors), classes) * 1e-4
    if name == "attention":
        net = Attention(16)
        return net, lambda: torch.mean(net(tokens * 3) ** 2)
    if name == "large_targets":
        net, targets = layers(16, 32, 1), torch.randn(8, 1) * 400
        return net, lambda: F.mse_loss(net(vectors), targets)
    if name == "gan":
        net = nn.ModuleList([layers(16, 32, 16), layers(16, 32, 1)])

        def loss():
            fake = net[0](vectors)
            return F.softplus(net[1](fake)).mean() + F.softplus(-net[1](vectors * 100)).mean()

        return net, loss
    net, pictures, labels = resnet50(), torch.randn(2, 3, 64, 64), torch.randint(0, 1000, (2,))
    return net, lambda: F.cross_entropy(net(pictures), labels)


def main():
    out, names = sys.argv[1], sys.argv[2:]
    from msprobe.pytorch import PrecisionDebugger, seed_all

    seed_all(seed=1, mode=True)
    os.makedirs(out, exist_ok=True)
    common = {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics"}
    path = os.path.join(out, "config.json")
    with open(path, "w") as file:
        config = {"task": "tensor", "dump_path": out, "rank": [], "step": [], "level": "mix", "async_dump": False}
        json.dump({**config, "extra_info": True, "statistics": {**common, "tensor_list": []}, "tensor": common}, file)
    debugger = PrecisionDebugger(config_path=path)
    for name in names:  # a step each
        torch.manual_seed(1)
        model, loss = network(name)
        debugger.start(model=model)
        loss().backward()
        debugger.stop()
        debugger.step()


main()
