"""Everyday files at the command's door: each gives the number of its plain form, or is refused."""

from __future__ import annotations

import csv
import gzip
import io
import json
import warnings
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from capeval_core.cli import main
from capeval_core.errors import FileError
from tests.support.seams import read_collection

CAPTIONS = {
    "dog": "a brown dog runs over the grass",
    "cat": "two cats, one of them black, sleep on a mat",
    "bus": "a red bus stands at the corner of a street",
    "man": "a man in a blue shirt reads a newspaper",
    "sea": "waves break on the rocks below a lighthouse",
}
REFERENCES = {
    "dog": ["a dog is running on grass", "the brown dog runs fast"],
    "cat": ["two cats are sleeping", "a black cat and a white cat, asleep on a mat"],
    "bus": ["the red bus waits at a street corner", "a bus on a street"],
    "man": ["a man reads the newspaper", "someone in a blue shirt is reading"],
    "sea": ["waves hit the rocks", "a lighthouse above the sea, with waves below"],
}
OTHER = {name: texts[0] for name, texts in REFERENCES.items()}
"""Ground truth, which would score far too high."""


def put(folder: Path, name: str, content: Any) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    data = content if isinstance(content, (str, bytes)) else json.dumps(content, ensure_ascii=False)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def number(folder: Path, *arguments: object) -> float:
    """CIDEr-D of files; AssertionError with the message where they are refused."""
    out = folder / "out.json"
    status = main(["score", "ciderd", *map(str, arguments), "--json", str(out)])
    assert status == 0
    return float(json.loads(out.read_text())["mean"])


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> float:
    """CIDEr-D of the plain forms."""
    folder = tmp_path_factory.mktemp("plain")
    candidates = put(folder, "c.json", CAPTIONS)
    return number(folder, "--candidates", candidates, "--references", put(folder, "r.json", REFERENCES))


def lines(rows: Any) -> str:
    return "\n".join(json.dumps(row) for row in rows)


def table(rows: list[list[str]], **options: Any) -> str:
    file = io.StringIO(newline="")
    csv.writer(file, **options).writerows(rows)
    return file.getvalue()


def zipped(name: str, text: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, text)
        archive.writestr(f"__MACOSX/._{name}", "x")
    return file.getvalue()


def arrow(columns: Mapping[str, Any]) -> bytes:
    rows = pa.table(dict(columns))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue())


def excel(columns: Mapping[str, Any]) -> bytes:
    file = io.BytesIO()
    pd.DataFrame(columns).to_excel(file, index=False)
    return file.getvalue()


NAMES = list(CAPTIONS)
TEXTS = list(CAPTIONS.values())
ROWS = [{"image": f"{name}.jpg", "caption": text} for name, text in CAPTIONS.items()]
FRAME = pd.DataFrame(ROWS)


def chat(text: str) -> list[dict[str, Any]]:
    question = [{"type": "image_url"}, {"type": "text", "text": "What is this?"}]
    answer = [{"type": "text", "text": text}]
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


