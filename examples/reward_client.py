"""Rewards of `capeval serve`: verl's `custom_reward_function.path`, or TRL's `reward_funcs=reward`."""

import io
import os
import time
from base64 import b64encode
from contextlib import suppress
from pathlib import Path

import requests

SERVER = os.environ.get("CAPEVAL_SERVER", "http://127.0.0.1:8000")
HEADERS = {"Authorization": f"Bearer {os.environ.get('CAPEVAL_TOKEN', '')}"}


def ask(captions, images, references=None, tries=8):
    """Scores and flags of captions; an exception where there is no score, never a made-up number."""
    texts = [text.rpartition("</think>")[2].strip() for text in captions]
    content = {"captions": texts, "images": [*map(encoded, images)], "references": references}
    for number in range(tries):
        with suppress(requests.ConnectionError, requests.exceptions.ChunkedEncodingError):  # it starts again
            reply = requests.post(f"{SERVER}/score", json=content, headers=HEADERS, timeout=600)
            if reply.ok:
                return next(iter(reply.json()["results"].values()))
            if reply.status_code not in (429, 503):  # of a busy server
                raise ValueError(f"{SERVER}: {reply.text}")
        time.sleep(2**number)
    raise TimeoutError(f"{SERVER} gives no answer")


def encoded(image):
    """An image in base64: the bytes of its file as they are, or pixels as PNG."""
    if hasattr(image, "save"):
        image.save(file := io.BytesIO(), "PNG")
        image = file.getvalue()
    image = image["bytes"] if isinstance(image, dict) else image
    return {"bytes": b64encode(image if isinstance(image, bytes) else Path(image).read_bytes()).decode()}


def compute_score(solution_str, extra_info, **_):
    """verl's reward of a row, whose image is in `extra_info`."""
    reply = ask([solution_str], [extra_info["image"]])
    return {"score": reply["scores"][0], "flags": len(reply["flags"][0])}


def reward(completions, image, references=None, log_metric=None, **_):
    """TRL's rewards of a batch, of a data set with a column `image`."""
    texts = [text if isinstance(text, str) else text[-1]["content"] for text in completions]
    reply = ask(texts, image, references)
    if log_metric is not None:
        log_metric("flagged", sum(map(bool, reply["flags"])) / len(reply["flags"]))
    return reply["scores"]
