"""The metrics as users of Hugging Face `evaluate` meet them: through `evaluate.load`, nothing replaced."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import evaluate
import numpy as np
import pytest
from evaluate.loading import get_imports
from PIL import Image

import capeval_core
from capeval_core.registry import media_of, metric_class

ROOT = Path(__file__).parents[2]
NAMES = capeval_core.list_metrics()
CAPTIONS = ["a red circle", "two blue squares", "a small green star", "a red circle", "hearts", "nothing"]
REFERENCES = [
    ["a circle", "a red disc"],
    "blue squares",
    ["a star"],
    ["one"],
    ["a", "b", "c"],
    "nothing at all",
]
Load = Callable[..., Any]


@pytest.fixture
def load(weights: str, tmp_path: Path) -> Load:
    """`evaluate.load` of a metric by name, with weights that are at hand and rows in a folder of the test."""

    def load(name: str, **keywords: Any) -> Any:
        own = {"cache_dir": str(tmp_path / "rows"), **weights_of(name, weights)}
        return evaluate.load(str(ROOT / "metrics" / name), **{**own, **keywords})

    return load


def weights_of(name: str, weights: str) -> dict[str, str]:
    """The option, for a metric that has weights."""
    return {} if metric_class(name).default_weights is None else {"weights": weights}


# What it computes


@pytest.mark.parametrize("keep_in_memory", [False, True])
def test_rows_may_come_in_any_portions(keep_in_memory: bool, load: Load, images: list[Path]) -> None:
    module = load("refpacs", keep_in_memory=keep_in_memory)
    whole = module.compute(predictions=CAPTIONS, images=images, references=REFERENCES, per_caption=True)
    module.add(prediction=CAPTIONS[0], image=images[0], reference=REFERENCES[0])
    module.add(predictions=CAPTIONS[1], images=images[1], references=REFERENCES[1])
    module.add_batch(predictions=[], images=[], references=[])
    module.add_batch(predictions=CAPTIONS[2:4], images=images[2:4], references=REFERENCES[2:4])
    assert len(module) == 4
    parted = module.compute(
        predictions=CAPTIONS[4:], images=images[4:], references=REFERENCES[4:], per_caption=True
    )
    assert parted["signature"] == whole["signature"]
    for part, values in whole["per_caption"].items():
        if part != "errors":
            assert np.allclose(parted["per_caption"][part], values, rtol=0, atol=1e-6), part
    assert len(module) == 0


@pytest.mark.filterwarnings("ignore")
def test_images_of_pools_are_counted_over_all_portions(
    load: Load, images: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "cut.png").write_bytes(images[1].read_bytes()[:60])
    module, pools = load("eco", on_error="nan", members="tiny"), [CAPTIONS[:3]] * 2
    for _ in ("an epoch", "the next one"):
        module.add_batch(predictions=pools, images=[images[0], tmp_path / "cut.png"])
        module.add_batch(predictions=pools, images=[images[2], tmp_path / "cut.png"])
        module.add_batch(predictions=pools[:1], images=[tmp_path / "cut.png"])
        module.add_batch(predictions=pools, images=[images[3], tmp_path / "cut.png"])
        errors = module.compute(per_caption=True)["per_caption"]["errors"]
        places = [error and error.partition(":")[0] for error in errors]
        assert places == [None, "images[1]", None, "images[3]", "images[4]", None, "images[6]"]


def test_each_caption_has_its_scores_parts_and_error(load: Load) -> None:
    module = load("rougel")
    module.add_batch(predictions=["a dog", "x"], references=[["a dog", "a cat"], "a dog"])
    found = module.compute(predictions=["a dog runs"], references=["a dog"], per_caption=True)
    captions, references = ["a dog", "x", "a dog runs"], [["a dog", "a cat"], ["a dog"], ["a dog"]]
    expected = capeval_core.load("rougel").score(captions, references=references)
    assert list(found) == ["rouge_l", "per_caption", "signature", "counts"]
    assert found["rouge_l"] == pytest.approx(expected.mean, abs=1e-12)
    assert found["per_caption"] == {"rouge_l": expected.scores, **expected.parts, "errors": [None] * 3}
    assert (found["signature"], found["counts"]) == (expected.signature, vars(expected.counts))
    with pytest.raises(ValueError, match="predictions is empty"):
        module.compute()
    row = {"predictions": ["a dog"], "references": ["a dog"]}
    assert module.compute(**row) == {"rouge_l": 1.0}
    for method in ("add_batch", "compute"):
        with pytest.raises(TypeError, match=rf"rougel.{method} has no argument 'refrences'") as unknown:
            getattr(module, method)(predictions=["a dog"], refrences=["a dog"])
        assert "'references'" in str(unknown.value)
    with pytest.raises(ValueError, match=r"predictions\[1\]"):
        module.add_batch(predictions=["a dog", ""], references=["a dog"] * 2)
    with pytest.raises(ValueError, match="predictions"):
        module.add_batch(predictions=[], references=["a dog"])
    assert len(module) == 0
    with pytest.warns(UserWarning, match="images"):
        module.add_batch(**row, images=["none.png"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert module.compute(**row, images=["none.png"]) == {"rouge_l": 1.0}


# What is kept


def test_images_are_not_kept(load: Load, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    images = [Image.fromarray(rng.integers(0, 256, (300, 400, 3), dtype=np.uint8)) for _ in range(3)]
    alive = [weakref.ref(image) for image in images]
    module = load("pacs")
    module.add_batch(predictions=CAPTIONS[:3], images=images)
    images.clear()
    gc.collect()
    assert [image() for image in alive] == [None] * 3
    module._finalize()
    files = [path for path in (tmp_path / "rows").rglob("*") if path.suffix == ".arrow"]
    assert len(files) == 1
    assert files[0].stat().st_size < 10_000


# The folders


@pytest.mark.parametrize("name", NAMES)
def test_each_metric_has_a_complete_folder(name: str) -> None:
    folder = ROOT / "metrics" / name
    extras = "page,video" if "video" in media_of(name) else "page"
    # The newest torch that ZeroGPU's documentation lists.
    assert (folder / "requirements.txt").read_text().split() == [f"capeval[{extras}]", "torch==2.8.0"]
    # Without the package evaluate tells what to install: by the name it has there, not by its module's.
    assert get_imports(str(folder / f"{name}.py")) == [("library", "capeval_core", "capeval", None)]
