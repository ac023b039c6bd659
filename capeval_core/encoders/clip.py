"""CLIP: a causal text transformer beside a ViT, a ResNet or a tower of timm's.

Radford et al.: Learning Transferable Visual Models From Natural Language Supervision, ICML 2021.
Tensors have open_clip's names. Texts run at their real length, equal ones once.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_type_hints

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

from capeval_core.cache import SHARED, Feature, FeatureCache
from capeval_core.encoders.blocks import Causal, LayerNorm, Transformer, among_all, run_packed, usable_kernels
from capeval_core.encoders.engine import (
    Encoding,
    ImageFeatures,
    Item,
    Units,
    chunks,
    encode_stream,
    preparing,
)
from capeval_core.encoders.preprocessing import Preprocessing, normalised
from capeval_core.encoders.tokenizers import ClipTokenizer, Distinct, Ids, TextFeatures, TokenFeatures, Tokens
from capeval_core.errors import expanded_path
from capeval_core.inputs.decoders import shared_decoders
from capeval_core.inputs.images import InputImage
from capeval_core.inputs.videos import EVERY, InputFrames, Reading, Sampling
from capeval_core.models.config import Closed, Layers, Side, Switch, Text, Width, read
from capeval_core.models.device import DTYPES, exact, indices_on_device, on_host, stacked_on_device, to_host
from capeval_core.models.model import TEXTS, CheckedModel, canary_images, cosines
from capeval_core.ragged import Floats, ranges
from capeval_core.weights.catalogue import entry_named, entry_of
from capeval_core.weights.clip import ClipConversion, translate_open_clip
from capeval_core.weights.conversion import Conversion
from capeval_core.weights.folder import (
    CONFIG,
    OPEN_CLIP_CONFIG,
    OPEN_CLIP_TENSORS,
    TINY,
    WeightsError,
    WeightsFolder,
)

Pixels = NDArray[np.uint8]
Ratio = Annotated[float, (0, 64)]
_VOCABULARY, _CONTEXT = 49_408, 77
_VIDEOS_AHEAD = 8  # videos that are opened before their turn, each with a decoder and a batch of frames


@dataclass(frozen=True)
class _VisionSizes(Closed):
    """Of a ViT, or, with the blocks of four stages as its layers, of a ResNet."""

    layers: Annotated[int | list[int], range(1, 1_001), 4] = 12
    width: Width = 768
    head_width: Width = 64
    mlp_ratio: Ratio = 4.0
    patch_size: Side = 16
    image_size: Side = 224

    def __post_init__(self) -> None:
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
        made, taken = self.preprocessing.image_size, self.architecture.vision.image_size
        if made != taken:
            raise ValueError(f"preprocessing.image_size is {made}, but architecture.vision's is {taken}")


class VisionTransformer(nn.Module):
    """(n, embed_dim) features of pixels (n, 3, image_size, image_size), from the class token's state."""

    def __init__(self, embed_dim: int, activation: str, sizes: _VisionSizes) -> None:
        super().__init__()
        width, patch = sizes.width, sizes.patch_size
        self.conv1 = nn.Conv2d(3, width, patch, patch, bias=False)
        self.class_embedding = nn.Parameter(torch.empty(width))
        self.positional_embedding = nn.Parameter(torch.empty((sizes.image_size // patch) ** 2 + 1, width))
        self.ln_pre, self.ln_post = LayerNorm(width), LayerNorm(width)
        layers: Any = sizes.layers
        self.transformer = Transformer(layers, width, width // sizes.head_width, sizes.mlp_ratio, activation)
        self.proj = nn.Parameter(torch.empty(width, embed_dim))

    def embed(self, patches: Tensor) -> Tensor:
        """(n, 1 + patches, width) states before the first block, of embedded patches (n, patches, width)."""
        x = torch.cat([self.class_embedding.to(patches.dtype).expand(len(patches), 1, -1), patches], dim=1)
        states: Tensor = self.ln_pre(x + self.positional_embedding.to(x.dtype))
        return states

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.transformer(self.embed(self.conv1(pixels).flatten(2).mT))
        return torch.matmul(self.ln_post(x[:, 0]), self.proj)


def run_vision(visual: VisionTransformer, patches: Tensor, triton: bool) -> Tensor:
    """`VisionTransformer.forward` of patch embeddings (images, patches, width)."""
    x = visual.embed(patches).flatten(0, 1)
    blocks, images = visual.transformer.resblocks, len(patches)
    attention = among_all(images, blocks[0].attn.num_heads)
    first_rows = slice(None, None, len(x) // images)
    return torch.matmul(visual.ln_post(run_packed(blocks, x, attention, triton, first_rows)), visual.proj)


class Clip(nn.Module):
    """An image tower beside a causal text transformer. Parameters start empty: those of weights fill them."""

    def __init__(self, embed_dim: int, visual: nn.Module, activation: str, text: _TextSizes) -> None:
        super().__init__()
        width, self.context_length = text.width, text.context_length
        self.visual: Any = visual
        self.transformer = Transformer(text.layers, width, text.heads, text.mlp_ratio, activation)
        self.token_embedding = nn.Embedding(
            text.vocab_size, width, _weight=torch.empty(text.vocab_size, width)
        )
        self.positional_embedding = nn.Parameter(torch.empty(text.context_length, width))
        self.ln_final = LayerNorm(width)
        self.text_projection = nn.Parameter(torch.empty(width, embed_dim))
        self.logit_scale = nn.Parameter(torch.empty(()))


@dataclass(frozen=True)
class VideoFeatures:
    """Features of the frames of some consecutive videos."""

    features: list[Floats]  # per video (T, d) un-normalised, a row per frame that is used; (0, d) without any
    keys: list[str]  # content key of each video, '' where it could not be read
    errors: list[str | None]  # why a video could not be read
    incomplete: list[str | None]  # why frames are missing, of a damaged video whose others are used


class ClipTowers(CheckedModel):
    """What every CLIP has, whatever its images look like: a text tower, sizes of batches, cache keys."""

    automatic: ClassVar[Mapping[str, tuple[int, int]]] = {"images": (32, 256), "texts": (1024, 65_536)}
    """Texts are counted in tokens."""
    wide = r"(.*\.)?(ln_\w+|bn\d|downsample\.1|\w+_embedding|logit_scale)(\..*)?"  # norms and embeddings
    depends_on: ClassVar[tuple[str, ...]] = ("architecture", "activation", "preprocessing")
    Conversion: ClassVar[type[Conversion]] = ClipConversion
    Settings: ClassVar[Any] = ClipSettings

    family: ClassVar[str] = ""  # of ViTs, in descriptions

    model: Clip

    @classmethod
    def modules(cls, config: dict[str, Any]) -> Clip:
        sizes = read(get_type_hints(cls.Settings)["architecture"], config["architecture"])
        visual = cls.tower(config, sizes)
        with torch.device("meta"):
            return Clip(sizes.embed_dim, visual, config["activation"], sizes.text)

    @classmethod
    def tower(cls, config: dict[str, Any], sizes: Any) -> nn.Module:
        """The image tower."""
        vision = sizes.vision
        if not isinstance(vision.layers, list):
            return VisionTransformer(sizes.embed_dim, config["activation"], vision)
        from open_clip.modified_resnet import ModifiedResNet  # which takes seconds to import

        heads = 32 * vision.width // vision.head_width
        tower: nn.Module = ModifiedResNet(
            vision.layers, sizes.embed_dim, heads, vision.image_size, vision.width
        )
        return tower

    def prepare(self) -> None:
        self.preprocessing = Preprocessing(**self.config["preprocessing"])
        self.dimension: int = self.config["architecture"]["embed_dim"]
        self.tokenizer = self.tokenizer_of(self.config)
        self.triton = self.device.type != "cpu" and usable_kernels(self.device, DTYPES[self.dtype])

    @classmethod
    def tokenizer_of(cls, config: dict[str, Any]) -> ClipTokenizer:
        """The tokenizer of a config, without tensors."""
        return ClipTokenizer(read(cls.Settings, config, "").architecture.text.context_length)

    @classmethod
    def read_config(cls, folder: WeightsFolder) -> dict[str, Any]:
        if folder.tensor_file.name == OPEN_CLIP_TENSORS:
            folder = replace(folder, config=translate_open_clip(folder.config) | {"encoder": cls.kind})
        return super().read_config(folder)

    @classmethod
    def describe(cls, config: dict[str, Any]) -> str:
        """The architecture in one line."""
        shape = config["architecture"]
        vision, text = shape["vision"], shape["text"]
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

    def encode_texts(
        self, texts: Sequence[str], *, cache: FeatureCache = SHARED, batch_size: int | None = None
    ) -> TextFeatures:
        """Features of texts, in order, equal ones encoded once. A prompt is part of the text. Memory grows
        with the number of distinct texts: pass some 65,536 at a time."""
        arrays, tokens = self._encoded(texts, "text", cache, batch_size)
        features = np.array(arrays, dtype=np.float32).reshape(-1, self.dimension)
        return TextFeatures(features, tokens.truncated)

    def encode_tokens(
        self, texts: Sequence[str], *, cache: FeatureCache = SHARED, batch_size: int | None = None
    ) -> TokenFeatures:
        """Features of every token of texts, from the start to the end token, in the space of images: the
        final norm and the projection are applied to each. Otherwise as `encode_texts`, whose feature of a
        text is the last row here."""
        arrays, tokens = self._encoded(texts, "tokens", cache, batch_size)
        return TokenFeatures(arrays, tokens.ids, tokens.truncated)

    def _encoded(
        self, texts: Sequence[str], kind: str, cache: FeatureCache, batch_size: int | None
    ) -> tuple[list[Floats], Tokens]:
        found, size = self.tokenizer.encode(texts), self.batch("texts", batch_size)
        # Nothing after the first end token can reach it.
        tokens = Tokens([row[: row.index(self.tokenizer.end) + 1] for row in found.ids], found.truncated)
        distinct, every, shared = Distinct(tokens.ids, partial(self.key, kind), cache), kind == "tokens", 0
        sequences = distinct.missing
        if len(sequences) > 1:
            # The ids that all begin with run once in a batch. In lexicographic order all lie between two.
            first, last, longest = min(sequences), max(sequences), min(map(len, sequences)) - 1
            shared = next((i for i in range(longest) if first[i] != last[i]), longest)
        costs = [1 if batch_size else len(row) - shared for row in sequences]
        forward = partial(self._forward_texts, shared=shared, every=every)
        # Nothing waits for a batch before the last one is launched.
        for part, features in list(size.run(sequences, forward, cost=costs, after=to_host)):
            rows: Floats = features.values()
            if every:
                ends = np.cumsum([len(row) - shared for row in sequences[part]])
                own = np.split(rows[shared:], ends[:-1])
                distinct.add(part, [np.concatenate([rows[:shared], each]) for each in own])
            else:
                distinct.add(part, rows)
        return distinct.arrays(), tokens

    @exact
    def _forward_texts(self, sequences: list[Ids], shared: int, every: bool) -> Tensor:
        """(texts, d) of the last token of each; with `every` (rows, d), the shared tokens' at the front."""
        model, dtype = self.model, DTYPES[self.dtype]
        lengths = [len(row) - shared for row in sequences]
        ids = list(chain(sequences[0][:shared], *(row[shared:] for row in sequences)))
        places = ranges(np.array([0, *(shared for _ in lengths)]), np.array([shared, *lengths]))
        ids_there, places_there = indices_on_device(self.device, ids, places)
        x = model.token_embedding(ids_there).to(dtype) + model.positional_embedding[places_there].to(dtype)
        blocks = model.transformer.resblocks
        attention = Causal(lengths, shared, blocks[0].attn.num_heads, self.triton, x)
        x = run_packed(blocks, x, attention, self.triton, None if every else attention.ends)
        return torch.matmul(model.ln_final(x), model.text_projection)

    def normalised(self, pixels: Tensor) -> Tensor:
        """Pixels in [0, 1], (n, 3, s, s), less the mean and divided by the deviation of the preprocessing."""
        return normalised(pixels, self.preprocessing.mean, self.preprocessing.std)


class ClipEncoder(ClipTowers, tags=["image-captioning", "clip"]):
    """CLIP, with a ViT or a ResNet as its image tower. Arguments are those of `CheckedModel`.

    Texts run at their real length, equal ones once (exact, since attention is causal); equal images
    run once; every feature goes through a `FeatureCache`. In float32 a feature does not depend on what
    else is in the batch, up to rounding; bfloat16 and float16 take half the memory for weights and states.
    """

    kind = "clip"

    def encode_images(
        self,
        images: Iterable[InputImage],
        *,
        cache: FeatureCache = SHARED,
        batch_size: int | None = None,
        decoders: int | None = None,
    ) -> Iterator[ImageFeatures]:
        """Features of any number of images, in order, some at a time.

        Images are read and decoded by threads ahead of the encoder, or by so many processes as `decoders`.
        One that cannot be read gives a row of NaN and the reason.
        """
        own = self.preprocessing

        def decoded(images: Sequence[InputImage]) -> list[Pixels | None]:
            sources = [each.source for each in images]
            return shared_decoders(decoders or 1).pixels(sources, own.image_size, own.method)

        encoding = Encoding(
            size=self.batch("images", batch_size),
            keys=lambda content, _: (self.key("image", content.encode()),),
            prepare=own.pixels,
            forward=self.run_images,
            elsewhere=None if decoders is None else decoded,
        )
        parts = encode_stream(zip(images, repeat(None)), encoding, cache)
        return map(partial(ImageFeatures.of, shape=(self.dimension,)), parts)

    def encode_videos(
        self,
        videos: Iterable[InputFrames],
        *,
        sampling: Sampling = EVERY,
        cache: FeatureCache = SHARED,
        batch_size: int | None = None,
    ) -> Iterator[VideoFeatures]:
        """Features of the frames of any number of videos, in order, some videos at a time.

        A frame is encoded as `encode_images` encodes an image. Frames are decoded by threads ahead of the
        encoder; frames of several videos share a batch, and of a long one a few batches are in memory. Equal
        videos are encoded once. One that cannot be read gives no rows and the reason; of one whose end is
        damaged the frames before it are used, and `incomplete` says so. `batch_size`: frames per pass.
        """
        size = self.batch("images", batch_size)

        def units(item: Item, video: Any, prepared: Any, missing: Sequence[str]) -> Units:
            reading: Reading = video.read(item[0].where, sampling)
            used: list[int] = []

            def frames() -> Iterator[Pixels]:
                for index, image in reading:
                    used.append(index)
                    with preparing(item[0], image):
                        taken = self.preprocessing.pixels(image)
                    yield taken

            def join(values: list[Any]) -> dict[str, Feature]:
                row_of = {index: row for row, index in enumerate(used)}
                features = np.stack([values[row_of[index]] for index in reading.indices])
                why = np.frombuffer((reading.incomplete or "").encode(), dtype=np.uint8)
                return {missing[0]: (features, why)}

            return Units(chunks(frames(), size.size), join)

        encoding = Encoding(
            size=size,
            keys=lambda content, _: (self.key("video", f"{content} {sampling}".encode()),),
            prepare=lambda video: video,
            forward=self.run_images,
            units=units,
            ahead=_VIDEOS_AHEAD,
        )
        nothing = np.empty((0, self.dimension), dtype=np.float32), np.empty(0, dtype=np.uint8)
        for part in encode_stream(zip(videos, repeat(None)), encoding, cache):
            found = [item.arrays[item.keys[0]] if item.arrays else nothing for item in part]
            yield VideoFeatures(
                features=[features for features, _ in found],
                keys=[item.content for item in part],
                errors=[item.error for item in part],
                incomplete=[why.tobytes().decode() or None for _, why in found],
            )

    def preprocess(self, image: Image.Image) -> Floats:
        """(3, image_size, image_size) float32 pixels of a PIL image, as the image tower sees them."""
        return on_host(self.normalised(torch.from_numpy(self.preprocessing.pixels(image)).float() / 255))

    @exact
    def run_images(self, pixels: Sequence[Pixels]) -> Tensor:
        """(n, d) features, on the device, of uint8 pixels (3, s, s) of n images; nothing waits for it."""
        visual, dtype = self.model.visual, DTYPES[self.dtype]
        there = stacked_on_device(self.device, pixels)
        is_vit = isinstance(visual, VisionTransformer)
        if is_vit and self.triton:
            from capeval_core.encoders import cuda_kernels

            own, weight = self.preprocessing, visual.conv1.weight.flatten(1)
            rows = cuda_kernels.patches(there, visual.conv1.kernel_size[0], own.mean, own.std, dtype)
            embedded = rows @ functional.pad(weight, (0, rows.shape[1] - weight.shape[1])).t()
            return run_vision(visual, embedded.view(len(there), -1, embedded.shape[1]), True)
        x = self.normalised(there.float() / 255).to(dtype)
        if is_vit:
            return run_vision(visual, visual.conv1(x).flatten(2).mT, False)
        features: Tensor = visual(x)
        return features

    def canary(self) -> Floats:
        """(2, 3) cosines of two drawn images and three captions: what any change of the weights moves."""
        images = on_host(self.run_images([self.preprocessing.pixels(image) for image in canary_images()]))
        return cosines(images, self.encode_texts(TEXTS, cache=FeatureCache(0)).features)


@dataclass(frozen=True)
class _TimmSizes(Closed):
    """What open_clip's configs say of a tower of timm's."""

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
class _TimmClipSizes(ClipSizes):
    vision: _TimmSizes  # type: ignore[assignment]


@dataclass(frozen=True)
class _OpenClipSettings(ClipSettings):
    architecture: _TimmClipSizes


class OpenClipEncoder(ClipEncoder, tags=["image-captioning", "clip"]):
    """A CLIP with an image tower of timm's, as MobileCLIP's and EVA-02's, in open_clip's format."""

    kind = "open_clip"
    Settings = _OpenClipSettings
    wide = rf"(?!visual\.){ClipTowers.wide}"

    def __init__(self, config: dict[str, Any], tensors: dict[str, Tensor], **more: Any) -> None:
        # Where a model has another image tower, open_clip puts the text tower's tensors under `text.`.
        super().__init__(config, {name.removeprefix("text."): own for name, own in tensors.items()}, **more)

    @classmethod
    def tower(cls, config: dict[str, Any], sizes: Any) -> nn.Module:
        from open_clip.timm_model import TimmModel  # which takes seconds to import

        given = {key.removeprefix("timm_"): own for key, own in config["architecture"]["vision"].items()}
        options = {key: own for key, own in given.items() if not key.startswith("model_")}
        try:
            tower: nn.Module = TimmModel(sizes.vision.timm_model_name, sizes.embed_dim, **options)
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


def context_length(weights: str | os.PathLike[str], *, tiny: str) -> int | None:
    """The context length of weights by their config alone; None where it shows only when they are opened."""
    name = os.fspath(weights)
    entry = entry_of(name.partition("@")[0]) or entry_named(name)
    if entry is not None and not Path(name).is_dir():
        return entry.context_length
    folder = TINY / tiny if name == "tiny" else expanded_path(name)
    for file in (OPEN_CLIP_CONFIG, CONFIG):
        try:
            config = json.loads((folder / file).read_text(encoding="utf-8"))
            text = config["architecture"]["text"] if file == CONFIG else config["model_cfg"]["text_cfg"]
            return read(_TextSizes, text).context_length
        except (OSError, ValueError, KeyError, TypeError):
            continue  # whatever is wrong with it shows when the weights are opened
    return None
