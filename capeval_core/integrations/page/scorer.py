"""Scores for the page: one caption at a time, next to those of typical captions; and their HTML."""

from __future__ import annotations

import math
import os
import re
import threading
import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from gradio.utils import get_upload_folder
from markupsafe import Markup
from PIL import ExifTags

from capeval_core.demo import FOLDER, demo_of, demo_samples, score_kinds
from capeval_core.errors import minus, naming, place
from capeval_core.inputs.decoders import frames_within_limits
from capeval_core.inputs.images import is_deep, open_image
from capeval_core.inputs.notes import Notes
from capeval_core.inputs.samples import Samples
from capeval_core.limits import LIMITS
from capeval_core.metric import CaptionMetric, Reranker, prepared
from capeval_core.metric_text import MetricDescription
from capeval_core.project import address
from capeval_core.registry import load, metric_class, titles_of_parts
from capeval_core.reports.explanations import number, panels, parts, round_ticks, template
from capeval_core.result import Result
from capeval_core.weights.folder import TINY

NO_WEIGHTS = "none"
"""The only choice of weights where a metric has none."""
_LONGEST_TEXT = 20_000  # characters of a request: strangers use a page, and encoding takes its time
_NARROWEST = 0.6  # shorter / longer side of images of which so little is cut off that no note is needed
_LIST_MARK = re.compile(r"^(?:[-*•–—]|\d{1,3}[.)])(?:\s+|$)")


class Upload(NamedTuple):
    """An image or a video that a visitor uploaded; an image has one frame."""

    path: Path
    frames: int


class Inputs(NamedTuple):
    """The content of the page's boxes; caption: a text, or the candidates of a metric that chooses."""

    visual: Upload | None
    caption: str | list[str]
    references: list[str]
    weights: str


class Marks(NamedTuple):
    """Means of typical captions by their kind, and a sentence about their source."""

    means: Mapping[str, float]
    source: str


NO_MARKS = Marks({}, "")


def chooses(metric: type[CaptionMetric]) -> bool:
    """True for a metric that chooses from captions, one per line; its examples show all of theirs."""
    return issubclass(metric, Reranker)


def lines_of(text: str) -> list[str]:
    """The lines that say something, without the bullets and numbers of a list that was pasted."""
    lines = []
    for line in text.splitlines():
        line_without_mark = _LIST_MARK.sub("", line.strip(), count=1)
        if line_without_mark:
            lines.append(line_without_mark)
    return lines


def capitalised(text: str) -> str:
    """A message as a sentence; `str.capitalize` would make lower case of the rest."""
    return text[:1].upper() + text[1:]


def uploaded(value: object, medium: str) -> Upload | None:
    """The upload, or packaged example, that an event handed in, and its frames; None where it has none."""
    # Gradio checks a path only where the request's own `meta` says that there is one. The error is the same
    # for a file that was not uploaded to this page whether there is such a file or not.
    path = value.get("path") if isinstance(value, Mapping) else None
    if value is None or (path is None and isinstance(value, Mapping) and not value.get("url")):
        return None
    resolved = Path()
    with suppress(OSError, ValueError, RuntimeError):  # no such file, a NUL, links in a circle
        resolved = Path(path if isinstance(path, str) else "").resolve(strict=True)
    folders = [Path(get_upload_folder()).resolve(), FOLDER.resolve()]
    if not resolved.is_file() or not any(map(resolved.is_relative_to, folders)):
        fix = "which are deleted after an hour: upload it (again)"
        raise ValueError(f"the {medium} is not among the uploads of this page, {fix}")
    return Upload(resolved, _frames(resolved, resolved.stat().st_mtime_ns, medium))


@lru_cache(maxsize=64)
def _frames(path: Path, time: int, medium: str) -> int:
    """The number of frames of an upload, which another process reads within limits. Raises ValueError."""
    # Of an upload that is scored again with another caption this is most of the time. `time` is in the
    # arguments as a key: a file that was written again is read again.
    return frames_within_limits(path, medium)


