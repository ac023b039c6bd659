from __future__ import annotations

from pathlib import Path

from capeval_core.encoders.vilbert import VilbertEncoder
from capeval_core.weights.folder import TINY
from tools.captions import holds
from tools.sets import has_held_out, is_held_out_template
from tools.tiny.region_training import BLIND
from tools.tiny.vilbert import OF_PARAPHRASE, OF_REFERENCE, VilbertRecipe, make_trials, measure, train


def test_the_shipped_model_is_small() -> None:
    files = [file for name in ("vilbertscore", "scene-regions") for file in (TINY / name).iterdir()]
    assert sum(file.stat().st_size for file in files) < 6_000_000


def test_a_trial_has_right_captions_and_false_ones_of_one_other_word() -> None:
    trials = make_trials(12, seed=6)
    assert trials == make_trials(12, seed=6) != make_trials(12, seed=7)
    assert sum(is_held_out_template(trial.paraphrase) for trial in trials) == 6
    for trial in trials:
        assert has_held_out(trial.scene) and trial.paraphrase not in trial.references
        assert all(holds(trial.scene, text) for text in (*trial.references, trial.paraphrase))
        originals = {OF_PARAPHRASE: trial.paraphrase, OF_REFERENCE: trial.references[0]}
        for name, foil in trial.foils.items():
            pairs = zip(foil.split(), originals[name].split(), strict=True)
            assert sum(word != other for word, other in pairs) == 1
            assert not holds(trial.scene, foil, margin=0.0)


def test_the_shipped_model_knows_by_the_image_what_words_do_not_show() -> None:
    encoder = VilbertEncoder.from_pretrained("tiny", device="cpu")
    found = measure(encoder, scenes=60, seed=5)
    assert found[OF_PARAPHRASE].accuracy > 0.8
    assert found[OF_REFERENCE].accuracy > found[OF_REFERENCE + BLIND].accuracy + 0.3


def test_a_short_training_goes_through_the_command(tmp_path: Path) -> None:
    flags = ("--batch-size", "2", "--accumulation", "1", "--warmup", "1", "--foils", "2")
    encoder = train(VilbertRecipe(scenes=8, masking_steps=2, steps=2, flags=flags), seed=3, folder=tmp_path)
    assert encoder.config["training"]["data"] == "drawn scenes" and encoder.task_tokens == 1
    assert encoder.config["constants"] == {"regions": "tiny"}
