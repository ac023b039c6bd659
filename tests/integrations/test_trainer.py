"""`CaptionMetrics` in real Trainers, with a captioner that really learns."""

from __future__ import annotations

import copy
import pickle
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import evaluate
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    EvalPrediction,
    PreTrainedTokenizerFast,
    VisionEncoderDecoderModel,
    ViTImageProcessor,
)

import capeval_core
from capeval_core.cache import FeatureCache
from capeval_core.integrations import CaptionMetrics
from capeval_core.integrations.generated import Row, rows_of_evaluation
from tests.integrations.captioner import Scenes, make_trainer
from tests.integrations.trainer_ranks import run_trainer_ranks
from tests.support.counting import counted, watched
from tests.test_import import loaded

ROOT = Path(__file__).parents[2]
COUNT = 10
CAPTIONS = ["a red circle", "two blue squares", "a circle", "squares", "", "a a a", "red", "blue", "two", "a"]


@pytest.fixture(scope="module")
def scenes() -> Scenes:
    return Scenes(COUNT)


@pytest.fixture
def make(scenes: Scenes, weights: str) -> Callable[..., CaptionMetrics]:
    def make(**keywords: Any) -> CaptionMetrics:
        chosen = {"images": scenes.images, "references": scenes.references, "weights": weights, **keywords}
        return CaptionMetrics(scenes.tokenizer, **chosen)

    return make


def evaluation(scenes: Scenes, captions: list[str], labels: list[str] | None = None) -> EvalPrediction:
    return EvalPrediction(ids(scenes, captions), ids(scenes, scenes.captions if labels is None else labels))


def ids(scenes: Scenes, texts: list[str]) -> Any:
    """Token ids as a Trainer gives them: filled up with padding, then with -100."""
    tokenizer = scenes.tokenizer
    rows = [[tokenizer.bos_token_id, *tokenizer(text).input_ids, tokenizer.eos_token_id] for text in texts]
    rows = [row + [tokenizer.pad_token_id] * (3 - len(row)) for row in rows]
    return np.array([row + [-100] * (24 - len(row)) for row in rows])


def batches(scenes: Scenes, captions: list[str], size: int, order: range) -> list[EvalPrediction]:
    """An evaluation as `batch_eval_metrics=True` gives it, in batches of tensors."""
    rows = list(order)
    parts = [rows[start : start + size] for start in range(0, len(rows), size)]
    return [
        EvalPrediction(
            torch.tensor(ids(scenes, [captions[row] for row in part])),
            torch.tensor(ids(scenes, [scenes.captions[row] for row in part])),
        )
        for part in parts
    ]


def known(scenes: Scenes, captions: list[str]) -> list[str]:
    """The captions as they come back from the tokenizer, which knows the words of the scenes only."""
    texts = scenes.tokenizer.batch_decode(scenes.tokenizer(captions).input_ids, skip_special_tokens=True)
    return [text.strip() for text in texts]


# Learning


@pytest.mark.parametrize("batchwise", [False, True])
def test_a_captioner_learns_until_the_score_rises(
    batchwise: bool, scenes: Scenes, make: Callable[..., CaptionMetrics], tmp_path: Path
) -> None:
    metrics = make()
    trainer = make_trainer(
        scenes,
        tmp_path,
        metrics,
        batch_eval_metrics=batchwise,
        metric_for_best_model="pac_s",
        greater_is_better=True,
        load_best_model_at_end=True,
        save_strategy="steps",
        save_steps=40,
    )
    with counted(metrics.metrics[0].encoder) as counts:  # type: ignore[attr-defined]
        trainer.train()
    history = [entry["eval_pac_s"] for entry in trainer.state.log_history if "eval_pac_s" in entry]
    assert len(history) == 4
    assert history[-1] > history[0] + 0.5
    assert trainer.state.best_metric == max(history)
    assert counts.images == COUNT  # once in the whole training
    references = {text for texts in scenes.references for text in texts}
    assert counts.texts <= len(references) + len(history) * COUNT + 1

    # The checkpoint that the Trainer calls best has this score. (It is opened here, since transformers 5.23
    # does not restore this ViT's weights: it saves them under other names than those it looks for.)
    best = VisionEncoderDecoderModel.from_pretrained(trainer.state.best_model_checkpoint)
    value = make_trainer(scenes, tmp_path, metrics, model=best).evaluate()["eval_pac_s"]
    assert value == pytest.approx(max(history), abs=1e-6)


