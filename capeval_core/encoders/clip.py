"""CLIP's two towers: captions and images to features, each computed once, as fast as is exact."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, repeat
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from capeval_core.cache import SHARED, FeatureCache, feature_key
from capeval_core.encoders.clip_model import build_clip, config_problems, empty_clip
from capeval_core.encoders.clip_modules import Clip, VisionTransformer
from capeval_core.encoders.cuda_blocks import (
    PYTORCH,
    Causal,
    embedded_patches,
    run_packed,
    run_vision,
    usable_kernels,
)
from capeval_core.encoders.engine import Encoding, ImageFeatures, encode_stream
from capeval_core.encoders.preprocessing import Preprocessing, normalised
from capeval_core.encoders.texts import (
    TextFeatures,
    TokenFeatures,
    common_prefix,
    encode_distinct,
    sentence_features,
)
from capeval_core.encoders.tokenizers import ClipTokenizer, Ids, Tokens
from capeval_core.encoders.videos import VideoFeatures, encode_frames
from capeval_core.inputs.decoders import Decoders, shared_decoders
from capeval_core.inputs.images import InputImage
from capeval_core.inputs.videos import EVERY, InputFrames, Sampling
from capeval_core.models.batching import BatchSize
from capeval_core.models.canary import TEXTS, canary_images, cosines
from capeval_core.models.copies import on_device, on_host, stacked_on_device, to_host
from capeval_core.models.device import DTYPES, exact
from capeval_core.models.model import CheckedModel
from capeval_core.weights.clip import ClipConversion, translate_open_clip
from capeval_core.weights.conversion import Conversion
from capeval_core.weights.folder import OPEN_CLIP_TENSORS, WeightsError, WeightsFolder

Floats = NDArray[np.float32]


class ClipTowers(CheckedModel):
    """What every CLIP has, whatever its images look like: a text tower, sizes of batches, cache keys.

    Texts run at their real length, equal ones once (exact, since attention is causal).
    """

    model: Clip

    def prepare(self) -> None:
        self.preprocessing = Preprocessing(**self.config["preprocessing"])
        self.dimension: int = self.config["architecture"]["embed_dim"]
        self.tokenizer = ClipTokenizer(self.model.context_length)
        on_cpu = self.device.type == "cpu"
        self.kernels = PYTORCH if on_cpu else usable_kernels(self.device, DTYPES[self.dtype])
        self._automatic_texts = BatchSize(1024 if on_cpu else 65_536, automatic=True)  # in tokens
        self._automatic_images = BatchSize(32 if on_cpu else 256, automatic=True)

    @staticmethod
    def describe(config: dict[str, Any]) -> str:
        """The architecture in one line.

        >>> vision = {"layers": 12, "width": 768, "patch_size": 32, "image_size": 224}
        >>> text = {"layers": 12, "width": 512}
        >>> shape = {"embed_dim": 512, "vision": vision, "text": text}
        >>> ClipTowers.describe({"architecture": shape, "activation": "quick_gelu"})
        'ViT/32 12x768, 224 pixels; text 12x512; 512 dimensions; quick_gelu'
        """
        vision, text = config["architecture"]["vision"], config["architecture"]["text"]
        if isinstance(vision["layers"], list):
            tower = f"ResNet {'-'.join(map(str, vision['layers']))}, width {vision['width']}"
        else:
            tower = f"ViT/{vision['patch_size']} {vision['layers']}x{vision['width']}"
        return (
            f"{tower}, {vision['image_size']} pixels; text {text['layers']}x{text['width']}; "
            f"{config['architecture']['embed_dim']} dimensions; {config['activation']}"
        )

    def encode_texts(
        self, texts: Sequence[str], *, cache: FeatureCache = SHARED, batch_size: int | None = None
    ) -> TextFeatures:
        """Features of texts, in order. A prompt is part of the text.

        Equal texts are encoded once. Memory grows with the number of distinct texts: pass
        some 65,536 at a time.

        >>> clip = ClipEncoder.from_pretrained("tiny")
        >>> clip.encode_texts(["A photo depicts a red circle", "A photo depicts a RED circle"]).features.shape
        (2, 128)
        """
        tokens = self._tokens(texts)
        key = partial(self._text_key, kind="text")
        forward = partial(self._run_texts, batch_size=batch_size, every=False)
        arrays = encode_distinct(tokens, key, forward, cache)
        return TextFeatures(sentence_features(arrays, self.dimension), tokens.truncated)

    def encode_tokens(
        self, texts: Sequence[str], *, cache: FeatureCache = SHARED, batch_size: int | None = None
    ) -> TokenFeatures:
        """Features of every token of texts, from the start to the end token, in the space of images.

        The final norm and the projection are applied to each. No text is padded. Otherwise as `encode_texts`,
        whose feature of a text is the last row here.

        >>> clip = ClipEncoder.from_pretrained("tiny")
        >>> [rows.shape for rows in clip.encode_tokens(["a red circle", ""]).features]
        [(5, 128), (2, 128)]
        """
        tokens = self._tokens(texts)
        key = partial(self._text_key, kind="tokens")
        forward = partial(self._run_texts, batch_size=batch_size, every=True)
        arrays = encode_distinct(tokens, key, forward, cache)
        return TokenFeatures(arrays, tokens.ids, tokens.truncated)

    def _tokens(self, texts: Sequence[str]) -> Tokens:
        """Ids up to the first end token: nothing after it can reach it."""
        tokens = self.tokenizer.encode(texts)
        return Tokens([row[: row.index(self.tokenizer.end) + 1] for row in tokens.ids], tokens.truncated)

    def _text_key(self, ids: Ids, kind: str) -> str:
        return self._key(kind, np.array(ids, dtype="<u4").tobytes())

    def normalised(self, pixels: Tensor) -> Tensor:
        """Pixels in [0, 1], (n, 3, s, s), less the mean and divided by the deviation of the preprocessing."""
        return normalised(pixels, self.preprocessing.mean, self.preprocessing.std)

    def images_per_batch(self, batch_size: int | None) -> BatchSize:
        """The batch size that a user gave, or the automatic one."""
        return self._automatic_images if batch_size is None else BatchSize(batch_size, automatic=False)

    def _run_texts(
        self, sequences: list[Ids], batch_size: int | None, every: bool
    ) -> Iterator[tuple[slice, Iterable[Floats]]]:
        """Features of sequences sorted by length; the ids that all begin with run once in a batch."""
        shared = common_prefix(sequences)
        size, costs = self._automatic_texts, [len(row) - shared for row in sequences]
        if batch_size is not None:
            size, costs = BatchSize(batch_size, automatic=False), [1] * len(sequences)
        forward = partial(self._packed_forward, shared=shared, every=every)
        # Nothing waits for a batch before the last one is launched.
        for part, features in list(size.run(sequences, forward, cost=costs, after=to_host)):
            rows: Floats = features.values()
            if not every:
                yield part, rows
                continue
            ends = np.cumsum([len(row) - shared for row in sequences[part]]) + shared
            own = np.split(rows[shared:], ends[:-1] - shared)
            yield part, [np.concatenate([rows[:shared], each]) if shared else each for each in own]

    @exact
    def _packed_forward(self, sequences: list[Ids], shared: int, every: bool) -> Tensor:
        """(texts, d) of the last token of each; with `every` (rows, d), the shared tokens' at the front."""
        model, dtype, prefix = self.model, DTYPES[self.dtype], sequences[0][:shared]
        lengths = [len(row) - shared for row in sequences]
        ids = np.fromiter(chain(prefix, *(row[shared:] for row in sequences)), np.int64)
        begins = np.cumsum([0, *lengths[:-1]])
        own = np.arange(len(ids) - shared) - np.repeat(begins, lengths)
        places = np.concatenate([np.arange(shared), shared + own])
        ids_there, places_there = (on_device(torch.from_numpy(t), self.device) for t in (ids, places))
        positions = model.positional_embedding[places_there].to(dtype)
        x = model.token_embedding(ids_there).to(dtype) + positions
        blocks = model.transformer.resblocks
        heads = blocks[0].attn.num_heads
        attention = Causal(lengths, shared, heads, self.kernels, x)
        x = run_packed(blocks, x, attention, self.kernels, None if every else attention.ends)
        features: Tensor = model.ln_final(x) @ model.text_projection
        return features

    def _key(self, kind: str, content: bytes) -> str:
        return feature_key(self.fingerprint, self.dtype, kind, content)


