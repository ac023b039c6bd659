"""COCO's caption evaluation without Java: BLEU, ROUGE-L and CIDEr by pycocoevalcap's keys and in its shapes.

METEOR and SPICE are programs in Java, which pycocoevalcap brings along and which run on request.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capeval_core.errors import Problem, Problems, counted, described, did_you_mean, naming, place
from capeval_core.inputs.samples import Samples, check_samples
from capeval_core.phrases.ptb import ptb_tokens
from capeval_core.registry import load
from capeval_core.result import Result
from capeval_core.scores.java import check_java
from capeval_core.scores.ngram import score_together

_COUNTED = {"BLEU": "bleu", "ROUGE_L": "rougel", "CIDEr": "ciderd"}
"""Name of each metric here, and that by which `load` knows it; CIDEr is CIDEr-D."""
_SPACED = re.compile(r"(?:\S|\xa0)+")
"""A token of a text of tokens; one of several words, such as a telephone's number, holds no-break spaces."""
_JAVA = {"METEOR": "meteor", "SPICE": "spice"}


class CocoScores:
    """The scores of captions by COCO's evaluation, in place of `COCOEvalCap` and of its single scorers.

        scores = CocoScores(gts, res)
        scores.eval["CIDEr"], scores.imgToEval[image_id]["Bleu_4"], scores.arrays["ROUGE_L"]

    Args:
        gts: {image id: its references}, each a text or `{"caption": text}`; or an object of COCO annotations
            with `getImgIds()` and `imgToAnns`, as pycocotools makes it.
        res: {image id: a list with its one caption}, or such an object; the same ids.
        metrics: some of BLEU, ROUGE_L, CIDEr, METEOR, SPICE; the last two need Java and `capeval[ngram]`.
        tokenize: whether texts are sentences; else tokens with one space between, as pycocoevalcap's scorers
            take them.

    Raises:
        ValueError, TypeError: everything that is wrong with the input, at once; METEOR or SPICE cannot run.

    >>> gts = {7: ["A dog runs.", "A brown dog is running."], 9: ["Two cats."]}
    >>> scores = CocoScores(gts, {7: ["a dog runs"], 9: ["two dogs"]})
    >>> {name: round(value, 3) for name, value in scores.eval.items()}
    {'Bleu_1': 0.8, 'Bleu_2': 0.73, 'Bleu_3': 0.811, 'Bleu_4': 0.027, 'ROUGE_L': 0.75, 'CIDEr': 2.805}
    >>> scores.imgToEval[9]["Bleu_1"], scores.arrays["CIDEr"].shape
    (0.5, (2,))
    """

    eval: dict[str, float]
    """{"Bleu_1": value, ..., "CIDEr": value} of all images."""
    arrays: dict[str, NDArray[np.float64]]
    """{"Bleu_1": (images,), ...} the score of each image, in the order of `ids`."""
    imgToEval: dict[Hashable, dict[str, Any]]  # noqa: N815  (the name in pycocoevalcap)
    """{image id: {"image_id": id, "Bleu_1": score, ...}}; its values are `evalImgs`."""
    results: dict[str, Result]
    """The `Result` of each metric, with intervals, tests and signatures."""

    def __init__(
        self, gts: object, res: object, *, metrics: Sequence[str] = tuple(_COUNTED), tokenize: bool = True
    ) -> None:
        names = [metrics] if isinstance(metrics, str) else metrics
        metric_names = {**_COUNTED, **_JAVA}
        problems = Problems()
        for i, name in enumerate(names):
            if name not in metric_names:
                fix = f"expected one of {', '.join(metric_names)}{did_you_mean(name, metric_names)}"
                problems.add(Problem(f"metrics[{i}]", f"is {name!r}", fix))
        problems.raise_if_any()
        samples = self._checked(gts, res)
        # Before anything is scored: METEOR and SPICE would fail at the end.
        check_java([name for name in _JAVA if name in names])
        opened: dict[str, Any] = {}
        for name, metric_name in metric_names.items():
            if name in names:
                # As in pycocoevalcap, where an empty caption scores 0 and ends nothing.
                opened[name] = load(metric_name, empty="score")
        # Together, so that every text is tokenized once for all of them.
        tokenizer = ptb_tokens if tokenize else _SPACED.findall
        results = score_together([*opened.values()], samples, tokenizer)
        self.results = dict(zip(opened, results, strict=True))
        self.eval = {}
        self.arrays = {}
        for name, result in self.results.items():
            for part, value in sorted(result.numbers.items()):
                # BLEU has a number for each length of n-grams, the others have one.
                key = part.capitalize() if name == "BLEU" else name
                self.eval[key] = value
                self.arrays[key] = np.array(result.parts.get(part, result.scores))
        # Under pycocoevalcap's names and in its shapes, also where one alone would do.
        self.evalImgs: list[dict[str, Any]] = []
        for index, image_id in enumerate(self.ids):
            scores: dict[str, Any] = {"image_id": image_id}
            for name, array in self.arrays.items():
                scores[name] = float(array[index])
            self.evalImgs.append(scores)
        self.imgToEval = dict(zip(self.ids, self.evalImgs, strict=True))

    def _checked(self, gts: object, res: object) -> Samples:
        """A row per image; `ids` are their keys."""
        problems = Problems()
        references = _annotations(gts, "gts", problems)
        captions = _annotations(res, "res", problems)
        # One that is empty or not a mapping is a problem already; all of the other one's images would follow.
        if captions and references:
            fix = "pass references and a caption of each image"
            for key in {**captions, **references}:
                if key not in references:
                    problems.add(Problem(_at("res", key), "is an image that is not in gts", fix))
                elif key not in captions:
                    problems.add(Problem(_at("gts", key), "is an image that is not in res", fix))
        for key, row in captions.items():
            if len(row) != 1:
                problems.add(Problem(_at("res", key), f"has {len(row)} captions", "pass a list of one"))
        problems.raise_if_any()
        self.ids = list(references)

        def of_image(argument: str, path: Sequence[int | str]) -> str:
            inner = (0,) if argument == "captions" else path[1:]  # an image has one caption
            return _at(argument, self.ids[int(path[0])], *inner)

        texts = [captions[key][0] for key in self.ids]
        with naming({"captions": "res", "references": "gts"}, row=of_image):
            return check_samples(
                texts, None, list(references.values()), needs_references=True, empty="score", media=()
            )

    def evaluate(self) -> dict[str, float]:
        """`eval`; in pycocoevalcap nothing is there before."""
        return self.eval

    def __repr__(self) -> str:
        return f"CocoScores({counted(len(self.ids), 'image')}, {', '.join(self.eval)})"


