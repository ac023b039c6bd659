"""The page itself: its components, and what a press of Score does."""

from __future__ import annotations

import base64
import inspect
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.processing_utils import save_file_to_cache
from gradio.utils import get_upload_folder

from capeval_core.demo import KINDS, DemoItem, demo_of
from capeval_core.description import describe_metric
from capeval_core.errors import wrong_option
from capeval_core.integrations.page import views
from capeval_core.integrations.page.media import media_on_page
from capeval_core.integrations.page.scorer import NO_WEIGHTS, Scorer, published_marks
from capeval_core.integrations.page.words import capitalised, lines_of, texts_of
from capeval_core.limits import LIMITS
from capeval_core.registry import metric_class
from capeval_core.reports.explanations import STYLE
from capeval_core.values import described
from capeval_core.weights.folder import WeightsError

LARGEST_UPLOAD = "20mb"
"""Room for a JPEG of 25 megapixels at a high quality."""
TEXTS_ALONE = "texts"
"""What a page is about where only texts are compared."""
# The answer stands beside other input than it belongs to; it is dimmed until the next one.
_STALE = "() => { document.getElementById('answer').classList.add('stale'); }"
_FRESH = "() => { document.getElementById('answer').classList.remove('stale', 'busy'); }"
# `show` answers whatever goes wrong in it: what fails otherwise is a full queue or a lost connection.
_BUSY = "() => { document.getElementById('answer').classList.add('busy'); }"
_LOG = logging.getLogger(__name__)
_BLUE = gr.themes.Color(
    *["#eaf0fd", "#d4e0fb", "#b9cdf6", "#8db0ff", "#8db0ff", *["#2662d9"] * 3, *["#1d4ba6"] * 3]
)
"""That of the report, from light to dark."""
_RADIUS = gr.themes.Size(*["8px"] * 7)
_FONT = ["ui-sans-serif", "system-ui", "-apple-system", "Segoe UI", "Roboto", "Noto Sans", "sans-serif"]
_MONO = ["ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "DejaVu Sans Mono", "monospace"]


def build(name: str, weights: str | os.PathLike[str] | None = None, *, media: str | None = None) -> gr.Blocks:
    """The page of a metric. It opens no weights: the first Score does.

    Args:
        name: one of `list_metrics()`.
        weights: those that are chosen at first, as `load` takes them; None: the environment variable
            `CAPEVAL_WEIGHTS`, else the metric's published weights. `tiny` can always be chosen too.
        media: what captions are about at first; None: the metric's first medium.

    Raises:
        ValueError: unknown metric; a medium that the metric is not about, or that its page does not take.
    """
    chosen = weights or os.environ.get("CAPEVAL_WEIGHTS") or None
    offered = [medium.name for medium in media_on_page(name)]
    if media is not None and media not in offered:
        fix = f"choose {' or '.join(map(repr, offered))}" if offered else "leave the option out"
        raise wrong_option("media", media, f"not what a page of {name} takes here", fix)
    offered.sort(key=lambda medium: medium != media)
    scorers = {medium: Scorer(name, chosen, medium) for medium in offered}
    page = gr.Blocks(
        title=f"{metric_class(name).title} of a caption",
        analytics_enabled=False,
        delete_cache=(LIMITS.page_seconds_between, LIMITS.page_seconds_kept),
    )
    with page:
        _Page(scorers or {TEXTS_ALONE: Scorer(name, chosen)})
    return page


def launch(page: gr.Blocks, **settings: Any) -> None:
    """Serve a page that `build` gave, until it is stopped; `settings` are those of Gradio's `launch`."""
    own = {
        "theme": gr.themes.Base(
            primary_hue=_BLUE, neutral_hue="slate", radius_size=_RADIUS, font=_FONT, font_mono=_MONO
        ),
        "css_paths": [Path(__file__).with_name("page.css"), STYLE],
        "max_file_size": LARGEST_UPLOAD,
        "footer_links": ["api"],
    }
    page.queue(max_size=LIMITS.page_waiting).launch(**(own | settings))


class _Page:
    """The components of a page, made inside of a `gr.Blocks`, and what happens between them."""

    def __init__(self, scorers: Mapping[str, Scorer]) -> None:
        self.scorers = scorers
        self.media = [scorer.medium for scorer in scorers.values() if scorer.medium is not None]
        self.scorer = next(iter(scorers.values()))  # of what the page is about at first
        self.words = texts_of(self.scorer.metric)
        self.heading = gr.HTML(views.heading(self.scorer.metric), apply_default_css=False)
        with gr.Row(elem_id="bench"):
            with gr.Column(elem_id="left"):
                with gr.Column(elem_id="inputs"):
                    self._inputs()
                with gr.Column(elem_id="more"):
                    self._examples()
                    self._weights()
            with gr.Column(elem_id="answer"):
                self._outputs()
        self._events()

    def _inputs(self) -> None:
        self.about = gr.Radio(
            [(medium.label, medium.name) for medium in self.media],
            value=next(iter(self.scorers)),
            label="The caption is about",
            visible=len(self.media) > 1,
            elem_id="about",
        )
        self.visuals = {
            medium.name: medium.component(visible=medium is self.scorer.medium) for medium in self.media
        }
        lines, max_lines = self.words.lines
        self.caption = gr.Textbox(
            label=self.words.label,
            lines=lines,
            max_lines=max_lines,
            placeholder=_placeholder(self.scorer),
            elem_id="caption",
        )
        visual = describe_metric(self.scorer.metric).visual or "image"
        self.references = gr.Textbox(
            label="References, one per line",
            lines=3,
            max_lines=10,
            placeholder=f"What people wrote of the same {visual}",
            visible=self.scorer.metric.needs_references,
            elem_id="references",
        )
        self.press = gr.Button("Score", variant="primary", elem_id="score")
        gr.HTML(views.keys(self.scorer.metric), elem_id="keys", apply_default_css=False)

    def _outputs(self) -> None:
        self.shown = gr.HTML(
            views.empty(self.scorer.metric, published_marks(self.scorer.metric, [self.scorer.first])),
            elem_id="result",
            apply_default_css=False,
        )
        self.go_on = gr.Button("Go on with tiny, the demonstration weights", visible=False, elem_id="go-on")
        self.signature = gr.Textbox(
            label="Signature",
            info="All that the number depends on: compare numbers whose signatures are equal.",
            interactive=False,
            buttons=["copy"],
            lines=1,
            max_lines=6,
            visible=False,
            elem_id="signature",
        )

    def _examples(self) -> None:
        self.kind = gr.Radio(
            list(KINDS),
            value=next(iter(KINDS)),
            label="Example captions",
            visible=not self.words.pool,
            elem_id="kind",
        )
        self.examples, self.shelves = [], {}
        for about, scorer in self.scorers.items():
            kind = "pictures" if scorer.medium else "texts"
            first = scorer is self.scorer
            with gr.Row(visible=first, elem_classes=["examples", kind]) as self.shelves[about]:
                items = demo_of(scorer.metric)
                self.examples += [(index, _example(item, kind)) for index, item in enumerate(items)]
        self.chosen = gr.State()

    def _weights(self) -> None:
        labels = {"tiny": "tiny (demonstration: knows drawn scenes only)"}
        with gr.Accordion("Weights", open=False, visible=self.scorer.offered != (NO_WEIGHTS,)):
            self.weights = gr.Radio(
                [(labels.get(weights, weights), weights) for weights in self.scorer.offered],
                value=self.scorer.first,
                label="Weights",
                show_label=False,
                container=False,
                elem_id="weights",
            )

    def _events(self) -> None:
        # What captions are about first is the first input, all others follow the texts.
        first, *others = [*self.visuals.values(), None][: max(1, len(self.visuals))]
        references = [self.references] if self.scorer.metric.needs_references else []
        texts = [self.caption, *references, self.weights]
        inputs = [*filter(None, [first]), *texts, *([self.about, *others] if others else [])]
        outputs = [self.shown, self.signature, self.go_on]
        # A file is handed over as it is: Gradio's own reading would turn and convert it.
        quiet: dict[str, Any] = {"preprocess": False, "api_visibility": "private"}
        presses = [self.press.click, *(one.submit for one in (self.caption, *references))]
        changes = [one.change for one in [*self.visuals.values(), *texts]]
        gr.on(changes, js=_STALE, api_visibility="private")
        gr.on(presses, js=_FRESH, api_visibility="private")
        score: dict[str, Any] = {"show_progress": "minimal", **quiet}
        gr.on(presses, self.show, inputs, outputs, **score).failure(js=_BUSY, api_visibility="private")

        def then_score(filled: Any) -> None:
            """Score what an event has filled in; the answer is fresh again once it has come."""
            filled.then(js=_FRESH, api_visibility="private")
            answered = filled.success(self.show, inputs, outputs, **score)
            answered.failure(js=_BUSY, api_visibility="private")
            answered.success(js=_FRESH, api_visibility="private")

        then_score(self.go_on.click(lambda: "tiny", None, self.weights, api_visibility="private"))
        filled = [*self.visuals.values(), self.caption, *references, self.chosen]
        quietly: dict[str, Any] = {"api_visibility": "private"}
        for index, button in self.examples:
            fill = partial(self.fill, index)
            then_score(button.click(fill, [self.about, self.kind], filled, **quietly))
        again = self.kind.input(self.fill, [self.chosen, self.about, self.kind], filled, **quietly)
        then_score(again)
        if others:
            changed = [*self.visuals.values(), self.heading, self.caption, *self.shelves.values(), *outputs]
            turned = self.about.input(self.turn, self.about, changed, show_progress="hidden", **quiet)
            turned.then(js=_FRESH, api_visibility="private")
        # A result as data, for programs: buttons are pressed by people.
        answer, ask = gr.JSON(visible=False), gr.Button(visible=False)
        names = [*(medium.name for medium in self.media[:1]), "caption"]
        names += ["references"] if references else []
        names += ["weights"]
        names += ["about", *(medium.name for medium in self.media[1:])] if others else []
        self.names = names
        ask.click(
            _named(self.answer, names, {"weights": self.scorer.first, "about": self.about.value}),
            inputs,
            answer,
            preprocess=False,
            api_name="score",
        )

    def show(self, *values: Any) -> Iterator[tuple[Any, Any, Any]]:
        """What a press of Score shows."""
        hidden = gr.update(visible=False)
        weights = None
        try:
            scorer, inputs = self._inputs_of(values)
            weights = inputs[-1]
            if not scorer.is_open(weights):
                scorer.check(*inputs)
                yield views.opening(weights), hidden, hidden
            scored = scorer.score(*inputs)
        except (ValueError, TypeError, MemoryError) as error:
            way_out = isinstance(error, WeightsError) and weights != "tiny" and "tiny" in self.scorer.offered
            yield views.problem(str(error) or type(error).__name__), hidden, gr.update(visible=way_out)
            return
        except Exception:
            _LOG.exception("%s: scoring failed", self.scorer.metric.name)
            yield views.problem("The page itself failed; the log of its server says why."), hidden, hidden
            return
        signature = gr.update(value=scored.result.signature, visible=True)
        yield views.score(scored, weights), signature, hidden

    def answer(self, *values: Any) -> dict[str, Any]:
        """Score one caption of one image, or video; references one per line, for metrics that need them."""
        try:
            scorer, inputs = self._inputs_of(values)
            return scorer.score(*inputs).result.to_dict()
        except (ValueError, TypeError, MemoryError) as error:
            raise gr.Error(capitalised(str(error) or type(error).__name__), print_exception=False) from error

    def turn(self, about: Any) -> list[Any]:
        """The page about another medium: its component, examples if there are any, and an empty answer."""
        scorer = self._scorer_of(about)
        medium, metric = scorer.medium, scorer.metric
        empty = views.empty(metric, published_marks(metric, [scorer.first]))
        return [
            *(gr.update(visible=one is medium) for one in self.media),
            views.heading(metric),
            gr.update(placeholder=_placeholder(scorer)),
            *(gr.update(visible=one == about) for one in self.shelves),
            empty,
            *[gr.update(visible=False)] * 2,
        ]

    def _scorer_of(self, about: Any) -> Scorer:
        if not isinstance(about, str) or about not in self.scorers:
            raise ValueError(f"about: this page takes {' and '.join(map(repr, self.scorers))}")
        return self.scorers[about]

    def _inputs_of(
        self, values: Sequence[Any]
    ) -> tuple[Scorer, tuple[str | None, str | list[str], list[str], str]]:
        """The scorer, and the arguments of its `score`, of values that may be anything, as requests may."""
        given = dict(zip(self.names, values, strict=False))  # programs may leave the last ones out
        scorer = self._scorer_of(given.get("about", next(iter(self.scorers))))
        texts = {"weights": self.scorer.first, "references": None, **given}
        texts = {name: texts.get(name) for name in ("caption", "references", "weights")}
        for name, value in texts.items():
            if not isinstance(value, str) and (value is not None or name == "weights"):
                raise ValueError(f"{name}: expected a text, found {described(value)}")
        visual = None if scorer.medium is None else scorer.medium.of(given.get(scorer.medium.name))
        caption = self.words.captions(texts["caption"] or "")
        return scorer, (visual, caption, lines_of(texts["references"] or ""), texts["weights"])

    def fill(self, index: int | None, about: Any, kind: str) -> list[Any]:
        """An example in the boxes, the first where none was chosen: what a press of its button does."""
        scorer = self._scorer_of(about)
        item = demo_of(scorer.metric)[index or 0]
        # A copy among the uploads, again if that was deleted: Gradio tells a browser the path.
        copies = [
            save_file_to_cache(item.image, get_upload_folder()) if one is scorer.medium else gr.skip()
            for one in self.media
        ]
        references = ["\n".join(item.references)] if scorer.metric.needs_references else []
        return [*copies, self.words.example(item, kind), *references, index or 0]


def _example(item: DemoItem, kind: str) -> gr.Button:
    """The button of an example: its picture, or its caption where there are only texts."""
    if kind == "texts":
        return gr.Button(item.good, elem_classes="example-text")
    icon = _icon(item.image)
    return gr.Button(f"Example: {item.good}", icon=icon, elem_classes="example", min_width=0)


def _named(
    function: Callable[..., Any], names: Sequence[str], given: Mapping[str, Any]
) -> Callable[..., Any]:
    """The function with these parameters, by which Gradio describes it to programs.

    `weights`, and what stands behind them, may be left out: they are then as `given`, or None.
    """
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    defaults = {name: given.get(name) for name in names[names.index("weights") :]}

    def call(*values: Any) -> Any:
        return function(*values)

    call.__doc__ = function.__doc__
    call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, kind, default=defaults.get(name, inspect.Parameter.empty)) for name in names]
    )
    return call


def _placeholder(scorer: Scorer) -> str:
    return f"What the {'image' if scorer.medium is None else scorer.medium.name} shows"


def _icon(image: Path) -> Any:
    """A picture as a button takes it, inside the page itself: of a file it would tell the whole path."""
    form = image.suffix.removeprefix(".")
    return {"url": f"data:image/{form};base64,{base64.b64encode(image.read_bytes()).decode('ascii')}"}
