"""ViLBERTScore: words of a caption matched with words of its references, all in the light of the image.

Lee, Yoon, Dernoncourt, Kim, Bui, Jung: ViLBERTScore: Evaluating Image Caption Using Vision-and-Language BERT,
Eval4NLP 2020, https://aclanthology.org/2020.eval4nlp-1.4
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from capeval_core.errors import wrong_option
from capeval_core.inputs.samples import Samples, windows
from capeval_core.inputs.texts import corpus_texts
from capeval_core.limits import LIMITS
from capeval_core.matching.cosine import harmonic_mean
from capeval_core.metric import Model
from capeval_core.options import CorpusOptions, option
from capeval_core.options import Options as CommonOptions
from capeval_core.ragged import Ragged, inner
from capeval_core.result import Values
from capeval_core.rows import column, common_columns, row_schema
from capeval_core.scores.facts import facts
from capeval_core.scores.idf import TokenIdf
from capeval_core.scores.region_metric import RegionMetric, RegionOptions, rows_by_image
from capeval_core.weights.catalogue import X152_VG

if TYPE_CHECKING:
    from capeval_core.encoders.vilbert import VilbertEncoder
    from capeval_core.regions.features import BoxVisual
    from capeval_core.scores.box_source import FirstBoxes
    from capeval_core.scores.vilbert_rows import EncodedRow

Doubles = NDArray[np.float64]


def weighted_means(maxima: Ragged, weights: Ragged) -> Doubles:
    """(n,) means of n lists of best similarities with weights of the same lengths: eq. 1 of a caption's
    words, eq. 2 of a reference's. 0 where there is no word, or no weight.

    The paper prints eq. 1, the precision, as a sum over h_w1 ... h_wm, and eq. 2, the recall, over ĥ_w1 ...
    ĥ_wn, where h are the words of the reference and ĥ those of the caption, but m is the number of the
    caption's words and n that of the reference's: symbols of both. The released code and BERTScore, whose
    greedy matching it is, agree: precision is a mean over the words of the caption, each with the most
    similar word of the reference, and recall a mean over the words of the reference.

    >>> maxima = Ragged.of(pa.array([[1.0, 0.5], []]))
    >>> weighted_means(maxima, Ragged.of(pa.array([[1.0, 3.0], []])))
    array([0.625, 0.   ])
    """
    return maxima.mean(weights)


def f_score(precision: Doubles, recall: Doubles) -> Doubles:
    """Eq. 3: 2PR / (P + R), where a negative mean counts as 0.

    >>> f_score(np.array([0.5, -0.2]), np.array([0.25, 0.9])).round(3)
    array([0.333, 0.   ])
    """
    return harmonic_mean(np.maximum(precision, 0), np.maximum(recall, 0))


@dataclass(frozen=True, kw_only=True)
class VilbertOptions(CorpusOptions, RegionOptions):
    """Options of ViLBERTScore."""

    layer: int = option(
        -1,
        "co-attention block after which words are compared, counted from 0 or from the end; the paper's is "
        "the sixth, the last one",
        sign="layer",
        encodes=True,
    )
    idf: Literal["corpus"] | None = option(
        None,
        "weights of words: `corpus` for their inverse document frequency among the references, as in "
        "BERTScore, or among the texts that `statistics` were made of; None: all words count alike, unless "
        "there are `statistics`",
        sign="idf",
        encodes=True,
    )

    @property
    def lacks_statistics(self) -> bool:
        return self.idf is not None and self.statistics is None

    def check(self, metric: Any) -> None:
        super().check(metric)
        TokenIdf.check_option(self, "make them by prepare(references), or give a TokenIdf of token ids")


@facts("vilbertscore")
class VilbertScore(RegionMetric):
    """ViLBERTScore: F of greedy matching between words of a caption and of each reference, eq. 3, averaged.

    Words are matched with words: neither the marks of a text nor the task token take part, and a text that is
    too long is cut to the words that fit. Precision, recall and F are means over the references, each by
    itself. With `compat="released"` the task token is matched, too, and what else the released script does,
    is done.
    """

    needs_references = True
    default_regions = X152_VG
    corpus_texts = "references"
    Options: ClassVar[type[CommonOptions]] = VilbertOptions
    ROW = row_schema(
        column(
            "caption_maxima",
            pa.list_(pa.list_(pa.float32())),
            "per reference, each caption word's best cosine over the reference's words; null where the image "
            "failed",
        ),
        column(
            "reference_maxima",
            pa.list_(pa.list_(pa.float32())),
            "per reference, each of its words' best cosine over the caption's words",
        ),
        column("caption_weights", pa.list_(pa.float32()), "weight of each caption word, 1 without idf"),
        column(
            "reference_weights", pa.list_(pa.list_(pa.float32())), "per reference, the weight of each word"
        ),
        column(
            "released_precision", pa.list_(pa.float32()), "per reference, what the released script computes"
        ),
        column("released_recall", pa.list_(pa.float32()), "per reference, what the released script computes"),
    )
    reference_columns = (
        "caption_maxima",
        "reference_maxima",
        "reference_weights",
        "released_precision",
        "released_recall",
    )

    options: VilbertOptions

    def open_models(self) -> dict[str, Model]:
        from capeval_core.encoders.vilbert import block_of

        options, folder = self.options, self.weights_folder()
        encoder = self.encoder_class()
        config = encoder.read_config(folder)
        block_of(config, options.layer)
        if options.compat is not None and config["task"] is None:
            found = f"{folder.name} has no task token, without which the released script fails"
            raise wrong_option("compat", options.compat, found, "leave it out for these weights", verb="")
        device: dict[str, Any] = {"device": options.device, "dtype": options.dtype}
        self.encoder: VilbertEncoder = encoder.open(folder, **device)
        return {
            "weights": Model(folder.label(self.encoder.fingerprint), self.encoder.fingerprint),
            "regions": self.open_regions(folder, None, device),
        }

    def prepare(self, texts: Sequence[str | Sequence[str]]) -> TokenIdf:
        """Inverse document frequencies of the token ids of texts: references, each a document, uncut.

        texts: strings, or lists of them, as references are.
        """
        return TokenIdf.of_documents(self.encoder.tokenizer.whole(corpus_texts(texts)))

    def encode(self, batch: Samples) -> Iterator[pa.Table]:
        from capeval_core.scores.vilbert_rows import Matcher

        statistics = self.options.statistics
        matcher = Matcher(self.encoder, statistics if isinstance(statistics, TokenIdf) else None)
        for window in windows(batch, LIMITS.token_texts):
            found = self.encode_rows(window)
            common = common_columns(
                window,
                slice(None),
                groups=[row.group for row in found],
                errors=[row.error for row in found],
                truncated=np.array([row.truncated for row in found]),
            )
            columns = matcher.columns([row.caption for row in found])
            yield pa.table({**common, **columns}, schema=self.ROW)

    def encode_rows(self, window: Samples) -> list[EncodedRow]:
        """Captions and references beside their images, each image once with all its texts."""
        boxes = self.boxes(window)
        texts = [[c, *r] for c, r in zip(window.captions, window.references or [], strict=True)]
        found: dict[int, EncodedRow] = {}
        for rows in self._encode_images(boxes, texts, rows_by_image(boxes)):
            found |= rows
        return [found[row] for row in range(len(boxes))]

    def _encode_images(
        self,
        boxes: Sequence[BoxVisual | FirstBoxes],
        texts: Sequence[Sequence[str]],
        sharing: Sequence[Sequence[int]],
    ) -> Iterator[dict[int, EncodedRow]]:
        """Rows of each image; `sharing` are those that have one."""
        from capeval_core.scores.vilbert_rows import EncodedCaption, EncodedRow, EncodedText

        images = self.encoder.token_features(
            [boxes[rows[0]] for rows in sharing],
            [[text for row in rows for text in texts[row]] for rows in sharing],
            layer=self.options.layer,
            cache=self.cache,
            batch_size=self.options.batch_size,
        )
        for rows, image in zip(sharing, images, strict=True):
            features = zip(image.features or [], image.on_device, strict=True)
            found: dict[int, EncodedRow] = {}
            for row in rows:
                tokens, caption = self.encoder.tokenizer.encode(texts[row]), None
                if image.features is not None:
                    own = [EncodedText(ids, *next(features)) for ids in tokens.ids]
                    caption = EncodedCaption(own[0], own[1:])
                group = image.key and boxes[row].content
                found[row] = EncodedRow(caption, group, image.error, sum(tokens.truncated))
            yield found
            if image.error is not None and len(rows) > 1:  # the error names the first of equal images
                yield from self._encode_images(boxes, texts, [[row] for row in rows[1:]])

    def aggregate(self, rows: pa.Table) -> Values:
        references, counts = inner(rows["caption_maxima"])
        owner = np.repeat(np.arange(len(rows)), counts)
        if self.options.compat == "released":
            precision = Ragged.of(rows["released_precision"]).values
            recall = Ragged.of(rows["released_recall"]).values
            f = harmonic_mean(precision, recall)
        else:
            of_captions = Ragged.of(rows["caption_weights"]).take(owner)
            precision = weighted_means(Ragged.of(references), of_captions)
            of_references, _ = inner(rows["reference_weights"])
            reference_maxima, _ = inner(rows["reference_maxima"])
            recall = weighted_means(Ragged.of(reference_maxima), Ragged.of(of_references))
            f = f_score(precision, recall)
        failed = rows["caption_maxima"].is_null().to_numpy()
        parts: dict[str, Any] = {}
        for name, values in (("precision", precision), ("recall", recall), ("f", f)):
            parts[name] = np.where(failed, np.nan, Ragged(values, counts).mean())
        for name, values in (("precision", precision), ("recall", recall), ("f", f)):
            split = np.split(values, np.cumsum(counts)[:-1])
            parts[f"reference_{name}"] = [own.tolist() for own in split] if len(rows) else []
        return Values(parts["f"], parts)

    def evidence_of(
        self, samples: Samples, rows: pa.Table, parts: Mapping[str, list[Any]]
    ) -> dict[int, dict[str, Any]]:
        from capeval_core.scores.vilbert_explanation import explain
        from capeval_core.scores.vilbert_rows import Matcher

        numbers = super().evidence_of(samples, rows, parts)
        errors = rows["error"].to_pylist()
        matcher = Matcher(self.encoder, None)
        explained: dict[int, dict[str, Any]] = {}
        start = 0
        for window in windows(samples, LIMITS.token_texts):
            for row, found in enumerate(self.encode_rows(window), start):
                texts = (samples.references or [])[row]
                explained[row] = explain(numbers[row], found.caption, texts, errors[row], matcher)
            start += len(window)
        return explained
