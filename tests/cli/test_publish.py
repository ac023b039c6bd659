"""`capeval publish`, with the real client, to a Hub on the loopback."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import save_file

from capeval_core import publishing
from capeval_core._version import __version__
from capeval_core.registry import METRICS, NETWORKS, metric_class, network_of
from capeval_core.weights.catalogue import LICENCES, TINY_OF, WEIGHTS
from capeval_core.weights.folder import TINY, open_weights
from tests.cli.conftest import Ran
from tests.golden import recipe
from tests.golden.frcnn_vg_tiny import write_checkpoint
from tests.hub import READER, WRITER, Fault, Hub, Repository, log_in, serving
from tests.support import eva_checkpoint, seeded
from tests.support.seams import LIMITS
from tests.support.seeded import write_config

Capeval = Callable[..., Ran]
SOURCE = "git+https://example.org/someone/capeval@1f3c9a2b"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """An empty Hub that this process is logged in to."""
    with serving({}) as running:
        log_in(running.address, WRITER, tmp_path, monkeypatch)
        monkeypatch.setattr(LIMITS, "hub_waits", (0.0, 0.0, 0.0))
        yield running


@pytest.fixture
def folder(seeded_weights: Path, tmp_path: Path) -> Path:
    """Weights of someone's own, with a licence and a card."""
    copy = Path(shutil.copytree(seeded_weights, tmp_path / "mine"))
    state(copy, "apache-2.0")
    (copy / "README.md").write_text("---\nlicense: apache-2.0\n---\nload capeval/mine, capeval/pacs\n")
    return copy


def state(folder: Path, licence: str | None, **source: str) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["source"] |= {"licence": licence, **source}
    write_config(folder, config)


def files(hub: Hub, repository: str) -> dict[str, bytes]:
    revision = hub.repositories[repository].find("main")
    assert revision is not None
    return {path: content for path, content in revision[1].items() if path != ".gitattributes"}


EVA_FLAGS = ("--head-width", eva_checkpoint.Sizes().head_width)
RESEARCH = '(research only: "The data and checkpoint is intended and licensed for research use only.")'


def eva_clip(folder: Path) -> tuple[object, ...]:
    """Arguments of `capeval convert` for a small EVA-CLIP."""
    torch.save(eva_checkpoint.seeded(), folder / "eva.pt")
    return ("eva-clip", folder / "eva.pt", *EVA_FLAGS)


def alpha_clip(folder: Path) -> tuple[object, ...]:
    tower, base = seeded.alpha_checkpoints(folder)
    return ("hices", tower, "--base", base)


def sam(folder: Path) -> tuple[object, ...]:
    case = Path(__file__).parents[1] / "golden" / "cases" / "sam-boxes-tiny"
    tensors = recipe.state_dict(case / "manifest.json", 1)
    torch.save({name: torch.from_numpy(tensor) for name, tensor in tensors.items()}, folder / "sam.pth")
    return ("regions", folder / "sam.pth", "--decoder-heads", 2)


def faster_rcnn(folder: Path) -> tuple[object, ...]:
    return ("faster-rcnn", write_checkpoint(seeded.CASES / "frcnn-vg-tiny", folder))


def plain_open_clip(folder: Path) -> Path:
    """The seeded small CLIP in open_clip's format."""
    encoder = seeded.encoder()
    shape, pixels = encoder.config["architecture"], encoder.config["preprocessing"]
    model = {"embed_dim": shape["embed_dim"], "vision_cfg": shape["vision"], "text_cfg": shape["text"]}
    config = {
        "model_cfg": model | {"quick_gelu": encoder.config["activation"] == "quick_gelu"},
        "preprocess_cfg": {name: pixels[name] for name in ("mean", "std", "interpolation")},
    }
    folder.mkdir()
    save_file(encoder.model.state_dict(), folder / "open_clip_model.safetensors")
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    (folder / "README.md").write_text("---\nlicense: mit\n---\nof open_clip\n")
    return folder


CONVERSIONS = {"eva_clip": eva_clip, "alpha_clip": alpha_clip, "sam": sam, "faster_rcnn": faster_rcnn}


def no_tags(hub: Hub) -> bool:
    return not any("/tag/" in request for request in hub.requests)