CANDIDATES: dict[str, tuple[str, Any]] = {
    "records": ("c.json", FRAME.to_json(orient="records")),
    "columns of dicts": ("c.json", FRAME.to_json(orient="columns")),
    "lists by column": ("c.json", {"image_id": NAMES, "predictions": TEXTS, "n": 5}),
    "split": ("c.json", FRAME.to_json(orient="split")),
    "indexed rows": ("c.json", FRAME.to_json(orient="index")),
    "around the list": ("c.json", {"config": {"beam": 5}, "date": "today", "results": ROWS}),
    "around the mapping": ("c.json", {"model": "blip", "captions": CAPTIONS}),
    "parts": ("c.json", {"train": [], "test": ROWS}),
    "objects by id": ("c.json", {name: {"prediction": text, "score": 1} for name, text in CAPTIONS.items()}),
    "lists by id": ("c.json", {name: [{"caption": text}] for name, text in CAPTIONS.items()}),
    "pairs": ("c.json", [[f"{name}.png", text] for name, text in CAPTIONS.items()]),
    "one key a line": ("c.jsonl", lines({name: text} for name, text in CAPTIONS.items())),
    "chat": ("c.jsonl", lines({"id": name, "messages": chat(text)} for name, text in CAPTIONS.items())),
    "chat of cut parts": ("c.jsonl", lines(
        {"id": name, "messages": [{"role": "assistant", "content": [
            {"type": "text", "text": text[:9]}, {"type": "text", "text": text[9:]}
        ]}]} for name, text in CAPTIONS.items()
    )),
    "ShareGPT": ("c.json", [
        {"id": name, "conversations": [{"from": "human", "value": "?"}, {"from": "gpt", "value": text}]}
        for name, text in CAPTIONS.items()
    ]),
    "lmms-eval": ("samples.jsonl", lines(
        {"doc_id": n, "doc": {"image_id": name}, "resps": [[text]], "filtered_resps": [text]}
        for n, (name, text) in enumerate(CAPTIONS.items())
    )),
    "words": ("c.jsonl", lines({"image": name, "tokens": text.split()} for name, text in CAPTIONS.items())),
    "spaces and capitals": ("c.csv", "Image Name, Caption\n" + "".join(
        f'{name}.jpg, "{text}"\n' for name, text in CAPTIONS.items()
    )),
    "bare commas": ("captions.txt", "image,caption\n" + "".join(
        f"{name}.jpg,{text}\n" for name, text in CAPTIONS.items()
    )),
    "no header": ("c.tsv", "".join(f"{name}.jpg\t{text}\n" for name, text in CAPTIONS.items())),
    "text before address": ("c.tsv", "".join(
        f"{text}\thttps://host/a/{name}.jpg?w=1\n" for name, text in CAPTIONS.items()
    )),
    "index of pandas": ("c.csv", FRAME.to_csv()),
    "zip": ("c.zip", zipped("results.json", json.dumps(CAPTIONS))),
    "gzip": ("c.jsonl.gz", gzip.compress(lines(ROWS).encode())),
    "Arrow": ("data.arrow", arrow({"file_name": NAMES, "text": TEXTS})),
    "Excel": ("c.xlsx", excel({"Image": NAMES, "Response": TEXTS})),
    "Windows paths": ("c.json", [
        {"image": rf"C:\data\{name}.JPG", "caption": text} for name, text in CAPTIONS.items()
    ]),
    "both, which agree": ("c.json", [{**row, "prediction": row["caption"]} for row in ROWS]),
}  # fmt: skip


@pytest.mark.parametrize("name", CANDIDATES)
def test_candidates_of_every_form_give_the_number_of_the_plain_form(
    tmp_path: Path, name: str, right: float, capsys: pytest.CaptureFixture[str]
) -> None:
    path = put(tmp_path, *CANDIDATES[name])
    references = put(tmp_path, "r.json", REFERENCES)
    assert number(tmp_path, "--candidates", path, "--references", references) == pytest.approx(
        right, abs=1e-9
    )
    assert f"note: {path}: " in capsys.readouterr().err  # how it was read


