"""The reward server as OpenRLHF's remote reward model: asked by its executor of single turns."""

from __future__ import annotations

import asyncio
import base64
import json
from types import SimpleNamespace
from typing import Any

import capeval_core
from tests.adapters import CAPTIONS, IMAGES, Comparison
from tests.adapters.trl import policy
from tests.support.reward_server import reward_server

PROMPT = "describe the image"


class Recited:
    """An engine in the place of vLLM's, which writes one caption."""

    def __init__(self, tokens: list[int]) -> None:
        self._tokens = tokens

    async def generate(self, *_: Any, **__: Any) -> Any:
        written = SimpleNamespace(token_ids=self._tokens, finish_reason="stop", logprobs=None)
        return SimpleNamespace(outputs=[written])


def trial() -> list[Comparison]:
    from openrlhf.utils.agent import SingleTurnAgentExecutor

    _, tokenizer = policy()
    sampling = SimpleNamespace(max_tokens=16, logprobs=None)
    expected = capeval_core.load("pacs", weights="tiny").score(CAPTIONS, IMAGES).scores
    compared = []
    with reward_server("pacs", "--weights", "tiny") as server:
        executor = SingleTurnAgentExecutor(f"{server.address}/reward")
        for row, (caption, image) in enumerate(zip(CAPTIONS, IMAGES, strict=True)):
            label = json.dumps({"image": {"bytes": base64.b64encode(image.read_bytes()).decode()}})
            engine = Recited([*tokenizer(caption).input_ids, tokenizer.eos_token_id])
            output = asyncio.run(executor.execute(PROMPT, label, sampling, 64, tokenizer, engine))
            compared.append(Comparison(f"OpenRLHF's reward of row {row}", expected[row], *output["reward"]))
    return compared