def test_modules_become_spaces(capeval: Capeval, hub: Hub) -> None:
    ran = capeval("publish", "modules", "--namespace", "someone", "--install-from", SOURCE)
    assert (ran.status, ran.err) == (0, "")
    assert list(hub.repositories) == [f"spaces/someone/{name}" for name in METRICS]
    for name, line in zip(METRICS, ran.out.splitlines(), strict=True):
        repository = hub.repositories[f"spaces/someone/{name}"]
        assert repository.sdk == "gradio" and list(repository.names) == ["main"]
        assert line == f"spaces/someone/{name}: commit {repository.names['main']}"
        held = files(hub, f"spaces/someone/{name}")
        assert {f"{name}.py", "README.md", "requirements.txt"} <= held.keys()
        assert f"From: {SOURCE}\n" in held[f"{name}.py"].decode()
        assert re.search(
            rf"^capeval(\[page(,video)?\])? @ {re.escape(SOURCE)}$", held["requirements.txt"].decode(), re.M
        )
        card = held["README.md"].decode()
        assert f'evaluate.load("someone/{name}"' in card and f"`pip install {SOURCE}`" in card
        weights = metric_class(name).default_weights
        assert "metrics/" not in card and (weights is None or f"`{weights.repository}`" in card)
    assert no_tags(hub)


def test_what_is_there_already_makes_no_commit(capeval: Capeval, hub: Hub, folder: Path) -> None:
    modules = ["publish", "modules", "pacs", "clips", "--install-from", "pypi"]
    weights = ["publish", "weights", folder, "--namespace", "other"]
    first = capeval(*modules), capeval(*weights)
    assert [ran.status for ran in first] == [0, 0]
    messages = {key: list(repository.messages) for key, repository in hub.repositories.items()}
    assert messages["other/mine"][1:] == [
        f"Weights {checksum(folder)}, capeval {__version__}"
    ]  # beside the Hub's own first one
    again = capeval(*modules), capeval(*weights)
    assert {key: repository.messages for key, repository in hub.repositories.items()} == messages
    for before, after in zip(first, again, strict=True):
        assert after.out == before.out.replace(": commit", ": unchanged, at")
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\nbetter\n")
    assert capeval(*weights, "--message", "A better card").out.startswith("other/mine: commit ")
    assert hub.repositories["other/mine"].messages[2:] == ["A better card"]
    assert no_tags(hub)


def checksum(folder: Path) -> str:
    config = json.loads((folder / "config.json").read_text())
    return str(config["checksum"]["model.safetensors"])[:12]


def test_weights_become_a_model_with_its_card(capeval: Capeval, hub: Hub, folder: Path) -> None:
    (folder / "vocab.txt").write_text("a\n")  # of a tokenizer
    (folder / "original.pth").write_bytes(b"not to be sent")
    ran = capeval("publish", "weights", folder, "--namespace", "other")
    assert ran.status == 0, ran.err
    held = files(hub, "other/mine")
    assert held.keys() == {"README.md", "config.json", "model.safetensors", "vocab.txt"}
    for name in ("config.json", "model.safetensors"):
        assert held[name] == (folder / name).read_bytes()
    assert held["README.md"].endswith(b"load other/mine, other/pacs\n")
    assert hub.repositories["other/mine"].large == {"model.safetensors"}


@pytest.mark.system
@pytest.mark.parametrize("kind", [*NETWORKS, "clip in open_clip's format"])
def test_weights_of_every_network_are_whole_on_the_hub(
    kind: str, capeval: Capeval, hub: Hub, folder: Path, tmp_path: Path
) -> None:
    mine = tmp_path / "other" / "mine"
    mine.parent.mkdir()
    if kind in (conversions := CONVERSIONS):
        arguments = conversions[kind](tmp_path)
        ran = capeval("convert", *arguments, "--out", mine, "--licence", "MIT")
        assert ran.status == 0, ran.err
    elif kind == "open_clip":
        seeded.open_clip_repository(mine)
    elif kind in ("blip2", "scene_regions"):
        shutil.copytree(TINY / TINY_OF[kind], mine)
    elif kind == "x152":
        seeded.x152().save_pretrained(mine)
    elif kind in ("uniter", "vilbert"):
        getattr(seeded, kind)().save_pretrained(mine)
    elif kind == "clip":
        shutil.copytree(folder, mine)
    else:
        plain_open_clip(mine)
    (mine / "README.md").write_text("---\nlicense: mit\n---\n")
    # open_clip's format has no place for a licence, and the seeded detector has none.
    stated = "open_clip" not in kind and kind != "x152"
    permission = () if stated else ("--permission", "its authors, by letter")
    ran = capeval("publish", "weights", mine, *permission)
    assert ran.status == 0, ran.err
    there = tmp_path / "there"
    there.mkdir()
    for name, content in files(hub, "capeval/mine").items():
        (there / name).write_bytes(content)
    opened = [open_weights(each, metric="pacs", tiny="") for each in (mine, there)]
    encoders = [network_of(folder).open(folder, device="cpu") for folder in opened]
    assert encoders[0].kind == kind.split()[0] and encoders[0].fingerprint == encoders[1].fingerprint


