"""Scores that were computed elsewhere, of the items of a judged set: files of `.npz` or `.json`."""

from __future__ import annotations

import math
import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from capeval_core.errors import FileError, Problems, described, file_problem
from capeval_core.inputs.text_files import load_json
from capeval_core.judgements.correlation import Doubles
from capeval_core.judgements.protocols import JudgedSet, PairedSet, Scored

FORMS = (
    "a .npz or .json with an array of numbers per metric, one per caption in the order of the set; of pairs "
    "two columns, or NAME__a and NAME__b; NAME__refs4 is of the scoring with 4 references"
)
_NOT_SCORES = ("rating", "ratings", "human_score")


def read_scores(path: Path, judged: JudgedSet) -> dict[str, list[Scored]]:
    """By label, the scores of each scoring of a set; those that do not name a scoring are of all."""
    problems = Problems()
    found: dict[str, dict[str | None, Doubles]] = {}
    names = {scoring.name for scoring in judged.scorings}
    for name, values in _joined(_arrays(path, judged)).items():
        label, scoring = _label(name, names)
        if label in _NOT_SCORES:
            continue
        counts = {len(s.items) for s in judged.scorings if scoring in (None, s.name)}
        array = _numbers(values)
        if array is None:
            problems.add(file_problem(path, "no list of numbers", "scores are numbers, or null", index=name))
            continue
        # Pairs may have two columns; their captions are a set's items one after the other.
        of_pairs = isinstance(judged, PairedSet) and array.shape[1:] == (2,)
        if (array.ndim > 1 and not of_pairs) or counts != {array.size}:
            shape = " x ".join(f"{extent:,}" for extent in array.shape)
            fix = f"{judged.name} has {' or '.join(f'{count:,}' for count in sorted(counts))} captions"
            problems.add(file_problem(path, f"{shape} scores", fix, index=name))
            continue
        found.setdefault(label, {})[scoring] = array.reshape(-1)
    problems.raise_if_any()
    if not found:
        raise FileError(file_problem(path, "holds no scores", f"expected {FORMS}"))

    lacking = {scoring.name: np.full(len(scoring.items), math.nan) for scoring in judged.scorings}
    return {
        label: [Scored(own.get(name, own.get(None, missing))) for name, missing in lacking.items()]
        for label, own in found.items()
    }


def _arrays(path: Path, judged: JudgedSet) -> dict[str, Any]:
    if path.suffix == ".npz":
        try:
            with np.load(path, allow_pickle=False) as file:
                return dict(file)
        except FileNotFoundError:
            raise FileError(file_problem(path, "there is no such file")) from None
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise FileError(file_problem(path, f"cannot be read ({error})")) from error
    if path.suffix != ".json":
        found = f"extension {path.suffix!r}" if path.suffix else "no extension"
        raise FileError(file_problem(path, found, f"expected {FORMS}"))
    content = load_json(path)
    if isinstance(content, dict) and isinstance(content.get("scores"), list):  # of `capeval score --json`
        _check_captions(path, content.get("captions"), judged)
        return {str(content.get("metric", path.stem)): content["scores"]}
    if isinstance(content, list):
        return {path.stem: content}
    if not isinstance(content, dict):
        raise FileError(file_problem(path, described(content, none="null"), f"expected {FORMS}"))
    return content


def _check_captions(path: Path, captions: Any, judged: JudgedSet) -> None:
    """Refuse as many captions as the set has that are others, or stand in another order."""
    given = _words(captions) if isinstance(captions, list) else []
    own = [_words(s.items.captions) for s in judged.scorings if len(s.items) == len(given)]
    if not own or given in own:
        return
    row = next(row for row, pair in enumerate(zip(given, own[0], strict=True)) if pair[0] != pair[1])
    found = f"{given[row]!r}, {judged.name} has {own[0][row]!r} there"
    raise FileError(file_problem(path, found, "score its captions in its order", index=f"caption {row}"))


def _words(captions: Sequence[Any]) -> list[str]:
    return [" ".join(str(caption).split()) for caption in captions]


def _joined(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """The arrays, of which NAME__a and NAME__b become two columns of NAME."""
    joined = dict(arrays)
    for first in arrays:
        name = first.removesuffix("__a")
        if name != first and f"{name}__b" in arrays:
            sides = joined.pop(first), joined.pop(f"{name}__b")
            joined[name] = np.stack(sides, axis=-1) if np.shape(sides[0]) == np.shape(sides[1]) else sides[0]
    return joined


def _label(name: str, scorings: set[str]) -> tuple[str, str | None]:
    """A row's label and the scoring that an array is of."""
    label, _, suffix = name.rpartition("__")
    match = re.fullmatch(r"refs(\d+)", suffix)
    suffix = suffix if match is None else f"{match[1]} reference{'' if match[1] == '1' else 's'}"
    return (label, suffix) if label and suffix in scorings else (name, None)


def _numbers(values: Any) -> Doubles | None:
    """Numbers of any shape, NaN for None; None where there is no list, or something else in it."""
    try:
        array = np.asarray(values)
        if array.dtype == object and {type(value) for value in array.flat} <= {int, float, type(None)}:
            array = array.astype(np.float64)
    except (ValueError, OverflowError):  # lists of different lengths, or an integer beyond all floats
        return None
    return array.astype(np.float64) if array.ndim and array.dtype.kind in "iuf" else None
