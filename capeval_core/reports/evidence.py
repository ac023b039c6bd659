"""Explanations of scores, as `result.explain(i)` returns them: plain values, and `plot()` to draw them."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from io import BytesIO
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from capeval_core.inputs.boxes import BoxFeatures
from capeval_core.inputs.images import InputImage, Visual, central_square
from capeval_core.inputs.videos import EVERY, Frames, Sampling
from capeval_core.phrases.spans import wrong_words
from capeval_core.regions.features import THRESHOLD
from capeval_core.regions.regions import Regions
from capeval_core.reports import figures

Note = dict[str, Any]
"""Plain values about a phrase, a region, a word or a reference."""
_MIN_WIDTH = 320
_OVERLAY = 1000  # pixels of an outlined image within a drawing
_MAX_FRAMES = 6


class DrawnExplanation(dict[str, Any]):
    """The explanation of a score: texts and numbers, and `plot()`, which draws them."""

    @abstractmethod
    def plot(self, width: int = ...) -> Image.Image:
        """The explanation as an image, `width` pixels wide. Raises ValueError where there is no score, or the
        width is below 320 pixels; ImageError where the image or video can no longer be read; and
        ModuleNotFoundError without matplotlib."""

    def check_drawable(self, width: int) -> None:
        """Raise ValueError where there is no score, or the width is below 320 pixels."""
        if width < _MIN_WIDTH:
            raise ValueError(f"width={width}: expected at least {_MIN_WIDTH} pixels")
        if self.get("error"):
            raise ValueError(f"there is no score to draw: {self['error']}")

    def _repr_png_(self) -> bytes | None:
        """The drawing for notebooks, or None where there is none, so that they show the values."""
        png = BytesIO()
        try:
            self.plot().save(png, "PNG")
        except (ValueError, ModuleNotFoundError):
            # No score, an image that is gone, no matplotlib: no traceback in a notebook for these.
            return None
        return png.getvalue()


# phrases and regions: HICE-S


class PhraseMatches(NamedTuple):
    """The phrases of a caption, matched with the regions of its image that the image tower sees."""

    row: Mapping[str, Any]  # of the metric: `phrase_cosines`, `phrase_maxima`, `region_maxima`, `truncated`
    phrases: Sequence[str]
    cosines: NDArray[np.floating[Any]]  # (phrases, visible regions)
    regions: Regions  # all of the image
    visible: Regions
    w: float  # by which cosines are scaled
    with_whole_image: bool  # whether the whole image is one more region

    def phrase_notes(self) -> list[Note]:
        """The region that fits each phrase best, and how well, by the row's own cosines: they add up."""
        notes = []
        for index, phrase in enumerate(self.phrases):
            best = self.row["phrase_maxima"][index]
            whole_image = self.row["phrase_cosines"][index]
            # Of equal cosines the region's: it says where, the whole image does not.
            if self.with_whole_image and (not len(self.visible) or whole_image > best):
                region = None
                best = whole_image
            else:
                region = int(self.cosines[index].argmax())
            notes.append({"phrase": phrase, "precision": self.w * max(best, 0.0), "region": region})
        return notes

    def region_notes(self) -> list[Note]:
        """The place of each visible region, the phrase that fits it best, and how well."""
        shares = (self.visible.areas / math.prod(self.visible.size)).tolist()
        boxes = self.visible.boxes.tolist()
        notes = []
        for index, best in enumerate(self.row["region_maxima"]):
            note = {"box": boxes[index], "area": shares[index], "recall": self.w * max(best, 0.0)}
            phrase = self.phrases[int(self.cosines[:, index].argmax())]
            notes.append(note | {"phrase": phrase})
        return notes

    def whole_image_note(self) -> Note | None:
        """The phrase that fits the whole image best, and how well; None where the image is not a region."""
        if not self.with_whole_image:
            return None
        pairs = zip(self.row["phrase_cosines"], self.phrases, strict=True)
        best, phrase = max(pairs, key=itemgetter(0))
        return {"recall": self.w * max(best, 0.0), "phrase": phrase}