def test_weights_beside_metrics_take_a_listed_card_or_none(
    capeval: Capeval, hub: Hub, tmp_path: Path
) -> None:
    listed, other = tmp_path / "eva-clip-18b", tmp_path / "eva-clip-8b"
    assert capeval("convert", *eva_clip(tmp_path), "--out", listed).status == 0
    assert capeval("publish", "weights", listed, "--namespace", "someone").status == 0  # Apache-2.0
    card = publishing.card("eva-clip-18b", "someone").files["README.md"]
    assert files(hub, "someone/eva-clip-18b")["README.md"] == card
    listed.rename(other)
    ran = capeval("publish", "weights", other)
    assert ran.status == 2 and "eva-clip-8b: the authors of the original state no licence" in ran.err
    (other / "README.md").unlink()
    ran = capeval("publish", "weights", other, "--private")
    assert ran.status == 2 and "there is no card for 'eva-clip-8b': put a README.md into" in ran.err
    assert "capeval/eva-clip-8b" not in hub.repositories


def test_a_listed_card_wins_and_goes_alone(capeval: Capeval, hub: Hub, folder: Path) -> None:
    missing = capeval("publish", "cards", "pacs-tiny")
    assert missing.status == 2 and "capeval/pacs-tiny: there is no such repository: publish" in missing.err
    assert hub.repositories == {}
    assert capeval("publish", "weights", folder, "--name", "pacs-tiny").status == 0
    card = files(hub, "capeval/pacs-tiny")["README.md"]
    assert b"capeval tiny" in card
    hub.repositories["capeval/pacs-tiny"].add("main", {"README.md": b"old"}, "changed by hand")
    assert capeval("publish", "cards", "pacs-tiny").status == 0
    assert files(hub, "capeval/pacs-tiny")["README.md"] == card
    unknown = capeval("publish", "cards", "pacs-tinny")
    assert unknown.status == 2 and "did you mean 'pacs-tiny'" in unknown.err


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("pacs-clip-vit-b-32", {}),  # by the repository's name
        ("mine", {"file": "clip_ViT-B-32.pth"}),  # by the original, whatever the folder is called
        ("PACS-CLIP-ViT-B-32", {}),
    ],
)
def test_weights_without_a_licence_are_not_hosted_again(
    name: str, source: dict[str, str], capeval: Capeval, hub: Hub, folder: Path
) -> None:
    state(folder, "mit", **source)  # whatever `convert --licence` recorded
    ran = capeval("publish", "weights", folder, "--name", name)
    assert ran.status == 2 and not hub.requests
    for part in (name, "state no licence", "github.com/aimagelab/pacscore", "--private", "--permission"):
        assert part in ran.err


@pytest.mark.parametrize("stated", [None, "not stated by the original"])
def test_unlisted_weights_say_their_licence(
    stated: str | None, capeval: Capeval, hub: Hub, folder: Path
) -> None:
    state(folder, stated)
    ran = capeval("publish", "weights", folder)
    assert ran.status == 2 and "mine: the authors of the original state no licence" in ran.err
    ran = capeval("publish", "weights", folder, "--permission", "the authors, by letter")
    assert ran.status == 0, ran.err
    assert "with permission: the authors, by letter" in hub.repositories["capeval/mine"].messages[-1]
    assert files(hub, "capeval/mine")["README.md"].endswith(b"## Permission\n\nthe authors, by letter\n")


