"""A user's own human judgements: ratings joined with the scores of a file, and rated captions to train on."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from capeval_core.errors import FileError, Problems, did_you_mean, file_problem
from capeval_core.inputs.folder import bare, some_of
from capeval_core.inputs.text_files import ID_FIELDS, load_json
from capeval_core.judgements.correlation import kendall_tau_c
from capeval_core.judgements.files import Dropped, named_rows, read_rows
from capeval_core.judgements.protocols import STATISTICS, Items, RatedSet, RatingColumn, Scored, Scoring
from capeval_core.values import described

_RATING_FIELDS = ("rating", "score", "human_score", "judgement")
NAME = "own ratings"


@dataclass(frozen=True)
class _ScoreFile:
    """The scores of a file, with the ids of their images and their captions where the file has them.

    label: the metric. ids: None: scores are joined by their order. captions: None: by id alone.
    """

    label: str
    scores: list[float]
    ids: list[str] | None = None
    captions: list[str] | None = None


def read_score_file(path: Path) -> _ScoreFile:
    """Scores of a file of `capeval score --json`, of {image id: score}, or of a list of numbers."""
    content = load_json(path, "write each id once")
    label, ids, captions, values = path.stem, None, None, content
    if isinstance(content, dict) and "scores" in content:
        label, values = str(content.get("metric", label)), content["scores"]
        ids, captions = content.get("ids"), content.get("captions")
    elif isinstance(content, dict) and isinstance(content.get("systems"), list):
        systems = content["systems"]
        metrics = max((len(one.get("results", [])) for one in systems if isinstance(one, dict)), default=0)
        found = f"{_counted(len(systems), 'system')} by {_counted(metrics, 'metric')}"
        fix = "write the scores of one system by one metric: capeval score METRIC --json"
        raise FileError(file_problem(path, found, fix, verb="holds"))
    elif isinstance(content, dict):
        ids, values = list(content), list(content.values())
    if not isinstance(values, list) or not values:
        fix = "expected a file of `capeval score --json`, {id: score}, or a list"
        raise FileError(file_problem(path, described(values, none="null"), fix))
    problems, scores = Problems(), []
    for index, value in enumerate(values):
        try:
            scores.append(math.nan if value is None else float(value))
            wrong = isinstance(value, bool | str)
        except (TypeError, OverflowError, ValueError):
            wrong = True
        if wrong:
            name = f"id {ids[index]!r}" if ids is not None and index < len(ids) else f"score {index}"
            fix = "scores are numbers, or null"
            problems.add(file_problem(path, described(value), fix, index=name, verb="is"))
    for name, column in (("ids", ids), ("captions", captions)):
        if column is not None and (not isinstance(column, list) or len(column) != len(values)):
            problems.add(file_problem(path, f"{name} and scores are not equally many"))
    problems.raise_if_any()
    return _ScoreFile(label, scores, None if ids is None else list(map(str, ids)), captions)


def join_ratings(scores: _ScoreFile, path: Path) -> tuple[RatedSet, Scored]:
    """The ratings of a file (CSV, JSON, JSON lines) with these scores; each row is one rating.

    A row has an image's id (`image_id`, `image`, `id` ...) and a rating (`rating`, `score`, `human_score`),
    and a caption where an image has several. Without ids in the scores' file, rows are taken in order.
    Ratings that are missing or no numbers, and rows whose id or caption has no score, are left out and
    counted.
    """
    rows, dropped = read_rows(path), Dropped()
    rating_field = _field(path, rows, _RATING_FIELDS, "rating")
    if scores.ids is None:
        if len(rows) != len(scores.scores):
            found = f"{len(rows):,} rows for {len(scores.scores):,} scores without ids"
            raise FileError(file_problem(path, found, "give as many, or scores with ids", verb="has"))
        places: list[int | str] = list(range(len(rows)))
    else:
        id_field = _field(path, rows, ID_FIELDS, "image id")
        places = _places(scores, [(str(row.get(id_field)), row.get("caption")) for row in rows])
    item, ratings = [], []
    for row, place in zip(rows, places, strict=True):
        rating = dropped.rating(row.get(rating_field), "rating")
        if isinstance(place, str):
            dropped.add(place)
        elif math.isfinite(rating):
            item.append(place)
            ratings.append(rating)
    if not item:
        found = f"no rating of a scored caption, in {len(rows):,} rows"
        if set(places) == {_UNKNOWN}:
            ids = [str(row.get(id_field)) for row in rows]
            found += f" ({some_of(ids)}; scores are of {some_of(scores.ids or [])})"
        why = ", ".join(f"{count:,} {reason}" for reason, count in dropped.counts.items())
        raise FileError(file_problem(path, found, f"left out are {why}", verb="has"))
    dropped.add("scores without a rating", len(scores.scores) - len(set(item)))
    images = scores.ids or [str(index) for index in range(len(scores.scores))]
    judged = RatedSet(
        NAME,
        (Scoring("", Items(scores.captions or [""] * len(images), images)),),
        np.array(item, dtype=np.int64),
        {"rating": np.array(ratings)},
        {name: RatingColumn(name) for name in STATISTICS},
        dropped=dropped.counts,
    )
    return judged, Scored(np.array(scores.scores))


_UNKNOWN = "ratings of an unknown image id"


def _places(scores: _ScoreFile, rows: Sequence[tuple[str, Any]]) -> list[int | str]:
    """The score that each row (image id, caption) is about, or why there is none or it is not clear which.

    An id is one of the scores, or its file name without extension where that is one image's.
    """
    of_image: dict[str, list[int]] = defaultdict(list)
    for place, image in enumerate(scores.ids or []):
        of_image[image].append(place)
    alike = Counter(map(bare, of_image))
    names = {bare(image): image for image in of_image if alike[bare(image)] == 1} | {i: i for i in of_image}

    def place_of(key: str, caption: Any) -> int | str:
        image = names.get(key) or names.get(bare(key))
        if image is None:
            return _UNKNOWN
        places = of_image[image]
        if not isinstance(caption, str) or scores.captions is None:
            several = "ratings without a caption of an image with several scores"
            return several if places[1:] else places[0]
        places = [place for place in places if _words(scores.captions[place]) == _words(caption)]
        if not places:
            return "ratings of a caption that has no score"
        different = len({repr(scores.scores[place]) for place in places}) > 1
        return "ratings of a caption that has different scores" if different else places[0]

    return [place_of(key, caption) for key, caption in rows]


def _words(caption: Any) -> list[str]:
    return str(caption).split()


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _field(path: Path, rows: Sequence[dict[str, Any]], names: Sequence[str], what: str) -> str:
    """The first of these fields that a row has."""
    known = list(dict.fromkeys(field for row in rows for field in row if isinstance(field, str)))
    for name in names:
        if name in known:
            return name
    found = f"no column of the {what} ({', '.join(names)}){did_you_mean(names[0], known)}"
    raise FileError(file_problem(path, found, f"it has {', '.join(known)}", verb="has"))


@dataclass(frozen=True)
class Judgements:
    """Captions of images, and the score that people gave each."""

    images: list[str]
    captions: list[str]
    scores: list[float]

    def correlation(self, predicted: Sequence[float]) -> float:
        """Kendall's tau-c of predicted scores with these: from -1 to 1; 0 where either are all equal."""
        tau = kendall_tau_c(predicted, self.scores)
        return 0.0 if tau.undefined else tau.value


