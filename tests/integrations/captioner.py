"""A captioner as small as can be, ViT and GPT-2 from their configs, and scenes that it learns by heart."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    GPT2Config,
    PreTrainedTokenizerFast,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    VisionEncoderDecoderConfig,
    VisionEncoderDecoderModel,
    ViTConfig,
    default_data_collator,
    set_seed,
)

from tools.captions import describe
from tools.scenes import draw, sample_scene

SIDE = 48


class Captioned(Protocol):
    """A dataset of images with captions as labels, and the tokenizer of these."""

    tokenizer: PreTrainedTokenizerFast

    def __len__(self) -> int: ...

    def __getitem__(self, row: int) -> dict[str, Any]: ...


class Scenes(torch.utils.data.Dataset[dict[str, Any]]):
    """Drawn scenes, each with its caption as labels and three references."""

    def __init__(self, count: int) -> None:
        rng = np.random.default_rng(5)
        scenes = [sample_scene(rng, groups=1) for _ in range(count)]
        self.images: list[Image.Image] = [draw(scene, 64) for scene in scenes]
        self.references = [[describe(scene, rng) for _ in range(3)] for scene in scenes]
        self.captions = [texts[0] for texts in self.references]
        self.tokenizer = word_tokenizer([text for texts in self.references for text in texts])

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, row: int) -> dict[str, Any]:
        pixels = np.asarray(self.images[row].resize((SIDE, SIDE)), dtype=np.float32) / 127.5 - 1
        ids = [*self.tokenizer(self.captions[row]).input_ids, self.tokenizer.eos_token_id]
        labels = ids + [-100] * (20 - len(ids))
        return {"pixel_values": torch.tensor(pixels).permute(2, 0, 1), "labels": torch.tensor(labels)}


def word_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    special = ["<pad>", "<bos>", "<eos>", "<unk>"]
    words = sorted({word for text in texts for word in text.replace(",", " ,").split()})
    vocabulary = {word: i for i, word in enumerate(special + words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", unk_token="<unk>"
    )


def captioner(tokenizer: PreTrainedTokenizerFast) -> VisionEncoderDecoderModel:
    set_seed(0)
    encoder = ViTConfig(
        image_size=SIDE,
        patch_size=12,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=128,
        initializer_range=0.05,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    decoder = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=32,
        n_embd=64,
        n_layer=2,
        n_head=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    config = VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    config.decoder_start_token_id = tokenizer.bos_token_id
    config.pad_token_id = tokenizer.pad_token_id
    config.eos_token_id = tokenizer.eos_token_id
    model = VisionEncoderDecoderModel(config)
    model.generation_config.max_length = 20
    model.generation_config.decoder_start_token_id = tokenizer.bos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    return model


def make_trainer(
    rows: Captioned, folder: Path, compute_metrics: Any, model: Any = None, sets: Any = None, **arguments: Any
) -> Seq2SeqTrainer:
    """A Trainer that learns these rows and evaluates itself on them, or on `sets`."""
    chosen = {
        "predict_with_generate": True,
        "per_device_train_batch_size": 8,
        "per_device_eval_batch_size": 4,
        "learning_rate": 3e-3,
        "lr_scheduler_type": "constant",
        "num_train_epochs": 80,
        "eval_strategy": "steps",
        "save_strategy": "no",
        "eval_steps": 40,
        "logging_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        "dataloader_pin_memory": False,
        "seed": 0,
        **arguments,
    }
    return Seq2SeqTrainer(
        model=model or captioner(rows.tokenizer),
        args=Seq2SeqTrainingArguments(output_dir=str(folder), **chosen),
        train_dataset=rows,
        eval_dataset=rows if sets is None else sets,
        data_collator=default_data_collator,
        processing_class=rows.tokenizer,
        compute_metrics=compute_metrics,
    )