def test_weights_of_restricted_use_need_a_permission(capeval: Capeval, hub: Hub, tmp_path: Path) -> None:
    folder = tmp_path / "alpha-clip-vit-l-14"
    assert capeval("convert", *alpha_clip(tmp_path), "--out", folder, "--licence", "MIT").status == 0
    publish = ("publish", "weights", folder, "--namespace")
    ran = capeval(*publish, "someone")
    assert ran.status == 2 and not hub.requests
    for part in ("github.com/SunzeY/AlphaCLIP", RESEARCH, "--private", "--permission"):
        assert part in ran.err
    assert capeval(*publish, "someone", "--private").status == 0
    assert hub.repositories["someone/alpha-clip-vit-l-14"].private
    ran = capeval(*publish, "other", "--permission", "the authors, by letter")
    assert ran.status == 0, ran.err
    repository = hub.repositories["other/alpha-clip-vit-l-14"]
    assert not repository.private and "with permission: the authors, by letter" in repository.messages[-1]
    held = files(hub, "other/alpha-clip-vit-l-14")["README.md"].decode()
    assert "license_name: research-only" in held and held.endswith(
        "## Permission\n\nthe authors, by letter\n"
    )


def test_a_licence_restricts_unlisted_weights_too(capeval: Capeval, hub: Hub, folder: Path) -> None:
    state(folder, "cc-by-nc-4.0")
    ran = capeval("publish", "weights", folder)
    assert ran.status == 2 and not hub.requests
    assert 'mine: the authors of the original restrict its use (cc-by-nc-4.0: "' in ran.err
    assert 'for NonCommercial purposes only")' in ran.err


@pytest.mark.system
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("CLIP-ViT-B-32-laion2B-s34B-b79K", None),  # MIT
        ("vit_large_patch14_clip_224.metaclip_2pt5b", 'CC-BY-NC-4.0: "'),
        ("MobileCLIP-B-LT-OpenCLIP", 'apple-amlr: "'),
        ("of-mine", "state no licence"),
    ],
)
def test_copies_of_listed_repositories_go_by_their_licence(
    name: str, message: str | None, capeval: Capeval, hub: Hub, tmp_path: Path
) -> None:
    ran = capeval("publish", "weights", plain_open_clip(tmp_path / name))
    if message is None:
        assert ran.status == 0, ran.err
        assert files(hub, f"capeval/{name}").keys() == {
            "README.md",
            "open_clip_config.json",
            "open_clip_model.safetensors",
        }
    else:
        assert ran.status == 2 and message in ran.err and not hub.requests


def test_of_every_listed_licence_it_is_said_what_it_restricts() -> None:
    assert {entry.licence for entry in WEIGHTS} - {None} == LICENCES.keys()


def test_another_model_is_not_published_under_a_listed_name(capeval: Capeval, hub: Hub, folder: Path) -> None:
    state(folder, "mit", file="clip_ViT-B-32.pth")
    ran = capeval("publish", "weights", folder, "--private")
    assert ran.status == 2 and not hub.requests
    assert "PAC-S, CLIP ViT-B/32 is ViT/32 12x768, 224 pixels; " in ran.err
    assert "these weights are ViT/16 2x128, 64 pixels; " in ran.err


def test_cards_do_not_deny_that_weights_are_handed_on() -> None:
    for name in publishing.cards():
        assert b"hand them on" not in publishing.card(name, "someone").files["README.md"], name


def test_a_private_copy_stays_private(capeval: Capeval, hub: Hub, folder: Path) -> None:
    state(folder, None)
    assert capeval("publish", "weights", folder, "--private", "--namespace", "someone").status == 0
    assert hub.repositories["someone/mine"].private
    hub.repositories["other/mine"] = Repository()
    hub.repositories["other/mine"].add("main", {"a": b""}, "public")
    ran = capeval("publish", "weights", folder, "--private", "--namespace", "other")
    assert ran.status == 2 and "other/mine: the repository exists and is public" in ran.err
    assert hub.repositories["other/mine"].messages == ["public"]


