"""PAC-S and RefPAC-S for videos: a caption against a video as a whole, and its words against frames.

Sarto, Barraco, Cornia, Baraldi, Cucchiara: Positive-Augmented Contrastive Learning for Image and Video
Captioning Evaluation, CVPR 2023, https://arxiv.org/abs/2303.12112, section 3.2, which follows
Shi, Yang, Xu, Yuan, Li, Hu, Zha: EMScore: Evaluating Video Captioning via Coarse-Grained and Fine-Grained
Embedding Matching, CVPR 2022, https://arxiv.org/abs/2111.08919
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from capeval_core.errors import at, setting, warn, wrong_option
from capeval_core.inputs.samples import Samples, corpus_texts, windows
from capeval_core.inputs.videos import Sampling, check_samplings
from capeval_core.limits import LIMITS
from capeval_core.matching.cosine import harmonic_mean, paired_cosine, unit
from capeval_core.metric import CaptionMetric, CommonOptions, CorpusStatistics, Evidence, with_options
from capeval_core.options import option
from capeval_core.ragged import Integers, Ragged, inner
from capeval_core.registry import facts
from capeval_core.reports.evidence import VideoExplanation, word_notes
from capeval_core.result import Values
from capeval_core.rows import COVERAGE, FLOATS, NESTED, Texts, column, lists, row_schema
from capeval_core.scores.corpus import TokenIdf, token_weights
from capeval_core.scores.pac import RefPacS

if TYPE_CHECKING:
    import torch

    from capeval_core.encoders.dual import VideoFeatures
    from capeval_core.encoders.tokenizers import TokenFeatures

Doubles = NDArray[np.float64]
Floats = NDArray[np.float32]
Pair = tuple[Hashable, Floats, Hashable, Floats]
_MATCHED = pa.schema({"x_maxima": FLOATS, "y_maxima": FLOATS, "recall": pa.float32(), "cosine": pa.float32()})


def fine_score(precision: Doubles, recall: Doubles, *, released: bool = False) -> Doubles:
    """Score_f, the F1 of words and frames, 2PR / (P + R); a negative mean counts as 0.

    Precision is the mean over the words of a caption of their best cosines over frames, weighted by idf, and
    recall the plain mean over frames of their best cosines over words. Against a reference text, recall is
    the mean over its words, weighted by their idf. All token ids count as words, start and end included.

    The released code divides signed means, so that its F leaves [0, 1] where they have opposite signs:
    `released=True`. Where it divides zero by zero, which gives NaN there, both give 0.

    >>> fine_score(np.array([0.5, -0.1]), np.array([0.25, 0.2])).round(3)
    array([0.333, 0.   ])
    >>> fine_score(np.array([0.5, -0.1]), np.array([0.25, 0.2]), released=True).round(3)
    array([ 0.333, -0.4  ])
    """
    if released:
        return harmonic_mean(precision, recall)
    return harmonic_mean(np.maximum(precision, 0), np.maximum(recall, 0))


def video_pac_score(coarse: Doubles, fine: Doubles) -> Doubles:
    """Eq. 5: Score(t, V) = (Score_c + Score_f) / 2, and likewise Score(t, r) of a reference.

    >>> video_pac_score(np.array([0.25]), np.array([0.75]))
    array([0.5])
    """
    return (coarse + fine) / 2


def video_ref_pac_score(score: Doubles, reference_score: Doubles) -> Doubles:
    """Eq. 6: the mean of Score(t, V) and max_r Score(t, r), the largest score of one reference.

    >>> video_ref_pac_score(np.array([0.5]), np.array([1.0]))
    array([0.75])
    """
    return (score + reference_score) / 2


Components = dict[str, Doubles]
"""Scores of n pairs of a caption with a video, or with a reference, (n,) each: `score`, eq. 5; `coarse`,
Score_c, the cosine of both as a whole; `precision`, `recall` and `fine` of words and frames."""


def nearest(components: Components, counts: Integers, *, released: bool = False) -> Components:
    """The reference with the largest score among `counts` consecutive ones each; `released`: the largest of
    every component by itself."""
    if released:
        largest = {}
        for name, values in components.items():
            largest[name] = Ragged(values, counts).max()
        # EMScore combines the maxima: its score may be that of no single reference.
        return largest | {"score": video_pac_score(largest["coarse"], largest["fine"])}
    if not len(counts):  # of which numpy has no argmax
        return components
    scores = Ragged(components["score"], counts)
    best = scores.argmax()
    undefined = np.isnan(scores.max())  # features that are not numbers
    of_best = {}
    for name, values in components.items():
        of_best[name] = np.where(undefined, np.nan, values[best])
    return of_best


@dataclass(frozen=True, kw_only=True)
class VideoOptions(CommonOptions):
    """Options of PAC-S and RefPAC-S for videos."""

    without = ("exif",)

    fps: float | None = option(
        None, "frames per second to take of each video; None: every frame", sign="fps", encodes=True
    )
    max_frames: int | None = option(
        None,
        "frames to take of each video, evenly spread; None: every frame. A shorter video repeats some",
        sign="max_frames",
        encodes=True,
        minimum=1,
    )
    idf: bool = option(
        True,
        "weigh words by their inverse document frequency among the references, or among the captions where "
        "there are none, or in `statistics`; False: all words count alike",
        sign="idf",
    )
    statistics: CorpusStatistics | None = option(
        None,
        "inverse document frequencies of a corpus, made by `prepare`; None: of the texts scored together",
        sign="statistics",
        flag=False,
    )
    without_statistics = ", or pass idf=False"

    @property
    def corpus_statistics(self) -> CorpusStatistics | None:
        return self.statistics

    @property
    def weighs_together(self) -> bool:
        return self.idf and self.statistics is None


@facts("pacs-video")
class VideoPacS(CaptionMetric):
    """PAC-S for videos: mean of a coarse cosine and a fine F1 of words and frames, eq. 5, without references.

    Neither a prompt nor a scale w takes part. Inverse document frequencies, on by default, are those of the
    captions that are scored together, so a caption's score depends on the others, unless `statistics` are
    handed in.
    """

    variant = "video"
    media = ("video",)
    languages = ("English",)
    any_dual_encoder = True
    plots = True
    corpus_texts = "captions"
    statistics = TokenIdf
    Options: ClassVar[type[CommonOptions]] = VideoOptions
    ROW = row_schema(
        COVERAGE,
        column("caption_ids", pa.list_(pa.int32()), "token ids of the caption, start and end included"),
        column("caption_maxima", FLOATS, "each of its tokens' best cosine over frames; null if failed"),
        column("frame_recall", pa.float32(), "mean over frames of their best cosine over its tokens"),
        column("cosine", pa.float32(), "cosine of the caption's end token and the mean of the frames"),
        column("frames", pa.int32(), "how many frames were compared, null where the video failed"),
        column("incomplete", pa.string(), "why decoding stopped before the video's end, null if it did not"),
    )

    options: VideoOptions

    @classmethod
    def check_options(cls, options: Any) -> None:
        super().check_options(options)
        Sampling(options.fps, options.max_frames)  # refuses what is not a sampling
        # A contradiction, of which either half would be ignored silently.
        if options.statistics is not None and not options.idf:
            fix = "leave one of them out"
            raise wrong_option("statistics", options.statistics, "is given, but idf=False", fix)

    @classmethod
    def check_input(cls, options: Any, *inputs: Any, **settings: Any) -> Samples:
        samples = super().check_input(options, *inputs, **settings)
        # Rates above that of a video show in its header: all are refused at once, before frames are decoded.
        if options.on_error == "raise" and options.fps is not None:
            check_samplings(samples.images, Sampling(options.fps))
        return samples

    def prepare(self, texts: Sequence[str | Sequence[str]]) -> TokenIdf:
        """Inverse document frequencies of the token ids of texts, each a document; repeats count.

        texts: strings, or lists of them, as references are.
        """
        return self._idf_of(self.tokenizer.encode(corpus_texts(texts)).ids)

    def _idf_of(self, documents: Sequence[Sequence[int]]) -> TokenIdf:
        tokenizer = self.tokenizer
        return TokenIdf.of_padded_documents(documents, length=tokenizer.context_length, end=tokenizer.end)

    def encode(self, batch: Samples) -> Iterator[pa.Table]:
        for window in windows(batch, LIMITS.video_texts):
            texts = Texts(window, with_references=self.needs_references)
            # Features of tokens are some megabytes per hundred texts: by windows, which bound memory.
            tokens = self.encoder.encode_tokens(texts.all, **self.run)
            for part, videos in self._videos(window):
                columns = texts.columns(
                    part, videos.keys, videos.errors, tokens.truncated, tokenizer=self.encoder.tokenizer
                )
                columns |= _video_columns(tokens, part, videos)
                if self.needs_references:
                    columns |= _reference_columns(tokens, part, texts)
                yield pa.table(columns, schema=self.ROW)

    @property
    def _sampling(self) -> Sampling:
        return Sampling(self.options.fps, self.options.max_frames)

    def _videos(self, window: Samples) -> Iterator[tuple[slice, Any]]:
        """`VideoFeatures` of the frames of videos, in order, some at a time."""
        start = 0
        for videos in self.encoder.encode_videos(window.images, sampling=self._sampling, **self.run):
            yield slice(start, start + len(videos.keys)), videos
            start += len(videos.keys)

    def aggregate(self, rows: pa.Table) -> Values:
        components, unweighted = self._of_video(rows, self.idf(rows))
        _warn_of(rows, unweighted)
        score = components.pop("score")  # which is no part of itself
        return Values(score, {**components, "unweighted_texts": unweighted})

    def documents(self, rows: pa.Table) -> pa.Array:
        """Token ids of the corpus that the rows form."""
        return rows["caption_ids"].combine_chunks()

    def idf(self, rows: pa.Table) -> TokenIdf | None:
        """The weights of token ids by which rows are aggregated; None: all count alike."""
        if not self.options.idf:
            return None
        if isinstance(self.options.statistics, TokenIdf):
            return self.options.statistics
        # From the rows, not the texts: a resumed run, or parts that are merged, weigh alike.
        documents = self.documents(rows).to_pylist()
        return self._idf_of(documents) if documents else None

    def signature(self, rows: pa.Table | None = None) -> str:
        # Weights of the texts themselves are part of the signature: of other texts scores are others.
        table = None if rows is None or self.options.statistics is not None else self.idf(rows)
        metric = self if table is None else with_options(self, statistics=table)
        return super(VideoPacS, metric).signature(rows)

    def evidence_of(self, samples: Samples, rows: pa.Table, parts: Mapping[str, Any]) -> Evidence:
        summaries = super().evidence_of(samples, rows, parts)
        weights, _ = token_weights(rows["caption_ids"], self.idf(rows))
        weights_of_row = lists(weights.values, weights.lengths).to_pylist()  # per row, of each token
        explained: Evidence = {}
        for window in windows(samples, LIMITS.video_texts):
            tokens = self.encoder.encode_tokens(window.captions, **self.run)
            for part, videos in self._videos(window):
                for video, error in enumerate(videos.errors):
                    row = len(explained)
                    text = part.start + video
                    note: dict[str, Any] = {"frame_cosines": [], "words": []}
                    if error is not None:
                        note["error"] = error
                    else:
                        # (tokens, frames)
                        cosines = np.clip(unit(tokens.features[text]) @ unit(videos.features[video]).T, -1, 1)
                        pieces = self.encoder.tokenizer.pieces(tokens.ids[text])
                        note["frame_cosines"] = cosines[-1].tolist()  # the end token is the whole caption
                        note["words"] = word_notes(pieces, weights_of_row[row], cosines)
                    note["incomplete"] = videos.incomplete[video]
                    content = {**summaries[row], **note}
                    explained[row] = VideoExplanation(content, samples.images[row], self._sampling)
        return explained

    def _of_video(self, rows: pa.Table, table: TokenIdf | None) -> tuple[Components, NDArray[np.int64]]:
        """Components of captions with their videos, and how many texts of each have no weight: 0 or 1."""
        weights, unweighted = token_weights(rows["caption_ids"], table)
        coarse = rows["cosine"].to_numpy().astype(np.float64)
        recall = rows["frame_recall"].to_numpy().astype(np.float64)
        compared = np.flatnonzero(rows["caption_maxima"].is_valid().to_numpy())  # rows whose video was read
        precision = np.full(len(rows), np.nan)
        maxima = Ragged.of(rows["caption_maxima"]).take(compared)
        precision[compared] = maxima.mean(weights.take(compared))
        return self._components(coarse, precision, recall), unweighted.astype(np.int64)

    def _components(self, coarse: Doubles, precision: Doubles, recall: Doubles) -> Components:
        fine = fine_score(precision, recall, released=self.options.compat == "released")
        parts = {"coarse": coarse, "precision": precision, "recall": recall, "fine": fine}
        return {"score": video_pac_score(coarse, fine), **parts}


@facts("refpacs-video")
class VideoRefPacS(VideoPacS):
    """RefPAC-S for videos: mean of PAC-S and the score of the nearest reference, eq. 6.

    With `compat="released"` the largest precision, recall, F and cosine of the references are taken each by
    itself, as EMScore does: they may come from different references.
    """

    needs_references = True
    corpus_texts = "references"
    free_key = RefPacS.free_key
    reference_columns = ("reference_ids", "reference_caption_maxima", "reference_maxima", "reference_cosines")
    ROW = pa.schema(
        [
            *VideoPacS.ROW,
            column("reference_ids", pa.list_(pa.list_(pa.int32())), "token ids of each reference"),
            column("reference_caption_maxima", NESTED, "per reference, each caption token's best cosine"),
            column("reference_maxima", NESTED, "per reference, each of its tokens' best cosine"),
            column("reference_cosines", FLOATS, "cosine of the end tokens of caption and reference"),
        ]
    )

    def documents(self, rows: pa.Table) -> pa.Array:
        return inner(rows["reference_ids"])[0]

    def aggregate(self, rows: pa.Table) -> Values:
        table = self.idf(rows)
        components, unweighted = self._of_video(rows, table)
        references, is_unweighted = self.of_references(rows, table)
        counts = inner(rows["reference_ids"])[1]  # (rows,) of references
        reference = nearest(references, counts, released=self.options.compat == "released")
        unweighted += Ragged(is_unweighted.astype(np.float64), counts).sum().astype(np.int64)
        _warn_of(rows, unweighted)
        score = video_ref_pac_score(components["score"], reference["score"])
        parts: dict[str, Any] = {self.free_key: components.pop("score"), **components}
        parts |= {f"reference_{name}": values for name, values in reference.items()}
        return Values(score, parts | {"unweighted_texts": unweighted})

    def evidence_of(self, samples: Samples, rows: pa.Table, parts: Mapping[str, Any]) -> Evidence:
        explained = super().evidence_of(samples, rows, parts)
        components, _ = self.of_references(rows, self.idf(rows))
        number = 0  # of a reference among those of all captions
        for row, references in enumerate(samples.references or []):
            notes = []
            for text in references:
                note: dict[str, Any] = {"reference": text}
                for name, values in components.items():
                    note[name] = float(values[number])
                notes.append(note)
                number += 1
            explained[row]["references"] = notes
        return explained

    def of_references(self, rows: pa.Table, table: TokenIdf | None) -> tuple[Components, NDArray[np.bool_]]:
        """Components of captions with each of their references, and which of these have no weight."""
        counts = inner(rows["reference_ids"])[1]
        captions, _ = token_weights(rows["caption_ids"], table)
        weights, unweighted = token_weights(inner(rows["reference_ids"])[0], table)
        maxima = Ragged.of(inner(rows["reference_caption_maxima"])[0])
        # The weights of a caption's tokens, once for each of its references.
        precision = maxima.mean(captions.take(np.repeat(np.arange(len(rows)), counts)))
        recall = Ragged.of(inner(rows["reference_maxima"])[0]).mean(weights)
        coarse = Ragged.of(rows["reference_cosines"]).values
        return self._components(coarse, precision, recall), unweighted


def _warn_of(rows: pa.Table, unweighted: NDArray[np.int64]) -> None:
    """Warn of texts without a weight, and of videos that are compared by their beginning only."""
    count = int(unweighted.sum())
    if count:
        texts = "1 text" if count == 1 else f"{count:,} texts"
        warn(
            f"there is no idf for {texts}, whose words occur in every text of the corpus (as always with "
            "one caption): all words count equally"
            + setting("idf", False, ": give statistics of a larger corpus, or pass ")
        )
    damaged = rows.filter(rows["incomplete"].is_valid()).select(["index", "incomplete"]).to_pylist()
    if damaged:
        captions = "1 caption is" if len(damaged) == 1 else f"{len(damaged):,} captions are"
        lines = [f"{captions} compared with the beginning of a damaged video"]
        for row in damaged[:3]:
            lines.append(f"{at('videos', row['index'])}: {row['incomplete']}")
        if len(damaged) > 3:
            lines.append(f"and {len(damaged) - 3:,} more")
        warn("; ".join(lines))


def video_feature(frames: Floats) -> Floats:
    """(d,) the feature of a whole video: the mean of its frames' features (frames, d), each of length 1."""
    lengths = np.sqrt(np.einsum("td,td->t", frames, frames))  # a copy of an hour's frames is 200 MB
    scale = np.divide(1, lengths, out=np.zeros_like(lengths), where=lengths > 0)
    with np.errstate(invalid="ignore"):  # features that are not numbers have no mean
        return np.asarray(scale @ frames / np.float32(len(frames)), dtype=np.float32)


