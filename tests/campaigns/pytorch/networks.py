"""Small networks of the kinds that are trained today: decoder, U-Net, RNN, mixture of experts, ViT and a detector.

Each is a module whose call returns the loss of a batch, and a function that draws a batch. What differs between two
networks of a kind (widths, number of heads, the order of a norm, functions in place) is drawn by a seed. They are
written as people write them: some functions are imported by their name, which msprobe does not record, and those that
msprobe has no wrapper for (RMS norm, views, indexing, unary minus) leave gaps in what it records.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import torch
import torch.nn.functional as F  # noqa: N812  # as everybody calls it
from torch import nn
from torch.nn.functional import softplus  # by its name: msprobe does not record it
from torch.utils.checkpoint import checkpoint

Tensor = torch.Tensor
Batch = tuple[Tensor, ...]


@dataclass(frozen=True)
class Network:
    """A network and its batches: `batch(generator)` are the arguments of the module's call."""

    module: nn.Module
    batch: Callable[[torch.Generator], Batch]


def _tokens(generator: torch.Generator, count: int, length: int, words: int) -> Tensor:
    """Words of which some are much more frequent than others."""
    uniform = torch.rand(count, length, generator=generator)
    return (uniform * uniform * words).long().clamp(max=words - 1)


# --- decoder ----------------------------------------------------------------------------------------------------------


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


def rotated(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((torch.neg(second), first), -1)


class CausalAttention(nn.Module):
    """Fewer heads for keys and values than for queries, and rotary position embedding."""

    def __init__(self, width: int, heads: int, groups: int, fused: bool) -> None:
        super().__init__()
        self.heads, self.groups, self.size, self.fused = heads, groups, width // heads, fused
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, groups * self.size, bias=False)
        self.v_proj = nn.Linear(width, groups * self.size, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        batch, length, width = x.shape
        q = self.q_proj(x).view(batch, length, self.heads, self.size).transpose(1, 2)
        k = self.k_proj(x).view(batch, length, self.groups, self.size).transpose(1, 2)
        v = self.v_proj(x).view(batch, length, self.groups, self.size).transpose(1, 2)
        q, k = q * cosines + rotated(q) * sines, k * cosines + rotated(k) * sines
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.groups != self.heads)
        else:
            share = self.heads // self.groups
            k, v = k.repeat_interleave(share, 1), v.repeat_interleave(share, 1)
            scores = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(self.size)
            late = torch.ones(length, length, dtype=torch.bool).triu(1)
            scores = scores.masked_fill(late, -1e4)
            y = torch.matmul(F.softmax(scores, -1, dtype=torch.float32).to(q.dtype), v)
        return self.o_proj(y.transpose(1, 2).reshape(batch, length, width))


class GatedMlp(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down_proj, self.act = nn.Linear(hidden, width, bias=False), nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act(self.gate_proj(x)) * self.up_proj(x))


class DecoderLayer(nn.Module):
    def __init__(self, width: int, heads: int, groups: int, fused: bool) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(width), RMSNorm(width)
        self.self_attn, self.mlp = CausalAttention(width, heads, groups, fused), GatedMlp(width, 2 * width)

    def forward(self, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cosines, sines)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """A language model; the weight of the head is that of the embedding or one of its own."""

    def __init__(self, random: Random, words: int) -> None:
        super().__init__()
        heads, size = random.choice([2, 4]), random.choice([8, 12])
        width, groups = heads * size, heads // random.choice([1, 2])
        self.size, self.recomputes = size, random.random() < 0.4
        fused = random.random() < 0.6
        self.embed_tokens = nn.Embedding(words, width)
        self.layers = nn.ModuleList(DecoderLayer(width, heads, groups, fused) for _ in range(2))
        self.norm, self.lm_head = RMSNorm(width), nn.Linear(width, words, bias=False)
        if random.random() < 0.5:
            self.lm_head.weight = self.embed_tokens.weight

    def rotation(self, length: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        frequencies = 1.0 / (100.0 ** (torch.arange(0, self.size, 2).float() / self.size))
        angles = torch.outer(torch.arange(length).float(), frequencies)
        angles = torch.cat((angles, angles), -1)
        return angles.cos().to(dtype), angles.sin().to(dtype)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed_tokens(ids[:, :-1])
        cosines, sines = self.rotation(x.shape[1], x.dtype)
        for layer in self.layers:
            if self.recomputes:
                x = checkpoint(layer, x, cosines, sines, use_reentrant=False)
            else:
                x = layer(x, cosines, sines)
        logits = self.lm_head(self.norm(x)).float()
        return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), ids[:, 1:].reshape(-1))


def decoder(random: Random) -> Network:
    words, length = random.choice([48, 64]), random.choice([9, 13])
    return Network(Decoder(random, words), lambda generator: (_tokens(generator, 3, length, words),))


