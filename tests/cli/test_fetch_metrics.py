"""All metrics, judged sets and checks from the authors' addresses and the Hub, small and seeded."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import capeval_core
from tests.golden import recipe
from tests.golden.frcnn_vg_tiny import write_checkpoint
from tests.hub import Hub, Repository, ask_here, serving
from tests.hub.origin import Origin, origin
from tests.phrases.tiny_parser import save as save_parser
from tests.regions.conftest import save_owlv2, save_sam
from tests.support import seeded
from tests.support.seams import convert, small_release
from tests.support.seeded import CASES, alpha_checkpoints
from tests.weights.conftest import manifest, umic_checkpoint, write_open_clip

DETECTOR = "lxmert/unc-nlp/frcnn-vg-finetuned"
VILBERT_HEADS = {"text_heads": 4, "visual_heads": 4, "co_heads": 4}
BOX_WIDTHS = {"faster_rcnn": 128, "x152": 10}
"""Of the features of the small detectors."""
RUN = """
import contextlib, io, json, os, sys
from capeval_core.cli import main
from tests.support.seams import LIMITS
LIMITS.hub_waits = (0, 0)
ran = []
for line in %r:
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        status = main(line)
    ran.append([status, out.getvalue(), err.getvalue()])
print(json.dumps(ran))
"""

pytestmark = pytest.mark.system


class Network:
    """The Hub and the web of the authors, as processes of a test see them."""

    def __init__(self, hub: Hub, web: Origin, home: Path) -> None:
        self.hub, self.web, self.home = hub, web, home

    def run(self, *lines: list[str], **environment: str) -> list[tuple[int, str, str]]:
        """Status, stdout and stderr of commands, one after another in one process."""
        own = {"CAPEVAL_CACHE": str(self.home / "cache"), **self.web.environment(), **environment}
        found = ask_here(RUN % [list(line) for line in lines], self.hub.address, self.home, **own)
        return [(status, out, err) for status, out, err in found]


def write(folder: Path, **files: bytes) -> Path:
    for name, content in files.items():
        path = folder / name.replace("__", "/").replace("_pt", ".pt").replace("_txt", ".txt")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def saved(path: Path, tensors: dict[str, Any]) -> bytes:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(tensors, path)
    return path.read_bytes()


def vilbert_tensors() -> dict[str, Any]:
    """A seeded 12-in-1 in its original naming, for the features of the small detector."""
    tensors = dict(manifest("vilbertscore-tiny"))
    name = "bert.v_embeddings.image_embeddings.weight"
    shape = (tensors[name].shape[0], BOX_WIDTHS["x152"])
    tensors[name] = torch.from_numpy(recipe.tensor(name, shape, 3))
    return tensors


def plain_clip(folder: Path, path: Path) -> Path:
    """A CLIP in open_clip's repository format, of a checkpoint."""
    from open_clip.model import CLIP

    folder.mkdir()
    found = convert("clip", path, activation="quick_gelu")
    architecture = found.config["architecture"]
    model = CLIP(architecture["embed_dim"], architecture["vision"], architecture["text"])
    model.load_state_dict(found.tensors)
    save_file(model.state_dict(), folder / "open_clip_model.safetensors")
    sizes = {"vision_cfg": architecture["vision"], "text_cfg": architecture["text"], "quick_gelu": True}
    pixels = {key: found.config["preprocessing"][key] for key in ("mean", "std", "interpolation")}
    config = {
        "model_cfg": {"embed_dim": architecture["embed_dim"], **sizes},
        "preprocess_cfg": {"size": [64, 64], "resize_mode": "shortest", **pixels},
    }
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    return folder


