"""Objects of images: COCO's annotations of instances, or lists of names."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from capeval_core.errors import Problems, file_error
from capeval_core.inputs import files, names
from capeval_core.inputs.columns import FileOptions, TextFile
from capeval_core.inputs.records import KEY, VALUE, Records
from capeval_core.inputs.texts import read_texts, texts_of

_COLUMN = "objects"
NOTHING = "nothing"
"""A reference that names no object, of an image without any."""


def read_objects(path: str | os.PathLike[str], problems: Problems, options: FileOptions) -> TextFile:
    """The names of the objects of each image, as its references.

    path: of COCO's `instances_*.json`, where an image without annotations has no object; or of any form of
    references, such as {image id: [names]}. FileError where it cannot be read.
    """
    place = Path(path)
    if place.suffix.lower() == ".json" and place.is_file():
        content = files.load_json(place)
        if isinstance(content, dict) and isinstance(content.get("categories"), list):
            records = Records(place, "instances of images", _instances(place, content))
            return texts_of(records, "objects", options, problems, several=True, joins_words=False)
    return read_texts(path, "objects", problems, options, joins_words=False, prepare=_of_objects)


def _of_objects(records: Records) -> Records:
    """Records of lists of objects, which may be empty."""
    # An image without objects is an answer, while an image without references is a gap.
    for row in records.rows:
        for name, value in row.items():
            if value == [] and name in (VALUE, _COLUMN):
                row[name] = [NOTHING]
    return records


def _instances(path: Path, content: dict[str, Any]) -> list[dict[str, Any]]:
    """A record for each image, of the names of its categories."""
    # One place where the form is trusted: whatever is missing shows as a KeyError with its name.
    try:
        name_of = {category["id"]: str(category["name"]) for category in content["categories"]}
        objects: dict[str, list[str]] = {}
        # First all images, as one without objects has no annotation: its captions must name none.
        for image in content.get("images") or []:
            objects[_image_id(image["id"])] = []
        for annotation in content["annotations"]:
            listed = objects.setdefault(_image_id(annotation["image_id"]), [])
            name = name_of[annotation["category_id"]]
            if name not in listed:  # five persons are one kind of object
                listed.append(name)
    except (KeyError, TypeError) as error:
        problem = f"is not a file of instances as COCO's: {type(error).__name__} {error}"
        fix = "each of its annotations needs image_id and category_id, each category id and name"
        raise file_error(path, problem, fix) from None
    return [{KEY: image_id, VALUE: listed or [NOTHING]} for image_id, listed in objects.items()]


def _image_id(value: object) -> str:
    """An id as files write it."""
    return names.as_id(value) or str(value)
