"""What UNITER and ViLBERT take of boxes, and which of ViLBERT's layers run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import capeval_core
from tests.support import seams
from tests.support.seeded import made_up_boxes, uniter, vilbert


def boxes(*counts: int) -> list[dict[str, Any]]:
    return [made_up_boxes(count, seed=count) for count in counts]


def features(given: Any, texts: Any, of: Any = None, **more: Any) -> list[Any]:
    return [each["features"] for each in seams.encode(of or vilbert(), given, texts, **more)]


def prepared(network: Any, given: dict[str, Any]) -> list[Tensor]:
    """What a network takes of boxes, as tensors."""
    found = network.prepare_visual(seams.visual("boxes", given).load())
    parts = vars(found) if hasattr(found, "__dict__") else found._asdict()
    return [torch.from_numpy(np.asarray(array, dtype=np.float32)) for array in parts.values()]


def test_what_is_taken_of_boxes() -> None:
    given = {
        "boxes": np.float32([[10, 20, 110, 53.3]]),
        "features": np.full((1, 64), 0.1, np.float32),
        "size": (333, 77),
    }
    rows, positions = (part.numpy() for part in prepared(uniter(), given))
    relative = np.float32([10 / 333, 20 / 77, 110 / 333, 53.3 / 77, 100 / 333, 33.3 / 77])
    rounded = relative.astype(np.float16).astype(np.float32)
    assert positions[0, :6].tolist() == rounded.tolist() and positions[0, 6] == rounded[4] * rounded[5]
    assert rows[0, 0] == float(np.float16(0.1))
    two = np.repeat(np.float32([[1], [4]]), 64, axis=1)
    given = {"boxes": np.float32([[10, 20, 110, 70], [0, 0, 50, 50]]), "features": two, "size": (200, 100)}
    # The whole image comes first.
    rows, places = (part.numpy() for part in prepared(vilbert(), given))
    assert rows[:, 0].tolist() == [2.5, 1, 4] and places[0].tolist() == [0, 0, 1, 1, 1]
    assert places[1].tolist() == pytest.approx([0.05, 0.2, 0.55, 0.7, 0.25])
    huge = {**made_up_boxes(4), "features": np.full((4, 64), 1e6, dtype=np.float32)}
    (found,) = seams.encode(uniter(), [huge], [["dog"]])
    assert "float16" in found["error"]


def test_nothing_runs_that_the_texts_of_vilbert_do_not_depend_on() -> None:
    model, ran = vilbert().model, []
    parts = {
        f"{number}.{stream}": getattr(block, stream).output
        for number, block in enumerate(model.co_layers)
        for stream in ("text", "visual")
    }
    parts |= {f"text {number}": layer.output for number, layer in enumerate(model.text_layers)}
    hooks = [
        part.register_forward_hook(lambda *_, name=name: ran.append(name)) for name, part in parts.items()
    ]
    features(boxes(5), [["a dog"]])
    for hook in hooks:
        hook.remove()
    # The boxes' side of the last block, and the layer behind it, stay out.
    assert ran == ["text 0", "0.visual", "0.text", "text 1", "text 2", "1.text"]


def test_texts_that_are_cut_off_are_those_of_their_own_image(images: list[Path]) -> None:
    """Behind an image whose texts are whole, and before one."""
    long = "dog " * 600
    texts = [["a dog", "a cat"], [long, "a dog"], ["a cat", long, "dog"], ["a dog"]]
    network = seams.network("blip2", "tiny")
    found = [each["truncated"] for each in seams.encode(network, images[:4], texts)]
    assert [[bool(count) for count in each] for each in found] == [
        [len(text) > 100 for text in each] for each in texts
    ]


def test_the_side_that_has_fewer_is_named() -> None:
    with pytest.raises(ValueError, match="there are 1 lists of captions but more images"):
        features(boxes(3, 4), [["a dog"]])
    with pytest.raises(ValueError, match="there are 1 images but more lists of captions"):
        features(boxes(3), [["a dog"], ["a cat"]])


@pytest.mark.parametrize("name", ["umic", "vilbertscore"])
def test_another_vocabulary_is_refused(name: str, tmp_path: Path) -> None:
    """Two words in each other's place, which no canary need have."""
    tiny = Path(capeval_core.__file__).parent / "weights" / "tiny" / name
    folder = Path(shutil.copytree(tiny, tmp_path / name))
    assert capeval_core.load(name, weights=folder, regions="tiny", device="cpu")
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    words = content["model"]["vocab"]
    last, other = sorted(words, key=words.__getitem__)[-2:]
    words[last], words[other] = words[other], words[last]
    file.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(ValueError, match=r"tokenizer\.json"):
        capeval_core.load(name, weights=folder, regions="tiny", device="cpu")
