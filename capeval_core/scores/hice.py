"""HICE-S and RefHICE-S: regions of the image matched with phrases of the caption, beside both as a whole.

Zeng, Sun, Zhang, Wen, Su, Xie, Wang, Chen: HICEScore: A Hierarchical Metric for Image Captioning Evaluation,
ACM Multimedia 2024, https://doi.org/10.1145/3664647.3681358

The authors released no code. The choices that their paper leaves open are options, with reasons.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice, pairwise
from os import PathLike
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from capeval_core.inputs.images import ImageError, InputImage
from capeval_core.inputs.samples import Samples, windows
from capeval_core.limits import LIMITS
from capeval_core.matching.cosine import grouped_cosine, harmonic_mean, paired_cosine
from capeval_core.metric import CaptionMetric, Model
from capeval_core.options import Options as CommonOptions
from capeval_core.options import option
from capeval_core.phrases.source import PhraseSource, phrase_opener
from capeval_core.phrases.spans import Span
from capeval_core.ragged import Integers, Ragged, inner, ranges, starts_of
from capeval_core.regions.opening import region_opener
from capeval_core.regions.regions import CachedRegions, LimitedRegions, Regions, RegionSource
from capeval_core.reports.explained import DrawnExplanation
from capeval_core.reports.explanations import wrong_spans
from capeval_core.reports.overlay import outlined
from capeval_core.result import Values
from capeval_core.rows import FLOATS, NESTED, Texts, column, common_columns, lists, row_schema
from capeval_core.scores.facts import facts

if TYPE_CHECKING:
    from PIL.Image import Image

    from capeval_core.encoders.alpha_clip import RegionFeatures
    from capeval_core.matching.greedy import GreedyMatch

Doubles = NDArray[np.float64]
Floats = NDArray[np.float32]
IMAGES_AT_ONCE = 64
_SOURCES = {"regions": "objects", "phrases": "factual"}
"""Sources of regions and phrases where neither options nor weights name one: those of the paper."""
WIDTH = 1280
"""Pixels of a drawn explanation."""
THRESHOLD = 0.2
"""The cosine below which a phrase is a mistake and a region unmentioned: with w = 2.5 the 0.5 of figure 5.

Weights whose cosines are in another range name their own: `threshold` among the constants of their config.
"""


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
    whole, best = Ragged.of(rows["phrase_cosines"]), Ragged.of(rows["phrase_maxima"])
    regions = Ragged.of(rows["region_maxima"])
    n = regions.lengths
    with_whole = (n == 0) | include_whole_image
    maxima = np.where((n == 0)[best.owner], whole.values, best.values)
    if include_whole_image:
        maxima = np.maximum(maxima, whole.values)
    p = compatibility(Ragged(maxima, best.lengths).mean(), w)
    r = compatibility((regions.sum() + np.where(with_whole, whole.max(), 0)) / (n + with_whole), w)
    terms = {"gitc": compatibility(cosine, w), "litc": harmonic_mean(p, r), "precision": p, "recall": r}
    return {name: np.where(np.isnan(cosine), np.nan, term) for name, term in terms.items()}


def text_text_terms(rows: pa.Table, reference_reduction: str) -> dict[str, Doubles]:
    """gTTC (eq. 3) and lTTC (eq. 9) of each row over its references, by the option `reference_reduction`."""
    gttc, lttc = reference_terms(rows)
    if reference_reduction == "best":
        return {"gttc": gttc.max(), "lttc": lttc.max()}
    if reference_reduction == "mean":
        return {"gttc": gttc.mean(), "lttc": lttc.mean()}
    if reference_reduction == "pooled":
        of_caption, of_references, counts = _phrase_maxima(rows)
        precision = compatibility(_best_of_all(of_caption, counts).mean())
        recall = compatibility(of_references.joined(counts).mean())
        return {"gttc": gttc.max(), "lttc": harmonic_mean(precision, recall)}
    chosen = joint(gttc, lttc).argmax()
    return {"gttc": gttc.values[chosen], "lttc": lttc.values[chosen]}


def reference_terms(rows: pa.Table) -> tuple[Ragged, Ragged]:
    """gTTC (eq. 3) and lTTC (eq. 7 to 9) of each reference of each row."""
    of_caption, of_references, counts = _phrase_maxima(rows)
    gttc = compatibility(Ragged.of(rows["reference_cosines"]).values)
    lttc = harmonic_mean(compatibility(of_caption.mean()), compatibility(of_references.mean()))
    return Ragged(gttc, counts), Ragged(lttc, counts)


def joint(gttc: Ragged, lttc: Ragged) -> Ragged:
    """hMean(gTTC, lTTC) of each reference, by which `reference_reduction="joint"` chooses."""
    return Ragged(harmonic_mean(gttc.values, lttc.values), gttc.lengths)


def _phrase_maxima(rows: pa.Table) -> tuple[Ragged, Ragged, Integers]:
    """Per reference the maxima of the caption's phrases and of its own; per row the number of references."""
    of_caption, counts = inner(rows["caption_phrase_maxima"])
    of_references, _ = inner(rows["reference_phrase_maxima"])
    return Ragged.of(of_caption), Ragged.of(of_references), counts