class ClipEncoder(ClipTowers, tags=["image-captioning", "clip"]):
    """CLIP, with a ViT or a ResNet as its image tower.

    Texts run at their real length, equal ones once (exact, since attention is causal); equal images
    run once; every feature goes through a `FeatureCache`. In float32 a feature does not depend on what
    else is in the batch, up to rounding; bfloat16 and float16 take half the memory for weights and states.

    Arguments and errors are those of `CheckedModel`; tensors have open_clip's names.
    """

    kind = "clip"
    depends_on = ("architecture", "activation", "preprocessing")
    Conversion: ClassVar[type[Conversion]] = ClipConversion

    def build(self, config: dict[str, Any], tensors: dict[str, Tensor]) -> Clip:
        return build_clip(config, tensors, self.dtype)

    @classmethod
    def empty(cls, config: dict[str, Any]) -> Clip:
        return empty_clip(config)

    @classmethod
    def read_config(cls, folder: WeightsFolder) -> dict[str, Any]:
        if folder.tensor_file.name == OPEN_CLIP_TENSORS:
            config = translate_open_clip(folder.config)
        else:
            config = super().read_config(folder)
        if problems := config_problems(config):
            raise WeightsError(f"in the config, {'; '.join(problems)}: download or convert the weights again")
        return config

    def encode_images(
        self,
        images: Iterable[InputImage],
        *,
        cache: FeatureCache = SHARED,
        batch_size: int | None = None,
        decoders: int | None = None,
    ) -> Iterator[ImageFeatures]:
        """Features of any number of images, in order, some at a time.

        Images are read and decoded by threads ahead of the encoder. One that cannot be read gives a row
        of NaN and the reason.

        Args:
            decoders: processes that decode image files instead, and give the same pixels.
        """
        encoding = Encoding(
            size=self.images_per_batch(batch_size),
            keys=lambda content, _: (self._key("image", content.encode()),),
            prepare=self.preprocessing.pixels,
            forward=self.run_images,
            elsewhere=None if decoders is None else partial(self._decoded, shared_decoders(decoders)),
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
        damaged the frames before it are used, and `incomplete` says so.

        Args:
            sampling: which frames are used, every one by default.
            batch_size: frames per forward pass.

        >>> grey = np.full((3, 48, 64, 3), 128, dtype="uint8")
        >>> clip = ClipEncoder.from_pretrained("tiny")
        >>> [part] = clip.encode_videos([InputFrames.of(grey), InputFrames.of(grey[:1])])
        >>> [features.shape for features in part.features], part.incomplete
        ([(3, 128), (1, 128)], [None, None])
        """
        return encode_frames(
            videos,
            sampling,
            keys=lambda used: (self._key("video", used.encode()), self._key("incomplete", used.encode())),
            pixels=self.preprocessing.pixels,
            forward=self.run_images,
            size=self.images_per_batch(batch_size),
            dimension=self.dimension,
            cache=cache,
        )

    def preprocess(self, image: Image.Image) -> Floats:
        """(3, image_size, image_size) float32 pixels of a PIL image, as the image tower sees them."""
        return np.asarray(self._scale([self.preprocessing.pixels(image)])[0].cpu())

    def _decoded(self, decoders: Decoders, images: Sequence[InputImage]) -> list[NDArray[np.uint8] | None]:
        own = self.preprocessing
        return decoders.pixels([image.source for image in images], own.image_size, own.method)

    def _scale(self, pixels: Sequence[NDArray[np.uint8]]) -> Tensor:
        return self.normalised(stacked_on_device(self.device, pixels).float() / 255)

    def _image_forward(self, pixels: Sequence[NDArray[np.uint8]]) -> Floats:
        return on_host(self.run_images(pixels))

    @exact
    def run_images(self, pixels: Sequence[NDArray[np.uint8]] | Tensor) -> Tensor:
        """(n, d) features, on the device, of uint8 pixels (n, 3, s, s); nothing waits for it."""
        visual, dtype = self.model.visual, DTYPES[self.dtype]
        is_vit, kernels = isinstance(visual, VisionTransformer), self.kernels
        mean, std = self.preprocessing.mean, self.preprocessing.std
        if not isinstance(pixels, Tensor):
            pixels = stacked_on_device(self.device, pixels)
        if is_vit and kernels.passes:
            patches = embedded_patches(visual, pixels, mean, std, dtype)
            return run_vision(visual, patches, kernels)
        x = normalised(pixels.float() / 255, mean, std).to(dtype)
        if is_vit:
            return run_vision(visual, visual.conv1(x).flatten(2).mT, kernels)
        features: Tensor = visual(x)
        return features

    def canary(self) -> Floats:
        """(2, 3) cosines of two drawn images and three captions: what any change of the weights moves."""
        image_features = self._image_forward([self.preprocessing.pixels(image) for image in canary_images()])
        return cosines(image_features, self.encode_texts(TEXTS, cache=FeatureCache(0)).features)
