"""METEOR and SPICE: programs in Java, which pycocoevalcap brings along, over words of COCO's tokenizer.

Denkowski, Lavie: Meteor Universal: Language Specific Translation Evaluation for Any Target Language,
WMT 2014, https://aclanthology.org/W14-3348
Anderson, Fernando, Johnson, Gould: SPICE: Semantic Propositional Image Caption Evaluation, ECCV 2016,
https://arxiv.org/abs/1607.08822

The program of METEOR aligns a caption with its references and says what matches; the score of these counts,
of a caption or of a set, is computed here, so that it has intervals and tests. SPICE's program gives scores.
"""

from __future__ import annotations

import importlib
import importlib.util
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from capeval_core.metric import CommonOptions, Model
from capeval_core.project import install_command
from capeval_core.ragged import Doubles
from capeval_core.registry import facts
from capeval_core.result import Values
from capeval_core.rows import column, row_schema
from capeval_core.scores.ngram import CaptionPools, NgramMetric, NgramOptions, fixed_lists, of_fixed_lists
from capeval_core.statistics import CorpusFormula

# METEOR 1.5 for English.
ALPHA = 0.85
"""Weight of recall in the mean, where precision has the remainder."""
BETA = 0.2
"""Exponent of the penalty for fragments."""
GAMMA = 0.6
"""Weight of the penalty for fragments."""
DELTA = 0.75
"""Weight of content words, where function words have the remainder."""
STAGES = np.array([1.0, 0.6, 0.8, 0.6])
"""Weights of matches by the same word, stem, synonym and paraphrase."""
SUMS = (
    "caption_matches",
    "reference_matches",
    "caption_length",
    "reference_length",
    "chunks",
    "matched_caption_words",
    "matched_reference_words",
)


def meteor_sums(statistics: Doubles) -> Doubles:
    """(n, 7) summands of `SUMS`, one row per caption, of the program's (n, 23) statistics.

    These are the lengths of caption and reference, their numbers of function words; by stage the content
    words of either that match, and the function words of either; chunks, and the matched words of either. A
    caption that is its reference has no fragments: its one chunk does not count.
    """
    stages = statistics[:, 4:20].reshape(-1, 4, 4)
    content = stages[:, :, :2]  # (n, stages, caption and reference)
    function = stages[:, :, 2:]
    matches = np.einsum("s,nsk->nk", STAGES, DELTA * content + (1 - DELTA) * function)
    lengths = statistics[:, :2]
    functions = statistics[:, 2:4]
    weighted = DELTA * (lengths - functions) + (1 - DELTA) * functions
    matched = (content + function).sum(axis=1)
    chunks = statistics[:, 20]
    is_whole = (matched == lengths).all(axis=1) & (chunks == 1)
    # As in METEOR itself: else a perfect caption would be below 1 by the penalty of its one chunk.
    chunks = np.where(is_whole, 0.0, chunks)[:, None]
    return np.concatenate([matches, weighted, chunks, statistics[:, 21:23]], axis=1)


def meteor(sums: Doubles) -> Doubles:
    """(..., 1) METEOR of (..., 7) sums: the weighted harmonic mean of precision and recall, less a penalty.

    >>> meteor(np.array([1.5, 1.5, 1.5, 1.5, 0.0, 2.0, 2.0])).round(3)
    array([1.])
    """
    matches = sums[..., :2]
    lengths = sums[..., 2:4]
    share = np.divide(matches, lengths, out=np.zeros_like(matches), where=lengths > 0)  # (..., 2)
    precision = share[..., 0]
    recall = share[..., 1]
    below = (1 - ALPHA) * recall + ALPHA * precision
    mean = np.divide(precision * recall, below, out=np.zeros_like(below), where=below > 0)
    # Caption and reference may match unequally many words, by paraphrases of unequal length.
    words = sums[..., 5:].mean(axis=-1)
    fragments = np.divide(sums[..., 4], words, out=np.zeros_like(words), where=words > 0)
    scores: Doubles = (mean * (1 - GAMMA * fragments**BETA))[..., None]
    return scores


@dataclass(frozen=True, kw_only=True)
class JavaOptions(NgramOptions):
    """Options of METEOR and SPICE."""


class JavaMetric(NgramMetric):
    """A metric whose program is in Java."""

    program: ClassVar[str]
    Options: ClassVar[type[CommonOptions]] = JavaOptions

    @classmethod
    def check_options(cls, options: CommonOptions) -> None:
        super().check_options(options)
        check_java([cls.title])

    def open_models(self) -> dict[str, Model]:
        return {**super().open_models(), "java": Model(self.program, self.program)}