def _best_of_all(maxima: Ragged, counts: Integers) -> Ragged:
    """The best of each caption phrase over the references: `counts[i]` consecutive lists are of caption i."""
    lengths = maxima.lengths[starts_of(counts)]
    of_caption = np.repeat(starts_of(lengths), counts)  # where the phrases of each list's caption begin
    best = np.full(lengths.sum(), -np.inf)
    np.maximum.at(best, ranges(of_caption, maxima.lengths), maxima.values)
    return Ragged(best, lengths)


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


@facts("hices")
class HiceS(CaptionMetric):
    """HICE-S: harmonic mean of global and local image-text compatibility, eq. 10, without references."""

    plots = True
    Options: ClassVar[type[CommonOptions]] = HiceOptions
    ROW = row_schema(
        column("cosine", pa.float32(), "cosine of the caption with the whole image, eq. 2"),
        column("phrase_cosines", FLOATS, "cosine of each phrase with the whole image"),
        column("phrase_maxima", FLOATS, "each phrase's best cosine over the regions, eq. 4"),
        column("region_maxima", FLOATS, "each region's best cosine over the phrases, eq. 5"),
        column(
            "regions_dropped", pa.int32(), "regions that are empty, or outside the square of the image tower"
        ),
        column("without_phrases", pa.int32(), "sentences without a phrase, which are their own phrase"),
    )

    options: HiceOptions

    def open_models(self) -> dict[str, Model]:
        options = self.options
        # Wrong sources are refused before any weights are opened.
        open_regions = None if options.regions is None else region_opener(options.regions)
        open_phrases = None if options.phrases is None else phrase_opener(options.phrases)
        models = super().open_models()
        defaults = {**_SOURCES, **self.folder.config.get("constants", {})}
        open_regions = open_regions or region_opener(defaults["regions"])
        open_phrases = open_phrases or phrase_opener(defaults["phrases"])
        unset = {name: defaults[name] for name in _SOURCES if getattr(options, name) is None}
        self.options = replace(options, **unset)
        device: dict[str, Any] = {"device": options.device, "dtype": options.dtype}
        self.regions: RegionSource = open_regions(**device)
        if options.max_regions is not None:
            self.regions = LimitedRegions(self.regions, options.max_regions)
        if options.evidence:  # which needs the regions a second time
            self.regions = CachedRegions(self.regions)
        self.phrases: PhraseSource = open_phrases(
            style=options.phrase_style, batch_size=options.batch_size, **device
        )
        regions, phrases = (Model.of(one.name, one.fingerprint) for one in (self.regions, self.phrases))
        return {**models, "regions": regions, "phrases": phrases}

    def encode(self, batch: Samples) -> Iterator[pa.Table]:
        for window in windows(batch, LIMITS.hice_texts):
            n, texts = len(window), Texts(window, with_references=self.needs_references)
            encoded, compared = self.encode_texts(window.captions), self.encode_texts(texts.all[n:])
            truncated = np.concatenate([encoded.truncated, compared.truncated])
            for part, images in self.encode_images(window):
                captions, places = encoded.part(part), texts.references(part)
                columns = region_columns(captions, images)
                if self.needs_references:
                    references = compared.part(slice(places.start - n, places.stop - n))
                    columns |= reference_columns(captions, references, texts.counts[part])
                common = common_columns(
                    window,
                    part,
                    groups=[image.key for image in images],
                    errors=[image.error for image in images],
                    truncated=texts.total(part, truncated),
                )
                yield pa.table({**common, **columns}, schema=self.ROW)

    def encode_images(self, window: Samples) -> Iterator[tuple[slice, list[RegionFeatures]]]:
        """Images with their regions, `IMAGES_AT_ONCE` at a time."""
        images = self.encoder.encode_regions(
            window.images,
            self.regions,
            mask_transform=self.options.mask_transform,
            cache=self.cache,
            batch_size=self.options.batch_size,
        )
        start = 0
        while features := list(islice(images, IMAGES_AT_ONCE)):
            yield slice(start, start + len(features)), features
            start += len(features)

    def encode_texts(self, texts: Sequence[str]) -> EncodedTexts:
        """Texts and their phrases.

        Raises:
            ValueError: a `PhraseSource` of the user that does not give each text its phrases.
        """
        parsed = self.phrases.phrases(texts)
        without = sum(not of_text.phrases for of_text in parsed)
        if len(parsed) != len(texts) or without:
            raise ValueError(
                f"phrases={self.phrases.name!r} gave {len(texts)} texts {len(parsed)} results, {without} of "
                "them without a phrase: expected one for each, the text itself where no phrase is in it"
            )
        phrases = [of_text.phrases for of_text in parsed]
        every = [*texts, *(phrase for own in phrases for phrase in own)]
        encoded = self.encoder.encode_texts(every, cache=self.cache, batch_size=self.options.batch_size)
        n, truncated = len(texts), np.array(encoded.truncated, dtype=np.int64)
        owner = np.repeat(np.arange(n), [len(own) for own in phrases])
        sentences = np.array([of_text.truncated for of_text in parsed], dtype=np.int64)
        return EncodedTexts(
            phrases=phrases,
            texts=encoded.features[:n],
            phrase_features=encoded.features[n:],
            truncated=truncated[:n] + np.bincount(owner, truncated[n:], n).astype(np.int64) + sentences,
            fallback=np.array([of_text.fallback for of_text in parsed], dtype=np.int32),
        )

    def aggregate(self, rows: pa.Table) -> Values:
        terms = image_text_terms(rows, self.options.w, self.options.include_whole_image)
        score = harmonic_mean(terms["gitc"], terms["litc"])  # eq. 10
        return Values(score, {**terms, **_counts(rows)}, range=(0.0, self.options.w))

    def evidence_of(
        self, samples: Samples, rows: pa.Table, parts: Mapping[str, list[Any]]
    ) -> dict[int, dict[str, Any]]:
        scores = self.aggregate(rows).scores.tolist()
        return {**explained(self, samples, rows, {self.key: scores, **parts})}


