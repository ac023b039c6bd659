"""PAC-S and RefPAC-S for videos: a caption against a video as a whole, and its words against frames.

Sarto, Barraco, Cornia, Baraldi, Cucchiara: Positive-Augmented Contrastive Learning for Image and Video
Captioning Evaluation, CVPR 2023, https://arxiv.org/abs/2303.12112, section 3.2, which follows
Shi, Yang, Xu, Yuan, Li, Hu, Zha: EMScore: Evaluating Video Captioning via Coarse-Grained and Fine-Grained
Embedding Matching, CVPR 2022, https://arxiv.org/abs/2111.08919
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from capeval_core.errors import at, in_python, warn, wrong_option
from capeval_core.inputs.samples import Samples, windows
from capeval_core.inputs.texts import corpus_texts
from capeval_core.inputs.videos import Sampling, check_samplings
from capeval_core.limits import LIMITS
from capeval_core.metric import CaptionMetric
from capeval_core.options import CorpusStatistics, option
from capeval_core.options import Options as CommonOptions
from capeval_core.ragged import Ragged, inner
from capeval_core.result import Values
from capeval_core.rows import column, common_columns, row_schema
from capeval_core.scores.facts import facts
from capeval_core.scores.idf import TokenIdf, token_weights
from capeval_core.scores.pac import RefPacS
from capeval_core.scores.video_formulas import Components, fine_score, video_ref_pac_score

if TYPE_CHECKING:
    from capeval_core.encoders.videos import VideoFeatures

Doubles = NDArray[np.float64]

_SHOWN = 3
"""Of damaged videos in a warning."""


@dataclass(frozen=True, kw_only=True)
class VideoOptions(CommonOptions):
    """Options of PAC-S and RefPAC-S for videos."""

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
    def weighs_together(self) -> bool:
        return self.idf and self.statistics is None

    def check(self, metric: Any) -> None:
        Sampling(self.fps, self.max_frames)  # refuses what is no sampling
        fix = f"make them by prepare({metric.corpus_texts}), or give a TokenIdf of token ids"
        TokenIdf.check_option(self, fix)
        if self.statistics is not None and not self.idf:
            raise wrong_option("statistics", self.statistics, "given, but idf=False", "leave one of them out")


_OF_VIDEO = (
    column("caption_ids", pa.list_(pa.int32()), "token ids of the caption, start and end included"),
    column(
        "caption_maxima",
        pa.list_(pa.float32()),
        "each caption token's best cosine over frames; null where the video failed",
    ),
    column("frame_recall", pa.float32(), "mean over frames of their best cosine over the caption's tokens"),
    column("cosine", pa.float32(), "cosine of the caption's end token and the mean of the frames"),
    column("frames", pa.int32(), "how many frames were compared, null where the video failed"),
    column("incomplete", pa.string(), "why decoding stopped before the video's end, null if it did not"),
)


@facts("pacs-video")
class VideoPacS(CaptionMetric):
    """PAC-S for videos: mean of a coarse cosine and a fine F1 of words and frames, eq. 5, without references.

    Neither a prompt nor a scale w takes part. Inverse document frequencies, on by default, are those of the
    captions that are scored together, so a caption's score depends on the others, unless `statistics` are
    handed in.
    """

    variant = "video"
    media = ("video",)
    plots = True
    corpus_texts = "captions"
    Options: ClassVar[type[CommonOptions]] = VideoOptions
    ROW = row_schema(*_OF_VIDEO)

    options: VideoOptions

    @classmethod
    def check_input(cls, options: Any, *inputs: Any, progress: bool = False) -> Samples:
        samples = super().check_input(options, *inputs, progress=progress)
        if options.on_error == "raise" and options.fps is not None:
            check_samplings(samples.images, Sampling(options.fps))
        return samples

    def prepare(self, texts: Sequence[str | Sequence[str]]) -> TokenIdf:
        """Inverse document frequencies of the token ids of texts, each a document; repeats count.

        texts: strings, or lists of them, as references are.
        """
        return self._table(self.encoder.tokenizer.encode(corpus_texts(texts)).ids)

    def encode(self, batch: Samples) -> Iterator[pa.Table]:
        from capeval_core.scores.video_rows import reference_columns, video_columns

        run: dict[str, Any] = {"cache": self.cache, "batch_size": self.options.batch_size}
        for window in windows(batch, LIMITS.video_texts):
            references = (window.references if self.needs_references else None) or [[]] * len(window)
            counts = np.array([len(own) for own in references], dtype=np.int64)
            texts = [
                text for own in zip(window.captions, references, strict=True) for text in (own[0], *own[1])
            ]
            tokens = self.encoder.encode_tokens(texts, **run)
            captions = np.cumsum(counts + 1) - counts - 1
            truncated = np.add.reduceat(tokens.truncated, captions)
            start = 0
            for videos in self.videos(window.images, run):
                part = slice(start, start + len(videos.keys))
                own = captions[part]
                common = common_columns(
                    window, part, groups=videos.keys, errors=videos.errors, truncated=truncated[part]
                )
                columns = video_columns(tokens, own, videos)
                if self.needs_references:
                    columns |= reference_columns(tokens, own, counts[part])
                yield pa.table({**common, **columns}, schema=self.ROW)
                start = part.stop

    def videos(self, videos: Sequence[Any], run: dict[str, Any]) -> Iterator[VideoFeatures]:
        """Features of the frames of videos, in order, some at a time."""
        options = self.options
        sampling = Sampling(options.fps, options.max_frames)
        yield from self.encoder.encode_videos(videos, sampling=sampling, **run)

    def aggregate(self, rows: pa.Table) -> Values:
        found, unweighted = self._of_video(rows, self.table(rows))
        _warn_of_texts_without_weight(unweighted)
        _warn_of_incomplete_videos(rows)
        return Values(found.score, {**found.parts(), "unweighted_texts": unweighted})

    def documents(self, rows: pa.Table) -> pa.Array:
        """Token ids of the corpus that rows are: those of captions."""
        return rows["caption_ids"].combine_chunks()

    def table(self, rows: pa.Table) -> TokenIdf | None:
        """The weights of token ids by which rows are aggregated; None: all count alike."""
        if not self.options.idf:
            return None
        if isinstance(self.options.statistics, TokenIdf):
            return self.options.statistics
        documents = self.documents(rows).to_pylist()
        return self._table(documents) if documents else None

    def signature(self, rows: pa.Table | None = None) -> str:
        table = None if rows is None or self.options.statistics is not None else self.table(rows)
        metric = self if table is None else self.with_statistics(table)
        return super(VideoPacS, metric).signature(rows)

    def evidence_of(
        self, samples: Samples, rows: pa.Table, parts: Mapping[str, list[Any]]
    ) -> dict[int, dict[str, Any]]:
        from capeval_core.scores.video_explanation import VideoExplanation, explain

        numbers = super().evidence_of(samples, rows, parts)
        weights, _ = token_weights(rows["caption_ids"], self.table(rows))
        of_row = np.split(weights.values, np.cumsum(weights.lengths)[:-1])
        explained: dict[int, dict[str, Any]] = {}
        run: dict[str, Any] = {"cache": self.cache, "batch_size": self.options.batch_size}
        for window in windows(samples, LIMITS.video_texts):
            tokens, first = self.encoder.encode_tokens(window.captions, **run), len(explained)
            for videos in self.videos(window.images, run):
                found = zip(videos.features, videos.errors, videos.incomplete, strict=True)
                for frames, error, incomplete in found:
                    row = len(explained)
                    caption = tokens.ids[row - first], tokens.features[row - first]
                    words = self.encoder.tokenizer.pieces(caption[0])
                    note = explain(words, of_row[row].tolist(), caption[1], frames, error)
                    explained[row] = {**numbers[row], **note, "incomplete": incomplete}
        sampling = Sampling(self.options.fps, self.options.max_frames)
        return {row: VideoExplanation(note, samples.images[row], sampling) for row, note in explained.items()}

    def _table(self, documents: Sequence[Sequence[int]]) -> TokenIdf:
        tokenizer = self.encoder.tokenizer
        return TokenIdf.of_padded_documents(documents, length=tokenizer.context_length, end=tokenizer.end)

    def _of_video(self, rows: pa.Table, table: TokenIdf | None) -> tuple[Components, NDArray[np.int64]]:
        """Components of captions with their videos, and how many texts of each have no weight: 0 or 1."""
        weights, unweighted = token_weights(rows["caption_ids"], table)
        coarse, recall = (rows[name].to_numpy().astype(np.float64) for name in ("cosine", "frame_recall"))
        there = np.flatnonzero(rows["caption_maxima"].is_valid().to_numpy())
        precision = np.full(len(rows), np.nan)
        precision[there] = Ragged.of(rows["caption_maxima"]).take(there).mean(weights.take(there))
        return self._components(coarse, precision, recall), unweighted.astype(np.int64)

    def _components(self, coarse: Doubles, precision: Doubles, recall: Doubles) -> Components:
        released = self.options.compat == "released"
        return Components(coarse, precision, recall, fine_score(precision, recall, released=released))


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
    ROW = row_schema(
        *_OF_VIDEO,
        column("reference_ids", pa.list_(pa.list_(pa.int32())), "token ids of each reference"),
        column(
            "reference_caption_maxima",
            pa.list_(pa.list_(pa.float32())),
            "per reference, each caption token's best cosine over the reference's tokens",
        ),
        column(
            "reference_maxima",
            pa.list_(pa.list_(pa.float32())),
            "per reference, each of its tokens' best cosine over the caption's tokens",
        ),
        column(
            "reference_cosines", pa.list_(pa.float32()), "cosine of the end tokens of caption and reference"
        ),
    )

    def documents(self, rows: pa.Table) -> pa.Array:
        """Token ids of the corpus that rows are: those of references, as often as they occur."""
        return inner(rows["reference_ids"])[0]

    def aggregate(self, rows: pa.Table) -> Values:
        table = self.table(rows)
        found, unweighted = self._of_video(rows, table)
        references, of_references = self.of_references(rows, table)
        counts = inner(rows["reference_ids"])[1]
        released = self.options.compat == "released"
        nearest = references.largest(counts) if released else references.best(counts)
        unweighted += Ragged(of_references.astype(np.float64), counts).sum().astype(np.int64)
        _warn_of_texts_without_weight(unweighted)
        _warn_of_incomplete_videos(rows)
        parts: dict[str, Any] = {self.free_key: found.score, **found.parts()}
        parts |= {"reference_score": nearest.score, **nearest.parts("reference_")}
        parts["unweighted_texts"] = unweighted
        return Values(video_ref_pac_score(found.score, nearest.score), parts)

    def evidence_of(
        self, samples: Samples, rows: pa.Table, parts: Mapping[str, list[Any]]
    ) -> dict[int, dict[str, Any]]:
        explained = super().evidence_of(samples, rows, parts)
        found, _ = self.of_references(rows, self.table(rows))
        numbers = {"score": found.score, **found.parts()}
        position = 0
        for row, references in enumerate(samples.references or []):
            explained[row]["references"] = [
                {"reference": text, **{name: float(own[position + i]) for name, own in numbers.items()}}
                for i, text in enumerate(references)
            ]
            position += len(references)
        return explained

    def of_references(self, rows: pa.Table, table: TokenIdf | None) -> tuple[Components, NDArray[np.bool_]]:
        """Components of captions with each of their references, and which of these have no weight."""
        counts = inner(rows["reference_ids"])[1]
        captions, _ = token_weights(rows["caption_ids"], table)
        weights, unweighted = token_weights(inner(rows["reference_ids"])[0], table)
        maxima = Ragged.of(inner(rows["reference_caption_maxima"])[0])
        precision = maxima.mean(captions.take(np.repeat(np.arange(len(rows)), counts)))
        recall = Ragged.of(inner(rows["reference_maxima"])[0]).mean(weights)
        coarse = Ragged.of(rows["reference_cosines"]).values
        return self._components(coarse, precision, recall), unweighted


def _warn_of_texts_without_weight(unweighted: NDArray[np.int64]) -> None:
    if texts := int(unweighted.sum()):
        of_texts = "1 text" if texts == 1 else f"{texts:,} texts"
        found = (
            f"there is no idf for {of_texts}, whose words occur in every text of the corpus (as always "
            "with one caption): all words count equally"
        )
        warn(
            found
            + in_python(": pass the statistics that prepare(texts) makes of a larger corpus, or idf=False")
        )


def _warn_of_incomplete_videos(rows: pa.Table) -> None:
    damaged = pc.invert(pc.is_null(rows["incomplete"]))
    if found := rows.filter(damaged).select(["index", "incomplete"]).to_pylist():
        captions = "1 caption is" if len(found) == 1 else f"{len(found):,} captions are"
        lines = [f"{captions} compared with the beginning of a damaged video"]
        lines += [f"{at('videos', row['index'])}: {row['incomplete']}" for row in found[:_SHOWN]]
        if len(found) > _SHOWN:
            lines.append(f"and {len(found) - _SHOWN:,} more")
        warn("; ".join(lines))
