"""COCO's caption evaluation without Java: BLEU, ROUGE-L and CIDEr by pycocoevalcap's keys and in its shapes.

METEOR and SPICE are programs in Java, which pycocoevalcap brings along; they run on request (`pip install
capeval[ngram]`) and have no implementation here.
"""

from __future__ import annotations

import importlib
import importlib.util
import shutil
from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capeval_core.errors import Problem, Problems, described, did_you_mean, naming, place
from capeval_core.inputs.samples import check_samples
from capeval_core.phrases.ptb import ptb_text, ptb_tokens
from capeval_core.project import install_command
from capeval_core.registry import load
from capeval_core.result import Result
from capeval_core.scores.ngram import NgramMetric, score_together

Floats = NDArray[np.float64]

_COUNTED = {"BLEU": "bleu", "ROUGE_L": "rougel", "CIDEr": "ciderd"}
"""Name of each metric here, and that by which `load` knows it; CIDEr is CIDEr-D."""
_JAVA = ("METEOR", "SPICE")


class CocoScores:
    """The scores of captions by COCO's evaluation, in place of `COCOEvalCap` and of its single scorers.

        scores = CocoScores(gts, res)
        scores.eval["CIDEr"], scores.imgToEval[image_id]["Bleu_4"], scores.arrays["ROUGE_L"]

    Args:
        gts: {image id: its references}, each a text or `{"caption": text}`; or an object of COCO annotations
            with `getImgIds()` and `imgToAnns`, as pycocotools makes it.
        res: {image id: a list with its one caption}, or such an object; the same ids.
        metrics: some of BLEU, ROUGE_L, CIDEr, METEOR, SPICE; the last two need Java and `capeval[ngram]`.
        tokenize: whether texts are sentences still; without, they are tokens with one space between, which is
            what pycocoevalcap's scorers take.

    Raises:
        ValueError, TypeError: everything that is wrong with the input, at once; METEOR or SPICE cannot run.

    >>> gts = {7: ["A dog runs.", "A brown dog is running."], 9: ["Two cats."]}
    >>> scores = CocoScores(gts, {7: ["a dog runs"], 9: ["two dogs"]})
    >>> {name: round(value, 3) for name, value in scores.eval.items()}
    {'Bleu_1': 0.8, 'Bleu_2': 0.73, 'Bleu_3': 0.811, 'Bleu_4': 0.027, 'ROUGE_L': 0.75, 'CIDEr': 2.805}
    >>> scores.imgToEval[9]["Bleu_1"], scores.arrays["CIDEr"].shape
    (0.5, (2,))
    """

    def __init__(
        self,
        gts: Any,
        res: Any,
        *,
        metrics: Sequence[str] = ("BLEU", "ROUGE_L", "CIDEr"),
        tokenize: bool = True,
    ) -> None:
        known, problems = [*_COUNTED, *_JAVA], Problems()
        names = [metrics] if isinstance(metrics, str) else metrics
        for i, name in enumerate(names):
            if name not in known:
                fix = f"expected one of {', '.join(known)}{did_you_mean(name, known)}"
                problems.add(Problem(f"metrics[{i}]", f"is {name!r}", fix))
        problems.raise_if_any()
        self.metrics, self.tokenize = [name for name in known if name in names], tokenize
        references, captions = _annotations(gts, "gts", problems), _annotations(res, "res", problems)
        fix = "pass references and a caption of the same images"
        both = {"res": captions, "gts": references} if references and captions else {}
        for (argument, own), (other, others) in permutations(both.items(), 2):
            for key in [key for key in own if key not in others]:
                problems.add(Problem(_at(argument, key), f"is an image that is not in {other}", fix))
        for key, row in captions.items():
            if len(row) != 1:
                problems.add(Problem(_at("res", key), f"has {len(row)} captions", "pass a list of one"))
        problems.raise_if_any()
        self.ids = list(references)
        check_java([name for name in self.metrics if name in _JAVA])

        def of_image(argument: str, path: Sequence[int | str]) -> str:
            inner = (0,) if argument == "captions" else path[1:]  # an image has one caption
            return _at(argument, self.ids[int(path[0])], *inner)

        texts = [captions[key][0] for key in references], None, list(references.values())
        with naming({"captions": "res", "references": "gts"}, row=of_image):
            self._samples = check_samples(*texts, needs_references=True, empty="score", media=())

    @cached_property
    def results(self) -> dict[str, Result]:
        """The `Result` of BLEU, ROUGE_L and CIDEr, with intervals, tests and signatures."""
        names = [name for name in self.metrics if name in _COUNTED]
        opened = [load(_COUNTED[name], empty="score") for name in names]
        metrics = [metric for metric in opened if isinstance(metric, NgramMetric)]
        tokens = ptb_tokens if self.tokenize else str.split
        return dict(zip(names, score_together(metrics, self._samples, tokens), strict=True))

    @cached_property
    def _values(self) -> dict[str, tuple[float, Floats]]:
        """By pycocoevalcap's key, in the order of `metrics`: the value of all images, the score of each."""
        values: dict[str, tuple[float, Floats]] = {}
        for name in self.metrics:
            if name in _JAVA:
                values[name] = self._by_java(name)
            elif name == "BLEU":
                result = self.results[name]
                for part, scores in sorted({**result.parts, "bleu_4": result.scores}.items()):
                    values[part.capitalize()] = result.numbers[part], np.array(scores)
            else:
                values[name] = self.results[name].mean, np.array(self.results[name].scores)
        return values

    def _by_java(self, name: str) -> tuple[float, Floats]:
        tokenized = ptb_text if self.tokenize else list
        references = {i: tokenized(row) for i, row in enumerate(self._samples.references or [])}
        captions = {i: [text] for i, text in enumerate(tokenized(self._samples.captions))}
        module = importlib.import_module(f"pycocoevalcap.{name.lower()}.{name.lower()}")
        value, found = getattr(module, name.capitalize())().compute_score(references, captions)
        scores = [one["All"]["f"] if isinstance(one, Mapping) else one for one in found]  # SPICE has details
        return float(value), np.array(scores, float)

    @cached_property
    def eval(self) -> dict[str, float]:
        """{"Bleu_1": value, ..., "CIDEr": value} of all images, in the order of `metrics`."""
        return {name: value for name, (value, _) in self._values.items()}

    @cached_property
    def arrays(self) -> dict[str, Floats]:
        """{"Bleu_1": (images,), ...} the score of each image, in the order of `ids`."""
        return {name: scores for name, (_, scores) in self._values.items()}

    @cached_property
    def imgToEval(self) -> dict[Hashable, dict[str, Any]]:  # noqa: N802  (the name in pycocoevalcap)
        """{image id: {"image_id": id, "Bleu_1": score, ...}}."""
        rows = zip(*(scores.tolist() for scores in self.arrays.values()), strict=True)
        return {
            key: {"image_id": key, **dict(zip(self.arrays, row, strict=True))}
            for key, row in zip(self.ids, rows, strict=True)
        }

    @property
    def evalImgs(self) -> list[dict[str, Any]]:  # noqa: N802  (the name in pycocoevalcap)
        """The values of `imgToEval`."""
        return list(self.imgToEval.values())

    def evaluate(self) -> dict[str, float]:
        """`eval`, computed now; as in pycocoevalcap, where nothing is there before."""
        return self.eval

    def __repr__(self) -> str:
        return f"CocoScores({len(self.ids):,} images, {', '.join(self.metrics)})"


