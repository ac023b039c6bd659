"""HICE-S and RefHICE-S: regions of the image against phrases of the caption, beside both as a whole.

Zeng, Sun, Zhang, Wen, Su, Xie, Wang, Chen: HICEScore: A Hierarchical Metric for Image Captioning Evaluation,
ACM Multimedia 2024, https://doi.org/10.1145/3664647.3681358

The authors released no code. What their paper leaves open is an option here, with its reason beside it.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from capeval_core.inputs.samples import Samples, windows
from capeval_core.inputs.visual import InputImage
from capeval_core.metric import CaptionMetric, Model, Published, Values
from capeval_core.options import Options as CommonOptions
from capeval_core.phrases.source import PhraseSource, phrase_opener
from capeval_core.regions.opening import region_opener
from capeval_core.regions.source import CachedRegions, LimitedRegions, RegionSource
from capeval_core.rows import column, common_columns, row_schema
from capeval_core.scores.hice_formulas import Doubles, each_reference, harmonic_mean, image_text, text_text
from capeval_core.scores.hice_options import HiceOptions, RefHiceOptions
from capeval_core.weights.catalogue import ALPHA_L14

if TYPE_CHECKING:
    from capeval_core.encoders.alpha_clip import AlphaClipEncoder
    from capeval_core.encoders.region_features import RegionFeatures
    from capeval_core.scores.hice_rows import Reading, References

IMAGES_AT_ONCE = 64
TEXTS_AT_ONCE = 4096
"""Captions and references whose phrases are found and encoded together, which bounds memory."""
_SOURCES = {"regions": "objects", "phrases": "factual"}
"""What finds regions and phrases, unless the options or the weights say otherwise: the paper's choices."""


_COLUMNS = (
    column("cosine", pa.float32(), "cosine of the caption with the whole image, eq. 2"),
    column("phrase_cosines", pa.list_(pa.float32()), "cosine of each phrase with the whole image"),
    column("phrase_maxima", pa.list_(pa.float32()), "each phrase's best cosine over the regions, eq. 4"),
    column("region_maxima", pa.list_(pa.float32()), "each region's best cosine over the phrases, eq. 5"),
    column("regions_dropped", pa.int32(), "regions that are empty, or lie outside what the image tower sees"),
    column("without_phrases", pa.int32(), "sentences in which no phrase was found, so they are their own"),
)


