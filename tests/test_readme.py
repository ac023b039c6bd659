"""README and docs: every block of Python and of shell runs as it stands, in order, in a folder of stand-ins.

A stand-in is a small file of the same form under the name that the text gives: seeded checkpoints, packaged
images. Weights that the text takes from the Hub come from one on the loopback interface.
"""

from __future__ import annotations

import configparser
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import evaluate
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from huggingface_hub import constants
from PIL import Image

from capeval_core.cli import main
from capeval_core.demo import DemoItem, demo_set
from tests.golden import recipe
from tests.golden.frcnn_vg_tiny import write_checkpoint
from tests.hub import WRITER, Repository, commit, log_in, serving
from tests.hub.origin import origin
from tests.inputs.video_writing import FORMS, drawn, written
from tests.judgements.data import write_lines
from tests.snippets import run_snippets
from tests.support.command_lines import replaced
from tests.support.seams import small_release
from tests.support.seeded import CASES, uniter
from tests.weights.conftest import umic_checkpoint, write_open_clip
from tools.documents import CHECKOUT

Repositories = dict[str, Repository]
PAGES = [
    path
    for path in [CHECKOUT / "README.md", *sorted(CHECKOUT.glob("docs/*.md"))]
    if re.search(r"^```(python|sh)$", path.read_text(encoding="utf-8"), re.MULTILINE)
]
NOT_RUN = {
    "pip install": "changes the environment; test_extras_that_a_page_installs_exist",
    "pytest": "is what runs this",
    "capeval verify": "wants the numbers of real weights; tests/cli/test_fetch_metrics.py",
    "capeval page": "serves until it is stopped; tests/cli/test_process.py",
    "capeval serve": "serves until it is stopped; tests/integrations/test_serving.py",
    "export": "is for the lines that follow it, which cannot run",
    "lmms-eval": "is a package of its own environment; tests/adapters runs it",
}
"""Commands that cannot run here, and why, or which test has them."""
SHORTER = {
    "capeval train pacs": ["--steps", "2", "--batch-size", "4", "--device", "cpu"],
    "capeval augment captions": ["--device", "cpu"],
    "capeval augment images": ["--device", "cpu", "--steps", "1", "--image-size", "32"],
    "capeval fetch": ["--accept"],
    "capeval rerank": ["--weights", "tiny", "--members", "tiny"],
    "capeval publish": ["--dry-run"],
    "capeval shards score": ["--workers", "1", "--device", "cpu"],
}
"""What a test adds to commands that would take hours, gigabytes, or a login."""


def checkpoint(path: Path) -> None:
    """A seeded CLIP named as by PAC-S's authors; features lie on one side, so that cosines are positive."""
    case = CASES / "pacs-vit-tiny"
    manifest = json.loads((case / "manifest.json").read_text())
    arrays = recipe.state_dict(manifest, json.loads((case / "config.json").read_text())["seed"])
    arrays["visual.ln_post.bias"][:] = arrays["ln_final.bias"][:] = 0.5
    away = arrays["visual.proj"].sum(0) - arrays["text_projection"].sum(0)
    arrays["text_projection"] += away / len(arrays["text_projection"])
    torch.save({name: torch.from_numpy(array) for name, array in arrays.items()}, path)


def items() -> list[DemoItem]:
    """Packaged images, enough for intervals."""
    return demo_set()[:6]


def image(number: int) -> Callable[[Path], object]:
    return lambda path: shutil.copy(items()[number].image, path)


def photos(path: Path) -> None:
    path.mkdir()
    for item in items():
        shutil.copy(item.image, path / f"{item.id}.png")
    for item, name in zip(items()[:2], ("dog", "bench"), strict=True):
        shutil.copy(item.image, path / f"{name}.jpg")


def write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


def captions(kind: str = "good") -> Callable[[Path], object]:
    return lambda path: write_json(path, {item.id: getattr(item, kind) for item in items()})


def references(path: Path) -> None:
    write_json(path, {item.id: item.references for item in items()})


def pools(path: Path) -> None:
    write_json(path, {item.id: [item.good, item.subtly_wrong, item.unrelated] for item in items()})


