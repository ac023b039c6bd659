"""The parts of a CLIP that PAC-S tunes: projections of its frozen towers' outputs, or adapters in them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from capeval_core.cache import FeatureCache
from capeval_core.encoders.clip import Clip, ClipEncoder, VisionTransformer
from capeval_core.encoders.clip_conversion import ALPHA, low_rank_update
from capeval_core.encoders.engine import Encoding, encode_stream
from capeval_core.encoders.tokenizers import Ids
from capeval_core.errors import Problems, wrong_option
from capeval_core.inputs.images import ImageError, InputImage
from capeval_core.training.array_store import StoredArrays

Numbers = NDArray[np.int64]
SCALE = "logit_scale"  # the tensor of weights that holds log(1 / temperature)
MOST_SCALE = 100.0  # the largest 1 / temperature of CLIP
_STORED_TOGETHER = 16_384  # texts that are encoded before their outputs are stored


class TowerEncoder(ClipEncoder):
    """A CLIP without projections: (width,) of a tower, or (channels, h, w) before an attention pool."""

    def build(self, config: dict[str, Any], tensors: dict[str, Tensor]) -> Clip:
        model: Clip = super().build(config, tensors)
        width = len(model.text_projection)
        # The unit matrix and not None, so that the forward pass stays the network's own.
        model.text_projection = nn.Parameter(torch.eye(width, device=self.device), requires_grad=False)
        self.text_shape = (width,)
        if isinstance(model.visual, VisionTransformer):
            self.image_shape: tuple[int, ...] = (len(model.visual.proj),)
            projection = torch.eye(*self.image_shape * 2, device=self.device)
            model.visual.proj = nn.Parameter(projection, requires_grad=False)
        else:
            pool = model.visual.attnpool
            side = round((len(pool.positional_embedding) - 1) ** 0.5)  # a position is that of the mean
            self.image_shape = (pool.positional_embedding.shape[1], side, side)
            model.visual.attnpool = nn.Identity()
        return model

    def prepare(self) -> None:
        super().prepare()
        self.dimension = self.text_shape[0]


class Inputs(NamedTuple):
    """Inputs of the trained part of a CLIP, (n, ...), by the numbers of images and of texts."""

    images: Callable[[Numbers], Tensor]
    texts: Callable[[Numbers], Any]


def tower_outputs(
    encoder: TowerEncoder, folder: Path, images: Iterable[InputImage], texts: Sequence[str]
) -> Inputs:
    """Outputs of frozen towers, computed once and kept in a folder."""
    name = encoder.fingerprint
    text_store = StoredArrays(folder, f"{name} text", np.float32)
    keys = list(map(_text_key, texts))
    text_by_key = dict(zip(keys, texts, strict=True))  # an equal caption of another image is encoded once
    stored_keys = text_store.get(keys)
    missing = [key for key in text_by_key if key not in stored_keys]
    for start in range(0, len(missing), _STORED_TOGETHER):
        part = missing[start : start + _STORED_TOGETHER]
        encoded = encoder.encode_texts([text_by_key[key] for key in part], cache=FeatureCache(0))
        text_store.put(dict(zip(part, encoded.features, strict=True)))
    text_store.flush()
    # Feature maps before an attention pool are large, vectors are not.
    is_map = len(encoder.image_shape) == 3
    image_store = StoredArrays(folder, f"{name} image", np.float16 if is_map else np.float32)
    image_keys = _stored_images(encoder, image_store, images, encoder.run_images)
    return Inputs(
        image_store.reader(image_keys, encoder.image_shape), text_store.reader(keys, encoder.text_shape)
    )


def _text_key(text: str) -> str:
    """A key of a text, of one length however long the text is."""
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def pixels_and_ids(
    encoder: ClipEncoder, folder: Path, images: Iterable[InputImage], texts: Sequence[str]
) -> Inputs:
    """Preprocessed images, kept in a folder, and token ids: what both towers take."""
    size = encoder.preprocessing.image_size
    ids = encoder.tokenizer.encode(texts).ids
    # In bytes, as images are resized: a quarter of the numbers that they are normalised to.
    store = StoredArrays(folder, f"{encoder.preprocessing!r} pixels", np.uint8)
    pixels = store.reader(_stored_images(encoder, store, images, list), (3, size, size))
    return Inputs(
        lambda numbers: encoder.normalised((pixels(numbers) / 255).to(encoder.device)),
        lambda numbers: [ids[number] for number in numbers],
    )


def _stored_images(
    encoder: ClipEncoder, store: StoredArrays, images: Iterable[InputImage], forward: Callable[[Any], Any]
) -> list[str]:
    """Store the outputs of `forward` for preprocessed images that the store lacks; the keys of all."""
    encoding = Encoding(
        size=encoder.batch("images", None),
        keys=lambda content, _: (content,),
        prepare=encoder.preprocessing.pixels,
        forward=forward,
    )
    keys: list[str] = []
    problems = Problems()
    for part in encode_stream(((image, None) for image in images), encoding, store):
        for item in part:
            # Also of a broken one: every broken image of the set is told, once all are read.
            keys.append(item.content)
            if item.error is not None:
                problems.add(item.error, kind=ImageError)
    store.flush()
    problems.raise_if_any()
    return keys


def _frozen_clip(config: dict[str, Any], tensors: dict[str, Tensor]) -> Any:
    """The modules of a `ClipEncoder` in float32, with copies of these tensors."""
    model = ClipEncoder.empty(config)
    # Copies: the tensors are needed again, unchanged, where the trained ones are merged into them.
    copies = {}
    for name, tensor in tensors.items():
        copy = tensor.clone()
        copies[name] = copy.float() if copy.is_floating_point() else copy  # a ResNet counts batches
    model.load_state_dict(copies, assign=True)
    return model.eval().requires_grad_(False)


class _Trained(nn.Module):
    """The trained part of a CLIP, with log(1 / temperature). fixed: a temperature that is not trained."""

    def __init__(self, tensors: dict[str, Tensor], fixed: float | None) -> None:
        super().__init__()
        start = tensors[SCALE].float().reshape(()) if fixed is None else torch.tensor(-math.log(fixed))
        self.logit_scale = nn.Parameter(start.clone(), requires_grad=fixed is None)

    @torch.no_grad()
    def bound(self) -> None:
        """Keep a trained temperature at 0.01 or above."""
        if self.logit_scale.requires_grad:
            self.logit_scale.clamp_(max=math.log(MOST_SCALE))


class Projections(_Trained):
    """The projections of a CLIP, or of its texts and a ResNet's attention pool, on outputs of the towers."""

    def __init__(self, config: dict[str, Any], tensors: dict[str, Tensor], fixed: float | None) -> None:
        super().__init__(tensors, fixed)
        clip = _frozen_clip(config, tensors)
        self.text_projection = nn.Parameter(clip.text_projection.detach().clone())
        self.visual = nn.Module()
        if isinstance(clip.visual, VisionTransformer):
            self.visual.proj = nn.Parameter(clip.visual.proj.detach().clone())
        else:
            self.visual.attnpool = clip.visual.attnpool.requires_grad_(True)

    def images(self, inputs: Tensor) -> Tensor:
        """(n, d) features of images."""
        visual: Any = self.visual
        features: Tensor = visual.attnpool(inputs) if hasattr(visual, "attnpool") else inputs @ visual.proj
        return features

    def texts(self, inputs: Tensor) -> Tensor:
        """(n, d) features of texts."""
        return inputs @ self.text_projection

    def tuned(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of a plain CLIP that a state of this module has learned."""
        return state


class _LowRank(nn.Module):
    """A frozen linear layer with a trained update of low rank: W x + c + B A x * alpha / rank.

    Hu et al.: LoRA, ICLR 2022, https://arxiv.org/abs/2106.09685. A begins at random, B with zeros.
    """

    def __init__(self, weight: Tensor, bias: Tensor, rank: int) -> None:
        super().__init__()
        self.weight = weight
        self.bias = bias
        self.factor = ALPHA / rank
        self.a = nn.Linear(weight.shape[1], rank, bias=False)
        self.b = nn.Linear(rank, weight.shape[0], bias=False)
        # As in the authors' loralib: with B at 0 the training begins at the released network.
        nn.init.kaiming_uniform_(self.a.weight, a=math.sqrt(5))
        nn.init.zeros_(self.b.weight)

    def forward(self, x: Tensor) -> Tensor:
        update: Tensor = self.b(self.a(x))
        return functional.linear(x, self.weight, self.bias) + update * self.factor


class _AdaptedAttention(nn.Module):
    """Self-attention like PyTorch's, with adapters of its two projections."""

    def __init__(self, attention: nn.MultiheadAttention, rank: int) -> None:
        super().__init__()
        self.heads = attention.num_heads
        self.in_proj = _LowRank(attention.in_proj_weight, attention.in_proj_bias, rank)
        self.out_proj = _LowRank(attention.out_proj.weight, attention.out_proj.bias, rank)

    def forward(
        self,
        x: Tensor,
        keys: Tensor,
        values: Tensor,
        need_weights: bool = False,
        attn_mask: Tensor | None = None,
    ) -> tuple[Tensor, None]:
        """Attention of `x` (batch, length, width) to itself, by the signature of PyTorch's module."""
        projected = self.in_proj(x).view(*x.shape[:2], 3, self.heads, -1)
        query, key, value = projected.permute(2, 0, 3, 1, 4)  # (batch, heads, length, width of a head)
        attended = functional.scaled_dot_product_attention(query, key, value, attn_mask=attn_mask)
        return self.out_proj(attended.transpose(1, 2).flatten(2)), None


class AdaptedClip(_Trained):
    """A CLIP with trained adapters of the attention, and temperature; it takes pixels and token ids."""

    def __init__(
        self, config: dict[str, Any], tensors: dict[str, Tensor], training: Any, device: torch.device
    ) -> None:
        super().__init__(tensors, training.temperature)
        clip = _frozen_clip(config, tensors)
        if not isinstance(clip.visual, VisionTransformer):
            problem = "is only for ViTs: these weights are a ResNet's"
            raise wrong_option("lora", training.lora, problem, "pass 0")
        self._targets: dict[str, Tensor] = {}
        adapters: list[nn.Parameter] = []
        # Forked: the adapters' draws move no other draw of the process.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(training.seed)
            for name, block in [*clip.named_modules()]:
                attention = getattr(block, "attn", None)
                if isinstance(attention, nn.MultiheadAttention):
                    block.attn = _AdaptedAttention(attention, training.lora)
                    # The names of PyTorch's own module: `in_proj_weight`, but `out_proj.weight`. The order is
                    # that in which `tuned` reads the adapters: A and B of each target.
                    for part, layer in (("in_proj_", block.attn.in_proj), ("out_proj.", block.attn.out_proj)):
                        target = f"{name}.attn.{part}weight"
                        self._targets[target] = tensors[target]
                        adapters += [layer.a.weight, layer.b.weight]
        clip.to(device).train()
        length = clip.context_length
        self._clip = [clip]  # in a list: its frozen tensors are not part of the state
        # (length, length), 0 on and below the diagonal: a token sees those before it.
        self._mask = torch.full((length, length), -torch.inf, device=device).triu(1)
        self.adapters = nn.ParameterList(adapters)

    def images(self, inputs: Tensor) -> Tensor:
        """(n, d) features of images."""
        features: Tensor = self._clip[0].visual(inputs)
        return features

    def texts(self, inputs: Sequence[Ids]) -> Tensor:
        """(n, d) features of texts."""
        clip = self._clip[0]
        # To the longest of the batch and not to 77: the mask lets no token see the padding behind it.
        longest = max(map(len, inputs))
        padded = torch.zeros(len(inputs), longest, dtype=torch.long)
        for row, text in zip(padded, inputs, strict=True):
            row[: len(text)] = torch.tensor(text)
        # CLIP reads a text off its end mark, which has the largest id.
        ends = torch.tensor([text.index(max(text)) for text in inputs])
        states = clip.token_embedding(padded.to(self._mask.device)) + clip.positional_embedding[:longest]
        states = clip.transformer(states, attn_mask=self._mask[:longest, :longest])
        features: Tensor = clip.ln_final(states[torch.arange(len(inputs)), ends]) @ clip.text_projection
        return features

    def tuned(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of a plain CLIP that a state of this module has learned, its adapters merged."""
        merged = {SCALE: state[SCALE]}
        for index, (target, before) in enumerate(self._targets.items()):
            a = state[f"adapters.{2 * index}"].cpu()
            b = state[f"adapters.{2 * index + 1}"].cpu()
            # In float64, as in the conversion of released adapters: one rounding, at the end.
            merged[target] = (before.double() + low_rank_update(before, a, b)).float()
        return merged


TunedClip = Projections | AdaptedClip