FORMS: dict[str, tuple[str, Any]] = {
    "numbered columns": ("r.csv", table([
        ["image", "caption_1", "caption_2"], *([name, *texts] for name, texts in REFERENCES.items())
    ])),
    "lists that repeat": ("r.json", {"data": [
        {"image_id": name, "reference_strs": texts, "caption_str": text}
        for name, texts in REFERENCES.items() for text in texts
    ]}),
    "annotations": ("r.json", {
        "images": [{"id": n, "file_name": f"{name}.jpg"} for n, name in enumerate(NAMES)],
        "annotations": [
            {"id": 9, "image_id": n, "caption": text}
            for n, texts in enumerate(REFERENCES.values()) for text in texts
        ],
    }),
    "marked annotations": ("r.json", [
        {"image": name, "caption": text, "is_precanned": False, "is_rejected": text == "bad"}
        for name, texts in REFERENCES.items() for text in [*texts, "bad"]
    ]),
    "sentences of videos": ("r.json", {
        "info": {}, "videos": [{"video_id": name, "id": n} for n, name in enumerate(NAMES)],
        "sentences": [
            {"video_id": name, "caption": text} for name, texts in REFERENCES.items() for text in texts
        ],
    }),
    "words of several": ("r.jsonl", lines(
        {"image": name, "tokens": [text.split() for text in texts]} for name, texts in REFERENCES.items()
    )),
    "a language": ("r.jsonl", lines(
        {"image/key": name, "en": {"caption": texts, "caption/tokenized": []}}
        for name, texts in REFERENCES.items()
    )),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_references_of_every_form_give_the_number_of_the_plain_form(
    tmp_path: Path, name: str, right: float
) -> None:
    path = put(tmp_path, *FORMS[name])
    candidates = put(tmp_path, "c.json", CAPTIONS)
    options = ["--reference-column", "en"] if name == "a language" else []
    found = number(tmp_path, "--candidates", candidates, "--references", path, *options)
    assert found == pytest.approx(right, abs=1e-9)


@pytest.mark.parametrize("flags", ["one flag", "two flags"])
def test_references_of_several_annotators_are_joined(tmp_path: Path, flags: str, right: float) -> None:
    candidates = put(tmp_path, "c.json", CAPTIONS)
    paths = [put(tmp_path, f"r{n}.json", {k: texts[n] for k, texts in REFERENCES.items()}) for n in (0, 1)]
    given_flags = ["--references", *paths]
    if flags == "two flags":
        given_flags = ["--references", paths[0], "--references", paths[1]]
    assert number(tmp_path, "--candidates", candidates, *given_flags) == pytest.approx(right, abs=1e-9)


def test_plain_lines_are_joined_line_by_line(tmp_path: Path, right: float) -> None:
    candidates = put(tmp_path, "hyp.txt", "\n".join(TEXTS))
    paths = [put(tmp_path, f"r{n}.txt", "\n".join(texts[n] for texts in REFERENCES.values())) for n in (0, 1)]
    found = number(tmp_path, "--candidates", candidates, "--references", *paths)
    assert found == pytest.approx(right, abs=1e-9)
    short = put(tmp_path, "short.txt", "\n".join(TEXTS[:3]))
    assert main(["score", "ciderd", "--candidates", str(short), "--references", str(paths[0])]) == 2


REFUSED: dict[str, tuple[str, Any, str]] = {
    "ground truth": (
        "c.jsonl", lines({**row, "prediction": "x y"} for row in ROWS), "--caption-column prediction"
    ),
    "several predictions": ("c.jsonl", lines(
        {"image": row["image"], "pred": row["caption"], "generated_caption": "x y"} for row in ROWS
    ), "--caption-column"),
    "unknown names": ("c.json", [{"a": "dog.jpg", "b": "x y"}], "--caption-column"),
    "two parts": ("c.json", {"val": ROWS, "test": ROWS}, "--split"),
    "two lists": ("c.json", {"blip": ROWS, "git": ROWS}, "'blip' and 'git'"),
    "unequal columns": ("c.json", {"image_id": NAMES, "caption": TEXTS[:3]}, "different lengths"),
    "few words": ("c.json", {name: ["big", "dog"] for name in NAMES}, "single words"),
    "a question last": ("c.json", [{"id": "dog", "messages": chat("x")[:1]}], "last turn"),
    "several images": ("c.json", [{"image": ["dog.jpg", "cat.jpg"], "caption": "x y"}], "one image"),
    "pickle": ("c.pkl", b"\x80\x04\x95", "pickle"),
    "array": ("c.npy", b"\x93NUMPY\x01\x00", "NumPy"),
    "old Excel": ("c.xls", b"\xd0\xcf\x11\xe0", "CSV"),
    "archive of two": ("c.zip", None, "several files"),
    "page": ("c.json", "<!DOCTYPE html><html>", "HTML"),
    "Python": ("c.json", "[{'image': 'dog', 'caption': 'x'}]", "json.dumps"),
    "a comma too many": ("c.json", '[{"image": "dog", "caption": "x"},]', "comma"),
    "UTF-16 without a mark": (
        "c.csv", table([["image", "caption"], ["dog", "x y"]]).encode("utf-16-le"), "UTF-16"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_unclear_is_refused_with_a_way_out(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file_name, content, words = REFUSED[name]
    if content is None:
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            for member in ("a.json", "b.json"):
                archive.writestr(member, json.dumps(CAPTIONS))
        content = file.getvalue()
    path = put(tmp_path, file_name, content)
    references = put(tmp_path, "r.json", REFERENCES)
    assert main(["score", "ciderd", "--candidates", str(path), "--references", str(references)]) == 2
    message = capsys.readouterr().err
    assert file_name in message and words in message


# ---- ids


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """A folder of five files, 0.png to 4.png."""
    for n in range(5):
        put(tmp_path, f"photos/{n}.png", b"x")
    return tmp_path / "photos"


def shifted(column: str) -> str:
    """Rows numbered from 0 by `id`, of which each is about the next picture."""
    rows = [{"id": n, column: f"{(n + 1) % 5}.png", "caption": text} for n, text in enumerate(TEXTS)]
    return lines(rows)


@pytest.mark.parametrize("column", ["Image", "Filename", "image_file", "scene", "pic path"])
def test_row_numbers_do_not_name_images_where_a_column_does(
    tmp_path: Path, pictures: Path, column: str
) -> None:
    path = put(tmp_path, "c.jsonl", shifted(column))
    with pytest.raises(FileError, match="name different images in 5 rows"):
        read_collection(path, pictures)
    joined = read_collection(path, pictures, id_column=column)
    assert [image.name for image in joined.images] == ["1.png", "2.png", "3.png", "4.png", "0.png"]


def test_columns_of_unknown_names_are_found_by_their_values(tmp_path: Path, pictures: Path) -> None:
    rows = [{"scene": f"{n}.png", "caption": text} for n, text in enumerate(TEXTS)]
    joined = read_collection(put(tmp_path, "c.jsonl", lines(rows)), pictures)
    assert [image.name for image in joined.images] == [f"{n}.png" for n in range(5)]


@pytest.mark.parametrize(
    ("image_id", "expected"),
    [
        ("airport/1.jpg", "airport/1.jpg"),
        ("data/airport/1.jpg", "airport/1.jpg"),
        ("/home/me/rs/airport/1", "airport/1.jpg"),
        (r"D:\rs\beach\1.jpg", "beach/1.jpg"),
        ("https://host/beach/1.jpg?x=2", "beach/1.jpg"),
        ("2", "beach/2.jpg"),
        ("harbour/1.jpg", None),
        ("1", None),
        ("cafe\u0301/3.jpg", "caf\u00e9/3.jpg"),
        ("4.0", "beach/004.jpg"),
    ],
)
def test_ids_are_compared_from_their_end(tmp_path: Path, image_id: str, expected: str | None) -> None:
    for name in ("airport/1.jpg", "beach/1.jpg", "beach/2.jpg", "caf\u00e9/3.jpg", "beach/004.jpg"):
        put(tmp_path, f"photos/{name}", b"x")
    candidates = put(tmp_path, "c.json", {image_id: "x"})
    if expected is None:
        with pytest.raises(FileError):
            read_collection(candidates, tmp_path / "photos")
    else:
        joined = read_collection(candidates, tmp_path / "photos")
        assert joined.images == [tmp_path / "photos" / expected]


def test_of_several_entries_the_one_whose_folders_agree_furthest_is_meant(tmp_path: Path) -> None:
    for name in ("street.jpg", "airport/street.jpg"):
        put(tmp_path, f"photos/{name}", b"x")
    candidates = put(tmp_path, "c.json", {"data/airport/street": "x"})
    joined = read_collection(candidates, tmp_path / "photos")
    assert joined.images == [tmp_path / "photos" / "airport" / "street.jpg"]


def test_a_warning_names_the_innermost_folder_of_an_id_where_the_image_does_not_lie(tmp_path: Path) -> None:
    put(tmp_path, "val/street.jpg", b"x")
    with pytest.warns(UserWarning, match="1 id names the folder 'train'"):
        read_collection(put(tmp_path, "c.json", {"coco/train/street.jpg": "x"}), tmp_path / "val")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_collection(put(tmp_path, "d.json", {"coco/val/street.jpg": "x"}), tmp_path / "val")


@pytest.mark.parametrize(
    ("image_id", "found"),
    [
        ("val/1.jpg", True),
        ("/home/me/coco/val/1", True),
        ("train/1.jpg", False),
        ("train\\frame_1.jpg", False),
        ("imgs/1.jpg", True),  # a name of any folder
        ("train/street.jpg", True),  # a name that says which image it is
        ("train/COCO_val2014_000000000042.jpg", True),
    ],
)
def test_a_number_in_another_folder_is_another_image(tmp_path: Path, image_id: str, found: bool) -> None:
    for name in ("1.jpg", "frame_1.jpg", "street.jpg", "COCO_val2014_000000000042.jpg"):
        put(tmp_path, f"val/{name}", b"x")
    candidates = put(tmp_path, "c.json", {image_id: "x"})
    if found:
        assert read_collection(candidates, tmp_path / "val").images[0].parent == tmp_path / "val"
    else:
        with pytest.raises(FileError, match="train"):
            read_collection(candidates, tmp_path / "val")


def test_references_of_another_folder_are_not_those_of_an_image(tmp_path: Path) -> None:
    content = {
        "images": [{"id": n, "file_name": f"airport/{n}.jpg"} for n in range(3)],
        "annotations": [{"image_id": n, "caption": f"a plane {n}"} for n in range(3)],
    }
    references = put(tmp_path, "r.json", content)
    with pytest.raises(FileError, match="beach"):
        read_collection(put(tmp_path, "c.json", {f"beach/{n}.jpg": "x" for n in range(3)}), None, references)
    joined = read_collection(
        put(tmp_path, "d.json", {f"airport/{n}.jpg": "x" for n in range(3)}), None, references
    )
    assert joined.references == [["a plane 0"], ["a plane 1"], ["a plane 2"]]


def test_annotations_serve_metrics_without_references(tmp_path: Path, pictures: Path) -> None:
    for n in range(5):
        put(tmp_path, f"hex/{n}f.png", b"x")
    content = {
        "images": [{"id": n, "file_name": f"{n}f.png"} for n in range(5)],
        "annotations": [{"image_id": n, "caption": f"text {n}"} for n in range(5)],
    }
    candidates = put(tmp_path, "c.json", {str(n): text for n, text in enumerate(TEXTS)})
    references = put(tmp_path, "r.json", content)
    joined = read_collection(candidates, tmp_path / "hex", references, needs_references=False)
    assert [image.name for image in joined.images] == [f"{n}f.png" for n in range(5)]
    assert joined.references is None


def test_a_flag_that_is_given_twice_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(put(tmp_path, "c.json", CAPTIONS))
    command = ["score", "ciderd", "--candidates", path, "--references", path]
    assert main([*command, "--id-column", "a", "--id-column", "b"]) == 2
    assert "--id-column is given 2 times" in capsys.readouterr().err


# ---- any table in any form

ids = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)
sentences = st.lists(
    st.sampled_from(["a", "dog", "cat,", "red", '"big"', "'there'", "café", "ö|x", "犬"]),
    min_size=2,
    max_size=6,
)
tables = st.dictionaries(
    ids, st.tuples(sentences.map(" ".join), st.lists(sentences.map(" ".join), min_size=1, max_size=3)),
    min_size=2, max_size=5,
)  # fmt: skip
Pairs = Mapping[str, tuple[str, list[str]]]
WRITERS: dict[str, Callable[[Pairs], tuple[str, Any]]] = {
    "json": lambda pairs: ("t.json", [
        {"image": i, "prediction": c, "refs": r} for i, (c, r) in pairs.items()
    ]),
    "jsonl": lambda pairs: ("t.jsonl", lines(
        {"file": i, "caption": c, "references": r} for i, (c, r) in pairs.items()
    )),
    "by id": lambda pairs: ("t.json", {i: {"response": c, "gts": r} for i, (c, r) in pairs.items()}),
    "by column": lambda pairs: ("t.json", {
        "id": list(pairs), "pred": [c for c, _ in pairs.values()], "gt": [r for _, r in pairs.values()]
    }),
    "csv": lambda pairs: ("t.csv", table([
        ["Image", "Generated Caption", "references"],
        *([i, c, json.dumps(r)] for i, (c, r) in pairs.items()),
    ])),
    "arrow": lambda pairs: ("t.arrow", arrow({
        "image_id": list(pairs), "candidate": [c for c, _ in pairs.values()],
        "refs": [r for _, r in pairs.values()],
    })),
    "excel": lambda pairs: ("t.xlsx", excel({
        "img": list(pairs), "hypothesis": [c for c, _ in pairs.values()],
        "gt_1": [r[0] for _, r in pairs.values()],
        **{f"gt_{n}": [(r[n - 1] if len(r) >= n else None) for _, r in pairs.values()] for n in (2, 3)},
    })),
}  # fmt: skip


@pytest.mark.parametrize("form", WRITERS)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(pairs=tables)
def test_a_table_gives_the_same_pairs_in_any_form(
    tmp_path_factory: pytest.TempPathFactory, form: str, pairs: Pairs
) -> None:
    path = put(tmp_path_factory.mktemp("table", numbered=True), *WRITERS[form](pairs))
    joined = read_collection(path, None, path)
    assert dict(zip(joined.ids, joined.captions, strict=True)) == {i: c for i, (c, _) in pairs.items()}
    assert dict(zip(joined.ids, joined.references, strict=True)) == {i: r for i, (_, r) in pairs.items()}