class RegionExplanation(DrawnExplanation):
    """The explanation of a score, by `result.explain(i)`: numbers and texts, and `plot()`, which draws them.

    Keys: `caption`, `image`; the score under its name (`hice_s`, `refhice_s`) and its terms (`gitc`, `litc`,
    `precision`, `recall`; `gttc`, `lttc`); `threshold`; `phrases` and `regions`, see below; `whole`, recall
    and phrase of the whole image where it counts as a region, else None; `square`, x0, y0, x1, y1 of the part
    that the image tower sees, and `outside`, the number of regions outside of it; `truncated`, how many token
    ids and sentences were; with references `compared`; and `error`, the reason where there is no score.

    A phrase has `precision`, w max(cos, 0) with the best `region` (None: the whole image); it is a `mistake`
    where that is below the threshold, but not `judged` where it may be about a region outside of the square.
    A region has its `box` in pixels, its `area` as a share of the image, `recall`, w max(cos, 0) with the
    best `phrase`, and is `unmentioned` where that is below the threshold. A `reference` that is compared has
    `gttc` (eq. 3), `lttc` (eq. 9), and is `chosen` where the score uses either.

    The score clamps at 0 after the mean, these notes before it: where cosines are negative, the mean of the
    phrases' precisions is more than `precision`.
    """

    def __init__(self, content: Mapping[str, Any], image: InputImage, masks: Regions | None) -> None:
        super().__init__(content)
        self._image = image
        self._masks = masks

    @classmethod
    def of_matches(
        cls, content: Mapping[str, Any], matches: PhraseMatches, image: InputImage
    ) -> RegionExplanation:
        """The explanation of `content`, texts and terms of the score with a threshold, by its matches."""
        y, x, side = central_square(*matches.regions.size)
        notes = {
            "phrases": matches.phrase_notes(),
            "regions": matches.region_notes(),
            "whole": matches.whole_image_note(),
            "outside": len(matches.regions) - len(matches.visible),
            "square": [x, y, x + side, y + side],
            "truncated": matches.row["truncated"],
        }
        explanation = cls({**content, **notes}, image, matches.visible)
        return explanation.with_threshold(content["threshold"])

    @classmethod
    def of_failure(cls, content: Mapping[str, Any], error: str, image: InputImage) -> RegionExplanation:
        """The explanation of a row without a score."""
        return cls({**content, "phrases": [], "regions": [], "whole": None, "error": error}, image, None)

    def with_threshold(self, threshold: float) -> RegionExplanation:
        """The same explanation with another threshold for mistakes and unmentioned regions."""
        outside = bool(self["outside"])  # a phrase that fits no region may be about one of those
        phrases = []
        for note in self["phrases"]:
            below = note["precision"] < threshold
            phrases.append({**note, "mistake": below and not outside, "judged": not (below and outside)})
        regions = []
        for note in self["regions"]:
            regions.append({**note, "unmentioned": note["recall"] < threshold})
        changed = {"threshold": threshold, "phrases": phrases, "regions": regions}
        return RegionExplanation({**self, **changed}, self._image, self._masks)

    def plot(self, width: int = 1280, *, threshold: float | None = None) -> Image.Image:
        """The explanation as one image, `width` pixels wide: the image with its regions outlined and what the
        image tower does not see dimmed, the caption with its mistakes marked, and all numbers. `threshold`
        replaces that of the explanation."""
        self.check_drawable(width)
        explanation = self if threshold is None else self.with_threshold(threshold)
        lines = figures.card_lines(explanation, marked(explanation))
        return figures.draw_picture(lines, explanation.overlay(_OVERLAY), width)

    def overlay(self, width: int = 1280) -> Image.Image:
        """The image with its regions outlined, narrower where it would be more than twice as high as wide."""
        self.check_drawable(width)
        image = self._image.load()
        regions = self._masks or Regions.of([], size=(image.height, image.width))
        unmentioned = [note["unmentioned"] for note in self["regions"]]
        return figures.outlined(image, regions, unmentioned, width, self["square"])


def marked(evidence: Mapping[str, Any]) -> list[tuple[str, bool]]:
    """The caption in pieces, and whether each is wrong: a word of a mistake that no right phrase contains."""
    caption = evidence["caption"]
    wrong_phrases: list[str] = []
    right_phrases: list[str] = []
    for note in evidence["phrases"]:
        if note["judged"]:
            phrases = wrong_phrases if note["mistake"] else right_phrases
            phrases.append(note["phrase"])
    pieces = []
    end = 0
    for span in wrong_words(caption, wrong_phrases, right_phrases):
        pieces.append((caption[end : span.start], False))
        pieces.append((caption[span.start : span.end], True))
        end = span.end
    return [*pieces, (caption[end:], False)]


def unmentioned(evidence: Mapping[str, Any]) -> list[int]:
    """The regions that no phrase mentions."""
    return [index for index, note in enumerate(evidence["regions"]) if note["unmentioned"]]


# boxes: UMIC


