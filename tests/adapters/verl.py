"""`examples/reward_client.py` as verl's custom reward function, loaded and called by its reward manager."""

from __future__ import annotations

import asyncio
import os
from typing import Any
from unittest import mock

import capeval_core
from tests.adapters import CAPTIONS, IMAGES, Comparison
from tests.adapters.trl import policy
from tests.support.reward_server import reward_server
from tools.documents import CHECKOUT


async def outcomes_of(config: Any, tokenizer: Any, rows: list[Any]) -> list[dict[str, Any]]:
    """What verl's manager, which belongs to a loop, makes of rows that are rolled out at the same time."""
    from verl.trainer.ppo.reward import load_reward_manager

    manager = load_reward_manager(config, tokenizer)
    return list(await asyncio.gather(*(manager.run_single(row) for row in rows)))


def trial() -> list[Comparison]:
    import numpy as np
    import torch
    from omegaconf import OmegaConf
    from verl import DataProto

    _, tokenizer = policy()
    function = {"path": str(CHECKOUT / "examples" / "reward_client.py"), "name": "compute_score"}
    manager = {"source": "register", "name": "naive"}
    config = OmegaConf.create({"reward": {"custom_reward_function": function, "reward_manager": manager}})
    rows = []
    for caption, image in zip(CAPTIONS, IMAGES, strict=True):
        tokens = torch.tensor([tokenizer(caption).input_ids])
        columns: dict[str, Any] = {
            "data_source": "scenes",
            "reward_model": {"ground_truth": ""},
            "extra_info": {"image": {"bytes": image.read_bytes()}},
        }
        tensors = {"responses": tokens, "attention_mask": torch.ones_like(tokens)}
        arrays = {}
        for name, value in columns.items():
            arrays[name] = np.array([value], dtype=object)
        rows.append(DataProto.from_dict(tensors=tensors, non_tensors=arrays))
    with (
        reward_server("pacs", "--weights", "tiny") as server,
        mock.patch.dict(os.environ, CAPEVAL_SERVER=server.address),
    ):
        outcomes = asyncio.run(outcomes_of(config, tokenizer, rows))
    expected = capeval_core.load("pacs", weights="tiny").score(CAPTIONS, IMAGES).scores
    return [
        Comparison(f"verl's reward of row {row}", expected[row], outcome["reward_score"])
        for row, outcome in enumerate(outcomes)
    ]