@facts("meteor")
class Meteor(JavaMetric):
    """METEOR 1.5 as in COCO's evaluation: of the sums over all captions, not a mean of scores."""

    program = "meteor-1.5"
    formula = CorpusFormula(
        ("meteor",), SUMS, meteor, {"caption_matches": "no caption has a word of a reference"}
    )
    ROW = row_schema(column("sums", pa.list_(pa.float64(), len(SUMS)), f"what it adds to {', '.join(SUMS)}"))

    def columns(self, pools: CaptionPools) -> dict[str, Any]:
        lines = []
        for words, *references in pools.rows:
            # As pycocoevalcap does: the program's lines have their fields between these bars.
            caption = " ".join(words).replace("|||", "").replace("  ", " ")
            lines.append(" ||| ".join(["SCORE", *map(" ".join, references), caption]))
        folder = package() / "meteor"
        command = ["java", "-jar", "-Xmx2G", f"{self.program}.jar", "-", "-", "-stdio", "-l", "en", "-norm"]
        # All lines in one run: starting Java and reading the paraphrases takes seconds.
        process = subprocess.run(
            command, input="\n".join([*lines, ""]), capture_output=True, cwd=folder, encoding="utf-8"
        )
        statistics = []
        for line in process.stdout.splitlines():
            statistics.append([float(number) for number in line.split()])
        # Lines are counted, too: with one missing, all after it would be another caption's.
        if process.returncode or len(statistics) != len(lines):
            reason = " ".join(process.stderr.split())[-200:]
            raise ValueError(f"METEOR's program failed (exit status {process.returncode}): {reason}")
        return {"sums": fixed_lists(meteor_sums(np.array(statistics)))}

    def aggregate(self, rows: pa.Table) -> Values:
        sums = of_fixed_lists(rows["sums"])
        return Values(meteor(sums)[:, 0], {}, summands=sums)


@facts("spice")
class Spice(JavaMetric):
    """SPICE: F of the tuples of scene graphs that a caption shares with its references."""

    program = "spice-1.0"
    ROW = row_schema(
        column("f", pa.float64(), "F of its tuples"),
        column("precision", pa.float64(), "share of its tuples that references have"),
        column("recall", pa.float64(), "share of the references' tuples that it has"),
    )

    def columns(self, pools: CaptionPools) -> dict[str, Any]:
        captions: dict[int, list[str]] = {}
        references: dict[int, list[str]] = {}
        for index, row in enumerate(pools.rows):
            caption, *texts = map(" ".join, row)
            captions[index] = [caption]
            references[index] = texts
        # By name: pycocoevalcap is an extra, and has no types.
        scorer = importlib.import_module("pycocoevalcap.spice.spice").Spice()
        try:
            _, details = scorer.compute_score(references, captions)
        except (subprocess.CalledProcessError, OSError) as error:
            raise ValueError(f"SPICE's program failed: {error}") from error
        f = []
        precision = []
        recall = []
        for detail in details:
            score = detail["All"]  # of tuples of all kinds
            f.append(score["f"])
            precision.append(score["pr"])
            recall.append(score["re"])
        columns = {"f": f, "precision": precision, "recall": recall}
        # As floats also where the program gives null, of a text without tuples: NaN.
        return {name: np.array(values, dtype=float) for name, values in columns.items()}

    def aggregate(self, rows: pa.Table) -> Values:
        parts = {"precision": rows["precision"].to_numpy(), "recall": rows["recall"].to_numpy()}
        return Values(rows["f"].to_numpy(), parts)


def package() -> Path:
    """The folder of pycocoevalcap; an empty path where it is not installed."""
    # Not imported: to ask where it is runs none of its code.
    spec = importlib.util.find_spec("pycocoevalcap")
    folders = spec.submodule_search_locations if spec else None
    return Path(folders[0]) if folders else Path()


def check_java(titles: Sequence[str]) -> None:
    """Raise ValueError for METEOR or SPICE if they cannot run here: pycocoevalcap, Java, SPICE's models."""
    # Before any row: the programs start minutes into a run, and fail with traces of Java.
    spice = package() / "spice"
    missing = ""
    if package() == Path():
        missing = f"pycocoevalcap, which is not installed: {install_command('ngram')}"
    elif shutil.which("java") is None:
        missing = "Java, and there is no `java`: apt install default-jre-headless"
    elif "SPICE" in titles and not (spice / "lib" / "stanford-corenlp-3.6.0-models.jar").is_file():
        run = "from get_stanford_models import get_stanford_models as get; get()"
        missing = f"Stanford CoreNLP 3.6.0 (about 400 MB): run `python -c '{run}'` in {spice}"
        advice = ""
        if "METEOR" in titles:
            advice = "; METEOR needs Java alone, so leave SPICE out or fetch this first"
        raise ValueError(f"SPICE, a program in Java, needs {missing}{advice}")
    if titles and missing:
        need = "need" if len(titles) > 1 else "needs"
        raise ValueError(f"{' and '.join(titles)} {need} {missing}")
