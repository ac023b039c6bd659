"""Alpha-CLIP: CLIP's image tower with a mask channel, for features of regions.

Sun, Fang, Wu, Zhang, Zang, Kong, Xiong, Lin, Wang: Alpha-CLIP: A CLIP Model Focusing on Wherever You Want,
CVPR 2024, https://arxiv.org/abs/2312.03818
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Annotated, Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from capeval_core.cache import SHARED, Feature, FeatureCache
from capeval_core.encoders.alpha_clip_conversion import AlphaClipConversion
from capeval_core.encoders.clip import ClipSettings, ClipSizes, ClipTowers, VisionTransformer, run_vision
from capeval_core.encoders.engine import Encoding, ImageFeatures, Item, Units, encode_stream, with_extras
from capeval_core.encoders.preprocessing import MaskTransform, image_pixels, resize_masks, window_of
from capeval_core.inputs.images import InputImage
from capeval_core.models.batching import BatchSize
from capeval_core.models.device import DTYPES, exact, on_device, on_host
from capeval_core.models.model import TEXTS, canary_images, cosines
from capeval_core.ragged import Floats
from capeval_core.regions.regions import Regions, RegionSource, fitting, name_of
from capeval_core.weights.folder import WeightsError

_EXPANDED = 1 << 24  # pixels of masks that are unpacked at a time: 64 MB as float32
_AHEAD = 3  # images that are prepared before their turn, each with some masks

_NOTHING = (np.empty(0, dtype=np.int64), 0)  # indices and dropped masks of an image with an error


@dataclass(frozen=True)
class _MaskScaling:
    """Mean and standard deviation of masks."""

    mean: Annotated[float, (-1e3, 1e3)]
    std: Annotated[float, (1e-4, 1e3)]


@dataclass(frozen=True, kw_only=True)
class _AlphaClipSettings(ClipSettings):
    mask: _MaskScaling


@dataclass(frozen=True)
class RegionFeatures:
    """Features of one image and its regions, un-normalised."""

    image: Floats  # (d,) of the image under the full-one mask; NaN if there is an error
    regions: Floats  # (n, d) of the regions that the image tower sees
    region_indices: NDArray[np.int64]  # (n,) the index of each among the masks of the image
    dropped: int  # masks that are empty, or lie wholly outside what the image tower sees
    key: str  # content key of the image, '' where it could not be read
    error: str | None = None  # why there are no features


class Row(NamedTuple):
    """One row of a forward pass: the pixels of an image under one mask."""

    pixels: Tensor
    alpha: Tensor  # the mask as the tower takes it


class AlphaClipEncoder(ClipTowers, tags=["image-captioning", "clip", "alpha-clip"]):
    """Alpha-CLIP: patches of the image and of a mask are embedded and added. Texts are those of the CLIP that
    it was tuned from. Rows of a batch are pairs of image and mask, of as many images as fill it."""

    kind = "alpha_clip"
    depends_on = ("architecture", "activation", "preprocessing", "mask")
    Conversion = AlphaClipConversion
    Settings = _AlphaClipSettings

    @classmethod
    def tower(cls, config: dict[str, Any], sizes: ClipSizes) -> nn.Module:
        visual: Any = super().tower(config, sizes)
        # The mask is embedded per patch and added to the patches: only a ViT has these.
        if not isinstance(visual, VisionTransformer):
            raise WeightsError("the image tower is a ResNet, but only a ViT can have a mask channel")
        patch = sizes.vision.patch_size
        visual.conv1_alpha = nn.Conv2d(1, sizes.vision.width, patch, patch, bias=False)
        return visual

    def encode_images(
        self,
        images: Iterable[InputImage],
        *,
        cache: FeatureCache = SHARED,
        batch_size: int | None = None,
        decoders: int | None = None,
    ) -> Iterator[ImageFeatures]:
        """Features of images as a whole, under the mask that is one everywhere. Images are decoded by threads
        of this process, whatever `decoders` says: other processes would round their pixels to 8 bits."""
        return super().encode_images(images, cache=cache, batch_size=batch_size)

    def pixels_of(self, image: Image.Image) -> Tensor:
        """A PIL image as `run_images` takes it: float32 (3, n, n)."""
        return self.normalised(image_pixels(image, self.preprocessing, "square_crop"))

    def run_images(self, pixels: Sequence[Tensor]) -> Tensor:
        full_mask = self.full_mask("square_crop")
        return self.run_rows([Row(image, full_mask) for image in pixels])

    def full_mask(self, transform: MaskTransform) -> Tensor:
        """(1, n, n) float32: the mask that is one everywhere, as the image tower takes it."""
        n = self.preprocessing.image_size
        return self.alphas(np.ones((1, n, n), dtype=np.bool_), transform)[0]

    def encode_regions(
        self,
        images: Iterable[InputImage],
        regions: RegionSource | Iterable[Regions],
        *,
        mask_transform: MaskTransform = "square_crop",
        cache: FeatureCache = SHARED,
        batch_size: int | None = None,
    ) -> Iterator[RegionFeatures]:
        """Features of images as a whole and of their regions, image by image, in order.

        An image with n masks costs 1 + n rows of the image tower, and none where the features of the
        same regions of the same image are in the cache; a source is not asked then either. Images
        are read, and regions found, ahead of the encoder; memory does not grow with their number. An image
        that cannot be read, or whose regions are wrong or could not be found, gives NaN and the reason.

        regions: where they come from, or those of each image.
        """
        rows = _Regions(self, mask_transform, self.batch("images", batch_size))
        if isinstance(regions, RegionSource):
            items: Iterable[Item] = zip(images, repeat(regions))
        else:
            items = with_extras(images, regions, "regions", "give every image its regions")
        encoding = Encoding(
            size=rows.size,
            keys=rows.keys,
            prepare=rows.pixels,
            forward=self.run_rows,
            units=rows.units,
            ahead=_AHEAD,
        )
        for part in encode_stream(items, encoding, cache):
            for item in part:
                if item.arrays is None:
                    features = np.full((1, self.dimension), np.nan, dtype=np.float32)
                    region_indices, dropped = _NOTHING
                else:
                    features, region_indices, dropped = item.arrays[item.keys[0]]
                # Row 0 is the image under the full-one mask, as `_Regions.units` yields it first.
                yield RegionFeatures(
                    features[0], features[1:], region_indices, int(dropped), item.content, item.error
                )

    def preprocess(self, image: Image.Image, mask_transform: MaskTransform = "square_crop") -> Floats:
        """(3, n, n) float32 pixels of a PIL image, as the image tower sees them."""
        return np.asarray(self.normalised(image_pixels(image, self.preprocessing, mask_transform)))

    def preprocess_masks(
        self, masks: NDArray[np.bool_], mask_transform: MaskTransform = "square_crop"
    ) -> Floats:
        """(k, 1, n, n) float32 of masks (k, h, w), as the image tower sees them."""
        rows, columns = window_of(masks.shape[1], masks.shape[2], mask_transform)
        return np.asarray(self.alphas(masks[:, rows, columns], mask_transform))

    @exact
    def run_rows(self, rows: Sequence[Row]) -> Tensor:
        """(n, d) features of rows, on the device; an image's patches are embedded once for all its masks."""
        dtype = DTYPES[self.dtype]
        visual = self.model.visual
        # By identity: the rows of an image share one tensor, and comparing pixels would cost more.
        position: dict[int, int] = {}
        images: list[Tensor] = []
        positions: list[int] = []
        for row in rows:
            if id(row.pixels) not in position:
                position[id(row.pixels)] = len(images)
                images.append(row.pixels)
            positions.append(position[id(row.pixels)])
        pixels = on_device(torch.stack(images), self.device).to(dtype)  # (images, 3, n, n)
        alphas = on_device(torch.stack([row.alpha for row in rows]), self.device).to(dtype)  # (rows, 1, n, n)
        image_of_row = on_device(np.array(positions), self.device)
        patch = visual.conv1.kernel_size[0]

        def embedded(x: Tensor, kernel: nn.Conv2d) -> Tensor:
            """(n, patches, width): a convolution as a product, whose rows are in the order of tokens."""
            cells = x.unfold(2, patch, patch).unfold(3, patch, patch)  # (n, c, rows, columns, patch, patch)
            rows = cells.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)
            return rows @ kernel.weight.flatten(1).t()

        of_mask = embedded(alphas, visual.conv1_alpha)
        of_image = embedded(pixels, visual.conv1)
        return run_vision(visual, of_mask.add_(of_image[image_of_row]), self.triton)

    def alphas(self, masks: NDArray[np.bool_], transform: MaskTransform) -> Tensor:
        """(k, 1, n, n) float32, as the image tower takes them, of cropped masks (k, h, w); on the CPU."""
        cropped = torch.from_numpy(np.ascontiguousarray(masks))
        shares = resize_masks(cropped, self.preprocessing.image_size, transform)
        scaled: Tensor = (shares - self.config["mask"]["mean"]) / self.config["mask"]["std"]
        return scaled

    def canary(self) -> Floats:
        """(2, 3) cosines of two drawn images, each under a mask, and three captions."""
        images = canary_images()
        pixels = [torch.from_numpy(self.preprocess(image)) for image in images]
        masks = np.ones((2, images[0].height, images[0].width), dtype=np.bool_)
        # Half a mask for the first image: with full masks alone the mask channel could be wrong unseen.
        masks[0, :, images[0].width // 2 :] = False
        alphas = torch.from_numpy(self.preprocess_masks(masks))
        image_features = on_host(self.run_rows(list(map(Row, pixels, alphas))))
        return cosines(image_features, self.encode_texts(TEXTS, cache=FeatureCache(0)).features)


class _Regions:
    """An image under the full-one mask and under each of its masks: one row per mask the tower sees. What
    belongs to an image are its regions, or the source that finds them."""

    def __init__(self, encoder: AlphaClipEncoder, transform: MaskTransform, size: BatchSize) -> None:
        self.encoder = encoder
        self.transform = transform
        self.size = size
        self.full = encoder.full_mask(transform)
        self._finding = threading.Lock()
        # A stream of its own on a GPU: whoever reads a source's results need not wait for this encoder.
        cuda: Any = torch.cuda  # whose functions have no types
        self._stream = cuda.Stream(encoder.device) if encoder.device.type == "cuda" else None

    def keys(self, content: str, regions: Regions | RegionSource) -> tuple[str, ...]:
        # The source's name holds its settings, so other settings never meet these features.
        name = f"{self.transform}\n{content}\n{name_of(regions)}"
        return (self.encoder.key("regions", name.encode()),)

    def pixels(self, loaded: Image.Image) -> Tensor:
        return self.encoder.normalised(image_pixels(loaded, self.encoder.preprocessing, self.transform))

    def units(self, item: Item, loaded: Image.Image, prepared: Tensor, missing: Sequence[str]) -> Units:
        image = cast(InputImage, item[0])
        regions = item[1]
        if isinstance(regions, RegionSource):
            # A source may be a network, which fills the machine alone.
            with self._finding, torch.cuda.stream(self._stream):
                regions = regions.find(image)
        checked = fitting(regions, image, (loaded.height, loaded.width))
        visible_indices: list[int] = []

        def rows() -> Iterator[list[Row]]:
            yield [Row(prepared, self.full)]
            for indices, part in self._visible(checked, prepared):
                visible_indices.extend(indices)
                yield part

        def join(values: list[Any]) -> dict[str, Feature]:
            # Masks that the source dropped (empty ones), and those wholly outside the crop.
            dropped = np.array(len(checked) + checked.dropped - len(visible_indices))
            return {missing[0]: (np.stack(values), np.array(visible_indices, dtype=np.int64), dropped)}

        return Units(rows(), join)

    def _visible(self, regions: Regions, pixels: Tensor) -> Iterator[tuple[list[int], list[Row]]]:
        """Indices and rows of the masks that the tower sees, some at a time."""
        height, width = regions.size
        rows, columns = window_of(height, width, self.transform)
        at_once = max(1, min(_EXPANDED // (height * width), self.size.size))
        for start in range(0, len(regions), at_once):
            masks = regions.masks(start, start + at_once)[:, rows, columns]
            visible = np.flatnonzero(masks.any(axis=(1, 2)))
            # A part without any visible mask has no tensor to resize: torch refuses one of no rows.
            alphas: Sequence[Tensor] = []
            if len(visible):
                alphas = list(self.encoder.alphas(masks[visible], self.transform))
            yield (start + visible).tolist(), [Row(pixels, alpha) for alpha in alphas]
