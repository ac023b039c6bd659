"""`capeval fetch`: from the authors' addresses to scores, and every way in which a network fails."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import pickle
import shutil
import signal
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import capeval_core
from capeval_core.cli import main
from tests.cli.conftest import Capeval, write_json
from tests.hub import origin as web
from tests.support.seams import LIMITS, small_release
from tests.weights.conftest import manifest, umic_checkpoint

PACS = "pacs-clip-vit-b-32"


@cache
def checkpoint(version: int = 0) -> bytes:
    """A seeded checkpoint in the naming of its authors, or another version of it."""
    tensors = manifest("pacs-vit-tiny")
    file = io.BytesIO()
    torch.save({"state_dict": {**tensors, "ln_final.bias": tensors["ln_final.bias"] + version}}, file)
    return file.getvalue()


@dataclass
class Place:
    """An empty cache, and the authors' addresses on the loopback."""

    origin: web.Origin
    address: str
    cache: Path

    @property
    def folders(self) -> list[Path]:
        """Weights that were fetched."""
        return sorted((self.cache / "weights").glob("*/[!.]*"))

    def lock(self) -> dict[str, str]:
        content = tomllib.loads((self.cache / "capeval.lock").read_text())
        return {file["name"]: file["sha256"] for file in content["file"]}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CAPEVAL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(LIMITS, "hub_waits", (0.0, 0.0))
    with web.origin() as origin, small_release(PACS) as (address,):
        origin.serve(monkeypatch)
        origin.files[address.partition("?")[0]] = checkpoint()
        yield Place(origin, address, tmp_path / "cache")


def images(folder: Path) -> list[Path]:
    rng = np.random.default_rng(5)
    folder.mkdir()
    for name in ("a", "b"):
        Image.fromarray(rng.integers(0, 256, (60, 80, 3), dtype=np.uint8)).save(folder / f"{name}.png")
    return sorted(folder.iterdir())


def test_from_nothing_to_a_score(place: Place, capeval: Capeval, tmp_path: Path) -> None:
    images(tmp_path / "photos")
    captions = write_json(tmp_path / "c.json", {"a": "a dog", "b": "two cats"})
    line = ("score", "pacs", "--candidates", captions, "--images", tmp_path / "photos")

    before = capeval(*line)
    assert before.status == 2 and "capeval fetch pacs-clip-vit-b-32" in before.err

    plan = capeval("fetch", "pacs", "--dry-run")
    assert plan.status == 0 and place.address in plan.out and "no licence" in plan.out
    assert place.origin.requests == []

    fetched = capeval("fetch", "pacs", "--accept")
    assert fetched.status == 0, fetched.err
    (folder,) = place.folders
    assert str(folder) in fetched.out and place.address in fetched.err
    scored = capeval(*line)
    assert scored.status == 0, scored.err
    assert f"weights:{PACS}@" in scored.out

    # Both see that they have the same file; nothing is fetched twice.
    (sha256,) = place.lock().values()
    assert f"sha256 {sha256[:12]}..." in fetched.err and len(place.origin.requests) == 1
    assert capeval("fetch", "pacs", "refpacs").status == 0
    assert len(place.origin.requests) == 1
    assert capeval_core.load("pacs").signature() in scored.out


def test_python_fetches_what_it_is_told_to(place: Place) -> None:
    with pytest.raises(ValueError, match="capeval fetch"):
        capeval_core.load("pacs")
    with pytest.raises(ValueError, match="accept"):
        capeval_core.fetch("pacs")
    metric = capeval_core.load("pacs", fetch=True)
    assert capeval_core.fetch("pacs", accept=True) == place.folders
    assert capeval_core.load("pacs", weights=PACS).signature() == metric.signature()