class HiceS(CaptionMetric):
    """HICE-S: harmonic mean of global and local image-text compatibility, eq. 10, without references."""

    name = "hices"
    title = "HICE-S"
    key = "hice_s"
    summary = "Harmonic mean of how caption and image, and their phrases and regions, fit each other."
    paper = (
        "Zeng et al., HICEScore: A Hierarchical Metric for Image Captioning Evaluation, ACM Multimedia 2024, "
        "https://doi.org/10.1145/3664647.3681358"
    )
    range = (0.0, 2.5)
    default_weights = ALPHA_L14
    tiny = "hices"
    plots = True
    Options: ClassVar[type[CommonOptions]] = HiceOptions
    ROW = row_schema(*_COLUMNS)
    published: ClassVar[tuple[Published, ...]] = tuple(
        Published(
            captions,
            value,
            "COCO test set",
            ALPHA_L14.repository,
            "the paper's table 3",
            settings="regions by MobileSAMv2, not the default ones",
        )
        for captions, value in (
            ("LLaVA-1.6, 65 words", 0.513),
            ("LLaVA-1.6, 25 words", 0.535),
            ("M² Transformer", 0.539),
            ("VinVL", 0.553),
            ("BLIP-2", 0.568),
        )
    )

    options: HiceOptions

    @classmethod
    def encoder_class(cls) -> type[AlphaClipEncoder]:
        from capeval_core.encoders.alpha_clip import AlphaClipEncoder

        return AlphaClipEncoder

    def open_models(self) -> dict[str, Model]:
        given = self.options
        # What can be no source is refused before any weights are opened.
        open_regions = None if given.regions is None else region_opener(given.regions)
        open_phrases = None if given.phrases is None else phrase_opener(given.phrases)
        folder = self.weights_folder()
        place: dict[str, Any] = {"device": given.device, "dtype": given.dtype}
        self.encoder: AlphaClipEncoder = self.encoder_class().open(folder, **place)
        named = {**_SOURCES, **folder.config.get("constants", {})}
        open_regions = open_regions or region_opener(named["regions"])
        open_phrases = open_phrases or phrase_opener(named["phrases"])
        unset = {name: named[name] for name in _SOURCES if getattr(given, name) is None}
        self.options = dataclasses.replace(given, **unset)
        self.finder: RegionSource = open_regions(**place)
        if self.options.max_regions is not None:
            self.finder = LimitedRegions(self.finder, self.options.max_regions)
        if self.options.evidence:  # they are asked for a second time
            self.finder = CachedRegions(self.finder)
        self.parser: PhraseSource = open_phrases(style=given.style, batch_size=given.batch_size, **place)
        return {
            "weights": Model(folder.label(self.encoder.fingerprint), self.encoder.fingerprint),
            "regions": _signed(self.finder),
            "phrases": _signed(self.parser),
        }

    def encode(self, batch: Samples) -> Iterator[pa.Table]:
        from capeval_core.scores.hice_rows import reference_columns, region_columns

        for window in windows(batch, TEXTS_AT_ONCE):
            references = self._references(window)
            for part, captions, seen in self._pairs(window):
                columns, cut = region_columns(captions, seen), captions.cut
                if references is not None:
                    compared = references.part(part)
                    columns |= reference_columns(captions, compared)
                    cut = cut + compared.cut
                keys, errors = [each.key for each in seen], [each.error for each in seen]
                common = common_columns(window, part, groups=keys, errors=errors, truncated=cut)
                yield pa.table({**common, **columns}, schema=self.ROW)

    def _pairs(self, window: Samples) -> Iterator[tuple[slice, Reading, list[RegionFeatures]]]:
        """Part by part of a window, captions with their phrases, and their images with their regions."""
        from capeval_core.encoders.images import chunks

        captions, start = self._read(window.captions), 0
        for seen in chunks(self._see(window.images), IMAGES_AT_ONCE):
            part = slice(start, start + len(seen))
            yield part, captions.part(part), seen
            start = part.stop

    def _references(self, window: Samples) -> References | None:
        """What the captions of a window are compared with, beside their images."""
        return None

    def _read(self, texts: Sequence[str]) -> Reading:
        from capeval_core.scores.hice_rows import read

        return read(texts, self.parser, self.encoder, cache=self.cache, batch_size=self.options.batch_size)

    def _see(self, images: Sequence[InputImage]) -> Iterator[RegionFeatures]:
        return self.encoder.encode_regions(
            images,
            self.finder,
            geometry=self.options.geometry,
            cache=self.cache,
            batch_size=self.options.batch_size,
        )

    def aggregate(self, rows: pa.Table) -> Values:
        terms = self._terms(rows)
        return Values(harmonic_mean(terms["gitc"], terms["litc"]), {**terms, **self._counts(rows)})  # eq. 10

    def _terms(self, rows: pa.Table) -> dict[str, Doubles]:
        return image_text(rows, self.options.w, self.options.include_whole)

    def _counts(self, rows: pa.Table) -> dict[str, Doubles]:
        """How many regions and phrases there were, and what went wrong; NaN where the image failed."""
        failed = rows["cosine"].is_null().to_numpy()
        counts = {
            "region_count": pc.list_value_length(rows["region_maxima"]),
            "phrase_count": pc.list_value_length(rows["phrase_maxima"]),
            "regions_dropped": rows["regions_dropped"],
            "without_phrases": rows["without_phrases"],
        }
        return {name: np.where(failed, np.nan, count.to_numpy()) for name, count in counts.items()}

    def evidence_of(
        self, samples: Samples, rows: pa.Table, parts: Mapping[str, list[Any]]
    ) -> dict[int, dict[str, Any]]:
        from capeval_core.scores.hice_evidence import Evidence
        from capeval_core.scores.hice_explanation import THRESHOLD

        constants = self.encoder.config.get("constants", {})
        evidence = Evidence(
            finder=self.finder,
            w=self.options.w,
            include_whole=self.options.include_whole,
            threshold=self.options.w * constants.get("threshold", THRESHOLD),
        )
        pairs = (
            (window[part], captions, seen)
            for window in windows(samples, TEXTS_AT_ONCE)
            for part, captions, seen in self._pairs(window)
        )
        scored = {self.key: self.aggregate(rows).scores.tolist(), **parts}
        return dict(enumerate(evidence.explanations(pairs, rows, scored)))


class RefHiceS(HiceS):
    """RefHICE-S: harmonic mean of global and local image-text and text-text compatibility, eq. 11."""

    name = "refhices"
    title = "RefHICE-S"
    key = "refhice_s"
    summary = "Harmonic mean of HICE-S's terms and of those of the caption with its references."
    range = (0.0, 10 / 7)  # image-text terms of 2.5 and text-text terms of 1: 4 / (2 / 2.5 + 2 / 1)
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
    published = ()

    options: RefHiceOptions

    def _references(self, window: Samples) -> References:
        from capeval_core.scores.hice_rows import References

        compared = window.references or []
        counts = np.array([len(texts) for texts in compared], dtype=np.int64)
        return References(self._read([text for texts in compared for text in texts]), counts)

    def aggregate(self, rows: pa.Table) -> Values:
        terms = {**self._terms(rows), **text_text(rows, self.options.several)}
        score = harmonic_mean(terms["gitc"], terms["litc"], terms["gttc"], terms["lttc"])  # eq. 11
        return Values(score, {**terms, **self._counts(rows)})

    def evidence_of(
        self, samples: Samples, rows: pa.Table, parts: Mapping[str, list[Any]]
    ) -> dict[int, dict[str, Any]]:
        from capeval_core.scores.hice_evidence import reference_notes

        shown = super().evidence_of(samples, rows, parts)
        notes = reference_notes(samples, *each_reference(rows), self.options.several)
        for explanation, compared in zip(shown.values(), notes, strict=True):
            explanation["compared"] = compared
        return shown


def _signed(source: RegionSource | PhraseSource) -> Model:
    """A source in the signature: its name, and what tells it from others of that name."""
    digest = hashlib.blake2b(source.fingerprint.encode(), digest_size=4).hexdigest()
    return Model(f"{source.name}@{digest}", source.fingerprint)
