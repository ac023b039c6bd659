"""`capeval publish`, with the real client, to a Hub on the loopback."""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from capeval_core import load
from capeval_core.demo import demo_set
from capeval_core.registry import list_metrics, metric_class
from tests.cli.conftest import Capeval, write_json
from tests.hub import READER, WRITER, Fault, Hub, Repository, log_in, serving
from tests.support.seams import LIMITS, config_checksum

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


def change(folder: Path, **changes: object) -> None:
    config = json.loads((folder / "config.json").read_text()) | changes
    config["checksum"]["config.json"] = config_checksum(config)
    write_json(folder / "config.json", config)


def state(folder: Path, licence: str | None, **source: str) -> None:
    """What the weights say of their licence and their origin."""
    config = json.loads((folder / "config.json").read_text())
    change(folder, source=config["source"] | {"licence": licence, **source})


def files(hub: Hub, repository: str) -> dict[str, bytes]:
    revision = hub.repositories[repository].find("main")
    assert revision is not None
    return {path: content for path, content in revision[1].items() if path != ".gitattributes"}


def test_modules_become_spaces(capeval: Capeval, hub: Hub) -> None:
    ran = capeval("publish", "modules", "--namespace", "someone", "--install-from", SOURCE)
    assert (ran.status, ran.err) == (0, "")
    assert list(hub.repositories) == [f"spaces/someone/{name}" for name in list_metrics()]
    for name, line in zip(list_metrics(), ran.out.splitlines(), strict=True):
        repository = hub.repositories[f"spaces/someone/{name}"]
        assert repository.sdk == "gradio" and list(repository.names) == ["main"]
        assert line == f"spaces/someone/{name}: commit {repository.names['main']}"
        held = files(hub, f"spaces/someone/{name}")
        assert held.keys() == {f"{name}.py", "app.py", "README.md", "requirements.txt"}
        requirement = rf"^capeval(\[page(,video)?\])? @ {re.escape(SOURCE)}$"
        assert re.search(requirement, held["requirements.txt"].decode(), re.M)
        assert f"# From: {SOURCE}\n" in held[f"{name}.py"].decode()
        card = held["README.md"].decode()
        assert f'evaluate.load("someone/{name}"' in card and f"`pip install {SOURCE}`" in card
        weights = metric_class(name).default_weights
        assert "metrics/" not in card and (weights is None or f"`{weights.name}`" in card)


def test_what_is_there_already_makes_no_commit(capeval: Capeval, hub: Hub, folder: Path) -> None:
    modules = ["publish", "modules", "pacs", "clips", "--install-from", "pypi"]
    weights = ["publish", "weights", folder, "--namespace", "other"]
    first = capeval(*modules), capeval(*weights)
    assert [ran.status for ran in first] == [0, 0]
    held = files(hub, "other/mine")
    assert held.keys() == {"README.md", "config.json", "model.safetensors"}
    assert held["model.safetensors"] == (folder / "model.safetensors").read_bytes()
    for name in ("pacs", "clips"):
        assert "# From: capeval\n" in files(hub, f"spaces/capeval/{name}")[f"{name}.py"].decode()
    assert held["README.md"].endswith(b"load other/mine, other/pacs\n")
    assert hub.repositories["other/mine"].large == {"model.safetensors"}
    messages = {key: list(repository.messages) for key, repository in hub.repositories.items()}
    again = capeval(*modules), capeval(*weights)
    assert {key: repository.messages for key, repository in hub.repositories.items()} == messages
    for before, after in zip(first, again, strict=True):
        assert after.out == before.out.replace(": commit", ": unchanged, at")
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\nbetter\n")
    assert capeval(*weights, "--message", "A better card").out.startswith("other/mine: commit ")
    assert hub.repositories["other/mine"].messages[2:] == ["A better card"]
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\nbest\n")
    first_there, again_there = (capeval(*weights, "--branch", "trial").out for _ in range(2))
    assert again_there == first_there.replace(": commit", ": unchanged, at") != first_there
    assert capeval(*weights, "--branch", "v0.4.6").status == 2  # reads like a version
    assert list(hub.repositories["other/mine"].names) == ["main", "trial"]
    assert "publish the weights first" in capeval("publish", "cards", "pacs-tiny").err
    unknown = capeval("publish", "cards", "pacs-tinny")
    assert unknown.status == 2 and "'pacs-tinny': did you mean 'pacs-tiny'" in unknown.err
    assert not any("/tag/" in request for request in hub.requests)


RESTRICTED = [
    ("pacs-clip-vit-b-32", "mit", {}, "state no licence"),  # listed, by the repository's name
    ("mine", "mit", {"file": "clip_ViT-B-32.pth"}, "state no licence"),  # by the original's
    ("PACS-CLIP-ViT-B-32", "mit", {}, "state no licence"),
    ("mine", None, {}, "--licence"),  # one's own, perhaps
    ("mine", "not stated by the original", {}, "--licence"),
    ("mine", "cc-by-nc-4.0", {}, "for NonCommercial purposes only"),
    ("alpha-clip-vit-l-14", "mit", {}, "research use only"),
]


