"""`CaptionMetrics.watch`: what a Trainer's log and trackers get of each evaluation."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.integrations.integration_utils import TensorBoardCallback

from capeval_core.errors import InputError
from capeval_core.integrations import CaptionMetrics
from tests.integrations.captioner import Scenes, make_trainer

COUNT = 12
SHORT = {"num_train_epochs": 6, "eval_steps": 4}
"""Three evaluations in twelve steps."""


@pytest.fixture(scope="module")
def scenes() -> Scenes:
    return Scenes(COUNT)


class Part(torch.utils.data.Dataset[dict[str, Any]]):
    """Some rows of the scenes: an evaluation set of its own."""

    def __init__(self, scenes: Scenes, rows: range) -> None:
        self.scenes = scenes
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> dict[str, Any]:
        return self.scenes[self.rows[row]]


class Unlabelled(Part):
    """Such rows without what a Trainer would compare with."""

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {name: value for name, value in super().__getitem__(row).items() if name != "labels"}


HALVES = {"coco": range(0, COUNT, 2), "nocaps": range(1, COUNT, 2)}
"""Two evaluation sets of one size: nothing but the Trainer's prefix tells them apart."""


def halved(values: list[Any]) -> dict[str, list[Any]]:
    return {name: [values[row] for row in rows] for name, rows in HALVES.items()}


def lines(trainer: Any, key: str) -> list[dict[str, float]]:
    return [line for line in trainer.state.log_history if key in line]


# Numbers


def test_the_log_says_whether_an_evaluation_is_better_than_the_one_before(
    scenes: Scenes, make: Callable[..., CaptionMetrics], tmp_path: Path
) -> None:
    metrics = make(training_captions=scenes.captions)
    trainer = make_trainer(scenes, tmp_path, metrics, num_train_epochs=60, eval_steps=40)
    metrics.watch(trainer)
    trainer.train()
    assert [evaluation.step for evaluation in metrics.results] == [40, 80, 120]
    logged = lines(trainer, "eval_pac_s_low")
    means = [line["eval_pac_s"] for line in lines(trainer, "eval_pac_s")]
    assert means == [evaluation["pacs"].mean for evaluation in metrics.results]
    assert len(logged) == 3 and "eval_pac_s_difference" not in logged[0]
    for place in (1, 2):
        change = metrics.compare(place, place - 1)["pacs"]
        assert change.difference == pytest.approx(means[place] - means[place - 1])
        assert logged[place]["eval_pac_s_difference"] == change.difference
        assert logged[place]["eval_pac_s_difference_low"] == change.interval.low
        assert logged[place]["eval_pac_s_difference_high"] == change.interval.high
        assert logged[place]["eval_pac_s_difference_p"] == change.p_value
    interval = metrics.results[2]["refpacs"].interval()
    assert (logged[2]["eval_refpac_s_low"], logged[2]["eval_refpac_s_high"]) == (interval.low, interval.high)
    # The Trainer's own line stays as it is, for `metric_for_best_model` and searches that sum its numbers.
    own = lines(trainer, "eval_loss")[-1]
    assert {name for name in own if "pac_s" in name} == {"eval_pac_s", "eval_refpac_s"}
    assert logged[2]["eval_captions_distinct"] == len(set(metrics.captions)) / COUNT
    words = [len(caption.replace(",", " ").split()) for caption in metrics.captions]
    assert logged[2]["eval_caption_words"] == sum(words) / COUNT
    seen = sum(caption in scenes.captions for caption in metrics.captions)
    assert logged[2]["eval_captions_from_training"] == seen / COUNT > 0
    assert logged[2]["eval_captions_truncated"] == 0
    assert metrics.results["pacs"] is metrics.results[-1]["pacs"]
    assert metrics.captions == metrics.results[2].captions != metrics.results[0].captions
    with pytest.raises(IndexError, match="second=3"):
        metrics.compare(0, 3)


# Several evaluation sets