# --- U-Net of a diffusion model ---------------------------------------------------------------------------------------


class ResidualBlock(nn.Module):
    def __init__(self, before: int, after: int, times: int, inplace: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(4, before), nn.GroupNorm(4, after)
        self.conv1, self.conv2 = nn.Conv2d(before, after, 3, padding=1), nn.Conv2d(after, after, 3, padding=1)
        self.time, self.act = nn.Linear(times, after), nn.SiLU(inplace=inplace)
        self.short = nn.Conv2d(before, after, 1) if before != after else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.conv1(self.act(self.norm1(x)))
        y = y + self.time(F.silu(time))[:, :, None, None]
        return self.short(x) + self.conv2(self.act(self.norm2(y)))


class ImageAttention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = (
            nn.GroupNorm(4, width),
            nn.Conv1d(width, 3 * width, 1),
            nn.Conv1d(width, width, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, width, height, breadth = x.shape
        q, k, v = self.qkv(self.norm(x).reshape(batch, width, height * breadth)).chunk(3, 1)
        weights = torch.softmax(torch.bmm(q.transpose(1, 2), k) * width**-0.5, -1)
        y = torch.bmm(v, weights.transpose(1, 2))
        return x + self.out(y).reshape(batch, width, height, breadth)


class UNet(nn.Module):
    """Predicts the noise in an image, of its time."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        width, times, inplace = random.choice([8, 12]), 16, random.random() < 0.5
        self.half, self.up = times // 2, random.choice(["transposed", "nearest", "bilinear"])
        self.embed = nn.Sequential(nn.Linear(times, times), nn.SiLU(), nn.Linear(times, times))
        self.stem, self.down1 = nn.Conv2d(3, width, 3, padding=1), ResidualBlock(width, width, times, inplace)
        self.halve, self.down2 = nn.Conv2d(width, width, 3, 2, 1), ResidualBlock(width, 2 * width, times, inplace)
        self.middle = ImageAttention(2 * width)
        self.larger = (
            nn.ConvTranspose2d(2 * width, width, 4, 2, 1)
            if self.up == "transposed"
            else nn.Conv2d(2 * width, width, 3, padding=1)
        )
        self.up1, self.norm = ResidualBlock(2 * width, width, times, inplace), nn.GroupNorm(4, width)
        self.head = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, images: Tensor, noise: Tensor, steps: Tensor) -> Tensor:
        dtype = self.stem.weight.dtype
        frequencies = torch.exp(torch.arange(self.half).float() * (-math.log(1000.0) / self.half))
        angles = steps[:, None].float() * frequencies[None]
        kept = torch.cos(steps.float() * (math.pi / 200))[:, None, None, None]
        noisy = (kept * images + torch.sqrt(1 - kept * kept) * noise).to(dtype)
        time = self.embed(torch.cat([torch.sin(angles), torch.cos(angles)], -1).to(dtype))
        first = self.down1(self.stem(noisy), time)
        x = self.middle(self.down2(self.halve(first), time))
        if self.up == "transposed":
            x = self.larger(x)
        else:
            more = {"align_corners": False} if self.up == "bilinear" else {}
            x = self.larger(F.interpolate(x, scale_factor=2.0, mode=self.up, **more))
        x = self.up1(torch.cat([x, first], 1), time)
        return F.mse_loss(self.head(F.silu(self.norm(x))).float(), noise)


def unet(random: Random) -> Network:
    size = random.choice([8, 12])

    def batch(generator: torch.Generator) -> Batch:
        images, noise = (torch.randn(2, 3, size, size, generator=generator) for _ in range(2))
        return images, noise, torch.randint(1, 100, (2,), generator=generator)

    return Network(UNet(random), batch)


# --- classifier of texts ----------------------------------------------------------------------------------------------


class TextClassifier(nn.Module):
    """Words, an LSTM or GRU, attention over time with the padding masked, and weighted classes."""

    def __init__(self, random: Random, words: int) -> None:
        super().__init__()
        width, hidden = random.choice([12, 16]), random.choice([10, 16])
        kind, both = random.choice([nn.LSTM, nn.GRU]), random.random() < 0.5
        self.embed = nn.Embedding(words, width, padding_idx=0)
        self.rnn = kind(width, hidden, num_layers=random.choice([1, 2]), batch_first=True, bidirectional=both)
        wide = hidden * (2 if both else 1)
        self.score, self.norm = nn.Linear(wide, 1), nn.LayerNorm(wide)
        self.hidden, self.head = nn.Linear(wide, 24), nn.Linear(24, 5)
        self.register_buffer("weights", torch.tensor([1.0, 0.5, 2.0, 1.5, 1.0]))
        self.dropout = nn.Dropout(random.choice([0.0, 0.1]))

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        states, _ = self.rnn(self.embed(ids))
        scores = torch.tanh(self.score(states)).squeeze(-1)
        scores = scores.masked_fill(ids == 0, float("-inf"))
        weights = torch.softmax(scores, 1)
        x = self.norm(torch.bmm(weights.unsqueeze(1), states).squeeze(1))
        x = self.dropout(F.relu(self.hidden(x)))
        return F.cross_entropy(self.head(x).float(), labels, weight=self.weights.float())


def rnn(random: Random) -> Network:
    words, length = 40, random.choice([7, 10])

    def batch(generator: torch.Generator) -> Batch:
        ids = 1 + _tokens(generator, 4, length, words - 1)
        lengths = torch.randint(3, length + 1, (4, 1), generator=generator)
        ids = torch.where(torch.arange(length) < lengths, ids, 0)
        return ids, torch.randint(0, 5, (4,), generator=generator)

    return Network(TextClassifier(random, words), batch)


# --- mixture of experts -----------------------------------------------------------------------------------------------


class Experts(nn.Module):
    """The best two of some experts for each token, and a loss that spreads the tokens over them."""

    def __init__(self, width: int, count: int, inplace: bool) -> None:
        super().__init__()
        self.count, self.inplace = count, inplace
        self.gate = nn.Linear(width, count, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)) for _ in range(count)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        tokens = x.reshape(-1, x.shape[-1])
        weights = F.softmax(self.gate(tokens).float(), -1)
        best, chosen = torch.topk(weights, 2, -1)
        best = best / best.sum(-1, keepdim=True)
        is_chosen = F.one_hot(chosen, self.count)
        y = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            rows, slot = torch.where(chosen == number)
            if not len(rows):
                continue
            part = expert(tokens.index_select(0, rows)) * best[rows, slot].unsqueeze(-1).to(tokens.dtype)
            if self.inplace:
                y.index_add_(0, rows, part.to(y.dtype))
            else:
                y = y.index_add(0, rows, part.to(y.dtype))
        load = is_chosen.sum(1).float().mean(0)
        return y.reshape(x.shape), (load * weights.mean(0)).sum() * self.count


class MixtureOfExperts(nn.Module):
    def __init__(self, random: Random, words: int) -> None:
        super().__init__()
        width, count = random.choice([16, 24]), random.choice([3, 4])
        self.embed, self.position = nn.Embedding(words, width), nn.Parameter(torch.randn(16, width) * 0.1)
        inplace = random.random() < 0.5
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.mixed = nn.ModuleList(nn.Conv1d(width, width, 3, padding=1, groups=4) for _ in range(2))
        self.experts = nn.ModuleList(Experts(width, count, inplace) for _ in range(2))
        self.head = nn.Linear(width, words)

    def forward(self, ids: Tensor) -> Tensor:
        before = ids[:, :-1]
        x = self.embed(before) + self.position[: before.shape[1]]
        spread = torch.zeros((), dtype=torch.float32)
        for norm, mixed, experts in zip(self.norms, self.mixed, self.experts, strict=True):
            x = x + mixed(x.transpose(1, 2)).transpose(1, 2)
            y, loss = experts(norm(x))
            x, spread = x + y, spread + loss
        chances = F.log_softmax(self.head(x).float(), -1)
        return F.nll_loss(chances.flatten(0, 1), ids[:, 1:].flatten()) + 0.01 * spread


def moe(random: Random) -> Network:
    words = 40
    return Network(MixtureOfExperts(random, words), lambda generator: (_tokens(generator, 3, 9, words),))


# --- ViT --------------------------------------------------------------------------------------------------------------


class VitBlock(nn.Module):
    def __init__(self, width: int, heads: int, drop: float, approximate: str) -> None:
        super().__init__()
        self.norm1, self.norm2, self.heads = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6), heads
        self.qkv, self.proj, self.drop = nn.Linear(width, 3 * width), nn.Linear(width, width), nn.Dropout(drop)
        self.fc1, self.fc2 = nn.Linear(width, 3 * width), nn.Linear(3 * width, width)
        self.act = nn.GELU(approximate)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).reshape(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        weights = self.drop((q * (width // self.heads) ** -0.5 @ k.transpose(-2, -1)).softmax(-1))
        x = x + self.drop(self.proj((weights @ v).transpose(1, 2).reshape(batch, length, width)))
        return x + self.drop(self.fc2(self.act(self.fc1(self.norm2(x)))))


class Vit(nn.Module):
    def __init__(self, random: Random) -> None:
        super().__init__()
        heads = random.choice([2, 3])
        width, drop = 8 * heads, random.choice([0.0, 0.0, 0.1])
        self.patches, self.token = nn.Conv2d(3, width, 4, 4), nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.position = nn.Parameter(torch.randn(1, 10, width) * 0.1)
        approximate = random.choice(["none", "tanh"])
        self.blocks = nn.ModuleList(VitBlock(width, heads, drop, approximate) for _ in range(2))
        self.norm, self.head, self.smoothing = nn.LayerNorm(width, eps=1e-6), nn.Linear(width, 6), 0.1
        self.recomputes = random.random() < 0.3

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        x = self.patches(images.to(self.patches.weight.dtype)).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.position
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recomputes else block(x)
        return F.cross_entropy(self.head(self.norm(x)[:, 0]).float(), labels, label_smoothing=self.smoothing)


def vit(random: Random) -> Network:
    def batch(generator: torch.Generator) -> Batch:
        return torch.randn(3, 3, 12, 12, generator=generator), torch.randint(0, 6, (3,), generator=generator)

    return Network(Vit(random), batch)


# --- detector ---------------------------------------------------------------------------------------------------------


class Stage(nn.Module):
    def __init__(self, before: int, after: int, stride: int, inplace: bool) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.Conv2d(after, after, 3, 1, 1)
        self.bn1, self.bn2, self.relu = nn.BatchNorm2d(after), nn.BatchNorm2d(after), nn.ReLU(inplace=inplace)
        self.short = nn.Conv2d(before, after, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(y + self.short(x))


class Detector(nn.Module):
    """A pyramid of two sizes, with scores and boxes at each place, and the losses of the nearest places."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        width, inplace = random.choice([8, 12]), random.random() < 0.6
        self.stem, self.pool = nn.Conv2d(3, width, 3, 1, 1), nn.MaxPool2d(3, 2, 1)
        self.stage1, self.stage2 = Stage(width, width, 1, inplace), Stage(width, 2 * width, 2, inplace)
        self.lateral1, self.lateral2 = nn.Conv2d(width, width, 1), nn.Conv2d(2 * width, width, 1)
        self.slope, self.classes, self.boxes = nn.PReLU(width), nn.Conv2d(width, 4, 1), nn.Conv2d(width, 4, 1)
        self.mode, self.focal = random.choice(["nearest", "bilinear"]), random.random() < 0.5

    def forward(self, images: Tensor, places: Tensor, kinds: Tensor, targets: Tensor) -> Tensor:
        x = self.pool(F.leaky_relu(self.stem(images.to(self.stem.weight.dtype)), 0.1))
        fine = self.stage1(x)
        coarse = self.stage2(fine)
        more = {"align_corners": False} if self.mode == "bilinear" else {}
        x = self.lateral1(fine) + F.interpolate(self.lateral2(coarse), size=fine.shape[-2:], mode=self.mode, **more)
        x = self.slope(x)
        logits = self.classes(x).flatten(2).transpose(1, 2).float()
        boxes = self.boxes(x).flatten(2).transpose(1, 2).float()
        index = places.unsqueeze(-1).expand(-1, -1, 4)
        chosen = torch.gather(boxes, 1, index)
        center, extent = torch.sigmoid(chosen[..., :2]), softplus(chosen[..., 2:])
        near = F.smooth_l1_loss(torch.cat([center, extent], -1), targets, beta=0.5)
        low = torch.maximum(center - extent / 2, targets[..., :2] - targets[..., 2:] / 2)
        high = torch.minimum(center + extent / 2, targets[..., :2] + targets[..., 2:] / 2)
        common = (high - low).clamp(min=0).prod(-1)
        union = extent.prod(-1) + targets[..., 2:].prod(-1) - common
        wanted = torch.zeros_like(logits).scatter(1, index, F.one_hot(kinds, 4).to(logits.dtype))
        if self.focal:
            chance = logits.sigmoid()
            missed = torch.where(wanted > 0.5, 1 - chance, chance)
            each = F.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
            score = (missed.pow(2) * each).sum() / len(images)
        else:
            score = F.binary_cross_entropy_with_logits(logits, wanted)
        return near + score + (1 - common / (union + 1e-6)).mean()


def detector(random: Random) -> Network:
    size = random.choice([12, 16])

    def batch(generator: torch.Generator) -> Batch:
        images = torch.randn(2, 3, size, size, generator=generator)
        places = torch.stack([torch.randperm((size // 2) ** 2, generator=generator)[:3] for _ in range(2)])
        kinds = torch.randint(0, 4, (2, 3), generator=generator)
        return images, places, kinds, torch.rand(2, 3, 4, generator=generator) + 0.1

    return Network(Detector(random), batch)


MAKERS: dict[str, Callable[[Random], Network]] = {
    "decoder": decoder, "unet": unet, "rnn": rnn, "moe": moe, "vit": vit, "detector": detector,
}  # fmt: skip
