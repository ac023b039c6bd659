"""Files and folders that are written whole or not at all."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from capeval_core.encoders.blip2 import Blip2Encoder
from capeval_core.encoders.clip import ClipEncoder
from capeval_core.writing import whole_folder, write_whole
from tests.support.seeded import encoder


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """A disk on which no file grows beyond so many bytes."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_file_that_cannot_be_written_stays_as_it_was(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    out.write_text("before")
    with largest_file(100), pytest.raises(OSError, match="too large"):
        write_whole(out, "x" * 101)
    with pytest.raises(ValueError, match="surrogates"):
        write_whole(out, "a file name \udcff")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("out.json", "before")]


def test_a_process_that_is_killed_while_it_writes_leaves_the_old_file(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    out.write_text("before")
    program = (
        "import os, sys; from pathlib import Path; from capeval_core import writing\n"
        "writing.os.fsync = lambda file: os.kill(os.getpid(), 9)\n"
        "writing.write_whole(Path(sys.argv[1]), 'after')"
    )
    done = subprocess.run([sys.executable, "-c", program, str(out)], cwd=Path(__file__).parents[1])
    assert done.returncode == -9
    assert out.read_text() == "before"


def test_links_permissions_and_pipes_stay_what_they_are(tmp_path: Path) -> None:
    out, link, pipe = tmp_path / "out.json", tmp_path / "link.json", tmp_path / "pipe"
    out.write_text("before")
    out.chmod(0o640)
    link.symlink_to(out)
    write_whole(link, "after")
    assert link.is_symlink() and out.read_text() == "after"
    assert out.stat().st_mode & 0o777 == 0o640
    os.mkfifo(pipe)
    received: list[str] = []
    reader = threading.Thread(target=lambda: received.append(pipe.read_text()), daemon=True)
    reader.start()
    with pytest.raises(OSError, match="no regular file"):
        write_whole(pipe, b"x")
    write_whole(pipe, b"after", into_pipes=True)
    reader.join(600)  # nobody comes where the pipe was replaced
    assert pipe.is_fifo() and received == ["after"]


def test_an_encoder_that_cannot_be_saved_leaves_the_old_weights(tmp_path: Path) -> None:
    old, new, other = tmp_path / "old", tmp_path / "new", encoder("pacs-resnet-tiny")
    encoder().save_pretrained(old)
    before = {file.name: file.read_bytes() for file in old.iterdir()}
    assert before.keys() == {"config.json", "model.safetensors", "README.md"}
    for folder in (old, new):
        with largest_file(4_000), pytest.raises(Exception, match=r"(?i)too large"):
            other.save_pretrained(folder)
    assert {file.name: file.read_bytes() for file in old.iterdir()} == before
    assert not new.exists()


def test_weights_saved_again_replace_the_old_ones_but_not_a_card(tmp_path: Path) -> None:
    encoder().save_pretrained(tmp_path)
    (tmp_path / "README.md").write_text("my weights")
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "config.json").chmod(0o640)
    encoder("pacs-resnet-tiny").save_pretrained(tmp_path)
    reopened = ClipEncoder.from_pretrained(tmp_path, device="cpu")
    assert reopened.fingerprint != encoder().fingerprint
    assert reopened.describe(reopened.config) == ClipEncoder.describe(encoder("pacs-resnet-tiny").config)
    assert (tmp_path / "README.md").read_text() == "my weights"
    assert (tmp_path / "config.json").stat().st_mode & 0o777 == 0o640
    names = {file.name for file in tmp_path.iterdir()}
    assert names == {"config.json", "model.safetensors", "README.md", "notes.txt"}


def test_a_folder_that_cannot_be_written_stays_as_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    for content in ("first", "second"):
        with whole_folder(folder) as partial:
            (partial / "a").write_text(content)
            (partial / content).touch()
        assert (folder / "a").read_text() == content
    assert {path.name for path in folder.iterdir()} == {"a", "first", "second"}
    with pytest.raises(ZeroDivisionError), whole_folder(folder) as partial:
        (partial / "a").write_text("third")
        raise ZeroDivisionError
    assert (folder / "a").read_text() == "second"
    assert {path.name for path in folder.iterdir()} == {"a", "first", "second"}
    assert {path.name for path in tmp_path.iterdir()} == {"folder"}


def test_a_vocabulary_is_written_whole(tmp_path: Path) -> None:
    blip2 = Blip2Encoder.from_pretrained("tiny", device="cpu")
    blip2.save_beside(tmp_path)
    before = (tmp_path / "vocab.txt").read_text()
    with largest_file(100), pytest.raises(OSError, match="too large"):
        blip2.save_beside(tmp_path)
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("vocab.txt", before)]
