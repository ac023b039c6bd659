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
from capeval_core.reports.explanations import TINY_KNOWS, number, panels, parts, round_ticks, template


def shown(view: str, **content: Any) -> str:
    return str(template("page").render(view=view, **content)).strip()


def heading(scorer: Scorer) -> str:
    """The metric's name, and in a sentence what its number means."""
    about = MetricDescription(scorer.metric)
    links = {"the paper": about.address, "the project": address()}
    return shown("heading", about=about, range=minus(about.range), links=links)


def empty(scorer: Scorer) -> str:
    """Before the first score: the scale, with what is known of it already."""
    metric, (marks, source) = scorer.metric, published_marks(scorer.metric, [scorer.first])
    visual = MetricDescription(metric).visual
    needs = [] if visual is None else [f"a{'n' * (visual[0] in 'aeiou')} {visual}"]
    needs += ["captions to choose from" if chooses(metric) else "a caption"]
    needs += ["references"] if metric.needs_references else []
    return shown("empty", title=metric.title, needs=needs, scale=_scale(metric, marks), source=source)


def problem(message: str) -> str:
    """What is wrong, line by line; indented lines stay so where they are wrapped."""
    first, *others = message.splitlines() or [""]
    if first.endswith("problems with the input:"):  # else the others are addresses and commands
        others = [f"{line[:2]}{capitalised(line[2:])}" for line in others]
    lines = [capitalised(first), *others]
    return shown("problem", lines=[(len(line) - len(line.lstrip()), line.strip()) for line in lines])


def score(metric: type[CaptionMetric], scored: Scored, weights: str) -> str:
    """The score on its scale, with its parts."""
    result, (marks, source) = scored.result, scored.marks
    if result.errors:
        return problem(result.errors[0])
    values = {name: values[0] for name, values in result.parts.items()}
    return shown(
        "score",
        metric=metric,
        chooses=chooses(metric),
        scored=scored,
        value=result.scores[0],
        warning=TINY_KNOWS if weights == "tiny" else "",
        scale=_scale(metric, marks, result.scores[0]),
        source=source,
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
    inner = round_ticks(low, high)
    room = 0.4 * (inner[1] - inner[0])  # a tick this near to an end would run into its number
    ticks = [low, *(tick for tick in inner if tick - low > room and high - tick > room), high]
    about = MetricDescription(metric)
    own = "" if score is None else f"{about.title} of this caption: {number(score)}. "
    others = ", ".join(f"{label} {number(value)}" for label, value in marks)
    typical = f" What typical captions get: {others}." if marks else ""
    return {
        "here": None if score is None else at(score),
        "spoken": f"{own}The scale goes from {minus(about.range)}, {about.better}.{typical}",
        "rows": rows,
        "axis": {at(tick): minus(f"{tick:.3g}") for tick in ticks},
    }
