"""What the page shows as HTML: macros of `reports/templates/page.html.j2`, and the scale that they draw."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from capeval_core.description import MetricDescription
from capeval_core.errors import minus
from capeval_core.integrations.page.scorer import Scored, Scorer, capitalised, chooses, published_marks
from capeval_core.metric import CaptionMetric
from capeval_core.project import address
from capeval_core.registry import titles_of_parts
from capeval_core.reports.explanations import TINY_KNOWS, number, panels, parts, template

_STEPS = (0.05, 0.1, 0.2, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0)
_MOST = 5  # steps; more numbers would run into each other on a phone


def shown(view: str, **content: Any) -> str:
    return str(template("page").render(view=view, **content)).strip()


def heading(scorer: Scorer) -> str:
    """The metric's name, and in a sentence what its number means."""
    about = MetricDescription(scorer.metric)
    links = {"the paper": about.address, "the project": address()}
    return shown("heading", about=about, range=minus(about.range), links=links)


def empty(scorer: Scorer) -> str:
    """Before the first score: the scale, with what is known of it already."""
    metric, marks = scorer.metric, published_marks(scorer.metric, [scorer.first])
    visual = MetricDescription(metric).visual
    needed = [] if visual is None else [f"a{'n' * (visual[0] in 'aeiou')} {visual}"]
    needed += ["captions to choose from" if chooses(metric) else "a caption"]
    needed += ["references"] if metric.needs_references else []
    needs = " and ".join(filter(None, [", ".join(needed[:-1]), needed[-1]]))
    return shown("empty", title=metric.title, needs=needs, scale=_scale(metric, marks[0]), notes=[marks[1]])


def problem(message: str) -> str:
    """What is wrong, line by line; indented lines stay so where they are wrapped."""
    lines = [(len(line) - len(line.lstrip()), line.strip()) for line in message.splitlines() or [""]]
    several = lines[0][1].endswith("problems with the input:")  # others are addresses and commands
    lines = [(indent, capitalised(line) if several else line) for indent, line in lines]
    return shown("problem", lines=[(lines[0][0], capitalised(lines[0][1])), *lines[1:]])


def score(metric: type[CaptionMetric], scored: Scored, weights: str) -> str:
    """The score on its scale, with its parts."""
    result = scored.result
    if result.errors:
        return problem(result.errors[0])
    relative = f"Compare totals of these captions only: {metric.relative}." if metric.relative else ""
    values = {name: values[0] for name, values in result.parts.items()}
    return shown(
        "score",
        metric=metric,
        chooses=chooses(metric),
        caption=scored.caption,
        truncated=result.counts.truncated,
        value=result.scores[0],
        warning=TINY_KNOWS if weights == "tiny" else "",
        scale=_scale(metric, scored.marks[0], result.scores[0]),
        notes=[scored.marks[1], relative, *scored.notes],
        evidence=Markup(panels(result.explain(0)) + parts(values, titles_of_parts())),
    )


def _scale(
    metric: type[CaptionMetric], marks: Sequence[tuple[str, float]], score: float | None = None
) -> dict[str, Any] | None:
    """A row for a score, and one for each mark below it, over a common axis; all in percent of the width."""
    if metric.relative:  # to its set
        return None
    low, high = metric.range

    def at(value: float) -> str:
        share = (value - low) / (high - low) if math.isfinite(value) else 0.0
        return f"{100 * min(max(share, 0.0), 1.0):.2f}%"

    rows = [("dot", label, at(value), at(value), number(value)) for label, value in marks]
    if score is not None:
        rows.insert(0, ("bar", "this caption", at(min(score, 0.0)), at(max(score, 0.0)), number(score)))
    step = next((step for step in _STEPS if (high - low) / step <= _MOST), (high - low) / 4)
    inner = [i * step for i in range(math.floor(low / step) + 1, math.ceil(high / step))]
    room = 0.4 * step  # a tick this near to an end would run into its number
    ticks = [low, *(tick for tick in inner if tick - low > room and high - tick > room), high]
    described = MetricDescription(metric)
    own = "" if score is None else f"{described.title} of this caption: {number(score)}. "
    others = ", ".join(f"{label} {number(value)}" for label, value in marks)
    typical = f" What typical captions get: {others}." if marks else ""
    return {
        "here": None if score is None else at(score),
        "spoken": f"{own}The scale goes from {minus(described.range)}, {described.better}.{typical}",
        "rows": rows,
        "axis": {at(tick): minus(f"{tick:.3g}") for tick in ticks},
    }
