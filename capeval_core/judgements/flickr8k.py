"""Judgements of Flickr8k in the forms in which they are published.

The corpus has tables with tabs and without header: `ExpertAnnotations.txt` (image, caption id, three ratings)
and `CrowdFlowerAnnotations.txt` (image, caption id, share, votes for yes, for no); caption ids are those of
`Flickr8k.token.txt`. CLIPScore's repository has the same joined: `flickr8k.json`, of the experts, and
`crowdflower_flickr8k.json`, an object per image with references and rated captions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import pandas as pd

from capeval_core.errors import Problems, file_error
from capeval_core.inputs.files import contents, decoded, load_json

_EXPERT = "ExpertAnnotations.txt"
_JOINED_EXPERT = "flickr8k.json"


def read_released(folder: Path, files: Sequence[str]) -> pd.DataFrame:
    """The rows of a released form, with `image`, `candidate` and `references`.

    files: those of the form, the one with ratings first. Of the experts, and of CLIPScore's files, rows have
    `ratings`, of CrowdFlower's table `n_yes` and `n_no`. Raises FileError.
    """
    first = folder / files[0]
    if first.suffix == ".json":
        return _joined(first)
    captions = dict(_cells(folder / files[1], 2))
    rows: list[tuple[Any, ...]] = []
    if files[0] == _EXPERT:
        for image, caption_id, *ratings in _cells(first, 5):
            rows.append((image, caption_id, ratings))
        return _with_texts(first, rows, ["ratings"], captions)
    for image, caption_id, _, yes, no in _cells(first, 5):  # the share has fewer digits than its votes
        rows.append((image, caption_id, yes, no))
    table = _with_texts(first, rows, ["n_yes", "n_no"], captions)
    # The published table has these references; of the experts' the candidates themselves are left out.
    return _without_candidates(table)


def _cells(path: Path, count: int) -> list[list[str]]:
    """The cells of each line of a table with tabs and without header. Raises FileError."""
    problems = Problems()
    rows = []
    # Not by `splitlines`, which also splits at characters that a caption may hold, such as U+2028.
    lines = decoded(path, contents(path)).replace("\r\n", "\n").split("\n")
    for number, line in enumerate(lines, start=1):
        cells = line.split("\t")
        if len(cells) == count:
            rows.append([cell.strip() for cell in cells])
        elif line.strip():
            problem = f"has {len(cells)} cells, expected {count} with tabs between them"
            problems.add(file_error(path, problem, index=f"line {number}"))
    problems.raise_if_any()
    if not rows:
        raise file_error(path, "is empty")
    return rows


def _with_texts(
    path: Path, rows: Sequence[Sequence[Any]], columns: Sequence[str], captions: dict[str, str]
) -> pd.DataFrame:
    """Rows of image, caption id and values, with the caption and all references of the image."""
    references: defaultdict[str, list[str]] = defaultdict(list)
    for caption_id, text in captions.items():  # e.g. `1000268201_693b08cb0e.jpg#0`
        references[caption_id.rpartition("#")[0]].append(text)
    problems = Problems()
    for number, (image, caption_id, *_) in enumerate(rows, start=1):
        if caption_id not in captions:
            problem = f"the caption {caption_id!r} is not in Flickr8k.token.txt"
            problems.add(file_error(path, problem, index=f"row {number}", sentence=True))
        if image not in references:
            problem = f"the image {image!r} has no captions in Flickr8k.token.txt"
            problems.add(file_error(path, problem, index=f"row {number}", sentence=True))
    problems.raise_if_any()
    table = pd.DataFrame(rows, columns=["image", "caption_id", *columns], dtype=object)
    table["candidate"] = table.caption_id.map(captions)
    table["references"] = table.image.map(references)
    return table


def _without_candidates(table: pd.DataFrame) -> pd.DataFrame:
    """The same rows, where each candidate of an image was taken out of its references once."""
    references: dict[str, list[str]] = {}
    removed: set[tuple[str, str]] = set()
    for image, caption_id, text, texts in zip(
        table.image, table.caption_id, table.candidate, table.references, strict=True
    ):
        remaining = references.setdefault(image, list(texts))
        # A caption that is rated twice leaves once; two captions of equal words are two.
        if (image, caption_id) not in removed and text in remaining:
            remaining.remove(text)
            removed.add((image, caption_id))
    # Mapped at the end, so that all candidates of an image are compared with the same references.
    return table.assign(references=table.image.map(references))


def _joined(path: Path) -> pd.DataFrame:
    """The rows of a file of CLIPScore's repository, in which an expert's rating is an entry of its own."""
    content = load_json(path)
    rows: list[list[Any]] = []
    try:
        for entry in content.values():
            image = PurePosixPath(entry["image_path"]).name
            references = [str(text) for text in entry["ground_truth"]]
            of_caption: dict[str, list[Any]] = {}
            for judgement in entry["human_judgement"]:
                caption = str(judgement["caption"])
                # In the file of CrowdFlower an entry is a caption's share, and equal words are two captions.
                if path.name == _JOINED_EXPERT and caption in of_caption:
                    of_caption[caption].append(judgement["rating"])
                    continue
                ratings = [judgement["rating"]]
                of_caption[caption] = ratings
                rows.append([image, caption, ratings, references])
    except (AttributeError, KeyError, TypeError) as error:
        form = "{id: {image_path, ground_truth, human_judgement: [{caption, rating}]}}"
        raise file_error(path, f"is not {form} ({error})") from error
    if not rows:
        raise file_error(path, "holds no rows")
    return pd.DataFrame(rows, columns=["image", "candidate", "ratings", "references"], dtype=object)
