"""Weights from a Hub on the loopback: repositories, missing ones, and failures between."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.hub import Fault, Hub, Repository, ask_here, commit, serving

PACS = "capeval/pacs-clip-vit-b-32"  # listed, and not on this Hub
OPEN = """
import json, warnings
import numpy as np
import capeval_core
from tests.support.seams import LIMITS
LIMITS.hub_waits = (0, 0, 0)
answers = {}
for name in %s:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            metric = capeval_core.load("pacs", weights=name, device="cpu")
            signature = metric.score(["a dog"], [np.zeros((64, 64, 3), np.uint8)]).signature
            answers[name] = {"label": signature.split("|weights:")[1].split("|")[0]}
        except Exception as error:
            answers[name] = {"kind": type(error).__name__, "message": str(error)}
    if caught:
        answers[name]["warned"] = " ".join(str(warning.message) for warning in caught)
print(json.dumps(answers))
"""


def opened(name: str, sha: str) -> dict[str, str]:
    """The answer where all is well: the commit, and not a word."""
    return {"label": f"{name.partition('@')[0]}@{sha[:8]}"}


@pytest.fixture(scope="module")
def repositories(
    seeded_weights: Path, open_clip_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Repository]:
    bare, nothing = tmp_path_factory.mktemp("bare"), tmp_path_factory.mktemp("nothing")
    shutil.copy(seeded_weights / "config.json", bare)
    (nothing / "README.md").write_text("soon")
    return {
        "org/good": Repository.of({"main": seeded_weights, "v1": seeded_weights}),
        "org/open-clip": Repository.of({"main": open_clip_folder}),
        "org/gated": Repository.of({"main": seeded_weights}, gated=True),
        "org/bare": Repository.of({"main": bare}),
        "org/nothing": Repository.of({"main": nothing}),
        "timm/vit_base_patch32_clip_224.openai": Repository.of({"main": open_clip_folder}),
    }


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The client's cache."""
    return tmp_path_factory.mktemp("home")


NAMES = [
    "org/good",
    "org/good@v1",
    f"org/good@{commit('v1')}",
    f"org/good@{commit('v1')[:8]}",
    "org/good@v7",
    "org/open-clip",
    "org/gated",
    "org/bare",
    "org/nothing",
    "org/missing",
    PACS,
    "timm/vit_base_patch32_clip_224.openai",
]


@pytest.fixture(scope="module")
def online(repositories: dict[str, Repository], home: Path) -> tuple[dict[str, Any], Hub]:
    """What the client gets while the Hub is up, and the Hub, which is down by now."""
    with serving(repositories) as hub:
        return ask_here(OPEN % NAMES, hub.address, home), hub


def test_a_repository_and_a_pinned_revision_show_their_commit(online: tuple[dict[str, Any], Hub]) -> None:
    answers, hub = online
    assert answers["org/good"] == opened("org/good", commit("main"))
    for name in ("org/good@v1", f"org/good@{commit('v1')}", f"org/good@{commit('v1')[:8]}"):
        assert answers[name] == opened("org/good", commit("v1"))
    assert answers["org/open-clip"] == opened("org/open-clip", commit("main"))
    assert not any("README" in request for request in hub.requests)  # only what is needed


def test_offline_on_purpose_the_cache_serves_without_a_word(
    online: tuple[dict[str, Any], Hub], home: Path
) -> None:
    answers, hub = online
    names = ["org/good", "org/good@v1", "org/open-clip", PACS]
    offline = ask_here(OPEN % names, hub.address, home, HF_HUB_OFFLINE="1")
    for name in names[:3]:
        assert offline[name] == answers[name]
    message = offline[PACS]["message"]
    assert (
        "not in the local cache; HF_HUB_OFFLINE is set" in message
        and "capeval fetch pacs-clip-vit-b-32" in message
    )


