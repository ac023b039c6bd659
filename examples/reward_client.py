"""Rewards of `capeval serve` in verl and TRL: one file, which needs `requests` alone.

verl:  custom_reward_function.path=reward_client.py custom_reward_function.name=compute_score
TRL:   GRPOTrainer(reward_funcs=reward_client.reward, ...)
"""

import base64
import io
import os
import time
from pathlib import Path

import requests

SERVER = os.environ.get("CAPEVAL_SERVER", "http://127.0.0.1:8000")
HEADERS = {"Authorization": f"Bearer {os.environ.get('CAPEVAL_TOKEN', '')}"}


def scores(captions, images, references=None, tries=5):
    """A score for each caption; an exception where the server gives none, never a made-up number."""
    content = {"captions": captions, "images": [{"bytes": encoded(image)} for image in images]}
    content |= {} if references is None else {"references": references}
    for waiting in [2**number for number in range(tries)]:
        try:
            reply = requests.post(f"{SERVER}/score", json=content, headers=HEADERS, timeout=600)
        except requests.ConnectionError:  # it is being started again
            reply = None
        if reply is not None and reply.status_code not in (429, 503):
            break
        time.sleep(waiting)
    if reply is None or not reply.ok:
        raise RuntimeError(f"{SERVER}: {'no answer' if reply is None else reply.text}")
    return next(iter(reply.json()["results"].values()))["scores"]


def encoded(image):
    """The bytes of an image in base64: of a file or of a dataset's row as they are, of pixels as PNG."""
    if hasattr(image, "save"):
        image.save(file := io.BytesIO(), "PNG")
        image = file.getvalue()
    image = image["bytes"] if isinstance(image, dict) else image
    return base64.b64encode(image if isinstance(image, bytes) else Path(image).read_bytes()).decode()


def compute_score(solution_str=None, extra_info=None, solution_strs=None, extra_infos=None, **_):
    """verl's reward function, of a row or (`reward_manager=batch`) of many; `image` is in `extra_info`."""
    if solution_str is not None:
        return scores([solution_str], [extra_info["image"]])[0]
    return scores(list(solution_strs), [info["image"] for info in extra_infos])


def reward(completions, image, **_):
    """TRL's reward function, of a data set with a column `image`."""
    texts = [text if isinstance(text, str) else text[-1]["content"] for text in completions]
    return scores(texts, image)
