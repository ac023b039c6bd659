"""HICE-S and RefHICE-S: regions of the picture against phrases of the caption, beside both as a whole.

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
from numpy.typing import NDArray

from capeval_core.inputs.pictures import Picture
from capeval_core.inputs.samples import Samples
from capeval_core.metric import CaptionMetric, Model, Published, Values, windows
from capeval_core.options import Options as CommonOptions
from capeval_core.phrases.source import PhraseSource, open_phrases
from capeval_core.ragged import Integers, Ragged, inner
from capeval_core.regions.limited import LimitedRegions
from capeval_core.regions.remembered import RememberedRegions
from capeval_core.regions.segment import open_regions
from capeval_core.regions.source import RegionSource
from capeval_core.rows import column, common_columns, row_schema
from capeval_core.scores.hice_options import HiceOptions, RefHiceOptions
from capeval_core.weights.catalogue import ALPHA_L14

if TYPE_CHECKING:
    from capeval_core.encoders.alpha_clip import AlphaClipEncoder
    from capeval_core.encoders.region_features import RegionFeatures
    from capeval_core.scores.hice_rows import Reading

Doubles = NDArray[np.float64]

PICTURES_AT_ONCE = 64
TEXTS_AT_ONCE = 4096
"""Captions and references whose phrases are found and encoded together, which bounds memory."""
_SOURCES = {"regions": "objects", "phrases": "factual"}
"""What finds regions and phrases, unless the options or the weights say otherwise: the paper's choices."""


def harmonic_mean(*terms: Doubles) -> Doubles:
    """hMean of eq. 6 and 9 to 11, of terms of at least 0: 0 where one of them is 0, NaN where one is NaN.

    >>> harmonic_mean(np.array([0.6, 0.6, 0.6]), np.array([0.3, 0.0, np.nan]))
    array([0.4, 0. , nan])
    """
    stacked = np.stack(terms)
    positive = (stacked > 0).all(axis=0)
    inverse = (1 / np.where(positive, stacked, 1)).sum(axis=0)
    failed = np.isnan(stacked).any(axis=0)
    return np.where(failed, np.nan, np.where(positive, len(terms) / inverse, 0.0))


def compatibility(cosine: Doubles, w: float = 1.0) -> Doubles:
    """w max(cos, 0), for each global cosine (eq. 2, 3) and each mean of maxima (eq. 4, 5, 7, 8).

    The paper states neither: harmonic means need terms of at least 0, and its values (table 3, the threshold
    of 0.5 in figure 5) are those of cosines that CLIP-S's w = 2.5 has stretched.

    >>> compatibility(np.array([0.2, -0.1]), 2.5)
    array([0.5, 0. ])
    """
    return w * np.maximum(cosine, 0)


_COLUMNS = (
    column("cosine", pa.float32(), "cosine of the caption with the whole picture, eq. 2"),
    column("phrase_cosines", pa.list_(pa.float32()), "cosine of each phrase with the whole picture"),
    column("phrase_maxima", pa.list_(pa.float32()), "each phrase's best cosine over the regions, eq. 4"),
    column("region_maxima", pa.list_(pa.float32()), "each region's best cosine over the phrases, eq. 5"),
    column(
        "regions_dropped", pa.int32(), "regions that are empty, or lie outside what the picture tower sees"
    ),
    column("without_phrases", pa.int32(), "sentences in which no phrase was found, so they are their own"),
)