@pytest.mark.parametrize(("name", "licence", "source", "reason"), RESTRICTED)
def test_weights_are_not_hosted_again_without_permission(
    name: str,
    licence: str | None,
    source: dict[str, str],
    reason: str,
    capeval: Capeval,
    hub: Hub,
    folder: Path,
) -> None:
    state(folder, licence, **source)
    publish = ("publish", "weights", folder, "--name", name)
    ran = capeval(*publish)
    assert ran.status == 2 and not hub.requests
    assert all(part in ran.err for part in (reason, "--private", "--permission"))
    authors = {"state no licence": "aimagelab/pacscore", "research use only": "SunzeY/AlphaCLIP"}
    if reason in authors:
        assert f"authors of the original (https://github.com/{authors[reason]}" in ran.err
    if "--licence" in reason:
        assert "authors of the original" not in ran.err
        dry = capeval(*publish, "--dry-run")
        assert dry.status == 2 and reason in dry.err and "model.safetensors" in dry.out
    listed = "clip-vit-b-32" in name.lower() or source
    allowed = capeval(*publish, "--permission", "the authors, by letter")
    assert allowed.status == (2 if listed else 0)  # these are not the listed model
    if listed:
        assert "these weights are ViT/16 2x128, 64 pixels" in allowed.err and not hub.requests
        return
    assert "with permission: the authors, by letter" in hub.repositories[f"capeval/{name}"].messages[-1]
    assert files(hub, f"capeval/{name}")["README.md"].endswith(b"## Permission\n\nthe authors, by letter\n")


def test_a_private_copy_stays_private(capeval: Capeval, hub: Hub, folder: Path) -> None:
    state(folder, None)
    assert capeval("publish", "weights", folder, "--private", "--namespace", "someone").status == 0
    assert hub.repositories["someone/mine"].private
    hub.repositories["other/mine"] = Repository()
    hub.repositories["other/mine"].add("main", {"a": b""}, "public")
    assert capeval("publish", "weights", folder, "--private", "--namespace", "other").status == 2
    assert hub.repositories["other/mine"].messages == ["public"]


def test_damaged_weights_are_not_sent(capeval: Capeval, hub: Hub, folder: Path) -> None:
    change(folder, activation="gelu")
    ran = capeval("publish", "weights", folder)
    assert ran.status == 2 and "canary" in ran.err
    (folder / "model.safetensors").write_bytes(b"")
    ran = capeval("publish", "weights", folder)
    assert ran.status == 2 and "sha256" in ran.err and not hub.requests


def test_only_what_encoders_read_leaves_a_folder_of_weights(capeval: Capeval, hub: Hub, folder: Path) -> None:
    strays = ["token.json", "config.json.bak", "notes.txt", "pytorch_model.bin", ".env", "README.txt"]
    for name in [*strays, "a\x1b[2Jb"]:
        (folder / name).write_text("hf_secret")
    (folder / ".git").mkdir()
    (folder / ".git" / "config.json").write_text("hf_secret")
    (folder / "link.json").symlink_to("/etc/passwd")
    for name in ("vocab.txt", "tokenizer.json"):  # of a tokenizer
        (folder / name).write_text("a\n")
    change(folder, vocabulary={"file": "tokenizer.json"})
    planned = capeval("publish", "weights", folder, "--dry-run")
    assert planned.status == 0 and not hub.requests, planned.err
    assert all(name in planned.out for name in [*strays, ".git/", "link.json"]) and "\x1b" not in planned.out
    assert capeval("publish", "weights", folder).status == 0
    held = files(hub, "capeval/mine")
    assert held.keys() == {"README.md", "config.json", "model.safetensors", "vocab.txt", "tokenizer.json"}
    assert not any(
        b"hf_secret" in content or b"root:" in content for content in [*hub.stored.values(), *held.values()]
    )


def test_a_card_of_the_folder_that_another_one_takes_the_place_of_is_listed(
    capeval: Capeval, folder: Path
) -> None:
    """Listed weights have one card."""
    own = capeval("publish", "weights", folder, "--dry-run")
    listed = capeval("publish", "weights", folder, "--name", "pacs-tiny", "--dry-run")
    for ran, is_left in ((own, False), (listed, True)):
        assert ran.status == 0, ran.err
        _, said, left = ran.out.partition("not sent")
        assert ("README.md" in left) is is_left and bool(said) is is_left, ran.out


