"""CHAIR: the share of the objects in captions that are not in the image.

Rohrbach, Hendricks, Burns, Darrell, Saenko: Object Hallucination in Image Captioning, EMNLP 2018,
https://aclanthology.org/D18-1437

Captions of an image mention objects of a fixed list, COCO's 80; the image has those of its annotations and
those that people mention in their captions of it. The two codes that others copy find different words in a
caption: the option `variant` says which one is meant (`capeval_core.phrases.objects`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from os import PathLike, fspath
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from capeval_core.errors import InputError, InputTypeError, Problem, Problems, at, described, warn
from capeval_core.fetching import listed_file
from capeval_core.inputs.images import Texts, Visual
from capeval_core.inputs.names import as_id
from capeval_core.inputs.objects import NOTHING
from capeval_core.inputs.samples import Samples, other_length
from capeval_core.metric import CaptionMetric, CommonOptions, Evidence, Model
from capeval_core.options import option
from capeval_core.phrases.objects import Mention, ObjectWords, Reading, singulariser
from capeval_core.ragged import Doubles
from capeval_core.registry import facts
from capeval_core.result import Values
from capeval_core.rows import column, common_columns, row_schema
from capeval_core.scores.ngram import NgramOptions
from capeval_core.statistics import CorpusFormula
from capeval_core.weights.catalogue import SYNONYMS, WeightsEntry
from capeval_core.weights.folder import TINY

SUMS = (
    "captions",
    "hallucinating_captions",
    "mentions",
    "hallucinated_mentions",
    "objects",
    "mentioned_objects",
)


def chair(sums: Doubles) -> Doubles:
    """(..., 3) CHAIR-i, CHAIR-s and the recall of (..., 6) sums; a share of nothing is 0.

    CHAIR-i is the share of mentions whose object is not in the image, CHAIR-s the share of captions with such
    a mention; the recall is the share of the images' objects that captions mention.

    >>> chair(np.array([2.0, 1.0, 5.0, 1.0, 4.0, 3.0]))
    array([0.2 , 0.5 , 0.75])
    """
    parts = sums[..., [3, 1, 5]]
    wholes = sums[..., [2, 0, 4]]
    shares: Doubles = np.divide(parts, wholes, out=np.zeros_like(parts), where=wholes > 0)
    return shares


@dataclass(frozen=True, kw_only=True)
class ChairOptions(NgramOptions):
    """Options of CHAIR."""

    variant: Reading = option(
        "original",
        "whose code finds words: `original`, as LisaAnne/Hallucination and the standalone do, or `opera`, by "
        "NLTK's tags and WordNet's lemmas, as OPERA, HALC and lmms-eval do",
        encodes=True,
    )
    synonyms: str | PathLike[str] | None = option(
        None,
        "file of the objects' words, a line each, or `tiny`; None: the original's list for COCO's 80 objects",
    )


@cache
def object_words(synonyms: str | None, variant: Reading) -> ObjectWords:
    """The words of a file, of the tiny list, or of the original's, which is fetched."""
    if synonyms is None:
        path = listed_file(SYNONYMS, "synonyms")
    elif synonyms == "tiny":
        path = TINY / "chair" / SYNONYMS.files[0].name
    else:
        path = Path(synonyms)
    return ObjectWords.of_file(path, variant)


def _name_of(image: Any) -> str | None:
    """The name of an image in a text, a number (numpy's and torch's too) or a path; None for other values."""
    if hasattr(image, "item"):
        image = image.item()
    return as_id(fspath(image) if isinstance(image, PathLike) else image)


def _named(samples: Samples, image_ids: Sequence[str | None]) -> Samples:
    """The samples with the names of their images, which are the same whatever the order of references."""
    visuals = []
    for visual, texts, image_id in zip(samples.images, samples.references or [], image_ids, strict=True):
        visuals.append(Visual(visual.where, Texts(sorted(set(texts)), image_id)))
    return replace(samples, images=visuals)


_ARTICLES = ("a", "an", "the")


def _looks_like_a_name(text: str) -> bool:
    """Whether a reference that the list does not know may be meant as the name of an object."""
    words = text.lower().split()
    # COCO's names have one or two words (`traffic light`) and no article, with which a short caption begins.
    return 0 < len(words) <= 2 and words[0] not in _ARTICLES and text != NOTHING


