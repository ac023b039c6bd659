"""A small captioner that learns from rewards: TRL's GRPOTrainer, and PAC-S from a reward server.

    pip install ".[serve,trl,plot]"
    capeval serve pacs --weights tiny    # in a terminal of its own
    python -m examples.grpo_captioner    # writes reward.png

The captioner (LLaVA from its configuration: a vision tower and a Llama of two layers each) first learns from
captions what sentences look like, and a little of what is in the images. From then on it sees no caption: it
writes eight for each image and learns from their scores. Beside the reward we log what the reward does not
say: the share of captions that are true of their scene, and of those that the server flags.
"""

import argparse
import tempfile

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
import transformers
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    CLIPImageProcessor,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
    set_seed,
)
from trl import GRPOConfig, GRPOTrainer

from examples import reward_client
from tools.captions import describe, holds
from tools.scenes import draw, sample_scene

SIDE = 48
PATCH = 12
IMAGE_TOKENS = (SIDE // PATCH) ** 2
# The prompt is the image alone; what the captioner writes comes after <bos>.
TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'user' %}<image> <bos> "
    "{% else %}{{ message['content'] }}{% endif %}{% endfor %}"
)


def scenes_of(count, rng):
    """Scenes of one object each."""
    scenes = []
    while len(scenes) < count:
        scene = sample_scene(rng, groups=1)
        if len(scene.objects) == 1:
            scenes.append(scene)
    return scenes


def captioner(captions):
    """An untrained LLaVA and its processor, whose tokens are the words of some captions."""
    special = ["<pad>", "<bos>", "<eos>", "<unk>", "<image>"]
    words = sorted({word for caption in captions for word in caption.split()})
    vocabulary = {word: number for number, word in enumerate([*special, *words])}
    word_level = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    word_level.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=word_level,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        additional_special_tokens=["<image>"],
    )
    images = CLIPImageProcessor(size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE})
    processor = LlavaProcessor(
        images,
        tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,  # of the class, which `default` leaves out
        image_token="<image>",
        chat_template=TEMPLATE,
    )
    layers = {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
    vision = CLIPVisionConfig(image_size=SIDE, patch_size=PATCH, initializer_factor=3.0, **layers)
    text = LlamaConfig(
        vocab_size=len(vocabulary),
        max_position_embeddings=96,
        initializer_range=0.05,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        **layers,
    )
    config = LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_index=vocabulary["<image>"],
        vision_feature_select_strategy="default",
        vision_feature_layer=-1,
    )
    return LlavaForConditionalGeneration(config), processor


def warm_up(model, processor, images, captions, steps, rng):
    """Learn from captions, 32 at a time."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    pixels = processor.image_processor(images, return_tensors="pt")["pixel_values"]
    for _ in range(steps):
        rows = rng.integers(0, len(images), 32)
        texts = [f"<image> <bos> {captions[row]} <eos>" for row in rows]
        batch = processor(images=[images[row] for row in rows], text=texts, return_tensors="pt", padding=True)
        batch["pixel_values"] = pixels[rows]
        labels = batch["input_ids"].clone()
        is_caption = (labels > model.config.image_token_index) | (
            labels == model.config.text_config.eos_token_id
        )
        labels[~is_caption] = -100  # no loss here
        model(**batch, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def is_true(scene, caption):
    try:
        return holds(scene, caption)
    except ValueError:  # it is not a sentence about shapes
        return False


def main():
    parser = argparse.ArgumentParser(description="Train a small captioner with rewards of `capeval serve`.")
    parser.add_argument("--scenes", type=int, default=3000)
    parser.add_argument("--warm-up", type=int, default=1200, help="steps on captions, of 32 each")
    parser.add_argument("--steps", type=int, default=120, help="of GRPO, of 8 images with 8 captions each")
    parser.add_argument("--picture", default="reward.png")
    arguments = parser.parse_args()
    set_seed(0)
    transformers.logging.set_verbosity_error()
    rng = np.random.default_rng(0)
    scenes = scenes_of(arguments.scenes, rng)
    images = [draw(scene, 96) for scene in scenes]
    captions = [describe(scene, rng) for scene in scenes]
    model, processor = captioner(captions)
    warm_up(model, processor, images, captions, arguments.warm_up, rng)

    def pacs(completions, image, row, log_metric, **_):
        """The server's scores; beside them, what share of captions is true."""
        captions = [message[-1]["content"] for message in completions]
        true = [is_true(scenes[i], caption) for i, caption in zip(row, captions, strict=True)]
        log_metric("true", sum(true) / len(true))
        return reward_client.reward(captions, image, log_metric=log_metric)

    prompt = [{"role": "user", "content": "Describe the image."}]
    columns = {"prompt": [prompt] * len(images), "image": images, "row": list(range(len(images)))}
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=model,
            processing_class=processor,
            reward_funcs=[pacs],
            train_dataset=Dataset.from_dict(columns),
            args=GRPOConfig(
                output_dir=folder,
                max_steps=arguments.steps,
                per_device_train_batch_size=64,
                num_generations=8,
                max_completion_length=24,
                learning_rate=2e-4,
                lr_scheduler_type="constant",
                beta=0.0,
                logging_steps=1,
                save_strategy="no",
                report_to=[],
                use_cpu=not torch.cuda.is_available(),
                bf16=False,
                gradient_checkpointing=False,
                disable_tqdm=True,
            ),
        )
        trainer.train()
    log = [entry for entry in trainer.state.log_history if "reward" in entry]
    print(f"reward {mean_of(log[:10], 'reward'):.3f} at first, {mean_of(log[-10:], 'reward'):.3f} at last")
    print(f"true captions {mean_of(log[:10], 'true'):.0%} at first, {mean_of(log[-10:], 'true'):.0%} at last")
    paint(log, arguments.picture)


def mean_of(log, name):
    return float(np.mean([entry[name] for entry in log]))


def paint(log, picture):
    """The curves of a training, thin as logged and bold as the mean of ten steps."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
    for axis, name, label in (
        (left, "reward", "PAC-S of sampled captions"),
        (right, "true", "true"),
        (right, "flagged", "flagged"),
    ):
        values = np.array([entry[name] for entry in log])
        window = min(10, len(values))
        smooth = np.convolve(values, np.ones(window) / window, "valid")
        (line,) = axis.plot(np.arange(window, len(values) + 1), smooth, label=label)
        axis.plot(np.arange(1, len(values) + 1), values, alpha=0.25, color=line.get_color())
    left.set_ylabel("PAC-S of sampled captions")
    right.set_ylabel("share of captions")
    right.set_ylim(0, 1)
    right.legend(frameon=False)
    for axis in (left, right):
        axis.set_xlabel("step of GRPO")
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(picture, dpi=120)


if __name__ == "__main__":
    main()