def test_the_values_are_those_of_the_metrics(
    scenes: Scenes, make: Callable[..., CaptionMetrics], weights: str
) -> None:
    metrics = make()
    values = metrics(evaluation(scenes, CAPTIONS))
    captions = known(scenes, CAPTIONS)
    assert metrics.captions == captions
    assert "" in captions
    for name in ("pacs", "refpacs"):
        metric = capeval_core.load(name, weights=weights, empty="score", cache=FeatureCache())
        given = {"references": scenes.references} if metric.needs_references else {}
        expected = metric.score(captions, scenes.images, **given)
        assert values[expected.key] == pytest.approx(expected.mean, abs=1e-6)
        assert type(values[expected.key]) is float
        assert metrics.results[name].scores == pytest.approx(expected.scores, abs=1e-6)
        assert metrics.results[name].signature == expected.signature
        assert metrics.results[name].counts == expected.counts
    assert list(values) == ["pac_s", "refpac_s"]


def test_a_log_tells_what_it_is(make: Callable[..., CaptionMetrics], weights: str) -> None:
    metrics = make(metrics=["pacs", {"name": "refclips", "w": 1.5}], device="cpu")
    repr(metrics)  # what is imported late is imported now
    with watched() as opened, counted(metrics.metrics[0].encoder) as counts:  # type: ignore[attr-defined]
        message = repr(metrics)
    pac_s, refclip_s = (f"{metric.key} on cpu: {metric.signature()}" for metric in metrics.metrics)
    assert message == f"CaptionMetrics(images: {COUNT}; references: given; {pac_s}; {refclip_s})"
    assert message.count(f"|weights:{Path(weights).name}@") == 2 and "|w:1.5|" in message
    assert opened == [] and counts.texts == counts.images == 0
    assert "; references: labels; " in repr(make(references=None))
    assert "references" not in repr(make(references=None, metrics=["pacs"]))


def test_labels_are_the_references_where_none_are_given(
    scenes: Scenes, make: Callable[..., CaptionMetrics]
) -> None:
    from_labels = make(references=None)(evaluation(scenes, CAPTIONS))
    assert from_labels == make(references=scenes.captions)(evaluation(scenes, CAPTIONS))
    assert from_labels != make()(evaluation(scenes, CAPTIONS))
    unreadable = EvalPrediction(ids(scenes, CAPTIONS), np.zeros((COUNT, 2)))
    with pytest.raises(ValueError, match=re.escape("pass CaptionMetrics(..., references=[[...], ...])")):
        make(references=None)(unreadable)
    assert make(metrics="pacs", references=None)(unreadable)["pac_s"] > 0


def test_a_captioner_that_says_nothing_is_warned_of(
    scenes: Scenes, make: Callable[..., CaptionMetrics]
) -> None:
    metrics = make()
    with pytest.warns(UserWarning, match="10 of 10 captions are empty: .* untrained") as caught:
        metrics(evaluation(scenes, [""] * COUNT))
    assert len(caught) == 1 and caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        metrics(evaluation(scenes, [""] * 5 + CAPTIONS[5:]))


