"""HICE-S and RefHICE-S: regions of the image matched with phrases of the caption, and both as a whole.

Zeng, Sun, Zhang, Wen, Su, Xie, Wang, Chen: HICEScore: A Hierarchical Metric for Image Captioning Evaluation,
ACM Multimedia 2024, https://doi.org/10.1145/3664647.3681358

The authors released no code. The choices that their paper leaves open are options, with reasons.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from os import PathLike
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from capeval_core.inputs.images import ImageError, InputImage
from capeval_core.inputs.samples import Samples, windows
from capeval_core.limits import LIMITS
from capeval_core.matching.cosine import grouped_cosine, harmonic_mean, paired_cosine, unit
from capeval_core.metric import CaptionMetric, CommonOptions, Evidence, Model
from capeval_core.options import option
from capeval_core.phrases.source import PhraseSource, phrase_models, phrase_opener
from capeval_core.ragged import Doubles, Floats, Integers, Ragged, inner
from capeval_core.regions.by_name import region_models, region_opener
from capeval_core.regions.regions import CachedRegions, LimitedRegions, RegionSource
from capeval_core.registry import facts
from capeval_core.reports.evidence import PhraseMatches, RegionExplanation
from capeval_core.result import Values
from capeval_core.rows import COVERAGE, FLOATS, NESTED, Texts, column, lists, row_schema
from capeval_core.weights.catalogue import WeightsEntry, part_of

if TYPE_CHECKING:
    from capeval_core.encoders.alpha_clip import RegionFeatures

SOURCES = {"regions": "objects", "phrases": "factual"}
"""The sources of the paper."""
THRESHOLD = 0.2
"""The cosine below which a phrase is a mistake and a region unmentioned: with w = 2.5 the 0.5 of figure 5.
Weights whose cosines are in another range name their own among the constants of their config."""


def compatibility(cosine: Doubles, w: float = 1.0) -> Doubles:
    """w max(cos, 0), for global cosines (eq. 2, 3) and means of maxima (eq. 4, 5, 7, 8).

    The paper states neither: harmonic means need terms of at least 0, and its values (table 3, the threshold
    of 0.5 in figure 5) are those of cosines scaled by CLIP-S's w = 2.5.

    >>> compatibility(np.array([0.2, -0.1]), 2.5)
    array([0.5, 0. ])
    """
    return w * np.maximum(cosine, 0)


def image_text_terms(rows: pa.Table, w: float, include_whole_image: bool) -> dict[str, Doubles]:
    """gITC (eq. 2), precision (eq. 4), recall (eq. 5) and lITC (eq. 6) of each row; NaN where it failed.

    The whole image is a region where there is no other one, or where `include_whole_image` is set.
    """
    cosine = rows["cosine"].to_numpy().astype(np.float64)
    whole_image = Ragged.of(rows["phrase_cosines"])  # (rows, phrases of each)
    phrases = Ragged.of(rows["phrase_maxima"])
    regions = Ragged.of(rows["region_maxima"])  # (rows, regions of each)
    n = regions.lengths
    # Without any region, each phrase and the recall have the whole image as the only one.
    with_whole = (n == 0) | include_whole_image
    phrase_maxima = np.where((n == 0)[phrases.owner], whole_image.values, phrases.values)
    if include_whole_image:
        phrase_maxima = np.maximum(phrase_maxima, whole_image.values)
    # The whole image's own recall is the best cosine of any phrase with it.
    region_sum = regions.sum() + np.where(with_whole, whole_image.max(), 0)
    precision = compatibility(Ragged(phrase_maxima, phrases.lengths).mean(), w)
    recall = compatibility(region_sum / (n + with_whole), w)
    # A row that failed has no regions and phrases, whose means would be 0, a score.
    failed = np.isnan(cosine)
    return {
        "gitc": compatibility(cosine, w),
        "litc": np.where(failed, np.nan, harmonic_mean(precision, recall)),
        "precision": np.where(failed, np.nan, precision),
        "recall": np.where(failed, np.nan, recall),
    }


def _text_text_terms(rows: pa.Table, reference_reduction: str) -> tuple[Doubles, Doubles]:
    """gTTC (eq. 3) and lTTC (eq. 9) of each row over its references, by the option `reference_reduction`."""
    gttc, lttc = reference_terms(rows)
    if reference_reduction == "best":
        return gttc.max(), lttc.max()
    if reference_reduction == "mean":
        return gttc.mean(), lttc.mean()
    if reference_reduction == "pooled":
        return gttc.max(), _pooled_lttc(rows)
    # Both terms of one reference: the paper's R is one text, not the best parts of several.
    best = joint(gttc, lttc).argmax()
    return gttc.values[best], lttc.values[best]


def _pooled_lttc(rows: pa.Table) -> Doubles:
    """lTTC (eq. 9) of each row with the phrases of all its references together."""
    precision = []
    for maxima in rows["caption_phrase_maxima"].to_pylist():  # (references, phrases of the caption)
        precision.append(np.mean(np.max(maxima, axis=0)))  # each phrase by the reference that fits it best
    recall = []
    for maxima in rows["reference_phrase_maxima"].to_pylist():  # (phrases,) per reference
        recall.append(np.mean(np.concatenate(maxima)))  # one mean over all, not of the references' means
    return harmonic_mean(compatibility(np.array(precision)), compatibility(np.array(recall)))


def reference_terms(rows: pa.Table) -> tuple[Ragged, Ragged]:
    """gTTC (eq. 3) and lTTC (eq. 7 to 9) of each reference of each row."""
    cosines = Ragged.of(rows["reference_cosines"])
    precision = Ragged.of(inner(rows["caption_phrase_maxima"])[0]).mean()
    recall = Ragged.of(inner(rows["reference_phrase_maxima"])[0]).mean()
    lttc = harmonic_mean(compatibility(precision), compatibility(recall))
    return Ragged(compatibility(cosines.values), cosines.lengths), Ragged(lttc, cosines.lengths)


def joint(gttc: Ragged, lttc: Ragged) -> Ragged:
    """hMean(gTTC, lTTC) of each reference, by which `reference_reduction="joint"` chooses."""
    return Ragged(harmonic_mean(gttc.values, lttc.values), gttc.lengths)


@dataclass(frozen=True, kw_only=True)
class HiceOptions(CommonOptions):
    """Options of HICE-S: the choices that the paper leaves open."""

    w: float = option(
        2.5, "scale of image-text cosines alone, so it moves only RefHICE-S's ranking", sign="w", minimum=0
    )
    regions: str | PathLike[str] | Mapping[str, Any] | RegionSource | None = option(
        None,
        "source of regions: `objects`, `everything`, `rectangles` (each also with weights after a colon; "
        "`objects:threshold=0.2` sets the least objectness of a box, 0.1 by default), `colours`, masks by "
        "image id (a JSON file or a mapping), or a `RegionSource`; None: that of the weights, else `objects`",
    )
    max_regions: int | None = option(
        None, "regions of an image, best first; None: all", sign="max_regions", encodes=True, minimum=1
    )
    phrases: str | PathLike[str] | Mapping[str, Any] | PhraseSource | None = option(
        None,
        "source of phrases: `factual`, another parser of its kind, `chunks`, phrases by caption (a JSON "
        "file or a mapping), or a `PhraseSource`; None: the one that the weights name, else `factual`",
    )
    phrase_style: Literal["triplet", "soft-spice"] = option(
        "triplet", "phrases of a scene graph: the paper's `triplet`s, or as Soft-SPICE does", encodes=True
    )
    mask_transform: Literal["square_crop", "released", "released_no_antialias"] = option(
        "square_crop",
        "how images and masks are cropped: alike, or as Alpha-CLIP's documented usage, where they do not "
        "line up (`no_antialias`: with torchvision before 0.17)",
        sign="mask_transform",
        encodes=True,
    )
    include_whole_image: bool = option(
        False, "appendix A's reading: the whole image is one more region", sign="include_whole_image"
    )


@dataclass(frozen=True, kw_only=True)
class RefHiceOptions(HiceOptions):
    """Options of RefHICE-S."""

    reference_reduction: Literal["joint", "best", "mean", "pooled"] = option(
        "joint",
        "of several references: the one with the best harmonic mean of gTTC and lTTC (`joint`), the `best` "
        "of each term, their `mean`, or all their phrases `pooled` and the best gTTC",
        sign="reference_reduction",
    )


@facts("hices")
class HiceS(CaptionMetric):
    """HICE-S: harmonic mean of global and local image-text compatibility, eq. 10, without references."""

    plots = True
    languages = ("English",)
    Options: ClassVar[type[CommonOptions]] = HiceOptions
    ROW = row_schema(
        COVERAGE,
        column("cosine", pa.float32(), "cosine of the caption with the whole image, eq. 2"),
        column("phrase_cosines", FLOATS, "cosine of each phrase with the whole image"),
        column("phrase_maxima", FLOATS, "each phrase's best cosine over the regions, eq. 4"),
        column("region_maxima", FLOATS, "each region's best cosine over the phrases, eq. 5"),
        column("regions_dropped", pa.int32(), "regions that are empty, or outside the tower's square"),
        column("without_phrases", pa.int32(), "sentences without a phrase, which are their own phrase"),
    )

    options: HiceOptions

    @classmethod
    def entries(cls, options: HiceOptions) -> list[WeightsEntry]:
        weights = super().entries(options)
        if not weights:  # weights of another kind name their own sources
            return []
        regions = SOURCES["regions"] if options.regions is None else options.regions
        phrases = SOURCES["phrases"] if options.phrases is None else options.phrases
        # Sources of a user's own, such as masks in a file, take no models.
        models = [*region_models(regions), *phrase_models(phrases)]
        return [*weights, *filter(None, map(part_of, models))]

    def open_models(self) -> dict[str, Model]:
        options = self.options
        # Wrong sources are refused before any weights are opened.
        open_regions = None if options.regions is None else region_opener(options.regions)
        open_phrases = None if options.phrases is None else phrase_opener(options.phrases)
        models = super().open_models()
        sources = {**SOURCES, **self.folder.config.get("constants", {})}
        open_regions = open_regions or region_opener(sources["regions"])
        open_phrases = open_phrases or phrase_opener(sources["phrases"])
        # As the network itself: where rows are kept, models are opened where the first one is missing.
        later = options.rows is not None
        device: dict[str, Any] = {"device": options.device, "dtype": options.dtype, "later": later}
        self.regions: RegionSource = open_regions(**device)
        if options.max_regions is not None:
            self.regions = LimitedRegions(self.regions, options.max_regions)
        # Around the limit, so that the cache holds no regions beyond it.
        if options.evidence:  # which needs the regions a second time
            self.regions = CachedRegions(self.regions)
        self.phrases: PhraseSource = open_phrases(
            style=options.phrase_style, batch_size=options.batch_size, **device
        )
        models["regions"] = Model.of(self.regions.name, self.regions.fingerprint)
        models["phrases"] = Model.of(self.phrases.name, self.phrases.fingerprint)
        return models

    def encode(self, batch: Samples) -> Iterator[pa.Table]:
        for window in windows(batch, LIMITS.hice_texts):
            texts = Texts(window, with_references=self.needs_references)
            captions = self.encode_texts(window.captions)
            references = self.encode_texts(texts.all[len(window) :])
            encoded = [*captions, *references]  # in the order of `Texts.all`
            features = []
            truncated = []
            for text in encoded:
                features.append(text.feature)
                truncated.append(text.truncated)
            text_features = np.stack(features)
            for part, images in self.encode_images(window):
                keys = [image.key for image in images]
                errors = [image.error for image in images]
                columns = texts.columns(part, keys, errors, truncated, tokenizer=self.encoder.tokenizer)
                columns |= _region_columns(encoded[part], images)
                if self.needs_references:
                    columns["reference_cosines"] = texts.cosines(part, text_features)
                    columns |= _phrase_columns(
                        encoded[part], encoded[texts.references(part)], texts.counts[part]
                    )
                yield pa.table(columns, schema=self.ROW)

    def encode_images(self, window: Samples) -> Iterator[tuple[slice, list[RegionFeatures]]]:
        """Images with their regions, some at a time."""
        images = self.encoder.encode_regions(
            window.images, self.regions, mask_transform=self.options.mask_transform, **self.run
        )
        start = 0
        # 64 at a time bound the memory: masks of one image may be some hundred.
        while features := list(islice(images, 64)):
            yield slice(start, start + len(features)), features
            start += len(features)

    def encode_texts(self, texts: Sequence[str]) -> list[EncodedText]:
        """Texts and their phrases; ValueError: the user's source does not give each text its phrases."""
        parsed = self.phrases.phrases(texts)
        phrases: list[str] = []
        without = 0
        for text in parsed:
            phrases += text.phrases
            without += not text.phrases
        # A source of the user's own: a text without phrases would have no maxima, and no score.
        if len(parsed) != len(texts) or without:
            problem = f"gave {len(texts)} texts {len(parsed)} results, {without} of them without a phrase"
            fix = "expected one for each, the text itself where no phrase is in it"
            raise ValueError(f"phrases={self.phrases.name!r} {problem}: {fix}")
        # All in one run: the texts, then the phrases of one text after another.
        encoded = self.encoder.encode_texts([*texts, *phrases], **self.run)
        encoded_texts = []
        start = len(texts)
        for index, text in enumerate(parsed):
            part = slice(start, start + len(text.phrases))  # of its phrases among the encoded texts
            unread = encoded.truncated[index] + sum(encoded.truncated[part])
            encoded_texts.append(
                EncodedText(
                    phrases=text.phrases,
                    feature=encoded.features[index],
                    phrase_features=encoded.features[part],
                    truncated=unread + text.truncated,
                    fallback=text.fallback,
                )
            )
            start = part.stop
        return encoded_texts

    def aggregate(self, rows: pa.Table) -> Values:
        terms = image_text_terms(rows, self.options.w, self.options.include_whole_image)
        score = harmonic_mean(terms["gitc"], terms["litc"])  # eq. 10
        return Values(score, {**terms, **_counts(rows)}, range=(0.0, self.options.w))

    def evidence_of(self, samples: Samples, rows: pa.Table, parts: Mapping[str, Any]) -> Evidence:
        # The score itself is no part of HICE-S, but the first thing that an explanation shows.
        numbers = {self.key: self.aggregate(rows).scores.tolist(), **parts}
        summaries = super().evidence_of(samples, rows, numbers)
        explained: Evidence = {}
        for window in windows(samples, LIMITS.hice_texts):
            texts = self.encode_texts(window.captions)
            for part, images in self.encode_images(window):
                for text, image, features in zip(texts[part], window.images[part], images, strict=True):
                    index = len(explained)
                    row = rows.slice(index, 1).to_pylist()[0]
                    explained[index] = self._explanation(summaries[index], row, text, image, features)
        return explained

    def _explanation(
        self,
        summary: dict[str, Any],
        row: dict[str, Any],
        text: EncodedText,
        image: InputImage,
        features: RegionFeatures,
    ) -> RegionExplanation:
        """The explanation of a row by its regions, which are found again."""
        w = self.options.w
        threshold = self.encoder.config.get("constants", {}).get("threshold", THRESHOLD)
        content = {**summary, "threshold": w * threshold}
        try:
            reason = row["error"] or features.error
            if reason:
                raise ImageError(reason)
            regions = self.regions.find(image)  # from the cache that `open_models` made for evidence
        except ImageError as error:
            return RegionExplanation.of_failure(content, str(error), image)
        visible = regions.select(features.region_indices.tolist())  # those inside the tower's square
        matches = PhraseMatches(
            row=row,
            phrases=text.phrases,
            cosines=unit(text.phrase_features) @ unit(features.regions).T,  # (phrases, visible regions)
            regions=regions,
            visible=visible,
            w=w,
            with_whole_image=self.options.include_whole_image or not len(visible),
        )
        return RegionExplanation.of_matches(content, matches, image)


