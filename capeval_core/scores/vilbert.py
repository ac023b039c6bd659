"""ViLBERTScore: words of a caption matched with words of its references, with the image in view.

Lee, Yoon, Dernoncourt, Kim, Bui, Jung: ViLBERTScore: Evaluating Image Caption Using Vision-and-Language BERT,
Eval4NLP 2020, https://aclanthology.org/2020.eval4nlp-1.4
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from capeval_core.errors import wrong_option
from capeval_core.inputs.samples import Samples, corpus_texts, windows
from capeval_core.limits import LIMITS
from capeval_core.matching.cosine import harmonic_mean, unit
from capeval_core.metric import CommonOptions, CorpusOptions, Evidence, Model
from capeval_core.options import option
from capeval_core.ragged import Ragged, inner
from capeval_core.registry import facts, network
from capeval_core.reports.evidence import MatchExplanation, match_note
from capeval_core.result import Values
from capeval_core.rows import FLOATS, NESTED, column, common_columns, lists, row_schema
from capeval_core.scores.box_metrics import RegionMetric, RegionOptions, error_of
from capeval_core.scores.corpus import TokenIdf, token_weights
from capeval_core.weights.catalogue import X152_VG

if TYPE_CHECKING:
    from capeval_core.encoders.vilbert import VilbertEncoder

Doubles = NDArray[np.float64]
Floats = NDArray[np.float32]


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
    statistics = TokenIdf
    Options: ClassVar[type[CommonOptions]] = VilbertOptions
    ROW = row_schema(
        column("caption_maxima", NESTED, "per reference, each caption word's best cosine; null if failed"),
        column("reference_maxima", NESTED, "per reference, each of its words' best cosine"),
        column("caption_weights", FLOATS, "weight of each caption word, 1 without idf"),
        column("reference_weights", NESTED, "per reference, the weight of each word"),
        column("released_precision", FLOATS, "per reference, what the released script computes"),
        column("released_recall", FLOATS, "per reference, what the released script computes"),
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

        # By the config alone: a block that is not there is refused before tensors are read.
        config = network(str(self.network)).read_config(self.folder)
        block_of(config, self.options.layer)
        if self.options.compat is not None and config["task"] is None:
            problem = f"{self.folder.name} has no task token, without which the released script fails"
            raise wrong_option(
                "compat", self.options.compat, problem, "leave it out for these weights", sentence=True
            )
        return super().open_models()

    def prepare(self, texts: Sequence[str | Sequence[str]]) -> TokenIdf:
        """Inverse document frequencies of the token ids of texts: references, each a document, uncut.

        texts: strings, or lists of them, as references are.
        """
        # Uncut: words beyond the encoder's length are words of the corpus, too.
        return TokenIdf.of_documents(self.tokenizer.whole(corpus_texts(texts)))

    def encode(self, batch: Samples) -> Iterator[pa.Table]:
        statistics = self.options.statistics
        for window in windows(batch, LIMITS.token_texts):
            groups = []
            errors = []
            truncated = []
            encoded: list[list[EncodedText]] = []
            places: list[int | None] = []  # among those that were matched; a row that failed has none
            for row in self.encode_rows(window):
                groups.append(row.group)
                errors.append(row.error)
                truncated.append(row.truncated)
                places.append(None if row.texts is None else len(encoded))
                if row.texts is not None:
                    encoded.append(row.texts)
            common = common_columns(
                window, slice(None), groups=groups, errors=errors, truncated=np.array(truncated)
            )
            matcher = Matcher(self.encoder, encoded, statistics if isinstance(statistics, TokenIdf) else None)
            matched = {}
            for name, values in matcher.columns().items():
                matched[name] = values.take(pa.array(places, pa.int64()))  # null where there is no place
            yield pa.table({**common, **matched}, schema=self.ROW)

    def encode_rows(self, window: Samples) -> list[EncodedRow]:
        """Captions and references with their images, each image once with all its texts."""
        boxes, sharing = self.boxes(window)
        texts = []
        for caption, references in zip(window.captions, window.references or [], strict=True):
            texts.append([caption, *references])
        distinct = []
        texts_of_images = []
        for rows in sharing:
            distinct.append(boxes[rows[0]])
            texts_of_image: list[str] = []
            for row in rows:
                texts_of_image += texts[row]
            texts_of_images.append(texts_of_image)
        images = self.encoder.token_features(distinct, texts_of_images, layer=self.options.layer, **self.run)
        encoded: dict[int, EncodedRow] = {}
        for rows, image in zip(sharing, images, strict=True):
            # One text after another, as they were handed in: rows take theirs from it in turn.
            features = zip(image.features or [], image.on_device, strict=True)
            for row in rows:
                tokens = self.encoder.tokenizer.encode(texts[row])
                encoded_texts = None
                if image.features is not None:
                    encoded_texts = [EncodedText(ids, *next(features)) for ids in tokens.ids]
                group = image.key and boxes[row].content
                error = error_of(image.error, boxes[rows[0]], boxes[row])
                encoded[row] = EncodedRow(encoded_texts, group, error, sum(tokens.truncated))
        return [encoded[row] for row in range(len(boxes))]  # images are in the order of their first rows

    def aggregate(self, rows: pa.Table) -> Values:
        references, counts = inner(rows["caption_maxima"])  # lists of all references; (rows,) how many each
        if self.options.compat == "released":
            # The script's F has no max(0, .).
            precision = Ragged.of(rows["released_precision"]).values
            recall = Ragged.of(rows["released_recall"]).values
            f = harmonic_mean(precision, recall)
        else:
            owner = np.repeat(np.arange(len(rows)), counts)
            caption_weights = Ragged.of(rows["caption_weights"]).take(owner)  # once per reference
            precision = weighted_means(Ragged.of(references), caption_weights)
            reference_maxima = Ragged.of(inner(rows["reference_maxima"])[0])
            reference_weights = Ragged.of(inner(rows["reference_weights"])[0])
            recall = weighted_means(reference_maxima, reference_weights)
            f = f_score(precision, recall)
        failed = rows["caption_maxima"].is_null().to_numpy()
        means = {}
        per_reference = {}
        for name, values in {"precision": precision, "recall": recall, "f": f}.items():
            means[name] = np.where(failed, np.nan, Ragged(values, counts).mean())
            per_reference[f"reference_{name}"] = lists(values, counts).to_pylist()
        return Values(means["f"], {**means, **per_reference})

    def evidence_of(self, samples: Samples, rows: pa.Table, parts: Mapping[str, Any]) -> Evidence:
        summaries = super().evidence_of(samples, rows, parts)
        errors = rows["error"].to_pylist()
        explained: Evidence = {}
        for window in windows(samples, LIMITS.token_texts):
            # Encoded again: the features of all words are too much to be kept in rows.
            for row, encoded in enumerate(self.encode_rows(window), len(explained)):
                content = summaries[row]
                if encoded.texts is None:
                    content |= {"matches": [], "best": None, "error": errors[row]}
                else:
                    references = (samples.references or [])[row]
                    content["matches"] = self._match_notes(encoded.texts, references, content)
                    content["best"] = int(np.argmax(content["reference_f"]))
                explained[row] = MatchExplanation(content)
        return explained

    def _match_notes(
        self, encoded: Sequence[EncodedText], references: Sequence[str], numbers: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        """The words that a caption's words met in each of its references."""
        vocabulary = self.encoder.config["vocabulary"]
        words = []
        features = []
        for text in encoded:
            words.append([vocabulary[index] for index in self.encoder.word_ids(text.ids)])
            features.append(unit(text.features[self.encoder.words(text.ids)]))
        notes: list[dict[str, Any]] = []
        for number, reference in enumerate(references):
            cosines = np.clip(features[0] @ features[number + 1].T, -1, 1)  # (words, reference's words)
            note: dict[str, Any] = {"reference": reference}
            for name in ("precision", "recall", "f"):
                note[name] = numbers[f"reference_{name}"][number]
            notes.append(note | match_note(words[0], words[number + 1], cosines))
        return notes