def test_one_caption_metrics_scores_several_evaluation_sets(
    scenes: Scenes, make: Callable[..., CaptionMetrics], tmp_path: Path
) -> None:
    sets = {name: Part(scenes, rows) for name, rows in HALVES.items()}
    both = {"images": halved(scenes.images), "references": halved(scenes.references)}
    metrics = make(**both, metrics=["refpacs", "cider"])
    trainer = make_trainer(scenes, tmp_path, metrics, sets=sets, **SHORT)
    metrics.watch(trainer)
    trainer.train()
    assert [evaluation.set for evaluation in metrics.results] == ["coco", "nocaps"] * 3
    for name in sets:
        alone = make(
            images=both["images"][name], references=both["references"][name], metrics=["refpacs", "cider"]
        )
        evaluator = make_trainer(scenes, tmp_path, alone, model=trainer.model, sets=sets[name])
        expected = evaluator.evaluate()
        for key in ("refpac_s", "cider"):
            value = lines(trainer, f"eval_{name}_{key}")[-1][f"eval_{name}_{key}"]
            assert value == pytest.approx(expected[f"eval_{key}"], abs=1e-6)
        assert f"eval_{name}_distinct_1" in lines(trainer, f"eval_{name}_refpac_s_difference")[-1]
    with pytest.raises(ValueError, match="second=1"):
        metrics.compare(0, 1)
    # A set without labels is not scored, so that there is nothing more to log of it.
    count = len(trainer.state.log_history)
    trainer.evaluate(Unlabelled(scenes, HALVES["coco"]), metric_key_prefix="eval_coco")
    (line,) = trainer.state.log_history[count:]
    assert not any("refpac" in name or "distinct" in name for name in line) and len(metrics.results) == 6
    # One set by its own name, in whatever order; a prefix that names none is refused.
    trainer.predict(sets["nocaps"], metric_key_prefix="test_nocaps")
    assert metrics.results[-1].set == "nocaps"
    with pytest.raises(ValueError, match="metric_key_prefix"):
        trainer.predict(sets["nocaps"])


def test_sets_that_do_not_fit_are_refused_before_training(
    scenes: Scenes, make: Callable[..., CaptionMetrics], tmp_path: Path
) -> None:
    both = {"images": halved(scenes.images), "references": halved(scenes.references)}
    # The argument without the set is to be mended, and the one that has it says what is meant.
    for without, other in (("references", "images"), ("images", "references")):
        with pytest.raises(InputError) as refused:
            make(**{**both, without: {"coco": both[without]["coco"]}})
        (problem,) = refused.value.problems
        assert problem.where == without and "'nocaps'" in problem.text and other in problem.fix
        with pytest.raises(TypeError) as refused_type:
            make(**{**both, without: getattr(scenes, without)})
        assert re.match(rf"{without} is a list.* {other} is a dict", str(refused_type.value))
    with pytest.raises(ValueError, match="images is an empty dict"):
        make(images={}, references={})
    with pytest.raises(ValueError, match=r'images\["nocaps"\]\[2\]'):
        make(
            **{
                **both,
                "images": {**both["images"], "nocaps": [*scenes.images[:2], b"no image", *scenes.images[:3]]},
            }
        )
    sets = {name: Part(scenes, rows) for name, rows in HALVES.items()}
    metrics = make(**both)
    unwatched = make_trainer(scenes, tmp_path, metrics, sets=sets)
    with pytest.raises(ValueError, match="watch"):
        unwatched.evaluate()
    for evaluated, message in (
        (sets | {"more": sets["coco"]}, "more"),
        (sets | {"coco": scenes}, "coco.*12 rows"),
    ):
        trainer = make_trainer(scenes, tmp_path, metrics, sets=evaluated)
        with pytest.raises(ValueError, match=message):
            metrics.watch(trainer)
    with pytest.raises(ValueError, match="compute_metrics"):
        make().watch(make_trainer(scenes, tmp_path, metrics))
    logits = make_trainer(scenes, tmp_path, metrics, predict_with_generate=False)
    with pytest.raises(ValueError, match="predict_with_generate"):
        metrics.watch(logits)


# Trackers


