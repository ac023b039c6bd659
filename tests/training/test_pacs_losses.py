"""The losses of PAC-S against loops in float64, and what surrounds them: order, draws, temperature."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from capeval_core.errors import InputError
from capeval_core.training.captioned import CaptionedImages
from capeval_core.training.pacs import (
    GENERATED_CAPTIONS,
    GENERATED_IMAGES,
    REAL,
    PacsTraining,
    info_nce,
    positive_augmented_loss,
)
from capeval_core.training.pacs_objective import PacsObjective, PairBatch
from capeval_core.training.pairs import ABSENT, Lists, PairLists, PairOrder, drawn_pairs, held_out
from capeval_core.training.projections import SCALE, Projections, Temperature


def rows(count: int, seed: int, width: int = 6) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(count, width)))


def cosine(a: Tensor, b: Tensor) -> float:
    return sum(x * y for x, y in zip(a.tolist(), b.tolist(), strict=True)) / (
        math.hypot(*a.tolist()) * math.hypot(*b.tolist())
    )


def looped(images: Tensor, texts: Tensor, temperature: float) -> float:
    """Eq. 2 word by word."""
    count, loss = len(images), 0.0
    for i in range(count):
        own = math.exp(cosine(images[i], texts[i]) / temperature)
        of_image = sum(math.exp(cosine(images[i], texts[j]) / temperature) for j in range(count))
        of_text = sum(math.exp(cosine(images[j], texts[i]) / temperature) for j in range(count))
        loss += -math.log(own / of_image) / count - math.log(own / of_text) / count
    return loss


@pytest.mark.parametrize("temperature", [1.0, 0.07, 0.01])
@pytest.mark.parametrize("count", [1, 2, 7])
def test_info_nce_is_that_of_a_float64_loop(count: int, temperature: float) -> None:
    images, texts = rows(count, 1), 3 * rows(count, 2)
    expected = looped(images, texts, temperature)
    assert float(info_nce(images, texts, 1 / temperature)) == pytest.approx(expected, rel=1e-10, abs=1e-12)
    single = float(info_nce(images.float(), texts.float(), 1 / temperature))
    assert single == pytest.approx(expected, rel=1e-5, abs=1e-5)


class Identity:
    """A model that takes features as they are."""

    def __init__(self, temperature: float) -> None:
        self.scale = torch.tensor(1 / temperature)

    def images(self, features: Tensor) -> Tensor:
        return features

    texts = images


def objective(model: Any, **settings: Any) -> PacsObjective:
    training = PacsTraining(start="tiny", **settings)

    class One:
        num_processes = 1

    nothing: Any = None
    return PacsObjective(training, model, {}, nothing, nothing, One())


def test_the_loss_weighs_three_terms_and_leaves_out_pairs_without_a_positive() -> None:
    v, t, made_v, made_t = (rows(5, seed) for seed in range(4))
    image = torch.tensor([True, True, False, True, True])
    caption = torch.tensor([True, False, False, True, True])
    batch = PairBatch(v, t, made_v, image, made_t, caption)
    loss, read = objective(Identity(0.5)).losses("contrast", batch)
    terms = read()
    expected = {
        REAL: looped(v, t, 0.5),
        GENERATED_IMAGES: looped(made_v[image], t[image], 0.5),
        GENERATED_CAPTIONS: looped(v[caption], made_t[caption], 0.5),
    }
    assert {name: terms[name][0] for name in expected} == pytest.approx(expected, rel=1e-6)
    total = expected[REAL] + 0.05 * expected[GENERATED_IMAGES] + 0.1 * expected[GENERATED_CAPTIONS]
    assert float(loss) == terms["all"][0] == pytest.approx(total, rel=1e-6)


def test_a_batch_without_any_positive_has_the_real_term_alone() -> None:
    v, t, none = rows(3, 0), rows(3, 1), torch.zeros(3, dtype=torch.bool)
    loss, read = objective(Identity(1.0)).losses("contrast", PairBatch(v, t, v, none, t, none))
    assert read().keys() == {REAL, "all"} and float(loss) == pytest.approx(looped(v, t, 1.0))


def test_a_weight_of_0_switches_a_term_off() -> None:
    assert PacsTraining(start="tiny", lambda_v=0.0).weights == {REAL: 1.0, GENERATED_CAPTIONS: 0.1}
    assert PacsTraining(start="tiny", lambda_t=0.0).weights == {REAL: 1.0, GENERATED_IMAGES: 0.05}
    assert float(positive_augmented_loss({REAL: torch.tensor(3.0)}, {REAL: 1.0})) == 3.0


def test_the_temperature_starts_with_that_of_the_weights_and_stays_above_a_hundredth() -> None:
    model = Temperature({SCALE: torch.tensor([math.log(20)])}, None)
    assert float(model.scale.detach()) == pytest.approx(20)
    with torch.no_grad():
        model.logit_scale.fill_(9.0)
    model.bound()
    assert float(model.scale.detach()) == pytest.approx(100)
    fixed = Temperature({SCALE: torch.tensor(9.0)}, 0.005)
    fixed.bound()
    assert float(fixed.scale) == pytest.approx(200) and not fixed.logit_scale.requires_grad


def lists_of(count: int, captions: int = 2) -> PairLists:
    """Images with captions; odd images have a generated caption, even captions two generated images."""
    of = Lists.of
    return PairLists(
        of([[captions * i + k for k in range(captions)] for i in range(count)]),
        of([[100 + i] if i % 2 else [] for i in range(count)]),
        of([[200 + 2 * c, 201 + 2 * c] if c % 2 == 0 else [] for c in range(captions * count)]),
        [],
        0,
    )


def test_an_epoch_has_each_image_once_with_one_of_its_captions_and_positives() -> None:
    order = PairOrder(lists_of(10), np.arange(10), size=3, processes=1, seed=0)
    assert order.batches == 3
    epochs = [[order.chosen(3 * epoch + batch) for batch in range(3)] for epoch in range(200)]
    drawn: Counter[tuple[int, int]] = Counter()
    images_of_captions: Counter[int] = Counter()
    for epoch in epochs:
        images = [image for pairs in epoch for image in pairs.images.tolist()]
        assert len(set(images)) == 9
        for pairs in epoch:
            for image, caption, made_image, made_caption in zip(*(p.tolist() for p in pairs), strict=True):
                assert caption // 2 == image
                assert made_caption == (100 + image if image % 2 else ABSENT)
                assert made_image == ABSENT if caption % 2 else made_image // 2 == 100 + caption
                drawn[image, caption] += 1
                images_of_captions[made_image] += 1
    assert len(drawn) == 20 and min(drawn.values()) > 50  # both captions come, equally often
    assert all(
        60 < images_of_captions[200 + 2 * c + k] / 0.9 * 2 < 140 for c in range(0, 20, 2) for k in (0, 1)
    )


def test_parts_of_two_processes_are_the_batch_of_one() -> None:
    lists = lists_of(12)
    alone = PairOrder(lists, np.arange(12), size=4, processes=1, seed=3)
    parts = PairOrder(lists, np.arange(12), size=4, processes=2, seed=3)
    for batch in range(7):
        both = [parts.chosen(2 * batch + process) for process in range(2)]
        for whole, *halves in zip(alone.chosen(batch), *both, strict=True):
            np.testing.assert_array_equal(whole, np.concatenate(halves))


def test_another_seed_is_another_order() -> None:
    lists = lists_of(12)
    first, again, other = (
        PairOrder(lists, np.arange(12), 12, 1, seed).chosen(0).images for seed in (3, 3, 4)
    )
    assert first.tolist() == again.tolist() != other.tolist()


def test_batches_that_cannot_be_made_are_refused() -> None:
    with pytest.raises(InputError, match="batch_size=13 is more than the 12 images: pass a smaller one"):
        PairOrder(lists_of(12), np.arange(12), size=13, processes=1, seed=0)
    with pytest.raises(InputError, match="batch_size=9 is no multiple of the 2 processes"):
        PairOrder(lists_of(12), np.arange(12), size=9, processes=2, seed=0)


def test_images_are_trained_on_or_held_out() -> None:
    trained, out = held_out(100, 0.1, seed=0)
    assert len(out) == 10 and sorted([*trained, *out]) == list(range(100))
    assert held_out(100, 0.0, seed=0)[1].size == 0
    assert [*held_out(100, 0.1, seed=1)[1]] != [*out]


class Folder:
    """Positives of two images, two of them of none."""

    captions: ClassVar = {"b": ["kitten", "tom"], "z": ["nobody"]}
    sources: ClassVar = [("a", "dog"), ("b", "cat"), ("a", "dog"), ("a", "cat")]


def test_positives_belong_to_the_caption_and_image_that_they_were_generated_from() -> None:
    captioned = CaptionedImages(
        ["a", "b"], ["dog", "cat", "hound", "dog"], ["a", "b", "a", "a"], lambda: iter(())
    )
    folder: Any = Folder()
    with pytest.warns(UserWarning, match="2 positives belong to no image or caption here"):
        lists = PairLists.of(captioned, folder)
    assert lists.texts == ["dog", "cat", "hound", "dog", "kitten", "tom"]
    draws = [drawn_pairs(lists, np.array([0, 1]), np.random.default_rng(seed)) for seed in range(60)]
    found = {quad for pairs in draws for quad in zip(*(p.tolist() for p in pairs), strict=True)}
    of_a = {(0, caption, image, ABSENT) for caption in (0, 3) for image in (2, 4)}
    assert found == of_a | {(0, 2, ABSENT, ABSENT), (1, 1, 3, 4), (1, 1, 3, 5)}


def test_projections_have_the_names_of_a_clips_tensors() -> None:
    from capeval_core.encoders.clip import ClipEncoder
    from capeval_core.weights.folder import open_weights

    folder = open_weights("tiny", metric="pacs", tiny="pacs")
    tensors = folder.tensors()
    model = Projections(ClipEncoder.read_config(folder), tensors, None)
    assert model.state_dict().keys() == {"text_projection", "visual.proj", SCALE}
    tuned = model.tuned({"visual.proj": torch.zeros_like(tensors["visual.proj"])}, tensors)
    assert tuned["visual.proj"].count_nonzero() == 0
    assert all(tuned[name] is tensors[name] for name in tensors if name != "visual.proj")
