"""Requests in JSON: what a client sends becomes checked samples, and results become a reply.

Nothing here opens a path or an address: an image is its own bytes in base64, or the SHA-256 of bytes that
were sent before. Protocols of others (NeMo Gym, OpenRLHF) are read into the same request.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import json
import math
import re
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from PIL import Image

from capeval_core.errors import InputError, Problem, Problems, at, naming
from capeval_core.inputs.images import FORMATS, Visual, image_error
from capeval_core.inputs.samples import Samples, argument_of
from capeval_core.integrations.rewards import without_reasoning
from capeval_core.integrations.serving.flags import flags_of
from capeval_core.limits import LIMITS
from capeval_core.metric import CaptionMetric
from capeval_core.result import Result, plain

SHA256 = "sha256:"
_ENTRY_BYTES = (
    1_000  # that an image takes beside its bytes: else millions of a few bytes would fill the memory
)
_ENDS = re.compile(r"(?:\s*(?:<\|[^|<>]*\|>|</s>|<eos>|<end_of_turn>|<pad>))+\s*$")
"""Special tokens at the end of what a policy wrote, which OpenRLHF leaves in its texts."""


class RefusedError(Exception):
    """A request that is answered with an error.

    status: of HTTP. content: what the reply has with `error`, its message.
    """

    def __init__(self, status: int, message: str, **content: object) -> None:
        super().__init__(message)
        self.status = status
        self.content = {"error": message, **content}


def refusal_of(error: Exception) -> RefusedError:
    """The answer to a request whose input a metric refuses: each problem with its place."""
    problems = []
    for problem in getattr(error, "problems", []):  # a plain ValueError has none
        problems.append({"where": problem.where, "problem": problem.text, "fix": problem.fix})
    return RefusedError(422, str(error), problems=problems)


class ImageStore:
    """Images by the digest of their bytes, so that a client sends each one once; the oldest ones go first."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._images: OrderedDict[str, tuple[Visual[Any], int]] = OrderedDict()
        self._lock = threading.Lock()  # several threads read requests

    def add(self, content: bytes) -> str:
        """The digest of an image's bytes, which are kept. Raises ImageError for what may not be opened."""
        digest = SHA256 + hashlib.sha256(content).hexdigest()
        with self._lock:
            if digest in self._images:
                self._images.move_to_end(digest)
                return digest
        # Not under the lock: other requests need not wait for it.
        check_size(content)
        visual: Visual[Any] = Visual.of(content)
        with self._lock:
            if digest not in self._images:  # else another thread was quicker
                size = len(content) + _ENTRY_BYTES
                self._images[digest] = (visual, size)
                self._bytes += size
            # One stays, however large: its own request is about to look it up.
            while self._bytes > self._most_bytes and len(self._images) > 1:
                _, (_, size) = self._images.popitem(last=False)
                self._bytes -= size
        return digest

    def get(self, digest: str) -> Visual[Any] | None:
        """The image of a digest, None where it was never sent or has gone."""
        with self._lock:
            if digest not in self._images:
                return None
            self._images.move_to_end(digest)
            return self._images[digest][0]


def check_size(content: bytes) -> None:
    """Refuse an image of more pixels than a server decodes, by its header."""
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as header:
            width, height = header.size
    # Pillow's own limit lies higher than the server's, and ends even the reading of the header.
    except Image.DecompressionBombError:
        raise image_error("has more pixels than this server decodes", "scale it down") from None
    except Exception:  # what cannot be opened is refused where it is decoded, with the reason
        return
    if width * height > LIMITS.page_image_pixels:
        problem = f"has {width * height:,} pixels, of which this server decodes {LIMITS.page_image_pixels:,}"
        raise image_error(problem, "scale it down")


@dataclass(frozen=True)
class ScoreRequest:
    """Captions to score with some metrics.

    argument: `images` or `videos`, None without any. visuals: per caption an image, or the frames of a video;
    None for metrics on texts alone. prompts: what a policy was asked, for the marks alone.
    """

    metrics: Sequence[str]
    captions: list[Any]
    argument: str | None
    visuals: list[Any] | None
    digests: list[Any] | None
    references: list[Any] | None
    prompts: list[str] | None

    def samples(self, metric: CaptionMetric) -> Samples:
        """The samples of one metric. Raises RefusedError with every problem."""
        # What one served metric needs, another one has no argument for.
        needs_visuals = argument_of(metric.media) is not None
        if needs_visuals and self.argument != argument_of(metric.media):
            raise RefusedError(422, f"{argument_of(metric.media)} are missing, which {metric.name} needs")
        try:
            return metric.check(
                self.captions,
                self.visuals if needs_visuals else None,
                self.references if metric.needs_references else None,
            )
        except (ValueError, TypeError) as error:
            raise refusal_of(error) from None


