"""Videos as frames and features of boxes: what captions are about beside images."""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from capeval_core.errors import InputTypeError, ProblemsError
from capeval_core.inputs import box_arrays
from capeval_core.inputs import boxes as box_module
from capeval_core.inputs import media as media_module
from capeval_core.inputs.box_arrays import MOST_BOXES, WIDEST
from capeval_core.inputs.boxes import InputBoxes
from capeval_core.inputs.frames import InputFrames
from capeval_core.inputs.samples import Samples, check_samples
from capeval_core.inputs.visual import InputImage, Visual
from tests.inputs.photographs import encoded, photograph
from tests.inputs.video_writing import video

GREY = np.full((4, 6), 128, "uint8")
CLIP = [photograph(seed=i) for i in range(3)]
FOUND = {"boxes": [[0, 0, 9, 9], [2, 3, 8, 12]], "features": np.ones((2, 5), "float32")}


def checked(values: Any, *media: str, on_error: Any = "raise") -> Samples:
    captions = ["a dog"] * len(values)
    return check_samples(captions, values, needs_references=False, media=media, on_error=on_error)


def refusal(values: Any, *media: str, on_error: Any = "raise") -> ProblemsError:
    with pytest.raises(ProblemsError) as caught:
        checked(values, *media, on_error=on_error)
    return caught.value


def folder_of(path: Path, *names: str) -> Path:
    path.mkdir()
    for i, name in enumerate(names):
        (path / name).write_bytes(encoded(photograph(seed=i), "PNG"))
    return path


def npz(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


# ---- boxes


def test_boxes_have_one_key_however_they_are_handed_in(tmp_path: Path) -> None:
    arrays = {name: np.asarray(value, "float64") for name, value in FOUND.items()}
    tensors = {name: torch.tensor(np.asarray(value)) for name, value in FOUND.items()}
    path = npz(tmp_path / "a.npz", **arrays)
    values = [FOUND, arrays, tensors, path, str(path), {**FOUND, "size": None, "more": 1}]
    found = [InputBoxes.of(value) for value in values]
    assert len({one.key for one in found}) == 1
    loaded = found[0].load()
    assert loaded.boxes.tolist() == FOUND["boxes"] and loaded.boxes.dtype == np.float32
    assert (loaded.size, loaded.scores, len(loaded)) == (None, None, 2)
    full = InputBoxes.of({**FOUND, "size": (20, 30), "scores": [0.5, 0.25]})
    assert full.load().size == (20, 30) and full.load().scores is not None
    changes: list[dict[str, Any]] = [
        {"size": (30, 20)},
        {"scores": [0.5, 0.5]},
        {"features": np.zeros((2, 5))},
        {"boxes": [[0, 0, 9, 8]] * 2},
    ]
    keys = {
        InputBoxes.of({**FOUND, "size": (20, 30), "scores": [0.5, 0.25], **change}).key for change in changes
    }
    assert len({*keys, full.key, found[0].key}) == 6
    assert pickle.loads(pickle.dumps(found[3])).key == found[0].key


@pytest.mark.parametrize(
    ("change", "index", "message"),
    [
        ({"boxes": None}, 0, "images[0]: there is no 'boxes' among the keys"),
        (
            {"boxes": [[0, 0, 9]] * 2},
            (0, "boxes"),
            'images[0]["boxes"]: the array has shape (2, 3): expected (n, 4)',
        ),
        (
            {"boxes": [0, 0, 9, 9]},
            (0, "boxes"),
            'images[0]["boxes"]: the array has shape (4,): expected 2 axes',
        ),
        ({"boxes": [[0, 0, 9, 9]]}, 0, "images[0]: there are 1 boxes but 2 rows of features"),
        (
            {"boxes": [[0, 0, 9, 9], [5, 5, 4, 9]]},
            (0, "boxes", 1),
            'images[0]["boxes"][1] is [5.0, 5.0, 4.0, 9.0]',
        ),
        ({"size": (20, 9)}, (0, "boxes", 1), "outside of an image of 20x9: expected pixels"),
        (
            {"size": (20, 0)},
            (0, "size"),
            'images[0]["size"] is (20, 0): expected width and height',
        ),
        ({"size": (10**400, 3)}, (0, "size"), "from 1 to 1,048,576 pixels"),
        ({"size": (True, True)}, (0, "size"), "is (True, True): expected width"),
        (
            {"boxes": np.broadcast_to(np.float64(0), (10**11, 4))},
            (0, "boxes"),
            "has shape (100000000000, 4): expected at most 1,000 boxes",
        ),
        ({"size": "20x9"}, (0, "size"), "images[0][\"size\"] is '20x9': expected width"),
        ({"scores": [1.0]}, 0, "images[0]: there are 2 boxes but 1 scores"),
        ({"features": np.full((2, 5), np.nan)}, (0, "features"), "has NaN or infinity, first at [0, 0]"),
        ({"features": np.full((2, 5), 1e300)}, (0, "features"), "has NaN or infinity"),
        (
            {"features": [["a"] * 5] * 2},
            (0, "features"),
            'images[0]["features"] is an array of <U1: expected',
        ),
        (
            {"features": [[1, 2], [3]]},
            (0, "features"),
            'images[0]["features"] is a list of length 2 that numpy',
        ),
        (
            {"boxes": np.zeros((0, 4)), "features": np.zeros((0, 5))},
            0,
            "images[0]: there are no boxes: take a lower threshold",
        ),
        ({"features": np.ones((2, 0))}, 0, "there are 2 boxes with 0 numbers each"),
        ({"scores": [True, False]}, (0, "scores"), 'images[0]["scores"] is an array of bool'),
        ({"size": (8, 10)}, (0, "boxes", 1), "[2.0, 3.0, 8.0, 12.0], outside of an image of 8x10"),
        ({"features": np.ones((2, WIDEST + 1))}, 0, f"with {WIDEST + 1:,} numbers each: expected 1 to"),
        (
            {"boxes": np.zeros((MOST_BOXES + 1, 4)), "features": np.zeros((MOST_BOXES + 1, 5))},
            0,
            f"there are {MOST_BOXES + 1:,} boxes",
        ),
    ],
)
def test_boxes_that_do_not_fit(change: dict[str, Any], index: Any, message: str) -> None:
    error = refusal([{**FOUND, **change}], "boxes")
    (problem,) = error.problems
    assert (problem.argument, problem.index) == ("images", index)
    assert message in str(error)


def test_boxes_at_the_bounds_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, Any]] = [
        {"boxes": np.zeros((MOST_BOXES, 4)), "features": np.zeros((MOST_BOXES, 1))},
        {**FOUND, "features": np.zeros((2, WIDEST))},
        {"boxes": [[3, 4, 3, 9]], "features": np.ones((1, 1))},  # no wider than a line
        {**FOUND, "size": (8, 11)},  # corners count from 0 or from 1, so one pixel more is right
    ]
    for arrays in given:
        assert len(InputBoxes.of(arrays).load()) == len(arrays["boxes"])
    path = archive(tmp_path / "a.npz", boxes=npy(np.zeros((2, 4))), features=npy(np.ones((2, 8))))
    monkeypatch.setattr(box_arrays, "MOST_BYTES", len(npy(np.ones((2, 8)))))
    assert len(InputBoxes.of(path).load()) == 2


