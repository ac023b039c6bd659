"""The page of a metric: an image and a caption in, the score on its scale out.

`app.py` of a Space, and a user's own machine:

    demo = page.build("pacs")
    page.launch(demo)
"""

from __future__ import annotations

import base64
import inspect
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import gradio as gr
from gradio.processing_utils import save_file_to_cache
from gradio.utils import get_upload_folder
from starlette.middleware import Middleware
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from capeval_core.demo import KINDS, demo_of
from capeval_core.errors import described, wrong_option
from capeval_core.inputs.files import EXTENSIONS
from capeval_core.integrations.page.scorer import (
    NO_WEIGHTS,
    Inputs,
    Scorer,
    capitalised,
    chooses,
    lines_of,
    problem,
    rendered,
    uploaded,
)
from capeval_core.integrations.page.zero_gpu import on_gpu
from capeval_core.limits import LIMITS
from capeval_core.registry import media_of, metric_class
from capeval_core.reports.explanations import STYLE
from capeval_core.weights.folder import WeightsError

# An answer to other input than is in the boxes now is dimmed until the next one.
_STALE = "() => { document.getElementById('answer').classList.add('stale'); }"
_FRESH = "() => { document.getElementById('answer').classList.remove('stale', 'busy'); }"
# `show` answers whatever goes wrong in it: what fails otherwise is a full queue or a lost connection.
_BUSY = "() => { document.getElementById('answer').classList.add('busy'); }"
_LOG = logging.getLogger(__name__)
# The blues of the report, from light to dark: Gradio wants eleven of a hue, the report has six.
_BLUES = ["#eaf0fd", "#d4e0fb", "#b9cdf6", "#8db0ff", "#8db0ff", *["#2662d9"] * 3, *["#1d4ba6"] * 3]
_PRIVATE: dict[str, Any] = {"api_visibility": "private"}
# A file is handed over as it is: Gradio's own reading would turn and convert it.
_UNREAD: dict[str, Any] = {"preprocess": False, **_PRIVATE}
_SCORE: dict[str, Any] = {"show_progress": "minimal", **_UNREAD}


_SCORERS: WeakValueDictionary[str, Scorer] = WeakValueDictionary()
"""The scorers of pages, by a name that can be pickled: the process that ZeroGPU forks finds them here."""


@on_gpu
def _answer(scorer_name: str, inputs: Inputs) -> tuple[str, str]:
    """The answer to inputs as HTML, and the signature of its number."""
    scorer = _SCORERS[scorer_name]
    result, marks, notes = scorer.score(inputs)
    return scorer.answer(inputs, result, marks, notes), result.signature


@on_gpu
def _as_data(scorer_name: str, inputs: Inputs) -> dict[str, Any]:
    """The result of inputs in JSON's types."""
    return _SCORERS[scorer_name].score(inputs)[0].to_dict()


def build(name: str, weights: str | os.PathLike[str] | None = None, *, media: str | None = None) -> gr.Blocks:
    """The page of a metric. It opens no weights: the first Score does.

    Args:
        name: one of `list_metrics()`.
        weights: those that are chosen at first, as `load` takes them; None: the environment variable
            `CAPEVAL_WEIGHTS`, else the metric's published weights. `tiny` can always be chosen too.
        media: what captions are about at first; None: the metric's first medium.
    """
    first_weights = weights or os.environ.get("CAPEVAL_WEIGHTS") or None
    readable = ["image", "video"] if find_spec("av") else ["image"]  # a Space need not install PyAV
    offered = [medium for medium in media_of(name) if medium in readable]
    if media is not None and media not in offered:
        fix = f"choose {' or '.join(map(repr, offered))}" if offered else "leave the option out"
        raise wrong_option("media", media, f"is not what a page of {name} takes here", fix)
    offered.sort(key=lambda medium: medium != media)  # the chosen one first, the others in their order
    scorers = {medium: Scorer(name, first_weights, medium) for medium in offered}
    page = gr.Blocks(
        title=f"{metric_class(name).title} of a caption",
        analytics_enabled=False,
        delete_cache=(LIMITS.page_seconds_between, LIMITS.page_seconds_kept),
    )
    with page:
        _Page(scorers or {"texts": Scorer(name, first_weights)})
    return page