class HiceS(CaptionMetric):
    """HICE-S: harmonic mean of global and local image-text compatibility, eq. 10, without references."""

    name = "hices"
    title = "HICE-S"
    key = "hice_s"
    summary = "Harmonic mean of how caption and picture, and their phrases and regions, fit each other."
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
        Published(captions, value, "COCO test set", ALPHA_L14.repository, "the paper's table 3")
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
        folder = self.weights_folder()
        place: dict[str, Any] = {"device": self.options.device, "dtype": self.options.dtype}
        self.encoder: AlphaClipEncoder = self.encoder_class().open(folder, **place)
        named = {**_SOURCES, **folder.config.get("constants", {})}
        chosen: dict[str, Any] = {name: getattr(self.options, name) or named[name] for name in _SOURCES}
        self.options = dataclasses.replace(self.options, **chosen)
        self.finder: RegionSource = open_regions(chosen["regions"], **place)
        if self.options.max_regions is not None:
            self.finder = LimitedRegions(self.finder, self.options.max_regions)
        if self.options.evidence:  # they are asked for a second time
            self.finder = RememberedRegions(self.finder)
        self.parser = open_phrases(chosen["phrases"], style=self.options.style, **place)
        return {
            "weights": Model(folder.label(self.encoder.fingerprint), self.encoder.fingerprint),
            "regions": _signed(self.finder),
            "phrases": _signed(self.parser),
        }

    def encode(self, batch: Samples) -> Iterator[pa.Table]:
        for window in windows(batch, TEXTS_AT_ONCE):
            yield from self._encode(window)

    def _encode(self, batch: Samples) -> Iterator[pa.Table]:
        from capeval_core.encoders.pictures import chunks
        from capeval_core.scores.hice_rows import reference_columns, region_columns

        captions = self._read(batch.captions)
        lists = batch.references if self.needs_references else None
        counts = np.array([len(texts) for texts in lists] if lists else np.zeros(len(batch)), dtype=np.int64)
        references = self._read([text for texts in lists or [] for text in texts])
        ends = np.concatenate([[0], np.cumsum(counts)])
        start = 0
        for seen in chunks(self._see(batch.pictures), PICTURES_AT_ONCE):
            part = slice(start, start + len(seen))
            said, compared = captions.part(part), references.part(slice(ends[start], ends[part.stop]))
            columns = region_columns(said, seen)
            if lists is not None:
                columns |= reference_columns(said, compared, counts[part])
            owner = np.repeat(np.arange(len(seen)), counts[part])
            cut = said.cut + np.bincount(owner, compared.cut, len(seen)).astype(np.int64)
            keys, errors = [each.key for each in seen], [each.error for each in seen]
            common = common_columns(batch, part, groups=keys, errors=errors, truncated=cut)
            yield pa.table({**common, **columns}, schema=self.ROW)
            start = part.stop

    def _read(self, texts: Sequence[str]) -> Reading:
        from capeval_core.scores.hice_rows import read

        return read(texts, self.parser, self.encoder, cache=self.cache, batch_size=self.options.batch_size)

    def _see(self, pictures: Sequence[Picture]) -> Iterator[RegionFeatures]:
        return self.encoder.encode_regions(
            pictures,
            self.finder,
            geometry=self.options.geometry,
            cache=self.cache,
            batch_size=self.options.batch_size,
        )

    def aggregate(self, rows: pa.Table) -> Values:
        parts = self._image_text(rows)
        return Values(harmonic_mean(parts["gitc"], parts["litc"]), parts)

    def _image_text(self, rows: pa.Table) -> dict[str, Doubles]:
        """gITC (eq. 2), lITC (eq. 6) and what that is made of; NaN where the picture could not be read.

        The full-one mask serves gITC only, unless there is no region, or `include_whole` asks for it.
        """
        w, cosine = self.options.w, rows["cosine"].to_numpy().astype(np.float64)
        whole, best = Ragged.of(rows["phrase_cosines"]), Ragged.of(rows["phrase_maxima"])
        found = Ragged.of(rows["region_maxima"])
        n = found.lengths
        maxima = np.where((n == 0)[best.owner], whole.values, best.values)
        if self.options.include_whole:
            maxima = np.maximum(maxima, whole.values)
        with_whole = (n == 0) | self.options.include_whole
        precision = Ragged(maxima, best.lengths).mean()
        recall = (found.sum() + np.where(with_whole, whole.max(), 0)) / (n + with_whole)
        p, r = compatibility(precision, w), compatibility(recall, w)
        parts = {"gitc": compatibility(cosine, w), "litc": harmonic_mean(p, r), "precision": p, "recall": r}
        counts = {"region_count": n, "phrase_count": best.lengths}
        counts |= {name: rows[name].to_numpy() for name in ("regions_dropped", "without_phrases")}
        parts |= {name: count.astype(np.float64) for name, count in counts.items()}
        failed = np.isnan(cosine)
        return {name: np.where(failed, np.nan, part) for name, part in parts.items()}

    def evidence_of(
        self, samples: Samples, rows: pa.Table, parts: Mapping[str, list[Any]]
    ) -> dict[int, dict[str, Any]]:
        from capeval_core.scores.hice_evidence import Evidence
        from capeval_core.scores.hice_explanation import THRESHOLD

        evidence = Evidence(
            read=self._read,
            see=self._see,
            finder=self.finder,
            parser=self.parser,
            w=self.options.w,
            include_whole=self.options.include_whole,
            threshold=self.options.w * self.encoder.config.get("constants", {}).get("threshold", THRESHOLD),
        )
        scored = {self.key: self.aggregate(rows).scores.tolist(), **parts}
        return dict(enumerate(evidence.explanations(samples, rows, scored)))


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

    def aggregate(self, rows: pa.Table) -> Values:
        parts = self._image_text(rows)
        gttc, lttc = self._text_text(rows)
        score = harmonic_mean(parts["gitc"], parts["litc"], gttc, lttc)
        return Values(score, {**parts, "gttc": gttc, "lttc": lttc})

    def _text_text(self, rows: pa.Table) -> tuple[Doubles, Doubles]:
        """gTTC (eq. 3) and lTTC (eq. 9) over the references, as the option `several` says."""
        gttc, lttc = self._each_reference(rows)
        if self.options.several == "best":
            return gttc.max(), lttc.max()
        if self.options.several == "mean":
            return gttc.mean(), lttc.mean()
        if self.options.several == "pooled":
            said, meant, counts = _phrase_maxima(rows)
            precision = compatibility(_best_of_all(said, counts).mean())
            return gttc.max(), harmonic_mean(precision, compatibility(meant.joined(counts).mean()))
        chosen = Ragged(harmonic_mean(gttc.values, lttc.values), gttc.lengths).argmax()
        return gttc.values[chosen], lttc.values[chosen]

    def _each_reference(self, rows: pa.Table) -> tuple[Ragged, Ragged]:
        """gTTC and lTTC of each reference of each caption."""
        said, meant, counts = _phrase_maxima(rows)
        gttc = compatibility(Ragged.of(rows["reference_cosines"]).values)
        lttc = harmonic_mean(compatibility(said.mean()), compatibility(meant.mean()))
        return Ragged(gttc, counts), Ragged(lttc, counts)

    def evidence_of(
        self, samples: Samples, rows: pa.Table, parts: Mapping[str, list[Any]]
    ) -> dict[int, dict[str, Any]]:
        from capeval_core.scores.hice_evidence import reference_notes

        shown = super().evidence_of(samples, rows, parts)
        notes = reference_notes(samples, *self._each_reference(rows), self.options.several)
        for explanation, compared in zip(shown.values(), notes, strict=True):
            explanation["compared"] = compared
        return shown