def judged_shard(path: Path, rows: list[dict[str, Any]]) -> None:
    """Rows with pictures, as `push_to_hub` writes them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)


def pictures(folder: Path) -> dict[str, bytes]:
    rng = np.random.default_rng(5)
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("a", "b"):
        Image.fromarray(rng.integers(0, 256, (60, 80, 3), dtype=np.uint8)).save(folder / f"{name}.png")
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


REFERENCES = {"a.png": ["a red dog", "a dog"], "b.png": ["two men", "some men here"]}
RATED = [
    ("a.png", "a dog", 1.0),
    ("a.png", "a brown dog", 0.75),
    ("b.png", "two cats", 0.25),
    ("b.png", "men", 0.5),
]


PERSPECTIVES = {"desc": 1.0, "rel": 0.5, "flu": 0.25}
"""Of long captions, and what ratings of the others are multiplied with."""


def write_sets(folder: Path) -> dict[str, Repository]:
    """Judged sets in the columns of their repositories."""
    shown = pictures(folder / "shown")
    usual = [
        {
            "img": {"bytes": shown[image], "path": image},
            "cand": text,
            "refs": REFERENCES[image],
            "human_score": rating,
        }
        for image, text, rating in RATED
    ]
    expert = [row | {"human_score": float(rating)} for row in usual for rating in (1, 2, 4)]
    nebula = [
        {
            "image": row["img"],
            "file_name": f"{number % 2}.jpg",
            "mt": row["cand"],
            "refs": row["refs"],
            "human_score": row["human_score"],
        }
        for number, row in enumerate(usual)
    ]
    longcap = [
        {
            "image": row["img"],
            "file_name": row["img"]["path"],
            "cand": row["cand"],
            "refs": row["refs"],
            "score": row["human_score"],
        }
        for row in usual
    ]
    judged_shard(folder / "flickr" / "expert" / "test-00000-of-00001.parquet", expert)
    judged_shard(folder / "flickr" / "crowdflower" / "test-00000-of-00001.parquet", usual)
    judged_shard(folder / "composite" / "data" / "test-00000-of-00001.parquet", usual)
    judged_shard(folder / "polaris" / "data" / "test-00000-of-00001.parquet", usual)
    judged_shard(folder / "nebula" / "default" / "test" / "0000.parquet", nebula)
    for split, share in PERSPECTIVES.items():
        rows = [row | {"score": row["score"] * share} for row in longcap]
        judged_shard(folder / "longcap" / "default" / f"dci_test.{split}" / "0000.parquet", rows)
    files = [{"split": split, "path": f"data/{split}-*"} for split in ("train", "validation", "test")]
    card = {"configs": [{"config_name": "default", "data_files": files}]}
    (folder / "polaris" / "README.md").write_text(f"---\n{json.dumps(card)}\n---\n")
    for name in ("flickr", "composite"):
        (folder / name / "README.md").write_text("# A data set\n")
    names = {
        "yuwd/Flickr8k-HumanEval": "flickr",
        "yuwd/Composite": "composite",
        "yuwd/Polaris": "polaris",
        "Ka2ukiMatsuda/Nebula": "nebula",
        "Ka2ukiMatsuda/LongCap-Arena": "longcap",
    }
    branches = dict.fromkeys(("nebula", "longcap"), "refs/convert/parquet")
    return {
        f"datasets/{name}": Repository.of({branches.get(own, "main"): folder / own})
        for name, own in names.items()
    }


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    """Every address that a plan names, with small and seeded files."""
    root = tmp_path_factory.mktemp("network")
    for name in ("umic", "alpha", "frcnn", "specs", "bert", "sam", "owl", "parser"):
        (root / name).mkdir()
    umic = umic_checkpoint(root / "umic", seeded.uniter(BOX_WIDTHS["faster_rcnn"], 4))
    tower, base = alpha_checkpoints(root / "alpha")
    write_checkpoint(CASES / "frcnn-vg-tiny", root / "frcnn")
    files = root / "space" / DETECTOR
    files.mkdir(parents=True)
    for name in ("pytorch_model.bin", "config.yaml"):
        (root / "frcnn" / name).rename(files / name)
    save_sam(root / "sam", sure=True)
    save_owlv2(root / "owl")
    save_parser(root / "parser")
    words = [*seeded.WORDS, *(f"w{number}" for number in range(300 - len(seeded.WORDS)))]
    repositories = {
        "timm/vit_base_patch32_clip_224.openai": write_open_clip(root / "specs", "pacs-vit-tiny"),
        "timm/vit_large_patch14_clip_224.openai": plain_clip(root / "base", base),
        "Xiaohud/SPECS": write(root / "hub", spec_pt=saved(root / "s.pt", manifest("specs-vit-tiny"))),
        "google-bert/bert-base-cased": write(
            root / "cased", vocab_txt=(root / "umic" / "vocab.txt").read_bytes()
        ),
        "google-bert/bert-base-uncased": write(root / "uncased", vocab_txt="\n".join(words).encode() + b"\n"),
        "spaces/WwYc/explain-LXMERT": root / "space",
        "Zigeng/SlimSAM-uniform-77": root / "sam",
        "google/owlv2-base-patch16-ensemble": root / "owl",
        "lizhuang144/flan-t5-base-VG-factual-sg": root / "parser",
        "Salesforce/blip2-itm-vit-g-coco": seeded.blip2_weights(root),
        "laion/CLIP-ViT-L-14-laion2B-s32B-b82K": write_open_clip(root / "bert", "pacs-openclip-tiny"),
    }
    hubs = {name: Repository.of({"main": folder}) for name, folder in repositories.items()}
    with ExitStack() as stack:
        hub = stack.enter_context(serving({**hubs, **write_sets(root / "sets")}))
        web = stack.enter_context(origin())
        pacs, *_ = stack.enter_context(small_release("pacs-clip-vit-b-32"))
        stack.enter_context(small_release("specs-clip-vit-b-32"))
        alpha, *_ = stack.enter_context(small_release("alpha-clip-vit-l-14"))
        umic_address, *_ = stack.enter_context(small_release("umic-uniter-base", {"heads": 4}))
        stack.enter_context(small_release("faster-rcnn-vg-resnet-101"))
        stack.enter_context(small_release("SlimSAM-uniform-77"))
        vilbert, *_ = stack.enter_context(small_release("vilbert-12-in-1", VILBERT_HEADS))
        x152, _ = stack.enter_context(small_release("faster-rcnn-vg-resnext-152"))
        contents = {
            pacs: saved(root / "p.pth", {"state_dict": manifest("pacs-vit-tiny")}),
            alpha: tower.read_bytes(),
            umic_address: umic.read_bytes(),
            vilbert: saved(root / "v.bin", vilbert_tensors()),
            x152: seeded.x152_checkpoint(root / "x.pth").read_bytes(),
        }
        web.files |= {address.partition("?")[0]: content for address, content in contents.items()}
        web.files[f"{x152.rpartition('/')[0]}/detectron_config.yaml"] = b"{}"
        yield Network(hub, web, root)


CAPTIONS = {"a": "a brown dog runs in the park", "b": "two men"}
SOURCES: dict[str, list[str]] = {
    "pacs": ["clip_ViT-B-32.pth"],
    "refpacs": ["clip_ViT-B-32.pth"],
    "clips": ["timm/vit_base_patch32_clip_224.openai"],
    "specs": ["spec.pt"],
    "hices": ["clip_l14_grit20m_fultune_2xe.pth", "SlimSAM", "owlv2", "FACTUAL"],
    "umic": ["umic.pt", "vocab.txt", "pytorch_model.bin"],
    "vilbertscore": ["multi_task_model.bin", "detectron_model.pth"],
}
"""What is fetched for each metric."""


def user_files(network: Network) -> list[str]:
    """The flags of a user's own captions, photographs and references."""
    folder = network.home / "user"
    pictures(folder / "photos")
    (folder / "c.json").write_text(json.dumps(CAPTIONS))
    (folder / "r.json").write_text(json.dumps({name: [text, "a dog"] for name, text in CAPTIONS.items()}))
    return ["--candidates", str(folder / "c.json"), "--images", str(folder / "photos")]


