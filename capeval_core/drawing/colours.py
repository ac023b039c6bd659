"""The colours of drawn explanations: calm, told apart on light and dark ground, white on them is readable."""

from __future__ import annotations

Rgb = tuple[int, int, int]

PAPER: Rgb = (255, 255, 255)
INK: Rgb = (28, 32, 44)
FAINT: Rgb = (104, 112, 130)
LINE: Rgb = (228, 231, 237)
RIGHT: Rgb = (30, 138, 96)
WRONG: Rgb = (200, 48, 66)
WRONG_GROUND: Rgb = (253, 226, 228)
COMPARED: Rgb = (71, 85, 125)
UNMENTIONED: Rgb = (112, 120, 136)
REGIONS: tuple[Rgb, ...] = (
    (38, 98, 217),
    (217, 119, 6),
    (13, 148, 136),
    (134, 72, 214),
    (190, 60, 140),
    (76, 130, 40),
    (2, 132, 199),
    (146, 94, 46),
    (79, 70, 229),
    (160, 110, 10),
)
"""No red: red marks what is wrong. After the last one they begin again; regions have numbers too."""


def region_colour(index: int, unmentioned: bool) -> Rgb:
    """The colour of region `index`."""
    return UNMENTIONED if unmentioned else REGIONS[index % len(REGIONS)]
