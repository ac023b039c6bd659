"""CLIP's modules, with open_clip's tensor names: a text transformer beside a ViT or a ResNet.

Radford et al.: Learning Transferable Visual Models From Natural Language Supervision, ICML 2021.
Parameters start empty: tensors of weights fill them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class LayerNorm(nn.LayerNorm):
    """A layer norm in float32 of states of any type."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.float()).to(x.dtype)


class QuickGELU(nn.Module):
    """x * sigmoid(1.702 x): OpenAI's activation."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(1.702 * x)


class Block(nn.Module):
    """Attention, then an MLP, each added to what it is given."""

    def __init__(self, width: int, heads: int, mlp_ratio: float, activation: str) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = LayerNorm(width), LayerNorm(width)
        self.attn = nn.MultiheadAttention(width, heads, batch_first=True)
        hidden = int(width * mlp_ratio)
        self.mlp = nn.Sequential()
        self.mlp.add_module("c_fc", nn.Linear(width, hidden))
        self.mlp.add_module("gelu", QuickGELU() if activation == "quick_gelu" else nn.GELU())
        self.mlp.add_module("c_proj", nn.Linear(hidden, width))

    def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        normed = self.ln_1(x)
        x = x + self.attn(normed, normed, normed, need_weights=False, attn_mask=attn_mask)[0]
        done: Tensor = x + self.mlp(self.ln_2(x))
        return done


class Transformer(nn.Module):
    """Blocks, one after another."""

    def __init__(self, layers: int, width: int, heads: int, mlp_ratio: float, activation: str) -> None:
        super().__init__()
        self.resblocks: Any = nn.ModuleList(Block(width, heads, mlp_ratio, activation) for _ in range(layers))

    def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        """(n, length, width) states; `attn_mask` (length, length) is added to the logits of attention."""
        for block in self.resblocks:
            x = block(x, attn_mask)
        return x


class VisionTransformer(nn.Module):
    """(n, embed_dim) features of pixels (n, 3, image_size, image_size), from the class token's state."""

    def __init__(
        self,
        embed_dim: int,
        activation: str,
        *,
        layers: int = 12,
        width: int = 768,
        head_width: int = 64,
        mlp_ratio: float = 4.0,
        patch_size: int = 16,
        image_size: int = 224,
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, patch_size, patch_size, bias=False)
        self.class_embedding = nn.Parameter(torch.empty(width))
        self.positional_embedding = nn.Parameter(torch.empty((image_size // patch_size) ** 2 + 1, width))
        self.ln_pre, self.ln_post = LayerNorm(width), LayerNorm(width)
        self.transformer = Transformer(layers, width, width // head_width, mlp_ratio, activation)
        self.proj = nn.Parameter(torch.empty(width, embed_dim))

    def embed(self, pixels: Tensor) -> Tensor:
        """(n, 1 + patches, width) states before the first block, the class token's first."""
        x = self.conv1(pixels).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_embedding.to(x.dtype).expand(len(x), 1, -1), x], dim=1)
        states: Tensor = self.ln_pre(x + self.positional_embedding.to(x.dtype))
        return states

    def forward(self, pixels: Tensor) -> Tensor:
        features: Tensor = self.ln_post(self.transformer(self.embed(pixels))[:, 0]) @ self.proj
        return features


class Bottleneck(nn.Module):
    """Three convolutions, added to what they are given; a stride is an average pool."""

    def __init__(self, channels: int, planes: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, planes, 1, bias=False), nn.BatchNorm2d(planes)
        self.conv2, self.bn2 = nn.Conv2d(planes, planes, 3, padding=1, bias=False), nn.BatchNorm2d(planes)
        self.conv3, self.bn3 = nn.Conv2d(planes, 4 * planes, 1, bias=False), nn.BatchNorm2d(4 * planes)
        self.pool = nn.AvgPool2d(stride) if stride > 1 else nn.Identity()
        self.downsample: nn.Module = nn.Identity()
        if stride > 1 or channels != 4 * planes:
            convolution = nn.Conv2d(channels, 4 * planes, 1, bias=False)
            self.downsample = nn.Sequential()
            self.downsample.add_module("-1", self.pool)
            self.downsample.add_module("0", convolution)
            self.downsample.add_module("1", nn.BatchNorm2d(4 * planes))

    def forward(self, x: Tensor) -> Tensor:
        out = functional.relu(self.bn1(self.conv1(x)))
        out = self.pool(functional.relu(self.bn2(self.conv2(out))))
        return functional.relu(self.bn3(self.conv3(out)) + self.downsample(x))


class AttentionPool(nn.Module):
    """(n, dimension) features of a map (n, channels, h, w): what its mean attends to."""

    def __init__(self, side: int, channels: int, heads: int, dimension: int) -> None:
        super().__init__()
        self.heads = heads
        self.positional_embedding = nn.Parameter(torch.empty(side**2 + 1, channels))
        self.q_proj, self.k_proj = nn.Linear(channels, channels), nn.Linear(channels, channels)
        self.v_proj, self.c_proj = nn.Linear(channels, channels), nn.Linear(channels, dimension)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(2).transpose(1, 2)
        x = torch.cat([x.mean(dim=1, keepdim=True), x], dim=1) + self.positional_embedding.to(x.dtype)
        projected = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        query, keys, values = (t.unflatten(2, (self.heads, -1)).transpose(1, 2) for t in projected)
        attended = functional.scaled_dot_product_attention(query, keys, values)
        pooled: Tensor = self.c_proj(attended.transpose(1, 2).flatten(2))[:, 0]
        return pooled


class ResNet(nn.Module):
    """CLIP's ResNet: (n, embed_dim) features of pixels (n, 3, image_size, image_size)."""

    def __init__(
        self,
        embed_dim: int,
        *,
        layers: list[int],
        width: int = 768,
        head_width: int = 64,
        image_size: int = 224,
    ) -> None:
        super().__init__()
        half = width // 2
        self.conv1, self.bn1 = nn.Conv2d(3, half, 3, 2, padding=1, bias=False), nn.BatchNorm2d(half)
        self.conv2, self.bn2 = nn.Conv2d(half, half, 3, padding=1, bias=False), nn.BatchNorm2d(half)
        self.conv3, self.bn3 = nn.Conv2d(half, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        channels = width
        for stage, blocks in enumerate(layers):
            made = []
            for block in range(blocks):
                stride = 2 if stage and not block else 1
                made.append(Bottleneck(channels, width << stage, stride))
                channels = 4 * width << stage
            self.add_module(f"layer{stage + 1}", nn.Sequential(*made))
        self.attnpool: nn.Module = AttentionPool(
            image_size // 32, channels, channels // head_width, embed_dim
        )

    def forward(self, pixels: Tensor) -> Tensor:
        x = functional.relu(self.bn1(self.conv1(pixels)))
        x = functional.relu(self.bn2(self.conv2(x)))
        x = functional.avg_pool2d(functional.relu(self.bn3(self.conv3(x))), 2)
        for stage in range(1, 5):
            x = getattr(self, f"layer{stage}")(x)
        features: Tensor = self.attnpool(x)
        return features


class Clip(nn.Module):
    """An image tower beside a causal text transformer."""

    def __init__(
        self,
        embed_dim: int,
        visual: nn.Module,
        activation: str,
        *,
        layers: int = 12,
        width: int = 512,
        heads: int = 8,
        mlp_ratio: float = 4.0,
        context_length: int = 77,
        vocab_size: int = 49408,
    ) -> None:
        super().__init__()
        self.visual: Any = visual
        self.context_length = context_length
        self.transformer = Transformer(layers, width, heads, mlp_ratio, activation)
        self.token_embedding = nn.Embedding(vocab_size, width, _weight=torch.empty(vocab_size, width))
        self.positional_embedding = nn.Parameter(torch.empty(context_length, width))
        self.ln_final = LayerNorm(width)
        self.text_projection = nn.Parameter(torch.empty(width, embed_dim))
        self.logit_scale = nn.Parameter(torch.empty(()))