@pytest.mark.parametrize("name", SOURCES)
def test_one_command_and_a_metric_scores(name: str, network: Network) -> None:
    line = ["score", name, *user_files(network)]
    if name in ("refpacs", "vilbertscore"):
        line += ["--references", str(network.home / "user" / "r.json")]
    plan, fetched, again, scored = network.run(
        ["fetch", name, "--dry-run"], ["fetch", name, "--accept"], ["fetch", name, "--locked"], line
    )
    assert [plan[0], fetched[0], again[0], scored[0]] == [0, 0, 0, 0], (fetched, again, scored)
    for source in SOURCES[name]:
        assert source in plan[1]
    assert "0 failed" in scored[1] and "|weights:" in scored[1]
    # Without any network all of it is there.
    network.web.requests.clear()
    network.hub.requests.clear()
    (offline,) = network.run(line, HF_HUB_OFFLINE="1")
    assert offline[:2] == scored[:2] and not network.hub.requests and not network.web.requests


@pytest.mark.parametrize("name", ["specs", "umic", "vilbertscore", "clips"])
def test_what_is_open_needs_no_command(name: str, network: Network, tmp_path: Path) -> None:
    line = ["score", name, *user_files(network)]
    if name == "vilbertscore":
        line += ["--references", str(network.home / "user" / "r.json")]
    (scored,) = network.run(line, CAPEVAL_CACHE=str(tmp_path), HF_HOME=str(tmp_path / "hub"))
    assert scored[0] == 0, scored
    assert "sha256" in (tmp_path / "capeval.lock").read_text()
    if name != "clips":
        assert "fetched" in scored[2] and "sha256" in scored[2]