def test_a_module_of_evaluate_works_in_ones_own_compute_metrics(
    scenes: Scenes, make: Callable[..., CaptionMetrics], weights: str, tmp_path: Path
) -> None:
    module = evaluate.load(str(ROOT / "metrics" / "pacs"), weights=weights, empty="score")
    tokenizer = scenes.tokenizer

    def compute_metrics(prediction: EvalPrediction) -> Any:
        tokens = np.where(prediction.predictions < 0, tokenizer.pad_token_id, prediction.predictions)
        captions = tokenizer.batch_decode(tokens, skip_special_tokens=True)
        return module.compute(predictions=captions, images=scenes.images)

    trainer = make_trainer(scenes, tmp_path, compute_metrics)
    value = trainer.evaluate()["eval_pac_s"]
    trainer.compute_metrics = make()
    assert trainer.evaluate()["eval_pac_s"] == pytest.approx(value, abs=1e-6)


def test_importing_costs_nothing() -> None:
    assert loaded("import capeval_core.integrations as i; dir(i)") == set()
    assert "transformers" not in loaded("from capeval_core.integrations import CaptionMetrics, reward")


# What is kept


def test_images_and_references_are_read_and_encoded_once(
    scenes: Scenes, make: Callable[..., CaptionMetrics], tmp_path: Path
) -> None:
    paths = [tmp_path / f"{i}.png" for i in range(COUNT)]
    for path, image in zip(paths, scenes.images, strict=True):
        image.save(path)
    metrics = make(images=paths)
    encoder: Any = metrics.metrics[0].encoder  # type: ignore[attr-defined]
    with counted(encoder) as first:
        metrics(evaluation(scenes, CAPTIONS))
    references = len({text for texts in scenes.references for text in texts})
    assert first.images == COUNT
    assert first.texts == references + len(set(known(scenes, CAPTIONS)))
    for path in paths:
        path.unlink()
    sizes = []
    for turn in range(1, 5):  # as many captions each time, none of them known from before
        captions = [f"{'red ' * turn}{text}" for text in scenes.captions]
        with counted(encoder) as later:
            metrics(evaluation(scenes, captions))
        assert later.images == 0
        assert later.texts == len(set(known(scenes, captions)))
        sizes.append(metrics.cache.nbytes)
    assert len(set(sizes)) == 1  # captions of earlier evaluations are forgotten


def test_what_fills_up_token_ids_is_no_token(scenes: Scenes, weights: str) -> None:
    """Id 0 is a word of many tokenizers, so -100 must not become it, in captions or in labels."""
    words = ["circle", "a", "red", "blue", "star", "<unk>"]
    vocabulary = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    vocabulary.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=vocabulary, unk_token="<unk>")
    metrics = CaptionMetrics(tokenizer, images=scenes.images[:2], metrics="refpacs", weights=weights)
    predictions = np.array([[1, 2, 0, -100, -100], [1, 3, -100, -100, -100]])
    labels = np.array([[1, 2, 0, -100], [1, 4, -100, -100]])
    values = metrics(EvalPrediction(predictions, labels))
    assert metrics.captions == ["a red circle", "a blue"]
    pairs = ["a red circle", "a blue"], scenes.images[:2], [["a red circle"], ["a star"]]
    expected = capeval_core.load("refpacs", weights=weights, cache=FeatureCache()).score(*pairs)
    assert values["refpac_s"] == pytest.approx(expected.mean, abs=1e-6)


def test_images_may_be_the_column_of_a_dataset(scenes: Scenes, make: Callable[..., CaptionMetrics]) -> None:
    table = {"image": scenes.images, "captions": scenes.references}
    dataset = datasets.Dataset.from_dict(table).cast_column("image", datasets.Image())
    metrics = make(images=dataset["image"], references=dataset["captions"])
    assert metrics(evaluation(scenes, CAPTIONS)) == pytest.approx(
        make()(evaluation(scenes, CAPTIONS)), abs=1e-6
    )


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda metrics: pickle.loads(pickle.dumps(metrics))])
def test_a_copy_keeps_images_of_its_own(
    copied: Callable[[CaptionMetrics], CaptionMetrics], scenes: Scenes, make: Callable[..., CaptionMetrics]
) -> None:
    metrics = make()
    values = metrics(evaluation(scenes, CAPTIONS))
    copy_of = copied(metrics)
    assert copy_of.cache is not metrics.cache
    with counted(copy_of.metrics[0].encoder) as counts:  # type: ignore[attr-defined]
        for _ in range(2):
            assert copy_of(evaluation(scenes, CAPTIONS)) == pytest.approx(values, abs=1e-6)
    assert counts.images == COUNT  # its own cache starts empty, and all its metrics share it