@facts("chair")
class Chair(CaptionMetric):
    """CHAIR-i: of all objects that captions mention, the share that is not in the image.

    The objects of an image are given as its references, which are names of objects, captions by people, or
    both: a text that is a name in the list of synonyms is that object, any other text is read as the captions
    are. The original takes both, COCO's annotations and its captions.

    CHAIR-i, CHAIR-s and the recall of a set are of sums over its captions. A caption's own score is CHAIR-i
    of its own mentions, 0 where it mentions no object.
    """

    higher_is_better = False
    needs_references = True
    reads_objects = True
    media = ()
    counts_words = True
    crops = False
    languages = ("English",)
    Options: ClassVar[type[CommonOptions]] = ChairOptions
    formula = CorpusFormula(
        ("chair_i", "chair_s", "recall"), SUMS, chair, {"mentions": "no caption mentions an object"}
    )
    ROW = row_schema(
        column("mentions", pa.list_(pa.string()), "the objects that it mentions, in order and as often"),
        column("hallucinated", pa.list_(pa.string()), "those of its mentions that are not in its image"),
        column("objects", pa.list_(pa.string()), "the objects of its image, in order of the alphabet"),
        column("unlisted", pa.list_(pa.string()), "short references that are no name of the list"),
    )

    options: ChairOptions

    @classmethod
    def _visuals_among(cls, visuals: Mapping[str, Any], references: object) -> Any:
        """The names of images, which group captions: many images have the same objects."""
        images = visuals["images"]
        return super()._visuals_among(visuals, references) if images is None else images

    @classmethod
    def check_input(
        cls, options: CommonOptions, captions: object, images: Any, references: object = None, **how: Any
    ) -> Samples:
        """The samples; `images` name the image of each caption, where they are given, by texts or numbers."""
        samples = super().check_input(options, captions, None, references, **how)
        if images is None:
            return _named(samples, [None] * len(samples))
        if isinstance(images, (str, bytes)) or not isinstance(images, Iterable):
            problem = Problem("images", f"is {described(images)}", "pass a name for each caption", TypeError)
            raise InputTypeError(problem)
        images = list(images)
        image_ids = [_name_of(image) for image in images]
        problems = Problems()
        for row, image_id in enumerate(image_ids):
            if image_id is None and images[row] is not None:
                problems.add(Problem(at("images", row), "is not a name", "pass a text, a number or a path"))
        problems.raise_if_any()
        if len(image_ids) != len(samples):
            fix = "name the image of each caption"
            raise InputError(other_length("captions", len(samples), "images", len(image_ids), fix))
        return _named(samples, image_ids)

    def open_models(self) -> dict[str, Model]:
        name, version = singulariser(self.options.variant)
        digest = self.words.digest
        variant = self.options.variant
        return {
            "variant": Model(variant, variant),  # signed as the default, too: no number is read without it
            "words": Model(f"synonyms@{digest[:8]}", digest),
            "singulariser": Model(f"{name}@{version}", f"{name}@{version}"),
        }

    @classmethod
    def entries(cls, options: Any) -> list[WeightsEntry]:
        return [] if options.synonyms is not None else [SYNONYMS]

    @property
    def words(self) -> ObjectWords:
        """The words that mean objects."""
        synonyms = self.options.synonyms
        return object_words(None if synonyms is None else fspath(synonyms), self.options.variant)

    def encode(self, batch: Samples) -> Iterator[pa.Table]:
        if not len(batch):
            return
        named: dict[str, list[str]] = {}  # a reference is read once for all captions of its image
        mentions = []
        hallucinated = []
        objects = []
        unlisted = []
        for caption, references in zip(batch.captions, batch.references or [], strict=True):
            for text in references:
                if text not in named:
                    named[text] = self.words.named(text)
            mentioned = [mention.object for mention in self.words.mentions(caption)]
            present = {name for text in references for name in named[text]}
            mentions.append(mentioned)
            hallucinated.append([name for name in mentioned if name not in present])
            objects.append(sorted(present))
            # A category that the list does not have is read as a caption, and may name another object: the
            # words of `dog collar` mention a dog.
            unknown = [text for text in references if self.words.name(text) is None]
            unlisted.append([text for text in unknown if _looks_like_a_name(text)])
        count = len(batch)
        common = common_columns(
            batch,
            slice(None),
            groups=[visual.key for visual in batch.images],
            errors=[None] * count,
            truncated=np.zeros(count, dtype=np.int32),
        )
        metric_columns = {
            "mentions": mentions,
            "hallucinated": hallucinated,
            "objects": objects,
            "unlisted": unlisted,
        }
        yield pa.table({**common, **metric_columns}, schema=self.ROW)

    def aggregate(self, rows: pa.Table) -> Values:
        summands = np.zeros((len(rows), len(SUMS)))
        columns = {name: rows[name].to_pylist() for name in ("mentions", "hallucinated", "objects")}
        _warn_of_unlisted(rows, self.words)
        for row, (mentioned, absent, present) in enumerate(zip(*columns.values(), strict=True)):
            # The recall is of objects, each once; CHAIR-i is of mentions, as often as they come.
            recalled = len({*mentioned} & {*present})
            summands[row] = (1, bool(absent), len(mentioned), len(absent), len(present), recalled)
        shares = chair(summands)
        parts: dict[str, Any] = {
            "chair_s": shares[:, 1],
            "recall": shares[:, 2],
            "mentions": columns["mentions"],
            "hallucinated": columns["hallucinated"],
            "objects": columns["objects"],
        }
        return Values(shares[:, 0], parts, summands=summands)

    def signature(self, rows: pa.Table | None = None) -> str:
        """The signature of every metric and, with rows, how many images they are of and a digest of these."""
        signature = super().signature(rows)
        if rows is None or not len(rows):
            return signature
        images = sorted(set(rows["group"].to_pylist()))
        digest = hashlib.sha256("\n".join(images).encode()).hexdigest()
        settings, _, version = signature.rpartition("|")
        return f"{settings}|images:{len(images)}@{digest[:8]}|{version}"

    def evidence_of(self, samples: Samples, rows: pa.Table, parts: Mapping[str, Any]) -> Evidence:
        """What `Result.explain` returns: the parts, the caption's mentions with their places, and the caption
        with marks: `[dog]` is in the image, `[dog!]` is not."""
        evidence = super().evidence_of(samples, rows, parts)
        for row, caption in enumerate(samples.captions):
            objects = rows["objects"][row].as_py()
            mentions = self.words.mentions(caption)
            evidence[row] |= {
                "objects": objects,
                "words": [
                    {**mention._asdict(), "hallucinated": mention.object not in objects}
                    for mention in mentions
                ],
                "marked": marked(caption, mentions, objects),
            }
        return evidence


