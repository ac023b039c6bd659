"""HICE-S and RefHICE-S: regions of the image matched with phrases of the caption, beside both as a whole.

Zeng, Sun, Zhang, Wen, Su, Xie, Wang, Chen: HICEScore: A Hierarchical Metric for Image Captioning Evaluation,
ACM Multimedia 2024, https://doi.org/10.1145/3664647.3681358

The authors released no code. The choices that their paper leaves open are options, with reasons.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from os import PathLike
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from PIL.Image import Image

from capeval_core.inputs.images import ImageError, InputImage
from capeval_core.inputs.samples import Samples, windows
from capeval_core.limits import LIMITS
from capeval_core.matching.cosine import grouped_cosine, harmonic_mean, paired_cosine, unit
from capeval_core.metric import CaptionMetric, CommonOptions, Evidence, Model
from capeval_core.options import option
from capeval_core.phrases.source import PhraseSource, phrase_models, phrase_opener
from capeval_core.ragged import Doubles, Floats, Integers, Ragged, inner
from capeval_core.regions.opening import region_models, region_opener
from capeval_core.regions.regions import CachedRegions, LimitedRegions, Regions, RegionSource
from capeval_core.registry import facts
from capeval_core.reports.explanations import DrawnExplanation, marked
from capeval_core.reports.figures import card_lines, draw_picture, outlined
from capeval_core.result import Values
from capeval_core.rows import COVERAGE, FLOATS, NESTED, Texts, column, lists, row_schema
from capeval_core.weights.catalogue import WeightsEntry, part_of

SOURCES = {"regions": "objects", "phrases": "factual"}  # those of the paper
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
    names = ("phrase_cosines", "phrase_maxima", "region_maxima")
    whole, best, regions = (Ragged.of(rows[name]) for name in names)
    n = regions.lengths
    with_whole = (n == 0) | include_whole_image
    maxima = np.where((n == 0)[best.owner], whole.values, best.values)
    if include_whole_image:
        maxima = np.maximum(maxima, whole.values)
    p = compatibility(Ragged(maxima, best.lengths).mean(), w)
    r = compatibility((regions.sum() + np.where(with_whole, whole.max(), 0)) / (n + with_whole), w)
    terms = {"gitc": compatibility(cosine, w), "litc": harmonic_mean(p, r), "precision": p, "recall": r}
    return {name: np.where(np.isnan(cosine), np.nan, term) for name, term in terms.items()}


def _text_text_terms(rows: pa.Table, reference_reduction: str) -> tuple[Doubles, Doubles]:
    """gTTC (eq. 3) and lTTC (eq. 9) of each row over its references, by the option `reference_reduction`."""
    gttc, lttc = reference_terms(rows)
    if reference_reduction == "best":
        return gttc.max(), lttc.max()
    if reference_reduction == "mean":
        return gttc.mean(), lttc.mean()
    if reference_reduction == "pooled":
        precision = [np.mean(np.max(own, axis=0)) for own in rows["caption_phrase_maxima"].to_pylist()]
        recall = [np.mean(np.concatenate(own)) for own in rows["reference_phrase_maxima"].to_pylist()]
        return gttc.max(), harmonic_mean(*(compatibility(np.array(own)) for own in (precision, recall)))
    chosen = joint(gttc, lttc).argmax()
    return gttc.values[chosen], lttc.values[chosen]


def reference_terms(rows: pa.Table) -> tuple[Ragged, Ragged]:
    """gTTC (eq. 3) and lTTC (eq. 7 to 9) of each reference of each row."""
    cosines = Ragged.of(rows["reference_cosines"])
    names = ("caption_phrase_maxima", "reference_phrase_maxima")
    lttc = harmonic_mean(*(compatibility(Ragged.of(inner(rows[name])[0]).mean()) for name in names))
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
    def entries(cls, options: Any) -> list[WeightsEntry]:
        weights = super().entries(options)
        if not weights:  # weights of another kind name their own sources
            return []
        regions = SOURCES["regions"] if options.regions is None else options.regions
        phrases = SOURCES["phrases"] if options.phrases is None else options.phrases
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
        if options.evidence:  # which needs the regions a second time
            self.regions = CachedRegions(self.regions)
        parsing = {"style": options.phrase_style, "batch_size": options.batch_size}
        self.phrases: PhraseSource = open_phrases(**parsing, **device)
        regions, phrases = (Model.of(one.name, one.fingerprint) for one in (self.regions, self.phrases))
        return {**models, "regions": regions, "phrases": phrases}

    def encode(self, batch: Samples) -> Iterator[pa.Table]:
        for window in windows(batch, LIMITS.hice_texts):
            texts = Texts(window, with_references=self.needs_references)
            n = len(window)
            encoded = [*self.encode_texts(window.captions), *self.encode_texts(texts.all[n:])]
            features = np.stack([text.feature for text in encoded])
            truncated = [text.truncated for text in encoded]
            for part, images in self.encode_images(window):
                keys, errors = [image.key for image in images], [image.error for image in images]
                columns = texts.columns(part, keys, errors, truncated, tokenizer=self.encoder.tokenizer)
                columns |= _region_columns(encoded[part], images)
                if self.needs_references:
                    references = encoded[texts.references(part)]
                    columns["reference_cosines"] = texts.cosines(part, features)
                    columns |= _phrase_columns(encoded[part], references, texts.counts[part])
                yield pa.table(columns, schema=self.ROW)

    def encode_images(self, window: Samples) -> Iterator[tuple[slice, list[Any]]]:
        """Images with their regions, as `RegionFeatures`, some at a time."""
        run, start = {"mask_transform": self.options.mask_transform, **self.run}, 0
        images = self.encoder.encode_regions(window.images, self.regions, **run)
        while features := list(islice(images, 64)):
            yield slice(start, start + len(features)), features
            start += len(features)

    def encode_texts(self, texts: Sequence[str]) -> list[EncodedText]:
        """Texts and their phrases; ValueError: the user's source does not give each text its phrases."""
        parsed = self.phrases.phrases(texts)
        without = sum(not of_text.phrases for of_text in parsed)
        if len(parsed) != len(texts) or without:
            found = f"gave {len(texts)} texts {len(parsed)} results, {without} of them without a phrase"
            fix = "expected one for each, the text itself where no phrase is in it"
            raise ValueError(f"phrases={self.phrases.name!r} {found}: {fix}")
        every = [*texts, *(phrase for own in parsed for phrase in own.phrases)]
        encoded, encoded_texts, start = self.encoder.encode_texts(every, **self.run), [], len(texts)
        for i, own in enumerate(parsed):
            part = slice(start, start + len(own.phrases))
            truncated = encoded.truncated[i] + sum(encoded.truncated[part]) + own.truncated
            features = encoded.features[i], encoded.features[part]
            encoded_texts.append(EncodedText(own.phrases, *features, truncated, own.fallback))
            start = part.stop
        return encoded_texts

    def aggregate(self, rows: pa.Table) -> Values:
        terms = image_text_terms(rows, self.options.w, self.options.include_whole_image)
        score = harmonic_mean(terms["gitc"], terms["litc"])  # eq. 10
        return Values(score, {**terms, **_counts(rows)}, range=(0.0, self.options.w))

    def evidence_of(self, samples: Samples, rows: pa.Table, parts: Mapping[str, Any]) -> Evidence:
        numbers = {self.key: self.aggregate(rows).scores.tolist(), **parts}
        shown, found = super().evidence_of(samples, rows, numbers), Evidence()
        for window in windows(samples, LIMITS.hice_texts):
            texts = self.encode_texts(window.captions)
            for part, views in self.encode_images(window):
                for text, image, view in zip(texts[part], window.images[part], views, strict=True):
                    row = rows.slice(len(found), 1).to_pylist()[0]
                    found[len(found)] = self._explanation(shown[len(found)], row, text, image, view)
        return found

    def _explanation(
        self, shown: dict[str, Any], row: dict[str, Any], text: EncodedText, image: InputImage, view: Any
    ) -> HiceExplanation:
        """The explanation of a row, by the row's own cosines, so that the numbers add up."""
        from capeval_core.encoders.preprocessing import central_square

        w, constants = self.options.w, self.encoder.config.get("constants", {})
        content = shown | {"threshold": w * constants.get("threshold", THRESHOLD)}
        content |= {"phrases": [], "regions": [], "whole": None}
        try:
            if reason := row["error"] or view.error:
                raise ImageError(reason)
            regions = self.regions.find(image)
        except ImageError as error:
            return HiceExplanation(content | {"error": str(error)}, image, None)
        visible, phrases = regions.select(view.kept.tolist()), text.phrases
        with_whole = self.options.include_whole_image or not len(visible)
        cosines = unit(text.phrase_features) @ unit(view.regions).T
        for i, (best, whole) in enumerate(zip(row["phrase_maxima"], row["phrase_cosines"], strict=True)):
            by_whole = with_whole and (not len(visible) or whole > best)
            precision = w * max(whole if by_whole else best, 0.0)
            region = None if by_whole else int(cosines[i].argmax())
            content["phrases"].append({"phrase": phrases[i], "precision": precision, "region": region})
        areas = (visible.areas / math.prod(visible.size)).tolist()
        boxes = zip(visible.boxes.tolist(), areas, row["region_maxima"], strict=True)
        for i, (box, area, best) in enumerate(boxes):
            note = {"box": box, "area": area, "recall": w * max(best, 0.0)}
            content["regions"].append(note | {"phrase": phrases[int(cosines[:, i].argmax())]})
        if with_whole:
            best, phrase = max(zip(row["phrase_cosines"], phrases, strict=True), key=itemgetter(0))
            content["whole"] = {"recall": w * max(best, 0.0), "phrase": phrase}
        top, left, side = central_square(*regions.size)
        content["outside"] = len(regions) - len(visible)
        content["square"] = [left, top, left + side, top + side]
        content["truncated"] = row["truncated"]
        return HiceExplanation(content, image, visible).with_threshold(content["threshold"])