def test_a_dead_hub_is_a_warning_and_the_cache_still_serves(
    online: tuple[dict[str, Any], Hub], home: Path
) -> None:
    answers, hub = online
    pinned = [f"org/good@{commit('v1')}", f"org/good@{commit('v1')[:8]}"]
    names = ["org/good", "org/good@v1", *pinned, "org/new", f"org/new@{'0' * 40}", PACS]
    dead = ask_here(OPEN % names, hub.address, home)
    for name in names[:2]:
        warned = dead[name].pop("warned")
        sha = commit("v1" if "@" in name else "main")
        for part in (repr(name), f"{hub.address} cannot be reached", f"Commit {sha}", "HF_HUB_OFFLINE=1"):
            assert part in warned
        assert f"pass 'org/good@{sha}'" in warned
    assert all(dead[name] == answers[name] for name in [*names[:2], *pinned])
    for name in names[4:]:
        assert f"not in the local cache; {hub.address} cannot be reached" in dead[name]["message"]
    assert "capeval fetch pacs-clip-vit-b-32" in dead[PACS]["message"]


def test_a_repository_is_warned_of_once(home: Path, repositories: dict[str, Repository]) -> None:
    """Several networks of a page open one repository, with a paragraph each."""
    once = OPEN % ["org/twice"]
    with serving({"org/twice": repositories["org/good"]}) as hub:
        ask_here(once, hub.address, home)
    assert "warned" in ask_here(once, hub.address, home)["org/twice"]
    assert "warned" not in ask_here(f"{once}\n{once}", hub.address, home)["org/twice"]


CACHED = ["org/slow", "org/down", "org/gone", "org/new-file"]
FAULTS = {
    "org/slow": Fault("GET /api/models/org/slow/revision", status=503, times=3),
    "org/down": Fault("org/down", status=503),
    "org/first-down": Fault("org/first-down", status=503),
    "org/busy-file": Fault("GET /org/busy-file.*safetensors", status=503, times=2),
    "org/cut": Fault("GET /org/cut/.*safetensors", cut=1000, times=1),
    "org/cut-off": Fault("GET /org/cut-off.*safetensors", cut=1000),
    "org/new-file": Fault("GET /org/new-file.*safetensors", cut=10),
    "org/no-json": Fault("GET /api/models/org/no-json", status=200),
}


@pytest.fixture(scope="module")
def troubled(
    seeded_weights: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Repository], Hub]:
    """What the client gets from a Hub in trouble, and then, where that has passed."""
    home = tmp_path_factory.mktemp("troubled")
    repositories = {
        name: Repository.of({"main": seeded_weights}) for name in [*CACHED, *FAULTS, "org/damaged"]
    }
    content = repositories["org/damaged"].commits[commit("main")]
    content["model.safetensors"] = content["model.safetensors"][:-1] + b"\1"
    with serving(repositories) as hub:
        ask_here(OPEN % CACHED, hub.address, home)
        for name in CACHED:
            repositories[name].add("main", {"README.md": b"new"}, "a new version")
        new = repositories["org/new-file"]
        new.add("main", {"model.safetensors": seeded_weights.joinpath("config.json").read_bytes() * 9}, "x")
        del repositories["org/gone"]
        hub.faults += FAULTS.values()
        names = [*FAULTS, "org/gone", "org/damaged", f"org/down@{commit('main')}"]
        during = ask_here(OPEN % names, hub.address, home)
        hub.faults.clear()
        after = ask_here(OPEN % ["org/down", "org/cut-off"], hub.address, home)
    return during, after, repositories, hub


@pytest.mark.system
def test_a_busy_hub_and_a_broken_connection_are_tried_again(troubled: Any) -> None:
    during, _, repositories, _ = troubled
    newest = repositories["org/slow"].names["main"]
    assert newest != commit("main")
    assert during["org/slow"] == opened("org/slow", newest)
    for name in ("org/busy-file", "org/cut"):
        assert during[name] == opened(name, commit("main"))


