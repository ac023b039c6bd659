"""A tiny random BLIP captioner and a tiny random Stable Diffusion, saved by their own libraries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from PIL import Image

WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "[DEC]",
    *["a", "picture", "of", "dog", "cat", "red", "runs", "on", "the", "mat", "##s"],
]
SIZE = 32
"""Of generated images, in pixels."""
SHADES = ("red", "blue", "green", "yellow", "white", "black", "grey")


def write_drawn(folder: Path) -> Path:
    """`images`, seven small ones from 0.png to 6.png, and `captions.json` with two captions of each."""
    (folder / "images").mkdir()
    captions = {}
    for number, shade in enumerate(SHADES):
        image = Image.new("RGB", (40 + number, 30), shade)
        image.paste("orange", (number, 3, number + 12, 20))
        image.save(folder / "images" / f"{number}.png")
        captions[str(number)] = [f"a {shade} cat", "a dog"]
    (folder / "captions.json").write_text(json.dumps(captions))
    return folder


def write_captioner(folder: Path) -> Path:
    """A BlipForConditionalGeneration with its processor."""
    from transformers import (
        BertTokenizer,
        BlipConfig,
        BlipForConditionalGeneration,
        BlipImageProcessor,
        BlipProcessor,
    )

    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    sizes = {"hidden_size": 16, "intermediate_size": 16, "projection_dim": 8, "num_hidden_layers": 1}
    sizes |= {"num_attention_heads": 2}
    tokens = {"bos_token_id": 5, "eos_token_id": 3, "sep_token_id": 3, "pad_token_id": 0}
    text = {**sizes, **tokens, "vocab_size": len(WORDS), "encoder_hidden_size": 16}
    text |= {"max_position_embeddings": 24, "initializer_range": 0.6}
    # Large weights, so that captions differ by image.
    vision = {**sizes, "image_size": SIZE, "patch_size": 16, "initializer_range": 0.3}
    torch.manual_seed(0)
    model: Any = BlipForConditionalGeneration(BlipConfig(text_config=text, vision_config=vision))
    model.save_pretrained(folder)
    tokenizer: Any = BertTokenizer(str(folder / "vocab.txt"))
    BlipProcessor(BlipImageProcessor(size={"height": SIZE, "width": SIZE}), tokenizer).save_pretrained(folder)
    return folder


def write_pipeline(folder: Path, *, flagged: bool = False) -> Path:
    """A StableDiffusionPipeline, whose safety checker flags all images or none."""
    import diffusers
    from diffusers.pipelines.stable_diffusion import StableDiffusionSafetyChecker
    from transformers import CLIPConfig, CLIPImageProcessor, CLIPTextConfig, CLIPTextModel, CLIPTokenizer

    folder.mkdir()
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    vocabulary = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(vocabulary)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    tokenizer: Any = CLIPTokenizer(
        str(folder / "vocab.json"), str(folder / "merges.txt"), model_max_length=16
    )
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    first, last = len(vocabulary) - 2, len(vocabulary) - 1
    tokens = {"bos_token_id": first, "eos_token_id": last, "pad_token_id": last}
    text = CLIPTextConfig(**sizes, **tokens, vocab_size=len(vocabulary), max_position_embeddings=16)
    looks = {**sizes, "image_size": SIZE, "patch_size": 16}
    torch.manual_seed(0)
    blocks = {"block_out_channels": (4, 8), "layers_per_block": 1, "norm_num_groups": 2}
    unet = diffusers.UNet2DConditionModel(
        **blocks,
        sample_size=SIZE // 2,
        in_channels=4,
        out_channels=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=8,
        attention_head_dim=2,
    )
    vae = diffusers.AutoencoderKL(
        block_out_channels=[4, 4],
        down_block_types=["DownEncoderBlock2D"] * 2,
        up_block_types=["UpDecoderBlock2D"] * 2,
        latent_channels=4,
        norm_num_groups=2,
    )
    checker: Any = StableDiffusionSafetyChecker(
        CLIPConfig(text_config=text.to_dict(), vision_config=looks, projection_dim=8)
    )
    for thresholds in (checker.concept_embeds_weights, checker.special_care_embeds_weights):
        thresholds.data.fill_(-10 if flagged else 10)  # of cosines
    pipeline: Any = diffusers.StableDiffusionPipeline
    pipeline(
        vae=vae,
        unet=unet,
        text_encoder=CLIPTextModel(text),
        tokenizer=tokenizer,
        scheduler=diffusers.PNDMScheduler(skip_prk_steps=True, steps_offset=1),
        safety_checker=checker,
        feature_extractor=CLIPImageProcessor(
            size={"shortest_edge": SIZE}, crop_size={"height": SIZE, "width": SIZE}
        ),
    ).save_pretrained(folder)
    return folder


def generated(what: str, drawn: Path, model: Path, out: Path, *flags: object, batch_size: int = 2) -> Path:
    """Run `capeval augment` on drawn images or captions, which must go well; the folder."""
    from capeval_core.cli import main

    assert main([*arguments(what, drawn, model, out, batch_size), *map(str, flags)]) == 0
    return out


def arguments(what: str, drawn: Path, model: Path, out: Path, batch_size: int = 2) -> list[str]:
    """The command line of a short run of `capeval augment`."""
    if what == "captions":
        sources = ["--images", drawn / "images"]
    else:
        sources = ["--captions", drawn / "captions.json", "--steps", 2, "--image-size", SIZE]
    run = ["--model", model, "--out", out, "--device", "cpu", "--batch-size", batch_size]
    return ["augment", what, *map(str, [*sources, *run])]