@facts("refhices")
class RefHiceS(HiceS):
    """RefHICE-S: harmonic mean of global and local image-text and text-text compatibility, eq. 11."""

    needs_references = True
    Options: ClassVar[type[CommonOptions]] = RefHiceOptions
    _COMPARED = (
        column("reference_cosines", FLOATS, "cosine of caption and each reference, eq. 3"),
        column("caption_phrase_maxima", NESTED, "per reference, each caption phrase's best, eq. 7"),
        column("reference_phrase_maxima", NESTED, "per reference, each of its phrases' best, eq. 8"),
    )
    ROW = pa.schema([*HiceS.ROW, *_COMPARED])
    reference_columns = tuple(one.name for one in _COMPARED)

    options: RefHiceOptions

    def aggregate(self, rows: pa.Table) -> Values:
        terms = image_text_terms(rows, self.options.w, self.options.include_whole_image)
        terms["gttc"], terms["lttc"] = _text_text_terms(rows, self.options.reference_reduction)
        score = harmonic_mean(terms["gitc"], terms["litc"], terms["gttc"], terms["lttc"])  # eq. 11
        highest = 2 * self.options.w / (self.options.w + 1)
        return Values(score, {**terms, **_counts(rows)}, range=(0.0, highest))

    def evidence_of(self, samples: Samples, rows: pa.Table, parts: Mapping[str, Any]) -> Evidence:
        gttc, lttc = reference_terms(rows)
        deciding = {"joint": [joint(gttc, lttc)], "best": [gttc, lttc]}
        terms = deciding.get(self.options.reference_reduction, [])
        chosen = np.full(len(gttc.values), not terms)  # by the other reductions all are
        for term in terms:
            chosen[term.argmax()] = True
        columns = zip(gttc.values.tolist(), lttc.values.tolist(), chosen.tolist(), strict=True)
        notes = ({"gttc": one, "lttc": other, "chosen": used} for one, other, used in columns)
        shown = super().evidence_of(samples, rows, parts)
        for explanation, references in zip(shown.values(), samples.references or [], strict=True):
            explanation["compared"] = [{"reference": text, **next(notes)} for text in references]
        return shown