def test_a_metric_keeps_a_cache_of_its_own(scenes: Scenes, weights: str) -> None:
    cache = FeatureCache()
    opened = capeval_core.load("pacs", weights=weights, cache=cache)
    metrics = CaptionMetrics(scenes.tokenizer, images=scenes.images, metrics=opened)
    metrics(evaluation(scenes, CAPTIONS))
    assert cache.nbytes > 0
    assert opened.options.empty == "error"


# Which metrics


def test_metrics_are_named_described_or_opened(scenes: Scenes, weights: str) -> None:
    opened = capeval_core.load("clips", weights=weights)
    chosen = [{"name": "pacs", "w": 1.0}, "refpacs", opened]
    metrics = CaptionMetrics(
        scenes.tokenizer,
        images=scenes.images,
        references=scenes.references,
        metrics=chosen,
        weights=weights,
    )
    values = metrics(evaluation(scenes, CAPTIONS))
    assert list(values) == ["pac_s", "refpac_s", "clip_s"]
    assert values["clip_s"] == pytest.approx(2.5 * values["pac_s"], abs=1e-6)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"metrics": []}, "metrics is empty: name at least one"),
        ({"metrics": ["pasc"]}, "unknown metric 'pasc': did you mean 'pacs'?"),
        ({"metrics": [3]}, "metrics[0] is the number 3: expected a name"),
        ({"metrics": [{"w": 2.0}]}, 'metrics[0] has no "name"'),
        ({"metrics": ["pacs", {"name": "pacs", "w": 3.0}]}, "metrics[1] gives pac_s as metrics[0] does"),
        ({"wieghts": "tiny"}, "no option 'wieghts'"),
        ({"images": None}, "images is missing"),
        ({"images": []}, "images is empty"),
        ({"images": {"a": [], "b": []}}, "images is a dict"),
        ({"images": ["nowhere.png"] * COUNT}, "images[0], images[1], images[2] and 7 more: there"),
        ({"references": [["a"]]}, "len(images)=10 but len(references)=1"),
    ],
)
def test_wrong_input_is_refused_before_training(
    keywords: dict[str, Any], message: str, make: Callable[..., CaptionMetrics]
) -> None:
    with pytest.raises((ValueError, TypeError), match=re.escape(message)):
        make(**keywords)


def test_options_of_an_open_metric_are_not_taken(scenes: Scenes, weights: str) -> None:
    opened = capeval_core.load("pacs", weights=weights)
    with pytest.raises(TypeError, match="device: the metrics are open already"):
        CaptionMetrics(scenes.tokenizer, images=scenes.images, metrics=[opened], device="cpu")
    for processor in ("gpt2", ViTImageProcessor()):
        with pytest.raises(TypeError, match=r"processor is .*, which decodes no captions: pass a tokenizer"):
            CaptionMetrics(processor, images=scenes.images, metrics=[opened])


def test_needless_references_are_warned_of(make: Callable[..., CaptionMetrics]) -> None:
    with pytest.warns(UserWarning, match="pacs: no references are needed"):
        make(metrics="pacs")


# What a Trainer hands over


def test_logits_are_explained(scenes: Scenes, make: Callable[..., CaptionMetrics], tmp_path: Path) -> None:
    trainer = make_trainer(scenes, tmp_path, make(), predict_with_generate=False)
    with pytest.raises(ValueError, match=re.escape("predict_with_generate=True")) as caught:
        trainer.evaluate()
    # What the message tells to do, does.
    chosen = re.search(r"lambda logits, labels: (\S+) to the Trainer", str(caught.value))
    assert chosen is not None
    trainer.preprocess_logits_for_metrics = eval(f"lambda logits, labels: {chosen[1]}")
    assert trainer.evaluate()["eval_pac_s"] >= 0


