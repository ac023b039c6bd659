"""From `capeval publish` to `evaluate.load` in someone else's process, over a Hub on the loopback."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import capeval_core
from capeval_core.cli import main
from capeval_core.registry import MEDIA_VARIANTS, metric_class
from tests.hub import WRITER, Fault, Hub, ask, log_in, serving
from tests.support.seams import network
from tests.support.seeded import release

CAPTIONS = ["a dog on the grass", "two red circles"]
REFERENCES = [["a dog"], ["some circles", "a drawing"]]
WEIGHTS = metric_class("pacs").default_weights.repository
NAMED = {"weights": WEIGHTS}
"""Said by the user: a default comes from nobody's namespace."""
LOAD = """
import json, warnings
import evaluate
from tests.support.seams import LIMITS
LIMITS.hub_waits = (0, 0, 0)
asked = json.loads(%r)
answers = []
for name, keywords in asked["load"]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        metric = evaluate.load(name, device="cpu", **keywords)
    inputs = {"images": asked["images"], "videos": asked["videos"], "references": asked["references"]}
    given = {name: values for name, values in inputs.items() if name in metric.features}
    given["predictions"] = asked["captions"]
    answer = metric.compute(**given, per_caption=True)
    answer["warned"] = [str(warning.message) for warning in caught if "weights" in str(warning.message)]
    answers.append(answer)
if asked["combined"]:
    loaded = [evaluate.load(name, device="cpu", **keywords) for name, keywords in asked["combined"]]
    both = evaluate.combine(loaded)
    answers.append(both.compute(predictions=asked["captions"], images=asked["images"]))
    for caption, image in zip(asked["captions"], asked["images"]):
        both.add(prediction=caption, images=image)
    answers.append(both.compute())
print(json.dumps(answers))
"""


@dataclass
class Published:
    """A Hub that modules and weights were sent to; folders of weights by the commit that they became."""

    hub: Hub
    weights: dict[str, Path]
    images: list[str]

    def send_modules(self, namespace: str, *names: str) -> None:
        assert main(["publish", "modules", *names, "--namespace", namespace, "--install-from", "pypi"]) == 0

    def send_weights(self, folder: Path) -> str:
        """Small ones, under the name of the metric's own, and of CLIP-S's; their commit."""
        line = ["publish", "weights", str(folder), "--namespace", "capeval", "--name", "small"]
        assert main([*line, "--permission", "made for this test"]) == 0
        self.hub.repositories[WEIGHTS] = self.hub.repositories["capeval/small"]
        return self.hub.repositories[WEIGHTS].names["main"]

    def load(
        self, home: Path, *what: tuple[str, dict[str, str]], combined: Sequence[Any] = (), **environment: str
    ) -> list[dict[str, Any]]:
        """What modules give in a fresh process, each loaded with its keywords; then some combined, twice."""
        asked = {"load": what, "captions": CAPTIONS, "references": REFERENCES, "images": self.images}
        asked["combined"] = combined
        asked["videos"] = self.videos
        answers: list[dict[str, Any]] = ask(LOAD % json.dumps(asked), self.hub.address, home, **environment)
        return answers

    @property
    def videos(self) -> list[list[str]]:
        """A video of two frames and one of one frame."""
        return [self.images, self.images[:1]]

    def local(self, metric: str, commit: str, media: str | None = None) -> list[float]:
        """The scores of the same weights from their folder."""
        chosen: dict[str, Any] = {"media": media, "weights": self.weights[commit], "device": "cpu"}
        loaded = capeval_core.load(metric, **chosen)
        shown = {"images": self.images} if media is None else {"videos": self.videos}
        references = REFERENCES if metric == "refpacs" else None
        return loaded.score(CAPTIONS, references=references, **shown).scores


