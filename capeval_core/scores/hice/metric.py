"""HICE-S and RefHICE-S: options, models, rows and scores."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from os import PathLike
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from capeval_core.inputs.samples import Samples, windows
from capeval_core.limits import LIMITS
from capeval_core.matching.cosine import harmonic_mean
from capeval_core.metric import CaptionMetric, Model
from capeval_core.options import Options as CommonOptions
from capeval_core.options import option
from capeval_core.phrases.opening import phrase_opener
from capeval_core.phrases.source import PhraseSource
from capeval_core.regions.opening import region_opener
from capeval_core.regions.regions import CachedRegions, LimitedRegions, RegionSource
from capeval_core.result import Values
from capeval_core.rows import column, common_columns, row_schema
from capeval_core.scores.facts import facts
from capeval_core.scores.hice.formulas import Doubles, image_text_terms, reference_terms, text_text_terms

if TYPE_CHECKING:
    from capeval_core.encoders.alpha_clip import AlphaClipEncoder, RegionFeatures
    from capeval_core.scores.hice.rows import EncodedTexts

IMAGES_AT_ONCE = 64
_SOURCES = {"regions": "objects", "phrases": "factual"}
"""Sources of regions and phrases where neither options nor weights name one: those of the paper."""


@dataclass(frozen=True, kw_only=True)
class HiceOptions(CommonOptions):
    """Options of HICE-S: the choices that the paper leaves open."""

    w: float = option(
        2.5,
        "scale of cosines between image and text; the ranking by HICE-S does not depend on it",
        sign="w",
        minimum=0,
    )
    regions: str | PathLike[str] | Mapping[str, Any] | RegionSource | None = option(
        None,
        "source of regions: `objects`, `everything`, `rectangles` (each also with weights after a colon; "
        "`objects:threshold=0.2` sets the least objectness of a box, 0.1 by default), `colours`, masks by "
        "image id (a JSON file or a mapping), or a `RegionSource`; None: the one that the weights name, else "
        "`objects`",
    )
    max_regions: int | None = option(
        None,
        "regions of an image at most, the best ones; None: all",
        sign="max_regions",
        encodes=True,
        minimum=1,
    )
    phrases: str | PathLike[str] | Mapping[str, Any] | PhraseSource | None = option(
        None,
        "source of phrases: `factual`, another parser of its kind, `chunks`, phrases by caption (a JSON "
        "file or a mapping), or a `PhraseSource`; None: the one that the weights name, else `factual`",
    )
    phrase_style: Literal["triplet", "soft-spice"] = option(
        "triplet",
        "how a scene graph becomes phrases: the paper's `triplet`s, or as Soft-SPICE does",
        encodes=True,
    )
    mask_transform: Literal["square_crop", "released", "released_no_antialias"] = option(
        "square_crop",
        "how images and masks are cropped: alike, or as Alpha-CLIP's documented usage, where they do not "
        "line up (`no_antialias`: with torchvision before 0.17)",
        sign="mask_transform",
        encodes=True,
    )
    include_whole_image: bool = option(
        False,
        "appendix A's reading: the whole image is one more region; then every phrase can match it",
        sign="include_whole_image",
    )


@dataclass(frozen=True, kw_only=True)
class RefHiceOptions(HiceOptions):
    """Options of RefHICE-S."""

    w: float = option(
        2.5,
        "scale of cosines between image and text, those between texts have none; it moves the ranking",
        sign="w",
        minimum=0,
    )
    reference_reduction: Literal["joint", "best", "mean", "pooled"] = option(
        "joint",
        "of several references: the one with the best harmonic mean of gTTC and lTTC (`joint`), the `best` "
        "of each term, their `mean`, or all their phrases `pooled` and the best gTTC",
        sign="reference_reduction",
    )


_COLUMNS = (
    column("cosine", pa.float32(), "cosine of the caption with the whole image, eq. 2"),
    column("phrase_cosines", pa.list_(pa.float32()), "cosine of each phrase with the whole image"),
    column("phrase_maxima", pa.list_(pa.float32()), "each phrase's best cosine over the regions, eq. 4"),
    column("region_maxima", pa.list_(pa.float32()), "each region's best cosine over the phrases, eq. 5"),
    column("regions_dropped", pa.int32(), "regions that are empty, or outside the square of the image tower"),
    column("without_phrases", pa.int32(), "sentences without a phrase, which are their own phrase"),
)


@facts("hices")
class HiceS(CaptionMetric):
    """HICE-S: harmonic mean of global and local image-text compatibility, eq. 10, without references."""

    plots = True
    Options: ClassVar[type[CommonOptions]] = HiceOptions
    ROW = row_schema(*_COLUMNS)

    options: HiceOptions

    def open_models(self) -> dict[str, Model]:
        options = self.options
        # Wrong sources are refused before any weights are opened.
        open_regions = None if options.regions is None else region_opener(options.regions)
        open_phrases = None if options.phrases is None else phrase_opener(options.phrases)
        folder = self.weights_folder()
        device: dict[str, Any] = {"device": options.device, "dtype": options.dtype}
        self.encoder: AlphaClipEncoder = self.encoder_class().open(folder, **device)
        defaults = {**_SOURCES, **folder.config.get("constants", {})}
        open_regions = open_regions or region_opener(defaults["regions"])
        open_phrases = open_phrases or phrase_opener(defaults["phrases"])
        unset = {name: defaults[name] for name in _SOURCES if getattr(options, name) is None}
        self.options = dataclasses.replace(options, **unset)
        self.region_source: RegionSource = open_regions(**device)
        if options.max_regions is not None:
            self.region_source = LimitedRegions(self.region_source, options.max_regions)
        if options.evidence:  # which needs the regions a second time
            self.region_source = CachedRegions(self.region_source)
        self.phrase_source: PhraseSource = open_phrases(
            style=options.phrase_style, batch_size=options.batch_size, **device
        )
        return {
            "weights": Model(folder.label(self.encoder.fingerprint), self.encoder.fingerprint),
            "regions": _model_of(self.region_source),
            "phrases": _model_of(self.phrase_source),
        }

    def encode(self, batch: Samples) -> Iterator[pa.Table]:
        from capeval_core.scores.hice.rows import reference_columns, region_columns

        for window in windows(batch, LIMITS.hice_texts):
            references = (window.references or []) if self.needs_references else []
            compared = self._encode_texts([text for row in references for text in row])
            counts = np.array([len(row) for row in references], dtype=np.int64)
            ends = np.concatenate([[0], np.cumsum(counts)])
            for part, captions, images in self._encode_window(window):
                columns, truncated = region_columns(captions, images), captions.truncated
                if references:
                    own = compared.part(slice(ends[part.start], ends[part.stop]))
                    columns |= reference_columns(captions, own, counts[part])
                    owner = np.repeat(np.arange(len(images)), counts[part])
                    truncated = truncated + np.bincount(owner, own.truncated, len(images)).astype(np.int64)
                groups, errors = [image.key for image in images], [image.error for image in images]
                common = common_columns(window, part, groups=groups, errors=errors, truncated=truncated)
                yield pa.table({**common, **columns}, schema=self.ROW)

    def _encode_window(self, window: Samples) -> Iterator[tuple[slice, EncodedTexts, list[RegionFeatures]]]:
        """Captions with their phrases and images with their regions, `IMAGES_AT_ONCE` at a time."""
        captions = self._encode_texts(window.captions)
        images = self.encoder.encode_regions(
            window.images,
            self.region_source,
            mask_transform=self.options.mask_transform,
            cache=self.cache,
            batch_size=self.options.batch_size,
        )
        start = 0
        while features := list(islice(images, IMAGES_AT_ONCE)):
            part = slice(start, start + len(features))
            yield part, captions.part(part), features
            start = part.stop

    def _encode_texts(self, texts: Sequence[str]) -> EncodedTexts:
        from capeval_core.scores.hice.rows import encode_texts

        return encode_texts(
            texts, self.phrase_source, self.encoder, cache=self.cache, batch_size=self.options.batch_size
        )

    def aggregate(self, rows: pa.Table) -> Values:
        terms = image_text_terms(rows, self.options.w, self.options.include_whole_image)
        score = harmonic_mean(terms["gitc"], terms["litc"])  # eq. 10
        return Values(score, {**terms, **_counts(rows)}, range=(0.0, self.options.w))

    def evidence_of(
        self, samples: Samples, rows: pa.Table, parts: Mapping[str, list[Any]]
    ) -> dict[int, dict[str, Any]]:
        from capeval_core.scores.hice.explanation import THRESHOLD, explain

        constants = self.encoder.config.get("constants", {})
        encoded = (
            (window[part], captions, images)
            for window in windows(samples, LIMITS.hice_texts)
            for part, captions, images in self._encode_window(window)
        )
        explanations = explain(
            encoded,
            rows,
            {self.key: self.aggregate(rows).scores.tolist(), **parts},
            self.region_source,
            w=self.options.w,
            include_whole_image=self.options.include_whole_image,
            threshold=self.options.w * constants.get("threshold", THRESHOLD),
        )
        return dict(enumerate(explanations))


@facts("refhices")
class RefHiceS(HiceS):
    """RefHICE-S: harmonic mean of global and local image-text and text-text compatibility, eq. 11."""

    needs_references = True
    Options: ClassVar[type[CommonOptions]] = RefHiceOptions
    ROW = row_schema(
        *_COLUMNS,
        column("reference_cosines", pa.list_(pa.float32()), "cosine of caption and each reference, eq. 3"),
        column(
            "caption_phrase_maxima",
            pa.list_(pa.list_(pa.float32())),
            "per reference, each caption phrase's best cosine over the reference's phrases, eq. 7",
        ),
        column(
            "reference_phrase_maxima",
            pa.list_(pa.list_(pa.float32())),
            "per reference, each of its phrases' best cosine over the caption's phrases, eq. 8",
        ),
    )
    reference_columns = ("reference_cosines", "caption_phrase_maxima", "reference_phrase_maxima")

    options: RefHiceOptions

    def aggregate(self, rows: pa.Table) -> Values:
        terms = image_text_terms(rows, self.options.w, self.options.include_whole_image)
        terms |= text_text_terms(rows, self.options.reference_reduction)
        score = harmonic_mean(terms["gitc"], terms["litc"], terms["gttc"], terms["lttc"])  # eq. 11
        highest = 2 * self.options.w / (self.options.w + 1)
        return Values(score, {**terms, **_counts(rows)}, range=(0.0, highest))

    def evidence_of(
        self, samples: Samples, rows: pa.Table, parts: Mapping[str, list[Any]]
    ) -> dict[int, dict[str, Any]]:
        from capeval_core.scores.hice.explanation import reference_notes

        explanations = super().evidence_of(samples, rows, parts)
        notes = reference_notes(samples, *reference_terms(rows), self.options.reference_reduction)
        for explanation, of_caption in zip(explanations.values(), notes, strict=True):
            explanation["compared"] = of_caption
        return explanations


def _counts(rows: pa.Table) -> dict[str, Doubles]:
    """Counts of regions, phrases, dropped regions and sentences without a phrase; NaN where a row failed."""
    failed = rows["cosine"].is_null().to_numpy()
    counts = {
        "region_count": pc.list_value_length(rows["region_maxima"]),
        "phrase_count": pc.list_value_length(rows["phrase_maxima"]),
        "regions_dropped": rows["regions_dropped"],
        "without_phrases": rows["without_phrases"],
    }
    return {name: np.where(failed, np.nan, count.to_numpy()) for name, count in counts.items()}


def _model_of(source: RegionSource | PhraseSource) -> Model:
    """A source in the signature: its name and a digest of its fingerprint."""
    digest = hashlib.blake2b(source.fingerprint.encode(), digest_size=4).hexdigest()
    return Model(f"{source.name}@{digest}", source.fingerprint)
