"""What the page shows below the score. A metric adds its own outputs here, by the evidence that it keeps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape
from typing import Any

from capeval_core.integrations.page.scale import number
from capeval_core.integrations.page.scorer import Scored
from capeval_core.registry import METRICS, metric_class

Panel = Callable[[Scored], str]
"""Of a scored caption some HTML; every text of a user or a model in it is escaped."""


def parts(scored: Scored) -> str:
    """The components that the paper names."""
    titles = {metric_class(name).key: metric_class(name).title for name in METRICS}
    rows = {titles.get(name, name.replace("_", " ")): value for name, value in scored.parts.items()}
    return table("Parts", {escape(name): value for name, value in rows.items()})


def references(scored: Scored) -> str:
    """The cosine of the caption with each reference, nearest first."""
    found: Mapping[str, float] = scored.evidence["references"]
    nearest = sorted(found.items(), key=lambda item: item[1], reverse=True)
    marked = {escape(text): value for text, value in nearest}
    return table("Cosine with each reference, nearest first", marked)


OF_EVIDENCE: dict[str, Panel] = {"references": references}
"""The panel of each kind of evidence, by its name in `result.explain(i)`."""


def panels(scored: Scored) -> str:
    """Everything below the score: the parts, then a panel for each kind of evidence that the metric keeps."""
    shown = [parts, *(panel for name, panel in OF_EVIDENCE.items() if name in scored.evidence)]
    return "".join(panel(scored) for panel in shown)


def table(title: str, rows: Mapping[str, Any]) -> str:
    """A table of names (HTML) and numbers."""
    cells = "".join(
        f'<tr><th scope="row">{name}</th><td><data value="{value!r}">{number(value)}</data></td></tr>'
        for name, value in rows.items()
    )
    return f"<table><caption>{escape(title)}</caption><tbody>{cells}</tbody></table>"
