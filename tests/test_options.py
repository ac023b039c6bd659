"""Options: what they accept, how they refuse, how they sign and are described."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import capeval_core
from capeval_core.authoring import Options, PacOptions, PacS, option


@dataclasses.dataclass(frozen=True, kw_only=True)
class Own(Options):
    """As a metric's own options look."""

    layer: int = option(-1, "layer of the features", sign="layer")
    scale: float = option(1.0, "scale", sign="scale", minimum=0.5)
    region: str | None = option(None, "region", sign="region")
    shift: float = option(1.0, "shift", sign="shift")


def test_a_scalar_of_numpy_is_the_value_that_it_holds() -> None:
    options = Own(
        scale=np.float64(2.0),
        batch_size=np.int64(4),
        evidence=np.bool_(True),
        region=np.str_("sky"),
        layer=np.uint8(3),
    )
    plain = Own(scale=2.0, batch_size=4, evidence=True, region="sky", layer=3)
    assert options == plain and options.signed() == plain.signed()
    keywords = [options.scale, options.batch_size, options.evidence, options.region, options.layer]
    assert [type(value) for value in keywords] == [float, int, bool, str, int]


def test_signs_only_what_moves_the_score() -> None:
    assert Own().signed() == [] == Own(layer=-1, scale=1).signed()
    assert Own(region="x", compat="released", layer=2, dtype="float16").signed() == [
        "dtype:float16",
        "compat:released",
        "layer:2",
        "region:x",
    ]
    assert Own(shift=-0.0).signed() == Own(shift=0.0).signed() == Own(shift=0).signed() == ["shift:0"]
    assert Own(shift=-1e-20).signed() == [f"shift:-0.{'0' * 19}1"]
    quiet = Own(device="cpu", batch_size=3, cache="c", rows="r", on_error="nan", empty="score", evidence=True)
    assert quiet.signed() == Own().signed()


@given(st.text(max_size=8), st.text(max_size=8))
def test_texts_sign_alike_only_if_they_are_equal(one: str, other: str) -> None:
    first, second = (Own(region=text).signed()[0] for text in (one, other))
    assert (first == second) is (one == other)
    assert first.isascii() and first.isprintable() and "|" not in first


@given(st.floats(0.5, 1e9), st.floats(0.5, 1e9))
def test_numbers_sign_alike_only_if_they_are_equal(one: float, other: float) -> None:
    first, second = (Own(scale=number).signed() for number in (one, other))
    assert (first == second) is (one == other)
    assert first == [] if one == 1 else float(first[0].removeprefix("scale:")) == one


KINDS = (st.booleans(), st.integers(-9, 9), st.floats(-9, 9), st.text(max_size=5))


@given(st.one_of(*(st.tuples(kind | st.none(), kind) for kind in KINDS)))
@settings(max_examples=30)
def test_a_new_option_at_its_default_changes_no_signature(defaults: tuple[Any, Any]) -> None:
    """An option added by a subclass of PAC-S's options, as an author adds it."""
    default, value = defaults
    new = option(default, "new", sign="new")
    options = dataclasses.make_dataclass(
        "New", [("new", type(value) | None, new)], bases=(PacOptions,), frozen=True, kw_only=True
    )
    metric = type("NewPacS", (PacS,), {"Options": options})
    opened = capeval_core.load("pacs", weights="tiny")  # kept, so that all share its network
    usual = opened.signature()
    assert metric(options(weights="tiny")).signature() == usual
    assert metric(options(weights="tiny", new=default)).signature() == usual
    signature = metric(options(weights="tiny", new=value)).signature()
    says_so = value != default
    assert (signature != usual) is says_so
    assert (re.search(r"\|new:[^|]+\|v:", signature) is not None) is says_so
