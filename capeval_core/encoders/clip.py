"""CLIP: a causal text transformer beside a ViT, a ResNet or a tower of timm's.

Radford et al.: Learning Transferable Visual Models From Natural Language Supervision, ICML 2021.
Tensors have open_clip's names. Texts run at their real length, equal ones once.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_type_hints

import torch
from torch import Tensor, nn
from torch.nn import functional

from capeval_core.encoders.blocks import LayerNorm, Transformer, among_all, run_packed
from capeval_core.encoders.clip_conversion import ClipConversion, translate_open_clip
from capeval_core.encoders.dual import DualEncoder, Pixels, TextTokenizer
from capeval_core.encoders.preprocessing import Preprocessing
from capeval_core.encoders.tokenizers import ClipTokenizer
from capeval_core.errors import expanded_path
from capeval_core.models.config import Closed, Layers, Side, Switch, Text, Width, read
from capeval_core.models.device import DTYPES, exact, stacked_on_device
from capeval_core.weights.catalogue import entry_named, entry_of
from capeval_core.weights.conversion import Conversion
from capeval_core.weights.folder import (
    CONFIG,
    OPEN_CLIP_CONFIG,
    OPEN_CLIP_TENSORS,
    TINY,
    WeightsError,
    WeightsFolder,
)

Ratio = Annotated[float, (0, 64)]
_VOCABULARY = 49_408  # of CLIP's BPE, the only tokenizer whose ids these towers know
_CONTEXT = 77


@dataclass(frozen=True)
class _VisionSizes(Closed):
    """Sizes of a ViT, or, with the blocks of four stages as its layers, of a ResNet."""

    layers: Annotated[int | list[int], range(1, 1_001), 4] = 12
    width: Width = 768
    head_width: Width = 64
    mlp_ratio: Ratio = 4.0
    patch_size: Side = 16
    image_size: Side = 224

    def __post_init__(self) -> None:
        # Of a ResNet only the attention pool has heads, of its last stage's width.
        if not isinstance(self.layers, list) and self.width % self.head_width:
            raise ValueError(f"head_width is {self.head_width}, which does not divide the width {self.width}")


@dataclass(frozen=True)
class _TextSizes(Closed):
    layers: Layers = 12
    width: Width = 512
    heads: Width = 8
    mlp_ratio: Ratio = 4.0
    context_length: Side = _CONTEXT
    vocab_size: Annotated[int, range(_VOCABULARY, _VOCABULARY + 1)] = _VOCABULARY
    no_causal_mask: Literal[False] = False

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"heads is {self.heads}, which does not divide the width {self.width}")


@dataclass(frozen=True)
class ClipSizes:
    embed_dim: Width
    vision: _VisionSizes
    text: _TextSizes


@dataclass(frozen=True)
class Constants:
    prompt: Text = ""


@dataclass(frozen=True)
class ClipSettings:
    architecture: ClipSizes
    activation: Literal["quick_gelu", "gelu"]
    preprocessing: Preprocessing
    constants: Constants = Constants()

    def __post_init__(self) -> None:
        image_size = self.preprocessing.image_size
        tower_size = self.architecture.vision.image_size
        # Positions are learned for one size: with another one a tower would fail only once it runs.
        if image_size != tower_size:
            raise ValueError(
                f"preprocessing.image_size is {image_size}, but architecture.vision's is {tower_size}"
            )


class VisionTransformer(nn.Module):
    """(n, embed_dim) features of pixels (n, 3, image_size, image_size), from the class token's state."""

    def __init__(self, embed_dim: int, activation: str, sizes: _VisionSizes) -> None:
        super().__init__()
        width = sizes.width
        patch = sizes.patch_size
        self.conv1 = nn.Conv2d(3, width, patch, patch, bias=False)
        self.class_embedding = nn.Parameter(torch.empty(width))
        # The class token's position comes first.
        self.positional_embedding = nn.Parameter(torch.empty((sizes.image_size // patch) ** 2 + 1, width))
        self.ln_pre = LayerNorm(width)
        self.ln_post = LayerNorm(width)
        layers: Any = sizes.layers
        self.transformer = Transformer(layers, width, width // sizes.head_width, sizes.mlp_ratio, activation)
        self.proj = nn.Parameter(torch.empty(width, embed_dim))

    def embed(self, patches: Tensor) -> Tensor:
        """(n, 1 + patches, width) states before the first block, of embedded patches (n, patches, width)."""
        # Embeddings are kept in float32 (`wide`), and would widen all that is added to them.
        class_token = self.class_embedding.to(patches.dtype).expand(len(patches), 1, -1)
        x = torch.cat([class_token, patches], dim=1)
        states: Tensor = self.ln_pre(x + self.positional_embedding.to(x.dtype))
        return states

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.transformer(self.embed(self.conv1(pixels).flatten(2).mT))
        return torch.matmul(self.ln_post(x[:, 0]), self.proj)


def run_vision(visual: VisionTransformer, patches: Tensor, triton: bool) -> Tensor:
    """`VisionTransformer.forward` of patch embeddings (images, patches, width)."""
    x = visual.embed(patches).flatten(0, 1)  # (images * (1 + patches), width)
    blocks = visual.transformer.resblocks
    images = len(patches)
    attention = among_all(images, blocks[0].attn.num_heads)
    class_rows = slice(None, None, len(x) // images)  # a slice is a view, where indices would copy
    states = run_packed(blocks, x, attention, triton, class_rows)
    return torch.matmul(visual.ln_post(states), visual.proj)


class Clip(nn.Module):
    """An image tower beside a causal text transformer. Parameters start empty: those of weights fill them."""

    def __init__(self, embed_dim: int, visual: nn.Module, activation: str, text: _TextSizes) -> None:
        super().__init__()
        width = text.width
        self.context_length = text.context_length
        self.visual: Any = visual
        self.transformer = Transformer(text.layers, width, text.heads, text.mlp_ratio, activation)
        self.token_embedding = nn.Embedding(
            text.vocab_size, width, _weight=torch.empty(text.vocab_size, width)
        )
        self.positional_embedding = nn.Parameter(torch.empty(text.context_length, width))
        self.ln_final = LayerNorm(width)
        self.text_projection = nn.Parameter(torch.empty(width, embed_dim))
        self.logit_scale = nn.Parameter(torch.empty(()))


class ClipTowers(DualEncoder):
    """CLIP's causal text tower, next to an image tower of any kind."""

    wide = r"(.*\.)?(ln_\w+|bn\d|downsample\.1|\w+_embedding|logit_scale)(\..*)?"  # norms and embeddings
    Conversion: ClassVar[type[Conversion]] = ClipConversion
    Settings: ClassVar[Any] = ClipSettings
    Network: ClassVar[type[Clip]] = Clip

    family: ClassVar[str] = ""  # of ViTs, in descriptions

    model: Clip

    @classmethod
    def modules(cls, config: dict[str, Any]) -> Clip:
        # A subclass has other sizes of its image tower: they are in the hint of its own `Settings`.
        sizes = read(get_type_hints(cls.Settings)["architecture"], config["architecture"])
        visual = cls.tower(config, sizes)
        with torch.device("meta"):  # no memory and no random numbers: tensors of weights take their place
            return cls.Network(sizes.embed_dim, visual, config["activation"], sizes.text)

    @classmethod
    def tower(cls, config: dict[str, Any], sizes: ClipSizes) -> nn.Module:
        """The image tower."""
        vision = sizes.vision
        if not isinstance(vision.layers, list):
            return VisionTransformer(sizes.embed_dim, config["activation"], vision)
        from open_clip.modified_resnet import ModifiedResNet  # which takes seconds to import

        heads = 32 * vision.width // vision.head_width  # its last stage is 32 times as wide as its stem
        tower: nn.Module = ModifiedResNet(
            vision.layers, sizes.embed_dim, heads, vision.image_size, vision.width
        )
        return tower

    @classmethod
    def tokenizer_of(cls, config: dict[str, Any]) -> TextTokenizer:
        """The tokenizer of a config, without tensors."""
        return ClipTokenizer(read(cls.Settings, config, "").architecture.text.context_length)

    @classmethod
    def read_config(cls, folder: WeightsFolder) -> dict[str, Any]:
        if folder.tensor_file.name == OPEN_CLIP_TENSORS:
            # open_clip's configs name no encoder: `networks.toml` tells them apart by its `signs`.
            folder = replace(folder, config=translate_open_clip(folder.config) | {"encoder": cls.kind})
        return super().read_config(folder)

    @classmethod
    def describe(cls, config: dict[str, Any]) -> str:
        """The architecture in one line."""
        shape = config["architecture"]
        vision = shape["vision"]
        text = shape["text"]
        if "timm_model_name" in vision:
            tower = vision["timm_model_name"]
        elif isinstance(vision["layers"], list):
            tower = f"ResNet {'-'.join(map(str, vision['layers']))}, width {vision['width']}"
        else:
            tower = f"{cls.family}ViT/{vision['patch_size']} {vision['layers']}x{vision['width']}"
        return (
            f"{tower}, {vision['image_size']} pixels; text {text['layers']}x{text['width']}; "
            f"{shape['embed_dim']} dimensions; {config['activation']}"
        )

    @property
    def text_blocks(self) -> Sequence[Any]:
        blocks: Sequence[Any] = self.model.transformer.resblocks
        return blocks

    def embed_tokens(self, ids: Tensor, positions: Tensor) -> Tensor:
        dtype = DTYPES[self.dtype]
        words: Tensor = self.model.token_embedding(ids).to(dtype)
        return words + self.model.positional_embedding[positions].to(dtype)

    def project_texts(self, states: Tensor) -> Tensor:
        features: Tensor = torch.matmul(self.model.ln_final(states), self.model.text_projection)
        return features


class ClipEncoder(ClipTowers, tags=["image-captioning", "clip"]):
    """CLIP, with a ViT or a ResNet as its image tower. Arguments are those of `CheckedModel`."""

    kind = "clip"

    @exact
    def run_images(self, pixels: Sequence[Pixels]) -> Tensor:
        """(n, d) features, on the device, of uint8 pixels (3, s, s) of n images; nothing waits for it."""
        visual = self.model.visual
        dtype = DTYPES[self.dtype]
        on_gpu = stacked_on_device(self.device, pixels)
        is_vit = isinstance(visual, VisionTransformer)
        if is_vit and self.triton:
            from capeval_core.encoders import cuda_kernels

            settings = self.preprocessing
            weight = visual.conv1.weight.flatten(1)
            rows = cuda_kernels.patches(
                on_gpu, visual.conv1.kernel_size[0], settings.mean, settings.std, dtype
            )
            # Rows are padded to 16 bytes (patch 14 gives 588 columns), and so is the weight, by zeros.
            embedded = rows @ functional.pad(weight, (0, rows.shape[1] - weight.shape[1])).t()
            return run_vision(visual, embedded.view(len(on_gpu), -1, embedded.shape[1]), True)
        # Scaled in float32, then rounded once: quotient and difference would each be rounded in 16 bits.
        x = self.normalised(on_gpu.float() / 255).to(dtype)
        if is_vit:
            return run_vision(visual, visual.conv1(x).flatten(2).mT, False)
        features: Tensor = visual(x)
        return features


@dataclass(frozen=True)
class TimmSizes(Closed):
    """Settings of a tower of timm's in open_clip's configs."""

    timm_model_name: Text
    image_size: Side = 224
    timm_model_pretrained: Switch = False
    timm_pool: Text = "avg"
    timm_proj: Text = "linear"
    timm_proj_bias: Switch = False
    timm_drop: Annotated[float, (-1, 1)] = 0.0
    timm_drop_path: Annotated[float, (-1, 1)] = 0.0

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w.]+", self.timm_model_name):
            # timm would fetch the configuration of a model named `hf-hub:...`.
            raise ValueError(f"timm_model_name is {self.timm_model_name!r}, no name")


@dataclass(frozen=True)
class TimmClipSizes(ClipSizes):
    vision: TimmSizes  # type: ignore[assignment]


@dataclass(frozen=True)
class OpenClipSettings(ClipSettings):
    architecture: TimmClipSizes


class OpenClipEncoder(ClipEncoder, tags=["image-captioning", "clip"]):
    """A CLIP with an image tower of timm's, as MobileCLIP's and EVA-02's, in open_clip's format."""

    kind = "open_clip"
    Settings = OpenClipSettings
    wide = rf"(?!visual\.){ClipTowers.wide}"

    def __init__(self, config: dict[str, Any], tensors: dict[str, Tensor], **more: Any) -> None:
        # Where a model has another image tower, open_clip puts the text tower's tensors under `text.`.
        renamed = {name.removeprefix("text."): tensor for name, tensor in tensors.items()}
        super().__init__(config, renamed, **more)

    @classmethod
    def tower(cls, config: dict[str, Any], sizes: ClipSizes) -> nn.Module:
        from open_clip.timm_model import TimmModel  # which takes seconds to import

        options = {}
        for key, value in config["architecture"]["vision"].items():
            option = key.removeprefix("timm_")
            if not option.startswith("model_"):
                options[option] = value
        name: str = config["architecture"]["vision"]["timm_model_name"]
        try:
            tower: nn.Module = TimmModel(name, sizes.embed_dim, **options)
        except Exception as error:  # whatever timm refuses, each in its own way
            raise WeightsError(f"the architecture of the config cannot be built ({error})") from error
        return tower

    @classmethod
    def empty(cls, config: dict[str, Any]) -> Clip:
        # Really built: timm's towers may have buffers that no file holds. Its random numbers are nobody's.
        with torch.random.fork_rng(devices=[]):
            return cls.modules(config)

    def prepare(self) -> None:
        super().prepare()
        self.model.visual.to(self.device, DTYPES[self.dtype])  # with those buffers


def known_tokenizer(weights: str | os.PathLike[str], *, tiny: str) -> ClipTokenizer | None:
    """The tokenizer of weights by their config alone; None where it shows only when they are opened."""
    name = os.fspath(weights)
    entry = entry_of(name.partition("@")[0]) or entry_named(name)
    # A folder of the user's may have a repository's name: what is on disk is what is opened.
    if entry is not None and not Path(name).is_dir():
        return ClipTokenizer(entry.context_length) if entry.network == ClipEncoder.kind else None
    folder = TINY / tiny if name == "tiny" else expanded_path(name)
    for file in (OPEN_CLIP_CONFIG, CONFIG):
        try:
            config = json.loads((folder / file).read_text(encoding="utf-8"))
            text = config["architecture"]["text"] if file == CONFIG else config["model_cfg"]["text_cfg"]
            return ClipTokenizer(read(_TextSizes, text).context_length)
        except (OSError, ValueError, KeyError, TypeError):
            continue  # an error in the config is reported when the weights are opened
    return None
