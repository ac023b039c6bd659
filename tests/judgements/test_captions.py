from __future__ import annotations

import json
from pathlib import Path

import pytest

from capeval_core.errors import FileError
from capeval_core.judgements.captions import Judgements, read_judgements

ROWS = [
    {"image_id": 7, "caption": "a dog", "score": 1},
    {"image_id": "x", "caption": "a cat", "score": 0.25},
]


@pytest.mark.parametrize("kind", ["json", "jsonl", "csv"])
def test_judgements_are_read_from_any_form(kind: str, tmp_path: Path) -> None:
    texts = {
        "json": json.dumps(ROWS),
        "jsonl": "\n".join(map(json.dumps, ROWS)) + "\n",
        "csv": 'image_id,caption,score\n7,"a dog",1\nx,a cat,0.25\n',
    }
    path = tmp_path / f"judged.{kind}"
    path.write_text(texts[kind])
    assert read_judgements(path) == Judgements(["7", "x"], ["a dog", "a cat"], [1.0, 0.25])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[{"caption": "a", "score": 1}]', "entry 0 has no image_id or image or id or filename"),
        ('[{"image_id": 1, "score": 1}]', "entry 0 has no caption"),
        (
            '[{"image_id": 1, "caption": "a", "scores": 1}]',
            "entry 0 has no finite score: did you mean 'scores'",
        ),
        ('[{"image_id": 1, "caption": "a", "score": NaN}]', r"entry 0 has no finite score \(nan\)"),
        ('[{"image_id": 1, "caption": "a", "score": true}]', r"no finite score \(True\)"),
        ("[3]", "entry 0 is .*: expected an object with image_id"),
        ('[{"image_id": 1, "caption": "a", "score": 1}]', "1 judgements with 1 different scores"),
        ("{}", "expected a list of objects"),
        ("[", "is not json"),
    ],
)
def test_what_is_wrong_with_a_file_is_named(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "judged.json"
    path.write_text(text)
    with pytest.raises(FileError, match=message) as caught:
        read_judgements(path)
    assert str(caught.value).startswith(str(path))


def test_an_unknown_extension_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"extension '\.txt', expected one of \.json"):
        read_judgements(tmp_path / "judged.txt")


def test_the_correlation_counts_pairs() -> None:
    judged = Judgements(["a"] * 4, list("wxyz"), [1, 1, 2, 3])
    predicted = [0.1, 0.4, 0.3, 0.9]
    # 5 pairs differ in their scores, 4 of them in the same direction; tau-c by its definition.
    classes = 3
    expected = 2 * (4 - 1) / (4**2 * (classes - 1) / classes)
    assert judged.correlation(predicted) == pytest.approx(expected)
    assert judged.correlation([0.5] * 4) == 0.0