def read_judgements(path: Path) -> Judgements:
    """The judgements of a JSON list, JSON lines, or CSV: rows with an image's id, a caption and a score."""
    problems, judged = Problems(), Judgements([], [], [])
    for name, row in named_rows(path):
        if not isinstance(row, dict):
            fix = "expected an object with image_id, caption and score"
            problems.add(file_problem(path, described(row), fix, index=name, verb="is"))
            continue
        image = next((row[field] for field in ID_FIELDS if row.get(field) not in (None, "")), None)
        caption, score = row.get("caption"), Dropped().rating(row.get("score"), "score")
        lacking = None
        if image is None:
            lacking = " or ".join(ID_FIELDS)
        elif not isinstance(caption, str) or not caption.strip():
            lacking = "caption"
        elif math.isnan(score):
            hint = did_you_mean("score", row) if "score" not in row else f" ({row['score']!r})"
            lacking = f"finite score{hint}"
        if lacking:
            problems.add(file_problem(path, f"no {lacking}", index=name, verb="has"))
            continue
        judged.images.append(str(image))
        judged.captions.append(str(caption))
        judged.scores.append(score)
    problems.raise_if_any()
    if len(set(judged.scores)) < 2:
        found = f"{len(judged.scores)} judgements with {len(set(judged.scores))} different scores"
        raise FileError(file_problem(path, found, "a correlation needs at least two", verb="has"))
    return judged