@facts("refhices")
class RefHiceS(HiceS):
    """RefHICE-S: harmonic mean of global and local image-text and text-text compatibility, eq. 11."""

    needs_references = True
    Options: ClassVar[type[CommonOptions]] = RefHiceOptions
    ROW = pa.schema(
        [
            *HiceS.ROW,
            column("reference_cosines", FLOATS, "cosine of caption and each reference, eq. 3"),
            column("caption_phrase_maxima", NESTED, "per reference, each caption phrase's best, eq. 7"),
            column("reference_phrase_maxima", NESTED, "per reference, each of its phrases' best, eq. 8"),
        ]
    )
    reference_columns = ("reference_cosines", "caption_phrase_maxima", "reference_phrase_maxima")

    options: RefHiceOptions

    def aggregate(self, rows: pa.Table) -> Values:
        terms = image_text_terms(rows, self.options.w, self.options.include_whole_image)
        terms["gttc"], terms["lttc"] = _text_text_terms(rows, self.options.reference_reduction)
        score = harmonic_mean(terms["gitc"], terms["litc"], terms["gttc"], terms["lttc"])  # eq. 11
        # Image-text terms are at most w, text-text terms 1: the harmonic mean of two of each.
        highest = 2 * self.options.w / (self.options.w + 1)
        return Values(score, {**terms, **_counts(rows)}, range=(0.0, highest))

    def evidence_of(self, samples: Samples, rows: pa.Table, parts: Mapping[str, Any]) -> Evidence:
        # By one iterator over the references of all rows, as they lie one after another in the columns.
        gttc, lttc = reference_terms(rows)
        is_used = self._used_references(gttc, lttc).tolist()
        notes = zip(gttc.values.tolist(), lttc.values.tolist(), is_used, strict=True)
        explained = super().evidence_of(samples, rows, parts)
        for explanation, references in zip(explained.values(), samples.references or [], strict=True):
            compared = []
            for reference in references:
                note = dict(zip(("gttc", "lttc", "chosen"), next(notes), strict=True))
                compared.append({"reference": reference, **note})
            explanation["compared"] = compared
        return explained

    def _used_references(self, gttc: Ragged, lttc: Ragged) -> NDArray[np.bool_]:
        """(all references,) whether the score uses a reference: the best ones, or all by a mean or pool."""
        reduction = self.options.reference_reduction
        is_used = np.zeros(len(gttc.values), dtype=np.bool_)
        if reduction == "joint":
            is_used[joint(gttc, lttc).argmax()] = True
        elif reduction == "best":
            is_used[gttc.argmax()] = True
            is_used[lttc.argmax()] = True
        else:
            is_used[:] = True
        return is_used