def test_weights_have_the_handler_of_an_inference_endpoint(
    capeval: Capeval, hub: Hub, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handler is opened from the repository's files, as the endpoint does it."""
    pytest.importorskip("starlette", reason="needs starlette: pip install capeval[serve]")
    assert capeval("publish", "weights", folder, "--install-from", SOURCE).status == 0
    repository = tmp_path / "repository"
    repository.mkdir()
    for name, content in files(hub, "capeval/mine").items():
        (repository / name).write_bytes(content)
    assert (repository / "requirements.txt").read_text() == f"capeval[serve] @ {SOURCE}\n"
    spec = importlib.util.spec_from_file_location("handler", repository / "handler.py")
    assert spec is not None and spec.loader is not None
    handler = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(handler)
    item = demo_set()[0]
    image = {"bytes": base64.b64encode(item.image.read_bytes()).decode()}
    for metrics in ("", "clips pacs"):
        monkeypatch.setenv("CAPEVAL_METRICS", metrics)
        endpoint = handler.EndpointHandler(str(repository))
        reply = endpoint({"inputs": {"captions": [item.good], "images": [image]}})
        assert list(reply["results"]) == (metrics.split() or ["pacs"])
        expected = load("pacs", weights=folder).score([item.good], [item.image]).scores
        assert reply["results"]["pacs"]["scores"] == pytest.approx(expected, abs=1e-6)
    refused = capeval("publish", "weights", folder, "--install-from", "https://host/a.whl?token=hf_secret")
    assert refused.status == 2 and "install from" in refused.err


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "vocab.txt", "README.md"])
@pytest.mark.parametrize("how", ["link", "pipe"])
def test_no_link_leads_out_of_a_folder_of_weights(
    how: str, name: str, capeval: Capeval, hub: Hub, folder: Path, tmp_path: Path
) -> None:
    (folder / "vocab.txt").write_text("a\n")
    outside = (folder / name).rename(tmp_path / "outside")
    if how == "pipe":
        os.mkfifo(folder / name)
    else:
        (folder / name).symlink_to(outside)
    ran = capeval("publish", "weights", folder)
    assert ran.status == 2 and f"{folder / name} is " in ran.err and not hub.requests
    (folder / name).unlink()
    outside.rename(folder / name)
    (tmp_path / "by-a-link").symlink_to(folder)  # the folder itself may be reached by one
    assert capeval("publish", "weights", tmp_path / "by-a-link", "--name", "mine").status == 0


@pytest.mark.parametrize(
    "address",
    [
        "https://user:hf_secret@host/capeval.whl",
        "git+https://hf_secret@host/org/capeval",
        "git+ssh://user:hf_secret@host/org/capeval",
        "user:hf_secret@host/org/capeval",
        "https://host/capeval.whl?X-Amz-Signature=hf_secret",
        "https://host/capeval.whl;token=hf_secret",
        "https://host/private_token=hf_secret/capeval.whl",
    ],
)
def test_an_address_with_a_secret_is_not_published(address: str, capeval: Capeval, hub: Hub) -> None:
    for more in ([], ["--dry-run"]):
        ran = capeval("publish", "modules", "pacs", "--install-from", address, *more)
        assert ran.status == 2 and not hub.requests
        assert "secret" not in ran.err + ran.out  # nor does it land in a log


@pytest.mark.parametrize(
    ("token", "namespace", "message"),
    [
        ("", "capeval", "hf auth login"),
        ("hf_old", "capeval", "the Hub knows no token, or not this one"),
        (READER, "capeval", "the token may not write to capeval/pacs"),
        (WRITER, "stranger", "the token may not write to stranger/pacs"),
        (WRITER, "a/b", "'a/b' is no name on the Hub"),
    ],
)
def test_who_may_not(
    token: str, namespace: str, message: str, capeval: Capeval, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    ran = capeval("publish", "modules", "pacs", "--install-from", "pypi", "--namespace", namespace)
    assert ran.status == 2 and message in ran.err and hub.repositories == {}
    assert "sent before" not in ran.err


def test_where_one_of_several_fails_those_that_were_sent_are_named(capeval: Capeval, hub: Hub) -> None:
    """And nothing of what comes after it."""
    publish = ("publish", "modules", "pacs", "clips", "bleu", "--install-from", "pypi")
    hub.faults.append(Fault("spaces/capeval/bleu", status=503))
    ran = capeval(*publish)
    sent = [line.partition(":")[0] for line in ran.out.splitlines()]
    assert ran.status == 2 and sent == ["spaces/capeval/pacs", "spaces/capeval/clips"]
    failure, _, rest = ran.err.partition("sent before that: ")
    assert "spaces/capeval/bleu: " in failure and "status 503" in failure
    assert rest.partition(";")[0] == ", ".join(sent) and "second run" in rest
    assert not any(address in failure for address in sent)
    hub.faults.clear()
    again = capeval(*publish)
    assert again.status == 0
    unchanged = [line.partition(":")[0] for line in again.out.splitlines() if "unchanged" in line]
    assert unchanged == sent