def _annotations(value: Any, argument: str, problems: Problems) -> dict[Hashable, list[Any]]:
    """{image id: its texts}."""
    if hasattr(value, "imgToAnns") and hasattr(value, "getImgIds"):
        value = {key: value.imgToAnns[key] for key in value.getImgIds()}
    if not isinstance(value, Mapping) or not value:
        fix = "expected {image id: [texts]}, or COCO annotations of pycocotools"
        found, kind = ("empty", ValueError) if isinstance(value, Mapping) else (described(value), TypeError)
        problems.add(Problem(argument, f"is {found}", fix, kind))
        return {}
    rows: dict[Hashable, list[Any]] = {}
    for key, row in value.items():
        if isinstance(row, (str, Mapping)) or not isinstance(row, Sequence):
            found, fix = f"is {described(row)}", "expected a list of texts"
            problems.add(Problem(_at(argument, key), found, fix, TypeError))
        else:
            rows[key] = [text.get("caption") if isinstance(text, Mapping) else text for text in row]
    return rows


def _at(argument: str, key: Hashable, *inner: int | str) -> str:
    """The place of an image in an argument."""
    return place(argument, [key if isinstance(key, (int, str)) else repr(key), *inner])


def check_java(names: Sequence[str]) -> None:
    """Raise ValueError for METEOR or SPICE if they cannot run here: pycocoevalcap, Java, SPICE's models."""
    if not names:
        return
    needs = f"{' and '.join(names)} {'need' if len(names) > 1 else 'needs'}"
    spec = importlib.util.find_spec("pycocoevalcap")
    if spec is None or not spec.submodule_search_locations:
        raise ValueError(f"{needs} pycocoevalcap, which is not installed: {install_command('ngram')}")
    if shutil.which("java") is None:
        raise ValueError(f"{needs} Java, and there is no `java`: apt install default-jre-headless")
    folder = Path(next(iter(spec.submodule_search_locations)), "spice")
    if "SPICE" in names and not (folder / "lib" / "stanford-corenlp-3.6.0-models.jar").is_file():
        raise ValueError(
            "SPICE needs Stanford CoreNLP 3.6.0 (about 400 MB), which pycocoevalcap downloads: run "
            f"`python -c 'from get_stanford_models import get_stanford_models as get; get()'` in {folder}"
        )
