"""A language that is made, not downloaded, and a transformer that learns it: for training that is worth sharding.

After each symbol one of SUCCESSORS others follows, each as likely. Who knows the table predicts no better than
``log(SUCCESSORS)`` nats a symbol, and who knows nothing needs ``log(VOCABULARY)``: so a loss says how much was learned.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

VOCABULARY, SUCCESSORS = 256, 4
KNOWS_NOTHING, KNOWS_ALL = math.log(VOCABULARY), math.log(SUCCESSORS)  # nats a symbol


def sequences(count: int, length: int, seed: int) -> torch.Tensor:
    """Sequences of the made language: int64 ``(count, length)``, on the CPU."""
    table = torch.randint(VOCABULARY, (VOCABULARY, SUCCESSORS), generator=torch.Generator().manual_seed(0))
    choose = torch.Generator().manual_seed(seed)
    symbols = torch.empty(count, length, dtype=torch.int64)
    symbols[:, 0] = torch.randint(VOCABULARY, (count,), generator=choose)
    for at in range(1, length):
        symbols[:, at] = table[symbols[:, at - 1], torch.randint(SUCCESSORS, (count,), generator=choose)]
    return symbols


class Block(nn.Module):
    """One layer of a decoder: attention to what came before, then two linear layers; normalised first."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*parts.unbind(), is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """A decoder of ``depth`` blocks: symbols ``(batch, length)`` to logits ``(batch, length, VOCABULARY)``."""

    def __init__(self, width: int, depth: int, heads: int, length: int) -> None:
        super().__init__()
        self.symbols, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY)

    def forward(self, symbols: torch.Tensor) -> torch.Tensor:
        x = self.symbols(symbols) + self.places.weight[: symbols.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))
