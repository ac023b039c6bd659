"""Values that nobody should hand in, and everybody does once: messages name the argument and the index."""

from __future__ import annotations

import os
from collections import UserList
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from capeval_core.inputs.samples import check_pools, check_samples
from capeval_core.inputs.visual import ImageError, InputImage

GREY = np.full((4, 6), 128, "uint8")


class Length:
    def __len__(self) -> int:
        raise RuntimeError("no length")


class PathOfANumber(os.PathLike[Any]):
    def __fspath__(self) -> Any:
        return 5


class BrokenPath(os.PathLike[Any]):
    def __fspath__(self) -> Any:
        raise RuntimeError("no path")


class BrokenShape:
    @property
    def shape(self) -> Any:
        raise RuntimeError("no shape")


class Everything:
    """Has every attribute, as a mock has."""

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *arguments: Any) -> Any:
        return self


class BrokenRows(Sequence[Any]):
    def __len__(self) -> int:
        return 2

    def __getitem__(self, row: Any) -> Any:
        raise RuntimeError("no rows")


def released() -> memoryview:
    view = memoryview(b"abc")
    view.release()
    return view


def itself() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def nested() -> torch.Tensor:
    return torch.nested.nested_tensor([torch.zeros(3, 4, 5), torch.zeros(3, 5, 6)])


ODD: dict[str, Callable[[], Any]] = {
    "no length": Length,
    "path of a number": PathOfANumber,
    "broken path": BrokenPath,
    "broken shape": BrokenShape,
    "everything": Everything,
    "broken rows": BrokenRows,
    "released": released,
    "itself": itself,
    "long integer": lambda: 10**5000,
    "list of a long integer": lambda: [10**5000],
    "range": lambda: range(10**30),
    "module": lambda: os,
    "class of arrays": lambda: np.ndarray,
    "class of tensors": lambda: torch.Tensor,
    "complex": lambda: 1j,
    "structured array": lambda: np.zeros((4, 4, 3), dtype=[("a", "u1")]),
    "meta tensor": lambda: torch.zeros(3, 4, 5, device="meta"),
    "sparse tensor": lambda: torch.zeros(3, 4, 5).to_sparse(),
    "compressed sparse tensor": lambda: torch.zeros(4, 5).to_sparse_csr(),
    "nested tensor": nested,
    "jagged tensor": lambda: torch.nested.nested_tensor([GREY / 2, GREY[:2] / 2], layout=torch.jagged),
    "dict of an odd path": lambda: {"path": PathOfANumber()},
    "dict of released bytes": lambda: {"bytes": released()},
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("argument", ["images", "captions", "references"])
@pytest.mark.parametrize("place", [0, None])
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support", "ignore:The PyTorch API of nested tensors")
def test_odd_values_are_refused_by_the_argument_and_the_index(
    name: str, argument: str, place: int | None
) -> None:
    given: dict[str, Any] = {"captions": ["a"], "images": [GREY], "references": [["b"]]}
    given[argument] = ODD[name]() if place is None else [ODD[name]()]
    with pytest.raises((ValueError, TypeError)) as caught:
        check_samples(**given, needs_references=True)
    message = str(caught.value)
    assert (f"{argument}[0]" in message) if place == 0 else (argument in message), message
    assert len(message) < 2000


@pytest.mark.parametrize("name", [name for name in ODD if name not in ("broken rows", "itself")])
def test_odd_pools_are_refused_by_their_index(name: str) -> None:
    with pytest.raises((ValueError, TypeError), match=r"captions\[0\]"):
        check_pools([ODD[name]()], [GREY])


def test_rows_may_be_images_already() -> None:
    images = UserList([InputImage.of(GREY), InputImage.of(GREY / 255)])
    samples = check_samples(["a", "b"], images, needs_references=False)
    assert [image.key for image in samples.images] == [image.key for image in images]


def refusal(value: Any) -> str:
    with pytest.raises(ImageError) as caught:
        InputImage.of(value, where="images[17]")
    return str(caught.value)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support", "ignore:The PyTorch API of nested tensors")
def test_tensors_without_pixels_name_the_mend() -> None:
    assert refusal(ODD["meta tensor"]()).startswith("images[17]: the tensor is on the meta device")
    for name in ("sparse tensor", "compressed sparse tensor"):
        assert refusal(ODD[name]()).endswith("pass tensor.to_dense()")
    assert "images[17]: the tensor is a nested tensor" in refusal(nested())
    batch = torch.zeros(2, 3, 4, 5)
    for images in (batch.to("meta"), batch.to_sparse()):
        with pytest.raises(ImageError, match=r"^images\[0\] and images\[1\]: the tensor "):
            check_samples(["a", "b"], images, needs_references=False, on_error="nan")


def test_tensors_that_numpy_cannot_view_are_read() -> None:
    """Negation that is still to be done, and floats of 8 bits."""
    negative = torch.view_as_complex(torch.full((4, 5, 3, 2), -0.5)).conj().imag
    assert negative.is_neg()
    assert InputImage.of(negative).key == InputImage.of(torch.full((4, 5, 3), 0.5)).key
    small = torch.full((3, 4, 5), 0.5).to(torch.float8_e4m3fn)
    assert InputImage.of(small).key == InputImage.of(np.full((4, 5, 3), 0.5)).key


def test_a_masked_array_does_not_lose_its_mask() -> None:
    pixels = np.zeros((2, 4, 5, 3), "uint8")
    masked = np.ma.masked_array(pixels, mask=pixels == 0)
    assert refusal(masked[0]) == (
        "images[17]: the numpy array has masked pixels, and an image has none: pass array.filled(value)"
    )
    with pytest.raises(ImageError, match=r"images\[0\] and images\[1\]: the numpy array has masked"):
        check_samples(["a", "b"], masked, needs_references=False, on_error="nan")
    unmasked = np.ma.masked_array(pixels[0], mask=False)
    assert InputImage.of(unmasked).key == InputImage.of(pixels[0]).key


def test_an_array_too_large_for_any_image_is_refused_by_its_shape() -> None:
    """A view of one pixel that would become 120 GB."""
    image = InputImage.of(np.broadcast_to(np.zeros((1, 1, 3), "uint8"), (200_000, 200_000, 3)))
    for use in (image.check, image.load):
        with pytest.raises(ImageError, match=r"is 200000x200000 = 40,000,000,000 pixels"):
            use()
    with pytest.raises(ImageError, match="pixels"):
        _ = image.key


def test_the_name_of_a_pil_image_may_be_anything() -> None:
    from PIL import Image

    image = Image.new("RGB", (1, 5))
    image.filename = 5  # type: ignore[attr-defined]
    with pytest.raises(ImageError, match=r"the PIL image \(RGB, 1x5\) is 1x5 pixels"):
        InputImage.of(image).check()