def test_damaged_weights_are_not_sent(capeval: Capeval, hub: Hub, folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    write_config(folder, config | {"activation": "gelu"})
    ran = capeval("publish", "weights", folder)
    assert ran.status == 2 and "canary cosines are off" in ran.err
    write_config(folder, config | {"encoder": "eclip"})
    ran = capeval("publish", "weights", folder)
    assert ran.status == 2 and "config.json has encoder 'eclip'" in ran.err
    (folder / "model.safetensors").write_bytes(b"")
    ran = capeval("publish", "weights", folder)
    assert ran.status == 2 and "model.safetensors has sha256" in ran.err
    assert not hub.requests


def test_a_dry_run_asks_nobody(capeval: Capeval, hub: Hub, folder: Path) -> None:
    ran = capeval("publish", "modules", "refpacs", "--install-from", "pypi", "--dry-run")
    assert ran.status == 0
    first, *rest = ran.out.splitlines()
    assert first == "spaces/capeval/refpacs"
    assert {"README.md", "refpacs.py", "requirements.txt"} <= {line.split()[0] for line in rest}
    assert rest[-1].startswith("nothing was sent")
    ran = capeval("publish", "weights", folder, "--dry-run")
    size = (folder / "model.safetensors").stat().st_size
    assert f"  model.safetensors  {size:,} bytes" in ran.out.splitlines()
    assert not hub.requests


def test_only_what_encoders_read_leaves_a_folder_of_weights(capeval: Capeval, hub: Hub, folder: Path) -> None:
    strays = [
        *("token.json", "credentials.txt", "config.json.bak", "secret_config.json", "notes.txt"),
        *("tokenizer.json", "open_clip_config.yaml", "pytorch_model.bin", ".env", "README.txt"),
    ]
    for name in strays:
        (folder / name).write_text("hf_secret")
    (folder / ".git").mkdir()
    (folder / ".git" / "config.json").write_text("hf_secret")
    (folder / "link.json").symlink_to("/etc/passwd")
    (folder / "gone.json").symlink_to("/no/such/file")
    planned = capeval("publish", "weights", folder, "--dry-run")
    assert planned.status == 0 and not hub.requests, planned.err
    first, *rows, left, _ = planned.out.splitlines()
    sizes = {
        "README.md": len((folder / "README.md").read_bytes()),
        "config.json": (folder / "config.json").stat().st_size,
        "model.safetensors": (folder / "model.safetensors").stat().st_size,
    }
    assert first == "capeval/mine"
    assert [row.split() for row in rows] == [[name, f"{size:,}", "bytes"] for name, size in sizes.items()]
    names = [".env", ".git/", *sorted([*strays, "link.json", "gone.json"])[1:]]
    assert left == f"  not sent: {', '.join(names)}"
    ran = capeval("publish", "weights", folder)
    assert ran.status == 0 and left in ran.out.splitlines(), ran.err
    assert files(hub, "capeval/mine").keys() == sizes.keys()
    sent = [*hub.stored.values(), *files(hub, "capeval/mine").values()]
    assert not any(b"hf_secret" in content or b"root:" in content for content in sent)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "vocab.txt", "README.md"])
@pytest.mark.parametrize("how", ["a link", "a link to a link", "a hard link", "no regular file"])
def test_no_link_leads_out_of_a_folder_of_weights(
    how: str, name: str, capeval: Capeval, hub: Hub, folder: Path, tmp_path: Path
) -> None:
    (folder / "vocab.txt").write_text("a\n")
    outside = (folder / name).rename(tmp_path / "outside")
    if how == "a link":
        (folder / name).symlink_to(outside)
    elif how == "a link to a link":
        (folder / "between").symlink_to(outside)
        (folder / name).symlink_to("between")
    elif how == "a hard link":
        (folder / name).hardlink_to(outside)
    else:
        os.mkfifo(folder / name)
    for more in ([], ["--dry-run"]):
        ran = capeval("publish", "weights", folder, *more)
        assert ran.status == 2 and not hub.requests
        assert (
            f"{folder / name} is {how.removesuffix(' to a link')}" in ran.err and "copy it there" in ran.err
        )


def test_names_that_are_not_sent_cannot_write_to_the_terminal(capeval: Capeval, folder: Path) -> None:
    (folder / "a\x1b[2Jb").touch()
    (folder / "café.txt").touch()
    ran = capeval("publish", "weights", folder, "--dry-run")
    assert r"'a\x1b[2Jb'" in ran.out and "\x1b" not in ran.out and "café.txt" in ran.out


