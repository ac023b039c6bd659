"""Images that are numpy arrays or torch tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from PIL import Image

from capeval_core.inputs.decoding import Refused, refuse_size
from capeval_core.inputs.sources import Pixels
from capeval_core.values import described

if TYPE_CHECKING:
    import numpy as np

ROUNDING = 1e-5  # how far beyond [0, 1] float arithmetic may carry a pixel


@dataclass(eq=False, slots=True)
class FromArray(Pixels):
    """(H, W), (H, W, 1), (H, W, 3) or (H, W, 4) of uint8 or float, numpy or torch."""

    value: Any
    kind: str
    shape: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"the {self.kind} of shape {self.shape}"

    def image(self) -> Image.Image:
        import numpy as np

        value = self.value
        refuse_size(value.shape[1], value.shape[0], self.name)  # a view of few numbers may have any shape
        if self.kind == "tensor" and not isinstance(value, np.ndarray):
            value = value.cpu().float().numpy() if value.is_floating_point() else value.cpu().numpy()
        array = as_uint8(value, self.kind)
        if array.ndim == 3 and array.shape[2] == 1:
            array = array[:, :, 0]
        return Image.fromarray(np.ascontiguousarray(array))


def source_of_array(value: Any) -> FromArray:
    import numpy as np

    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise Refused("the numpy array has masked pixels, and an image has none", "pass array.filled(value)")
    try:
        array = np.asarray(value)
    except Exception as error:  # an array interface of the user's own may fail in any way
        raise Refused(f"{described(value)} that numpy cannot read ({error})", verb="is") from None
    shape: tuple[int, ...] = array.shape
    refuse_dtype(array.dtype.name, "numpy array")
    if len(shape) == 2 or (len(shape) == 3 and shape[2] in (1, 3, 4)):
        refuse_no_pixels(shape, "numpy array")
        return FromArray(array, "array", shape)
    fix = "expected (H, W), (H, W, 1), (H, W, 3) or (H, W, 4)"
    if len(shape) == 3 and shape[0] in (1, 3, 4):
        fix += "; this looks like channels first: pass array.transpose(1, 2, 0)"
    elif len(shape) == 4:
        fix += "; this looks like a batch: pass array[0]"
    raise Refused(f"the numpy array has shape {shape}", fix)


def source_of_tensor(value: Any) -> FromArray:
    refuse_storage(value)
    shape = tuple(value.shape)
    dtype = str(value.dtype).rpartition(".")[2]
    refuse_dtype(dtype, "tensor")
    tensor = value.detach().resolve_neg()
    first = len(shape) == 3 and shape[0] in (1, 3)
    last = len(shape) == 3 and shape[2] in (1, 3, 4)
    if first and last:
        raise Refused(
            f"the tensor's shape {shape} can be read as (C, H, W) and as (H, W, C)",
            "pass a numpy array (H, W, C)",
        )
    if not (first or last or len(shape) == 2):
        fix = "expected (3, H, W), (1, H, W), (H, W) or (H, W, 3)"
        if len(shape) == 4:
            fix += "; this looks like a batch: pass tensor[0]"
        raise Refused(f"the tensor has shape {shape}", fix)
    refuse_no_pixels(shape, "tensor")
    if first:
        tensor = tensor.permute(1, 2, 0)
    if tensor.device.type == "cpu" and dtype in ("uint8", "float32", "float64"):
        # A view that pickles its own pixels only; a tensor cut from a batch would pickle the whole batch.
        tensor = tensor.numpy()
    return FromArray(tensor, "tensor", shape)


def refuse_storage(tensor: Any) -> None:
    """Refuse tensors whose numbers do not lie in one block of memory, or nowhere."""
    if tensor.is_nested:
        raise Refused("the tensor is a nested tensor", "pass the tensors that it holds, one per image")
    if tensor.device.type == "meta":
        raise Refused("the tensor is on the meta device, where tensors have no data", "pass one with pixels")
    layout = str(tensor.layout).rpartition(".")[2]
    if layout != "strided":
        raise Refused(f"the tensor has the layout {layout}", "pass tensor.to_dense()")


def refuse_no_pixels(shape: tuple[int, ...], kind: str) -> None:
    if 0 in shape:
        raise Refused(f"the {kind} of shape {shape} has no pixels")


def refuse_dtype(dtype: str, kind: str) -> None:
    if dtype == "uint8" or dtype.startswith(("float", "bfloat")):
        return
    if dtype == "bool":
        fix = "for a mask of black and white pass it as uint8 times 255"
    elif dtype == "uint16":
        fix = "divide by 65535 to get floats"
    elif dtype.startswith(("int", "uint")):
        fix = "if the values are 0 to 255, convert it to uint8"
    else:
        fix = "convert it"
    raise Refused(f"the {kind} has dtype {dtype}", f"expected uint8, or float in [0, 1]; {fix}")


def as_uint8(array: np.ndarray[Any, Any], kind: str) -> np.ndarray[Any, Any]:
    """Floats in [0, 1] rounded to 0..255; Refused for NaN, inf and other ranges."""
    import numpy as np

    if array.dtype == np.uint8:
        return array
    low, high = float(array.min()), float(array.max())  # NaN passes through min
    if not np.isfinite([low, high]).all():
        found = "NaN" if np.isnan([low, high]).any() else "infinite values"
        raise Refused(f"the {kind} of floats has {found}", "expected values in [0, 1]")
    if low < -ROUNDING or high > 1 + ROUNDING:
        fix = "divide by 255" if low >= 0 else "pass the pixels as they were before normalisation"
        found = f"the {kind} of floats has values from {low:.4g} to {high:.4g}"
        raise Refused(found, f"expected [0, 1]; {fix}")
    wide = array.astype(np.float32) if array.dtype.itemsize < 4 else array
    rounded: np.ndarray[Any, Any] = np.rint(np.clip(wide, 0, 1) * 255).astype(np.uint8)
    return rounded
