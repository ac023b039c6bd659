"""Answers of a page to a press of Score: notes on the upload, problems by box and line, scale and examples.

The events of a page are called in this process, as Gradio calls them: no server, and no browser.
"""

from __future__ import annotations

import html
import re
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import capeval_core
from capeval_core.demo import demo_clips, demo_set
from tests.inputs.photographs import encoded, photograph
from tests.inputs.test_orientation import deep
from tests.inputs.video_writing import LOSSLESS, drawn, written
from tests.support.seams import LIMITS

pytest.importorskip("gradio", reason="needs gradio: pip install capeval[page]")

from gradio.processing_utils import save_file_to_cache
from gradio.utils import get_upload_folder

from capeval_core.integrations import page as pages

ITEM = demo_set()[0]
TEXTS = ("rougel", "ciderd", "chair")


class Visitor:
    """A page, and what is in its boxes."""

    def __init__(self, name: str, weights: str | None = None, **settings: Any) -> None:
        self.blocks: Any = pages.build(name, weights, **settings)
        self.events: dict[str, Any] = {}
        for event in self.blocks.fns.values():
            self.events.setdefault(getattr(event.fn, "__name__", ""), event)
        self.boxes = [component.elem_id for component in self.events["show"].inputs]
        self.usual = {"caption": "a red circle", "weights": "none" if name in TEXTS else "tiny"}

    def press(self, **boxes: Any) -> list[tuple[str, Any, Any]]:
        """All answers to a press of Score: HTML, the update of the signature, that of the way out."""
        values = self.usual | boxes
        return list(self.events["show"].fn(*(values.get(name) for name in self.boxes)))

    def answer(self, **boxes: Any) -> str:
        """The last answer as text with its tags."""
        return html.unescape(self.press(**boxes)[-1][0])

    def problem(self, **boxes: Any) -> list[str]:
        """The lines of the problem that a press is answered with."""
        answer = self.answer(**boxes)
        assert '<div class="problem"' in answer, answer
        return re.findall(r"<p style=[^>]*>(.*?)</p>", answer)

    def data(self, **boxes: Any) -> dict[str, Any]:
        """The result that programs get."""
        values = self.usual | boxes
        result: dict[str, Any] = self.events["answer"].fn(*(values.get(name) for name in self.boxes))
        return result


@cache
def visitor(name: str, weights: str | None = None, media: str | None = None) -> Visitor:
    return Visitor(name, weights if name in TEXTS else weights or "tiny", media=media)