def test_a_folder_may_itself_be_reached_by_a_link(
    capeval: Capeval, hub: Hub, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "by-a-link").symlink_to(folder)
    ran = capeval("publish", "weights", tmp_path / "by-a-link", "--name", "mine")
    assert ran.status == 0, ran.err
    assert files(hub, "capeval/mine").keys() == {"README.md", "config.json", "model.safetensors"}


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the folders that modules and cards are published from."""
    root = Path(__file__).parents[2]
    for name in ("metrics", "hub_cards"):
        shutil.copytree(root / name, tmp_path / "checkout" / name)
    monkeypatch.setattr("capeval_core.installed.__file__", str(tmp_path / "checkout/a/b.py"))
    return tmp_path / "checkout"


def test_only_a_modules_own_files_become_a_space(capeval: Capeval, hub: Hub, checkout: Path) -> None:
    pacs = checkout / "metrics" / "pacs"
    for name in (".env", "notes.txt", "results.json", "test_pacs.py"):
        (pacs / name).write_text("hf_secret")
    (pacs / "link.py").symlink_to("/etc/passwd")
    publish = ("publish", "modules", "pacs", "--install-from", "pypi")
    planned = capeval(*publish, "--dry-run")
    own = ["README.md", "app.py", "pacs.py", "requirements.txt"]
    left = "  not sent: .env, link.py, notes.txt, results.json, test_pacs.py"
    _, *rows, last, _ = planned.out.splitlines()
    assert [row.split()[0] for row in rows] == own and last == left
    assert capeval(*publish).status == 0
    assert sorted(files(hub, "spaces/capeval/pacs")) == own
    (pacs / "app.py").unlink()
    (pacs / "app.py").symlink_to("/etc/passwd")
    before = len(hub.requests)
    ran = capeval(*publish)
    assert ran.status == 2 and "app.py is a link to /etc/passwd" in ran.err and len(hub.requests) == before


def test_a_card_that_is_a_link_stays(capeval: Capeval, hub: Hub, folder: Path, checkout: Path) -> None:
    assert capeval("publish", "weights", folder, "--name", "pacs-tiny").status == 0
    before = len(hub.requests)
    (checkout / "hub_cards" / "pacs-tiny.md").unlink()
    (checkout / "hub_cards" / "pacs-tiny.md").symlink_to("/etc/passwd")
    for publish in (["cards", "pacs-tiny"], ["weights", folder, "--name", "pacs-tiny"]):
        ran = capeval("publish", *publish)
        assert ran.status == 2 and "pacs-tiny.md is a link to /etc/passwd" in ran.err
    assert len(hub.requests) == before


@pytest.mark.parametrize(
    "address",
    [
        "https://user:hf_secret@host/capeval.whl",
        "git+https://user:hf_secret@host/org/capeval@1f3c9a2b",
        "git+https://hf_secret@host/org/capeval",
        "git+https://hf_secret:@host/org/capeval",
        "git+https://:hf_secret@host/org/capeval",
        "git+https://user:hf/secret@host/org/capeval",
        "git+ssh://user:hf_secret@host/org/capeval",
        "http://user:hf_secret@host/capeval.whl",
        "user:hf_secret@host/org/capeval",
        "https://host/capeval.whl?token=hf_secret",
        "https://host/capeval.whl?X-Amz-Signature=hf_secret",
        "git+https://host/org/capeval?access_token=hf_secret",
        "https://host/capeval.whl;token=hf_secret",
        "https://host/private_token=hf_secret/capeval.whl",
    ],
)
def test_an_address_with_a_secret_is_not_published(address: str, capeval: Capeval, hub: Hub) -> None:
    for more in ([], ["--dry-run"]):
        ran = capeval("publish", "modules", "pacs", "--install-from", address, *more)
        assert ran.status == 2 and "install from: " in ran.err and not hub.requests
        assert "secret" not in ran.err + ran.out  # nor does it land in a log


@pytest.mark.parametrize("address", [SOURCE, "git+ssh://git@host/org/capeval@1f3c9a2b", "https://host/c.whl"])
def test_an_address_without_a_secret_is_published(address: str, capeval: Capeval, hub: Hub) -> None:
    assert capeval("publish", "modules", "pacs", "--install-from", address).status == 0
    assert f" @ {address}\n" in files(hub, "spaces/capeval/pacs")["requirements.txt"].decode()


def test_a_branch_is_made_and_main_stays(capeval: Capeval, hub: Hub, folder: Path) -> None:
    assert capeval("publish", "weights", folder).status == 0
    repository = hub.repositories["capeval/mine"]
    main = repository.names["main"]
    (folder / "README.md").write_text("---\n---\nnew\n")
    for _ in range(2):
        assert capeval("publish", "weights", folder, "--branch", "trial").status == 0
    assert repository.names["main"] == main and len(repository.messages) == 3
    assert repository.commits[repository.names["trial"]]["README.md"].endswith(b"new\n")
    for version in ("v0.4.6", "0.4.6", "v1.0"):
        ran = capeval("publish", "weights", folder, "--branch", version)
        assert ran.status == 2 and "reads like a version" in ran.err
    assert list(repository.names) == ["main", "trial"] and no_tags(hub)


@pytest.mark.parametrize(
    ("token", "namespace", "message"),
    [
        ("", "capeval", "not logged in to the Hub: run `hf auth login`"),
        ("hf_old", "capeval", "the Hub refuses the token: log in with `hf auth login`"),
        (READER, "capeval", "the token may only read"),
        (WRITER, "stranger", "logged in as 'someone', who may not write to 'stranger'"),
        (WRITER, "a/b", "'a/b' is no name on the Hub"),
    ],
)
def test_who_may_not(
    token: str, namespace: str, message: str, capeval: Capeval, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    ran = capeval("publish", "modules", "pacs", "--install-from", "pypi", "--namespace", namespace)
    assert ran.status == 2 and message in ran.err, ran.err
    assert hub.repositories == {} and "Traceback" not in ran.err


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (Fault("POST .*clips/commit", status=503), "answers with HTTP status 503: try again later"),
        (Fault("POST /api/spaces/capeval/clips/", status=403), "the token may not write to capeval/clips"),
    ],
)
def test_what_went_well_before_an_error_is_reported(
    fault: Fault, message: str, capeval: Capeval, hub: Hub
) -> None:
    hub.faults.append(fault)
    publish = ["publish", "modules", "pacs", "clips", "--install-from", "pypi"]
    ran = capeval(*publish)
    assert ran.status == 2 and ran.out.startswith("spaces/capeval/pacs: commit ")
    assert f"spaces/capeval/clips: {message}" in ran.err.replace(hub.address + " ", "")
    assert "sent before that: spaces/capeval/pacs" in ran.err
    hub.faults.clear()
    assert [line.split()[1] for line in capeval(*publish).out.splitlines()] == ["unchanged,", "commit"]


def test_a_busy_hub_is_asked_again(capeval: Capeval, hub: Hub) -> None:
    hub.faults.append(Fault("POST .*commit/main", status=503, times=2))
    assert capeval("publish", "modules", "pacs", "--install-from", "pypi").status == 0
    assert len(hub.repositories["spaces/capeval/pacs"].messages) == 2


def test_nobody_is_there(capeval: Capeval, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    ran = capeval("publish", "modules", "pacs", "--install-from", "pypi")
    assert ran.status == 2 and "http://127.0.0.1:9 cannot be reached" in ran.err


def test_a_card_that_the_hub_refuses(capeval: Capeval, hub: Hub, folder: Path) -> None:
    (folder / "README.md").write_text("no metadata")
    ran = capeval("publish", "weights", folder)
    assert ran.status == 2 and "capeval/mine: Invalid metadata in README.md" in ran.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "what comes first: capeval publish {modules,weights,cards}"),
        (["module"], "what comes first"),
        (["modules"], "--install-from"),
        (["modules", "pasc", "--install-from", "pypi"], "unknown metric 'pasc': did you mean 'pacs'?"),
        (["modules", "--install-from", "capeval"], "install from 'capeval': expected 'pypi', or an address"),
        (["weights"], "FOLDER"),
        (["weights", "no/such"], "no/such is not a folder"),
        (["cards"], "NAME"),
    ],
)
def test_wrong_arguments(arguments: list[str], message: str, capeval: Capeval) -> None:
    ran = capeval("publish", *arguments)
    assert (ran.status, ran.out) == (2, "") and message in ran.err