class EncodedText(NamedTuple):
    """A text and its phrases, encoded."""

    phrases: tuple[str, ...]
    feature: Floats
    phrase_features: Floats
    truncated: int  # token ids that the encoder did not read, and sentences not parsed to their end
    fallback: int  # sentences that are their own phrase


def _region_columns(captions: Sequence[EncodedText], images: Sequence[Any]) -> dict[str, Any]:
    """The columns of `HiceS.ROW` for captions and their images, one each."""
    from capeval_core.matching.greedy import match_arrays

    whole, texts = (np.stack(own) for own in ([i.whole for i in images], [c.feature for c in captions]))
    phrases = [caption.phrase_features for caption in captions]
    lengths = np.array([len(own) for own in phrases])
    phrase_cosines = grouped_cosine(whole, np.concatenate(phrases), lengths)
    regions = {id(image.regions): image.regions for image in images}  # equal images share theirs
    number = {key: position for position, key in enumerate(regions)}
    matches = match_arrays(phrases, [*regions.values()], y_of_pair=[number[id(i.regions)] for i in images])
    counts = np.array([len(image.regions) for image in images])
    return {
        "cosine": pa.array(paired_cosine(whole, texts), mask=np.isnan(whole).any(axis=1)),
        "phrase_cosines": lists(np.nan_to_num(phrase_cosines), lengths),
        "phrase_maxima": lists(matches.x_maxima, lengths),
        "region_maxima": lists(matches.y_maxima, counts),
        "regions_dropped": np.array([image.dropped for image in images], dtype=np.int32),
        "without_phrases": np.array([caption.fallback for caption in captions], dtype=np.int32),
    }


