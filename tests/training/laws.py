"""Laws of random results: exact, by listing all cases, and as shares of many draws."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping


def given(cases: Iterable[tuple[Hashable, float]]) -> dict[Hashable, float]:
    """The law of the listed cases, each with its weight, given that one of them occurs."""
    weights: dict[Hashable, float] = {}
    for case, weight in cases:
        weights[case] = weights.get(case, 0.0) + weight
    total = sum(weights.values())
    return {case: weight / total for case, weight in weights.items()}


def assert_law(
    draw: Callable[[], Hashable], law: Mapping[Hashable, float], draws: int = 6000, sigmas: float = 4.5
) -> None:
    """Each case's share is within a few standard errors of its probability; no other case occurs."""
    found = Counter(draw() for _ in range(draws))
    assert found.keys() <= law.keys()
    for case, probability in law.items():
        error = (probability * (1 - probability) / draws) ** 0.5
        assert abs(found[case] / draws - probability) <= sigmas * error, (
            case,
            found[case] / draws,
            probability,
        )