@pytest.mark.parametrize(
    ("predictions", "message"),
    [
        (None, "there are no predictions to score"),
        (np.zeros((COUNT, 5, 7), dtype=np.float32), "lambda logits, labels: logits.argmax(-1)"),
        (
            (torch.zeros(COUNT, 5, 7, dtype=torch.bfloat16), None),
            "lambda logits, labels: logits[0].argmax(-1)",
        ),
        (np.zeros(COUNT, dtype=int), "shape (10,) and dtype int64: expected token ids"),
        ("a red circle", "predictions is a str"),
    ],
)
def test_what_are_no_token_ids_is_refused(
    predictions: Any, message: str, scenes: Scenes, make: Callable[..., CaptionMetrics]
) -> None:
    with pytest.raises((ValueError, TypeError), match=re.escape(message)):
        make()(EvalPrediction(predictions, ids(scenes, scenes.captions)))


def test_what_is_no_evaluation_is_refused(make: Callable[..., CaptionMetrics]) -> None:
    with pytest.raises(TypeError, match="expected the EvalPrediction that a Trainer hands"):
        make()([1, 2])


def test_batches_that_are_not_joined_are_welcome(scenes: Scenes, make: Callable[..., CaptionMetrics]) -> None:
    whole = make()(evaluation(scenes, CAPTIONS))
    parts = batches(scenes, CAPTIONS, 4, range(COUNT))
    listed = EvalPrediction(
        [part.predictions.numpy() for part in parts], [part.label_ids.numpy() for part in parts]
    )
    assert make()(listed) == whole


@pytest.mark.parametrize("count", [COUNT - 1, COUNT + 1, 2 * COUNT])
def test_another_number_of_captions_is_refused(
    count: int, scenes: Scenes, make: Callable[..., CaptionMetrics]
) -> None:
    other = Scenes(2 * COUNT)
    metrics = CaptionMetrics(other.tokenizer, images=scenes.images, metrics="pacs", weights="tiny")
    message = f"the evaluation gave {count} captions, but there are 10 images"
    with pytest.raises(ValueError, match=message):
        metrics(evaluation(other, other.captions[:count], other.captions[:count]))
    *others, last = batches(other, other.captions, 5, range(count))
    for batch in others:
        assert metrics(batch, compute_result=False) == {}
    with pytest.raises(ValueError, match=message):
        metrics(last, compute_result=True)


@pytest.mark.parametrize(
    ("surplus", "processes", "accepted"),
    [
        (["one", "two"], 2, True),  # what fills up the last batch of several processes: the first rows again
        (["one"], 2, True),
        (["two", "one"], 2, False),
        (["one", "four"], 2, False),
        (["four"], 2, False),
        (["one", "two"], 1, False),
        (["four"], 1, False),
        ([], 1, True),
        ([], 2, True),
    ],
)
def test_only_first_rows_of_several_processes_may_come_again(
    surplus: list[str], processes: int, accepted: bool
) -> None:
    own = [Row("a caption", label) for label in ("one", "two", "three")]
    rows = own + [Row("a caption", label) for label in surplus]
    for parts in ([rows], [rows[:2], rows[2:]]):
        if len(parts[-1]) >= len(own) and len(parts) > 1:
            continue  # no Trainer gives batches of such sizes
        if accepted:
            assert rows_of_evaluation(parts, len(own), processes, "images") == own
            continue
        with pytest.raises(ValueError, match=f"gave {len(rows)} captions, but there are 3 images"):
            rows_of_evaluation(parts, len(own), processes, "images")


def test_captions_that_come_again_in_one_process_are_refused(
    scenes: Scenes, make: Callable[..., CaptionMetrics]
) -> None:
    again = [*range(COUNT), 0, 1]
    captions, labels = ([texts[row] for row in again] for texts in (CAPTIONS, scenes.captions))
    with pytest.raises(ValueError, match="gave 12 captions, but there are 10 images"):
        make()(evaluation(scenes, captions, labels))