@pytest.mark.system
def test_an_old_version_is_never_used_without_a_word(troubled: Any) -> None:
    during, after, repositories, hub = troubled
    warned = during["org/down"].pop("warned")
    assert during["org/down"] == opened("org/down", commit("main"))
    assert f"({hub.address} answers with HTTP status 503). Commit {commit('main')} of the local" in warned
    assert during[f"org/down@{commit('main')}"] == opened("org/down", commit("main"))
    assert after["org/down"] == opened("org/down", repositories["org/down"].names["main"])
    # The repository is gone, or only half of the new version came: an error, although an old one is there.
    assert "no such repository" in during["org/gone"]["message"]
    assert "message" in during["org/new-file"]


@pytest.mark.system
def test_half_a_file_is_never_taken_for_a_whole_one(troubled: Any) -> None:
    during, after, _, hub = troubled
    assert "weights 'org/cut-off' could not be loaded" in during["org/cut-off"]["message"]
    assert hub.address in during["org/cut-off"]["message"]
    assert after["org/cut-off"] == opened("org/cut-off", commit("main"))


@pytest.mark.system
def test_files_that_arrive_wrong_are_refused(troubled: Any) -> None:
    during, _, _, hub = troubled
    message = during["org/damaged"]["message"]
    assert "weights 'org/damaged': model.safetensors has sha256" in message
    again = f"hf download org/damaged model.safetensors --revision {commit('main')} --force-download"
    assert again in message
    assert f"{hub.address} answers with HTTP status 503" in during["org/first-down"]["message"]
    requests = [request for request in hub.requests if "org/first-down" in request]
    # Not for 23 seconds, as the client does by itself for lists and headers of files.
    assert len(requests) == 4
    assert f"{hub.address} cannot be reached" in during["org/no-json"]["message"]


BUSY = {503: True, 429: True, 501: False}  # whether the client asks again
PINNED = f"org/pinned@{commit('main')}"


@pytest.fixture(scope="module")
def moving(
    seeded_weights: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], list[str], Repository]:
    """What the client gets while a branch moves and the Hub is busy, the requests, and the branch; then the
    pinned commit is there, and not asked for."""
    home, branch = tmp_path_factory.mktemp("moving"), Repository.of({"main": seeded_weights})

    def push() -> None:
        branch.add("main", {"model.safetensors": b"of another version"}, "another version")

    others = [PINNED.partition("@")[0], *(f"org/busy-{status}" for status in BUSY)]
    repositories = {name: Repository.of({"main": seeded_weights}) for name in others}
    with serving({"org/moving": branch, **repositories}) as hub:
        # A new version is pushed after the small files came and before the tensors do.
        hub.faults.append(Fault("GET /org/moving/resolve/.*config.json", times=1, then=push))
        for status in BUSY:
            where = f"GET /api/models/org/busy-{status}/revision"
            hub.faults.append(Fault(where, status=status, times=3))
        answers = ask_here(OPEN % ["org/moving", PINNED, *others[1:]], hub.address, home)
        requests = list(hub.requests)
        hub.requests.clear()
        assert ask_here(OPEN % [PINNED], hub.address, home) == {PINNED: answers[PINNED]}
        assert any("org/pinned" in request for request in requests) and hub.requests == []
    return answers, requests, branch


def test_a_pinned_commit_is_opened_as_any_other(moving: Any) -> None:
    assert moving[0][PINNED] == opened("org/pinned", commit("main"))


def test_all_files_are_of_one_commit_although_the_branch_moves(moving: Any) -> None:
    answers, requests, branch = moving
    large = [request for request in requests if "org/moving" in request and "model.safetensors" in request]
    assert branch.names["main"] != commit("main")
    assert answers["org/moving"] == opened("org/moving", commit("main"))
    assert large and all(commit("main") in request for request in large)


@pytest.mark.parametrize("status", BUSY)
def test_a_busy_hub_is_asked_again(moving: Any, status: int) -> None:
    name = f"org/busy-{status}"
    assert (moving[0][name] == opened(name, commit("main"))) is BUSY[status]


"""What a user runs, and parts of the message."""