class EncodedText(NamedTuple):
    """A text and its phrases, encoded."""

    phrases: tuple[str, ...]
    feature: Floats
    phrase_features: Floats
    truncated: int  # token ids that the encoder did not read, and sentences not parsed to their end
    fallback: int  # sentences that are their own phrase


def _region_columns(captions: Sequence[EncodedText], images: Sequence[RegionFeatures]) -> dict[str, Any]:
    """The columns of `HiceS.ROW` for captions and their images, one each."""
    from capeval_core.matching.greedy import match_arrays

    texts = np.stack([caption.feature for caption in captions])
    phrases = [caption.phrase_features for caption in captions]
    lengths = np.array([len(features) for features in phrases])
    # Equal images share one array of regions, which is matched once for all their captions.
    regions: list[Floats] = []
    position: dict[int, int] = {}  # among `regions`, by identity: comparing arrays would take longer
    y_of_pair = []
    counts = []
    dropped = []
    for image in images:
        if id(image.regions) not in position:
            position[id(image.regions)] = len(regions)
            regions.append(image.regions)
        y_of_pair.append(position[id(image.regions)])
        counts.append(len(image.regions))
        dropped.append(image.dropped)
    whole_images = np.stack([image.image for image in images])
    phrase_cosines = grouped_cosine(whole_images, np.concatenate(phrases), lengths)
    matches = match_arrays(phrases, regions, y_of_pair=y_of_pair)
    return {
        "cosine": pa.array(paired_cosine(whole_images, texts), mask=np.isnan(whole_images).any(axis=1)),
        "phrase_cosines": lists(np.nan_to_num(phrase_cosines), lengths),
        "phrase_maxima": lists(matches.x_maxima, lengths),
        "region_maxima": lists(matches.y_maxima, np.array(counts)),
        "regions_dropped": np.array(dropped, dtype=np.int32),
        "without_phrases": np.array([caption.fallback for caption in captions], dtype=np.int32),
    }


