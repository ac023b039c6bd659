"""Which boxes that were made before are used: those that a rule keeps, unless one chose them already."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capeval_core.errors import InputError
from capeval_core.inputs.box_folder import MANIFEST, Manifest
from capeval_core.inputs.boxes import InputBoxes
from capeval_core.inputs.visual import ImageError
from capeval_core.scores.box_source import FirstBoxes, check_selection
from tests.inputs.box_writing import detected


def boxes(n: int, **change: Any) -> InputBoxes:
    return InputBoxes.of({**detected(0, n=n), **change}, "images[0]")


def test_a_rule_keeps_the_first_boxes() -> None:
    confident = int(np.count_nonzero(detected(0, n=200)["scores"] > 0.2))
    assert 100 < confident < 200
    assert len(FirstBoxes(boxes(200), "bua10_100").load()) == 100
    assert len(FirstBoxes(boxes(12), "bua10_100").load()) == 10
    assert len(FirstBoxes(boxes(200), "lxmert36").load()) == 36
    assert len(FirstBoxes(boxes(200, scores=None), "bua10_100").load()) == 100


def test_what_a_rule_has_chosen_is_not_chosen_again() -> None:
    assert len(FirstBoxes(boxes(12, selection="bua10_100"), "bua10_100").load()) == 12
    assert len(FirstBoxes(boxes(50, selection="lxmert36"), "lxmert36").load()) == 50
    assert len(FirstBoxes(boxes(200, selection="first 200"), "bua10_100").load()) == 200  # of someone else
    with pytest.raises(ImageError) as caught:
        FirstBoxes(boxes(12, selection="bua10_100"), "lxmert36").load()
    assert str(caught.value) == (
        "images[0] has boxes that were chosen as 'bua10_100': pass selection=\"bua10_100\""
    )


def test_a_store_of_another_rule_is_refused_at_once(tmp_path: Path) -> None:
    np.savez(tmp_path / "cat.npz", **detected(0))
    for selection in ("bua10_100", "lxmert36"):
        check_selection(str(tmp_path), selection)  # nothing is known of it
    (tmp_path / MANIFEST).write_text(Manifest("bua@1", "lxmert36", "float32", "abc").text())
    check_selection(tmp_path, "lxmert36")
    with pytest.raises(InputError) as caught:
        check_selection(tmp_path, "bua10_100")
    assert str(caught.value) == (
        f"regions='{tmp_path}' has boxes that were chosen as 'lxmert36': pass selection=\"lxmert36\""
    )