def test_eco_brings_the_members_that_are_named(network: Network) -> None:
    pools = network.home / "pools.json"
    pools.write_text(json.dumps({name: [text, "a cat", "two men"] for name, text in CAPTIONS.items()}))
    images = user_files(network)[2:]
    members = "openclip-l14,blip2-itc"
    out = str(network.home / "best.csv")
    fetched, chosen, all_of_it = network.run(
        ["fetch", "eco", "--only", members],
        ["rerank", "--candidates", str(pools), *images, "--members", members, "--out", out],
        ["fetch", "eco"],
    )
    assert fetched[0] == chosen[0] == 0, (fetched, chosen)
    assert all_of_it[0] == 2 and "CC-BY-NC-4.0" in all_of_it[2] and "apple-amlr" in all_of_it[2]


def test_a_hub_file_that_changed_is_refused_where_it_is_the_default(network: Network, tmp_path: Path) -> None:
    repository = network.hub.repositories["timm/vit_base_patch32_clip_224.openai"]
    before = dict(repository.names)
    own = {"CAPEVAL_CACHE": str(tmp_path), "HF_HOME": str(tmp_path / "hub")}
    line = ["score", "clips", *user_files(network)]
    (first,) = network.run(line, **own)
    changed = bytearray(repository.commits[before["main"]]["open_clip_model.safetensors"])
    changed[-1] ^= 1
    repository.add("main", {"open_clip_model.safetensors": bytes(changed)}, "another version")
    try:
        refused, said, taken, again = network.run(
            line,
            [*line, "--weights", "timm/vit_base_patch32_clip_224.openai"],
            ["fetch", "clips", "--update"],
            line,
            **own,
        )
    finally:
        repository.names = before
    assert first[0] == 0 and refused[0] == 2 and "--update" in refused[2]
    assert said[0] == taken[0] == again[0] == 0


# judged sets