def _text_feature(tokens: Floats) -> Floats:
    """(d,) the feature of a whole text: that of its end token, the last of its tokens' (tokens, d)."""
    return np.asarray(tokens[-1])


def matched(pairs: Sequence[Pair], feature_of: Callable[[Floats], Floats]) -> pa.Table:
    """Pairs of a caption's words with frames, or with a reference's words, matched; equal pairs run once.

    Each x row's best cosine over the y rows, the other way round, and their mean; and the cosine of both
    sides as a whole, where `feature_of` gives that of y. NaN where the features of one side are not all
    finite numbers.
    """
    from capeval_core.matching.greedy import match_arrays

    if not pairs:
        return _MATCHED.empty_table()
    # pairs    (a, v) (b, v) (a, v)     keys of a caption and a video
    # x        a b                      each once, and so is y: v
    # place    (a, v): 0   (b, v): 1    each pair once
    # places   0 1 0                    of each of `pairs`, by which the results are taken
    x: dict[Hashable, Floats] = {}
    y: dict[Hashable, Floats] = {}
    place: dict[tuple[Hashable, Hashable], int] = {}
    places = []
    for x_key, features_of_x, y_key, features_of_y in pairs:
        x[x_key] = features_of_x
        y[y_key] = features_of_y
        places.append(place.setdefault((x_key, y_key), len(place)))
    x_number = dict(zip(x, range(len(x)), strict=True))
    y_number = dict(zip(y, range(len(y)), strict=True))
    x_of_pair = np.array([x_number[x_key] for x_key, _ in place], dtype=np.int64)
    y_of_pair = np.array([y_number[y_key] for _, y_key in place], dtype=np.int64)
    x_rows, x_is_finite = _finite(x.values())
    y_rows, y_is_finite = _finite(y.values())
    # Zeros in place of features that are not finite: they spoil no other pair, and are NaN below.
    matches = match_arrays(x_rows, y_rows, x_of_pair=x_of_pair, y_of_pair=y_of_pair)
    is_finite = x_is_finite[x_of_pair] & y_is_finite[y_of_pair]

    def maxima(values: torch.Tensor | None, sets: Sequence[Floats], of_pair: Integers) -> pa.ListArray:
        assert values is not None  # `match_arrays` returns them always
        lengths = np.array([len(rows) for rows in sets], dtype=np.int64)[of_pair]
        return lists(np.where(np.repeat(is_finite, lengths), values.numpy(), np.float32(np.nan)), lengths)

    x_features = np.stack([_text_feature(rows) for rows in x.values()])
    y_features = np.stack([feature_of(rows) for rows in y.values()])
    columns = {
        "x_maxima": maxima(matches.x_maxima, x_rows, x_of_pair),
        "y_maxima": maxima(matches.y_maxima, y_rows, y_of_pair),
        "recall": np.where(is_finite, matches.recall.numpy(), np.float32(np.nan)),
        "cosine": paired_cosine(x_features[x_of_pair], y_features[y_of_pair]),
    }
    return pa.table(columns, schema=_MATCHED).take(pa.array(places))


