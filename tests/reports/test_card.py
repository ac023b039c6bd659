"""Cards of plain values: here those of no metric of this package, a token matching of its own kind."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from capeval_core.phrases.spans import Span
from capeval_core.regions.regions import Regions
from capeval_core.reports.canvas import PAPER, REGIONS, UNMENTIONED, WRONG_GROUND, Block, Rgb, stacked
from capeval_core.reports.card import Bar, Caption, Card, FramedImage, Heading, LegendEntry, Row, Table
from capeval_core.reports.marks import RIGHT_MARK, RegionMark, Word
from capeval_core.reports.overlay import OutlinedImage

WIDTHS = (320, 759, 760, 1280)


def image() -> OutlinedImage:
    masks = np.zeros((2, 100, 200), dtype=np.bool_)
    masks[0, 20:80, 20:80] = masks[1, 20:80, 120:180] = True
    grey = Image.new("RGB", (200, 100), (120, 120, 120))
    return OutlinedImage(grey, Regions.of(masks), [RegionMark.of(0), RegionMark.of(1, unmentioned=True)])


def tokens(count: int) -> Table:
    """Tokens of a caption, each with the token of a reference that is nearest."""
    rows = [Row(RIGHT_MARK, f"token {i}", [Bar(0.5, REGIONS[0])], Word("the")) for i in range(count)]
    return Table("Tokens", ["cosine"], rows)


def card(count: int = 3) -> Card:
    return Card(
        Heading("Token score", 0.5),
        Caption("a wall and a door", [Span(11, 17)]),
        FramedImage(image()),
        [tokens(count)],
    )


def share(image: Image.Image, colour: Rgb) -> float:
    return float((np.asarray(image) == colour).all(-1).mean())


@pytest.mark.parametrize("width", WIDTHS)
def test_a_score_without_terms_legend_and_threshold(width: int) -> None:
    drawn = card().drawn(width)
    assert drawn.width == width
    assert share(drawn, WRONG_GROUND) > 0
    pixels = np.asarray(drawn)
    for edge in (pixels[:10], pixels[-10:], pixels[:, :10], pixels[:, -10:]):
        assert (edge == PAPER).all()


@pytest.mark.parametrize("width", WIDTHS)
def test_the_last_table_makes_no_long_tail(width: int) -> None:
    short, long = card(), tokens(60)
    at_the_side = Card(short.heading, short.caption, short.image, [long]).drawn(width)
    spread = Card(short.heading, short.caption, short.image, last=long).drawn(width)
    assert spread.height < 0.75 * at_the_side.height if width >= 760 else spread.height <= at_the_side.height


@pytest.mark.parametrize("width", [0, 319, 640.0, None])
def test_wrong_widths_are_refused(width: int) -> None:
    for draw in (card().drawn, image().drawn):
        with pytest.raises(ValueError, match="expected a whole number of at least 320 pixels"):
            draw(width)


def test_a_legend_shows_outlines_like_its_samples() -> None:
    with_legend = FramedImage(
        image(), [LegendEntry("a region", RegionMark.of(2)), LegendEntry("and a remark")]
    )
    plain = Card(Heading("", 0), Caption(""), FramedImage(image())).drawn(400)
    legend = Card(Heading("", 0), Caption(""), with_legend).drawn(400)
    assert legend.height > plain.height
    assert share(plain, REGIONS[2]) == 0 < share(legend, REGIONS[2])


def test_a_legend_that_is_too_long_takes_a_further_line() -> None:
    def height(*texts: str) -> float:
        return FramedImage(image(), [LegendEntry(text) for text in texts]).block(400).height

    long = "a remark of half a line"
    assert height("a", "remark") == height(long) < height(long, long, long) < height(*[long] * 6)


def test_the_outline_of_a_small_region_lies_on_that_of_a_large_one() -> None:
    masks = np.zeros((2, 100, 200), dtype=np.bool_)
    masks[0, 20:80, 20:60] = masks[1, 20:80, 20:180] = True
    small, large = RegionMark("A", (255, 0, 0)), RegionMark("B", (0, 0, 255))
    grey = Image.new("RGB", (200, 100), (120, 120, 120))
    shown = np.asarray(OutlinedImage(grey, Regions.of(masks), [small, large]).drawn(800))
    shared, own = (
        shown[316:325, 120:200].reshape(-1, 3),
        shown[316:325, 300:600].reshape(-1, 3),
    )  # lower edges
    assert (shared == small.colour).all(-1).any() and not (shared == large.colour).all(-1).any()
    assert (own == large.colour).all(-1).any()


def test_marks_keep_their_colours() -> None:
    plain = image()
    own = OutlinedImage(
        plain.image, plain.regions, [RegionMark("A", (255, 0, 0)), RegionMark("B", (0, 0, 255))]
    )
    drawn = own.drawn(400)
    assert share(drawn, (255, 0, 0)) > 0 < share(drawn, (0, 0, 255))
    assert share(drawn, REGIONS[0]) == share(drawn, UNMENTIONED) == 0


def test_blocks_of_no_height_take_no_room() -> None:
    def block(height: float) -> Block:
        return Block(height, lambda canvas, x, y: None)

    assert stacked([block(10), block(20)]).height == stacked([block(10), block(0), block(20)]).height
    assert stacked([block(0), block(10)]).height == 10
    assert stacked([]).height == 0


def test_more_terms_take_a_second_row() -> None:
    heights = [Heading("", 0.5, [("term", 0.5)] * count).block(400).height for count in (0, 1, 4, 5, 8)]
    assert heights[0] == heights[1] == heights[2] < heights[3] == heights[4]