def _visual_notes(image: Path) -> dict[str, Any]:
    """Differences between a metric's view of an image and a browser's, of one that sees the centre alone."""
    with open_image(str(image)) as decoded:
        deep = is_deep(decoded)  # before it is read
        short, long = sorted(decoded.size)
        transparent = False
        if decoded.has_transparency_data:
            alpha = decoded.convert("RGBA").getchannel("A")
            transparent = alpha.getextrema() != (255, 255)  # many programs write a channel that is opaque
        orientation = decoded.getexif().get(ExifTags.Base.Orientation, 1)
        return {
            "turned": orientation in range(2, 9),  # 1 is upright, others mean nothing
            "deep": deep,
            "transparent": transparent,
            "centre": short / long if short < _NARROWEST * long else None,
        }


def _crops(metric: CaptionMetric) -> bool:
    """True where an opened metric sees the square in an image's centre alone."""
    if not metric.crops or metric.network is None:
        return metric.crops
    # A metric for CLIPs also takes a SigLIP, which squashes an image, or adds margins.
    preprocessing = getattr(metric.encoder, "preprocessing", None)
    return preprocessing is None or bool(preprocessing.resize == "shortest")


def _naming(metric: type[CaptionMetric]) -> AbstractContextManager[None]:
    """Let problems be those of the page's boxes."""
    names = {
        "captions": "the list of captions" if chooses(metric) else "the caption",
        "references": "the list of references",
        "images": "the image",
        "videos": "the video",
    }

    def row(argument: str, path: Sequence[int | str]) -> str:
        # The first index is always 0, since a page scores one row: a visitor has no list of it.
        if len(path) > 1 and isinstance(path[1], int) and argument in ("captions", "references"):
            noun = "line" if argument == "captions" else "reference"
            return f"{noun} {path[1] + 1}"
        return place(argument, path[1:])

    def advice(name: str, value: Any) -> str:
        """Advice on setting an option; the page has none but the weights."""
        if name != "weights":
            return ""
        return "choose tiny" if value == "tiny" else f"start this page with CAPEVAL_WEIGHTS={value}"

    return naming(names, row=row, advice=advice)