def _phrase_columns(
    captions: Sequence[EncodedText], references: Sequence[EncodedText], counts: Integers
) -> dict[str, Any]:
    """Columns of `RefHiceS.ROW`: phrases of captions matched with those of their references, so many each."""
    from capeval_core.matching.greedy import match_arrays

    owner = np.repeat(np.arange(len(counts)), counts)  # (references,) the caption of each
    caption_phrases = [text.phrase_features for text in captions]
    reference_phrases = [text.phrase_features for text in references]
    matches = match_arrays(caption_phrases, reference_phrases, x_of_pair=owner)
    # A caption's phrases have maxima against each of its references: lists in lists.
    caption_lengths = np.array([len(features) for features in caption_phrases], dtype=np.int64)
    reference_lengths = np.array([len(features) for features in reference_phrases], dtype=np.int64)
    return {
        "caption_phrase_maxima": lists(lists(matches.x_maxima, caption_lengths[owner]), counts),
        "reference_phrase_maxima": lists(lists(matches.y_maxima, reference_lengths), counts),
    }


def _counts(rows: pa.Table) -> dict[str, Doubles]:
    """Counts of regions, phrases, dropped regions and sentences without a phrase; NaN where a row failed."""
    columns = {
        "region_count": pc.list_value_length(rows["region_maxima"]),
        "phrase_count": pc.list_value_length(rows["phrase_maxima"]),
        "regions_dropped": rows["regions_dropped"],
        "without_phrases": rows["without_phrases"],
    }
    failed = rows["cosine"].is_null().to_numpy()  # a count of 0 would say that there was an image
    counts = {}
    for name, values in columns.items():
        counts[name] = np.where(failed, np.nan, values.to_numpy())
    return counts