def test_what_is_open_comes_by_itself(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CAPEVAL_FETCH")
    with pytest.raises(ValueError, match="capeval fetch"):  # its authors state no licence
        capeval_core.load("pacs")
    monkeypatch.setenv("CAPEVAL_FETCH", "1")
    assert f"weights:{PACS}@" in capeval_core.load("pacs").signature()


# what a broken network leads to: the file all the same

RECOVERED: dict[str, list[Callable[[Any, bytes], None]]] = {
    "500, then the file": [web.status(500), web.plain],
    "429 with Retry-After": [web.busy_for_a_second()],
    "a truncated body, more often than one waits": [web.cut(70_000)] * 4,
    "no Content-Length": [web.without_length],
    "Range is ignored": [web.cut(70_000), web.ranges_ignored],
    "Range at the wrong offset": [web.cut(70_000), web.wrong_offset],
    "a part that was not asked for": [web.unasked_part],
    "a part that ends early": [web.cut(70_000), web.shorter_part],
    "a part of a file of another size": [web.cut(70_000), web.part_of_another_size],
    "a length that is no number": [web.odd_numbers],
    "gzip that was not asked for, always": [web.compressed] * 9,
    "nothing follows, it says": [web.cut(70_000), web.status(416)],
}


@pytest.mark.parametrize("fault", RECOVERED)
def test_a_broken_transfer_ends_in_the_whole_file(
    fault: str, place: Place, capeval: Capeval, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fault == "a length that is no number":  # nothing but time says that no more will come
        monkeypatch.setattr(LIMITS, "download_seconds", 3.0)
    place.origin.answers += RECOVERED[fault]
    ran = capeval("fetch", "pacs", "--accept")
    assert ran.status == 0, ran.err
    content = place.origin.files[place.address.partition("?")[0]]
    assert list(place.lock().values()) == [web.sha256(content).hexdigest()]


def test_a_stalled_connection_is_left(
    place: Place, capeval: Capeval, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LIMITS, "download_seconds", 0.5)
    place.origin.answers.append(web.stalled)
    ran = capeval("fetch", "pacs", "--accept")
    assert ran.status == 0, ran.err
    assert len(place.origin.requests) == 2


def test_a_file_that_changes_meanwhile_is_one_version(place: Place, capeval: Capeval) -> None:
    key = place.address.partition("?")[0]
    after = checkpoint(version=1)

    def change(answer: Any, content: bytes) -> None:
        place.origin.files[key] = after
        web.cut(70_000)(answer, content)

    place.origin.answers.append(change)
    ran = capeval("fetch", "pacs", "--accept")
    assert ran.status == 0, ran.err
    assert [asked[1] is None for asked in place.origin.requests] == [True, False]
    assert list(place.lock().values()) == [web.sha256(after).hexdigest()]


def test_a_file_without_an_exact_name_is_not_resumed(place: Place, capeval: Capeval) -> None:
    place.origin.answers.append(web.weakly_named(70_000))
    ran = capeval("fetch", "pacs", "--accept")
    assert ran.status == 0, ran.err
    assert [held for _, held in place.origin.requests] == [None, None]


def test_a_part_from_another_address_is_not_continued(place: Place, capeval: Capeval) -> None:
    other = "https://archive.org/copy/clip_ViT-B-32.pth"
    place.origin.files[other] = checkpoint()
    place.origin.answers += [web.cut(70_000), web.status(404)]
    assert capeval("fetch", "pacs", "--accept").status == 1
    assert capeval("fetch", "pacs", "--accept", "--from", other).status == 0
    assert place.origin.requests[-1] == (other, None)


def test_the_next_address_is_tried(place: Place, capeval: Capeval) -> None:
    other = "https://archive.org/copy/clip_ViT-B-32.pth"
    place.origin.files[other] = checkpoint()
    place.origin.answers.append(web.status(403))
    with small_release(PACS, addresses=(place.address, other)):
        assert capeval("fetch", "pacs", "--accept").status == 0
    assert [asked[0] for asked in place.origin.requests][1:] == [other]
    assert f'address = "{other}"' in (place.cache / "capeval.lock").read_text()


# or a message, and what was whole stays

REFUSED: dict[str, tuple[list[Callable[[Any, bytes], None]], str]] = {
    "403": ([web.status(403)], "403"),
    "404": ([web.status(404)], "404"),
    "429 for an hour": ([web.status(429, Retry_After="3600")], "3,600 seconds"),
    "500 for ever": ([web.status(500)] * 9, "500"),
    "a login page": ([web.LOGIN], "login"),
    "a quota page": ([web.QUOTA], "quota"),
    "a page that is called a file": ([web.unmarked_page], "answers with a page"),
    "the length of another file": ([web.huge], "it is another file"),
    "redirects in a circle": ([web.redirect("/again")] * 30, "redirects"),
    "a redirect to a file": ([web.redirect("file:///etc/passwd")], "file:///etc/passwd"),
    "a redirect to another scheme": ([web.redirect("ftp://elsewhere/file")], "ftp://"),
    "a redirect to no address": ([web.redirect("https://[")], "not an address"),
    "a redirect to plain http": ([web.redirect("http://127.0.0.1/file")], "http://127.0.0.1"),
    "a pickle with code": ([lambda answer, _: answer.send(200, evil())], "would run code"),
    "no checkpoint": ([lambda answer, _: answer.send(200, b"text" * 99)], "not a checkpoint"),
}


def evil() -> bytes:
    return pickle.dumps({"state_dict": {}, "extra": os.system}, protocol=2)


@pytest.mark.parametrize("fault", REFUSED)
def test_an_address_that_does_not_give_the_file(fault: str, place: Place, capeval: Capeval) -> None:
    answers, words = REFUSED[fault]
    place.origin.files["https://drive.usercontent.google.com/again"] = b""
    place.origin.answers += answers
    ran = capeval("fetch", "pacs", "--accept")
    assert ran.status in (1, 2) and words in ran.err, ran.err
    assert len(ran.err) < 1_500 and "Traceback" not in ran.err
    assert place.folders == [] and not (place.cache / "capeval.lock").exists()


def test_what_was_refused_is_asked_for_again(place: Place, capeval: Capeval) -> None:
    place.origin.answers.append(lambda answer, _: answer.send(200, evil()))
    assert capeval("fetch", "pacs", "--accept").status == 2
    assert capeval("fetch", "pacs", "--accept").status == 0


def test_the_way_out_is_a_copy(place: Place, capeval: Capeval, tmp_path: Path) -> None:
    place.origin.answers.append(web.QUOTA)
    ran = capeval("fetch", "pacs", "--accept")
    assert ran.status == 1 and f"capeval fetch {PACS} --from clip_ViT-B-32.pth" in ran.err
    copy = tmp_path / "download (1).pth"
    copy.write_bytes(checkpoint())
    assert capeval("fetch", "pacs", "--accept", "--from", copy).status == 0
    assert len(place.origin.requests) == 1 and copy.exists()
    assert capeval_core.load("pacs").signature()


def test_a_copy_at_another_address(place: Place, capeval: Capeval) -> None:
    other = "https://archive.org/copy/clip_ViT-B-32.pth"
    place.origin.files[other] = checkpoint()
    assert capeval("fetch", "pacs", "--accept", "--from", other).status == 0
    assert place.origin.requests == [(other, None)]
    wrong = capeval("fetch", "umic", "--from", "https://archive.org/copy/other.pth")
    assert wrong.status == 2 and "umic.pt" in wrong.err


def test_a_copy_on_a_server_of_ones_own(place: Place, capeval: Capeval) -> None:
    """By plain http, which the user named; what is handed on does not hold the password of its address."""
    place.origin.files["/copy.pth"] = checkpoint()
    address = place.origin.address.replace("//", "//me:secret@")
    place.origin.answers += [web.cut(70_000), web.redirect("https://drive.usercontent.google.com/download")]
    ran = capeval("fetch", "pacs", "--accept", "--from", f"{address}/copy.pth")
    assert ran.status == 0, ran.err
    assert [asked[0] for asked in place.origin.requests] == [
        "/copy.pth",
        "/copy.pth",
        place.address.partition("?")[0],
    ]
    (folder,) = place.folders
    written = [(place.cache / "capeval.lock"), (folder / "capeval.lock"), (folder / "config.json")]
    assert all("secret" not in path.read_text() for path in written)


def test_a_copy_of_what_the_hub_has_is_refused(place: Place, capeval: Capeval, tmp_path: Path) -> None:
    copy = tmp_path / "model.safetensors"
    copy.write_bytes(b"x")
    for name in ("clips", "polaris"):
        ran = capeval("fetch", name, "--accept", "--from", copy)
        assert ran.status == 2 and f"--from {copy}" in ran.err


def test_a_lock_names_the_commit_of_a_file_on_the_hub(
    place: Place, capeval: Capeval, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also of one in a folder of its repository."""
    commit = "5" * 40
    repository = tmp_path / "hub" / "models--org--mirror"
    file = repository / "snapshots" / commit / "released" / "clip_ViT-B-32.pth"
    file.parent.mkdir(parents=True)
    file.write_bytes(checkpoint())
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    address = "https://huggingface.co/org/mirror/resolve/{}/released/clip_ViT-B-32.pth"
    with small_release(PACS, addresses=(address.format("main"),)):
        ran = capeval("fetch", "pacs", "--accept")
    assert ran.status == 0, ran.err
    assert address.format(commit) in (place.cache / "capeval.lock").read_text()


PLAIN = b"text" * 40_000
"""What comes whole and is refused then, at once, as it is no checkpoint."""


@pytest.fixture
def plain_place(place: Place) -> Place:
    place.origin.files[place.address.partition("?")[0]] = PLAIN
    return place


def test_a_server_is_given_the_time_that_it_asks_for(
    plain_place: Place, capeval: Capeval, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In seconds, or until a date; at most as long as one waits, and not as long as one would by oneself."""
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    monkeypatch.setattr(LIMITS, "hub_waits", (7.0, 7.0, 7.0))
    monkeypatch.setattr(LIMITS, "longest_wait", 5.0)
    past = "Wed, 21 Oct 2015 07:28:00 GMT"
    plain_place.origin.answers += [web.status(429, Retry_After=value) for value in ("5", past, "soon")]
    ran = capeval("fetch", "pacs", "--accept")
    assert "not a checkpoint" in ran.err, ran.err
    assert slept == [5, 0, 7]
    monkeypatch.setattr(LIMITS, "longest_wait", 4.0)
    plain_place.origin.answers.append(web.status(429, Retry_After="5"))
    ran = capeval("fetch", "pacs", "--accept")
    assert ran.status == 1 and "429" in ran.err and "5 seconds" in ran.err and len(slept) == 3


def test_a_resumed_file_needs_room_for_what_is_missing_alone(
    plain_place: Place, capeval: Capeval, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = len(PLAIN)
    partial = plain_place.cache / "weights" / PACS / ".downloads" / "clip_ViT-B-32.pth.partial"
    plain_place.origin.answers += [web.cut(70_000), web.status(404)]
    assert capeval("fetch", "pacs", "--accept").status == 1
    held = partial.stat().st_size
    assert 0 < held < size
    usage = shutil.disk_usage(plain_place.cache)

    def disk(capacity: int) -> Callable[[Any], Any]:
        """Of a disk on which nothing but the unfinished file lies."""
        return lambda path: usage._replace(
            free=capacity - (partial.stat().st_size if partial.exists() else 0)
        )

    monkeypatch.setattr("shutil.disk_usage", disk(size - 1234))
    ran = capeval("fetch", "pacs", "--accept")
    assert ran.status == 1 and partial.stat().st_size == held
    assert "1,234 bytes are missing" in ran.err and f"{size - 1234 - held:,} are free" in ran.err
    monkeypatch.setattr("shutil.disk_usage", disk(size))
    ran = capeval("fetch", "pacs", "--accept")
    assert "not a checkpoint" in ran.err, ran.err
    assert plain_place.origin.requests[-1][1] == f"bytes={held}-"


def test_a_file_with_a_date_of_change_alone_is_resumed(plain_place: Place, capeval: Capeval) -> None:
    changed = "Wed, 21 Oct 2015 07:28:00 GMT"

    def begin(answer: Any, content: bytes) -> None:
        length = str(len(content))
        answer.send(200, content[:70_000], ETag='W/"1"', Last_Modified=changed, Content_Length=length)
        answer.close_connection = True

    def resume(answer: Any, content: bytes) -> None:
        assert answer.headers["If-Range"] == changed
        web.cut(len(content))(answer, content)

    plain_place.origin.answers += [begin, resume]
    ran = capeval("fetch", "pacs", "--accept")
    assert "not a checkpoint" in ran.err, ran.err
    first, second = (held for _, held in plain_place.origin.requests)
    assert first is None and second == f"bytes={1 << 16}-"  # a piece of it


def test_a_part_that_ends_early_is_named_with_both_sizes(
    plain_place: Place, capeval: Capeval, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LIMITS, "hub_waits", ())
    partial = plain_place.cache / "weights" / PACS / ".downloads" / "clip_ViT-B-32.pth.partial"
    plain_place.origin.answers += [web.cut(70_000), web.shorter_part]
    assert capeval("fetch", "pacs", "--accept").status == 1
    held = partial.stat().st_size
    ran = capeval("fetch", "pacs", "--accept")
    assert ran.status == 1 and f"{held + 1000:,} of {len(PLAIN):,} bytes" in ran.err


def test_a_release_may_be_a_quarter_larger_than_is_listed(plain_place: Place, capeval: Capeval) -> None:
    count = len(PLAIN)
    listed = next(size for size in range(count, 0, -1) if size + size // 4 < count)
    with small_release(PACS, size=listed):
        ran = capeval("fetch", "pacs", "--accept")
    assert (
        ran.status == 1 and f"{count:,} bytes" in ran.err and f"at most {listed + listed // 4:,}" in ran.err
    )
    with small_release(PACS, size=listed + 1):
        assert "not a checkpoint" in capeval("fetch", "pacs", "--accept").err


def test_all_files_that_a_lock_does_not_know_are_named(place: Place, capeval: Capeval) -> None:
    ran = capeval("fetch", "umic-uniter-base", "--accept", "--locked")
    assert ran.status == 2 and place.origin.requests == []
    assert "umic-uniter-base/umic.pt" in ran.err and "umic-uniter-base/vocab.txt" in ran.err
    assert str(place.cache / "capeval.lock") in ran.err


def test_a_longer_body_is_another_file(place: Place, capeval: Capeval) -> None:
    with small_release(PACS, size=len(checkpoint())):
        place.origin.answers.append(web.longer)
        ran = capeval("fetch", "pacs", "--accept")
    assert ran.status == 1 and "longer" in ran.err and place.folders == []


def test_a_certificate_that_nobody_signed(
    place: Place, capeval: Capeval, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REQUESTS_CA_BUNDLE")
    ran = capeval("fetch", "pacs", "--accept")
    assert ran.status == 1 and "certificate" in ran.err and place.folders == []


def test_a_name_that_is_not_found(place: Place, capeval: Capeval, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "https_proxy"):
        monkeypatch.delenv(name)
    ran = capeval("fetch", "pacs", "--accept", "--from", "https://nowhere.invalid/clip_ViT-B-32.pth")
    assert ran.status == 1 and "nowhere.invalid" in ran.err and "name" in ran.err


def test_offline_on_purpose(place: Place, capeval: Capeval, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    ran = capeval("fetch", "pacs", "--accept")
    assert ran.status == 1 and "HF_HUB_OFFLINE" in ran.err and place.origin.requests == []


def test_terms_are_accepted_or_nothing_is_fetched(
    place: Place, capeval: Capeval, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = capeval("fetch", "pacs")
    assert ran.status == 2 and "--accept" in ran.err and place.origin.requests == []


@pytest.mark.parametrize("answer", ["y", "n", ""])
def test_a_terminal_is_asked_once(answer: str, place: Place) -> None:
    leader, follower = os.openpty()

    def run() -> None:
        for number in (0, 2):
            os.dup2(follower, number)
        sys.stdin, sys.stderr = os.fdopen(0), os.fdopen(2, "w")
        os._exit(main(["fetch", "pacs", "refpacs"]))

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    os.close(follower)
    shown = b""
    while b"[y/N]" not in shown:
        shown += os.read(leader, 1024)
    os.write(leader, f"{answer}\n".encode())
    with contextlib.suppress(OSError):  # the end of a terminal
        while more := os.read(leader, 1024):
            shown += more
    process.join()
    assert process.exitcode == (0 if answer == "y" else 2)
    assert shown.count(b"[y/N]") == 1 and len(place.folders) == (answer == "y")


def test_a_full_disk(
    place: Place, capeval: Capeval, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAPEVAL_CACHE", str(small_disk / "cache"))
    ran = capeval("fetch", "pacs", "--accept")
    assert ran.status == 1 and "are missing on the disk" in ran.err


def test_a_cache_that_cannot_be_written(
    place: Place, capeval: Capeval, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CAPEVAL_CACHE", str(tmp_path / "file" / "cache"))
    ran = capeval("fetch", "pacs", "--accept")
    assert ran.status in (1, 2) and "CAPEVAL_CACHE" in ran.err


def test_another_architecture_is_refused(place: Place, capeval: Capeval) -> None:
    with small_release("pacs-openclip-vit-l-14") as (address,):
        place.origin.files[address.partition("?")[0]] = checkpoint()
    # As the README of PAC-S links the file of B/32 for both.
    ran = capeval("fetch", "pacs-openclip-vit-l-14", "--accept")
    assert ran.status == 2 and "another model" in ran.err and place.folders == []


# digests


def test_a_digest_other_than_the_locks(place: Place, capeval: Capeval, tmp_path: Path) -> None:
    assert capeval("fetch", "pacs", "--accept", "--locked").status == 2  # nothing is known of it
    assert capeval("fetch", "pacs", "--accept").status == 0
    first = place.lock()
    assert capeval("fetch", "pacs", "--locked").status == 0
    place.origin.files[place.address.partition("?")[0]] = checkpoint(version=1)

    # Elsewhere, with the same lock.
    cache = place.cache / "weights"
    cache.rename(tmp_path / "before")
    ran = capeval("fetch", "pacs", "--accept")
    assert ran.status == 2 and next(iter(first.values())) in ran.err and place.lock() == first
    assert capeval("fetch", "pacs", "--accept", "--update").status == 0
    assert place.lock() != first
    assert capeval_core.load("pacs").signature()


def test_weights_are_not_used_if_the_digest_of_any_of_their_files_is_another(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = umic_checkpoint(tmp_path)
    copies = {path.name: str(path) for path in (checkpoint, tmp_path / "vocab.txt")}
    monkeypatch.setenv("CAPEVAL_FETCH", "0")
    with small_release("umic-uniter-base", {"heads": 4}):
        capeval_core.fetch("umic-uniter-base", sources=copies, accept=True)
        assert capeval_core.load("umic", regions="tiny").signature()
        lock = place.cache / "capeval.lock"
        lock.write_text(lock.read_text().replace(place.lock()["umic-uniter-base/vocab.txt"], "0" * 64))
        with pytest.raises(ValueError, match="umic-uniter-base"):
            capeval_core.load("umic", regions="tiny")


def test_a_digest_of_the_catalogue_is_final(place: Place, capeval: Capeval) -> None:
    with small_release(PACS, sha256=web.sha256(checkpoint(version=1)).hexdigest()):
        for flags in ((), ("--update",), ("--locked",)):
            ran = capeval("fetch", "pacs", "--accept", *flags)
            assert ran.status == 2 and "the catalogue" in ran.err
            for version, text in ((0, "has sha256"), (1, "the catalogue lists")):
                assert f"{text} {web.sha256(checkpoint(version)).hexdigest()}" in ran.err
            assert place.folders == [] and not (place.cache / "capeval.lock").exists()
        # What was refused is not continued, but asked for again.
        assert [held for _, held in place.origin.requests] == [None] * 3
        place.origin.files[place.address.partition("?")[0]] = checkpoint(version=1)
        assert capeval("fetch", "pacs", "--accept", "--locked").status == 0


def test_a_lock_has_what_lies_in_the_cache(place: Place, capeval: Capeval, tmp_path: Path) -> None:
    assert capeval("fetch", "pacs", "--accept").status == 0
    noted = place.lock()
    project = tmp_path / "capeval.lock"
    project.write_text(f'[[file]]\nname = "zoo/file"\naddress = "https://a"\nsha256 = "{"0" * 64}"\n')
    assert capeval("fetch", "pacs", "--locked").status == 2  # it does not have it yet
    assert capeval("fetch", "pacs").status == 0
    assert next(iter(noted.values())) in project.read_text() and "zoo/file" in project.read_text()
    names = [file["name"] for file in tomllib.loads(project.read_text())["file"]]
    assert names == [*noted, "zoo/file"]  # by name, not by when they came
    assert capeval("fetch", "pacs", "--locked").status == 0
    assert capeval("fetch", "pacs", "--lock", tmp_path / "other.lock").status == 0
    assert next(iter(noted.values())) in (tmp_path / "other.lock").read_text()
    # As after a kill between the conversion and the note.
    project.unlink()
    (place.cache / "capeval.lock").unlink()
    assert capeval_core.load("pacs").signature() and place.lock() == noted
    assert len(place.origin.requests) == 1


def test_weights_in_use_stay_in_their_place(place: Place, capeval: Capeval) -> None:
    assert capeval("fetch", "pacs", "--accept").status == 0
    (folder,) = place.folders
    before = folder.stat().st_ino
    (folder / "model.safetensors").write_bytes(b"damaged")
    assert capeval("fetch", "pacs", "--accept", "--update").status == 0
    assert folder.stat().st_ino == before and capeval_core.load("pacs").signature()


DAMAGES: dict[str, Callable[[str, str], bytes]] = {
    "not UTF-8": lambda text, digest: b"\xff" + text.encode(),
    "a number": lambda text, digest: text.replace(f'"{digest}"', "7").encode(),
    "a cut digest": lambda text, digest: text.replace(digest, digest[:12]).encode(),
    "in the middle of a line": lambda text, digest: text[:-30].encode(),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_lock_is_refused(damage: str, place: Place, capeval: Capeval, tmp_path: Path) -> None:
    assert capeval("fetch", "pacs", "--accept").status == 0
    (digest,) = place.lock().values()
    text = (place.cache / "capeval.lock").read_text()
    (tmp_path / "capeval.lock").write_bytes(DAMAGES[damage](text, digest))
    ran = capeval("fetch", "pacs", "--accept")
    assert ran.status == 2 and "capeval.lock is not a capeval.lock" in ran.err
    with pytest.raises(ValueError, match="is not a"):
        capeval_core.load("pacs")


def test_a_lock_of_a_project_goes_before_that_of_the_cache(
    place: Place, capeval: Capeval, tmp_path: Path
) -> None:
    assert capeval("fetch", "pacs", "--accept").status == 0
    text = (place.cache / "capeval.lock").read_text()
    (sha256,) = place.lock().values()
    (tmp_path / "capeval.lock").write_text(text.replace(sha256, "0" * 64))
    with pytest.raises(ValueError, match="capeval fetch"):
        capeval_core.load("pacs")
    ran = capeval("fetch", "pacs", "--accept")
    assert ran.status == 2 and "0" * 64 in ran.err
    (tmp_path / "capeval.lock").write_text("file = 3")
    assert capeval("fetch", "pacs", "--accept").status == 2
    (tmp_path / "capeval.lock").unlink()
    assert capeval_core.load("pacs").signature()


def test_damaged_weights_are_refused(place: Place, capeval: Capeval) -> None:
    assert capeval("fetch", "pacs", "--accept").status == 0
    (folder,) = place.folders
    with (folder / "model.safetensors").open("r+b") as file:
        file.seek(9_999)
        file.write(b"x")
    with pytest.raises(ValueError, match="sha256"):
        capeval_core.load("pacs")


# processes


def _run(*arguments: str) -> None:
    os._exit(main(list(arguments)))


def started(*arguments: str) -> Any:
    process = multiprocessing.get_context("fork").Process(target=_run, args=arguments)
    process.start()
    return process


def test_a_kill_at_any_moment_loses_at_most_the_running_second(place: Place) -> None:
    place.origin.pace = 0.005
    partial = place.cache / "weights" / PACS / ".downloads" / "clip_ViT-B-32.pth.partial"
    sizes = []
    for moment in range(10):
        process = started("fetch", "pacs", "--accept")
        deadline = time.monotonic() + 60
        wanted = (7 * moment + 1) << 16  # some pieces more each time
        while process.is_alive() and time.monotonic() < deadline:
            if partial.exists() and partial.stat().st_size >= wanted:
                break
            time.sleep(0.001)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        sizes.append(partial.stat().st_size)
    place.origin.pace = 0.0
    last = started("fetch", "pacs", "--accept")
    last.join()
    assert last.exitcode == 0
    # Each went on where the one before it was killed.
    assert [held for _, held in place.origin.requests] == [None, *(f"bytes={size}-" for size in sizes)]
    assert sizes == sorted(set(sizes))
    assert capeval_core.load("pacs").signature()


def test_a_kill_before_the_conversion_costs_no_second_download(place: Place) -> None:
    process = started("fetch", "pacs", "--accept")
    whole = place.cache / "weights" / PACS / ".downloads" / "clip_ViT-B-32.pth"
    deadline = time.monotonic() + 60
    while not whole.exists() and process.is_alive() and time.monotonic() < deadline:
        time.sleep(0.001)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    size = whole.stat().st_size
    last = started("fetch", "pacs", "--accept")
    last.join()
    assert last.exitcode == 0
    assert [held for _, held in place.origin.requests] == [None, f"bytes={size}-"]


def test_two_at_once_fetch_once(place: Place) -> None:
    place.origin.pace = 0.005
    both = [started("fetch", "pacs", "--accept") for _ in range(2)]
    for process in both:
        process.join()
    assert [process.exitcode for process in both] == [0, 0]
    assert len(place.origin.requests) == 1 and len(place.folders) == 1