class EncodedText(NamedTuple):
    """Token ids of a text, and their features (rows, hidden) given an image, maybe on CUDA."""

    ids: tuple[int, ...]
    features: Floats
    on_device: Any = None  # a tensor; torch is imported where it is needed


class EncodedRow(NamedTuple):
    """A row's caption and references, None where its image failed; the image's content key, '' where it could
    not be read; why it failed; and token ids that were cut off all texts."""

    texts: list[EncodedText] | None
    group: str
    error: str | None
    truncated: int


class Matcher:
    """Matches words of captions with those of their references; a row is a caption, then its references."""

    def __init__(
        self, encoder: VilbertEncoder, rows: Sequence[Sequence[EncodedText]], idf: TokenIdf | None = None
    ) -> None:
        self.encoder = encoder
        self.idf = idf
        self.captions: list[EncodedText] = []
        self.references: list[EncodedText] = []  # of all captions, one caption's after another's
        counts = []
        for caption, *references in rows:
            self.captions.append(caption)
            self.references += references
            counts.append(len(references))
        self.counts = np.array(counts, dtype=np.int64)  # (captions,) of references
        self.owner = np.repeat(np.arange(len(rows)), self.counts)  # (references,) the caption of each

    def columns(self) -> dict[str, pa.Array]:
        """The columns of `VilbertScore.ROW`."""
        words = self.words()
        released = self._released()
        caption_weights = self._weights(self.captions)
        reference_weights = self._weights(self.references)
        # A caption's words have maxima against each of its references: lists in lists.
        caption_maxima = lists(words.x_maxima, caption_weights.lengths[self.owner])
        reference_maxima = lists(words.y_maxima, reference_weights.lengths)
        return {
            "caption_maxima": lists(caption_maxima, self.counts),
            "reference_maxima": lists(reference_maxima, self.counts),
            "caption_weights": _float32_lists(caption_weights),
            "reference_weights": lists(_float32_lists(reference_weights), self.counts),
            "released_precision": lists(released.precision, self.counts),
            "released_recall": lists(released.recall, self.counts),
        }

    def words(self) -> Any:
        """Words of captions matched with words of each reference, pair by pair."""
        return self._match(lambda text: self.encoder.words(text.ids), return_maxima=True)

    def _released(self) -> Any:
        """The matching of the released script.

        With m token ids of a text, marks included, it takes rows 1 to m - 1 of its m + 1 rows: the task token
        and all words, and of a text that was cut all but the last word. Texts shorter than the longest one
        possible are padded, and padding has similarity 0. Where there are idf weights, row i has that of
        token i, which is the next word's, and ids that the table lacks have its largest one.
        """
        settings: dict[str, Any] = {}
        if self.idf is not None:
            idf = replace(self.idf, unseen=max(self.idf.weights.values()))
            settings["x_weights"] = _weights_of_next(idf, self.captions)
            settings["y_weights"] = _weights_of_next(idf, self.references)
            settings["weighted_similarity"] = True  # the script multiplies similarities, not their maxima
        length = self.encoder.tokenizer.context_length
        caption_is_padded = np.array([len(text.ids) < length for text in self.captions], dtype=np.bool_)
        return self._match(
            lambda text: slice(1, len(text.ids)),
            x_padded=caption_is_padded[self.owner].tolist(),  # of each pair
            y_padded=[len(text.ids) < length for text in self.references],
            **settings,
        )

    def _match(self, rows: Callable[[EncodedText], slice], **settings: Any) -> Any:
        """The greedy matching of chosen rows, on the encoder's device if that is CUDA; values on the CPU."""
        from capeval_core.matching.greedy import greedy_match

        # A caption's rows are packed once, and met by each of its references.
        x = self._packed(self.captions, rows)
        y = self._packed(self.references, rows)
        x_lengths = [len(text.features[rows(text)]) for text in self.captions]
        y_lengths = [len(text.features[rows(text)]) for text in self.references]
        return greedy_match(x, y, x_lengths, y_lengths, x_of_pair=self.owner, **settings).to("cpu")

    def _packed(self, texts: Sequence[EncodedText], rows: Callable[[EncodedText], slice]) -> Any:
        """Chosen rows of texts, one text after another; those that are not on CUDA yet get there at once."""
        import torch

        from capeval_core.models.device import DTYPES, rows_on_device

        device = self.encoder.device
        hidden_size = self.encoder.settings.architecture.text.hidden_size
        empty = np.empty((0, hidden_size), dtype=np.float32)  # there may be no text at all
        if device.type != "cuda":
            return torch.from_numpy(np.concatenate([empty, *[text.features[rows(text)] for text in texts]]))
        # Features that came from the cache are on the host; a copy of each would wait for the device.
        on_host = [empty]
        for text in texts:
            if text.on_device is None:
                on_host.append(text.features)
        copied = rows_on_device(device, on_host, DTYPES[self.encoder.dtype])
        no_rows, *copies = torch.split(copied, [len(features) for features in on_host])
        next_copy = iter(copies)
        parts = [no_rows]
        for text in texts:
            features = next(next_copy) if text.on_device is None else text.on_device
            parts.append(features[rows(text)])
        return torch.cat(parts)

    def _weights(self, texts: Sequence[EncodedText]) -> Ragged:
        """The weight of each word; words of which none has a weight count alike."""
        ids = [self.encoder.word_ids(text.ids) for text in texts]
        return token_weights(pa.array(ids, pa.list_(pa.int32())), self.idf)[0]


def _weights_of_next(idf: TokenIdf, texts: Sequence[EncodedText]) -> list[float]:
    """The weight of the next token of each row that the released script takes of texts."""
    weights: list[float] = []
    for text in texts:
        weights += idf.of(text.ids[1:])
    return weights


def _float32_lists(ragged: Ragged) -> pa.ListArray:
    """A column of lists of float32."""
    return lists(ragged.values.astype(np.float32), ragged.lengths)