@pytest.fixture(autouse=True, scope="module")
def uploads(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADIO_TEMP_DIR", str(tmp_path_factory.mktemp("uploads")))
        yield


def upload(content: bytes | Path, name: str = "a.png") -> dict[str, Any]:
    """A file among the uploads, as an event gets it."""
    if isinstance(content, Path):
        path = content
    else:
        path = Path(get_upload_folder()) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return {"path": save_file_to_cache(path, get_upload_folder()), "meta": {"_type": "gradio.FileData"}}


# ---- notes on an upload


def rotated(image: Image.Image, orientation: int) -> bytes:
    """A file that says that its image is to be turned."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(image, "PNG", exif=exif)


def with_alpha(level: int, size: tuple[int, int] = (96, 64)) -> Image.Image:
    """A photograph of which one pixel in the corner has a level of its own."""
    image = photograph(*size).convert("RGBA")
    image.putpixel((size[0] - 1, size[1] - 1), (0, 0, 0, level))
    return image


NOTES = {"to be turned (EXIF)", "partly transparent", "16 bits a channel", "centre only"}


@pytest.mark.parametrize(
    ("content", "notes", "share"),
    [
        (rotated(with_alpha(255, (100, 60)), 1), set(), []),
        (rotated(with_alpha(254, (59, 100)), 2), NOTES - {"16 bits a channel"}, ["59%"]),
        (rotated(photograph(100, 25), 8), {"to be turned (EXIF)", "centre only"}, ["25%"]),
        (deep(), {"16 bits a channel"}, []),
    ],
    ids=["usual", "mirrored, tall and clear", "turned and wide", "deep"],
)
def test_what_a_metric_sees_otherwise_than_a_visitor_has_a_note(
    content: bytes, notes: set[str], share: list[str]
) -> None:
    answer = visitor("pacs").answer(image=upload(content))
    assert 'class="score"' in answer
    assert {note for note in NOTES if note in answer} == notes and "longer than" not in answer
    assert re.findall(r"centre only, (\d+%) of it", answer) == share


def test_a_long_video_is_seen_by_some_frames_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LIMITS, "page_frames_encoded", 4)
    page = visitor("pacs", media="video")
    for count in (4, 5):
        clip = upload(written(drawn(count), **LOSSLESS), f"{count}.mkv")
        answer = page.press(video=clip, about="video")[-1]
        assert ("sees 4 frames" in answer[0]) is (count == 5)
        assert ("|max_frames:4|" in answer[1]["value"]) is (count == 5)


def test_warnings_of_a_run_are_notes_each_once_and_those_of_libraries_are_not() -> None:
    page = visitor("rougel")
    answer = page.answer(caption="a dog</s>", references="a dog</s>\na cat")
    (note,) = [text for text in re.findall(r'<p class="note">(.*?)</p>', answer) if "marks" in text]
    assert note.startswith("1 of 1 captions hold")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "marks of a chat template" not in page.answer(references="a dog")


def test_a_text_that_is_cut_off_has_a_note() -> None:
    answer = visitor("refpacs").answer(image=upload(ITEM.image), caption="dog " * 90, references="a dog")
    assert "The caption or a reference is longer than the text encoder reads" in answer


# ---- problems by box and line


def test_problems_name_boxes_and_count_references_from_1() -> None:
    page = visitor("refpacs")
    lines = page.problem(references="a dog\n\n- a \ud800 cat\nx \ud801")
    assert lines[0].startswith("3 problems")
    beginnings = sorted(line.removeprefix("- ")[:11] for line in lines[1:])
    assert beginnings == ["Reference 2", "Reference 3", "The image i"]
    assert page.problem(image=upload(ITEM.image), caption=" ", references="a dog")[0].startswith(
        "The caption is empty"
    )
    (line,) = page.problem(image=upload(ITEM.image), references="\n - \n")
    assert line.startswith("The list of references is empty")
    (line,) = page.problem(image=upload(ITEM.image), references="a dog \udfff")
    assert line.startswith("Reference 1 is not valid Unicode")
    (line,) = visitor("eco").problem(image=upload(ITEM.image), caption="a dog\na \ud800 cat")
    assert line.startswith("Line 2 is not valid Unicode")
    (line,) = visitor("eco").problem(image=upload(ITEM.image), caption=" \n")
    assert line.startswith("The list of captions is empty")
    (line,) = visitor("pacs", media="video").problem(about="video")
    assert line.startswith("The video is missing")


def test_no_text_and_no_other_weights_than_are_offered_are_taken() -> None:
    page = visitor("rougel")
    most = 20_000
    reference = "x" * 11
    assert 'class="score"' in page.answer(caption="a " * ((most - 11) // 2) + "a", references=reference)
    (line,) = page.problem(caption="a " * ((most - 11) // 2) + "aa", references=reference)
    assert line == "The texts have 20,001 characters, this page takes 20,000"
    (line,) = page.problem(references="a dog", weights="tiny")
    assert line.startswith("Weights='tiny': this page offers 'none'")
    offered = visitor("pacs").problem(image=upload(ITEM.image), weights="/etc")[0]
    assert offered.startswith("Weights='/etc'") and offered.count(" and ") == 1 and "'tiny'" in offered


@pytest.mark.parametrize("name", ["caption", "references", "weights"])
def test_a_box_that_holds_no_text_is_refused_by_its_name(name: str) -> None:
    page = visitor("refpacs")
    boxes = {"image": upload(ITEM.image), "references": "a dog"} | {name: 5}
    (line,) = page.problem(**boxes)
    assert line.startswith(f"{name.capitalize()}: expected a text, found ") and "5" in line
    (line,) = page.problem(**boxes, about="boxes")
    assert line == "About: this page takes 'image' and 'video'"


@pytest.mark.parametrize("path", ["/etc/passwd", "nothing", None, 5])
def test_a_file_that_was_not_uploaded_is_refused_as_one_that_is_not_there(path: object) -> None:
    value = {"path": path, "url": "x"}
    (line,) = visitor("pacs").problem(image=value)
    assert line.startswith("The image is not among the uploads of this page")
    assert visitor("pacs").problem(image={"path": None})[0].startswith("The image is missing")


def test_lines_lose_the_marks_of_a_list_and_nothing_else() -> None:
    lines = [
        "- a dog",
        "2. two cats",
        "10) x y",
        "• b c",
        "* d",
        "1.5 m of snow",
        "3 dogs",
        "1234. e",
        "-f g",
    ]
    texts = ["a dog", "two cats", "x y", "b c", "d", "1.5 m of snow", "3 dogs", "1234. e", "-f g"]
    caption = "3 dogs in 1.5 m of snow"
    page = visitor("rougel")
    found = page.data(caption=caption, references="\r\n".join(["-", *lines, "7."]))
    expected = capeval_core.load("rougel").score([caption], references=[texts])
    assert found["scores"] == expected.scores and found["signature"] == expected.signature
    for text in texts:  # each is the only reference once, so that none can hide behind another
        mark = lines[texts.index(text)]
        scores = capeval_core.load("rougel").score([caption], references=[[text]]).scores
        assert page.data(caption=caption, references=mark)["scores"] == scores


# ---- the scale and its means


def rows(answer: str, kind: str) -> list[tuple[str, str, str, str]]:
    """Label, begin, end and value of each row of a kind."""
    return re.findall(
        rf'<div class="row {kind}s"><span class="label">(.*?)</span><span class="lane" '
        r'style="--from:(.*?);--at:(.*?)"><i class="\w+"></i></span><span class="value">(.*?)</span>',
        answer,
    )


def test_a_score_is_a_bar_from_0_and_means_stand_best_first() -> None:
    answer = visitor("rougel").answer(caption="a dog runs", references="a dog\nthe dog runs")
    score = capeval_core.load("rougel").score(["a dog runs"], references=[["a dog", "the dog runs"]]).mean
    assert rows(answer, "bar") == [("this caption", "0.00%", f"{100 * score:.2f}%", f"{score:.3f}")]
    means = {}
    for kind in ("good", "subtly_wrong", "unrelated"):
        captions = [getattr(item, kind) for item in demo_set()]
        references = [list(item.references) for item in demo_set()]
        means[kind] = capeval_core.load("rougel").score(captions, references=references).mean
    expected = [
        (kind.replace("_", " "), f"{100 * mean:.2f}%", f"{100 * mean:.2f}%", f"{mean:.3f}")
        for kind, mean in means.items()
    ]
    assert rows(answer, "dot") == expected
    assert f"Means over the {len(demo_set())} drawn examples: " in answer
    assert re.findall(r'<span style="--at:(.*?)">(.*?)</span>', answer) == [
        (f"{20 * tick}.00%", ["0", "0.2", "0.4", "0.6", "0.8", "1"][tick]) for tick in range(6)
    ]
    (spoken,) = re.findall(r'aria-label="(.*?)"', answer)
    typical = ", ".join(f"{label} {value}" for label, _, _, value in expected)
    for part in (f"ROUGE-L of this caption: {score:.3f}", "from 0 to 1", "higher is better", typical):
        assert part in spoken


def test_of_a_metric_of_errors_the_lowest_mean_is_the_best() -> None:
    answer = visitor("chair").answer(caption="a dog on a bed", references="dog")
    values = [float(value) for _, _, _, value in rows(answer, "dot")]
    assert values == sorted(values) and "lower is better" in answer


def test_means_of_drawings_stand_beside_drawings_alone() -> None:
    page = visitor("pacs")
    answer = page.answer(image=upload(ITEM.image))
    assert f"{len(demo_set())} drawn examples, with these weights: " in answer
    assert [label for label, *_ in rows(answer, "dot")] == ["good", "subtly wrong", "unrelated"]
    answer = page.answer(image=upload(encoded(Image.open(ITEM.image).convert("RGB").rotate(3))))
    assert 'class="score"' in answer and "drawn examples" not in answer and not rows(answer, "dot")


def test_a_page_begins_with_published_means_of_its_own_weights_alone() -> None:
    published = Visitor("pacs")
    texts = [component.value for component in published.blocks.blocks.values() if _is_html(component)]
    (shown,) = [text for text in texts if 'class="result"' in text]
    about: Any = type(capeval_core.load("pacs", weights="tiny")).published
    labels = [label for label, *_ in rows(html.unescape(shown), "dot")]
    assert labels == sorted(about["means"], key=about["means"].get, reverse=True)
    assert about["dataset"] in html.unescape(shown) and not rows(shown, "bar")
    texts = [component.value for component in visitor("pacs").blocks.blocks.values() if _is_html(component)]
    (shown,) = [text for text in texts if 'class="result"' in text]
    assert not rows(shown, "dot") and about["dataset"] not in html.unescape(shown)


def _is_html(component: Any) -> bool:
    return type(component).__name__ == "HTML"


# ---- what a press does


def test_opening_weights_is_announced_once_and_only_for_input_that_is_right() -> None:
    page = Visitor("rougel")
    (refused,) = page.press(caption="", references="a dog")
    assert 'class="problem"' in refused[0] and not refused[1]["visible"] and not refused[2]["visible"]
    first, score = page.press(references="a red dog")
    assert "Opening the weights <b>none</b>" in first[0] and not first[1]["visible"]
    assert 'class="score"' in score[0] and not score[2]["visible"]
    assert score[1]["visible"] and score[1]["value"].startswith("capeval:rougel|")
    (again,) = page.press(references="a red dog")
    assert again == score


def test_the_way_out_of_weights_that_cannot_be_opened_is_tiny(tmp_path: Path) -> None:
    page = Visitor("pacs", str(tmp_path))
    opening, failed = page.press(image=upload(ITEM.image), weights=str(tmp_path))
    assert str(tmp_path) in opening[0] and 'class="problem"' in failed[0]
    assert failed[2]["visible"] and not failed[1]["visible"]
    (wrong,) = page.press(image=upload(ITEM.image), weights="tiny", caption="")
    assert not wrong[2]["visible"]  # other weights do not help


# ---- examples


@pytest.mark.parametrize("kind", ["good", "subtly wrong", "unrelated"])
def test_an_example_fills_all_boxes(kind: str) -> None:
    fill = visitor("refpacs").events["fill"].fn
    image, video, caption, references, index = fill(7, "image", kind)
    item = demo_set()[7]
    assert Path(image).read_bytes() == item.image.read_bytes() and not isinstance(video, str)
    assert caption == getattr(item, kind.replace(" ", "_"))
    assert (references, index) == ("\n".join(item.references), 7)
    clip = demo_clips()[2]
    image, video, caption, references, index = fill(2, "video", kind)
    assert Path(video).read_bytes() == clip.image.read_bytes() and not isinstance(image, str)
    assert (caption, index) == (getattr(clip, kind.replace(" ", "_")), 2)
    assert fill(None, "image", kind)[2:] == [
        getattr(ITEM, kind.replace(" ", "_")), "\n".join(ITEM.references), 0
    ]  # fmt: skip


def test_an_example_of_a_pool_shows_all_of_its_captions() -> None:
    _, captions, index = visitor("eco").events["fill"].fn(1, "image", "good")[-3:]
    item = demo_set()[1]
    assert captions.split("\n") == [*item.references, item.good, item.subtly_wrong, item.unrelated]
    assert index == 1


def test_each_button_is_its_example() -> None:
    page = visitor("rougel")
    partials = [event.fn for event in page.blocks.fns.values() if hasattr(event.fn, "args")]
    assert [one.args[0] for one in partials] == list(range(len(demo_set())))
    for number, one in enumerate(partials):
        assert one("texts", "good")[0] == demo_set()[number].good


def test_turning_to_videos_shows_their_box_and_their_examples() -> None:
    turn = visitor("refpacs").events["turn"].fn
    for about, visible in (("image", [True, False]), ("video", [False, True])):
        *boxes, heading, caption, first, second, empty, signature, way_out = turn(about)
        assert [box["visible"] for box in boxes] == visible
        assert [first["visible"], second["visible"]] == visible
        assert caption["placeholder"] == f"What the {about} shows"
        assert "RefPAC-S" in heading and f" {about}" in empty
        assert not signature["visible"] and not way_out["visible"]


@pytest.mark.parametrize(("media", "first"), [(None, "image"), ("video", "video")])
def test_the_medium_to_begin_with_is_the_first_input(media: str | None, first: str) -> None:
    page = visitor("refpacs", media=media)
    other = "video" if first == "image" else "image"
    assert page.boxes == [first, "caption", "references", "weights", "about", other]
