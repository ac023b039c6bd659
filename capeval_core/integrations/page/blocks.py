"""The page itself: its components, and what a press of Score does."""

from __future__ import annotations

import base64
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.processing_utils import save_file_to_cache
from gradio.utils import get_upload_folder

from capeval_core.demo import KINDS, demo_set
from capeval_core.integrations.page import views
from capeval_core.integrations.page.scorer import Scorer, published_marks
from capeval_core.integrations.page.uploads import KEPT, uploaded_image
from capeval_core.integrations.page.words import lines_of, words_of
from capeval_core.values import described
from capeval_core.weights.folder import WeightsError

LARGEST_UPLOAD = "20mb"
"""Room for a JPEG of 25 megapixels at a high quality."""
LOOKED_AFTER = 300
"""Seconds from one look for uploads that are old enough to be deleted to the next."""
WAITING = 64
"""Visitors in the queue; one is served at a time."""
# The answer stands beside other input than it belongs to; it is dimmed until the next one.
_STALE = "() => { document.getElementById('answer').classList.add('stale'); }"
_FRESH = "() => { document.getElementById('answer').classList.remove('stale', 'busy'); }"
# `show` answers whatever goes wrong in it: what fails otherwise is a full queue or a lost connection.
_BUSY = "() => { document.getElementById('answer').classList.add('busy'); }"
_LOG = logging.getLogger(__name__)
_FONT = ["ui-sans-serif", "system-ui", "-apple-system", "Segoe UI", "Roboto", "Noto Sans", "sans-serif"]
_MONO = ["ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "DejaVu Sans Mono", "monospace"]


def build(name: str, weights: str | os.PathLike[str] | None = None) -> gr.Blocks:
    """The page of a metric. It opens no weights: the first Score does.

    Args:
        name: one of `list_metrics()`.
        weights: those that are chosen at first, as `load` takes them; None: the environment variable
            `CAPEVAL_WEIGHTS`, else the metric's published weights. `tiny` can always be chosen too.

    Raises:
        ValueError: unknown metric.
    """
    scorer = Scorer(name, weights or os.environ.get("CAPEVAL_WEIGHTS") or None)
    page = gr.Blocks(
        title=f"{scorer.metric.title} of a caption",
        analytics_enabled=False,
        delete_cache=(LOOKED_AFTER, KEPT),
    )
    with page:
        _Page(scorer)
    return page


def launch(page: gr.Blocks, **settings: Any) -> None:
    """Serve a page that `build` gave, until it is stopped; `settings` are those of Gradio's `launch`."""
    own = {
        "theme": gr.themes.Base(primary_hue="indigo", neutral_hue="slate", font=_FONT, font_mono=_MONO),
        "css_paths": [Path(__file__).with_name("page.css")],
        "max_file_size": LARGEST_UPLOAD,
        "footer_links": ["api"],
    }
    page.queue(max_size=WAITING).launch(**(own | settings))


class _Page:
    """The components of a page, made inside of a `gr.Blocks`, and what happens between them."""

    def __init__(self, scorer: Scorer) -> None:
        self.scorer = scorer
        self.words = words_of(scorer.metric)
        gr.HTML(views.heading(scorer.metric), apply_default_css=False)
        with gr.Row(elem_id="bench"):
            with gr.Column(elem_id="inputs"):
                self._inputs()
            with gr.Column(elem_id="answer"):
                self._outputs()
            with gr.Column(elem_id="more"):
                self._examples()
                self._weights()
        self._events()

    def _inputs(self) -> None:
        self.image = gr.Image(
            label="Image",
            type="filepath",
            sources=["upload", "clipboard"],
            height=260,
            placeholder="# Drop an image here\nor click to choose one",
            elem_id="image",
        )
        lines, max_lines = self.words.lines
        self.caption = gr.Textbox(
            label=self.words.label,
            lines=lines,
            max_lines=max_lines,
            placeholder="What the image shows",
            elem_id="caption",
        )
        self.references = gr.Textbox(
            label="References, one per line",
            lines=3,
            max_lines=10,
            placeholder="What people wrote of the same image",
            visible=self.scorer.metric.needs_references,
            elem_id="references",
        )
        self.press = gr.Button("Score", variant="primary", elem_id="score")

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
            label="Examples, each with a caption that is",
            visible=self.words.has_kinds,
            elem_id="kind",
        )
        with gr.Row(elem_id="examples"):
            self.examples = [
                gr.Button(
                    f"Example: {item.good}", icon=_icon(item.image), elem_classes="example", min_width=0
                )
                for item in demo_set()
            ]
        self.chosen = gr.State()

    def _weights(self) -> None:
        labels = {"tiny": "tiny (demonstration: knows drawn scenes only)"}
        with gr.Accordion("Weights", open=False):
            self.weights = gr.Radio(
                [(labels.get(weights, weights), weights) for weights in self.scorer.offered],
                value=self.scorer.first,
                label="Weights",
                show_label=False,
                container=False,
                elem_id="weights",
            )

    def _events(self) -> None:
        inputs = [self.image, self.caption, self.references, self.weights]
        outputs = [self.shown, self.signature, self.go_on]
        # The image is handed over as its file: Gradio's own reading would turn and convert it.
        quiet: dict[str, Any] = {"preprocess": False, "api_visibility": "private"}
        presses = [self.press.click, self.caption.submit, self.references.submit]
        gr.on(
            [self.image.change, self.caption.change, self.references.change, self.weights.change],
            js=_STALE,
            api_visibility="private",
        )
        gr.on(presses, js=_FRESH, api_visibility="private")
        score: dict[str, Any] = {"show_progress": "minimal", **quiet}
        gr.on(presses, self.show, inputs, outputs, **score).failure(js=_BUSY, api_visibility="private")
        chosen = self.go_on.click(lambda: "tiny", None, self.weights, api_visibility="private")
        chosen.then(js=_FRESH, api_visibility="private")
        chosen.then(self.show, inputs, outputs, **score).failure(js=_BUSY, api_visibility="private")
        filled = [self.image, self.caption, self.references, self.chosen]
        for index, button in enumerate(self.examples):
            button.click(self._filled(index), self.kind, filled, api_visibility="private")
        self.kind.input(self.refill, [self.chosen, self.kind], self.caption, api_visibility="private")
        # A result as data, for programs: buttons are pressed by people.
        answer, ask = gr.JSON(visible=False), gr.Button(visible=False)
        ask.click(self.answer, inputs, answer, preprocess=False, api_name="score")

    def show(
        self, image: dict[str, Any] | None, caption: str, references: str, weights: str
    ) -> Iterator[tuple[Any, Any, Any]]:
        """What a press of Score shows."""
        hidden = gr.update(visible=False)
        try:
            inputs = self._inputs_of(image, caption, references, weights)
            if not self.scorer.is_open(weights):
                self.scorer.check(*inputs)
                yield views.opening(weights), hidden, hidden
            scored = self.scorer.score(*inputs)
        except (ValueError, TypeError, MemoryError) as error:
            way_out = isinstance(error, WeightsError) and weights != "tiny" and "tiny" in self.scorer.offered
            yield views.problem(self.words.of(error)), hidden, gr.update(visible=way_out)
            return
        except Exception:
            _LOG.exception("%s: scoring failed", self.scorer.metric.name)
            yield views.problem("The page itself failed; the log of its server says why."), hidden, hidden
            return
        signature = gr.update(value=scored.result.signature, visible=True)
        yield views.score(scored, weights), signature, hidden

    def answer(
        self, image: dict[str, Any] | None, caption: str, references: str, weights: str
    ) -> dict[str, Any]:
        """Score one caption of one image; references one per line, for metrics that need them."""
        try:
            return self.scorer.score(*self._inputs_of(image, caption, references, weights)).result.to_dict()
        except (ValueError, TypeError, MemoryError) as error:
            raise gr.Error(self.words.of(error), print_exception=False) from error

    def _inputs_of(
        self, image: Any, caption: Any, references: Any, weights: Any
    ) -> tuple[str | None, str | list[str], list[str], str]:
        """The arguments of `Scorer.score`, of values that may be anything: a request may be any."""
        texts = {"caption": caption, "references": references, "weights": weights}
        for name, value in texts.items():
            if not isinstance(value, str) and (value is not None or name == "weights"):
                raise ValueError(f"{name}: expected a text, found {described(value)}")
        return uploaded_image(image), self.words.captions(caption or ""), lines_of(references or ""), weights

    def _filled(self, index: int) -> Any:
        """What a press of an example's button does."""
        item = demo_set()[index]

        def fill(kind: str) -> tuple[str, str, str, int]:
            # A copy among the uploads, again if that was deleted: Gradio tells a browser the path.
            copy = save_file_to_cache(item.image, get_upload_folder())
            return copy, self.refill(index, kind), "\n".join(item.references), index

        return fill

    def refill(self, index: int | None, kind: str) -> Any:
        """The caption of that kind of the example that was chosen, or its captions of all kinds."""
        return gr.skip() if index is None else self.words.example(demo_set()[index], kind)


def _icon(image: Path) -> Any:
    """A PNG as a button takes it, inside the page itself: of a file it would tell the whole path."""
    return {"url": f"data:image/png;base64,{base64.b64encode(image.read_bytes()).decode('ascii')}"}