def _refuse_constant(name: str) -> None:
    """NaN and Infinity, which are not JSON."""
    raise ValueError(name)


def read_json(body: bytes) -> dict[str, Any]:
    """The object of a request's body. Raises RefusedError."""
    # A value takes some twenty times as much memory as its text; base64 has none of these characters.
    # They are counted only in a body that is long enough to have so many.
    if len(body) > LIMITS.served_values and sum(map(body.count, (b",", b"[", b"{"))) > LIMITS.served_values:
        most = f"this server reads {LIMITS.served_values:,}"
        raise RefusedError(413, f"the body has too many values; {most}: send several requests")
    try:
        content = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):  # brackets in brackets, thousands deep
        raise RefusedError(400, "the body is not JSON") from None
    if not isinstance(content, dict):
        raise RefusedError(400, "the body is not a JSON object")
    return content


def read_request(content: Mapping[str, Any], served: Sequence[str], images: ImageStore) -> ScoreRequest:
    """The request of `POST /score`.

        {"captions": ["...", ...],
         "images": [{"bytes": "<base64>"}, {"digest": "sha256:..."}, ...],   or "videos": lists of such frames
         "references": [["...", ...], ...], "prompts": ["...", ...], "metrics": ["pacs"]}

    metrics: by default all that are served. Raises RefusedError.
    """
    # A key with a slip in it, such as `image`, would be left out without a word.
    unknown = sorted(content.keys() - {"captions", "images", "videos", "references", "prompts", "metrics"})
    if unknown:
        raise RefusedError(422, f"unknown keys: {', '.join(map(repr, unknown))[:200]}")
    captions = content.get("captions")
    if not isinstance(captions, list) or not captions:
        raise RefusedError(422, "captions: expected a list of texts, with at least one")
    if len(captions) > LIMITS.served_captions:
        most = f"this server takes {LIMITS.served_captions:,} at once"
        raise RefusedError(413, f"captions: has {len(captions):,} texts; {most}: send several requests")
    metrics = content.get("metrics") or list(served)
    if not isinstance(metrics, list) or not all(name in served for name in metrics):
        raise RefusedError(422, f"metrics: expected some of {', '.join(served)}, which are served here")
    prompts = content.get("prompts")
    if prompts is not None and (not _are_texts(prompts) or len(prompts) != len(captions)):
        raise RefusedError(422, "prompts: expected a text for each caption")
    arguments = [name for name in ("images", "videos") if content.get(name) is not None]
    if len(arguments) > 1:
        raise RefusedError(422, "images and videos: send one of them")
    # Before images are decoded from base64, which takes the most time of all this.
    _check_extent(captions, content.get("references"), content.get("videos"))
    visuals = digests = None
    if arguments:
        visuals, digests = _visuals(content[arguments[0]], arguments[0], images)
    argument = arguments[0] if arguments else None
    return ScoreRequest(metrics, captions, argument, visuals, digests, content.get("references"), prompts)


def checked_request(
    content: Mapping[str, Any], metrics: Mapping[str, CaptionMetric], images: ImageStore
) -> tuple[ScoreRequest, dict[str, Samples]]:
    """A request, and its samples by metric, checked before any model runs. Raises RefusedError."""
    with naming(notes=False):
        request = read_request(content, list(metrics), images)
        return request, {name: request.samples(metrics[name]) for name in request.metrics}


def _are_texts(values: object) -> TypeGuard[list[str]]:
    """True for a list of texts."""
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _check_extent(captions: list[Any], references: object, videos: object) -> None:
    """Refuse a request that would keep the models busy for long: others wait for them."""
    count = len(captions)
    texts = list(captions)
    # Values of wrong types are counted too, or passed over: the metric's own check says where they are.
    for lists in (references, videos):
        for row in lists if isinstance(lists, list) else []:
            count += len(row) if isinstance(row, list) else 1
    for row in references if isinstance(references, list) else []:
        texts += row if isinstance(row, list) else [row]
    if count > 4 * LIMITS.served_captions:
        most = f"this server takes {4 * LIMITS.served_captions:,} at once"
        raise RefusedError(413, f"{count:,} captions, references and frames; {most}: send several requests")
    longest = max((len(text) for text in texts if isinstance(text, str)), default=0)
    if longest > LIMITS.served_characters:
        raise RefusedError(413, f"a text has {longest:,} characters; {LIMITS.served_characters:,} are read")


