"""Where the image that a browser shows is not the image that a metric sees, in notes for the reader."""

from __future__ import annotations

from PIL import ExifTags

from capeval_core.inputs.decoding import open_image

NARROWEST = 0.6
"""Shorter / longer side of images of which so little is cut off that no note is needed."""
TURNED = (
    "The file says that the image is to be turned (EXIF), and so it is shown here. The score is that of "
    "the image as it is stored, as in the original code: save it upright if that is not what you mean."
)
DEEP = (
    "The image has more than 8 bits a channel. As in the original code, everything above 255 is white: "
    "scale it to 8 bits."
)
TRANSPARENT = (
    "The image is partly transparent. The metric sees its colours without that, often black where the "
    "page shows through: put it onto a background if that is not what you mean."
)
CUT = "The metric sees the square in the image's centre only, {:.0%} of it."


def notes_on(image: str, *, square: bool = True) -> list[str]:
    """What a reader would not expect of the image at a path; `square`: whether its centre alone is seen."""
    with open_image(image) as decoded:
        sides = sorted(decoded.size)
        noted = {
            TURNED: decoded.getexif().get(ExifTags.Base.Orientation, 1) in range(2, 9),
            DEEP: decoded.mode.startswith(("I", "F")),
            TRANSPARENT: decoded.has_transparency_data
            and decoded.convert("RGBA").getchannel("A").getextrema() != (255, 255),
            CUT.format(sides[0] / sides[1]): square and sides[0] < NARROWEST * sides[1],
        }
    return [note for note, holds in noted.items() if holds]
