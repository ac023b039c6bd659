"""The forms that a JSON file of captions has in the field: mappings, COCO results, COCO annotations."""

from __future__ import annotations

from typing import Any

from capeval_core.inputs.files.gathering import Gatherer
from capeval_core.inputs.files.parsing import decoded, parse_json
from capeval_core.inputs.problems import described

FORMS = (
    "{image id: caption}, {image id: [captions or references]}, "
    'COCO results [{"image_id": ..., "caption": ...}] and '
    'COCO annotations {"images": [...], "annotations": [...]}'
)


def read_json(data: bytes, gatherer: Gatherer) -> None:
    content = parse_json(gatherer.path, decoded(gatherer.path, data))
    if isinstance(content, dict) and _is_list_of_objects(content.get("annotations")):
        _read_annotations(content, gatherer)
    elif isinstance(content, dict) and (not content or any(map(_is_text_or_list, content.values()))):
        _read_mapping(content, gatherer)
    elif _is_list_of_objects(content):
        for i, row in enumerate(content):
            gatherer.row(row, f"entry {i}")
    else:
        gatherer.complain(f"unknown form, found {_outlined(content)}; read are {FORMS}")


def _is_list_of_objects(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) for row in value)


def _is_text_or_list(value: Any) -> bool:
    return isinstance(value, (str, list))


def _read_mapping(content: dict[str, Any], gatherer: Gatherer) -> None:
    """Captions by image id. Values of another kind are told first, and alone."""
    unfit = {image_id: value for image_id, value in content.items() if not _is_text_or_list(value)}
    for image_id, value in unfit.items():
        found = described(value, none="null")
        gatherer.complain(f"id {image_id!r} is {found}: expected a caption or a list of them")
    for image_id, value in content.items() if not unfit else ():
        if gatherer.image_id(image_id, "an image id") is not None:
            gatherer.add(image_id, value, f"id {image_id!r}")


def _read_annotations(content: dict[str, Any], gatherer: Gatherer) -> None:
    """Rows under `annotations`, and from `images` the file names of their ids."""
    for i, row in enumerate(content["annotations"]):
        gatherer.row(row, f"annotation {i}")
    images = content.get("images", [])
    if not isinstance(images, list):
        gatherer.complain(f"images is {described(images, none='null')}: expected a list, or leave it out")
        return
    for i, image in enumerate(images):
        if not isinstance(image, dict):
            gatherer.complain(f"image {i} is {described(image, none='null')}: expected an object with an id")
        elif "file_name" in image and not (isinstance(image["file_name"], str) and image["file_name"]):
            found = "empty" if image["file_name"] == "" else described(image["file_name"], none="null")
            gatherer.complain(f"image {i}: file_name is {found}: expected a file's name, or leave it out")
        elif "file_name" in image:
            image_id = gatherer.image_id(image.get("id"), f"image {i}: id")
            known = gatherer.texts.file_names
            if image_id is not None and known.setdefault(image_id, image["file_name"]) != image["file_name"]:
                gatherer.complain(f"image {i}: the id {image_id!r} is also that of {known[image_id]!r}")


def _outlined(content: Any) -> str:
    """The form of a JSON value in a few words."""
    if isinstance(content, dict):
        key, value = next(iter(content.items()))
        return f"an object with {key!r}: {described(value)}"
    if isinstance(content, list):
        return f"a list with {described(content[0])}" if content else "an empty list"
    return described(content, none="null")