@facts("refhices")
class RefHiceS(HiceS):
    """RefHICE-S: harmonic mean of global and local image-text and text-text compatibility, eq. 11."""

    needs_references = True
    Options: ClassVar[type[CommonOptions]] = RefHiceOptions
    ROW = pa.schema(
        [
            *HiceS.ROW,
            column("reference_cosines", FLOATS, "cosine of caption and each reference, eq. 3"),
            column(
                "caption_phrase_maxima",
                NESTED,
                "per reference, each caption phrase's best cosine over the reference's phrases, eq. 7",
            ),
            column(
                "reference_phrase_maxima",
                NESTED,
                "per reference, each of its phrases' best cosine over the caption's phrases, eq. 8",
            ),
        ]
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
        gttc, lttc = reference_terms(rows)
        reduction = self.options.reference_reduction
        terms = [joint(gttc, lttc)] if reduction == "joint" else [gttc, lttc] if reduction == "best" else []
        chosen = np.full(len(gttc.values), not terms)  # by the other reductions all are
        for term in terms:
            chosen[term.argmax()] = True
        notes = zip(gttc.values.tolist(), lttc.values.tolist(), chosen.tolist(), strict=True)
        shown = super().evidence_of(samples, rows, parts)
        for explanation, references in zip(shown.values(), samples.references or [], strict=True):
            explanation["compared"] = [
                {"reference": text, "gttc": whole, "lttc": local, "chosen": is_chosen}
                for text, (whole, local, is_chosen) in zip(references, notes, strict=False)
            ]
        return shown


@dataclass(frozen=True)
class EncodedTexts:
    """n texts and their phrases, encoded.

    phrases: of each text, at least one. texts: (n, d). phrase_features: (sum of lengths, d). truncated: (n,)
    token ids that the encoder did not read, and sentences that the parser did not read to their end.
    fallback: (n,) sentences without a phrase.
    """

    phrases: list[tuple[str, ...]]
    texts: Floats
    phrase_features: Floats
    truncated: Integers
    fallback: NDArray[np.int32]

    @cached_property
    def lengths(self) -> Integers:
        """(n,) phrases of each text."""
        return np.array([len(phrases) for phrases in self.phrases], dtype=np.int64)

    def part(self, part: slice) -> EncodedTexts:
        """Consecutive texts."""
        ends = np.cumsum([0, *self.lengths])
        return EncodedTexts(
            self.phrases[part],
            self.texts[part],
            self.phrase_features[ends[part.start] : ends[part.stop]],
            self.truncated[part],
            self.fallback[part],
        )


def region_columns(captions: EncodedTexts, images: Sequence[RegionFeatures]) -> dict[str, Any]:
    """The columns of `HiceS.ROW` for captions and their images, one each."""
    whole = np.stack([image.whole for image in images])
    failed = np.isnan(whole).any(axis=1)
    phrase_cosines = paired_cosine(np.repeat(whole, captions.lengths, axis=0), captions.phrase_features)
    matches = match_regions(captions, images)
    counts = np.array([len(image.regions) for image in images])
    return {
        "cosine": pa.array(paired_cosine(whole, captions.texts), mask=failed),
        "phrase_cosines": lists(np.nan_to_num(phrase_cosines), captions.lengths),
        "phrase_maxima": lists(matches.x_maxima, captions.lengths),
        "region_maxima": lists(matches.y_maxima, counts),
        "regions_dropped": np.array([image.dropped for image in images], dtype=np.int32),
        "without_phrases": captions.fallback.astype(np.int32),
    }


def match_regions(captions: EncodedTexts, images: Sequence[RegionFeatures]) -> GreedyMatch:
    """Match the phrases of each caption with the regions of its image; equal images share their regions."""
    import torch

    from capeval_core.matching.greedy import greedy_match

    number: dict[int, int] = {}
    of_caption = [number.setdefault(id(image.regions), len(number)) for image in images]
    distinct = list({id(image.regions): image.regions for image in images}.values())
    return greedy_match(
        torch.from_numpy(captions.phrase_features),
        torch.from_numpy(np.concatenate(distinct)),
        captions.lengths,
        [len(regions) for regions in distinct],
        y_of_pair=of_caption,
        return_maxima=True,
        return_indices=True,
    )


def reference_columns(captions: EncodedTexts, references: EncodedTexts, counts: Integers) -> dict[str, Any]:
    """The columns that `RefHiceS.ROW` adds; `references` are those of all captions, `counts` of each."""
    import torch

    from capeval_core.matching.greedy import greedy_match

    owner = np.repeat(np.arange(len(counts)), counts)
    matches = greedy_match(
        torch.from_numpy(captions.phrase_features),
        torch.from_numpy(references.phrase_features),
        captions.lengths,
        references.lengths,
        x_of_pair=owner,
        return_maxima=True,
    )
    cosines = grouped_cosine(captions.texts, references.texts, counts)
    return {
        "reference_cosines": lists(cosines, counts),
        "caption_phrase_maxima": lists(lists(matches.x_maxima, captions.lengths[owner]), counts),
        "reference_phrase_maxima": lists(lists(matches.y_maxima, references.lengths), counts),
    }


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


class HiceExplanation(DrawnExplanation):
    """The explanation of a score, by `result.explain(i)`: numbers and texts, and `plot()`, which draws them.

    Keys: `caption`, `image`; the score under its name (`hice_s`, `refhice_s`) and its terms (`gitc`, `litc`,
    `precision`, `recall`; `gttc`, `lttc`); `threshold`; `phrases` and `regions`, see below; `whole`, the
    recall and phrase of the whole image where it counts as a region, else None; `square`, x0, y0, x1, y1 of
    the part that the image tower sees, and `outside`, the number of regions outside of it; `truncated`, how
    many token ids and sentences were truncated; with references `compared`; and `error`, the reason where
    there is no score.

    A phrase has `precision`, w max(cos, 0) with the best `region` (None: the whole image); it is a `mistake`
    where that is below the threshold, but not `judged` where it may be about a region outside of the square.
    A region has its `box` in pixels, its `area` as a share of the image, `recall`, w max(cos, 0) with the
    best `phrase`, and is `unmentioned` where that is below the threshold. A `reference` that is compared has
    `gttc` (eq. 3), `lttc` (eq. 9), and is `chosen` where the score uses either.

    The score clamps at 0 after the mean, these notes before it: where cosines are negative, the mean of the
    phrases' precisions is more than `precision`.

    >>> import capeval_core
    >>> from capeval_core.demo import demo_set
    >>> metric = capeval_core.load("hices", weights="tiny", evidence=True)
    >>> item = demo_set()[0]
    >>> explanation = metric.score([item.good], [item.image]).explain(0)
    >>> [note["phrase"] for note in explanation.phrases if note["mistake"]]
    []
    >>> explanation.plot(width=900).size[0]
    900
    """

    def __init__(self, content: Mapping[str, Any], image: InputImage, masks: Regions | None) -> None:
        super().__init__(content)
        self._image, self._masks = image, masks

    @property
    def phrases(self) -> list[dict[str, Any]]:
        """The phrases in the caption's order."""
        notes: list[dict[str, Any]] = self["phrases"]
        return notes

    @property
    def regions(self) -> list[dict[str, Any]]:
        """The regions that the image tower sees, in the source's order."""
        notes: list[dict[str, Any]] = self["regions"]
        return notes

    @property
    def compared(self) -> list[dict[str, Any]]:
        """The references; empty for HICE-S."""
        notes: list[dict[str, Any]] = self.get("compared", [])
        return notes

    def wrong_words(self) -> list[Span]:
        """The words of the caption to mark: those of mistakes that no right phrase contains."""
        return wrong_spans(self)

    def with_threshold(self, threshold: float) -> HiceExplanation:
        """The same explanation with another threshold for mistakes and unmentioned regions."""
        return HiceExplanation(judged(self, threshold), self._image, self._masks)

    def plot(self, width: int = WIDTH, *, threshold: float | None = None) -> Image:
        """The explanation as one image, `width` pixels wide: the image with its regions outlined and the part
        that the image tower does not see dimmed, the caption with its mistakes marked, and tables of
        phrases, regions and references.

        `threshold` replaces that of the explanation.

        Raises:
            ValueError: there is no score, or the width is below 320 pixels.
            ImageError: the image can no longer be read.
            ModuleNotFoundError: matplotlib is not installed.
        """
        from capeval_core.reports.figures import draw_card

        shown = self._drawable(width, threshold)
        return draw_card(shown, shown._outlined(1000), shown.wrong_words(), width)

    def overlay(self, width: int = WIDTH, *, threshold: float | None = None) -> Image:
        """The image with its regions outlined; arguments and errors are those of `plot`.

        It is narrower where it would be more than twice as high as wide.
        """
        return self._drawable(width, threshold)._outlined(width)

    def _drawable(self, width: int, threshold: float | None) -> HiceExplanation:
        self.check_drawable(width)
        return self if threshold is None else self.with_threshold(threshold)

    def _outlined(self, width: int) -> Image:
        image = self._image.load()
        regions = self._masks or Regions.of([], size=(image.height, image.width))
        unmentioned = [note["unmentioned"] for note in self.regions]
        return outlined(image, regions, unmentioned, width, self["square"])

    def __reduce__(self) -> tuple[Any, ...]:
        return HiceExplanation, (dict(self), self._image, self._masks)


def judged(content: Mapping[str, Any], threshold: float) -> dict[str, Any]:
    """An explanation's content with the verdicts of its notes, by the threshold of mistakes.

    Where the image tower does not see all regions, a phrase below the threshold may be about one of those.
    """
    phrases = [(note, note["precision"] < threshold) for note in content["phrases"]]
    outside = bool(content["outside"])
    return {
        **content,
        "threshold": threshold,
        "phrases": [
            {**note, "mistake": below and not outside, "judged": not (below and outside)}
            for note, below in phrases
        ],
        "regions": [{**note, "unmentioned": note["recall"] < threshold} for note in content["regions"]],
    }


def explained(
    metric: HiceS, samples: Samples, rows: pa.Table, values: Mapping[str, Sequence[Any]]
) -> dict[int, HiceExplanation]:
    """The explanation of each row with its score and parts, of the rows' cosines, so that they add up."""
    from capeval_core.encoders.preprocessing import central_square

    constants = metric.encoder.config.get("constants", {})
    threshold = metric.options.w * constants.get("threshold", THRESHOLD)
    regions_of: dict[str, Regions | ImageError] = {}  # by image, which its captions share
    found: dict[int, HiceExplanation] = {}
    for window in windows(samples, LIMITS.hice_texts):
        encoded = metric.encode_texts(window.captions)
        for part, features in metric.encode_images(window):
            captions = encoded.part(part)
            matches = match_regions(captions, features).to("cpu")
            best_regions = _split(matches.x_indices, matches.x_offsets)
            best_phrases = _split(matches.y_indices, matches.y_offsets)
            own = window[part]
            for i, (caption, image, view) in enumerate(zip(own.captions, own.images, features, strict=True)):
                row = rows.slice(len(found), 1).to_pylist()[0]
                content: dict[str, Any] = {"caption": caption, "image": image.label}
                content |= {name: value[len(found)] for name, value in values.items()}
                content["threshold"] = threshold
                if view.error is None and view.key not in regions_of:
                    regions_of[view.key] = _regions(metric.regions, image)
                regions = ImageError(view.error) if view.error else regions_of[view.key]
                if row["error"] is not None or isinstance(regions, ImageError):
                    content |= {"phrases": [], "regions": [], "whole": None}
                    content["error"] = row["error"] or str(regions)
                    found[len(found)] = HiceExplanation(content, image, None)
                    continue
                visible = regions.select(view.kept.tolist())
                content |= _notes(
                    row, captions.phrases[i], best_regions[i], best_phrases[i], visible, metric.options
                )
                top, left, side = central_square(*regions.size)
                content["outside"] = len(regions) - len(visible)
                content["square"] = [left, top, left + side, top + side]
                content["truncated"] = row["truncated"]
                found[len(found)] = HiceExplanation(judged(content, threshold), image, visible)
    return found


def _regions(source: RegionSource, image: InputImage) -> Regions | ImageError:
    try:
        return source.find(image)
    except ImageError as error:
        return error


def _notes(
    row: Mapping[str, Any],
    texts: Sequence[str],
    best_regions: Sequence[int],
    best_phrases: Sequence[int],
    visible: Regions,
    options: HiceOptions,
) -> dict[str, Any]:
    """The notes of a row without verdicts: phrases, visible regions, the whole image as a region."""
    w = options.w
    with_whole = options.include_whole_image or not len(visible)
    phrases = []
    for text, best, whole, region in zip(
        texts, row["phrase_maxima"], row["phrase_cosines"], best_regions, strict=True
    ):
        by_whole = with_whole and (region < 0 or whole > best)
        precision = w * max(whole if by_whole else best, 0.0)
        phrases.append({"phrase": text, "precision": precision, "region": None if by_whole else region})
    height, width = visible.size
    boxes, areas = visible.boxes.tolist(), visible.areas.tolist()
    regions = [
        {"box": box, "area": area / (height * width), "recall": w * max(best, 0.0), "phrase": texts[phrase]}
        for best, phrase, box, area in zip(row["region_maxima"], best_phrases, boxes, areas, strict=True)
    ]
    cosine, phrase = max(zip(row["phrase_cosines"], texts, strict=True), key=lambda pair: pair[0])
    whole_note = {"recall": w * max(cosine, 0.0), "phrase": phrase} if with_whole else None
    return {"phrases": phrases, "regions": regions, "whole": whole_note}


def _split(indices: Any, offsets: Any) -> list[list[int]]:
    flat = indices.tolist()
    return [flat[start:stop] for start, stop in pairwise(offsets.tolist())]
