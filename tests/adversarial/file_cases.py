"""Hostile files on the command line: captions, references, saved results, folders, checkpoints."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.adversarial.case import Case, World

GOOD = {"0": "a dog"}
SAVED = {
    "metric": "pacs",
    "key": "pac_s",
    "mean": 0.5,
    "signature": "capeval:pacs|v:0",
    "counts": {"captions": 6, "failed": 0, "truncated": 0, "empty": 0},
    "scores": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6],
    "parts": {},
    "groups": list("abcdef"),
    "errors": {},
    "relative": None,
}


def _pipe(world: World) -> Path:
    path = world.folder / "pipe.json"
    os.mkfifo(path)
    return path


def _parquet(world: World, rows: list[dict[str, Any]]) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), world.folder / "c.parquet")
    return world.folder / "c.parquet"


def _cut_parquet(world: World) -> Path:
    whole = _parquet(world, [{"id": "0", "caption": "a dog"}] * 50).read_bytes()
    return world.file("cut.parquet", whole[: len(whole) // 2])


def _deep(world: World) -> Path:
    return world.file("deep.json", "[" * 100_000 + "]" * 100_000)


CANDIDATES: list[tuple[str, Any, str, str, str]] = [
    ("no such file", lambda world: "no-such.json", "no-such.json", "", "missing"),
    ("a folder", lambda world: world.folder, "/case", "", "place"),
    ("a pipe", _pipe, "pipe.json", "", "place"),
    ("a device", lambda world: "/dev/zero", "/dev/zero", "", "place"),
    ("an empty file", lambda world: world.file("c.json", ""), "c.json", "", "empty"),
    ("another extension", lambda world: world.file("c.yaml", "a: b"), "c.yaml", "", "type"),
    ("no extension", lambda world: world.file("captions", "a"), "captions", "", "type"),
    ("half of JSON", lambda world: world.file("c.json", '{"0": "a'), "c.json", "", "damaged"),
    ("deep JSON", _deep, "deep.json", "", "damaged"),
    ("a JSON text", lambda world: world.file("c.json", '"a dog"'), "c.json", "", "type"),
    ("a JSON number", lambda world: world.file("c.json", "3"), "c.json", "", "type"),
    ("an empty object", lambda world: world.file("c.json", {}), "c.json", "", "missing"),
    ("a caption of null", lambda world: world.file("c.json", {"0": None}), "'0'", "", "type"),
    ("a caption of a number", lambda world: world.file("c.json", {"0": 3}), "'0'", "", "type"),
    ("no captions", lambda world: world.file("c.json", {"0": []}), "'0'", "", "empty"),
    ("an id twice", lambda world: world.file("c.json", '{"0": "a", "0": "b"}'), "'0'", "", "twice"),
    ("an id without image", lambda world: world.file("c.json", {"7": "a"}), "'7'", "", "missing"),
    ("an empty caption", lambda world: world.file("c.json", {"0": ""}), "'0'", "", "empty"),
    ("an id with ..", lambda world: world.file("c.json", {"../0": "a"}), "../0", "", "missing"),
    (
        "an absolute id",
        lambda world: world.file("c.json", {str(world.image): "a"}),
        "/images/0.png'",
        "",
        "missing",
    ),
    ("not UTF-8", lambda world: world.file("c.json", b'{"0": "caf\xe9"}'), "c.json", "", "damaged"),
    ("rows without id", lambda world: world.file("c.json", [{"caption": "a"}]), "entry 0", "", "missing"),
    ("rows without caption", lambda world: world.file("c.json", [{"id": 1}]), "entry 0", "", "missing"),
    ("rows of lists", lambda world: world.file("c.json", [["0", "a"]]), "c.json", "", "type"),
    ("a bool as id", lambda world: world.file("c.json", [{"id": True, "caption": "a"}]), "id", "", "type"),
    (
        "a broken line",
        lambda world: world.file("c.jsonl", '{"id": 0, "caption": "a"}\n{'),
        "line 2",
        "",
        "damaged",
    ),
    ("a CSV of other columns", lambda world: world.file("c.csv", "a,b\n0,x\n"), "c.csv", "", "missing"),
    ("a ragged CSV", lambda world: world.file("c.csv", "id,caption\n0,a,b\n"), "c.csv", "", "count"),
    (
        "a CSV with a column twice",
        lambda world: world.file("c.csv", "id,caption,id\n0,a,1\n"),
        "c.csv",
        "",
        "twice",
    ),
    (
        "a CSV cell without end",
        lambda world: world.file("c.csv", 'id,caption\n0,"a\n'),
        "c.csv",
        "",
        "damaged",
    ),
    (
        "a CSV cell of 200,000",
        lambda world: world.file("c.csv", "id,caption\n0," + "a" * 200_000),
        "c.csv",
        "",
        "large",
    ),
    ("junk Parquet", lambda world: world.file("c.parquet", b"PAR1junkPAR1"), "c.parquet", "", "damaged"),
    ("a cut Parquet", _cut_parquet, "cut.parquet", "", "damaged"),
    ("Parquet of other columns", lambda world: _parquet(world, [{"x": 1}]), "c.parquet", "", "missing"),
]
REFERENCES: list[tuple[str, Any, str, str, str]] = [
    ("no such file", lambda world: "no-such.json", "no-such.json", "", "missing"),
    ("none for an id", lambda world: world.file("r.json", {"1": ["a"]}), "'0'", "", "missing"),
    ("an empty list", lambda world: world.file("r.json", {"0": []}), "'0'", "", "empty"),
    ("a number", lambda world: world.file("r.json", {"0": [1]}), "'0'", "", "type"),
    ("half of JSON", lambda world: world.file("r.json", "["), "r.json", "", "damaged"),
]
FLAGS: list[tuple[str, Any, str, str, str]] = [
    ("an unknown flag", lambda world: ["--wieghts", "tiny"], "--wieghts", "", "unknown"),
    ("w as text", lambda world: ["--w", "two"], "--w", "", "type"),
    ("w of NaN", lambda world: ["--w", "nan"], "--w", "", "value"),
    ("a batch of none", lambda world: ["--batch-size", "0"], "--batch-size", "", "value"),
    ("an unknown device", lambda world: ["--device", "gpu"], "--device", "", "unknown"),
    ("an unknown dtype", lambda world: ["--dtype", "int8"], "--dtype", "", "unknown"),
    ("output to nowhere", lambda world: ["--json", "no/such/out.json"], "--json", "", "place"),
    ("output to a folder", lambda world: ["--json", world.folder], "--json", "", "place"),
    ("output over its input", lambda world: ["--json", world.folder / "good.json"], "--json", "", "place"),
    ("rows in a file", lambda world: ["--rows", world.image], "--rows", "", "place"),
    ("rows in another folder", lambda world: ["--rows", world.image.parent], "--rows", "", "foreign"),
    ("no name for rows", lambda world: ["--rows", ""], "--rows", "", "empty"),
    ("a cache in a file", lambda world: ["--cache", world.image], "--cache", "", "place"),
    ("no folder of images", lambda world: ["--images", "no/such"], "no/such", "", "missing"),
    ("a file of images", lambda world: ["--images", world.image], "0.png", "", "place"),
    (
        "a long prompt",
        lambda world: ["--weights", "tiny", "--prompt", "a photo of " * 60],
        "--prompt",
        "",
        "large",
    ),
]
SAVED_RESULTS: list[tuple[str, Any, str, str, str]] = [
    ("no such file", lambda world: "no-such.json", "no-such.json", "", "missing"),
    ("half of JSON", lambda world: world.file("b.json", "{"), "b.json", "", "damaged"),
    ("a list", lambda world: world.file("b.json", []), "b.json", "", "damaged"),
    ("no scores", lambda world: world.file("b.json", {"metric": "pacs"}), "b.json", "", "damaged"),
    ("a score of text", lambda world: _saved(world, scores=["a", 1, 1, 1, 1, 1]), "b.json", "", "damaged"),
    ("scores of bools", lambda world: _saved(world, scores=[True] * 6), "b.json", "", "damaged"),
    ("fewer groups", lambda world: _saved(world, groups=["a"]), "b.json", "", "count"),
    (
        "another signature",
        lambda world: _saved(world, signature="capeval:pacs|w:3"),
        "signatures",
        "",
        "foreign",
    ),
    (
        "other images",
        lambda world: _saved(world, groups=list("uvwxyz")),
        "no image in common",
        "",
        "foreign",
    ),
    ("deep JSON", _deep, "deep.json", "", "damaged"),
    ("a pipe", _pipe, "pipe.json", "", "place"),
]


class _Runs:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {Path(__file__).with_name('ran')}",)


CONVERT: list[tuple[str, Any, str, str, str]] = [
    ("no such checkpoint", lambda world: "no-such.pth", "no-such.pth", "", "missing"),
    ("a folder", lambda world: world.folder, "/case", "", "place"),
    ("text", lambda world: world.file("x.pth", "not a checkpoint"), "x.pth", "", "damaged"),
    (
        "a program in a pickle",
        lambda world: world.file("x.pth", pickle.dumps(_Runs())),
        "x.pth",
        "",
        "damaged",
    ),
    (
        "cut safetensors",
        lambda world: world.file("x.safetensors", b"\x10\0\0\0\0\0\0\0{"),
        "x.safetensors",
        "",
        "damaged",
    ),
    (
        "an absurd header",
        lambda world: world.file("x.safetensors", b"\xff" * 64),
        "x.safetensors",
        "",
        "damaged",
    ),
]


def _saved(world: World, **changes: Any) -> Path:
    return world.file("b.json", {**SAVED, **changes})


def _command(metric: str, world: World, **files: Any) -> list[Any]:
    given = {"candidates": world.file("good.json", GOOD), "images": world.image.parent, **files}
    return ["score", metric, *(item for name, path in given.items() for item in (f"--{name}", path))]


def _compare(world: World, other: Any) -> list[Any]:
    return ["compare", world.file("a.json", SAVED), other]


CASES = [
    *(
        Case(
            "command",
            f"captions: {name}",
            lambda world, m=make: _command("pacs", world, candidates=m(world)),
            *rest,
        )
        for name, make, *rest in CANDIDATES
    ),
    *(
        Case(
            "command",
            f"references: {name}",
            lambda world, m=make: _command("refpacs", world, references=m(world)),
            *rest,
        )
        for name, make, *rest in REFERENCES
    ),
    *(
        Case("command", name, lambda world, m=make: [*_command("pacs", world), *m(world)], *rest)
        for name, make, *rest in FLAGS
    ),
    *(
        Case("command", f"compare: {name}", lambda world, m=make: _compare(world, m(world)), *rest)
        for name, make, *rest in SAVED_RESULTS
    ),
    *(
        Case(
            "command",
            f"convert: {name}",
            lambda world, m=make: ["convert", "pacs", m(world), "--out", world.folder / "w"],
            *rest,
        )
        for name, make, *rest in CONVERT
    ),
    Case("command", "an unknown command", lambda world: ["scroe"], "'scroe'", "", "unknown"),
    Case("command", "an unknown metric", lambda world: ["score", "pasc"], "'pasc'", "", "unknown"),
    Case("command", "score of pools", lambda world: ["score", "eco"], "eco", "", "count"),
    Case(
        "command",
        "publish: no folder",
        lambda world: ["publish", "weights", "no/such"],
        "no/such",
        "",
        "place",
    ),
    Case(
        "command",
        "publish: credentials in an address",
        lambda world: [
            "publish",
            "modules",
            "--dry-run",
            "--install-from",
            "git+https://me:secret@host/capeval",
        ],
        "install",
        "",
        "address",
    ),
]