SETS = {
    "flickr8k_expert": 12,
    "flickr8k_cf": 4,
    "composite": 4,
    "nebula": 4,
    "polaris": 4,
    "longcap_arena": 4,
}
"""Rows of each small set."""


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def written_rows(name: str, folder: Path) -> Iterator[tuple[str, str, list[str], Any]]:
    """Picture, candidate, references and rating of a set, in the form that its help describes."""
    if name == "flickr8k_expert":
        references = json.loads((folder / "references.json").read_text())
        for row in lines_of(folder / "judgements.jsonl"):
            yield row["image"], row["candidate"], references[row["image"]], row["ratings"]
    elif name == "flickr8k_cf":
        references = json.loads((folder / "references.json").read_text())
        captions = json.loads((folder / "captions.json").read_text())
        for line in (folder / "judgements.csv").read_text().splitlines()[1:]:
            image, number, yes, no = line.split(",")
            yield image, captions[number], references[image], float(yes) / (float(yes) + float(no))
    elif name == "composite":
        references = json.loads((folder / "references.json").read_text())
        for row in lines_of(folder / "judgements.jsonl"):
            of_image = references[f"{row['subset']}/{row['image']}"]
            # Of the small set, "a dog" is a candidate and the second reference of its image.
            assert of_image["human_candidate_index"] == (1 if "a dog" in of_image["references"] else None)
            yield row["image"], row["candidate"], of_image["references"], row["rating"]
    elif name == "longcap_arena":
        for split, share in PERSPECTIVES.items():
            for row in lines_of(folder / f"test.{split}.jsonl"):
                yield row["file_name"], row["cand"], row["refs"], row["score"] / share
    else:
        for row in lines_of(folder / "test.jsonl"):
            yield row["image"], row["candidate"], row["references"], row["human_score"]


@pytest.mark.parametrize("name", SETS)
def test_a_fetched_set_is_judged_without_other_arguments(name: str, network: Network, tmp_path: Path) -> None:
    before, fetched, again, judged = network.run(
        ["judge", name, "--metrics", "bleu"],
        ["fetch", name, "--accept"],
        ["fetch", name, "--accept", "--locked"],
        ["judge", name, "--metrics", "bleu,clips", "--resamples", "0", "--out", str(tmp_path)],
        CAPEVAL_CACHE=str(tmp_path / "cache"),
    )
    assert before[0] == 2 and f"capeval fetch {name}" in before[2]
    assert [fetched[0], again[0], judged[0]] == [0, 0, 0], (fetched, again, judged)
    lines = (tmp_path / f"{name}.csv").read_text().splitlines()
    rows = {line.split(",")[lines[0].split(",").index("rows")] for line in lines[1:]}
    left_out = 3 if name == "flickr8k_expert" else 0  # ratings of a candidate that is a reference
    assert rows == {str(SETS[name] - left_out)}

    (folder,) = (tmp_path / "cache" / "sets" / name).iterdir()
    shown = network.home / "sets" / "shown"
    expected = []
    for image, candidate, rating in RATED * (len(PERSPECTIVES) if name == "longcap_arena" else 1):
        ratings = [1, 2, 4] if name == "flickr8k_expert" else rating
        expected.append(((shown / image).read_bytes(), candidate, REFERENCES[image], ratings))
    written = []
    for image, *texts_and_rating in written_rows(name, folder):
        written.append(((folder / "images" / image).read_bytes(), *texts_and_rating))
    assert written == expected


def test_the_line_of_the_issue_needs_no_other_argument(network: Network) -> None:
    fetched, judged = network.run(
        ["fetch", "pacs", "flickr8k_expert", "--accept"],
        ["judge", "flickr8k_expert", "--metrics", "pacs,refpacs,clips"],
    )
    assert fetched[0] == judged[0] == 0, (fetched, judged)
    assert all(title in judged[1] for title in ("PAC-S", "RefPAC-S", "CLIP-S"))


def card(path: str) -> bytes:
    """A card that says where the rows of Polaris lie."""
    files = [{"split": "test", "path": path}]
    return (
        f"---\n{json.dumps({'configs': [{'config_name': 'default', 'data_files': files}]})}\n---\n".encode()
    )


