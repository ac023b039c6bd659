"""Alpha-CLIP: CLIP's image tower with a mask channel, for features of regions.

Sun, Fang, Wu, Zhang, Zang, Kong, Xiong, Lin, Wang: Alpha-CLIP: A CLIP Model Focusing on Wherever You Want,
CVPR 2024, https://arxiv.org/abs/2312.03818
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, zip_longest
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from open_clip.model import CLIP
from PIL import Image
from torch import Tensor

from capeval_core.cache import SHARED, FeatureCache
from capeval_core.encoders.clip_config import config_problems, mask_problems
from capeval_core.encoders.clip_model import build_clip, empty_clip
from capeval_core.encoders.clip_towers import ClipTowers, rows_of
from capeval_core.encoders.mask_geometry import (
    Geometry,
    check_geometry,
    crop_masks,
    image_pixels,
    resize_masks,
)
from capeval_core.encoders.region_features import Prepared, RegionFeatures, Row, encode_regions_of
from capeval_core.encoders.transformer import run_vision
from capeval_core.inputs.visual import ImageError, InputImage
from capeval_core.models.batching import BatchSize
from capeval_core.models.canary import TEXTS, canary_images, cosines
from capeval_core.models.precision import DTYPES, exact_float32
from capeval_core.regions.regions import Regions
from capeval_core.regions.source import RegionSource
from capeval_core.weights.alpha_clip import AlphaClipConversion
from capeval_core.weights.folder import WeightsError, WeightsFolder

Floats = NDArray[np.float32]
Masks = Regions | NDArray[np.bool_] | Tensor

_EXPANDED = 1 << 24
"""Pixels of masks that are unpacked at a time."""


class AlphaClipEncoder(ClipTowers, tags=["image-captioning", "clip", "alpha-clip"]):
    """Alpha-CLIP on open_clip's modules: patches of the image and of a mask are embedded and added.

    Texts are those of the CLIP that it was tuned from. Rows of a batch are pairs of image and mask, of as
    many images as it takes to fill it. In float32 a feature does not depend on what else is in the
    batch, up to rounding.

    Arguments and errors are those of `CheckedModel`; tensors have open_clip's names, beside
    `visual.conv1_alpha.weight`, (width, 1, patch, patch).
    """

    kind = "alpha_clip"
    depends_on = ("architecture", "activation", "preprocessing", "mask")
    Conversion = AlphaClipConversion

    def build(self, config: dict[str, Any], tensors: dict[str, Tensor]) -> CLIP:
        return build_clip(config, tensors, self.dtype, mask_channel=True)

    @classmethod
    def empty(cls, config: dict[str, Any]) -> CLIP:
        return empty_clip(config, mask_channel=True)

    @classmethod
    def read_config(cls, folder: WeightsFolder) -> dict[str, Any]:
        config = super().read_config(folder)
        if problems := [*config_problems(config), *mask_problems(config.get("mask"))]:
            found = "; ".join(problems)
            raise WeightsError(f"in the config, {found}: download or convert the weights again")
        return config

    def encode_regions(
        self,
        images: Iterable[InputImage],
        regions: RegionSource | Iterable[Masks],
        *,
        geometry: Geometry = "square_crop",
        cache: FeatureCache = SHARED,
        batch_size: int | None = None,
    ) -> Iterator[RegionFeatures]:
        """Features of images as a whole and of their regions, image by image, in order.

        An image with n masks costs 1 + n rows of the image tower, and none where the features of the
        same regions of the same image are in the cache; a source is not asked then either. Images
        are read, and regions found, ahead of the encoder; memory does not grow with their number.

        Args:
            images: any number.
            regions: where regions come from, or per image its own: `Regions`, or masks (n, h, w), boolean,
                at the image's size (n may be 0).
            geometry: how masks and images come to the tower's size, see `mask_geometry`.
            cache: where features are looked up and kept.
            batch_size: rows per forward pass; None: as many as fit into memory.

        An image that cannot be read, or whose regions are wrong or cannot be had, gives NaN and the reason.

        Raises:
            ValueError: an unknown geometry; more images than regions or fewer.
            MemoryError: the given `batch_size`, or a single row, does not fit into memory.

        >>> from capeval_core.synthetic import draw, masks, sample_scene
        >>> scene = sample_scene(np.random.default_rng(0))
        >>> encoder = AlphaClipEncoder.from_pretrained("tiny")
        >>> (found,) = encoder.encode_regions([InputImage.of(draw(scene))], [masks(scene)])
        >>> found.whole.shape, found.regions.shape == (len(scene.objects), 128), found.dropped
        ((128,), True, 0)
        """
        check_geometry(geometry)
        steps = _Steps(self, geometry, self._images_per_batch(batch_size))
        return encode_regions_of(_paired(images, regions), steps, cache)

    def preprocess(self, image: Image.Image, geometry: Geometry = "square_crop") -> Floats:
        """(3, n, n) float32 pixels of a PIL image, as the image tower sees them."""
        check_geometry(geometry)
        return np.asarray(self.normalised(image_pixels(image, self.preprocessing, geometry)))

    def preprocess_masks(self, masks: NDArray[np.bool_], geometry: Geometry = "square_crop") -> Floats:
        """(k, 1, n, n) float32 of masks (k, h, w), as the image tower sees them."""
        check_geometry(geometry)
        return np.asarray(self._alphas(crop_masks(masks, geometry), geometry).cpu())

    def encode_prepared(
        self,
        pixels: Floats,
        alphas: Floats,
        image: Sequence[int],
        *,
        batch_size: int | None = None,
    ) -> Floats:
        """(k, d) float32 features, un-normalised, of what is preprocessed.

        Args:
            pixels: (images, 3, n, n), as `preprocess` gives them.
            alphas: (k, 1, n, n), as `preprocess_masks` gives them.
            image: per row of `alphas` the index of its image.
        """
        shown = list(torch.from_numpy(pixels))
        rows = [
            Row(shown[index], alpha) for index, alpha in zip(image, torch.from_numpy(alphas), strict=True)
        ]
        features = np.empty((len(rows), self.dimension), dtype=np.float32)
        for part, some in self._images_per_batch(batch_size).run(len(rows), self._rows_forward(rows)):
            features[part] = some
        return features

    def _rows_forward(self, rows: list[Row]) -> Callable[[slice], Floats]:
        @torch.inference_mode()
        def forward(part: slice) -> Floats:
            dtype, visual = DTYPES[self.dtype], self.model.visual
            places: dict[int, int] = {}  # an image's patches are embedded once for all its masks
            which = [places.setdefault(id(row.pixels), len(places)) for row in rows[part]]
            shown = list({id(row.pixels): row.pixels for row in rows[part]}.values())
            with exact_float32(self.device):
                pixels = torch.stack(shown).to(self.device).to(dtype)
                alphas = torch.stack([row.alpha for row in rows[part]]).to(self.device).to(dtype)
                patches = visual.conv1(pixels)[torch.tensor(which, device=self.device)]
                return rows_of(run_vision(visual, patches + visual.conv1_alpha(alphas)))

        return forward

    def _alphas(self, masks: NDArray[np.bool_], geometry: Geometry) -> Tensor:
        """What the tower takes of cropped masks (k, h, w): (k, 1, n, n) float32."""
        # Anti-aliasing is not everywhere implemented, and fast on CUDA.
        place = self.device if self.device.type == "cuda" else torch.device("cpu")
        given = torch.from_numpy(np.ascontiguousarray(masks)).to(place)
        shares = resize_masks(given, self.preprocessing.image_size, geometry)
        normalised: Tensor = (shares - self.config["mask"]["mean"]) / self.config["mask"]["std"]
        return normalised

    def canary(self) -> Floats:
        """(2, 3) cosines of two drawn images, each under a mask, and three captions."""
        images = canary_images()
        pixels = np.stack([self.preprocess(image) for image in images])
        masks = np.ones((2, images[0].height, images[0].width), dtype=np.bool_)
        masks[0, :, images[0].width // 2 :] = False
        seen = self.encode_prepared(pixels, self.preprocess_masks(masks), [0, 1])
        return cosines(seen, self.encode_texts(TEXTS, cache=FeatureCache(0)).features)


class _Steps:
    """What `encode_regions_of` needs of the encoder, for one geometry."""

    def __init__(self, encoder: AlphaClipEncoder, geometry: Geometry, size: BatchSize) -> None:
        self.encoder, self.geometry, self.size = encoder, geometry, size
        self.dimension = encoder.dimension
        n = encoder.preprocessing.image_size
        self._full = encoder._alphas(np.ones((1, n, n), dtype=np.bool_), geometry)[0]
        self._finding = threading.Lock()

    def record_key(self, image: str, regions: str) -> str:
        return self.encoder._key("regions", f"{self.geometry}\n{image}\n{regions}".encode())

    def whole_key(self, image: str) -> str:
        return self.encoder._key("whole", f"{self.geometry}\n{image}".encode())

    def name_of(self, regions: RegionSource | Masks) -> str:
        if isinstance(regions, RegionSource):
            return f"source {regions.fingerprint}"
        digest = hashlib.blake2b(digest_size=16)
        if isinstance(regions, Regions):
            digest.update(f"runs {regions.size} {[len(runs) for runs in regions.runs]}".encode())
            for runs in regions.runs:
                digest.update(np.ascontiguousarray(runs).data)
        else:
            masks = np.asarray(regions)
            digest.update(f"array {masks.dtype} {masks.shape}".encode())
            digest.update(np.ascontiguousarray(masks).data)
        return f"masks {digest.hexdigest()}"

    def prepare(self, image: InputImage, regions: RegionSource | Masks) -> Prepared:
        decoded = image.load()
        try:
            pixels = self.encoder.normalised(image_pixels(decoded, self.encoder.preprocessing, self.geometry))
        except (ValueError, OSError, MemoryError) as error:  # e.g. no way from the mode La to RGB
            raise ImageError(
                f"{image.where}: cannot prepare {image.name} ({decoded.mode}): {error}"
            ) from None
        if isinstance(regions, RegionSource):
            with self._finding:  # a source may be a network, which fills the machine alone
                regions = regions.find(image)
        found = _checked(regions, image, (decoded.height, decoded.width))
        groups = self._visible(found)
        first = next(groups, [])  # in this thread, so that the encoder need not wait for it
        return Prepared(pixels, self._full, len(found) + found.dropped, chain([first], groups))

    def _visible(self, regions: Regions) -> Iterator[list[tuple[int, Tensor]]]:
        height, width = regions.size
        at_once = max(1, min(_EXPANDED // (height * width), self.rows_at_once()))
        for start in range(0, len(regions), at_once):
            masks = crop_masks(regions.masks(start, start + at_once), self.geometry)
            seen = np.flatnonzero(masks.any(axis=(1, 2)))
            if len(seen):
                alphas = self.encoder._alphas(masks[seen], self.geometry)
                yield list(zip((start + seen).tolist(), alphas, strict=True))

    def forward(self, rows: list[Row]) -> Iterator[tuple[slice, Floats]]:
        return self.size.run(len(rows), self.encoder._rows_forward(rows))

    def rows_at_once(self) -> int:
        return self.size.size


def _paired(
    images: Iterable[InputImage], regions: RegionSource | Iterable[Masks]
) -> Iterator[tuple[InputImage, RegionSource | Masks]]:
    if isinstance(regions, RegionSource):
        for image in images:
            yield image, regions
        return
    nothing: Any = object()
    for index, (image, own) in enumerate(zip_longest(images, regions, fillvalue=nothing)):
        if image is nothing or own is nothing:
            fewer, more = ("regions", "images") if own is nothing else ("images", "regions")
            raise ValueError(
                f"there are {index} {fewer} but more {more}: give every image its regions, an empty "
                "array (0, h, w) where it has none"
            )
        yield image, own


def _checked(regions: Masks, image: InputImage, size: tuple[int, int]) -> Regions:
    """Regions that fit the image, or ImageError with everything that is wrong."""
    expected = f"{image.name} is {size[0]} pixels high and {size[1]} wide"
    if isinstance(regions, Regions):
        if regions.size != size:
            raise ImageError(
                f"{image.where}: its regions are of an image {regions.size[0]} high and "
                f"{regions.size[1]} wide, but {expected}: make them of the image itself, not of a copy"
            )
        return regions
    masks = np.asarray(regions)
    if masks.dtype == np.object_:
        raise ImageError(
            f"{image.where}: its regions are a {type(regions).__name__}, expected Regions or boolean masks "
            f"(n, {size[0]}, {size[1]}); an array with n = 0 where there are none"
        )
    if masks.dtype != np.bool_:
        raise ImageError(
            f"{image.where}: its masks are of type {masks.dtype}, expected boolean: pass masks > 0 (or "
            "masks > 0.5 where they are probabilities)"
        )
    if masks.ndim != 3 or masks.shape[1:] != size:
        raise ImageError(
            f"{image.where}: its masks have shape {masks.shape}, but {expected}: expected (n, {size[0]}, "
            f"{size[1]})"
        )
    empty = np.flatnonzero(~masks.any(axis=(1, 2)))
    if len(empty):
        which = ", ".join(f"masks[{index}]" for index in empty[:5]) + (", ..." if len(empty) > 5 else "")
        raise ImageError(f"{image.where}: {which} of {len(masks)} have no pixel: leave them out")
    return Regions.of(masks, size=size)