def _finite(sets: Iterable[Floats]) -> tuple[list[Floats], NDArray[np.bool_]]:
    """Sets of rows, zeros where one is not all finite numbers; and which are."""
    arrays = []
    is_finite = []
    for rows in sets:
        is_finite.append(bool(np.isfinite(rows).all()))
        arrays.append(rows if is_finite[-1] else np.zeros_like(rows))
    return arrays, np.array(is_finite)


def _video_columns(tokens: TokenFeatures, part: slice, videos: VideoFeatures) -> dict[str, Any]:
    """The columns of `VideoPacS.ROW`; `part` is the slice of the texts that are the videos' captions."""
    pairs: list[Pair] = []
    frames: list[int | None] = []
    places: list[int | None] = []  # among the matched pairs; a video that failed has none
    captions = zip(tokens.ids[part], tokens.features[part], strict=True)
    for error, caption, key, features in zip(
        videos.errors, captions, videos.keys, videos.features, strict=True
    ):
        places.append(len(pairs) if error is None else None)
        frames.append(len(features) if error is None else None)
        if error is None:
            pairs.append((*caption, key, features))
    matches = matched(pairs, video_feature).take(pa.array(places, pa.int64()))  # null without a place
    return {
        "caption_ids": tokens.ids[part],
        "caption_maxima": matches["x_maxima"],
        "frame_recall": matches["recall"],
        "cosine": matches["cosine"],
        "frames": frames,
        "incomplete": videos.incomplete,
    }


def _reference_columns(tokens: TokenFeatures, part: slice, texts: Texts) -> dict[str, Any]:
    """The further columns of `VideoRefPacS.ROW`, of captions with their references."""
    references = texts.references(part)
    counts = texts.counts[part]
    caption_numbers = (part.start + texts.owners(part)).tolist()  # of each reference, among all texts
    pairs: list[Pair] = []
    for caption, ids, features in zip(
        caption_numbers, tokens.ids[references], tokens.features[references], strict=True
    ):
        pairs.append((tokens.ids[caption], tokens.features[caption], ids, features))
    matches = matched(pairs, _text_feature).combine_chunks()
    ids = pa.array(tokens.ids[references], pa.list_(pa.int32()))
    return {
        "reference_ids": lists(ids, counts),
        "reference_caption_maxima": lists(matches["x_maxima"].combine_chunks(), counts),
        "reference_maxima": lists(matches["y_maxima"].combine_chunks(), counts),
        "reference_cosines": lists(matches["cosine"].combine_chunks(), counts),
    }