@pytest.fixture(scope="module")
def folders(seeded_weights: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Weights and their next version, with cards of their own."""
    later = tmp_path_factory.mktemp("later") / "weights"
    found = release()
    tensors = {**found.tensors, "visual.proj": found.tensors["visual.proj"].flip(1).contiguous()}
    network("clip", found.config, tensors).save_pretrained(later)
    return [seeded_weights, later]


@pytest.fixture(scope="module")
def published(
    folders: list[Path], images: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Published]:
    with serving({}) as hub, pytest.MonkeyPatch.context() as patch:
        log_in(hub.address, WRITER, tmp_path_factory.mktemp("login"), patch)
        made = Published(hub, {}, [str(path) for path in images[:2]])
        made.send_modules("capeval", "pacs", "refpacs", "clips")
        made.send_modules("other", "pacs")
        first = made.send_weights(folders[0])
        hub.repositories[metric_class("clips").default_weights.repository] = hub.repositories[WEIGHTS]
        made.weights[first] = folders[0]
        yield made


@pytest.mark.system
def test_from_publishing_to_a_score_and_on(published: Published, folders: list[Path], tmp_path: Path) -> None:
    """One story, since every chapter needs what the client keeps of those before."""
    (first,) = published.weights
    home = tmp_path / "home"
    home.mkdir()

    # Modules of two namespaces and the metric's own weights come from the Hub; scores are the folder's.
    pacs, refpacs, other, *both = published.load(
        home,
        ("capeval/pacs", NAMED),
        ("capeval/refpacs", NAMED),
        ("other/pacs", NAMED),
        combined=[("capeval/pacs", NAMED), ("capeval/clips", {})],
    )
    clips = sum(published.local("clips", first)) / len(CAPTIONS)
    for values in both:
        assert values == {"pac_s": pytest.approx(pacs["pac_s"]), "clip_s": pytest.approx(clips, abs=1e-6)}
    assert len(both) == 2
    for answer, key, metric in (
        (pacs, "pac_s", "pacs"),
        (refpacs, "refpac_s", "refpacs"),
        (other, "pac_s", "pacs"),
    ):
        assert answer["per_caption"][key] == pytest.approx(published.local(metric, first), abs=1e-6)
        assert f"|weights:{WEIGHTS}@{first[:8]}|" in answer["signature"] and not answer["warned"]
    asked = [request for request in published.hub.requests if "capeval/pacs/resolve" in request]
    assert any("/resolve/v" in request for request in asked)  # a tag would be taken here
    assert any("/resolve/main/pacs.py" in request for request in asked)

    # The same modules and weights score videos by their configuration, which offline is there, too.
    configured = [(f"capeval/{name}", NAMED | {"config_name": medium}) for name, medium in MEDIA_VARIANTS]
    scored = published.load(home, *configured)
    for answer, (name, medium) in zip(scored, MEDIA_VARIANTS, strict=True):
        key = metric_class(name, medium).key
        assert answer["per_caption"][key] == pytest.approx(published.local(name, first, medium), abs=1e-6)
        assert (
            f"|media:{medium}|weights:{WEIGHTS}@{first[:8]}|" in answer["signature"] and not answer["warned"]
        )
    requests = len(published.hub.requests)
    assert published.load(home, *configured, HF_HUB_OFFLINE="1", HF_EVALUATE_OFFLINE="1") == scored
    assert len(published.hub.requests) == requests

    # The next version: what is not pinned moves, what is pinned stays. Modules can be pinned too.
    second = published.send_weights(folders[1])
    published.weights[second] = folders[1]
    module = published.hub.repositories["spaces/capeval/pacs"].names["main"]
    pinned = {"weights": f"{WEIGHTS}@{first}", "revision": module}
    moved, stayed = published.load(home, ("capeval/pacs", NAMED), ("capeval/pacs", pinned))
    assert any(f"capeval/pacs/resolve/{module}/pacs.py" in request for request in published.hub.requests)
    assert f"|weights:{WEIGHTS}@{second[:8]}|" in moved["signature"]
    assert moved["per_caption"]["pac_s"] == pytest.approx(published.local("pacs", second), abs=1e-6)
    assert stayed["signature"] == pacs["signature"] and stayed["per_caption"] == pacs["per_caption"]
    assert moved["pac_s"] != pytest.approx(stayed["pac_s"], abs=1e-3)

    # Every request is refused, without and with the user's wish to work offline, when none is made.
    both = ("capeval/pacs", NAMED), ("capeval/pacs", pinned)
    published.hub.faults.append(Fault("", status=503))
    cut_off = published.load(home, *both)
    requests = len(published.hub.requests)
    on_purpose = published.load(home, *both, HF_HUB_OFFLINE="1", HF_EVALUATE_OFFLINE="1")
    assert len(published.hub.requests) == requests
    published.hub.faults.clear()
    (warned,) = cut_off[0].pop("warned")
    assert "HTTP status 503" in warned and f"pass '{WEIGHTS}@{second}'" in warned
    cut_off[0]["warned"] = []
    assert cut_off == on_purpose == [moved, stayed]

    # Publishing again changes nothing, and nothing was ever tagged.
    before = {key: list(repository.messages) for key, repository in published.hub.repositories.items()}
    published.send_modules("capeval", "pacs", "refpacs", "clips")
    assert published.send_weights(folders[1]) == second
    assert {key: repository.messages for key, repository in published.hub.repositories.items()} == before
    assert not any("/tag/" in request for request in published.hub.requests)
    assert all(list(repository.names) == ["main"] for repository in published.hub.repositories.values())
