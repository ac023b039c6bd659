"""The default models, by the ids that they have on the Hub, from a Hub on the loopback."""

from __future__ import annotations

from pathlib import Path

import pytest

from capeval_core.regions.owlv2 import DETECTOR
from capeval_core.regions.sam import SEGMENTER
from tests.hub import Repository, ask, commit, serving

pytestmark = pytest.mark.system

OPEN = """
import json
from PIL import Image
from capeval_core.regions.opening import region_opener

results = []
for spec in ("objects", "objects:org/sam@v1", "rectangles:org/owl", "objects:org/none", "rectangles:org/sam"):
    try:
        source = region_opener(spec)(device="cpu")
        regions = source.segment(Image.new("RGB", (60, 40), "red"))
        results.append([source.name, source.fingerprint, list(regions.size), len(regions) + regions.dropped])
    except ValueError as error:
        results.append(str(error))
print(json.dumps(results))
"""


def test_models_from_the_hub(sam_folder: Path, owlv2_folder: Path, tmp_path: Path) -> None:
    sam, owl = (Repository.of({"main": folder, "v1": folder}) for folder in (sam_folder, owlv2_folder))
    with serving({SEGMENTER: sam, DETECTOR: owl, "org/sam": sam, "org/owl": owl}) as hub:
        default, named, rectangles, none, another = ask(OPEN, hub.address, tmp_path)
    main, v1 = commit("main")[:8], commit("v1")[:8]
    assert default[0] == f"objects:{SEGMENTER}@{main}+{DETECTOR}@{main}"
    assert named[0] == f"objects:org/sam@{v1}+{DETECTOR}@{main}"
    assert rectangles[0] == f"rectangles:org/owl@{main}"
    assert default[1] == named[1]  # the same weights under another name
    assert default[2] == [40, 60] and default[3] > 0
    assert "segmenter 'org/none' could not be loaded" in none and f"The default is {SEGMENTER}" in none
    assert "detector 'org/sam' is a model of type 'sam', expected 'owlv2'" in another
    files = {request.rsplit("/", 1)[-1] for request in hub.requests if "/resolve/" in request}
    assert files == {"config.json", "preprocessor_config.json", "model.safetensors"}
