"""What `capeval judge` refuses before any metric is opened."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from capeval_core.errors import Problems, file_problem
from capeval_core.judgements.judged_set import JudgedSet
from capeval_core.judgements.others import PoolSet
from capeval_core.metric import CaptionMetric
from capeval_core.reranking import Reranker


def check_rerankers(metrics: Sequence[tuple[type[CaptionMetric], Any]], judged: JudgedSet) -> None:
    """Refuse metrics that choose among captions where each caption needs a score."""
    names = [class_.name for class_, _ in metrics if issubclass(class_, Reranker)]
    if names and not isinstance(judged, PoolSet):
        raise ValueError(
            f"{names[0]} chooses among the captions of an image, and scores of different images cannot be "
            "compared: judge it by what it chooses, with nice_pools"
        )


def check_references(metrics: Sequence[tuple[type[CaptionMetric], Any]], judged: JudgedSet) -> None:
    """Refuse metrics that need references where the set has none."""
    if all(scoring.items.references is not None for scoring in judged.scorings):
        return
    if needing := [class_.name for class_, _ in metrics if class_.needs_references]:
        verb = "needs" if len(needing) == 1 else "need"
        raise ValueError(
            f"{', '.join(needing)} {verb} references: put references.json beside judgements.jsonl"
        )


def check_texts(metrics: Sequence[tuple[type[CaptionMetric], Any]], judged: JudgedSet, data: str) -> None:
    """Refuse empty texts before any metric is opened, of those that do not score them."""
    strict = [class_ for class_, options in metrics if options.empty == "error"]
    comparing = [class_ for class_ in strict if class_.needs_references]
    captions: dict[str, None] = {}
    references: dict[str, None] = {}
    for scoring in judged.scorings if strict else ():
        items = scoring.items
        texts = (scoring.references() if comparing else None) or [[]] * len(items)
        for row, (caption, image, own) in enumerate(zip(items.captions, items.images, texts, strict=True)):
            if not caption.strip():
                captions[f"image {image!r}" if items.names is None else items.names[row]] = None
            if not all(text.strip() for text in own):
                file = "" if items.names is None else "references.json "
                references[f"{file}image {image!r}"] = None
    problems = Problems()
    for names, what, refusing in ((captions, "caption", strict), (references, "reference", comparing)):
        flags = " ".join(f"--set {class_.name}.empty=score" for class_ in refusing)
        for name in names:
            fix = f"write the {what}, or pass {flags}"
            problems.add(file_problem(data, f"an empty {what}", fix, index=name, verb="has"))
    problems.raise_if_any()


def check_visuals(metrics: Sequence[tuple[type[CaptionMetric], Any]], flags: argparse.Namespace) -> list[str]:
    """Refuse metrics whose images are not named; notes on weights that are not the published ones."""
    needing = [
        class_.name for class_, options in metrics if class_.media and not class_.images_are_ids(options)
    ]
    if needing and flags.visuals is None:
        raise ValueError(
            f"{flags.visuals_flag} is missing: {', '.join(needing)} need{'s' if len(needing) == 1 else ''} "
            f"the {flags.visuals_flag[2:]} of the set; metrics on texts alone and --scores work without"
        )
    tiny = [class_.title for class_, options in metrics if options.weights == "tiny"]
    if not tiny:
        return []
    return [f"{', '.join(tiny)}: with weights `tiny`; published values are for the published weights"]