def launch(page: gr.Blocks, **settings: Any) -> None:
    """Serve a page from `build` until it is stopped; `settings` are those of Gradio's `launch`."""
    theme = gr.themes.Base(
        primary_hue=gr.themes.Color(*_BLUES),
        neutral_hue="slate",
        radius_size=gr.themes.Size(*["8px"] * 7),
        font=["system-ui", "sans-serif"],
        font_mono=["ui-monospace", "monospace"],
    )
    defaults: dict[str, Any] = {
        "app_kwargs": {"middleware": [Middleware(_WithoutServerFunctions)]},
        "theme": theme,
        "css_paths": [Path(__file__).with_name("page.css"), STYLE],
        "max_file_size": "20mb",  # room for a JPEG of 25 megapixels at a high quality
        "footer_links": ["api"],
    }
    page.queue(max_size=LIMITS.page_waiting).launch(**(defaults | settings))


class _WithoutServerFunctions:
    """Middleware that knows no functions of components, of which a page has none: Gradio's own answer to a
    request for one is an exception with its traceback."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and "/component_server" in scope["path"]:
            await JSONResponse({"detail": "Not Found"}, 404)(scope, receive, send)
        else:
            await self.app(scope, receive, send)


class _Page:
    """The components of a page, made inside of a `gr.Blocks`, and what happens between them."""

    def __init__(self, scorers: Mapping[str, Scorer]) -> None:
        self.scorers = scorers
        _SCORERS.update({scorer.name: scorer for scorer in scorers.values()})
        self.scorer = next(iter(scorers.values()))  # of what the page is about at first
        self.metric = self.scorer.metric
        self.media = [scorer.medium for scorer in scorers.values() if scorer.medium]
        self.heading = _html(self.scorer.heading())
        with gr.Row(elem_id="bench"):
            with gr.Column(elem_id="left"):
                with gr.Column(elem_id="inputs"):
                    self._inputs()
                with gr.Column(elem_id="more"):
                    self._examples()
            with gr.Column(elem_id="answer"):
                self.shown = _html(self.scorer.empty(), elem_id="result")
                go_on = "Go on with tiny, the demonstration weights"
                self.go_on = gr.Button(go_on, visible=False, elem_id="go-on")
                self.signature = gr.Textbox(
                    label="Signature",
                    info="All that the number depends on: compare numbers whose signatures are equal.",
                    interactive=False,
                    buttons=["copy"],
                    max_lines=6,
                    visible=False,
                    elem_id="signature",
                )
        self._events()

    def _inputs(self) -> None:
        several = chooses(self.metric)
        references = self.metric.needs_references
        offered = [(name.capitalize(), name) for name in self.scorers]
        about: dict[str, Any] = {"label": "The caption is about", "visible": len(offered) > 1}
        self.about = gr.Radio(offered, value=offered[0][1], elem_id="about", **about)
        # A component for each medium, of which one is visible, until another is chosen.
        self.visuals = [_upload(medium, visible=medium == self.scorer.medium) for medium in self.media]
        self.caption = gr.Textbox(
            label="Captions to choose from, one per line" if several else "Caption",
            lines=6 if several else 1,  # in one Enter scores
            max_lines=20 if several else 6,
            placeholder=self.scorer.asks,
            elem_id="caption",
        )
        self.references = gr.Textbox(
            label="References, one per line",
            lines=3,
            max_lines=10,
            placeholder=f"What people wrote of the same {self.scorer.medium or 'image'}",
            visible=references,
            elem_id="references",
        )
        self.press = gr.Button("Score", variant="primary", elem_id="score")
        pressed = "Shift + Enter" if several else "Enter"
        _html(rendered("keys", pressed=pressed, references=references), elem_id="keys")

    def _examples(self) -> None:
        about: dict[str, Any] = {"label": "Example captions", "visible": not chooses(self.metric)}
        self.kind = gr.Radio(list(KINDS), value=next(iter(KINDS)), elem_id="kind", **about)
        self.examples = []
        self.shelves = []
        for scorer in self.scorers.values():
            classes = ["examples", "pictures" if scorer.medium else "texts"]
            with gr.Row(visible=scorer is self.scorer, elem_classes=classes) as shelf:
                for index, item in enumerate(demo_of(scorer.metric)):
                    look: dict[str, Any] = {"elem_classes": "example-text"}
                    if scorer.medium:
                        # Inside the page itself: of a file Gradio would tell the whole path.
                        data = base64.b64encode(item.image.read_bytes()).decode()
                        icon = {"url": f"data:image/{item.image.suffix.removeprefix('.')};base64,{data}"}
                        look = {"icon": icon, "elem_classes": "example", "min_width": 0}
                    text = f"Example: {item.good}" if scorer.medium else item.good
                    self.examples.append((index, gr.Button(text, **look)))
            self.shelves.append(shelf)
        self.example = gr.State()
        labels = {"tiny": "tiny (demonstration: knows drawn scenes only)"}
        choices = []
        for weights in self.scorer.offered:
            choices.append((labels.get(weights, weights), weights))
        with gr.Accordion("Weights", open=False, visible=self.scorer.offered != (NO_WEIGHTS,)):
            self.weights = gr.Radio(
                choices,
                value=self.scorer.first,
                label="Weights",
                show_label=False,
                container=False,
                elem_id="weights",
            )

    def _events(self) -> None:
        # What captions are about first is the first input, all others follow the texts.
        references = [self.references] if self.metric.needs_references else []
        texts = [self.caption, *references, self.weights]
        has_media = len(self.visuals) > 1
        inputs = [*self.visuals[:1], *texts]
        if has_media:
            inputs += [self.about, *self.visuals[1:]]
        self.names = [component.elem_id for component in inputs]
        outputs = [self.shown, self.signature, self.go_on]
        presses = [self.press.click, self.caption.submit]
        if references:
            presses.append(self.references.submit)
        changes = [component.change for component in [*self.visuals, *texts]]
        # What only changes the look runs in the browser, and waits for no queue.
        gr.on(changes, js=_STALE, **_PRIVATE)
        gr.on(presses, js=_FRESH, **_PRIVATE)
        gr.on(presses, self.show, inputs, outputs, **_SCORE).failure(js=_BUSY, **_PRIVATE)

        def then_score(filled: Any) -> None:
            """Score what an event has filled in; the answer is fresh again once it has come."""
            # Filling is a change, which makes the answer stale.
            filled.then(js=_FRESH, **_PRIVATE)
            answered = filled.success(self.show, inputs, outputs, **_SCORE)
            answered.failure(js=_BUSY, **_PRIVATE)
            answered.success(js=_FRESH, **_PRIVATE)

        then_score(self.go_on.click(lambda: "tiny", None, self.weights, **_PRIVATE))
        filled = [*self.visuals, self.caption, *references, self.example]
        for index, button in self.examples:
            fill = partial(self.fill, index)
            then_score(button.click(fill, [self.about, self.kind], filled, **_PRIVATE))
        again = [self.example, self.about, self.kind]
        then_score(self.kind.input(self.fill, again, filled, **_PRIVATE))
        if has_media:
            changed = [*self.visuals, self.heading, self.caption, *self.shelves, *outputs]
            turned = self.about.input(self.turn, self.about, changed, show_progress="hidden", **_UNREAD)
            turned.then(js=_FRESH, **_PRIVATE)
        # A result as data, for programs: buttons are pressed by people.
        answer = gr.JSON(visible=False)
        ask = gr.Button(visible=False)
        ask.click(self._for_programs(), inputs, answer, preprocess=False, api_name="score")

    def show(self, *values: Any) -> Iterator[tuple[Any, Any, Any]]:
        """The answer to a press of Score, first that weights are opened where they are."""
        hidden = gr.update(visible=False)
        weights = None
        try:
            scorer, inputs = self._read(values)
            weights = inputs.weights
            # Opening takes seconds, which wrong input need not wait for.
            if not scorer.is_open(weights):
                scorer.check(inputs)
                yield rendered("opening", weights=weights), hidden, hidden
            answer, signature = _answer(scorer.name, inputs)
        except (ValueError, TypeError, MemoryError) as error:
            way_out = isinstance(error, WeightsError) and weights != "tiny" and "tiny" in self.scorer.offered
            yield problem(_reason(error)), hidden, gr.update(visible=way_out)
        # A visitor is told nothing of the server's code or folders.
        except Exception:
            _LOG.exception("%s: scoring failed", self.metric.name)
            yield problem("The page itself failed; the log of its server says why."), hidden, hidden
        else:
            yield answer, gr.update(value=signature, visible=True), hidden

    def _for_programs(self) -> Any:
        """The event for programs, with a name for each input; None is one that is left out."""

        def answer(*values: Any) -> dict[str, Any]:
            """Score a caption of an image or a video; references one per line, for metrics that need them."""
            try:
                scorer, inputs = self._read(values)
                return _as_data(scorer.name, inputs)
            except (ValueError, TypeError, MemoryError) as error:
                raise gr.Error(capitalised(_reason(error)), print_exception=False) from error

        # The page's "Use via API" shows the names of the function's parameters.
        parameter = partial(inspect.Parameter, kind=inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None)
        answer.__signature__ = inspect.Signature([*map(parameter, self.names)])  # type: ignore[attr-defined]
        return answer

    def turn(self, about: object) -> list[Any]:
        """The page about another medium: its component, examples if there are any, and an empty answer."""
        scorer = self._scorer_of(about)
        visible = []  # of the components of images and videos, and of their examples, in the same order
        for medium in self.media:
            visible.append(gr.update(visible=medium == about))
        hidden = gr.update(visible=False)
        caption = gr.update(placeholder=scorer.asks)
        return [*visible, scorer.heading(), caption, *visible, scorer.empty(), hidden, hidden]

    def fill(self, index: int | None, about: object, kind: str) -> list[Any]:
        """An example in the boxes, the first where none was chosen."""
        scorer = self._scorer_of(about)
        item = demo_of(scorer.metric)[index or 0]
        # A copy among the uploads, again if that was deleted: Gradio tells a browser the path.
        copies = []
        for medium in self.media:
            if medium == scorer.medium:
                copies.append(save_file_to_cache(item.image, get_upload_folder()))
            else:
                copies.append(gr.skip())
        if chooses(self.metric):
            captions = [str(getattr(item, field)) for field in KINDS.values()]
            text = "\n".join([*item.references, *captions])
        else:
            text = str(getattr(item, KINDS[kind]))
        references = ["\n".join(item.references)] if self.metric.needs_references else []
        return [*copies, text, *references, index or 0]

    def _scorer_of(self, about: object) -> Scorer:
        """The scorer of a medium. Raises ValueError for anything else, as requests may hand in anything."""
        if not isinstance(about, str) or about not in self.scorers:
            raise ValueError(f"about: this page takes {' and '.join(map(repr, self.scorers))}")
        return self.scorers[about]

    def _read(self, values: Sequence[Any]) -> tuple[Scorer, Inputs]:
        """The scorer and its input, of values that may be anything, as requests may."""
        by_name: dict[str, Any] = {}
        # Not strict: a request may leave out the last ones.
        for name, value in zip(self.names, values, strict=False):
            if value is not None:
                by_name[name] = value
        scorer = self._scorer_of(by_name.get("about", next(iter(self.scorers))))
        texts = {"caption": "", "references": "", "weights": self.scorer.first} | by_name
        for name in ("caption", "references", "weights"):
            if not isinstance(texts[name], str):
                raise ValueError(f"{name}: expected a text, found {described(texts[name])}")
        visual = None if scorer.medium is None else uploaded(by_name.get(scorer.medium), scorer.medium)
        caption = lines_of(texts["caption"]) if chooses(self.metric) else texts["caption"]
        return scorer, Inputs(visual, caption, lines_of(texts["references"]), texts["weights"])


def _html(content: str, **settings: Any) -> gr.HTML:
    return gr.HTML(content, apply_default_css=False, **settings)


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


def _upload(medium: str, *, visible: bool) -> Any:
    """The component that takes an upload."""
    if medium == "image":
        placeholder = "# Drop an image here\nor click to choose one"
        look: dict[str, Any] = {"height": 260, "placeholder": placeholder, "sources": ["upload", "clipboard"]}
        return gr.Image(label="Image", type="filepath", visible=visible, elem_id=medium, **look)
    # A plain file: Gradio's own component would convert a video and load an editor.
    label = "Video: MP4, WebM, MOV, MKV, AVI or GIF"
    return gr.File(
        label=label, file_types=sorted(EXTENSIONS[medium]), height=160, visible=visible, elem_id=medium
    )
