"""Badges stay in the image and off each other."""

from __future__ import annotations

import numpy as np
import pytest

from capeval_core.reports.marks import place_badges

SIZE, RADIUS = (600.0, 400.0), 10.0


def ring(x: float, y: float, radius: float) -> np.ndarray:
    angle = np.linspace(0, 2 * np.pi, 60, endpoint=False)
    return np.stack([x + radius * np.cos(angle), y + radius * np.sin(angle)], axis=1)


@pytest.mark.parametrize("spread", [1.0, 0.1, 0.0])
def test_no_badge_covers_another(spread: float) -> None:
    rng = np.random.default_rng(1)
    centres = np.array(SIZE) * (0.5 + spread * rng.uniform(-0.5, 0.5, (40, 2)))
    places = place_badges([ring(x, y, rng.uniform(3, 80)) for x, y in centres], SIZE, RADIUS)
    at = np.array([[place.x, place.y] for place in places])
    apart = np.hypot(*(at[:, None] - at[None]).transpose(2, 0, 1)) + 1e6 * np.eye(len(at))
    assert apart.min() >= 2 * RADIUS
    assert (at >= RADIUS).all()
    assert (at <= np.array(SIZE) - RADIUS).all()


def test_a_badge_is_on_its_outline_unless_that_is_taken() -> None:
    lonely, *crowd = place_badges([ring(500, 300, 40), *(ring(80, 80, 8) for _ in range(5))], SIZE, RADIUS)
    assert np.hypot(lonely.x - 500, lonely.y - 300) == pytest.approx(40, abs=1)
    assert lonely.x < 500 and lonely.y < 300
    assert sum(place.is_apart(RADIUS) for place in crowd) >= 2
    assert not lonely.is_apart(RADIUS)


def test_an_image_too_small_for_all_badges() -> None:
    places = place_badges([ring(10, 10, 5)] * 9, (20.0, 20.0), RADIUS)
    assert len(places) == 9