def _phrase_columns(
    captions: Sequence[EncodedText], references: Sequence[EncodedText], counts: Integers
) -> dict[str, Any]:
    """Columns of `RefHiceS.ROW`: phrases of captions matched with those of their references, so many each."""
    from capeval_core.matching.greedy import match_arrays

    owner = np.repeat(np.arange(len(counts)), counts)
    x, y = ([text.phrase_features for text in texts] for texts in (captions, references))
    matches = match_arrays(x, y, x_of_pair=owner)
    of_captions, of_references = (np.array([len(own) for own in sets], dtype=np.int64) for sets in (x, y))
    return {
        "caption_phrase_maxima": lists(lists(matches.x_maxima, of_captions[owner]), counts),
        "reference_phrase_maxima": lists(lists(matches.y_maxima, of_references), counts),
    }


def _counts(rows: pa.Table) -> dict[str, Doubles]:
    """Counts of regions, phrases, dropped regions and sentences without a phrase; NaN where a row failed."""
    failed = rows["cosine"].is_null().to_numpy()
    counts = {f"{name}_count": pc.list_value_length(rows[f"{name}_maxima"]) for name in ("region", "phrase")}
    counts |= {name: rows[name] for name in ("regions_dropped", "without_phrases")}
    return {name: np.where(failed, np.nan, count.to_numpy()) for name, count in counts.items()}


class HiceExplanation(DrawnExplanation):
    """The explanation of a score, by `result.explain(i)`: numbers and texts, and `plot()`, which draws them.

    Keys: `caption`, `image`; the score under its name (`hice_s`, `refhice_s`) and its terms (`gitc`, `litc`,
    `precision`, `recall`; `gttc`, `lttc`); `threshold`; `phrases` and `regions`, see below; `whole`, recall
    and phrase of the whole image where it counts as a region, else None; `square`, x0, y0, x1, y1 of the part
    that the image tower sees, and `outside`, the number of regions outside of it; `truncated`, how many token
    ids and sentences were; with references `compared`; and `error`, the reason where there is no score.

    A phrase has `precision`, w max(cos, 0) with the best `region` (None: the whole image); it is a `mistake`
    where that is below the threshold, but not `judged` where it may be about a region outside of the square.
    A region has its `box` in pixels, its `area` as a share of the image, `recall`, w max(cos, 0) with the
    best `phrase`, and is `unmentioned` where that is below the threshold. A `reference` that is compared has
    `gttc` (eq. 3), `lttc` (eq. 9), and is `chosen` where the score uses either.

    The score clamps at 0 after the mean, these notes before it: where cosines are negative, the mean of the
    phrases' precisions is more than `precision`.
    """

    def __init__(self, content: Mapping[str, Any], image: InputImage, masks: Regions | None) -> None:
        super().__init__(content)
        self._image, self._masks = image, masks

    def with_threshold(self, threshold: float) -> HiceExplanation:
        """The same explanation with another threshold for mistakes and unmentioned regions."""
        outside = bool(self["outside"])  # a phrase that fits no region may be about one of those
        phrases = []
        for note in self["phrases"]:
            below = note["precision"] < threshold
            phrases.append({**note, "mistake": below and not outside, "judged": not (below and outside)})
        regions = [{**note, "unmentioned": note["recall"] < threshold} for note in self["regions"]]
        changed = {"threshold": threshold, "phrases": phrases, "regions": regions}
        return HiceExplanation({**self, **changed}, self._image, self._masks)

    def plot(self, width: int = 1280, *, threshold: float | None = None) -> Image:
        """The explanation as one image, `width` pixels wide: the image with its regions outlined and what the
        image tower does not see dimmed, the caption with its mistakes marked, and all numbers. `threshold`
        replaces that of the explanation."""
        self.check_drawable(width)
        shown = self if threshold is None else self.with_threshold(threshold)
        return draw_picture(card_lines(shown, marked(shown)), shown.overlay(1000), width)

    def overlay(self, width: int = 1280) -> Image:
        """The image with its regions outlined, narrower where it would be more than twice as high as wide."""
        self.check_drawable(width)
        image = self._image.load()
        regions = self._masks or Regions.of([], size=(image.height, image.width))
        unmentioned = [note["unmentioned"] for note in self["regions"]]
        return outlined(image, regions, unmentioned, width, self["square"])
