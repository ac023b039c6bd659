"""CLIP's two encoders: captions and images to features, each computed once, as fast as is exact."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from open_clip.model import CLIP
from open_clip.transformer import VisionTransformer
from PIL import Image
from torch import Tensor

from capeval_core.cache import SHARED, FeatureCache
from capeval_core.encoders.clip_config import config_problems
from capeval_core.encoders.clip_model import build_clip, empty_clip
from capeval_core.encoders.clip_towers import ClipTowers, rows_of
from capeval_core.encoders.images import ImageFeatures, encode_distinct
from capeval_core.encoders.transformer import run_vision
from capeval_core.inputs.visual import InputImage
from capeval_core.models.canary import TEXTS, canary_images, cosines
from capeval_core.models.precision import DTYPES, exact_float32
from capeval_core.weights.clip import ClipConversion, translate_open_clip
from capeval_core.weights.conversion import Conversion
from capeval_core.weights.folder import OPEN_CLIP_TENSORS, WeightsError, WeightsFolder

Floats = NDArray[np.float32]


class ClipEncoder(ClipTowers, tags=["image-captioning", "clip"]):
    """CLIP on open_clip's modules.

    Texts run at their real length, equal ones once (exact, since attention is causal); equal images
    run once; every feature goes through a `FeatureCache`. In float32 a feature does not depend on what
    else is in the batch, up to rounding; bfloat16 and float16 take half the memory for weights and states.

    Arguments and errors are those of `CheckedModel`; tensors have open_clip's names.
    """

    kind = "clip"
    depends_on = ("architecture", "activation", "preprocessing")
    Conversion: ClassVar[type[Conversion]] = ClipConversion

    def build(self, config: dict[str, Any], tensors: dict[str, Tensor]) -> CLIP:
        return build_clip(config, tensors, self.dtype)

    @classmethod
    def empty(cls, config: dict[str, Any]) -> CLIP:
        return empty_clip(config)

    @classmethod
    def read_config(cls, folder: WeightsFolder) -> dict[str, Any]:
        if folder.tensor_file.name == OPEN_CLIP_TENSORS:
            config = translate_open_clip(folder.config)
        else:
            config = super().read_config(folder)
        if problems := config_problems(config):
            found = "; ".join(problems)
            raise WeightsError(f"in the config, {found}: download or convert the weights again")
        return config

    def encode_images(
        self, images: Iterable[InputImage], *, cache: FeatureCache = SHARED, batch_size: int | None = None
    ) -> Iterator[ImageFeatures]:
        """Features of any number of images, in order, some at a time.

        Images are read and decoded by threads ahead of the encoder. One that cannot be read gives a row
        of NaN and the reason.
        """
        size = self._images_per_batch(batch_size)
        return encode_distinct(
            images,
            prepare=self.preprocessing.pixels,
            forward=lambda pixels: size.run(len(pixels), self._image_forward(pixels)),
            dimension=self.dimension,
            ahead=size.size,
            cache=cache,
            cache_key=lambda key: self._key("image", key.encode()),
        )

    def preprocess(self, image: Image.Image) -> Floats:
        """(3, image_size, image_size) float32 pixels of a PIL image, as the image tower sees them."""
        return np.asarray(self._scale(self.preprocessing.pixels(image)[None])[0].cpu())

    def _scale(self, pixels: NDArray[np.uint8]) -> Tensor:
        return self.normalised(torch.from_numpy(pixels).to(self.device).float() / 255)

    def _image_forward(self, pixels: NDArray[np.uint8]) -> Callable[[slice], Floats]:
        @torch.inference_mode()
        def forward(part: slice) -> Floats:
            with exact_float32(self.device):
                x = self._scale(pixels[part]).to(DTYPES[self.dtype])
                visual = self.model.visual
                if not isinstance(visual, VisionTransformer):
                    return rows_of(visual(x))
                return rows_of(run_vision(visual, visual.conv1(x)))

        return forward

    def canary(self) -> Floats:
        """(2, 3) cosines of two drawn images and three captions: what any change of the weights moves."""
        images = np.stack([self.preprocessing.pixels(image) for image in canary_images()])
        seen = self._image_forward(images)(slice(None))
        said = self.encode_texts(TEXTS, cache=FeatureCache(0)).features
        return cosines(seen, said)
