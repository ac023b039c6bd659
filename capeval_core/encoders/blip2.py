"""BLIP-2: how close a caption is to an image (contrast), and whether it belongs to it (matching).

Li, Li, Savarese, Hoi: BLIP-2: Bootstrapping Language-Image Pre-training with Frozen Image Encoders and
Large Language Models, ICML 2023, section 3.1, https://arxiv.org/abs/2301.12597
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from capeval_core.cache import SHARED, FeatureCache
from capeval_core.encoders.blip2_matching import Floats, Matches, match_pools
from capeval_core.encoders.blip2_towers import Blip2Towers
from capeval_core.inputs.visual import InputImage
from capeval_core.models.canary import TEXTS, canary_images
from capeval_core.weights.blip2 import Blip2Conversion


class Blip2Encoder(Blip2Towers, tags=["image-captioning", "blip-2"]):
    """BLIP-2's image-text model: features of images and of texts, and both values of their pairs.

    An image goes through the vision tower once, however many captions are asked about it. Arguments and
    errors are those of `Blip2Towers`.
    """

    kind = "blip2"
    Conversion = Blip2Conversion

    def match(
        self,
        images: Iterable[InputImage],
        captions: Iterable[Sequence[str]],
        *,
        cache: FeatureCache = SHARED,
        batch_size: int | None = None,
    ) -> Iterator[Matches]:
        """Both values of every image with each of its captions, image by image, in order.

        An image's states are too large to be kept: give each image once, with all its captions.

        Args:
            images: any number; they are read ahead by threads, a few at a time.
            captions: per image any number of texts. Equal ones are asked once.
            cache: where values and features are looked up and kept; where all of an image's are there,
                the image does not run at all.
            batch_size: images, and captions, per forward pass; None: as many as fit into memory.

        Raises:
            ValueError: more images than lists of captions, or fewer.
            MemoryError: the given `batch_size`, or a single item, does not fit into memory.

        >>> from capeval_core.synthetic import describe, draw, sample_scene
        >>> rng = np.random.default_rng(3)
        >>> scene = sample_scene(rng)
        >>> blip2 = Blip2Encoder.from_pretrained("tiny")
        >>> (found,) = blip2.match([InputImage.of(draw(scene))], [[describe(scene, rng), "a dog on a beach"]])
        >>> bool(found.itm[0] > found.itm[1])
        True
        """
        return match_pools(self, images, captions, cache, batch_size)

    def canary(self) -> Floats:
        """(2, 6): cosines of two drawn images with three captions, then probabilities of a match."""
        shown = [InputImage.of(image) for image in canary_images()]
        found = list(self.match(shown, [TEXTS, TEXTS], cache=FeatureCache(0)))
        return np.stack([np.concatenate([part.itc, part.itm]) for part in found])