def _visuals(values: object, argument: str, images: ImageStore) -> tuple[list[Any], list[Any]]:
    """The visuals of an argument, and their digests."""
    if not isinstance(values, list):
        raise RefusedError(422, f'{argument}: expected a list of {{"bytes": "<base64>"}}')
    reader = _ImageReader(images)
    digests: list[Any] = []
    for i, value in enumerate(values):
        if argument == "videos" and isinstance(value, list):
            if len(value) > LIMITS.page_frames_encoded:
                most = f"this server takes {LIMITS.page_frames_encoded} of a video: choose some"
                raise RefusedError(413, f"{at(argument, i)}: has {len(value):,} frames; {most}")
            digests.append([reader.read(frame, at(argument, (i, j))) for j, frame in enumerate(value)])
        else:
            digests.append(reader.read(value, at(argument, i)))
    reader.raise_if_any()  # all problems of a request at once, so that a client corrects them together
    visuals: list[Any] = []
    for digest in digests:
        if isinstance(digest, list):
            visuals.append([reader.visuals[frame].source.data for frame in digest])
        else:
            visuals.append(reader.visuals[digest])
    return visuals, digests


class _ImageReader:
    """Reads the images of one request, which stay at hand while it is answered."""

    def __init__(self, images: ImageStore) -> None:
        self.visuals: dict[str, Any] = {}
        self._images = images
        self._digests: dict[str | bytes, str] = {}  # of base64 that was read already
        self._problems = Problems()
        self._unknown: list[str] = []

    def read(self, value: object, where: str) -> str:
        """The digest of an image, "" where it cannot be used."""
        # Nothing else than these two: a `path` would open a file of the server.
        if not isinstance(value, Mapping) or len(value.keys() & {"bytes", "digest"}) != 1:
            self._wrong(where, "is not an image", 'send {"bytes": "<base64>"} or {"digest": "sha256:..."}')
            return ""
        digest = value.get("digest")
        if "bytes" in value:
            digest = self._digest_of(value["bytes"], where)
            if digest is None:
                return ""
        # First of this request: other ones may have pushed the image out of the store meanwhile.
        visual = None
        if isinstance(digest, str):
            visual = self.visuals.get(digest) or self._images.get(digest)
        if visual is None:
            # What was sent may be of any type and length, and a lone surrogate cannot be written as UTF-8.
            self._unknown.append(str(digest).encode("ascii", "backslashreplace").decode()[:100])
            return ""
        self.visuals[str(digest)] = visual
        return str(digest)

    def _digest_of(self, encoded: object, where: str) -> str | None:
        """The digest of bytes in base64, which are kept; None where they are not an image's."""
        # Rollouts of one picture often bring it with each caption; decoding takes ten times as long as this.
        if isinstance(encoded, str | bytes) and encoded in self._digests:
            return self._digests[encoded]
        try:
            if not isinstance(encoded, str | bytes):
                raise TypeError
            self._digests[encoded] = self._images.add(base64.b64decode(encoded, validate=True))
        except InputError as error:
            self._problems.extend(problem._replace(where=where) for problem in error.problems)
            return None
        except (binascii.Error, ValueError, TypeError):
            self._wrong(where, "is not base64", "send the bytes of the file in base64")
            return None
        return self._digests[encoded]

    def raise_if_any(self) -> None:
        if self._problems:
            raise refusal_of(self._problems.error())
        # A status of its own: a client sends the bytes and asks again, which helps with no other error.
        if self._unknown:
            message = f"{len(self._unknown):,} images are not here by their digest: send their bytes"
            raise RefusedError(409, message, unknown=self._unknown)

    def _wrong(self, where: str, problem: str, fix: str) -> None:
        self._problems.add(Problem(where, problem, fix))


def reply_of(request: ScoreRequest, results: Mapping[str, Result]) -> dict[str, Any]:
    """The reply to a request. Raises RefusedError where a caption has no score: a reward is never made up."""
    _refuse_failed(request, results)
    reply: dict[str, Any] = {}
    for name, result in results.items():
        truncated = (result.marked or {}).get("truncated", frozenset())
        reply[name] = {
            "scores": result.scores,
            "parts": result.parts,
            "truncated": [row in truncated for row in range(len(result))],
            "flags": _flags(request, result),
            "signature": result.signature,
        }
    reply = {"results": plain(reply)}
    if request.digests is not None:
        reply["digests"] = request.digests
    return reply


def _refuse_failed(request: ScoreRequest, results: Mapping[str, Result]) -> None:
    """Refuse a request of which a caption has no score, with all such rows."""
    failed: list[dict[str, Any]] = []
    for name, result in results.items():
        for row, reason in sorted(result.errors.items()):
            failed.append({"metric": name, "row": row, "problem": reason})
        # A score of NaN would be null in JSON, and no error.
        for row, score in enumerate(result.scores):
            if row not in result.errors and not math.isfinite(score):
                failed.append({"metric": name, "row": row, "problem": "has no score"})
    if failed:
        rows = {entry["row"] for entry in failed}
        message = f"{len(rows):,} of {len(request.captions):,} captions have no score"
        raise RefusedError(422, message, rows=failed)