class Scorer:
    """A metric with the weights that a page offers; each is opened when it is first used, and once."""

    def __init__(
        self, name: str, weights: str | os.PathLike[str] | None = None, media: str | None = None
    ) -> None:
        self.metric = metric_class(name, media)
        if self.metric.relative is not None and not chooses(self.metric):
            raise ValueError(f"{name} has no page, which scores single captions: {self.metric.relative}")
        self.medium = self.metric.media[0] if self.metric.media else None
        self.asks = f"What the {self.medium or 'image'} shows"
        if weights is not None:
            self.metric.check_options(self.metric.Options(weights=weights))
        entry = self.metric.default_weights
        tiny = self.metric.tiny
        published = entry.name if entry else NO_WEIGHTS
        self.first = published if weights is None else os.fspath(weights)
        demonstration = ["tiny"] if tiny is not None and (TINY / tiny).is_dir() else []
        self.offered = tuple(dict.fromkeys([self.first, published, *demonstration]))
        """Nothing else is opened: a page is open to people whom its owner does not know."""
        self._opened: dict[tuple[Any, ...], tuple[CaptionMetric, Marks]] = {}
        self._of_drawings: dict[tuple[Any, ...], Marks] = {}
        self._busy = threading.Lock()  # Gradio calls from several threads; warnings are of the whole process
        self.name = f"{name} {self.medium} {id(self)}"
        """A name of its own among all pages of this process."""

    def heading(self) -> str:
        """The metric's name, and in a sentence what its number means, as HTML."""
        about = MetricDescription(self.metric)
        links = {"the paper": about.address, "the project": address()}
        return rendered("heading", about=about, range=minus(about.range), links=links)

    def empty(self) -> str:
        """The answer before the first score: the scale, with published means of the first weights."""
        marks = published_marks(self.metric, [self.first])
        return self._on_scale("empty", marks, None, visual=MetricDescription(self.metric).visual)

    def answer(self, inputs: Inputs, result: Result, marks: Marks, notes: Mapping[str, Any]) -> str:
        """The score on its scale, with its parts."""
        if result.errors:
            return problem(result.errors[0])
        values = {name: values[0] for name, values in result.parts.items()}
        # Both escape what they are given: a caption may hold HTML.
        evidence = Markup(panels(result.explain(0)) + parts(values, titles_of_parts()))
        return self._on_scale(
            "score",
            marks,
            result.scores[0],
            notes=notes,
            truncated=result.counts.truncated,
            evidence=evidence,
            caption=values["caption"] if chooses(self.metric) else inputs.caption,
            tiny=inputs.weights == "tiny",
        )

    def _on_scale(self, view: str, marks: Marks, score: float | None, **content: Any) -> str:
        return rendered(
            view,
            metric=self.metric,
            chooses=chooses(self.metric),
            value=score,
            source=marks.source,
            scale=_scale(self.metric, marks.means, score),
            **content,
        )

    def is_open(self, weights: str) -> bool:
        """True where `score` with these weights needs to open nothing."""
        opened_weights = [key[0] for key in self._opened]
        return weights in opened_weights

    def check(self, inputs: Inputs) -> Samples:
        """The checked input of `score`; no weights are opened."""
        visual, caption, references, weights = inputs
        if weights not in self.offered:
            raise ValueError(f"weights={weights!r}: this page offers {' and '.join(map(repr, self.offered))}")
        captions = [caption] if isinstance(caption, str) else caption
        length = sum(map(len, [*captions, *references]))
        if length > _LONGEST_TEXT:
            raise ValueError(f"the texts have {length:,} characters, this page takes {_LONGEST_TEXT:,}")
        compared = [references] if self.metric.needs_references else None
        # Not the path, which tells where the server keeps uploads.
        content = None
        if visual is not None:
            content = {"bytes": visual.path.read_bytes(), "path": visual.path.name}
        with _naming(self.metric):
            return self.metric.check_input(self.metric.Options(), [caption], [content], compared)

    def score(self, inputs: Inputs) -> tuple[Result, Marks, dict[str, Any]]:
        """One caption, or one list of candidates, scored, and notes on it; one call at a time."""
        samples = self.check(inputs)
        visual = inputs.visual
        options: dict[str, Any] = {}
        notes: dict[str, Any] = {}
        most_frames = LIMITS.page_frames_encoded
        if visual is not None and self.medium == "image":
            notes = _visual_notes(visual.path)
        # Only then: with the option the metric has another signature, though not another number.
        elif visual is not None and visual.frames > most_frames:
            options["max_frames"] = most_frames
            notes["frames"] = most_frames
        with self._busy, _naming(self.metric), warnings.catch_warnings(record=True) as caught:
            metric, marks = self._open(inputs.weights, options)
            if not _crops(metric):
                notes.pop("centre", None)
            # Means of drawings tell nothing of a photograph's score.
            if not marks.means and (visual is None or _is_example(metric, visual.path)):
                marks = self._marks_of_drawings(metric, (inputs.weights, *options.items()))
            result = metric.combine(metric.encode_all(samples), samples=samples)
            texts = Notes([self.metric])
            texts.add_texts(samples.captions, samples.references or [])
            texts.tell()
        messages = []
        for warning in caught:
            message = capitalised(str(warning.message))
            # Ours are UserWarnings; deprecations of libraries are not for a visitor.
            if issubclass(warning.category, UserWarning) and message not in messages:
                messages.append(message)
        notes["warnings"] = messages
        notes["idf"] = getattr(metric.options, "statistics", None) is not None
        return result, marks, notes

    def _open(self, weights: str, options: Mapping[str, Any]) -> tuple[CaptionMetric, Marks]:
        key = (weights, *options.items())
        if key not in self._opened:
            keywords = dict(options)
            if weights != NO_WEIGHTS:
                keywords["weights"] = weights
            metric = load(self.metric.name, media=self.metric.variant, evidence=True, **keywords)
            metric = prepared(metric, demo_samples(metric))  # one caption is not a corpus
            entry = metric.folder.entry if metric.default_weights and metric.tiny else None
            names = [model.label for model in metric.models.values()]
            names += [entry.repository] if entry else []  # whatever their folder is called
            self._opened[key] = (metric, published_marks(type(metric), names))
        return self._opened[key]

    def _marks_of_drawings(self, metric: CaptionMetric, key: tuple[Any, ...]) -> Marks:
        """Means of the packaged examples, computed once."""
        if key not in self._of_drawings:
            self._of_drawings[key] = _marks_of_drawings(metric)
        return self._of_drawings[key]