def _phrase_maxima(rows: pa.Table) -> tuple[Ragged, Ragged, Integers]:
    """Per reference the maxima of the caption's phrases and of its own; references per caption."""
    of_caption, counts = inner(rows["caption_phrase_maxima"])
    of_reference, _ = inner(rows["reference_phrase_maxima"])
    return Ragged.of(of_caption), Ragged.of(of_reference), counts


def _signed(source: RegionSource | PhraseSource) -> Model:
    """A source in the signature: its name, and what tells it from others of that name."""
    digest = hashlib.blake2b(source.fingerprint.encode(), digest_size=4).hexdigest()
    return Model(f"{source.name}@{digest}", source.fingerprint)


def _best_of_all(maxima: Ragged, counts: Integers) -> Ragged:
    """Each phrase's best over several lists: `counts[i]` consecutive ones are of the phrases of caption i."""
    ends = np.cumsum(counts)
    lengths = maxima.lengths[ends - counts]
    starts = np.repeat(np.cumsum(lengths) - lengths, counts)
    within = np.arange(len(maxima.values)) - np.repeat(
        np.cumsum(maxima.lengths) - maxima.lengths, maxima.lengths
    )
    best = np.full(lengths.sum(), -np.inf)
    np.maximum.at(best, np.repeat(starts, maxima.lengths) + within, maxima.values)
    return Ragged(best, lengths)