def _flags(request: ScoreRequest, result: Result) -> list[list[str]]:
    """The marks of each caption."""
    coverage = result.parts.get("coverage")
    flags = []
    for row, caption in enumerate(request.captions):
        caption_coverage = None if coverage is None else coverage[row]
        prompt = None if request.prompts is None else request.prompts[row]
        flags.append(flags_of(caption, coverage=caption_coverage, prompt=prompt))
    return flags


# ---- protocols of others


def read_verify(content: Mapping[str, Any], metric: str) -> dict[str, Any]:
    """NeMo Gym's `/verify` as a request of `/score`.

    The caption is the text of the last message of `response.output`. The image is the last `input_image` of
    `responses_create_params.input`, a data URL in base64; `references` may lie beside them.
    """
    response = content.get("response")
    output = response.get("output") if isinstance(response, Mapping) else None
    caption = None
    # Reasoning and calls of tools stand beside messages in OpenAI's form; the last message is the answer.
    for message in output if isinstance(output, list) else []:
        if isinstance(message, Mapping) and message.get("type", "message") == "message":
            caption = _text_of(message.get("content"))
    if caption is None:
        raise RefusedError(422, "response.output: has no message")
    request: dict[str, Any] = {"captions": [without_reasoning(caption)], "metrics": [metric]}
    parameters = content.get("responses_create_params")
    messages = parameters.get("input") if isinstance(parameters, Mapping) else None
    for message in messages if isinstance(messages, list) else []:
        parts = message.get("content") if isinstance(message, Mapping) else None
        for part in parts if isinstance(parts, list) else []:
            if isinstance(part, Mapping) and part.get("type") == "input_image":
                request["images"] = [image_of_url(part.get("image_url"))]
    if content.get("references") is not None:  # a key of our own, of the one caption
        request["references"] = [content["references"]]
    return request


def _text_of(content: object) -> str:
    """The text of a message: itself, or its parts together."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts: list[str] = []
    for part in parts:  # a refusal has no text
        if isinstance(part, Mapping) and isinstance(part.get("text"), str):
            texts.append(part["text"])
    if not texts:
        raise RefusedError(422, "response.output: its last message has no text")
    return "".join(texts)


def image_of_url(url: object) -> dict[str, str]:
    """The bytes of a data URL as a request has them. Other addresses are refused: nothing is fetched."""
    head, _, data = str(url).partition(",")
    if not head.startswith("data:image/") or not head.endswith(";base64"):
        raise RefusedError(422, "image_url: expected a data URL in base64; no address is fetched here")
    return {"bytes": data}


def read_remote(content: Mapping[str, Any], metric: str) -> dict[str, Any]:
    """OpenRLHF's request to a remote reward model as a request of `/score`.

    The captions are `query` without their `prompts`. `labels` are what the data set says of each: an object,
    or its JSON, with `image` (an image of `/score`) and `references`.
    """
    queries = content.get("query")
    if not _are_texts(queries):
        raise RefusedError(422, "query: expected a list of texts")
    prompts = content.get("prompts")
    if not _are_texts(prompts) or len(prompts) != len(queries):
        raise RefusedError(422, "prompts: expected a text for each query, with which it begins")
    captions = []
    for row, (query, prompt) in enumerate(zip(queries, prompts, strict=True)):
        # Cut by its length alone, a prompt that is not the query's own would leave a piece of a caption.
        if not query.startswith(prompt):
            raise RefusedError(422, f"query[{row}] does not begin with its prompt, so its caption is unknown")
        captions.append(without_reasoning(_ENDS.sub("", query.removeprefix(prompt))))
    request: dict[str, Any] = {"captions": captions, "metrics": [metric]}
    labels = content.get("labels") or []
    if not isinstance(labels, list):
        raise RefusedError(422, "labels: expected a list")
    labels = [_label(label) for label in labels]
    if len(labels) == len(captions):
        for name, key in (("images", "image"), ("references", "references")):
            column = [label[key] for label in labels if key in label]
            # Of some rows alone it would belong to others: without any, the metric says what is missing.
            if len(column) == len(captions):
                request[name] = column
    return request


def _label(label: object) -> Mapping[str, Any]:
    """What the label of a row says, as an object."""
    if isinstance(label, str):
        try:
            label = json.loads(label)
        except (ValueError, RecursionError):
            return {}
    return label if isinstance(label, Mapping) else {}
