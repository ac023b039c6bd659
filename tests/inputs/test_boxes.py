"""Features of boxes: positions relative to the image, the first of them, and what is refused."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from capeval_core.errors import InputWarning
from capeval_core.inputs.boxes import ROUNDED, BoxFeatures, InputBoxes
from capeval_core.inputs.visual import ImageError

PIXELS = np.array([[10, 5, 30, 15], [0, 0, 40, 20], [4, 2, 4, 8]], dtype="float32")
RELATIVE = np.array(
    [[0.25, 0.25, 0.75, 0.75, 0.5, 0.5], [0, 0, 1, 1, 1, 1], [0.1, 0.1, 0.1, 0.4, 0, 0.3]], dtype="float32"
)
FOUND: dict[str, Any] = {
    "boxes": PIXELS,
    "features": np.arange(12.0, dtype="float32").reshape(3, 4),
    "size": (40, 20),
    "scores": [0.9, 0.5, 0.2],
    "relative_boxes": RELATIVE,
    "selection": "bua10_100",
}
"""Of one image; relative boxes are those of the pixels."""


def loaded(**change: Any) -> BoxFeatures:
    return InputBoxes.of({**FOUND, **change}).load()


def refusal(**change: Any) -> str:
    with pytest.raises(ImageError) as caught:
        InputBoxes.of({**FOUND, **change}, "images[7]").check()
    return str(caught.value)


def test_relative_boxes_follow_from_pixels_and_size() -> None:
    found = loaded(relative_boxes=None)
    assert found.relative_boxes is None and found.relative().dtype == np.float32
    np.testing.assert_array_equal(found.relative(), RELATIVE)
    with pytest.raises(ValueError, match="the size of the image is missing"):
        loaded(relative_boxes=None, size=None).relative()


def test_stored_relative_boxes_are_kept_as_they_are() -> None:
    stored = RELATIVE.astype("float16")  # 0.1 and 0.4 are rounded
    found = loaded(relative_boxes=stored)
    np.testing.assert_array_equal(found.relative(), stored.astype("float32"))
    assert not np.array_equal(found.relative(), RELATIVE)


def test_files_of_the_release_have_other_names_and_no_pixels() -> None:
    released = {"norm_bb": RELATIVE, "features": FOUND["features"], "conf": FOUND["scores"], "soft_labels": 1}
    found = InputBoxes.of(released).load()
    assert found.size is None and found.scores is not None
    np.testing.assert_array_equal(found.boxes, RELATIVE[:, :4])
    np.testing.assert_array_equal(found.relative(), RELATIVE)
    sized = InputBoxes.of({**released, "size": (40, 20)}).load()
    np.testing.assert_allclose(sized.boxes, PIXELS, atol=1e-5)
    del released["features"]
    with pytest.raises(ImageError, match="there is no 'features' among the keys 'norm_bb'"):
        InputBoxes.of(released).check()


def test_the_key_covers_every_field() -> None:
    fields: list[dict[str, Any]] = [
        {},
        {"relative_boxes": None},
        {"relative_boxes": RELATIVE.astype("float16")},
        {"scores": None},
        {"scores": None, "relative_boxes": None},
        {"size": None},
        {"size": (41, 20)},
        {"boxes": PIXELS + 0.5, "size": (41, 21)},
        {"selection": "lxmert36"},
        {"selection": None},
    ]
    assert len({loaded(**change).key for change in fields}) == len(fields)
    assert loaded().key == loaded().key


def test_the_first_boxes_with_all_that_belongs_to_them() -> None:
    found = loaded().first(2)
    np.testing.assert_array_equal(found.boxes, PIXELS[:2])
    np.testing.assert_array_equal(found.features, FOUND["features"][:2])
    np.testing.assert_array_equal(found.relative(), RELATIVE[:2])
    assert found.scores is not None and found.scores.tolist() == [np.float32(0.9), 0.5]
    assert found.selection == "bua10_100"
    assert (found.size, len(loaded(scores=None, relative_boxes=None).first(2))) == ((40, 20), 2)
    assert len(loaded().first(3)) == len(loaded().first(100)) == 3
    with pytest.raises(ValueError, match="n=0: expected at least one box"):
        loaded().first(0)


def test_unsorted_scores_are_kept_and_warned_of() -> None:
    with pytest.warns(InputWarning, match="not sorted by score") as caught:
        found = loaded(scores=[0.2, 0.9, 0.5]).first(2)
    assert found.scores is not None and found.scores.tolist() == [np.float32(0.2), np.float32(0.9)]
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded(scores=[0.5, 0.9, 0.5]).first(2)  # the last one is no better than any that is kept
        loaded(scores=[0.2, 0.9, 0.5]).first(3)
        loaded().first(2)


def test_the_warning_of_many_images_is_one() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for scores in ([0.2, 0.9, 0.5], [0.3, 0.4, 0.5]):
            loaded(scores=scores).first(1)
    assert len(caught) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"boxes": [[-1.5, 0, 9, 9]] * 3}, '["boxes"][0] is [-1.5, 0.0, 9.0, 9.0], outside of an image'),
        ({"boxes": [[0, -2, 9, 9]] * 3, "size": None}, '["boxes"][0] is [0.0, -2.0, 9.0, 9.0], outside'),
        ({"boxes": [[0, 0, 42, 9]] * 3}, '["boxes"][0] is [0.0, 0.0, 42.0, 9.0], outside of an image'),
        ({"boxes": [[0, 0, np.inf, 9]] * 3}, '["boxes"]: the array has NaN or infinity, first at [0, 2]'),
        ({"scores": [0.5, 1.5, 0]}, '["scores"][1] is 1.5: expected probabilities, from 0 to 1'),
        ({"scores": [0.5, 0.1, -0.01]}, '["scores"][2] is -0.01: expected probabilities'),
        ({"scores": None, "conf": [0.5, 0.1, 7]}, '["conf"][2] is 7: expected probabilities'),
        ({"scores": [0.5, np.nan, 0.1]}, '["scores"]: the array has NaN or infinity, first at [1]'),
        ({"score": [0.5, 0.1, 0.1]}, ": there is 'score', which is not known: did you mean 'scores'?"),
        ({"selection": 5}, '["selection"] is the number 5: expected a short text'),
        ({"selection": ["bua10_100"] * 3}, '["selection"] is a list of length 3: expected a short text'),
        ({"selection": "x" * 101}, '["selection"] is a str of length 101: expected a short text'),
        ({"boxes": RELATIVE[:, :4], "relative_boxes": None}, '["boxes"]: no box reaches beyond the first'),
        ({"size": b"zz"}, '["size"] is b\'zz\': expected width and height of the image, whole numbers'),
        ({"size": "99"}, '["size"] is \'99\': expected width'),
        ({"size": (40.5, 20)}, '["size"] is (40.5, 20): expected width'),
        ({"size": (40, 20, 3)}, '["size"] is (40, 20, 3): expected width'),
        ({"boxes": np.zeros((0, 4))}, ": there are 0 boxes but 3 rows of features"),
        ({"relative_boxes": RELATIVE[:, :5]}, '["relative_boxes"]: the array has shape (3, 5)'),
        ({"relative_boxes": RELATIVE[:2]}, ": there are 3 boxes but 2 relative boxes: give every"),
        ({"relative_boxes": RELATIVE * np.nan}, '["relative_boxes"]: the array has NaN or infinity'),
        ({"relative_boxes": RELATIVE * 40}, '["relative_boxes"][0] is [10.0, 10.0, 30.0, 30.0'),
        ({"relative_boxes": RELATIVE - 0.02}, '["relative_boxes"][1] is [-0.0'),
        (
            {"relative_boxes": RELATIVE[:, [0, 1, 2, 3, 2, 3]]},
            '["relative_boxes"][0] is [0.25, 0.25, 0.75, 0.75, 0.75, 0.75]: expected x0, y0, x1, y1, width',
        ),
        (
            {"relative_boxes": RELATIVE[[1, 1, 2]]},
            "[0.0, 0.0, 1.0, 1.0, 1.0, 1.0], but the box is [10.0, 5.0, 30.0, 15.0] of 40x20: give boxes in",
        ),
    ],
)  # fmt: skip
def test_what_is_refused(change: dict[str, Any], message: str) -> None:
    assert refusal(**change).startswith("images[7]")
    assert message in refusal(**change)


def test_what_is_just_within_the_bounds() -> None:
    loaded(boxes=[[-1, -1, 41, 21]] * 3, relative_boxes=None)
    loaded(scores=[1, 0, 1 + 1e-7])
    loaded(size=(40.0, 20.0), boxes=[[0, 0, 0, 0]] * 3, relative_boxes=None)
    loaded(boxes=[[0, 0, 1, 1]] * 3, size=(2, 2), relative_boxes=None)
    edge = RELATIVE + np.float32([0, 0, ROUNDED / 2, ROUNDED / 2, 0, 0])
    loaded(relative_boxes=edge)


def test_features_of_another_width_are_refused() -> None:
    boxes = InputBoxes.of(FOUND).load()
    boxes.check_width(4)
    with pytest.raises(ValueError, match="takes 2,048: give features of the detector that the network"):
        boxes.check_width(2048)