def _is_example(metric: CaptionMetric, visual: Path) -> bool:
    """True for an upload that is a packaged example, of which the page made a copy."""
    content = visual.read_bytes()
    return any(item.image.read_bytes() == content for item in demo_of(type(metric)))


def _marks_of_drawings(metric: CaptionMetric) -> Marks:
    """Means of the drawn examples by kind; none for a number that is relative to its set."""
    if metric.relative:
        return NO_MARKS
    items = demo_of(type(metric))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # notes about the examples are not about a visitor's caption
        means = {kind: result.mean for kind, result in score_kinds(metric, items).items()}
    weighed = ", with these weights" if metric.default_weights else ""
    noun = (metric.media or ("image",))[0]
    text = (
        f"Means over the {len(items)} drawn examples{weighed}: good captions are true, subtly wrong ones "
        f"have one word changed, unrelated ones are true of another {noun}."
    )
    return Marks(means, text)


def published_marks(metric: type[CaptionMetric], weights: Sequence[str]) -> Marks:
    """Published means that were computed with one of these weights, by repository or its last part."""
    about = metric.published
    if metric.relative or not about:
        return NO_MARKS
    repository = metric.default_weights.repository.lower() if metric.default_weights else ""
    names = {name.partition("@")[0].lower() for name in weights}  # without a commit
    # A folder has the last part alone.
    if names.isdisjoint({repository, repository.rpartition("/")[2]}):
        return NO_MARKS
    source = "; ".join(filter(None, [about["source"], about.get("settings")]))
    text = f"Means over {about['dataset']} ({source}). Single captions vary far more than these means."
    return Marks(about["means"], text)


# HTML


def rendered(view: str, **content: Any) -> str:
    """A macro of `reports/templates/page.html.j2`."""
    return str(template("page").render(view=view, **content)).strip()


def problem(message: str) -> str:
    """A problem line by line; indented lines stay so where they are wrapped."""
    first_line, *more_lines = message.splitlines() or [""]
    lines = [(0, capitalised(first_line.strip()))]
    for line in more_lines:
        # The lines of a list of problems begin with a dash; others are addresses and commands.
        if first_line.endswith("problems with the input:"):
            line = f"{line[:2]}{capitalised(line[2:])}"
        text = line.lstrip()
        lines.append((len(line) - len(text), text.rstrip()))
    return rendered("problem", lines=lines)


def _scale(
    metric: type[CaptionMetric], means: Mapping[str, float], score: float | None
) -> dict[str, Any] | None:
    """A row for a score, and below it the means, best first, over a common axis; in percent of the width."""
    if metric.relative:  # to its set
        return None
    low, high = metric.range

    def at(value: float) -> str:
        share = (value - low) / (high - low) if math.isfinite(value) else 0.0
        return f"{100 * min(max(share, 0.0), 1.0):.2f}%"

    # From where to where on the axis: a bar goes from 0 to the score, to the left if that is negative.
    rows = []
    if score is not None:
        rows.append(("bar", "this caption", at(min(score, 0.0)), at(max(score, 0.0)), number(score)))
    marks = sorted(means.items(), key=lambda mark: mark[1], reverse=metric.higher_is_better)
    for label, value in marks:
        rows.append(("dot", label, at(value), at(value), number(value)))
    round_numbers = round_ticks(low, high)
    room = 0.4 * (round_numbers[1] - round_numbers[0])  # a tick this near to an end would run into its number
    ticks = [low]
    for tick in round_numbers:
        if tick - low > room and high - tick > room:
            ticks.append(tick)
    ticks.append(high)
    about = MetricDescription(metric)
    # For screen readers, to which the drawing is one image.
    spoken = f"The scale goes from {minus(about.range)}, {about.better}."
    if score is not None:
        spoken = f"{about.title} of this caption: {number(score)}. {spoken}"
    if marks:
        typical = [f"{label} {number(value)}" for label, value in marks]
        spoken += f" What typical captions get: {', '.join(typical)}."
    return {
        "here": None if score is None else at(score),
        "spoken": spoken,
        "rows": rows,
        "axis": {at(tick): minus(f"{tick:.3g}") for tick in ticks},
    }
