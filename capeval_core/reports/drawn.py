"""Explanations that can be drawn: plain values, and the drawing that notebooks show of them."""

from __future__ import annotations

from abc import abstractmethod
from io import BytesIO
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL.Image import Image


class DrawnExplanation(dict[str, Any]):
    """The explanation of a score: texts and numbers, and `plot()`, which draws them."""

    @abstractmethod
    def plot(self, width: int = ...) -> Image:
        """The explanation as an image, `width` pixels wide. Raises ValueError where there is no score."""

    def _repr_png_(self) -> bytes | None:
        """What notebooks show: the drawing, or None where there is none, so that they show the values."""
        drawing = BytesIO()
        try:
            self.plot().save(drawing, "PNG")
        except ValueError:  # no score to draw, or an image that can no longer be read
            return None
        return drawing.getvalue()