def rated(path: Path) -> None:
    """A judged set in the form of Flickr8k-Expert."""
    rows = [
        {"image": f"{item.id}.png", "candidate": getattr(item, kind), "ratings": [rating, rating, 4]}
        for item in items()
        for kind, rating in (("good", 4), ("subtly_wrong", 2), ("unrelated", 1))
    ]
    write_lines(path / "judgements.jsonl", rows)
    write_json(path / "references.json", {f"{item.id}.png": item.references for item in items()})


def ratings(path: Path) -> None:
    path.write_text("image_id,rating\n" + "".join(f"{item.id},{item.id}\n" for item in items()))


def shards(path: Path) -> None:
    """Two shards of a collection: ids, captions, and images as bytes."""
    path.mkdir()
    rows = [{"uid": item.id, "caption": item.good, "image": (item.image).read_bytes()} for item in items()]
    for number, part in enumerate((rows[:4], rows[4:])):
        pq.write_table(pa.Table.from_pylist(part), path / f"{number}.parquet")


def converted(path: Path) -> None:
    checkpoint(path.with_suffix(".pth"))
    words = ["convert", "pacs", path.with_suffix(".pth"), "--activation", "quick_gelu", "--out", path]
    assert main(list(map(str, words))) == 0


def scored(kind: str) -> Callable[[Path], object]:
    """Scores of captions of one kind, as `capeval score --json` writes them."""

    def write(path: Path) -> None:
        captions(kind)(path.with_suffix(".captions.json"))
        needed = {"photos": photos, "references.json": references, "pacs-clip-vit-b-32": converted}
        for name, make in needed.items():
            if not (path.parent / name).exists():
                make(path.parent / name)
        words = ["score", "refpacs", "--candidates", path.with_suffix(".captions.json"), "--images", "photos"]
        words += ["--references", "references.json", "--weights", "pacs-clip-vit-b-32", "--json", path]
        assert main(list(map(str, words))) == 0

    return write


def clip(path: Path) -> None:
    path.write_bytes(written(drawn(4), **FORMS["mp4"]))


def frames(path: Path) -> None:
    path.mkdir()
    for number, frame in enumerate(drawn(3)):
        Image.fromarray(frame).save(path / f"{number}.png")


STAND_INS: dict[str, Callable[[Path], object]] = {
    "pacs-clip-vit-b-32": converted,
    "my-weights": lambda path: uniter().save_pretrained(path),
    "dog.jpg": image(0),
    "bench.jpg": image(1),
    "photos": photos,
    "images": photos,
    "frames": frames,
    "clip.mp4": clip,
    "captions.json": captions(),
    "other-captions.json": captions("subtly_wrong"),
    "references.json": references,
    "pools.json": pools,
    "scores.json": scored("good"),
    "other.json": scored("subtly_wrong"),
    "ratings.csv": ratings,
    "flickr8k": rated,
    "shards": shards,
}
"""What makes each file or folder that the text names, unless one of its commands does."""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that a page is read in, of a user who has a checkout beside."""
    folder = tmp_path / "place"
    folder.mkdir()
    (folder / "metrics").symlink_to(CHECKOUT / "metrics")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(evaluate.config, "HF_METRICS_CACHE", tmp_path / "metrics")
    return folder


@pytest.fixture(scope="module")
def repositories(captioner: Path, pipeline: Path, tmp_path_factory: pytest.TempPathFactory) -> Repositories:
    folders = {
        "timm/vit_base_patch32_clip_224.openai": write_open_clip(
            tmp_path_factory.mktemp("open_clip"), "pacs-vit-tiny"
        ),
        "Salesforce/blip-image-captioning-large": captioner,
        "CompVis/stable-diffusion-v1-4": pipeline,
    }
    umic, space, judged = (tmp_path_factory.mktemp(name) for name in ("umic", "space", "judged"))
    umic_checkpoint(umic, uniter(region_size=128, width=64))
    detector = space / "lxmert" / "unc-nlp" / "frcnn-vg-finetuned"
    detector.mkdir(parents=True)
    write_checkpoint(CASES / "frcnn-vg-tiny", detector)
    expert(judged)
    folders |= {"google-bert/bert-base-cased": umic, "spaces/WwYc/explain-LXMERT": space}
    folders |= {"datasets/yuwd/Flickr8k-HumanEval": judged}
    return {name: Repository.of({"main": folder}) for name, folder in folders.items()}


def expert(folder: Path) -> None:
    """Flickr8k-Expert in the columns of its repository."""
    rows = [
        {
            "img": {"bytes": item.image.read_bytes(), "path": item.image.name},
            "cand": getattr(item, kind),
            "refs": list(item.references),
            "human_score": rating,
        }
        for item in items()
        for kind, rating in (("good", 4.0), ("subtly_wrong", 2.0), ("unrelated", 1.0))
    ]
    (folder / "expert").mkdir()
    pq.write_table(pa.Table.from_pylist(rows), folder / "expert" / "test-00000-of-00001.parquet")
    (folder / "README.md").write_text("# A data set\n")


@pytest.fixture
def hub(repositories: Repositories, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A Hub and addresses of authors with small weights under the names of those that pages download."""
    umic = repositories["google-bert/bert-base-cased"].commits[commit("main")]["umic.pt"]
    with (
        serving(repositories) as running,
        origin() as web,
        small_release("pacs-clip-vit-b-32") as (pacs, *_),
        small_release("umic-uniter-base") as (umic_address, *_),
        small_release("faster-rcnn-vg-resnet-101"),
    ):
        checkpoint(tmp_path / "clip.pth")
        web.files[pacs.partition("?")[0]] = (tmp_path / "clip.pth").read_bytes()
        web.files[umic_address] = umic
        web.serve(monkeypatch)
        monkeypatch.setenv("CAPEVAL_CACHE", str(tmp_path / "cache"))
        monkeypatch.setenv("CAPEVAL_FETCH", "")  # as new users have it
        log_in(running.address, WRITER, tmp_path, monkeypatch)
        template = running.address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        yield