class BoxExplanation(DrawnExplanation):
    """The explanation of a score, by `result.explain(i)`: numbers and texts, and `plot()`, which draws them.

    Keys: `caption`, `image`; the parts of the score; `boxes`, a list of `{"box": [x0, y0, x1, y1],
    "confidence": ...}` in pixels, best first (confidence None where the features came without); and `error`,
    the reason where there is no score.
    """

    def __init__(self, content: Mapping[str, Any], visual: Visual[Any], title: str, score: float) -> None:
        super().__init__(content)
        self._visual = visual
        self._title = title
        self._score = score

    def plot(self, width: int = 880) -> Image.Image:
        """Score, caption and the image with the boxes that count; ValueError without an image."""
        self.check_drawable(width)
        caption = [(self["caption"], False)]
        lines = figures.score_lines(self._title, self._score, f"logit {self['logit']:.3f}", caption)
        return figures.draw_picture(lines, self.overlay(_OVERLAY), width)

    def overlay(self, width: int = 1280) -> Image.Image:
        """The image with its boxes outlined, but for those of which the detector is not sure."""
        self.check_drawable(width)
        if self._visual.medium != "image":
            raise ValueError(f"there are only box features of {self['image']}, and no image to draw")
        image = self._visual.load()
        scale = min(1.0, 2 * width / image.width)  # no finer than they are drawn
        size = (round(image.width * scale), max(1, round(image.height * scale)))
        image = image.convert("RGB").resize(size, Image.Resampling.LANCZOS)
        masks = []
        # As masks, since those of HICE-S are what is outlined: boxes need no second way of drawing.
        for index in confident(self["boxes"]):
            mask = Image.new("1", image.size)
            x0, y0, x1, y1 = self["boxes"][index]["box"]
            ImageDraw.Draw(mask).rectangle((x0 * scale, y0 * scale, x1 * scale, y1 * scale), fill=1)
            masks.append(np.asarray(mask))
        regions = Regions.of(masks, size=(image.height, image.width))
        return figures.outlined(image, regions, [False] * len(regions), width, (0, 0, *image.size))


def box_notes(boxes: BoxFeatures) -> list[Note]:
    """The corners and the confidence of the boxes of an image."""
    confidences = [None] * len(boxes) if boxes.scores is None else boxes.scores.tolist()
    notes: list[Note] = []
    for box, confidence in zip(boxes.boxes.tolist(), confidences, strict=True):
        notes.append({"box": box, "confidence": confidence})
    return notes


def confident(notes: Sequence[Mapping[str, Any]]) -> list[int]:
    """The boxes to outline: not those that only make up the least number, below the detector's threshold.

    >>> notes = [{"confidence": 0.9}, {"confidence": THRESHOLD}]
    >>> confident(notes), confident([{"confidence": None}])
    ([0], [0])
    """
    boxes = []
    for index, note in enumerate(notes):
        # Features without confidences come from files whose authors have chosen the boxes.
        if note["confidence"] is None or note["confidence"] > THRESHOLD:
            boxes.append(index)
    return boxes


# words: ViLBERTScore


class MatchExplanation(DrawnExplanation):
    """The explanation of a score, by `result.explain(i)`: numbers and texts, and `plot()`, which draws them.

    Keys: `caption`, `image`; the parts of the score; `matches`, one per reference, of words without regard to
    their weights: `reference`, `precision`, `recall` and `f`, `words` and `reference_words` with all their
    `cosines`, and `caption_matches` and `reference_matches`, the `match` and `cosine` of each `word`; `best`,
    the position of the reference with the highest F; and `error`, the reason where there is no score.
    """

    def plot(self, width: int = 1440, *, reference: int | None = None) -> Image.Image:
        """The cosines of the caption's words with those of a reference (by position; None: the best one) as a
        heat map. A frame marks the word that each caption word met, a dot the one of each reference word.

        Raises:
            ValueError: there is no score, or no word on one side. IndexError: there is no such reference.
        """
        self.check_drawable(width)
        notes = self["matches"]
        if reference is None:
            reference = self["best"]
        if not 0 <= reference < len(notes):
            raise IndexError(f"reference={reference}: there are {len(notes)} references")
        note = notes[reference]
        if not note["words"] or not note["reference_words"]:
            raise ValueError("there are no words to draw: the caption or the reference is empty")
        title = f"ViLBERTScore {self['f']:.3f}"
        if len(notes) > 1:
            title += ", the mean of all references"
        return figures.draw_matches(self["caption"], title, note, width)


def match_note(words: Sequence[str], reference_words: Sequence[str], cosines: NDArray[Any]) -> Note:
    """The words of a caption and of a reference, what each met in the other text, and all their cosines."""
    return {
        "caption_matches": word_matches(words, reference_words, cosines.tolist()),
        "reference_matches": word_matches(reference_words, words, cosines.T.tolist()),
        "words": words,
        "reference_words": reference_words,
        "cosines": cosines.tolist(),
    }