HOSTILE: dict[str, dict[str, bytes]] = {
    "files outside": {"README.md": card("../../../../**/*.parquet")},
    "files of the machine": {"README.md": card("/etc/*.parquet")},
    "a card that is broken": {"README.md": b"---\nconfigs: [a: {b\n---\n"},
    "a card of another form": {"README.md": b"---\nconfigs: 5\n---\n"},
    "rows that are none": {"data/test-00000-of-00001.parquet": b"PAR1 rows PAR1"},
}


@pytest.mark.parametrize("fault", HOSTILE)
def test_a_set_that_somebody_else_changed(fault: str, network: Network, tmp_path: Path) -> None:
    repository = network.hub.repositories["datasets/yuwd/Polaris"]
    before = dict(repository.names)
    repository.add("main", HOSTILE[fault], fault)
    own = {"CAPEVAL_CACHE": str(tmp_path / "cache"), "HF_HOME": str(tmp_path / "hub")}
    try:
        (refused,) = network.run(["fetch", "polaris"], **own)
    finally:
        repository.names = before
    assert refused[0] == 2 and not list((tmp_path / "cache").glob("sets/*/*"))
    (name,) = HOSTILE[fault]
    assert name in refused[2] and "Traceback" not in refused[2]


def test_names_and_references_of_a_set_are_texts(network: Network, tmp_path: Path) -> None:
    """Names of pictures lead nowhere else, and what only looks like a list is a reference."""
    picture = (network.home / "sets" / "shown" / "a.png").read_bytes()
    rows = []
    for number, references in enumerate(("[unclear] a dog", "['a dog', 'two']", "[__import__('os')]")):
        image = {"bytes": picture, "path": f"../../{number}.png"}
        rows.append({"img": image, "cand": "a dog", "refs": references, "human_score": number / 2})
    judged_shard(tmp_path / "rows.parquet", rows)
    repository = network.hub.repositories["datasets/yuwd/Polaris"]
    before = dict(repository.names)
    shard = {"data/test-00000-of-00001.parquet": (tmp_path / "rows.parquet").read_bytes()}
    repository.add("main", shard, "other rows")
    own = {"CAPEVAL_CACHE": str(tmp_path / "cache"), "HF_HOME": str(tmp_path / "hub")}
    try:
        (fetched,) = network.run(["fetch", "polaris"], **own)
    finally:
        repository.names = before
    assert fetched[0] == 0, fetched
    (folder,) = (tmp_path / "cache" / "sets" / "polaris").iterdir()
    assert sorted(path.name for path in (folder / "images").iterdir()) == ["0.png", "1.png", "2.png"]
    lines = [json.loads(line) for line in (folder / "test.jsonl").read_text().splitlines()]
    expected = [["[unclear] a dog"], ["a dog", "two"], ["[__import__('os')]"]]
    assert [line["references"] for line in lines] == expected


def test_what_is_published_under_our_names_is_no_default(network: Network, tmp_path: Path) -> None:
    """The namespace of our names is not ours: only who names such a repository gets it, and sees its name."""
    squatted = "capeval/pacs-clip-vit-b-32"
    repository = network.hub.repositories["timm/vit_base_patch32_clip_224.openai"]
    network.hub.repositories[squatted] = repository
    network.hub.requests.clear()
    line = ["score", "pacs", *user_files(network)]
    own = {"CAPEVAL_CACHE": str(tmp_path / "cache"), "HF_HOME": str(tmp_path / "hub")}
    refused, named = network.run(line, [*line, "--weights", squatted], **own)
    del network.hub.repositories[squatted]
    assert refused[0] == 2 and "capeval fetch" in refused[2]
    assert named[0] == 0 and f"|weights:{squatted}@" in named[1]


