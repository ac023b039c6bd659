"""HAT, the systems on COCO, and the pools of NICE."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from capeval_core.errors import FileError, Problems, file_problem
from capeval_core.inputs.json_files import load_json
from capeval_core.judgements.files import Dropped, Rows, mapping_of_lists, references_of
from capeval_core.judgements.flickr8k import add_item
from capeval_core.judgements.judged_set import Items, Scoring
from capeval_core.judgements.others import MarkedSet, PoolSet, SystemSet
from capeval_core.values import described

REFERENCES = "reference_captions.json"


def load_hat(folder: Path) -> MarkedSet:
    """HAT (Petryk et al., NAACL 2024): `captions.jsonl` (image, caption, contains_hallucination, references).

    How well low scores find the captions with a hallucination: average precision of minus the score.
    """
    fields: dict[str, type | tuple[type, ...]] = {"image": str, "caption": str, "references": list}
    file = Rows(folder / "captions.jsonl", fields)
    dropped, items, marked = Dropped(), Items([], [], []), []
    for row in file.rows:
        if not isinstance(row.get("contains_hallucination"), bool):
            dropped.add("captions without contains_hallucination")
            continue
        marked.append(row["contains_hallucination"])
        add_item(items, row["caption"], row["image"], row["references"])
    return MarkedSet("hat", Scoring("", items), marked, dropped=dropped.counts)


def load_systems(folder: Path) -> SystemSet:
    """COCO's Karpathy test split: `reference_captions.json`, and a file {image id: caption} of each
    system."""
    path = folder / REFERENCES
    references = mapping_of_lists(path)
    systems = []
    dropped = Dropped()
    for file in sorted(folder.glob("*.json")):
        if file.name in (REFERENCES, "expected.json"):
            continue
        captions = _captions(file)
        unknown = [image for image in captions if image not in references]
        dropped.add("captions of images without references", len(unknown))
        images = [image for image in captions if image in references]
        texts = references_of(path, references, images)
        systems.append(Scoring(file.stem, Items([captions[image] for image in images], images, texts)))
    if not systems:
        found = f"no file of a system beside {REFERENCES}"
        fix = "put {image id: caption} there, a file per system"
        raise FileError(file_problem(folder, found, fix, verb="has"))
    return SystemSet("coco_systems", tuple(systems), dropped=dropped.counts)


def load_pools(folder: Path) -> PoolSet:
    """NICE 2024's caption re-ranking: `pools.json` ({image: candidates}) and `references.json`.

    A metric chooses the candidate with the highest score of each image; the chosen captions are compared with
    the references, as the captions of a system are.
    """
    pools, path = mapping_of_lists(folder / "pools.json"), folder / "references.json"
    images = [image for image, candidates in pools.items() for _ in candidates]
    captions = [caption for candidates in pools.values() for caption in candidates]
    texts = references_of(path, mapping_of_lists(path), images)
    return PoolSet("nice_pools", Scoring("", Items(captions, images, texts)))


def _captions(path: Path) -> dict[str, str]:
    content: Any = load_json(path)
    if not isinstance(content, dict) or not content:
        raise FileError(file_problem(path, f"{described(content)}, expected {{image id: caption}}"))
    problems = Problems()
    for image, caption in content.items():
        if not isinstance(caption, str):
            problems.add(file_problem(path, described(caption), "expected a caption", index=f"key {image!r}"))
    problems.raise_if_any()
    return content