def test_the_key_of_boxes_knows_their_shape() -> None:
    one = InputBoxes.of({"boxes": np.zeros((1, 4)), "features": np.zeros((1, 8))})
    two = InputBoxes.of({"boxes": np.zeros((2, 4)), "features": np.zeros((2, 2))})
    assert one.key != two.key  # twelve zeros both


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "images[0] is None: every caption needs the boxes"),
        ("a.npy", "images[0]: 'a.npy' is not an .npz file: expected a dict"),
        ("a.npz", "images[0]: there is no file 'a.npz'"),
        (GREY, "images[0] is"),
        ([[0, 0, 9, 9]], "images[0] is a list of length 1: expected a dict"),
    ],
)
def test_values_that_are_no_boxes(value: Any, message: str) -> None:
    assert str(refusal([value], "boxes")).startswith(message)


class Runs:
    def __reduce__(self) -> Any:
        return pytest.fail, ("unpickled",)


def archive(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in members.items():
            file.writestr(f"{name}.npy", data)
    return path


def npy(array: Any, shape: tuple[int, ...] | None = None) -> bytes:
    """An array as numpy writes it, with a header that may claim another shape."""
    data = io.BytesIO()
    header = np.lib.format.header_data_from_array_1_0(array)
    np.lib.format.write_array_header_1_0(data, {**header, "shape": shape or array.shape})
    return data.getvalue() + array.tobytes()


def test_hostile_files_of_boxes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = npy(np.ones((2, 5)))
    cases = {
        "text": (tmp_path / "text.npz", "is not an .npz file, or damaged"),
        "cut": (tmp_path / "cut.npz", "is not an .npz file, or damaged"),
        "claims": (
            archive(tmp_path / "claims.npz", boxes=npy(np.ones((2, 4)), (10**12, 4)), features=good),
            "the header says shape (1000000000000, 4) of float64, which the array does not have",
        ),
        "overflow": (
            archive(tmp_path / "overflow.npz", boxes=npy(np.ones((0, 4)), (2**62, 4)), features=good),
            "the header says shape (4611686018427387904, 4) of float64, which the array does not have",
        ),
        "pickle": (
            npz(tmp_path / "pickle.npz", boxes=np.array([Runs()], object), features=np.ones((1, 5))),
            "write plain numbers with numpy.savez",
        ),
        "header": (archive(tmp_path / "header.npz", boxes=b"not numpy", features=good), "or damaged ("),
        "missing": (
            archive(tmp_path / "missing.npz", features=good),
            "there is no 'boxes' among the keys 'features'",
        ),
    }
    cases["text"][0].write_text("boxes")
    cases["cut"][0].write_bytes(
        npz(tmp_path / "good.npz", **{k: np.asarray(v) for k, v in FOUND.items()}).read_bytes()[:200]
    )
    for path, message in cases.values():
        assert message in str(refusal([path], "boxes")), path
    monkeypatch.setattr(box_arrays, "MOST_BYTES", 2**20)
    bomb = archive(tmp_path / "bomb.npz", boxes=npy(np.zeros((2**16, 4))), features=good)
    assert bomb.stat().st_size < 2**14
    assert "bytes: expected at most 1,048,576" in str(refusal([bomb], "boxes"))


# ---- which media a metric takes


def test_a_metric_refuses_other_media_with_a_fix(tmp_path: Path) -> None:
    image, video, found = InputImage.of(GREY), InputFrames.of([GREY]), InputBoxes.of(FOUND)
    for value, medium, message in (
        (GREY, "video", "videos[0]: the frames have shape (4, 6): expected (T, H, W, 3)"),
        (image, "video", "videos[0] is an image: this metric takes videos (paths, arrays, lists of frames)"),
        (b"abc", "video", "videos[0]: the bytes object of length 3 is not a video that can be read"),
        (video, "boxes", "images[0] is a video: this metric takes dicts of boxes"),
        (
            FOUND,
            "image",
            "images[0]: a dict needs the keys \"bytes\" and \"path\", found 'boxes', 'features'",
        ),
        ([GREY], "image", "images[0] is a list of length 1: expected a path"),
        (np.stack([GREY] * 3)[..., None], "image", "images[0]: the numpy array has shape (3, 4, 6, 1)"),
        (tmp_path, "image", f"images[0]: '{tmp_path}' is a folder: pass the path of one image"),
    ):
        assert str(refusal([value], medium)).startswith(message), (value, medium)
    assert isinstance(refusal([video], "boxes"), InputTypeError)
    assert checked([image], "image").images[0].key == image.key
    assert checked([found], "boxes").images[0].key == found.key


def test_a_metric_may_take_several_media(tmp_path: Path) -> None:
    clip, path = (
        folder_of(tmp_path / "clip", "0.png"),
        npz(tmp_path / "a.npz", **{k: np.asarray(v) for k, v in FOUND.items()}),
    )
    film = tmp_path / "film.MP4"
    film.write_bytes(video())
    values = [GREY, [GREY], clip, path, FOUND, clip / "0.png", np.zeros((2, 4, 6, 3), "uint8"), film]
    visuals: list[Visual[Any]] = list(checked(values, "image", "video", "boxes").images)
    assert [type(visual) for visual in visuals] == [
        InputImage, InputFrames, InputFrames, InputBoxes, InputBoxes, InputImage, InputFrames, InputFrames
    ]  # fmt: skip
    assert [visual.where for visual in visuals] == [f"images[{i}]" for i in range(8)]
    assert visuals[3].key == visuals[4].key
    assert str(refusal([FOUND], "image", "video")).startswith(
        "images[0] is boxes: this metric takes images or videos"
    )


@pytest.mark.parametrize(
    ("values", "medium", "fix"),
    [
        (np.zeros((2, 4, 6, 3), "uint8"), "video", "pass a list, videos=[video]"),
        (FOUND, "boxes", "pass a list, images=[boxes]"),
        ("clip", "video", "pass a list, videos=[video]"),
        (b"clip", "video", "is a single video: pass a list, videos=[video]"),
        ({"bytes": b"clip", "path": None}, "video", "is a single video: pass a list, videos=[video]"),
    ],
)
def test_a_single_visual_gets_the_fix(values: Any, medium: str, fix: str) -> None:
    with pytest.raises(InputTypeError) as caught:
        check_samples(["a"], values, needs_references=False, media=[medium])
    assert fix in str(caught.value)


def test_equal_videos_and_boxes_are_read_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = npz(tmp_path / "a.npz", **{k: np.asarray(v) for k, v in FOUND.items()})
    reads: list[str] = []
    read_file = box_module.read_file
    monkeypatch.setattr(
        box_module, "read_file", lambda name, what: reads.append(name) or read_file(name, what)
    )
    samples = checked([path] * 5, "boxes")
    assert len(reads) == 1 and len({visual.source for visual in samples.images}) == 1


def test_every_visual_is_checked_however_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media_module, "CHECKED_AT_ONCE", 2)
    whole = encoded(CLIP[0])
    error = refusal([whole[: 900 + i] for i in range(5)], "image")
    assert [problem.index for problem in error.problems] == [0, 1, 2, 3, 4]