def _warn_of_unlisted(rows: pa.Table, words: ObjectWords) -> None:
    """Warn of names that the list of synonyms does not have: they were read as captions are."""
    names = list(dict.fromkeys(rows["unlisted"].combine_chunks().flatten().drop_null().to_pylist()))
    if not names:
        return
    examples = []
    for name in names[:3]:
        mentioned = " and ".join(dict.fromkeys(words.named(name))) or "no object"
        examples.append(f"{name[:40]!r} (mentions {mentioned})")
    look = f"{len(names):,} references look like names of objects"
    reading = "are read as captions"
    if len(names) == 1:
        look = "1 reference looks like the name of an object"
        reading = "is read as a caption"
    fix = "name objects as the list does, or pass synonyms=... that has them"
    warn(
        f"chair: {look} that the list of synonyms does not have, and {reading}: {', '.join(examples)}: {fix}"
    )


def marked(caption: str, mentions: list[Mention], objects: list[str]) -> str:
    """A caption in lower case with its words for objects in brackets, those of hallucinated ones with a `!`.

    >>> marked("A cat on a bench", [Mention("cat", "cat", 2, 5), Mention("bench", "bench", 11, 16)], ["cat"])
    'a [cat] on a [bench!]'
    """
    text = caption.lower()
    # From the end: brackets would move the places of all mentions after them.
    for mention in reversed(mentions):
        sign = "" if mention.object in objects else "!"
        word = text[mention.start : mention.end]
        text = f"{text[: mention.start]}[{word}{sign}]{text[mention.end :]}"
    return text
