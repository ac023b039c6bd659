"""Models of captions and images from the Hub: one commit, no pickles, no code."""

from __future__ import annotations

import shutil
from pathlib import Path

from capeval_core.training.captioner import find_captioner
from capeval_core.training.text_to_image import find_text_to_image
from tests.hub import Repository, ask, commit, serving
from tests.training.generative import arguments

FIND = """
import json, sys
from capeval_core.cli import main
from capeval_core.training.captioner import find_captioner
from capeval_core.training.text_to_image import find_text_to_image
answers = {}
for name, revision, find in (
    ("org/drawer", "v1", find_text_to_image),
    ("org/drawer@v1", None, find_text_to_image),
    ("org/drawer", "v9", find_text_to_image),
    ("org/captioner", None, find_captioner),
    ("org/captioner", None, find_text_to_image),
    ("org/pickled", None, find_captioner),
):
    try:
        found = find(name, revision)
        answer = [found.name, found.digest]
    except ValueError as error:
        answer = str(error)
    answers[f"{name} {revision} {find.__name__}"] = answer
answers["status"] = main(ARGUMENTS)
print(json.dumps(answers))
"""


def test_a_pinned_revision_is_fetched_without_pickles_and_code(
    pipeline: Path, captioner: Path, drawn: Path, tmp_path: Path
) -> None:
    crowded, pickled, home = tmp_path / "crowded", tmp_path / "pickled", tmp_path / "home"
    home.mkdir()
    shutil.copytree(pipeline, crowded)
    shutil.copytree(captioner, pickled)
    for name in ("unet/diffusion_pytorch_model.bin", "unet/model.fp16.safetensors", "own.py", "README.md"):
        (crowded / name).write_bytes(b"not to be fetched")
    (pickled / "model.safetensors").rename(pickled / "pytorch_model.bin")
    repositories = {
        "org/drawer": Repository.of({"main": crowded, "v1": crowded}),
        "org/pickled": Repository.of({"main": pickled}),
        "org/captioner": Repository.of({"main": captioner}),
    }
    given = [*arguments("images", drawn, Path("org/drawer"), tmp_path / "out"), "--revision", "v1"]
    with serving(repositories) as hub:
        answers = ask(FIND.replace("ARGUMENTS", repr(given)), hub.address, home)
    # The same files have the same digest wherever they lie, so that a run may go on with a copy.
    digest = find_text_to_image(str(pipeline), None).digest
    pinned = answers["org/drawer v1 find_text_to_image"]
    assert pinned == [f"org/drawer@{commit('v1')}", digest]
    assert answers["org/drawer@v1 None find_text_to_image"] == pinned
    assert "(no revision 'v9' on the Hub)" in answers["org/drawer v9 find_text_to_image"]
    digest = find_captioner(str(captioner), None).digest
    assert answers["org/captioner None find_captioner"] == [f"org/captioner@{commit('main')}", digest]
    other = answers["org/captioner None find_text_to_image"]
    assert "is a BlipForConditionalGeneration, expected a text-to-image pipeline" in other
    none = answers["org/pickled None find_captioner"]
    assert "has no model.safetensors in " in none and "pickled weights are not opened" in none
    assert answers["status"] == 0
    fetched = " ".join(request for request in hub.requests if "/resolve/" in request)
    assert "unet/diffusion_pytorch_model.safetensors" in fetched
    for name in (".bin", ".py", "README", "fp16"):
        assert name not in fetched
