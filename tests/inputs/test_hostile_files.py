"""Files and names that are damaged, never end, or cannot be written down."""

from __future__ import annotations

import json
import os
import random
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from capeval_core.errors import FileError
from capeval_core.inputs.collection import read_collection
from capeval_core.inputs.json_files import load_json
from capeval_core.inputs.visual import ImageError, InputImage
from capeval_core.regions.precomputed import PrecomputedRegions
from tests.inputs.reading import find_images, read_candidates

ODD_NAME = os.fsdecode(b"caf\xe9.jpg")  # as Latin-1 has it

pipes = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Makes pipes that nobody may open. Whoever does gets no bytes instead of waiting for ever."""
    made: list[tuple[Path, threading.Thread]] = []

    def make(name: str) -> Path:
        path = tmp_path / name
        os.mkfifo(path)
        writer = threading.Thread(target=lambda: path.open("wb").close(), daemon=True)
        writer.start()
        made.append((path, writer))
        return path

    yield make
    opened = [path.name for path, writer in made if not writer.is_alive()]
    for path, writer in made:
        while writer.is_alive():  # it waits for a reader
            os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
            writer.join(0.01)
    assert not opened


@pipes
@pytest.mark.parametrize("name", ["c.json", "c.jsonl", "c.csv", "c.parquet"])
def test_a_pipe_is_not_waited_for(pipe: Callable[[str], Path], name: str) -> None:
    path = pipe(name)
    with pytest.raises(FileError) as caught:
        read_candidates(path)
    assert str(caught.value).startswith(
        f"{path}: is a pipe, a socket or a device: write its content to a file first, or send"
    )


@pipes
def test_other_files_are_not_waited_for_either(pipe: Callable[[str], Path], tmp_path: Path) -> None:
    path = pipe("x.json")
    for read in (load_json, PrecomputedRegions.read):
        with pytest.raises(FileError, match=r"x\.json: is a pipe"):
            read(path)
    with pytest.raises(ImageError, match=r"^image: '.*x\.json' is not a regular file"):
        InputImage.of(path).check()
    (tmp_path / "c.json").write_text('{"a": "a dog"}')
    (tmp_path / "images").mkdir()
    os.mkfifo(tmp_path / "images" / "a.jpg")
    with pytest.raises(FileError, match=r"1 of 1 ids \('a'\) has no image"):
        read_collection(tmp_path / "c.json", tmp_path / "images")


@pytest.mark.skipif(not Path("/dev/null").exists(), reason="no devices here")
def test_sockets_and_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's path must be short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("s.json")
        Path("d.json").symlink_to("/dev/null")
        for name in ("s.json", "d.json"):
            with pytest.raises(FileError, match="is a pipe, a socket or a device"):
                read_candidates(name)
            with pytest.raises(ImageError, match="is not a regular file"):
                InputImage.of(name).check()


def test_no_path_holds_nul(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text('{"a": "x"}')
    for read in (read_candidates, find_images, PrecomputedRegions.read):
        with pytest.raises(FileError, match=r"'a\\x00b\.json' has a NUL character, which no path can have"):
            read("a\0b.json")
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "b.jpg").touch()
    for image_id in ("a\0b", "a\0b/b.jpg", "b.jpg\0"):
        (tmp_path / "c.json").write_text(json.dumps({image_id: "x"}))
        with pytest.raises(FileError, match="has no image"):
            read_collection(tmp_path / "c.json", tmp_path / "images")


def table() -> pa.Table:
    return pa.table({"id": [str(i) for i in range(40)], "caption": [f"a café {i}" for i in range(40)]})


def test_damaged_parquet_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "c.parquet"
    pq.write_table(table(), path)
    sound, seeds = path.read_bytes(), random.Random(11)
    refused = 0
    for _ in range(120):
        data = bytearray(sound)
        at = seeds.randrange(len(data))
        kind = seeds.randrange(3)
        if kind == 0:
            del data[at:]
        else:
            data[at : at + 20] = (
                seeds.randbytes(20) if kind == 1 else bytes([data[at] ^ 1 << seeds.randrange(8)])
            )
        path.write_bytes(data)
        try:
            read_candidates(path)
        except FileError as error:
            refused += 1
            assert str(path) in str(error)
    assert refused > 60


def test_a_flipped_bit_behind_a_page_checksum_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "c.parquet"
    pq.write_table(table(), path, write_page_checksum=True, compression="none", use_dictionary=False)
    data = bytearray(path.read_bytes())
    data[data.index("a café 25".encode()) + 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(FileError, match="damaged"):
        read_candidates(path)


def test_ids_that_are_not_utf8_are_refused(tmp_path: Path) -> None:
    """They would fail when results are written, after all work."""
    folder = tmp_path / "images"
    folder.mkdir()
    (folder / "a.jpg").touch()
    odd = json.dumps("caf\udce9.jpg")
    shown = r"'caf\\udce9\.jpg'"
    for name, content in (
        ("c.json", f'{{"a": "x", {odd}: "y"}}'),
        ("d.json", f'[{{"image_id": {odd}, "caption": "y"}}]'),
        ("c.jsonl", f'{{"id": {odd}, "caption": "y"}}'),
    ):
        path = tmp_path / name
        path.write_text(content)
        with pytest.raises(FileError, match=rf"{name}: .*{shown}, which is not UTF-8: rename"):
            read_collection(path, folder)


@pytest.fixture
def odd_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    folder.mkdir()
    try:
        (folder / ODD_NAME).touch()
    except OSError:
        pytest.skip("this file system takes UTF-8 only")
    return folder


def test_files_whose_names_are_not_utf8_are_refused(odd_folder: Path) -> None:
    for ids in ([ODD_NAME], [ODD_NAME.removesuffix(".jpg")]):
        with pytest.raises(FileError, match=r"the name of 'caf\\udce9\.jpg' is not UTF-8: rename that file"):
            find_images(odd_folder, ids)
    images = [{"id": 7, "file_name": ODD_NAME}]
    path = odd_folder.parent / "c.json"
    path.write_text(json.dumps({"images": images, "annotations": [{"image_id": 7, "caption": "x"}]}))
    with pytest.raises(FileError, match="is not UTF-8"):
        read_collection(path, odd_folder)


def test_a_name_that_nobody_asks_for_may_be_odd(odd_folder: Path) -> None:
    (odd_folder / "a.jpg").touch()
    assert find_images(odd_folder, ["a"]) == {"a": odd_folder / "a.jpg"}