# checks

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "example_dogs" / "pacscore"


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"there is no {SHARED}")
def test_verify_fetches_what_it_needs(network: Network, tmp_path: Path) -> None:
    published = Path(capeval_core.__file__).with_name("judgements") / "published.toml"
    example = tomllib.loads(published.read_text())["example_dogs"]["pacscore"]
    for path in example["files"]:
        network.web.files[f"{example['address']}/{path}"] = (SHARED / Path(path).name).read_bytes()
    out = tmp_path / "out.json"
    refused, ran, again = network.run(
        ["verify", "pacs"],
        ["verify", "pacs", "--accept", "--json", str(out)],
        ["verify", "ciderd"],
        CAPEVAL_CACHE=str(tmp_path / "cache"),
    )
    assert refused[0] == 2 and "--accept" in refused[2]
    # The weights are seeded: the published number cannot come out, and is said to.
    assert ran[0] == 1 and "ok           canary" in ran[1]
    assert "FAIL         two photographs, good captions" in ran[1] and "published 0.8264" in ran[1]
    content = json.loads(out.read_text())
    (good,) = [check for check in content["checks"] if check["what"].endswith("good captions")]
    assert good["published"] == 0.8264 and content["sha256"]
    assert again[0] == 0 and "ok           two photographs, good captions" in again[1]
    assert "1.4918, published 1.4918" in again[1]


def test_photographs_that_cannot_be_had_are_not_checked(network: Network, tmp_path: Path) -> None:
    for address in [one for one in network.web.files if "githubusercontent" in one]:
        del network.web.files[address]
    (ran,) = network.run(["verify", "pacs", "--accept"], CAPEVAL_CACHE=str(tmp_path))
    assert ran[0] == 0 and "not checked  two photographs" in ran[1] and "404" in ran[2]
    assert "ok           canary" in ran[1]


EVALUATE = """
import contextlib, io, json, sys
from capeval_core.cli import main
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    assert main(["fetch", "pacs", "--accept"]) == main(["modules", "capeval"]) == 0
    import evaluate
    metric = evaluate.load("capeval/pacs")
    value = metric.compute(predictions=["a dog"], images=[%r], per_caption=True)
print(json.dumps([value["pac_s"], value["signature"]]))
"""


def test_the_line_of_the_readme_beside_a_folder_of_modules(network: Network, tmp_path: Path) -> None:
    user_files(network)
    image = str(network.home / "user" / "photos" / "a.png")
    own = {"CAPEVAL_CACHE": str(tmp_path / "cache"), **network.web.environment()}
    network.hub.requests.clear()
    value, signature = ask_here(EVALUATE % image, network.hub.address, network.home, **own)
    assert "|weights:pacs-clip-vit-b-32@" in signature and isinstance(value, float)
    assert not [request for request in network.hub.requests if "spaces" in request]


JOB = """
import contextlib, io, json, runpy, sys
sys.argv = ["verify_job.py", "--accept", "--metrics", "pacs", "--sets", "polaris", "--out", %r]
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    try:
        runpy.run_path(%r, run_name="__main__")
    except SystemExit as ended:
        status = ended.code
print(json.dumps(status))
"""


def test_the_job_that_anyone_can_run(network: Network, tmp_path: Path) -> None:
    script = str(Path(__file__).parents[2] / "examples" / "verify_job.py")
    own = {"CAPEVAL_CACHE": str(tmp_path / "cache"), **network.web.environment()}
    status = ask_here(JOB % (str(tmp_path / "out"), script), network.hub.address, network.home, **own)
    content = json.loads((tmp_path / "out" / "verified.json").read_text())
    assert {row["metric"] for row in content["rows"]} == {"PAC-S"} and content["date"]
    assert any(row["what"] == "canary" and row["verdict"] == "ok" for row in content["rows"])
    assert status == 1 if any(row["verdict"] == "FAIL" for row in content["rows"]) else status == 0
    assert (tmp_path / "out" / "verified.md").read_text().startswith("| metric | what |")
    assert (tmp_path / "out" / "judged" / "polaris.csv").is_file()