def names_of(page: Path) -> dict[str, Any]:
    """Names that a page's blocks take for granted: the model and data of a user's training."""
    if "Seq2SeqTrainer" not in page.read_text(encoding="utf-8"):
        return {}
    from tests.integrations.captioner import Scenes, captioner

    scenes = Scenes(2)
    return {
        "processor": scenes.tokenizer,
        "model": captioner(scenes.tokenizer),
        "train": scenes,
        "evaluation": scenes,
        "images": scenes.images,
        "references": scenes.references,
    }


def run(words: list[str]) -> None:
    """Run a command of the package in this process; make sure that others exist."""
    while "=" in words[0]:  # a variable of the environment
        words = words[1:]
    line = " ".join(words)
    if any(line.startswith(command) for command in NOT_RUN):
        return
    if words[:2] == ["python", "-m"]:  # of the checkout: a benchmark takes minutes
        assert importlib.util.find_spec(words[2]), line
        return
    assert words[0] == "capeval", f"{line}: say in NOT_RUN why it cannot run"
    added = [more for command, more in SHORTER.items() if line.startswith(command)]
    assert main(replaced(words[1:], added[0] if added else [])) == 0, line


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
@pytest.mark.usefixtures("hub")
def test_every_block_runs_as_it_stands(page: Path, place: Path) -> None:
    text = page.read_text(encoding="utf-8")
    code = "".join(re.findall(r"^```(?:python|sh)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    for name, make in STAND_INS.items():
        named = re.search(rf"(?<![\w./-]){re.escape(name)}(?![\w.-])", code)
        if named and not re.search(rf"--(out|json) {re.escape(name)}(?![\w.-])", code):
            make(place / name)
    run_snippets(text, page.name, names_of(page), run)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_extras_that_a_page_installs_exist(page: Path) -> None:
    setup = configparser.ConfigParser()
    setup.read(CHECKOUT / "setup.cfg")
    for extra in re.findall(r"pip install \"?[\w.]*\[([\w,]+)\]", page.read_text(encoding="utf-8")):
        assert set(extra.split(",")) <= setup["options.extras_require"].keys()


@pytest.mark.system
def test_the_first_block_of_the_readme_runs_from_any_directory_without_a_network(tmp_path: Path) -> None:
    """In a process of its own, since a test could leave things behind that it needs."""
    text = (CHECKOUT / "README.md").read_text(encoding="utf-8")
    first = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)[0]
    code = f"{first}\nprint(result.scores)"
    environment = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path), "PYTHONPATH": str(CHECKOUT)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    good, unrelated = json.loads(done.stdout)
    assert good > 1 > unrelated
