"""The runner of the golden case takes sizes and rates from the folder, and sees each wrong one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.golden.umic_negatives import expected_quantities, run_case

CASE = Path(__file__).parents[1] / "golden" / "cases" / "umic-negatives"


@pytest.mark.parametrize("wrong", [False, True])
def test_fewer_captions_and_wrong_numbers(tmp_path: Path, wrong: bool) -> None:
    folder = Path(shutil.copytree(CASE, tmp_path / CASE.name))
    captions, outputs, config = (
        json.loads((folder / f"{name}.json").read_text()) for name in ("captions", "outputs", "config")
    )
    captions["captions"] = [captions["captions"][k] for k in (0, 17, 19)]
    toy, words = outputs["hard_negative_toy"], outputs["word_sampling_by_frequency"]
    toy["by_image"] = {"14": toy["by_image"]["14"]}
    words["draws"] = 10000
    if wrong:
        first = captions["captions"][0]
        first["substitution"]["P_position_drawn_given_kept"] += 0.06
        first["repeat_remove"]["P_repeat"] += 0.06
        first["non_fluent"]["expected_mean_length_after_removal"] += 0.8
        config["non_fluent"]["shuffle_share"] += 0.06
        shares = toy["by_image"]["14"]["expected_share_by_image"]
        shares["15"], shares["16"] = shares["16"], shares["15"]
        words["words"]["man"]["expected"] += 0.04
        outputs["training_item_composition"]["1"]["items_per_positive"] = 5
    for name, content in (("captions", captions), ("outputs", outputs), ("config", config)):
        (folder / f"{name}.json").write_text(json.dumps(content))
    found = list(run_case(folder))
    assert {one.quantity for one in found} == expected_quantities(folder)
    failing = {one.quantity for one in found if not one.ok}
    assert failing - {"substitution_words"} == ({
        "substitution_rate_released", "repeat_remove_repeated", "non_fluent_kept", "non_fluent_shuffled",
        "hard_negative", "hard_negative_captions", "word_frequency", "item_rows",
    } if wrong else set())  # fmt: skip
    defined = {one.quantity for one in found if one.verdict == "ok (defined)"}
    assert {"substitution_without_eligible", "repeat_remove_without_eligible", "non_fluent_equal"} <= defined
