"""METEOR and SPICE, run by pycocoevalcap in Java."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from capeval_core.project import install_command

SPICE_MODELS = "spice/lib/stanford-corenlp-3.6.0-models.jar"
"""What SPICE needs beside the package, which brings METEOR whole."""


def check_java(names: Sequence[str]) -> None:
    """Refuse metrics that cannot run here.

    Raises:
        ValueError: the package or Java is not there; or SPICE's models, which pycocoevalcap would download.
    """
    needs = f"{' and '.join(names)} {'need' if len(names) > 1 else 'needs'}"
    spec = importlib.util.find_spec("pycocoevalcap")
    if spec is None or not spec.submodule_search_locations:
        raise ValueError(f"{needs} pycocoevalcap, which is not installed: {install_command('ngram')}")
    if shutil.which("java") is None:
        raise ValueError(f"{needs} Java, and there is no `java`: apt install default-jre-headless")
    folder = Path(next(iter(spec.submodule_search_locations)))
    if "SPICE" in names and not (folder / SPICE_MODELS).is_file():
        raise ValueError(
            f"SPICE needs Stanford CoreNLP 3.6.0 (about 400 MB), and {folder / SPICE_MODELS} is not there: "
            "pycocoevalcap downloads it by `python -c 'from pycocoevalcap.spice.get_stanford_models import "
            "get_stanford_models as get; get()'`, run within that package's folder spice"
        )


def java_scores(
    names: Sequence[str], captions: Sequence[str], references: Sequence[Sequence[str]]
) -> dict[str, tuple[float, list[float]]]:
    """{name: (value of the set, scores)} of tokenized captions, each beside its references."""
    gts = {i: list(row) for i, row in enumerate(references)}
    res = {i: [caption] for i, caption in enumerate(captions)}
    found: dict[str, tuple[float, list[float]]] = {}
    if "METEOR" in names:
        from pycocoevalcap.meteor.meteor import Meteor

        value, scores = Meteor().compute_score(gts, res)
        found["METEOR"] = float(value), [float(score) for score in scores]
    if "SPICE" in names:
        from pycocoevalcap.spice.spice import Spice

        value, details = Spice().compute_score(gts, res)
        found["SPICE"] = float(value), [float(np.float64(detail["All"]["f"])) for detail in details]
    return found