def tensorboard_of(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (log,) = {path.parent for path in folder.rglob("events.out.tfevents.*")}
    events = EventAccumulator(str(log), size_guidance={"images": 0, "tensors": 0, "scalars": 0})
    events.Reload()
    return events


def test_tensorboard_gets_numbers_tables_and_pictures(
    scenes: Scenes, make: Callable[..., CaptionMetrics], tmp_path: Path
) -> None:
    pytest.importorskip("tensorboard", reason="needs tensorboard")
    metrics = make()
    trainer = make_trainer(scenes, tmp_path, metrics, report_to=["tensorboard"], **SHORT)
    metrics.watch(trainer)
    trainer.train()
    events = tensorboard_of(tmp_path)
    tags = events.Tags()
    assert {"eval/pac_s", "eval/pac_s_low", "eval/pac_s_difference_p", "eval/distinct_2"} <= set(
        tags["scalars"]
    )
    assert [event.step for event in events.Images("eval/pac_s_examples")] == [4, 8, 12]
    (first, *_, last) = events.Tensors("eval/refpac_s_examples/text_summary")
    table = last.tensor_proto.string_val[0].decode()
    assert "| changed |" in table and "| changed |" not in first.tensor_proto.string_val[0].decode()
    worst = metrics.results["refpacs"].worst(1)[0]
    row = next(line for line in table.splitlines() if line.startswith("| worst |"))
    assert metrics.captions[worst["index"]] in row and f"{worst['refpac_s']:.4f}".rstrip("0") in row
    assert scenes.references[worst["index"]][0] in row


@pytest.mark.filterwarnings("ignore")
def test_where_lower_is_better_the_worst_example_has_the_highest_score(
    scenes: Scenes, tmp_path: Path
) -> None:
    pytest.importorskip("tensorboard", reason="needs tensorboard")
    objects = [["circle"], ["star"], ["heart", "square"]] * (COUNT // 3)
    metrics = CaptionMetrics(scenes.tokenizer, references=objects, metrics="chair", synonyms="tiny")
    trainer = make_trainer(scenes, tmp_path, metrics, report_to=["tensorboard"], **SHORT)
    metrics.watch(trainer)
    trainer.train()
    event = tensorboard_of(tmp_path).Tensors("eval/chair_i_examples/text_summary")[-1]
    rows: dict[str, list[float]] = {"worst": [], "best": []}
    for line in event.tensor_proto.string_val[0].decode().splitlines():
        kind, *cells = [cell.strip() for cell in line.strip("| ").split("|")]
        if kind in rows:
            rows[kind].append(float(cells[2]))
    assert rows["worst"] == sorted(rows["worst"], reverse=True) and rows["best"] == sorted(rows["best"])
    assert rows["worst"][0] > rows["best"][0]


def test_a_broken_tracker_costs_a_warning_and_not_the_training(
    scenes: Scenes, make: Callable[..., CaptionMetrics], tmp_path: Path
) -> None:
    pytest.importorskip("tensorboard", reason="needs tensorboard")

    class Full:
        """A writer that takes numbers, and neither texts nor pictures."""

        def add_scalar(self, *_: Any) -> None: ...
        def flush(self) -> None: ...
        def close(self) -> None: ...

        def add_text(self, tag: str, *_: Any) -> None:
            if "examples" in tag:
                raise OSError(28, "No space left on device")

    metrics = make()
    trainer = make_trainer(scenes, tmp_path, metrics, **SHORT)
    trainer.add_callback(TensorBoardCallback(Full()))  # type: ignore[no-untyped-call]
    metrics.watch(trainer)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.train()
    assert trainer.state.global_step == 12 and len(lines(trainer, "eval_pac_s_low")) == 3
    assert sum("No space left" in str(warning.message) for warning in caught) == 1


PROGRAM = """
import sys
from pathlib import Path
from capeval_core.integrations import CaptionMetrics
from tests.integrations.captioner import Scenes, make_trainer

scenes = Scenes(12)
metrics = CaptionMetrics(
    scenes.tokenizer, images=scenes.images, references=scenes.references, metrics="pacs", weights="tiny"
)
trackers = {"report_to": ["trackio", "wandb"], "project": "captions"}
trainer = make_trainer(scenes, Path("out"), metrics, num_train_epochs=4, eval_steps=4, **trackers)
metrics.watch(trainer)
trainer.train()
"""


@pytest.mark.system
def test_trackio_and_wandb_get_tables_with_pictures(tmp_path: Path) -> None:
    """In a process of its own: both keep one run for a whole process, in folders read at import."""
    pytest.importorskip("trackio", reason="needs trackio")
    pytest.importorskip("wandb", reason="needs wandb")
    environment = {
        "TRACKIO_DIR": str(tmp_path / "trackio"),
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(tmp_path),
    }
    environment |= {"PYTHONPATH": str(Path(__file__).parents[2])}
    subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, env=os.environ | environment, check=True, timeout=600
    )
    tables = sorted(tmp_path.rglob("*pac_s_examples*.table.json"), key=lambda path: path.stat().st_mtime)
    assert len(tables) == 2
    table = json.loads(tables[-1].read_text())
    kinds = {row[0] for row in table["data"]}
    # Pictures are in the table's artifact; its preview only says that they are images.
    assert {"worst", "best"} <= kinds and table["data"][0][1] == "Image"
    with sqlite3.connect(tmp_path / "trackio" / "captions.db") as database:
        logged = [json.loads(row[0]) for row in database.execute("SELECT metrics FROM metrics")]
    rows = [entry["eval/pac_s_examples"]["_value"] for entry in logged if "eval/pac_s_examples" in entry]
    assert len(rows) == 2 and rows[0][0]["image"]["_type"] == "trackio.image"
    assert sum("eval/pac_s_low" in entry for entry in logged) == 2