def word_matches(
    words: Sequence[str], met_words: Sequence[str], cosines: Sequence[Sequence[float]]
) -> list[Note]:
    """The word of another text that each word met, by their cosines (words, met_words); first of equals."""
    # An empty text has no word to be met, and is a valid text where `empty="score"`.
    if not met_words:
        return [{"word": word, "match": None, "cosine": None} for word in words]
    notes = []
    for word, row in zip(words, cosines, strict=True):
        best = max(range(len(row)), key=row.__getitem__)
        notes.append({"word": word, "match": met_words[best], "cosine": row[best]})
    return notes


# words and frames: PAC-S of videos


class VideoExplanation(DrawnExplanation):
    """The explanation of a score, by `result.explain(i)`: plain values, and `plot()`, which draws them.

    Keys: `caption`; `image`, the name of the video; the parts of the score; `frame_cosines`, the cosine of
    the caption as a whole with each frame that was compared; `words`, of each token id its `word` and
    `weight`, and the `frame` that it fits best with the `cosine`; with references, `references`, the score
    and components of each; `incomplete`, why decoding stopped early, None where it did not; and `error`, the
    reason where there is no score.
    """

    def __init__(
        self, content: Mapping[str, Any], video: Visual[Any] | None = None, sampling: Sampling = EVERY
    ) -> None:
        super().__init__(content)
        self._video = video
        self._sampling = sampling

    def plot(self, width: int = 1440) -> Image.Image:
        """The caption's cosine with each frame as a curve, and the best frames of its words, read again."""
        self.check_drawable(width)
        # Marks of a text fit some frame best, too, which says nothing to readers.
        best = best_frames([match for match in self["words"] if is_word(match["word"])])
        images = self.frames(best, width)
        labelled = {}
        for frame, matches in best.items():
            words = [f"{match['word']} {match['cosine']:.2f}" for match in matches]
            labelled[frame] = (images.get(frame), ", ".join(words))
        return figures.draw_frames(self["caption"], self["frame_cosines"], labelled, width)

    def frames(self, positions: Collection[int], width: int) -> dict[int, Image.Image]:
        """Some of the frames that were compared, by position, read again, at most `width` pixels wide."""
        if self._video is None or not positions:
            return {}
        video = self._video.load()
        repeats = self._positions_by_frame(video, positions)
        images: dict[int, Image.Image] = {}
        for position, (number, frame) in enumerate(video.read(self._video.where, self._sampling)):
            shown_at = repeats.get(number, [])
            if not repeats and position in positions:
                shown_at = [position]
            if shown_at:
                image = frame.convert("RGB")
                image.thumbnail((width, width))  # at once: frames of a film in full size fill the memory
                images |= dict.fromkeys(shown_at, image)
            if len(images) == len(positions):  # decoding to the end may take minutes
                break
        return images

    def _positions_by_frame(self, video: Frames, positions: Collection[int]) -> dict[int, list[int]]:
        """The positions of each frame's number; empty where no video can be short enough to repeat frames."""
        if self._sampling.max_frames is None or self._video is None:
            return {}
        reading = video.read(self._video.where, self._sampling)
        deque(reading, maxlen=0)  # which frames repeat is known at the end of the video
        repeats: dict[int, list[int]] = {}
        for position in positions:
            repeats.setdefault(reading.indices[position], []).append(position)
        return repeats


def word_notes(pieces: Sequence[str], weights: Sequence[float], cosines: NDArray[Any]) -> list[Note]:
    """The weight of each token, and the frame that it fits best, by their cosines (tokens, frames)."""
    frames = cosines.argmax(axis=1).tolist()
    maxima = cosines.max(axis=1).tolist()
    notes: list[Note] = []
    for word, weight, frame, cosine in zip(pieces, weights, frames, maxima, strict=True):
        notes.append({"word": word, "weight": weight, "frame": frame, "cosine": cosine})
    return notes


def best_frames(words: Sequence[Mapping[str, Any]]) -> dict[int, list[Mapping[str, Any]]]:
    """The words that each frame is the best of, by frame: of the frames with most words, in time's order."""
    by_frame: dict[int, list[Mapping[str, Any]]] = {}
    for match in words:
        by_frame.setdefault(match["frame"], []).append(match)
    by_count = sorted(by_frame, key=lambda frame: (-len(by_frame[frame]), frame))
    best: dict[int, list[Mapping[str, Any]]] = {}
    for frame in sorted(by_count[:_MAX_FRAMES]):
        best[frame] = by_frame[frame]
    return best


def is_word(text: str) -> bool:
    """Tell whether a token is a word or a part of one for readers, neither punctuation nor a marker."""
    return any(map(str.isalnum, text)) and not text.startswith(("<|", "["))
