"""Captioners that read a prompt, from their configs: one of Qwen2-VL's kind and one of BLIP's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    BlipConfig,
    BlipForConditionalGeneration,
    PreTrainedTokenizerFast,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen2VLImageProcessor,
    Qwen2VLProcessor,
    Qwen2VLVideoProcessor,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    set_seed,
)

TEMPLATE = """{% for message in messages %}<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}\
{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}\
{% endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""Qwen2-VL's way of writing a conversation."""
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>"]
PADS = ["<|image_pad|>", "<|video_pad|>"]
QUESTION = "Describe the assistant's image."


def tokenizer_of(texts: list[str]) -> PreTrainedTokenizerFast:
    """Byte-level BPE of these texts, as Qwen's."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([*texts, QUESTION, "user assistant"], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        additional_special_tokens=[*SPECIAL[1:], *PADS],
        eos_token="<|im_end|>",
        pad_token=SPECIAL[0],
        padding_side="left",
    )


def chat_processor(tokenizer: PreTrainedTokenizerFast) -> Qwen2VLProcessor:
    sizes: dict[str, Any] = {"size": {"shortest_edge": 56 * 56, "longest_edge": 56 * 56}}
    return Qwen2VLProcessor(
        image_processor=Qwen2VLImageProcessor(**sizes),
        tokenizer=tokenizer,
        video_processor=Qwen2VLVideoProcessor(**sizes),
        chat_template=TEMPLATE,
    )


def chat_model(tokenizer: PreTrainedTokenizerFast) -> Qwen2VLForConditionalGeneration:
    set_seed(1)
    ids = dict(zip((*SPECIAL, *PADS), tokenizer.convert_tokens_to_ids([*SPECIAL, *PADS]), strict=True))
    config = Qwen2VLConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 256,
            "rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0},
            "bos_token_id": None,
            "eos_token_id": ids["<|im_end|>"],
            "pad_token_id": ids["<|endoftext|>"],
        },
        vision_config={"depth": 1, "embed_dim": 32, "hidden_size": 32, "num_heads": 2, "mlp_ratio": 2},
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
    )
    model = Qwen2VLForConditionalGeneration(config)
    model.generation_config.update(
        max_new_tokens=12, do_sample=False, eos_token_id=ids["<|im_end|>"], pad_token_id=ids["<|endoftext|>"]
    )
    return model


def blip_model(tokenizer: PreTrainedTokenizerFast) -> BlipForConditionalGeneration:
    set_seed(1)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    end = tokenizer.eos_token_id
    text = {"vocab_size": len(tokenizer), "encoder_hidden_size": 32, "projection_dim": 32}
    text |= {"bos_token_id": end, "eos_token_id": end, "sep_token_id": end, "pad_token_id": 0}
    vision = {"image_size": 32, "patch_size": 16, "projection_dim": 32}
    config = BlipConfig(text_config=shape | text, vision_config=shape | vision, projection_dim=32)
    model = BlipForConditionalGeneration(config)
    model.generation_config.update(max_new_tokens=12, do_sample=False)
    return model


class Questions(torch.utils.data.Dataset[dict[str, Any]]):
    """Images with their answers; a batch of them has a prompt, and labels of its length."""

    def __init__(self, images: list[Image.Image], answers: list[str], processor: Any) -> None:
        self.images = images
        self.answers = answers
        self.processor = processor

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {"image": self.images[row], "answer": self.answers[row]}

    def chat_batch(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        parts = [{"type": "image"}, {"type": "text", "text": QUESTION}]
        prompt = self.processor.apply_chat_template(
            [{"role": "user", "content": parts}], tokenize=False, add_generation_prompt=True
        )
        batch = self.processor(
            text=[prompt] * len(rows),
            images=[row["image"] for row in rows],
            return_tensors="pt",
            padding=True,
        )
        inputs = {
            name: batch[name] for name in ("input_ids", "attention_mask", "pixel_values", "image_grid_thw")
        }
        if "mm_token_type_ids" in batch:
            inputs["mm_token_type_ids"] = batch["mm_token_type_ids"]
        return {**inputs, "labels": labels_of(self.processor.tokenizer, rows, inputs["input_ids"].shape[1])}


def labels_of(tokenizer: PreTrainedTokenizerFast, rows: list[dict[str, Any]], length: int) -> torch.Tensor:
    """The answers' ids behind -100, as long as the prompt: the Trainer computes a loss of both."""
    labels = []
    for row in rows:
        ids = tokenizer(row["answer"]).input_ids[:length]
        labels.append([-100] * (length - len(ids)) + ids)
    return torch.tensor(labels)


def trainer_of(model: Any, rows: Questions, collator: Any, folder: Path, metrics: Any) -> Seq2SeqTrainer:
    arguments = Seq2SeqTrainingArguments(
        output_dir=str(folder),
        predict_with_generate=True,
        per_device_eval_batch_size=len(rows),
        remove_unused_columns=False,
        dataloader_pin_memory=False,
        disable_tqdm=True,
        use_cpu=True,
        report_to=[],
    )
    return Seq2SeqTrainer(
        model=model,
        args=arguments,
        eval_dataset=rows,
        data_collator=collator,
        processing_class=rows.processor,
        compute_metrics=metrics,
    )
