"""Word-F: a caption's words beside those of references, rare ones before all, and the image, by CLIP."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from capeval_core import authoring as ca


@dataclass(frozen=True, kw_only=True)
class WordOptions(ca.ClipsOptions, ca.CorpusOptions):
    """Those of CLIP-S that make sense here, and the statistics of a corpus."""

    without = ("w", "prompt", "compat")


class WordF(ca.ClipS):
    """Word-F: harmonic mean of the image's cosine and the best F of words over references."""

    name = "wordf"
    title = "Word-F"
    key = "word_f"
    summary = "Harmonic mean of the image's cosine and the F of words with the nearest reference."
    paper = "Nobody, A score of words, https://example.org/wordf"
    range = (0.0, 1.0)
    needs_references = True
    corpus_texts, statistics = "references", ca.TokenIdf
    Options = WordOptions
    ROW = ca.row_schema(
        ca.column("cosine", pa.float32(), "cosine of caption and image, null where the image failed"),
        ca.column("reference_f", pa.list_(pa.float32()), "F of its words with those of each reference"),
    )
    reference_columns = ("reference_f",)

    def prepare(self, texts: Sequence[Sequence[str]]) -> ca.TokenIdf:
        documents = [text for own in texts for text in ([own] if isinstance(own, str) else own)]
        return ca.TokenIdf.of_documents(self.encoder.tokenizer.encode(documents).ids)

    def encode(self, batch: ca.Samples) -> Iterator[pa.Table]:
        for window in ca.windows(batch, 1_024):  # bounds the memory of token features
            texts, start = ca.Texts(window), 0
            tokens = self.encoder.encode_tokens(texts.all, **self.run)
            for images in self.image_features(window.images):
                part = slice(start, start + len(images.keys))
                columns = texts.columns(part, images.keys, images.errors, tokens.truncated)
                whole = np.stack([rows[-1] for rows in tokens.features[part]])
                columns |= self.columns(images.features, whole)
                found = self.of_words(tokens, part, texts)
                columns["reference_f"] = ca.lists(found, texts.counts[part])
                yield pa.table(columns, schema=self.ROW)
                start = part.stop

    def of_words(self, tokens, part: slice, texts: ca.Texts) -> np.ndarray:
        """F of the words of some captions with those of each of their references."""
        import torch

        sides = {}
        for side, own in (("x", part), ("y", texts.references(part))):
            weights = [weight for ids in tokens.ids[own] for weight in self.options.statistics.of(ids)]
            sides[side] = torch.from_numpy(np.concatenate(tokens.features[own]))
            sides[f"{side}_lengths"] = [len(ids) for ids in tokens.ids[own]]
            sides[f"{side}_weights"] = torch.tensor(weights)
        return ca.greedy_match(**sides, x_of_pair=texts.owners(part)).f

    def aggregate(self, rows: pa.Table) -> ca.Values:
        cosine = rows["cosine"].to_numpy().astype(np.float64)
        nearest = ca.Ragged.of(rows["reference_f"]).max()
        score = ca.harmonic_mean(np.maximum(cosine, 0), np.maximum(nearest, 0))
        return ca.Values(score, {"cosine": cosine, "reference_f": nearest})