def test_other_labels_tell_of_another_set(scenes: Scenes, make: Callable[..., CaptionMetrics]) -> None:
    metrics = make(metrics="refpacs", references=None)
    metrics(evaluation(scenes, CAPTIONS))
    with pytest.warns(UserWarning, match="the labels differ from those of the first evaluation"):
        metrics(evaluation(scenes, CAPTIONS, labels=scenes.captions[::-1]))


def test_images_in_another_order_are_refused(scenes: Scenes, make: Callable[..., CaptionMetrics]) -> None:
    with pytest.raises(ValueError, match="must be in the order of the evaluation set"):
        make()(evaluation(scenes, CAPTIONS, labels=scenes.captions[::-1]))


# Batch by batch


@pytest.mark.parametrize("size", [1, 3, 4, COUNT])
def test_batches_give_what_the_whole_gives(
    size: int, scenes: Scenes, make: Callable[..., CaptionMetrics]
) -> None:
    whole = make()(evaluation(scenes, CAPTIONS))
    metrics = make()
    for _ in range(2):
        *others, last = batches(scenes, CAPTIONS, size, range(COUNT))
        for batch in others:
            assert metrics(batch, compute_result=False) == {}
        assert metrics(last, compute_result=True) == pytest.approx(whole, abs=1e-6)


@pytest.mark.parametrize(("before", "after"), [(4, 4), (4, 3), (1, 4), (7, 2)])
def test_an_interrupted_evaluation_leaves_nothing(
    before: int, after: int, scenes: Scenes, make: Callable[..., CaptionMetrics]
) -> None:
    metrics = make()
    whole = metrics(evaluation(scenes, CAPTIONS))
    for interrupted_after in (1, 2):
        for batch in batches(scenes, ["red"] * COUNT, before, range(COUNT))[:interrupted_after]:
            metrics(batch, compute_result=False)
    *others, last = batches(scenes, CAPTIONS, after, range(COUNT))
    for batch in others:
        metrics(batch, compute_result=False)
    assert metrics(last, compute_result=True) == pytest.approx(whole, abs=1e-6)
    assert metrics.captions == known(scenes, CAPTIONS)


def test_an_interrupted_evaluation_leaves_nothing_to_one_that_comes_at_once(
    scenes: Scenes, make: Callable[..., CaptionMetrics]
) -> None:
    metrics = make()
    assert metrics(EvalPrediction(ids(scenes, ["red"] * 4), None), compute_result=False) == {}
    metrics(EvalPrediction(ids(scenes, CAPTIONS), None))
    assert metrics.captions == known(scenes, CAPTIONS)


# Processes


@pytest.mark.system
def test_two_processes_give_what_one_gives(
    scenes: Scenes, make: Callable[..., CaptionMetrics], tmp_path: Path
) -> None:
    metrics = make(weights="tiny")
    expected = make_trainer(scenes, tmp_path / "one", metrics).evaluate()
    result = run_trainer_ranks(2, COUNT, tmp_path)
    for rank in result:
        assert "error" not in rank, rank["error"]
        for mode in ("batchwise=False", "batchwise=True"):
            for key, value in rank[mode]["values"].items():
                assert value == pytest.approx(expected[key], abs=1e-6)
            assert rank[mode]["captions"] == metrics.captions
            assert rank[mode]["scores"] == pytest.approx(metrics.results["refpacs"].scores, abs=1e-6)
    assert result[0]["batchwise=False"]["values"] == result[1]["batchwise=False"]["values"]
    assert sum(rank["batchwise=False"]["images"] for rank in result) == COUNT
    assert sum(rank["batchwise=True"]["images"] for rank in result) == 0
    assert result[0]["vanished"].startswith("RuntimeError: process 1 of 2 could not score its captions")
    assert "there is no file" in result[0]["vanished"]
    assert result[1]["vanished"].startswith("InputError: images[9]")
