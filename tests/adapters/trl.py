"""`reward` in TRL's GRPOTrainer: steps of a small policy, and the rewards that the trainer collects."""

from __future__ import annotations

import math
import tempfile
from typing import Any
from unittest import mock

import capeval_core
from capeval_core.integrations import reward
from examples import reward_client
from tests.adapters import CAPTIONS, IMAGES, REFERENCES, Comparison
from tests.support.reward_server import reward_server

METRICS: dict[str, dict[str, Any]] = {
    "pacs": {"weights": "tiny"},
    "refpacs": {"weights": "tiny"},
    "rougel": {},
}


def policy() -> tuple[Any, Any]:
    """An untrained GPT-2 of two layers and a tokenizer of words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    words = sorted({word for caption in [*CAPTIONS, "describe the image"] for word in caption.split()})
    vocabulary = {word: i for i, word in enumerate(["<pad>", "<eos>", "<unk>", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    opened: Any = PreTrainedTokenizerFast  # has no types
    fast = opened(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
    config = GPT2Config(
        vocab_size=len(vocabulary), n_positions=64, n_embd=16, n_layer=2, n_head=2, eos_token_id=1,
        bos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    return GPT2LMHeadModel(config), fast


def trial() -> list[Comparison]:
    from datasets import Dataset
    from PIL import Image
    from trl import GRPOConfig, GRPOTrainer

    model, tokenizer = policy()
    rewards = [reward(name, **options) for name, options in METRICS.items()]
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=model,
            processing_class=tokenizer,
            reward_funcs=[reward("rougel")],
            args=GRPOConfig(
                output_dir=folder, max_steps=2, per_device_train_batch_size=4, num_generations=2,
                max_completion_length=8, report_to=[], use_cpu=True, logging_steps=1, save_strategy="no",
            ),
            train_dataset=Dataset.from_dict(
                {"prompt": ["describe the image"] * 4, "references": REFERENCES}
            ),
        )  # fmt: skip
        trainer.train()
        logged = [line["rewards/rougel/mean"] for line in trainer.state.log_history if "reward" in line]
        # The rows of a batch with pictures, as the trainer hands them to reward functions.
        trainer.reward_funcs, trainer.reward_func_names = rewards, [one.__name__ for one in rewards]
        trainer.reward_processing_classes = [None] * len(rewards)
        inputs = [
            {"prompt": "describe the image", "images": [Image.open(image)], "references": references}
            for image, references in zip(IMAGES, REFERENCES, strict=True)
        ]
        inputs.append({"prompt": "describe the image", "images": [], "references": REFERENCES[0]})
        completions = [f"<think>What is it?</think> {caption}" for caption in [*CAPTIONS, CAPTIONS[0]]]
        collected = trainer._calculate_rewards(
            inputs, [one["prompt"] for one in inputs], completions, [[1]] * len(inputs)
        )
        with (
            reward_server("pacs", "--weights", "tiny") as server,
            mock.patch.object(reward_client, "SERVER", server.address),
        ):
            trainer.reward_funcs = [reward_client.reward]
            trainer.reward_func_names = ["served"]
            trainer.reward_processing_classes = [None]
            rows = [
                {"prompt": "describe the image", "image": Image.open(image), "references": references}
                for image, references in zip(IMAGES, REFERENCES, strict=True)
            ]
            served = trainer._calculate_rewards(
                rows, [row["prompt"] for row in rows], completions[: len(rows)], [[1]] * len(rows)
            )
    if not logged or not all(0 <= value <= 1 for value in logged):
        raise RuntimeError(f"the training logged rewards {logged}")
    expected = capeval_core.load("pacs", weights="tiny").score(CAPTIONS, IMAGES)
    compared = [
        Comparison(f"served reward of completion {row}", expected.scores[row], served[row, 0].item())
        for row in range(len(CAPTIONS))
    ]
    for column, (name, options) in enumerate(METRICS.items()):
        metric = capeval_core.load(name, **options)
        expected = metric.score(
            CAPTIONS, IMAGES if metric.media else None, REFERENCES if metric.needs_references else None
        )
        values = collected[:, column].tolist()
        compared += [
            Comparison(f"reward of completion {i}: {name}", expected.scores[i], values[i])
            for i in range(len(CAPTIONS))
        ]
        if metric.media and not math.isnan(values[-1]):
            raise RuntimeError(f"{name}: the row without a picture has the reward {values[-1]}")
    return compared
