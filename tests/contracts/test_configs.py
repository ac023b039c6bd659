"""Values of a config of weights: bounds, types and counts, each problem under the name of its key."""

from __future__ import annotations

import json
import math
from copy import deepcopy
from typing import Any

import pytest

from tests.conftest import TINY
from tests.support import seams

CONFIG = json.loads((TINY.parent / "blip2" / "config.json").read_text(encoding="utf-8"))


def refusal(**values: Any) -> str:
    """The error of a config with other values under these keys, whose parts are joined by two underscores.

    One more value is always wrong: what is within its bounds is then known without a network.
    """
    config = deepcopy(CONFIG)
    config["context_length"] = "many"
    for key, value in values.items():
        *parts, last = key.split("__")
        section = config
        for part in parts:
            section = section[part]
        if value is ...:
            del section[last]
        else:
            section[last] = value
    with pytest.raises(ValueError) as caught:
        seams.network("blip2", config, {})
    assert "context_length is 'many', expected a whole number from " in str(caught.value)
    return str(caught.value)


VALUES: dict[str, tuple[list[Any], list[Any]]] = {
    "architecture__vision__layer_norm_eps": (
        [1e-300, 0.5, 1, 1.0],
        [0, 0.0, -0.1, 1.0000001, math.nan, math.inf, True, "1e-5", [1e-5], None, ...],
    ),
    "architecture__vision__hidden_size": (
        [1, 1 << 20],
        [0, -1, (1 << 20) + 1, 128.0, True, "128", [128], ...],
    ),
    "preprocessing__mean": (
        [[-999.99, 0, 1000]],
        [[-1000, 0, 0], [0, 0, 1000.1], [0, 0], [0] * 4, [], 0.5, [0, 0, None], [0, 0, False], "000"],
    ),
    "preprocessing__std": ([[0.00011, 1, 1000]], [[1e-4, 1, 1], [0, 1, 1], [1, 1, 1000.1], [1, 1]]),
}
"""By key: values within the bounds, of which a lower one of fractions is excluded, and values without."""


@pytest.mark.parametrize("key", VALUES)
def test_bounds_of_a_config_are_those_that_are_stated(key: str) -> None:
    within, without = VALUES[key]
    name = key.replace("__", ".")
    for value in within:
        assert f"{name} is" not in refusal(**{key: value}), value
    for value in without:
        message = refusal(**{key: value})
        shown = "missing" if value is None or value is ... else f"{value!r}, expected "
        assert f"{name} is {shown}" in message, message


def test_all_problems_of_a_config_are_one_error_with_bounds_and_counts() -> None:
    message = refusal(
        architecture__vision__layer_norm_eps=0,
        architecture__qformer__hidden_size=0,
        preprocessing__std=[1, 1],
        preprocessing__interpolation="cubic",
    )
    for part in (
        "architecture.vision.layer_norm_eps is 0, expected a number from 0.0 to 1",
        "architecture.qformer.hidden_size is 0, expected a whole number from 1 to 1,048,576",
        "preprocessing.std is [1, 1], expected 3 numbers from 0.0001 to 1,000.0",
        "preprocessing.interpolation is 'cubic', expected 'bicubic' or 'bilinear'",
    ):
        assert part in message, message
    message = refusal(architecture__vision=5)
    assert "architecture.vision is 5, expected an object" in message


def test_a_null_counts_as_missing_and_may_stand_for_a_default() -> None:
    assert "interpolation" not in refusal(preprocessing__interpolation=None)
    assert "preprocessing.image_size is missing" in refusal(preprocessing__image_size=None)
