"""Ratings of one's own in the usual tables, and the released files of Flickr8k, at the command line."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from scipy.stats import kendalltau, pearsonr

from capeval_core.cli import main
from tests.judgements.conftest import Judge
from tests.judgements.data import REFERENCES, write_expert, write_json

SCORES = {"0.jpg": 0.1, "1.jpg": 0.5, "2.jpg": 0.3, "3.jpg": 0.9, "4.jpg": 0.2}
RATINGS = [1.0, 3.0, 4.0, 5.0, 2.0]
CAPTIONS = [f"a picture of {number} dogs" for number in range(5)]

Correlate = Callable[..., dict[tuple[str, str], float]]


@pytest.fixture
def correlate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Correlate:
    """The cells of `capeval correlate`, by metric and column; NaN where there is no number."""

    def run(scores: Any, human: Path, *flags: str) -> dict[tuple[str, str], float]:
        if not isinstance(scores, Path):
            write_json(tmp_path / "s.json", scores)
            scores = tmp_path / "s.json"
        out = tmp_path / "o.csv"
        arguments = [str(scores), str(human), "--resamples", "0", "--csv", str(out), *flags]
        assert main(["correlate", *arguments]) in (0, 1), capsys.readouterr().err
        with out.open(newline="") as file:
            rows = list(csv.DictReader(file))
        return {(row["metric"], row["column"]): float(row["value"] or "nan") for row in rows}

    return run


def tables() -> dict[str, Callable[[Path], Path]]:
    """Writers of the same ratings in several forms."""
    long = pd.DataFrame({"image_path": [f"data/{name}" for name in SCORES], "caption": CAPTIONS})
    long["score"] = RATINGS
    spread = {f"annotator_{number}": [r + shift for r in RATINGS] for number, shift in enumerate((-1, 0, 1))}
    wide = pd.DataFrame({"image": list(SCORES), **spread})
    lettered = wide.set_axis(["image", "Rater A", "Rater B", "Rater C"], axis=1)
    polaris = [
        {"imgid": name, "cand": text, "refs": ["x y"], "human_score": rating}
        for name, text, rating in zip(SCORES, CAPTIONS, RATINGS, strict=True)
    ]

    def saved(name: str, write: Callable[[Path], object]) -> Callable[[Path], Path]:
        def writer(folder: Path) -> Path:
            write(folder / name)
            return folder / name

        return writer

    return {
        "csv": saved("h.csv", lambda path: long.to_csv(path, index=False)),
        "tsv": saved("h.tsv", lambda path: long.to_csv(path, index=False, sep="\t")),
        "parquet": saved("h.parquet", lambda path: long.to_parquet(path)),
        "json lines": saved("h.jsonl", lambda path: long.to_json(path, orient="records", lines=True)),
        "annotators": saved("h.csv", lambda path: wide.to_csv(path, index=False)),
        "letters": saved("h.csv", lambda path: lettered.to_csv(path, index=False)),
        "polaris": saved("h.json", lambda path: write_json(path, polaris)),
        "by id": saved("h.json", lambda path: write_json(path, dict(zip(SCORES, RATINGS, strict=True)))),
        "under a key": saved("h.json", lambda path: write_json(path, {"data": polaris})),
        "mos beside annotators": saved(
            "h.csv", lambda path: wide.assign(MOS=RATINGS).to_csv(path, index=False)
        ),
        "decoys": saved(
            "h.csv",
            lambda path: long.assign(id=range(105, 100, -1), comment="none").to_csv(path, index=False),
        ),
    }


@pytest.mark.parametrize("form", tables())
def test_the_usual_tables_of_ratings_give_the_same_numbers(
    form: str, correlate: Correlate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    human = tables()[form](tmp_path)
    cells = correlate(SCORES, human)
    expected = 100 * kendalltau(list(SCORES.values()), RATINGS).statistic
    assert cells["s", "tau_b"] == pytest.approx(expected, abs=1e-5)
    said = capsys.readouterr().err
    assert f"{human.name}: " in said and "rating" in said
    assert ("mean of annotators" in said) == (form in ("annotators", "letters"))


def test_ratings_that_could_be_two_columns_are_refused_with_the_flag(
    correlate: Correlate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = pd.DataFrame({"image": list(SCORES), "rating": RATINGS, "mos": RATINGS[::-1]})
    table.to_csv(tmp_path / "h.csv", index=False)
    write_json(tmp_path / "s.json", SCORES)
    arguments = ["correlate", str(tmp_path / "s.json"), str(tmp_path / "h.csv")]
    assert main(arguments) == 2
    refusal = capsys.readouterr().err
    assert "--rating-column rating" in refusal and "--rating-column mos" in refusal
    cells = correlate(SCORES, tmp_path / "h.csv", "--rating-column", "mos")
    expected = 100 * kendalltau(list(SCORES.values()), RATINGS[::-1]).statistic
    assert cells["s", "tau_b"] == pytest.approx(expected, abs=1e-5)
    renamed = table.set_axis(["image", "anna", "ben"], axis=1)
    renamed.to_csv(tmp_path / "h.csv", index=False)
    assert main(arguments) == 2 and "--rating-column anna,ben" in capsys.readouterr().err
    means = [(first + last) / 2 for first, last in zip(RATINGS, RATINGS[::-1], strict=True)]
    cells = correlate(SCORES, tmp_path / "h.csv", "--rating-column", "anna,ben")
    expected = kendalltau(list(SCORES.values()), means).statistic
    assert cells["s", "tau_b"] == pytest.approx(100 * expected, abs=1e-5)
    disagreeing = table.assign(id=[4, 3, 2, 1, 0])[["id", "image", "rating"]]
    disagreeing.to_csv(tmp_path / "ids.csv", index=False)
    assert main([*arguments[:2], str(tmp_path / "ids.csv")]) == 2
    assert "--id-column image" in capsys.readouterr().err
    assert main([*arguments, "--rating-column", "carl"]) == 2 and "carl" in capsys.readouterr().err


def test_of_two_columns_that_agree_each_record_has_the_one_that_is_filled(
    correlate: Correlate, tmp_path: Path
) -> None:
    rows = [{"image": name, "rating": rating} for name, rating in zip(SCORES, RATINGS, strict=True)]
    rows[2] = {"image": "2.jpg", "rating": None, "mos": RATINGS[2]}
    rows[3]["mos"] = RATINGS[3]
    write_json(tmp_path / "h.json", rows)
    expected = 100 * kendalltau(list(SCORES.values()), RATINGS).statistic
    assert correlate(SCORES, tmp_path / "h.json")["s", "tau_b"] == pytest.approx(expected, abs=1e-5)


def test_a_rating_of_a_caption_with_different_scores_is_left_out(
    correlate: Correlate, tmp_path: Path
) -> None:
    rows = []
    for (name, score), text in zip(SCORES.items(), CAPTIONS, strict=True):
        rows.append({"image_id": name, "caption": text, "score": score})
    rows.append({**rows[2], "score": 0.95})
    write_json(tmp_path / "scores.json", rows)
    human = pd.DataFrame({"image": list(SCORES), "caption": CAPTIONS, "rating": RATINGS})
    human.to_csv(tmp_path / "h.csv", index=False)
    told_apart = [row for row in range(5) if row != 2]
    scores = [list(SCORES.values())[row] for row in told_apart]
    expected = 100 * kendalltau(scores, [RATINGS[row] for row in told_apart]).statistic
    cells = correlate(tmp_path / "scores.json", tmp_path / "h.csv")
    assert cells["scores", "tau_b"] == pytest.approx(expected, abs=1e-5)


def test_what_is_left_out_is_counted_by_its_reason(
    correlate: Correlate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = []
    for image, system, caption, score in (
        ("0", "one", "a", 0.1), ("0", "two", "b", 0.2), ("1", "one", "c", 0.3), ("1", "one", "c", 0.9),
        ("2", "one", "d", 0.4), ("3", "one", "e", 0.8), ("4", "two", "f", 0.7),
    ):  # fmt: skip
        rows.append({"image_id": f"{image}.jpg", "system": system, "caption": caption, "score": score})
    write_json(tmp_path / "scores.json", rows)
    reasons = {
        "of an unknown image id": ("9.jpg", "one", "a", 3),
        "of a system that has no score of the image": ("2.jpg", "two", "d", 3),
        "of a caption that has no score": ("0.jpg", "one", "b", 3),
        "of a caption that has different scores": ("1.jpg", "one", "c", 3),
        "without a caption of an image with several scores": ("1.jpg", "one", None, 3),
        "without an image id": (None, "one", "a", 3),
        "missing": ("2.jpg", "one", "d", None),
        "not a number": ("2.jpg", "one", "d", "[good"),  # begins as a list does
    }
    rated: list[tuple[Any, ...]] = [("0.jpg", "one", "a", 1), ("0.jpg", "two", "b", 2)]
    rated += [("2.jpg", "one", "d", 4), ("4.jpg", "two", "f", 3)]
    for count, row in enumerate(reasons.values(), start=2):
        rated += [row] * count
    names = ("image", "system", "caption", "rating")
    write_json(tmp_path / "h.json", [dict(zip(names, row, strict=True)) for row in rated])
    cells = correlate(tmp_path / "scores.json", tmp_path / "h.json")
    expected = 100 * kendalltau([0.1, 0.2, 0.4, 0.7], [1, 2, 4, 3]).statistic
    assert cells["scores", "tau_b"] == pytest.approx(expected, abs=1e-4)
    lines = capsys.readouterr().out.splitlines()
    left_out = {line.removeprefix("left out: ") for line in lines if line.startswith("left out: ")}
    counted = {f"{count} ratings {reason}" for count, reason in enumerate(reasons, start=2)}
    assert left_out == counted | {"3 scores without a rating"}
    # Where no rating is left, the refusal has the same counts.
    write_json(tmp_path / "h.json", [dict(zip(names, row, strict=True)) for row in rated[4:]])
    arguments = ["correlate", str(tmp_path / "scores.json"), str(tmp_path / "h.json")]
    assert main(arguments) == 2
    refusal = capsys.readouterr().err
    assert "in 44 rows" in refusal and all(reason in refusal for reason in counted)


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("s.json", {"a": [1, 2, 3, 4, 5], "b": [1, 2]}, ["s.json", "equally many"]),
        ("s.json", {"a": [[1, 2], [3, 4]]}, ["s.json", "lists"]),
        ("s.json", {"0.jpg": 1, "1.jpg": "x"}, ["s.json", "id '1.jpg'"]),
        ("s.json", {}, ["s.json"]),
        ("s.json", [1, 2, 3], ["h.json", "5 rows for 3 scores"]),
        (
            "h.json",
            [{"image": "0.jpg", "system": "one", "rating": 1}, {"image": "1.jpg", "rating": 2}],
            ["h.json", "system"],
        ),
        ("h.json", [{"image": "0.jpg", "caption": ["x", "y"], "rating": 1}], ["h.json", "2 captions"]),
    ],
)
def test_scores_and_ratings_that_cannot_be_joined_are_refused_by_their_file(
    name: str, content: object, named: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_json(tmp_path / "s.json", SCORES)
    rows = [{"image": image, "rating": rating} for image, rating in zip(SCORES, RATINGS, strict=True)]
    write_json(tmp_path / "h.json", rows)
    write_json(tmp_path / name, content)
    assert main(["correlate", str(tmp_path / "s.json"), str(tmp_path / "h.json")]) == 2
    refusal = capsys.readouterr().err
    assert all(part in refusal for part in named), refusal


def test_ratings_of_several_captions_need_scores_that_name_theirs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_json(tmp_path / "s.json", SCORES)
    for column in ("caption", "system"):
        rows = [{"image": "0.jpg", column: f"{number} x", "rating": number} for number in range(3)]
        write_json(tmp_path / "h.json", rows)
        assert main(["correlate", str(tmp_path / "s.json"), str(tmp_path / "h.json")]) == 2
        assert f"several {column}s of '0.jpg'" in capsys.readouterr().err


def test_a_column_of_ratings_alone_is_in_the_order_of_scores(correlate: Correlate, tmp_path: Path) -> None:
    pd.DataFrame({"rating": RATINGS}).to_csv(tmp_path / "h.csv", index=False)
    cells = correlate(list(SCORES.values()), tmp_path / "h.csv")
    expected = 100 * kendalltau(list(SCORES.values()), RATINGS).statistic
    assert cells["s", "tau_b"] == pytest.approx(expected, abs=1e-5)


SYSTEMS = {"one": [0.1, 0.2, 0.3], "two": [0.3, 0.5, 0.4], "three": [0.6, 0.5, 0.9], "four": [0.2, 0.3, 0.3]}
GIVEN = {"one": [1, 2, 1], "two": [3, 2, 2], "three": [4, 5, 5], "four": [4, 1, 3]}


def rated_systems() -> pd.DataFrame:
    rows = [
        {"system": system, "image_id": f"{image}.jpg", "rating": rating}
        for system, ratings in GIVEN.items()
        for image, rating in enumerate(ratings)
    ]
    return pd.DataFrame(rows)


def scores_of_systems(form: str, folder: Path) -> Path:
    """Scores of two metrics, as `capeval score --json` and `--per-caption` write them."""
    images = [f"{image}.jpg" for image in range(3)]
    if form == "json":
        systems = [
            {
                "system": system,
                "ids": images,
                "captions": [f"{system} {image}" for image in images],
                "results": [
                    {"metric": "pacs", "scores": scores},
                    {"metric": "clips", "scores": [-score for score in scores]},
                ],
            }
            for system, scores in SYSTEMS.items()
        ]
        write_json(folder / "scores.json", {"systems": systems})
        return folder / "scores.json"
    table = rated_systems().rename(columns={"image_id": "id"}).drop(columns="rating")
    table["pacs"] = [score for scores in SYSTEMS.values() for score in scores]
    table["clips"] = -table["pacs"]
    table["pacs.cosine"] = 1.0
    table.to_csv(folder / "scores.csv", index=False)
    return folder / "scores.csv"


@pytest.mark.parametrize("form", ["json", "table"])
def test_several_systems_have_correlations_of_their_means(
    form: str, correlate: Correlate, tmp_path: Path
) -> None:
    rated_systems().to_csv(tmp_path / "h.csv", index=False)
    cells = correlate(scores_of_systems(form, tmp_path), tmp_path / "h.csv")
    assert {metric for metric, _ in cells} == {"pacs", "clips"}
    pairs = [[number for own in side.values() for number in own] for side in (SYSTEMS, GIVEN)]
    assert cells["pacs", "pearson"] == pytest.approx(100 * pearsonr(*pairs).statistic, abs=1e-4)
    means = [[sum(own) / 3 for own in side.values()] for side in (SYSTEMS, GIVEN)]
    of_systems = 100 * pearsonr(*means).statistic
    assert cells["pacs", "pearson of systems"] == pytest.approx(of_systems, abs=1e-4)
    assert cells["clips", "pearson of systems"] == pytest.approx(-of_systems, abs=1e-4)
    assert ("pacs", "acc_eq of systems") not in cells


def test_systems_that_only_the_scores_name_are_those_of_each_rated_caption(
    correlate: Correlate, tmp_path: Path
) -> None:
    table = rated_systems()
    table["caption"] = table.system + " " + table.image_id
    # More ratings than captions, in another order: a caption has two.
    several = pd.concat([table, table.iloc[:1]]).iloc[::-1]
    several.to_csv(tmp_path / "named.csv", index=False)
    several.drop(columns="system").to_csv(tmp_path / "h.csv", index=False)
    scores = scores_of_systems("json", tmp_path)
    cells = correlate(scores, tmp_path / "h.csv")
    assert cells == pytest.approx(correlate(scores, tmp_path / "named.csv"), nan_ok=True)
    ratings = {system: list(numbers) for system, numbers in GIVEN.items()}
    ratings["one"].append(GIVEN["one"][0])
    of_scores = {system: list(numbers) for system, numbers in SYSTEMS.items()}
    of_scores["one"].append(SYSTEMS["one"][0])
    means = [[sum(numbers) / len(numbers) for numbers in side.values()] for side in (of_scores, ratings)]
    expected = 100 * pearsonr(*means).statistic
    assert cells["pacs", "pearson of systems"] == pytest.approx(expected, abs=1e-4)


def test_two_columns_of_systems_are_one_where_they_only_spell_them_differently(
    correlate: Correlate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = rated_systems()
    scores = scores_of_systems("table", tmp_path)
    table.assign(model=table.system.str.upper()).to_csv(tmp_path / "h.csv", index=False)
    expected = correlate(scores, tmp_path / "h.csv")
    assert "system = system" in capsys.readouterr().err
    coarse = table.system.replace({"two": "one"})
    fine = table.system + table.image_id
    shifted = [*table.system.tolist()[1:], "one"]
    for column in (coarse, fine, shifted):
        # Beside a second column that agrees: each of them is compared with the first.
        table.assign(model=table.system, method=column).to_csv(tmp_path / "h.csv", index=False)
        assert main(["correlate", str(scores), str(tmp_path / "h.csv")]) == 2
        refusal = capsys.readouterr().err
        assert "--system-column system or --system-column method" in refusal and "'model'" not in refusal
    cells = correlate(scores, tmp_path / "h.csv", "--system-column", "system")
    assert cells == pytest.approx(expected, nan_ok=True)


def test_several_ratings_of_a_caption_are_those_of_its_system(judge: Judge, tmp_path: Path) -> None:
    """A caption of two ratings is two captions of one."""
    rows, scores = [], []
    for place, (system, ratings) in enumerate(GIVEN.items()):
        for image, rating in enumerate(ratings):
            row = {"system": system, "image": f"{image}.jpg", "candidate": f"{system} {image}"}
            rows.append({**row, "ratings": [rating, place] if image != 1 else [rating]})
            scores.append(SYSTEMS[system][image])
    apart = [(row | {"ratings": [each]}, score) for row, score in zip(rows, scores, strict=True)
             for each in row["ratings"]]  # fmt: skip
    cells = {}
    for name, own, numbers in (
        ("together", rows, scores),
        ("apart", [row for row, _ in apart], [score for _, score in apart]),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "judgements.jsonl").write_text("\n".join(map(json.dumps, own)))
        cells[name] = judge("own", tmp_path / name, {"M": numbers}, "--statistics", "pearson").values()
    assert "pearson of systems" in cells["together"] and cells["together"] == pytest.approx(cells["apart"])


def test_two_systems_have_no_correlation_of_means(correlate: Correlate, tmp_path: Path) -> None:
    table = rated_systems()
    table[table.system.isin(["one", "two"])].to_csv(tmp_path / "h.csv", index=False)
    cells = correlate(scores_of_systems("table", tmp_path), tmp_path / "h.csv")
    assert math.isnan(cells["pacs", "tau_b of systems"]) and math.isfinite(cells["pacs", "tau_b"])
    with (tmp_path / "o.csv").open(newline="") as file:
        of_cell = {row["column"]: row for row in csv.DictReader(file) if row["metric"] == "pacs"}
    for name, row in of_cell.items():
        # By the number of what is correlated: two systems, or six captions.
        of_systems = name.endswith("of systems")
        assert ("2 systems" in row["undefined"]) == of_systems, name
        assert row["rows"] == ("2" if of_systems else "6"), name


@pytest.mark.parametrize("in_folder", [False, True])
def test_a_table_of_ratings_is_judged_as_it_is_correlated(
    in_folder: bool, judge: Judge, tmp_path: Path
) -> None:
    rows = [
        {"imgid": "a.png", "cand": "a red circle", "refs": REFERENCES["a.png"], "human_score": 0.9},
        {"imgid": "a.png", "cand": "two stars", "refs": REFERENCES["a.png"], "human_score": 0.1},
        {"imgid": "b.png", "cand": "blue stars", "refs": REFERENCES["b.png"], "human_score": 0.8},
    ]
    path = tmp_path / ("set/judgements.json" if in_folder else "mine.json")
    write_json(path, rows)
    data = path.parent if in_folder else path
    assert judge("own", data, {"M": [3, 1, 2]}).values() == {"tau_b": 100, "tau_c": pytest.approx(100)}
    found = judge("own", data, None, "--metrics", "rougel")
    assert found.values("ROUGE-L")["tau_b"] > 0
    table = pd.DataFrame(rows).drop(columns="refs").assign(other=[1, 3, 2])
    table.to_csv(tmp_path / "mine.csv", index=False)
    chosen = judge("own", tmp_path / "mine.csv", {"M": [3, 1, 2]}, "--rating-column", "other")
    assert chosen.values()["tau_b"] == pytest.approx(-100)


# Flickr8k as it is released

TOKENS = {
    "a.png": ["a red  round circle", "a red circle", "one red circle"],
    "b.png": ["two blue stars", "blue stars", "a pair of stars"],
}
RATED = [("a.png", "a.png#0", [4, 4, 3]), ("a.png", "b.png#1", [1, 1, 2]), ("b.png", "a.png#2", [1, 2, 2])]
RATED += [("b.png", "b.png#0", [4, 3, 4])]


def write_corpus(folder: Path, tokens: dict[str, list[str]] = TOKENS) -> Path:
    folder.mkdir()
    lines = [f"{image}#{n}\t{text}" for image, texts in tokens.items() for n, text in enumerate(texts)]
    (folder / "Flickr8k.token.txt").write_text("\n".join(lines) + "\n")
    rows = ["\t".join([image, key, *map(str, ratings)]) for image, key, ratings in RATED]
    (folder / "ExpertAnnotations.txt").write_text("\n".join(rows) + "\n")
    votes = [f"{image}\t{key}\t0.5\t{sum(ratings)}\t{ratings[0]}" for image, key, ratings in RATED]
    (folder / "CrowdFlowerAnnotations.txt").write_text("\r\n".join(votes))
    return folder


def text_of(key: str) -> str:
    image, _, number = key.partition("#")
    return " ".join(TOKENS[image][int(number)].split())


def test_the_corpus_of_flickr8k_is_the_prepared_set(judge: Judge, tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus")
    rows = [{"image": image, "candidate": text_of(key), "ratings": own} for image, key, own in RATED]
    prepared = write_expert(tmp_path / "prepared", rows)
    write_json(prepared / "references.json", TOKENS)
    flags = ["--metrics", "rougel,ciderd", "--statistics", "pearson"]
    found = judge("flickr8k_expert", corpus, None, *flags)
    assert found.left_out == ["6 ratings of a candidate that is a reference of its image"]
    assert found.cells == judge("flickr8k_expert", prepared, None, *flags).cells
    # Each candidate leaves the references of its own image, and no other's.
    left = {"a.png": TOKENS["a.png"][1:], "b.png": TOKENS["b.png"][1:]}
    write_json(tmp_path / "cf" / "references.json", left)
    write_json(tmp_path / "cf" / "captions.json", {key: text_of(key) for _, key, _ in RATED})
    lines = [f"{image},{key},{sum(own)},{own[0]}" for image, key, own in RATED]
    (tmp_path / "cf" / "judgements.csv").write_text("\n".join(["image,caption_id,n_yes,n_no", *lines]))
    found = judge("flickr8k_cf", corpus, None, *flags)
    assert found.cells == judge("flickr8k_cf", tmp_path / "cf", None, *flags).cells
    (corpus / "Flickr8k.token.txt").write_text("a.png#0\ta red circle\nb.png\n")
    assert main(["judge", "flickr8k_cf", "--data", str(corpus), "--metrics", "rougel"]) == 2


def test_a_row_of_flickr8k_that_names_nothing_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = write_corpus(tmp_path / "corpus")
    votes = (corpus / "CrowdFlowerAnnotations.txt").read_text().splitlines()
    votes[2] = votes[2].replace("a.png#2", "c.png#7")
    (corpus / "CrowdFlowerAnnotations.txt").write_text("\n".join(votes))
    assert main(["judge", "flickr8k_cf", "--data", str(corpus), "--metrics", "rougel"]) == 2
    told = capsys.readouterr().err
    assert "row 3: the caption 'c.png#7'" in told and "row 2" not in told


def test_two_candidates_of_equal_words_both_leave_the_references(judge: Judge, tmp_path: Path) -> None:
    """Else the second one agrees with itself."""
    tokens = {"a.png": ["a red circle", *TOKENS["a.png"][1:], "a disc"], "b.png": TOKENS["b.png"]}
    corpus = write_corpus(tmp_path / "corpus", tokens)
    keys = ["a.png#0", "a.png#1", "b.png#1"]
    votes = [f"a.png\t{key}\t0.5\t{yes}\t1" for key, yes in zip(keys, (3, 2, 1), strict=True)]
    (corpus / "CrowdFlowerAnnotations.txt").write_text("\n".join(votes))
    texts = ["a red circle", "a red circle", "blue stars"]
    write_json(tmp_path / "cf" / "references.json", {"a.png": ["one red circle", "a disc"]})
    write_json(tmp_path / "cf" / "captions.json", dict(zip(keys, texts, strict=True)))
    lines = [f"a.png,{key},{yes},1" for key, yes in zip(keys, (3, 2, 1), strict=True)]
    (tmp_path / "cf" / "judgements.csv").write_text("\n".join(["image,caption_id,n_yes,n_no", *lines]))
    flags = ["--metrics", "rougel,ciderd", "--statistics", "pearson"]
    found = judge("flickr8k_cf", corpus, None, *flags)
    assert found.cells == judge("flickr8k_cf", tmp_path / "cf", None, *flags).cells


def test_the_joined_files_of_clipscore_are_the_prepared_set(judge: Judge, tmp_path: Path) -> None:
    rated = [*RATED, ("b.png", "a.png#0", [2, 1, 1])]  # words that two images share
    entries: dict[str, Any] = {}
    for number, image in enumerate(TOKENS):
        own = [row for row in rated if row[0] == image]
        entries[str(number)] = {
            "image_path": f"photos/{image}",
            "ground_truth": TOKENS[image][1:],
            "human_judgement": [
                {"image_path": f"photos/{image}", "caption": text_of(key), "rating": float(rating)}
                for _, key, ratings in own
                for rating in ratings
            ],
        }
    text = json.dumps(entries).replace("4.0", "NaN", 1)
    (tmp_path / "released").mkdir()
    (tmp_path / "released" / "flickr8k.json").write_text(text)
    rows = [{"image": image, "candidate": text_of(key), "ratings": own} for image, key, own in rated]
    rows[0] = {**rows[0], "ratings": [math.nan, 4, 3]}
    prepared = write_expert(tmp_path / "prepared", rows)
    write_json(prepared / "references.json", {image: texts[1:] for image, texts in TOKENS.items()})
    flags = ["--metrics", "rougel,ciderd"]
    found = judge("flickr8k_expert", tmp_path / "released", None, *flags)
    assert found.left_out == ["1 rating not a number"] and found.rows("ROUGE-L") == [14, 14]
    assert found.cells == judge("flickr8k_expert", prepared, None, *flags).cells
    (tmp_path / "released" / "crowdflower_flickr8k.json").write_text(json.dumps(entries))
    assert judge("flickr8k_cf", tmp_path / "released", None, *flags).rows("ROUGE-L") == [15, 15]
    (tmp_path / "released" / "flickr8k.json").write_text('{"0": {"image_path": "a.png"}}')
    assert main(["judge", "flickr8k_expert", "--data", str(tmp_path / "released"), *flags]) == 2
