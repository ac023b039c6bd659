"""A user's own human judgements: captions of images with a score, from a file of any common form."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from capeval_core.errors import FileError, Problems, did_you_mean, file_problem
from capeval_core.inputs.text_files import ID_FIELDS
from capeval_core.judgements.correlation import kendall_tau_c
from capeval_core.judgements.files import Dropped, named_rows
from capeval_core.values import described


@dataclass(frozen=True)
class Judgements:
    """Captions of images, and the score that people gave each."""

    images: list[str]
    captions: list[str]
    scores: list[float]

    def correlation(self, predicted: Sequence[float]) -> float:
        """Kendall's tau-c of predicted scores with these: from -1 to 1; 0 where either are all equal.

        >>> Judgements(["a"] * 3, ["x", "y", "z"], [1, 2, 3]).correlation([0.2, 0.1, 0.9])
        0.3333
        """
        tau = kendall_tau_c(predicted, self.scores)
        return 0.0 if tau.undefined else tau.value


def read_judgements(path: Path) -> Judgements:
    """The judgements of a JSON list, JSON lines, or CSV: rows with an image's id, a caption and a score."""
    problems, judged = Problems(), Judgements([], [], [])
    for name, row in named_rows(path):
        if not isinstance(row, dict):
            fix = "expected an object with image_id, caption and score"
            problems.add(file_problem(path, described(row), fix, index=name, verb="is"))
            continue
        image = next((row[field] for field in ID_FIELDS if row.get(field) not in (None, "")), None)
        caption, score = row.get("caption"), Dropped().rating(row.get("score"), "score")
        lacking = None
        if image is None:
            lacking = " or ".join(ID_FIELDS)
        elif not isinstance(caption, str) or not caption.strip():
            lacking = "caption"
        elif math.isnan(score):
            hint = did_you_mean("score", row) if "score" not in row else f" ({row['score']!r})"
            lacking = f"finite score{hint}"
        if lacking:
            problems.add(file_problem(path, f"no {lacking}", index=name, verb="has"))
            continue
        judged.images.append(str(image))
        judged.captions.append(str(caption))
        judged.scores.append(score)
    problems.raise_if_any()
    if len(set(judged.scores)) < 2:
        found = f"{len(judged.scores)} judgements with {len(set(judged.scores))} different scores"
        raise FileError(file_problem(path, found, "a correlation needs at least two", verb="has"))
    return judged
