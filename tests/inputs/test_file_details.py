"""Details of files that change a number or a name: which column, which record, which count, which bound."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from capeval_core.errors import FileError
from tests.inputs.test_text_files import written
from tests.support.seams import read_collection, read_texts


def texts_of(folder: Path, content: Any, name: str = "c.json", **options: str) -> list[tuple[str, str]]:
    """Ids and texts of a file of references."""
    return read_texts(written(folder, content, name), references=True, **options)


def refusal(folder: Path, content: Any, name: str = "c.json", **options: str) -> str:
    with pytest.raises(FileError) as caught:
        texts_of(folder, content, name, **options)
    return str(caught.value)


# ---- notes on how a file was read


def test_a_note_says_form_and_columns_and_what_was_not_read(tmp_path: Path) -> None:
    rows = [
        {"id": n, "file_name": f"{n}.jpg", "text": f"a {n}", "url": "u", "split": "test", "n": n, "note": "x"}
        for n in range(2)
    ]
    candidates = written(tmp_path, rows)
    references = written(tmp_path, {"0.jpg": ["r"], "1.jpg": ["s"]}, "r.json")
    joined = read_collection(candidates, None, references)
    assert joined.read[str(candidates)] == {
        "form": joined.read[str(candidates)]["form"],
        "id": "file_name",
        "caption": "text",
        "not_read": ["id", "url", "split", "n", "note"],
    }
    assert joined.read[str(references)]["id"] == "key" and joined.read[str(references)]["not_read"] == []
    assert joined.read[str(references)]["references"] == "value"
    assert "not read: id, url, split, n, note" in joined.notes[0] and "..." not in joined.notes[0]
    assert "id = file_name, caption = text" in joined.notes[0] and "file =" not in joined.notes[0]
    split = read_collection(candidates, None, references, split="test").read[str(candidates)]
    assert split["not_read"] == ["id", "url", "n", "note"]
    wide = {"id": 1, "text": "a", **{f"x{n}": n for n in range(9)}}
    (note,) = read_collection(written(tmp_path, [wide]), None).notes
    assert note.endswith("x6, x7, ...") and "x8" not in note
    del wide["x8"]
    (note,) = read_collection(written(tmp_path, [wide]), None).notes
    assert note.endswith("x6, x7")


def test_of_a_path_the_outermost_column_was_read(tmp_path: Path) -> None:
    rows = [{"doc": {"image_id": "a", "x": 1}, "resps": [["a dog"]], "z": 1}]
    joined = read_collection(written(tmp_path, rows), None)
    reading = joined.read[str(tmp_path / "c.json")]
    assert (reading["id"], reading["caption"], reading["not_read"]) == ("doc.image_id", "resps", ["z"])
    assert joined.ids == ["a"] and joined.captions == ["a dog"]


# ---- values by name and by path


@pytest.mark.parametrize(
    ("row", "column", "expected"),
    [
        ({"a": {"b": ["x y", "v w"]}}, "a.b.1", "v w"),
        ({"a": [{"b": "x y"}, {"b": "v w"}]}, "a.1.b", "v w"),
        ({"a.b": "x y", "a": {"b": "v w"}}, "a.b", "x y"),  # a name counts before a path
        ({"a": {"b.c": "x y", "b": {"c": "v w"}}}, "a.b.c", "x y"),
        ({"a": ["x y"]}, "a.1", None),
        ({"a": ["x y"]}, "a.b", None),
        ({"a": ["x y"]}, "a.-1", None),
        ({"a": "x y"}, "a.0", None),
        ({"a": {"b": "x y"}}, "a.c", None),
    ],
)
def test_a_path_leads_to_a_value_or_to_none(
    tmp_path: Path, row: dict[str, Any], column: str, expected: str | None
) -> None:
    content = [{"id": "i", **row}]
    if expected is not None:
        assert texts_of(tmp_path, content, reference_column=column) == [("i", expected)]
        return
    assert "none of these is known to hold references" in refusal(tmp_path, content, reference_column=column)


def test_several_columns_of_a_user_are_read_together_in_their_order(tmp_path: Path) -> None:
    rows = [{"id": "i", "b": "b c", "a": "a b", "a,b": "x y"}, {"id": "j", "b": " ", "a": "v w", "a,b": "x"}]
    assert texts_of(tmp_path, rows, reference_column="b, a")[:2] == [("i", "b c"), ("i", "a b")]
    assert texts_of(tmp_path, rows, reference_column="b, a")[2:] == [("j", "v w")]
    assert texts_of(tmp_path, rows[:1], reference_column="a,b") == [("i", "x y")]  # the name of one column
    assert "'id', 'b', 'a', 'a,b'" in refusal(tmp_path, rows, reference_column="b, c")


def test_options_that_no_file_has_are_named_with_what_there_is(tmp_path: Path) -> None:
    rows = [{"id": "i", "caption": "a b", "split": part} for part in ("val", "test", "test")]
    path = written(tmp_path, rows)
    for options, parts in (
        ({"id_column": "ids"}, ["id_column='ids' is not", "'id', 'caption', 'split'"]),
        ({"caption_column": "captoin"}, ["caption_column='captoin'", "did you mean 'caption'"]),
        ({"split": "tset"}, ["split='tset'", "'val' (1), 'test' (2)"]),
        ({"split": "test, dev"}, ["split='dev'", "'val' (1), 'test' (2)"]),
    ):
        with pytest.raises(ValueError) as caught:
            read_collection(path, None, **options)
        message = str(caught.value)
        assert all(part in message for part in parts), message
    for options in ({}, {"id_column": "id"}, {"caption_column": "caption"}):
        with pytest.raises(FileError) as caught:
            read_collection(path, None, **options)
        (problem,) = caught.value.problems  # that a split is to be chosen, and nothing else
        assert "split='test'" in problem.fix
    with pytest.raises(ValueError, match="captions there have no splits"):
        read_collection(written(tmp_path, {"a": "b c"}), None, split="test")


def test_records_of_the_chosen_splits_count(tmp_path: Path) -> None:
    rows = [
        {"id": n, "caption": f"a {n}", "split": part} for n, part in enumerate(("train", "val", "restval"))
    ]
    path = written(tmp_path, rows)
    for split, expected in (("val", [1]), ("train,restval", [0, 2]), (" restval , val ", [1, 2])):
        found = read_collection(path, None, split=split)
        assert found.captions == [f"a {n}" for n in expected]
        assert [row["id"] for row in found.rows] == expected
    with pytest.raises(ValueError) as caught:
        read_collection(path, None)
    assert "'train' (1), 'val' (1), 'restval' (1)" in str(caught.value)
    assert "split='train'" in str(caught.value)  # no `test` is there to choose
    assert len(read_texts(path, references=True)) == 3  # of references all may be meant


def test_what_marks_an_annotation_leaves_it_out_of_references_alone(tmp_path: Path) -> None:
    marks = [True, "true", 1, "1.0", "Yes", " t ", False, None, 0, "no", "", 2, "0.0"]
    rows = [{"id": "a", "caption": f"text {n}", "is_rejected": mark} for n, mark in enumerate(marks)]
    rows.append({"id": "a", "caption": "canned one", "is_rejected": False, "is_precanned": True})
    path = written(tmp_path, rows)
    assert [text for _, text in texts_of(tmp_path, rows)] == [f"text {n}" for n in range(6, 13)]
    joined = read_collection(written(tmp_path, {"a": "x"}, "d.json"), None, path)
    notes = [note.removeprefix(f"{path}: ") for note in joined.notes if "left out" in note]
    assert notes == [
        "6 references are left out, marked by is_rejected",
        "1 reference is left out, marked by is_precanned",
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert len(read_collection(path, None).captions) == 14  # of candidates nothing is left out


# ---- which name is the id


@pytest.mark.parametrize(
    ("row", "column"),
    [
        ({"id": "9", "image_id": "7"}, "image_id"),  # that of an annotation
        ({"id": "9", "cocoid": "7"}, "cocoid"),
        ({"_id": "9", "video_id": "7"}, "video_id"),
        ({"name": "9", "index": "8", "id": "7"}, "id"),
        ({"image": "8", "image_id": "7"}, "image_id"),
        ({"doc": {"image_id": "7"}, "doc_id": "9"}, "doc.image_id"),
        ({"image": {"bytes": None, "path": "7"}}, "image"),
        ({"image": ["7"]}, "image"),
        ({"image_id": 7.0}, "image_id"),
        ({"Image Name": "7"}, "Image Name"),
    ],
)
def test_the_best_name_of_an_id_is_taken(tmp_path: Path, row: dict[str, Any], column: str) -> None:
    joined = read_collection(written(tmp_path, [{**row, "caption": "a b"}]), None)
    assert joined.ids == ["7"] and joined.read[str(tmp_path / "c.json")]["id"] == column


@pytest.mark.parametrize(
    ("value", "problem"),
    [(None, "missing"), ("", "empty"), (True, "True"), (1.5, "1.5"), (["a", "b"], "one image"), ({}, "dict")],
)
def test_a_value_that_is_no_id_is_refused_in_its_record(tmp_path: Path, value: Any, problem: str) -> None:
    rows = [{"image_id": "a", "caption": "a b"}, {"image_id": value, "caption": "a b"}]
    with pytest.raises(FileError) as caught:
        read_collection(written(tmp_path, rows), None)
    (found,) = caught.value.problems
    assert "1: the id" in found.where and problem in f"{found.text} {found.fix}"


def test_without_a_known_column_the_message_lists_ids_and_texts(tmp_path: Path) -> None:
    message = refusal(tmp_path, [{"uid": "a", "zeta": "a dog runs", "eta": "x"}])
    assert "'uid', 'zeta', 'eta'" in message and "'uid' may be the id" in message
    assert "reference_column='zeta'" in message and "id_column=" not in message
    message = refusal(tmp_path, [{"iota": "a", "zeta": "a dog runs", "eta": "a cat"}])
    assert "none the id" in message and "reference_column='NAME'" in message
    assert "id_column='NAME'" in message and "texts are in 'zeta', 'eta'" in message


# ---- lists of words, marks between texts


@pytest.mark.parametrize(
    ("lists", "expected"),
    [
        ([["a", "dog", "runs"], ["two", "cats"]], ["a dog runs", "two cats"]),  # three words are a caption
        ([["a dog", "runs"], ["two", "cats"]], ["a dog", "runs", "two", "cats"]),
        ([["dog"], ["cat"]], ["dog", "cat"]),
        ([["a", "b"], ["c", "d"]], ["a", "b", "c", "d"]),  # letters
        ([["a", "dog"], ["two", "cats"]], None),
    ],
)
def test_lists_of_single_words_are_captions_where_one_has_three(
    tmp_path: Path, lists: list[list[str]], expected: list[str] | None
) -> None:
    content = [{"id": n, "references": texts} for n, texts in enumerate(lists)]
    if expected is None:
        assert "['a', 'dog']" in refusal(tmp_path, content)
        return
    assert [text for _, text in texts_of(tmp_path, content)] == expected
    tokens = [{"id": n, "tokens": texts} for n, texts in enumerate(lists)]
    if all(" " not in text for texts in lists for text in texts) and max(map(len, lists)) > 1:
        is_of_letters = all(len(text) == 1 for texts in lists for text in texts)
        joined = [" ".join(texts) for texts in lists]
        assert [text for _, text in texts_of(tmp_path, tokens)] == (expected if is_of_letters else joined)


def test_marks_between_texts_are_refused_above_half_of_the_references(tmp_path: Path) -> None:
    half = {"a": "x y | v w", "b": "x y", "c": "x | y", "d": "x y"}
    assert len(texts_of(tmp_path, half)) == 4
    message = refusal(tmp_path, {**half, "b": "x | y"})
    assert "' | ' within 3 of 4 references" in message
    references = written(tmp_path, {"a": "x; y", "b": "x; y", "c": "x\ny", "d": "x y\n"}, "r.json")
    candidates = written(tmp_path, dict.fromkeys("abcd", "z"), "d.json")
    notes = read_collection(candidates, None, references).notes
    assert f"{references}: 1 reference has several lines, and count as one text each" in notes
    assert not any("semicolon" in note for note in notes)
    written(tmp_path, {"a": "x; y", "b": "x; y", "c": "x\ny; z", "d": "x\ny"}, "r.json")
    notes = read_collection(candidates, None, references).notes
    assert any("3 references hold a semicolon" in note for note in notes)
    assert any("2 references have several lines" in note for note in notes)


@pytest.mark.parametrize(
    ("value", "place"),
    [(["x y", 7], "[1]"), ([], ""), (7, ""), ({"q": 1}, ""), (["x y", "\ud800"], "[1]"), ([["a", 5]], "[0]")],
)
def test_a_value_that_is_no_text_is_refused_at_its_place(tmp_path: Path, value: Any, place: str) -> None:
    rows = [{"id": "a", "captions": ["x y"]}, {"id": "b", "captions": value}]
    with pytest.raises(FileError) as caught:
        texts_of(tmp_path, rows)
    assert [problem.where for problem in caught.value.problems] == [
        f"{tmp_path / 'c.json'}: entry 1 (id 'b'): captions{place}"
    ]


# ---- references of one image in several records


def test_a_list_that_rows_repeat_counts_once_and_others_are_added(tmp_path: Path) -> None:
    candidates = written(tmp_path, {"a": "x", "b": "y"}, "d.json")
    rows = [
        {"id": i, "references": texts} for i, texts in (("a", ["r", "s"]), ("b", ["t"]), ("a", ["r", "s"]))
    ]
    assert read_collection(candidates, None, written(tmp_path, rows)).references == [["r", "s"], ["t"]]
    rows[2]["references"] = ["r", "u"]
    with pytest.raises(FileError) as caught:
        read_collection(candidates, None, written(tmp_path, rows))
    assert [problem.where for problem in caught.value.problems] == [
        f"{tmp_path / 'c.json'}: entry 2 (id 'a'): references"
    ]
    rows = [{"id": row["id"], "captions": row["references"]} for row in rows]
    assert read_collection(candidates, None, written(tmp_path, rows)).references == [
        ["r", "s", "r", "u"],
        ["t"],
    ]
    rows = [{"id": "a", "caption": "r"}, {"id": "b", "caption": "t"}, {"id": "a", "caption": "r"}]
    assert read_collection(candidates, None, written(tmp_path, rows)).references == [["r", "r"], ["t"]]


def test_annotated_images_without_a_caption_are_counted(tmp_path: Path) -> None:
    references = written(tmp_path, {name: ["r"] for name in "abcdef"}, "r.json")
    for ids, note in (
        ("bcdef", "1 of 6 annotated images has no caption"),
        ("ab", "4 of 6 annotated images have"),
    ):
        candidates = written(tmp_path, {name: f"x {name}" for name in ids})
        notes = [
            text for text in read_collection(candidates, None, references).notes if "annotated im" in text
        ]
        (found,) = notes
        assert found.startswith(f"{references}: {note}") and str(candidates) in found
        assert ("'a'" in found) is (ids == "bcdef") and ("('c', 'd', 'e'" in found) is (ids == "ab")
    candidates = written(tmp_path, {name: f"x {name}" for name in "abcdef"})
    assert not any("annotated im" in text for text in read_collection(candidates, None, references).notes)


def test_captions_that_are_references_are_counted(tmp_path: Path) -> None:
    references = written(tmp_path, {"a": ["r", "s"], "b": ["t", "u"], "c": ["v"]}, "r.json")
    for captions, note in (
        ({"a": "s", "b": "x", "c": "y"}, "1 of 3 caption is among"),
        ({"a": "r", "b": "u", "c": "y"}, "2 of 3 captions are among"),
        ({"a": "t", "b": "r", "c": "y"}, None),  # those of another image
    ):
        candidates = written(tmp_path, captions)
        notes = [
            text for text in read_collection(candidates, None, references).notes if "own references" in text
        ]
        assert [text.startswith(f"{candidates}: {note}") for text in notes] == (
            [] if note is None else [True]
        )


@pytest.mark.parametrize(
    ("rows", "beginning"),
    [
        ("aaaaab", None),
        (
            [("a", "x"), ("a", "x"), ("b", "y")],
            "1 caption that its image has already: each counts (3 captions)",
        ),
        ([("a", "x"), ("a", "x"), ("a", "x"), ("b", "y")], "2 captions that their images have already"),
        ([("a", "x"), ("b", "x"), ("b", "z")], "1 image has different captions in several rows (ids 'b')"),
        (
            [("a", "x"), ("b", "x"), ("b", "z"), ("a", "y")],
            "2 images have different captions in several rows (ids 'b', 'a')",
        ),
    ],
)
def test_captions_that_repeat_or_differ_are_warned_of_with_their_count(
    tmp_path: Path, rows: Any, beginning: str | None
) -> None:
    if beginning is None:
        rows = [(f"{n}", text) for n, text in enumerate(rows)]
    content = [{"id": image_id, "caption": text} for image_id, text in rows]
    path = written(tmp_path, content)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert read_collection(path, None).captions == [text for _, text in rows]
    messages = [str(warning.message).removeprefix(f"{path}: ") for warning in caught]
    assert [message.startswith(beginning or "") for message in messages] == (
        [] if beginning is None else [True]
    )


# ---- segments of videos


def test_segments_are_named_by_their_times_in_every_form(tmp_path: Path) -> None:
    times = [[0, 3.5], [12.0, 20], [1000.25, 2000.5]]
    sentences = ["a man runs", "a dog sits", "the end"]
    names = ["film 0-3.5", "film 12-20", "film 1000.25-2000.5"]
    spans = [{"timestamp": span, "sentence": text} for span, text in zip(times, sentences, strict=True)]
    for content in (
        {"film": {"duration": 9, "timestamps": times, "sentences": sentences}},
        {"film": spans},
        [{"video_id": "film", **span} for span in spans],
        [{"video_id": "film", "timestamps": times, "sentences": sentences, "id": "x"}],
    ):
        path = written(tmp_path, content)
        joined = read_collection(path, None)
        assert dict(zip(joined.ids, joined.captions, strict=True)) == dict(
            zip(names, sentences, strict=True)
        ), content
        assert any("by segment" in note for note in joined.notes)
        assert any("time stamps" in note for note in joined.notes)
    for odd in ([[0, 3.5]], [[0, 3.5], [1]], [[0, 3.5, 1], [1, 2]]):
        content = {"film": {"timestamps": odd, "sentences": sentences[:2]}}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                ids = read_collection(written(tmp_path, content), None).ids
            except FileError:
                continue
        assert ids in (["film"] * 2,), odd


def test_segments_of_a_split_keep_it(tmp_path: Path) -> None:
    rows = [
        {"video_id": part, "split": part, "timestamps": [[0, 1]], "sentences": [f"a {part}"]}
        for part in ("val", "test")
    ]
    joined = read_collection(written(tmp_path, rows), None, split="test")
    assert (joined.ids, joined.captions) == (["test 0-1"], ["a test"])


# ---- answers of chat models


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"content": None, "text": "a dog"}, "a dog"),
        (
            {"message": {"content": [{"type": "text", "text": "a "}, {"type": "text", "text": "dog"}]}},
            "a dog",
        ),
        ({"choices": [{"message": {"role": "assistant", "content": "a dog"}}]}, "a dog"),
        (
            {"candidates": [{"content": {"parts": [{"text": "hm", "thought": True}, {"text": "a dog"}]}}]},
            "a dog",
        ),
        ([{"type": "reasoning", "content": "hm"}, {"type": "message", "content": "a dog"}], "a dog"),
        ([{"role": "user", "content": "?"}, {"role": "assistant", "content": "a dog"}], "a dog"),
        ([{"from": "human", "value": "?"}, {"from": "GPT", "value": "a dog"}], "a dog"),
        ([{"type": "image"}, {"type": "text", "text": "a dog"}], "a dog"),
        ({"tokens": ["a", "dog"]}, "a dog"),
        ([{"role": "assistant", "content": "x"}, {"role": "user", "content": "a dog"}], None),
        ([{"type": "image"}], None),
        ({"parts": [{"text": "hm", "thought": True}]}, None),
        ({"x": "a dog"}, None),
    ],
)
def test_the_text_of_an_answer_is_what_the_assistant_said_last(
    tmp_path: Path, value: Any, expected: str | None
) -> None:
    path = written(tmp_path, json.dumps({"id": "i", "response": value}), "c.jsonl")
    if expected is None:
        with pytest.raises(FileError) as caught:
            read_texts(path)
        assert [problem.where for problem in caught.value.problems] == [f"{path}: line 1 (id 'i'): response"]
        return
    assert read_texts(path) == [("i", expected)]


# ---- ids and folders


def test_an_id_without_a_folder_means_the_entry_outside_of_folders(tmp_path: Path) -> None:
    references = written(
        tmp_path, {"street.jpg": ["r"], "airport/street.jpg": ["s"], "b/tree.jpg": ["t"]}, "r.json"
    )
    joined = read_collection(written(tmp_path, {"street": "x", "tree": "y"}), None, references)
    assert joined.references == [["r"], ["t"]] and joined.entries == ["street.jpg", "b/tree.jpg"]


def test_what_is_missing_in_a_folder_is_counted_beside_what_it_holds(tmp_path: Path) -> None:
    for name in ("0.jpg", "1.jpg", "2.jpg", "3.jpg"):
        for folder in ("flat", "deep/a"):
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
            (tmp_path / folder / name).write_bytes(b"x")
    (tmp_path / "empty").mkdir()
    path = written(tmp_path, {"7": "x", "9": "y", "1": "z"})
    for folder, content in (
        ("flat", "files like '0.jpg', '1.jpg', '2.jpg'"),
        ("deep", "files like 'a/0.jpg', 'a/1.jpg', 'a/2.jpg'"),
        ("empty", "no files"),
    ):
        with pytest.raises(FileError) as caught:
            read_collection(path, tmp_path / folder)
        missing = "3 of 3 ids ('7', '9', '1')" if folder == "empty" else "2 of 3 ids ('7', '9')"
        message = str(caught.value)
        assert message.startswith(f"{tmp_path / folder}: ") or str(tmp_path / folder) in message
        assert f"{missing} have no image; it holds {content}" in message, message
    with pytest.raises(FileError, match=r"1 of 2 ids \('7'\) has no image"):
        read_collection(written(tmp_path, {"7": "x", "1": "y"}), tmp_path / "flat")


def test_a_number_in_another_folder_is_missing_with_that_folder_named(tmp_path: Path) -> None:
    (tmp_path / "val").mkdir()
    (tmp_path / "val" / "1.jpg").write_bytes(b"x")
    with pytest.raises(FileError) as caught:
        read_collection(written(tmp_path, {"coco/train/1.jpg": "x", "val/1.jpg": "y"}), tmp_path / "val")
    assert "'coco/train/1.jpg' is in the folder 'train'" in str(caught.value)
    assert "'val/1.jpg'" not in str(caught.value)


def test_ids_in_folders_that_do_not_hold_their_files_are_counted_by_folder(tmp_path: Path) -> None:
    (tmp_path / "val").mkdir()
    for name in ("street.jpg", "tree.jpg", "sea.jpg", "hut.jpg"):
        (tmp_path / "val" / name).write_bytes(b"x")
    ids = ["a/train/street.jpg", "train/tree.jpg", "test/sea.jpg", "b/val/hut.jpg"]
    path = written(tmp_path, dict.fromkeys(ids, "x"))
    with pytest.warns(UserWarning) as caught:
        read_collection(path, tmp_path / "val")
    found = [str(warning.message).removeprefix(f"{path}: ").partition(",")[0] for warning in caught]
    folders = [text for text in found if "folder" in text]
    assert folders == ["2 ids name the folder 'train'", "1 id names the folder 'test'"]


# ---- forms


def test_a_folder_of_tables_says_how_many_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(2):
        rows = pd.DataFrame({"file_name": [f"{number}.jpg"], "caption": [f"a {number}"]})
        rows.to_parquet(folder / f"test-0000{number}-of-00002.parquet")
    joined = read_collection(folder, None)
    assert joined.captions == ["a 0", "a 1"] and joined.ids == ["0.jpg", "1.jpg"]
    assert joined.read[str(folder)]["form"] == "Parquet (2 files)"


def test_a_key_that_comes_twice_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="the key 'dog' comes twice"):
        texts_of(tmp_path, '{"cat": "a b", "dog": "x y", "dog": "v w"}')


@pytest.mark.parametrize("container", [("annotations", "images"), ("sentences", "videos")])
def test_annotations_of_either_container_are_read(tmp_path: Path, container: tuple[str, str]) -> None:
    texts, visuals = container
    content = {
        visuals: [{"id": 7, "file_name": "a.jpg"}, {"id": 8, "file_name": "b.jpg"}],
        texts: [{"id": 1, "image_id": 8, "caption": "x y"}, {"id": 2, "image_id": 7, "caption": "v w"}],
    }
    references = written(tmp_path, content, "r.json")
    joined = read_collection(written(tmp_path, {"a.jpg": "x", "b.jpg": "y"}), None, references)
    assert joined.references == [["v w"], ["x y"]]
