"""`CaptionMetrics` in real Trainers, with a captioner that really learns."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import distributed
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import EvalPrediction, PreTrainedTokenizerFast, VisionEncoderDecoderModel

import capeval_core
from capeval_core.cache import FeatureCache
from capeval_core.integrations import CaptionMetrics
from capeval_core.testing import count_forwards
from tests.integrations.captioner import Scenes, make_trainer
from tests.integrations.trainer_ranks import run_trainer_ranks

COUNT = 11
CAPTIONS = [
    "a red circle",
    "two blue squares",
    "a circle",
    "squares",
    "",
    "a a a",
    "red",
    "blue",
    "two",
    "a",
    "red",
]


@pytest.fixture(scope="module")
def scenes() -> Scenes:
    return Scenes(COUNT)


def evaluation(scenes: Scenes, captions: list[str], labels: list[str] | None = None) -> EvalPrediction:
    return EvalPrediction(ids(scenes, captions), ids(scenes, scenes.captions if labels is None else labels))


def ids(scenes: Scenes, texts: list[str]) -> Any:
    """Token ids as a Trainer gives them: filled up with padding, then with -100."""
    tokenizer = scenes.tokenizer
    rows = [[tokenizer.bos_token_id, *tokenizer(text).input_ids, tokenizer.eos_token_id] for text in texts]
    rows = [row + [tokenizer.pad_token_id] * (3 - len(row)) for row in rows]
    return np.array([row + [-100] * (24 - len(row)) for row in rows])


def known(scenes: Scenes, captions: list[str]) -> list[str]:
    """The captions as they come back from the tokenizer, which knows the words of the scenes only."""
    texts = scenes.tokenizer.batch_decode(scenes.tokenizer(captions).input_ids, skip_special_tokens=True)
    return [text.strip() for text in texts]


# Learning


@pytest.mark.parametrize("batchwise", [False, pytest.param(True, marks=pytest.mark.system)])
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
        num_train_epochs=40,
        eval_steps=20,
        save_strategy="steps",
        save_steps=20,
    )
    with count_forwards() as forwards:
        trainer.train()
    history = [entry["eval_pac_s"] for entry in trainer.state.log_history if "eval_pac_s" in entry]
    assert len(history) == 4
    assert history[-1] > history[0] + 0.5
    assert trainer.state.best_metric == max(history)
    references = {text for texts in scenes.references for text in texts}
    # Images and references once in the whole training.
    assert COUNT < forwards.items <= COUNT + len(references) + len(history) * COUNT + 1

    # The checkpoint that the Trainer calls best has this score. (It is opened here, since transformers 5.23
    # does not restore this ViT's weights: it saves them under other names than those it looks for.)
    best = VisionEncoderDecoderModel.from_pretrained(trainer.state.best_model_checkpoint)
    value = make_trainer(scenes, tmp_path, metrics, model=best).evaluate()["eval_pac_s"]
    assert value == pytest.approx(max(history), abs=1e-6)


# What is kept


def test_images_and_references_are_read_and_encoded_once(
    scenes: Scenes, make: Callable[..., CaptionMetrics], tmp_path: Path
) -> None:
    paths = [tmp_path / f"{i}.png" for i in range(COUNT)]
    for path, image in zip(paths, scenes.images, strict=True):
        image.save(path)
    metrics = make(images=paths)
    with count_forwards() as first:
        metrics(evaluation(scenes, CAPTIONS))
    references = len({text for texts in scenes.references for text in texts})
    assert first.items == COUNT + references + len(set(known(scenes, CAPTIONS)))
    for path in paths:
        path.unlink()
    sizes = []
    for turn in range(1, 5):  # as many captions each time, none of them known from before
        captions = [f"{'red ' * turn}{text}" for text in scenes.captions]
        with count_forwards() as later:
            metrics(evaluation(scenes, captions))
        assert later.items == len(set(known(scenes, captions)))
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


TEXTS = ["a red circle", "two blue squares", "a small green star", "hearts", "nothing"]
REFERENCES = [["a circle", "a red disc"], ["blue squares"], ["a star"], ["one"], ["a", "b", "c"]]


class Numbers:
    """A processor whose token ids are the numbers of captions."""

    def __init__(self, texts: list[str] = TEXTS) -> None:
        self.texts = texts

    def batch_decode(self, ids: Any, skip_special_tokens: bool) -> list[str]:
        return [self.texts[row[0]] for row in ids]


def numbered(order: list[int], labels: list[int] | None = None) -> Any:
    label_ids = np.arange(5) if labels is None else np.array(labels, int)
    return SimpleNamespace(predictions=np.array(order, int)[:, None], label_ids=label_ids[:, None])


def expected_of(order: list[int], references: list[list[str]] = REFERENCES) -> capeval_core.Result:
    return capeval_core.load("rougel").score([TEXTS[i] for i in order], references=references)


def test_evaluations_are_found_by_number_and_by_metric() -> None:
    metrics = CaptionMetrics(Numbers(), references=REFERENCES, metrics=["rougel", "ciderd"])
    assert (metrics.captions, len(metrics.results), metrics.sets) == ([], 0, {"": 5})
    with pytest.raises(KeyError, match="rougel"):
        metrics.results["rougel"]
    orders = [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [0, 1, 2, 4, 4]]
    for order in orders:
        expected = expected_of(order)
        assert metrics(numbered(order))["rouge_l"] == pytest.approx(expected.mean, abs=1e-12)
        assert metrics.results["rougel"].scores == expected.scores
    for evaluation, order in zip(metrics.results, orders, strict=True):
        assert (evaluation.captions, evaluation.set, evaluation.step) == ([TEXTS[i] for i in order], "", None)
        assert list(evaluation) == ["rougel", "ciderd"]
    assert metrics.captions == metrics.results[-1].captions == metrics.results[1:][1].captions
    for first, second in ((2, 1), (-1, -2), (0, 1)):
        difference = expected_of(orders[first]).mean - expected_of(orders[second]).mean
        comparisons = metrics.compare(first, second)
        assert comparisons["rougel"].difference == pytest.approx(difference, abs=1e-12)
        assert list(comparisons) == ["rougel", "ciderd"]
    assert metrics.compare(2, 1, level=0.5)["rougel"].interval.level == 0.5
    for numbers, named in (((3, 0), "first=3"), ((-3, 3), "second=3"), ((0, -4), "second=-4")):
        with pytest.raises(IndexError, match=f"{named}: there are 3 evaluations"):
            metrics.compare(*numbers)


def test_the_prefix_of_a_trainer_tells_the_set_with_the_longest_name() -> None:
    sets = {"coco": REFERENCES, "val_coco": REFERENCES[::-1]}
    metrics = CaptionMetrics(Numbers(), references=sets, metrics="rougel")
    assert metrics.sets == {"coco": 5, "val_coco": 5}
    order = [0, 1, 2, 3, 4]
    prefixes = {"eval_coco": "coco", "eval_val_coco": "val_coco", "coco": "coco", "test_val_coco": "val_coco"}
    for step, (prefix, name) in enumerate(prefixes.items()):
        with metrics.evaluating(prefix, step):
            number = metrics(numbered(order))["rouge_l"]
        assert (metrics.results[-1].set, metrics.results[-1].step) == (name, step)
        assert number == pytest.approx(expected_of(order, sets[name]).mean, abs=1e-12)
        # Each is compared with the one before of its own set.
        assert metrics.results.before(step) is (metrics.results[step - 2] if step > 1 else None)
    with pytest.raises(ValueError, match=r"second=1 is of set val_coco, first=0 of coco"):
        metrics.compare(0, 1)
    with metrics.evaluating("eval_val", 1), pytest.raises(ValueError, match="eval_val") as refused:
        metrics(numbered(order))
    assert 'metric_key_prefix="eval_val_coco"' in str(refused.value) and len(metrics.results) == 4
    with pytest.raises(ValueError, match=r"2 evaluation sets \(coco, val_coco\)"):
        metrics(numbered(order))


def test_batches_are_one_evaluation_and_rows_are_counted() -> None:
    metrics = CaptionMetrics(Numbers(), references=REFERENCES, metrics="rougel")
    order = [4, 1, 0, 3, 2]
    for _ in range(2):
        parts = [numbered(order[:2], order[:2]), numbered(order[2:4], order[2:4])]
        assert [metrics(part, compute_result=False) for part in parts] == [{}, {}]
        found = metrics(numbered(order[4:], order[4:]), compute_result=True)
        assert found["rouge_l"] == pytest.approx(expected_of(order).mean, abs=1e-12)
    assert len(metrics.results) == 2
    # Of an evaluation that was interrupted nothing is left behind the next one's beginning.
    metrics(numbered(order[:2], order[:2]), compute_result=False)
    with metrics.evaluating("eval", 1):
        assert metrics(numbered(order, order), compute_result=True) == found
    for count in (0, 4, 6):
        rows = [*order, 0][:count]
        with pytest.raises(ValueError, match=f"{count} captions, but there are 5 references"):
            metrics(numbered(rows, rows))


def test_what_is_no_array_of_token_ids_is_refused_by_its_shape_and_type() -> None:
    metrics = CaptionMetrics(Numbers(), references=REFERENCES, metrics="rougel")
    ids = np.arange(5)[:, None]
    expected = expected_of([0, 1, 2, 3, 4]).mean
    for predictions in (ids, ids.astype(np.uint8), (ids, "more outputs"), [ids[:3], ids[3:]]):
        found = metrics(SimpleNamespace(predictions=predictions, label_ids=ids))
        assert found["rouge_l"] == pytest.approx(expected, abs=1e-12)
    for wrong, message in (
        (np.zeros((5, 2, 3), np.float32), r"shape \(5, 2, 3\) and dtype float32"),
        (ids.astype(float), r"shape \(5, 1\) and dtype float64"),
        (np.arange(5), r"shape \(5,\) and dtype int64"),
    ):
        with pytest.raises(ValueError, match=message):
            metrics(SimpleNamespace(predictions=wrong))
    for no_array, named in (("a dog", "predictions is a str"), (None, "predictions=None")):
        with pytest.raises(TypeError, match=named):
            metrics(SimpleNamespace(predictions=no_array))
    with pytest.raises(TypeError, match=r"expected an EvalPrediction.*dict"):
        metrics({})


def test_labels_of_other_images_are_refused_if_they_are_more_than_half() -> None:
    given: dict[str, Any] = {"references": [[text] for text in TEXTS], "metrics": "rougel"}
    order = [0, 1, 2, 3, 4]
    CaptionMetrics(Numbers(), **given)(numbered(order, [1, 0, 2, 3, 4]))
    with pytest.raises(ValueError, match=r"3 of 5 labels .* row 1 \('a small green star'\)"):
        CaptionMetrics(Numbers(), **given)(numbered(order, [0, 2, 3, 1, 4]))


def test_empty_captions_are_warned_of_if_they_are_more_than_half() -> None:
    texts = ["", " ", "", "a dog"]
    metrics = CaptionMetrics(Numbers(texts), references=[["a dog"]] * 4, metrics="rougel")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert metrics(numbered([0, 1, 3, 3], [3] * 4))["rouge_l"] == 0.5
        assert metrics(numbered([0, 1, 2, 3], [3] * 4))["rouge_l"] == 0.25
    (message,) = [str(one.message) for one in caught if "are empty" in str(one.message)]
    assert message.startswith("3 of 4 captions are empty")


@pytest.fixture
def clips(videos: Path) -> list[Path]:
    return sorted(videos.iterdir())


def test_a_trainer_encodes_frames_once_and_scores_texts_beside_them(weights: str, clips: list[Path]) -> None:
    chosen = {"videos": clips, "references": REFERENCES, "weights": weights, "device": "cpu"}
    metrics = CaptionMetrics(Numbers(), metrics=["pacs", "refpacs", "cider"], **chosen)
    assert repr(metrics).startswith(
        "CaptionMetrics(videos: 5; references: given; VideoPacS(capeval:pacs|media:"
    )
    for order in ([0, 1, 2, 3, 4], [4, 3, 2, 1, 0]):
        captions = [TEXTS[i] for i in order]
        with count_forwards() as forwards:
            found = metrics(numbered(order))
        # 3 + 4 + 5 + 6 + 7 frames, and texts
        assert forwards.items == (25 + len({*TEXTS, *chain(*REFERENCES)}) if order[0] == 0 else 0)
        for name in ("pacs", "refpacs"):
            metric = capeval_core.load(name, media="video", weights=weights, device="cpu")  # type: ignore[call-overload]
            expected = metric.score(
                captions, videos=clips, **({"references": REFERENCES} if name == "refpacs" else {})
            )
            assert found[expected.key] == pytest.approx(expected.mean, abs=1e-6)
        assert found["cider"] == pytest.approx(
            capeval_core.load("cider").score(captions, references=REFERENCES).mean
        )
    # The document frequencies are those of the references of the first evaluation, whatever was captioned.
    table = capeval_core.load("cider").prepare(REFERENCES)
    assert metrics.metrics[2].options.statistics.fingerprint == table.fingerprint  # type: ignore[attr-defined]


def test_another_evaluation_set_is_warned_of_each_time(weights: str, images: list[Path]) -> None:
    metrics = CaptionMetrics(Numbers(), images=images[:5], metrics=["pacs"], weights=weights, device="cpu")
    metrics(numbered([0, 1, 2, 3, 4]))
    predictions = np.arange(5)[:, None]
    another = SimpleNamespace(predictions=predictions, label_ids=predictions[::-1])
    for _ in range(2):
        with pytest.warns(UserWarning, match="another evaluation set"):
            metrics(another)


# Processes


def test_rows_beyond_the_images_are_padding_only_if_all_repeat(weights: str, images: list[Path]) -> None:
    """Processes fill their last batch with the first rows again; other rows are of another evaluation."""
    metrics = CaptionMetrics(Numbers(), images=images[:5], metrics=["pacs"], weights=weights, device="cpu")
    distributed.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        for order in ([0, 1, 2, 3, 4, 0, 2], [0, 1, 2, 3, 4, 1, 1], [0, 1, 2, 3]):
            evaluation = SimpleNamespace(
                predictions=np.array(order)[:, None], label_ids=np.array(order)[:, None]
            )
            with pytest.raises(ValueError, match=rf"{len(order)} captions.* 5 images"):
                metrics(evaluation)
            evaluation.label_ids = None  # by captions, where there are no labels
            with pytest.raises(ValueError, match=rf"{len(order)} captions.* 5 images"):
                metrics(evaluation)
    finally:
        distributed.destroy_process_group()


@pytest.mark.system
def test_two_processes_give_what_one_gives(
    scenes: Scenes, make: Callable[..., CaptionMetrics], tmp_path: Path
) -> None:
    metrics = make(weights="tiny")
    trainer = make_trainer(scenes, tmp_path / "one", metrics)
    metrics.watch(trainer)
    expected = trainer.evaluate()
    first_log = trainer.state.log_history[-1]
    trainer.evaluate()
    second_log = trainer.state.log_history[-1]
    result = run_trainer_ranks(2, COUNT, tmp_path)
    modes = ("batchwise=False", "batchwise=True")
    for rank in result:
        assert "error" not in rank, rank["error"]
        for mode in modes:
            for key, value in rank[mode]["values"].items():
                assert value == pytest.approx(expected[key], abs=1e-6)
            assert rank[mode]["captions"] == metrics.captions
            # The second mode's evaluation is compared with the first one's, which has the same captions.
            log = first_log if mode == modes[0] else second_log
            assert rank[mode]["log"] == pytest.approx(log, abs=1e-6)
            assert rank[mode]["scores"] == pytest.approx(metrics.results["refpacs"].scores, abs=1e-6)
    assert result[0]["batchwise=False"]["values"] == result[1]["batchwise=False"]["values"]
    items = {mode: sum(rank[mode]["items"] for rank in result) for mode in modes}
    assert items["batchwise=False"] > COUNT and items["batchwise=True"] == 0
    assert result[0]["tables"] > 0 and result[1]["tables"] == 0  # nothing is logged twice
    assert result[0]["vanished"].startswith("RuntimeError: process 1 of 2 could not score its captions")
    assert "there is no file" in result[0]["vanished"]
    assert result[1]["vanished"].startswith(f"InputError: images[{COUNT - 1}]")
