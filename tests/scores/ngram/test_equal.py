"""Equal to pycocoevalcap caption by caption: stored values of it, and sets that lie beside the checkout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import capeval_core
from capeval_core.integrations import CocoScores

HERE = Path(__file__).parent
DATA = HERE.parents[3] / "shared" / "data"
NAMES = {f"BLEU-{n}": f"Bleu_{n}" for n in range(1, 5)} | {"ROUGE-L": "ROUGE_L", "CIDEr": "CIDEr"}
"""Names in files of scores, and in pycocoevalcap."""
KEYS = {"Bleu_4": "bleu", "ROUGE_L": "rougel", "CIDEr": "ciderd"}


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def shared(*path: str) -> Path:
    """A file beside the checkout; the test is skipped where it is not there."""
    found = DATA.joinpath(*path)
    if not found.exists():
        pytest.skip(f"there is no {found}")
    return found


def test_drawn_scenes_and_odd_captions() -> None:
    stored = read(HERE / "pycocoevalcap.json")
    captions, references = stored["captions"], stored["references"]
    scores = CocoScores(references, {key: [text] for key, text in captions.items()})
    assert list(scores.eval) == list(scores.arrays) == list(stored["values"])
    for name, expected in stored["scores"].items():
        np.testing.assert_allclose(scores.arrays[name], expected, rtol=0, atol=1e-12)
        assert scores.eval[name] == pytest.approx(stored["values"][name], abs=1e-12)
    # The same by the metrics themselves, caption by caption and as one number.
    texts, lists = list(captions.values()), list(references.values())
    for key, name in KEYS.items():
        result = capeval_core.load(name, empty="score").score(texts, references=lists)
        np.testing.assert_allclose(result.scores, stored["scores"][key], rtol=0, atol=1e-12)
        assert result.mean == pytest.approx(stored["values"][key], abs=1e-12)
        assert result.counts.empty == 1 and result.counts.failed == 0


@pytest.mark.parametrize(
    ("system", "expected"),
    [
        ("m2_transformer", {"Bleu_1": 0.80761, "Bleu_4": 0.39094, "ROUGE_L": 0.58635, "CIDEr": 1.31197}),
        ("blip2_results_xe", {"Bleu_1": 0.83137, "Bleu_4": 0.43807, "ROUGE_L": 0.62010, "CIDEr": 1.46007}),
    ],
)
def test_systems_on_coco(system: str, expected: dict[str, float]) -> None:
    references = read(shared("coco_systems", "reference_captions.json"))
    captions = read(shared("coco_systems", f"{system}.json"))
    scores = CocoScores(references, {key: [captions[key]] for key in references})
    assert {name: scores.eval[name] for name in expected} == pytest.approx(expected, abs=6e-6)


@pytest.mark.parametrize(
    ("name", "file", "caption", "image"),
    [
        ("capeval1k", "captions.jsonl", "candidate", "image"),
        ("thumb_mscoco", "captions.jsonl", "hyp", "seg_id"),
        ("flickr8k_expert", "judgements.jsonl", "candidate", "image"),
    ],
)
def test_scores_that_lie_beside_judged_sets(name: str, file: str, caption: str, image: str) -> None:
    # The other sets are in benchmarks/results/ngram_sets.md.
    lines = shared(name, file).read_text(encoding="utf-8").split("\n")
    rows = [json.loads(line) for line in lines if line]
    references = read(shared(name, "references.json"))
    captions = {i: [" ".join(row[caption].split())] for i, row in enumerate(rows)}
    scores = CocoScores({i: references[row[image]] for i, row in enumerate(rows)}, captions)
    with np.load(shared(name, "scores.npz"), allow_pickle=False) as stored:
        for theirs, ours in NAMES.items():
            np.testing.assert_allclose(scores.arrays[ours], stored[theirs], rtol=0, atol=1e-9)