def _annotations(value: object, argument: str, problems: Problems) -> dict[Hashable, list[Any]]:
    """{image id: its texts}."""
    # By its attributes and not by its class, since pycocotools need not be installed.
    if hasattr(value, "imgToAnns") and hasattr(value, "getImgIds"):
        value = {key: value.imgToAnns[key] for key in value.getImgIds()}
    if not isinstance(value, Mapping) or not value:
        fix = "expected {image id: [texts]}, or COCO annotations of pycocotools"
        if isinstance(value, Mapping):
            problems.add(Problem(argument, "is empty", fix, ValueError))
        else:
            problems.add(Problem(argument, f"is {described(value)}", fix, TypeError))
        return {}
    rows: dict[Hashable, list[Any]] = {}
    for key, row in value.items():
        if isinstance(row, str) or not isinstance(row, Sequence):
            where = _at(argument, key)
            problems.add(Problem(where, f"is {described(row)}", "expected a list of texts", TypeError))
            continue
        rows[key] = []
        for text in row:
            # pycocoevalcap's tokenizer takes {"caption": text}, its scorers take texts.
            rows[key].append(text.get("caption") if isinstance(text, Mapping) else text)
    return rows


def _at(argument: str, key: Hashable, *inner: int | str) -> str:
    """The place of an image in an argument."""
    return place(argument, [key if isinstance(key, (int, str)) else repr(key), *inner])
