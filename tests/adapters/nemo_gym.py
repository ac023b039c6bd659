"""The reward server as a resources server of NeMo Gym: its own request of `/verify`, and its own reply."""

from __future__ import annotations

import base64

import requests

import capeval_core
from tests.adapters import CAPTIONS, IMAGES, Comparison
from tests.support.reward_server import reward_server


def trial() -> list[Comparison]:
    from nemo_gym.base_resources_server import BaseVerifyRequest, BaseVerifyResponse

    expected = capeval_core.load("pacs", weights="tiny").score(CAPTIONS, IMAGES).scores
    compared = []
    with reward_server("pacs", "--weights", "tiny") as server:
        for row, (caption, image) in enumerate(zip(CAPTIONS, IMAGES, strict=True)):
            url = f"data:image/png;base64,{base64.b64encode(image.read_bytes()).decode()}"
            question = [
                {"type": "input_text", "text": "Describe the image."},
                {"type": "input_image", "image_url": url, "detail": "auto"},
            ]
            text = {"type": "output_text", "text": caption, "annotations": []}
            message = {
                "id": "m",
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [text],
            }
            request = BaseVerifyRequest.model_validate(
                {
                    "responses_create_params": {"input": [{"role": "user", "content": question}]},
                    "response": {
                        "id": "r",
                        "created_at": 0.0,
                        "model": "policy",
                        "object": "response",
                        "output": [message],
                        "parallel_tool_calls": False,
                        "tool_choice": "auto",
                        "tools": [],
                    },
                }
            )
            reply = requests.post(
                f"{server.address}/verify", json=request.model_dump(mode="json"), timeout=600
            )
            reply.raise_for_status()
            response = BaseVerifyResponse.model_validate(reply.json())
            if response.response != request.response:
                raise RuntimeError(f"the reply changed the response of row {row}")
            compared.append(Comparison(f"NeMo Gym's reward of row {row}", expected[row], response.reward))
    return compared
