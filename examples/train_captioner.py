# %% [markdown]
# # A captioner that is judged while it learns
#
# A small captioner (ViT and GPT-2, both from scratch) learns to describe drawn scenes. At every evaluation
# its captions are scored with PAC-S and RefPAC-S, so that we see quality rise, not only the loss fall, and
# keep the checkpoint that writes the best captions. It takes a few minutes on a CPU, and needs no network:
#
#     pip install ".[trainer]"
#     python -m examples.train_captioner
#
# Nothing here is particular to drawn scenes. The last cell says what to change for a real captioner.

# %%
import argparse
import os
import tempfile

import numpy as np
import torch
import transformers
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

import capeval_core
from capeval_core.integrations import CaptionMetrics
from tools.captions import describe
from tools.scenes import draw, sample_scene

parser = argparse.ArgumentParser(
    description="Train a small captioner and score its captions while it learns."
)
parser.add_argument("--scenes", type=int, default=2000, help="images to learn from")
parser.add_argument("--steps", type=int, default=1000, help="of 16 images each")
parser.add_argument("--evaluations", type=int, default=5, help="how often to score the captions")
parser.add_argument("--report-to", nargs="*", default=[], help="trackers: tensorboard, wandb, trackio")
parser.add_argument("--logs", help="folder of TensorBoard's curves and tables")
# In a notebook the defaults hold; its kernel has arguments of its own.
arguments, _ = parser.parse_known_args()
set_seed(0)
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
SIDE = 48

# %% [markdown]
# ## Scenes
#
# Each image shows one kind of coloured shape, once or several times, and comes with three true captions.
# One of them is what the captioner shall learn to write; all three are references for RefPAC-S, which
# compares a caption with the nearest one.

# %%
rng = np.random.default_rng(0)


class Scenes(torch.utils.data.Dataset):
    """Images, their captions, and both as a captioner wants them."""

    def __init__(self, count):
        scenes = [sample_scene(rng, groups=1) for _ in range(count)]
        self.images = [draw(scene, 96) for scene in scenes]
        self.references = [[describe(scene, rng) for _ in range(3)] for scene in scenes]

    def __len__(self):
        return len(self.images)

    def __getitem__(self, row):
        pixels = np.asarray(self.images[row].resize((SIDE, SIDE)), dtype=np.float32) / 127.5 - 1
        ids = [*tokenizer(self.references[row][0]).input_ids, tokenizer.eos_token_id]
        labels = ids + [-100] * (24 - len(ids))  # -100: no loss here
        return {"pixel_values": torch.tensor(pixels).permute(2, 0, 1), "labels": torch.tensor(labels)}


train, held_out = Scenes(arguments.scenes), Scenes(40)

# %% [markdown]
# ## The captioner
#
# Words are the tokens: the scenes need only a few dozen.

# %%
sentences = [text for texts in train.references + held_out.references for text in texts]
words = sorted({word for text in sentences for word in text.replace(",", " ,").split()})
vocabulary = {word: i for i, word in enumerate(["<pad>", "<bos>", "<eos>", "<unk>", *words])}
word_level = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
word_level.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=word_level, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", unk_token="<unk>"
)
special = {
    "decoder_start_token_id": tokenizer.bos_token_id,
    "eos_token_id": tokenizer.eos_token_id,
    "pad_token_id": tokenizer.pad_token_id,
}
encoder_config = ViTConfig(
    image_size=SIDE,
    patch_size=8,
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=256,
    initializer_range=0.05,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
no_dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}  # the model is small
decoder_config = GPT2Config(
    vocab_size=len(tokenizer), n_positions=32, n_embd=64, n_layer=2, n_head=4, **no_dropout
)
config = VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder_config, decoder_config, **special)
model = VisionEncoderDecoderModel(config)
model.generation_config.update(max_length=24, **special)
print(f"{model.num_parameters():,} parameters, {len(tokenizer)} words")

# %% [markdown]
# ## What to measure
#
# `CaptionMetrics` is all that has to be added to a training. It is given the images and references of the
# evaluation set, row by row; it decodes what the captioner generates and scores it. Images and references
# are encoded at the first evaluation only. With the captions that the captioner learns it also counts which
# of them it repeats.
#
# `weights="tiny"` is a small metric model that ships with the package and knows drawn scenes, nothing else.

# %%
metrics = CaptionMetrics(
    tokenizer,
    images=held_out.images,
    references=held_out.references,
    metrics=["pacs", "refpacs"],
    weights="tiny",
    training_captions=[texts[0] for texts in train.references],
)
folder = tempfile.TemporaryDirectory()
if arguments.logs is not None:
    os.environ["TENSORBOARD_LOGGING_DIR"] = arguments.logs  # where transformers looks for it
trainer = Seq2SeqTrainer(
    model=model,
    args=Seq2SeqTrainingArguments(
        output_dir=folder.name,
        predict_with_generate=True,  # so that captions are scored, and not logits
        metric_for_best_model="pac_s",
        greater_is_better=True,
        eval_strategy="steps",
        eval_steps=max(1, arguments.steps // arguments.evaluations),
        save_strategy="best",
        save_total_limit=1,
        max_steps=arguments.steps,
        per_device_train_batch_size=16,
        per_device_eval_batch_size=40,
        learning_rate=2e-3,
        dataloader_pin_memory=torch.cuda.is_available(),
        logging_strategy="no",
        disable_tqdm=True,
        report_to=arguments.report_to,
    ),
    train_dataset=train,
    eval_dataset=held_out,
    data_collator=default_data_collator,
    processing_class=tokenizer,
    compute_metrics=metrics,
)
metrics.watch(trainer)

# %% [markdown]
# `watch` adds to the Trainer's log whether an evaluation is better than the one before, intervals and the
# diversity of the captions; trackers also get a table of the worst, best and most changed captions:
#
#     python -m examples.train_captioner --report-to tensorboard --logs logs
#     tensorboard --logdir logs
#
# ## Learning
#
# First the captioner that has learnt nothing, as a floor; and true captions, as a ceiling.


# %%
class Report(transformers.TrainerCallback):
    """One line for each evaluation."""

    def on_evaluate(self, args, state, control, metrics, **_):
        print(
            f"step {state.global_step:4}   loss {metrics['eval_loss']:.2f}   "
            f"PAC-S {metrics['eval_pac_s']:.3f}   RefPAC-S {metrics['eval_refpac_s']:.3f}"
        )

    def on_log(self, args, state, control, logs, **_):
        if "eval_distinct_2" in logs:
            change = ""
            if "eval_pac_s_difference" in logs:
                low, high = logs["eval_pac_s_difference_low"], logs["eval_pac_s_difference_high"]
                change = f"PAC-S {logs['eval_pac_s_difference']:+.3f} ({low:+.3f} to {high:+.3f}), "
                change += f"p = {logs['eval_pac_s_difference_p']:.2g}; "
            print(f"            {change}{logs['eval_captions_distinct']:.0%} of captions are distinct")


trainer.remove_callback(transformers.PrinterCallback)
trainer.add_callback(Report())
written = capeval_core.load("pacs", weights="tiny").score(
    [texts[1] for texts in held_out.references], held_out.images
)
print(f"true captions              PAC-S {written.mean:.3f}")
trainer.evaluate()
trainer.train()

# %% [markdown]
# ## Looking at captions
#
# The means are not all: `metrics.results` keeps each evaluation caption by caption, with a confidence
# interval and the signature that belongs in a report; `metrics.compare` tests one against another. We go back
# to the best checkpoint for it, with `from_pretrained`: `load_best_model_at_end=True` of transformers 5.23
# leaves the weights of a ViT inside a VisionEncoderDecoderModel as they are after the last step.

# %%
trainer.model = VisionEncoderDecoderModel.from_pretrained(trainer.state.best_model_checkpoint)
trainer.evaluate()
pacs = metrics.results["pacs"]
order = np.argsort(pacs.scores)
for row in [*order[:3], *order[-3:]]:
    print(f"{pacs.scores[row]:.3f}   {metrics.captions[row]}\n        ({held_out.references[row][0]})")
interval = pacs.interval()
print(f"PAC-S {pacs.mean:.3f}, 95% interval {interval.low:.3f} to {interval.high:.3f}")
print(pacs.signature)
print(f"the best checkpoint against the first evaluation: {metrics.compare(-1, 0)['pacs']}")
folder.cleanup()

# %% [markdown]
# ## For a real captioner
#
# - `CaptionMetrics(processor, images=dataset["image"], references=dataset["captions"])`: leave out `weights`,
#   so that PAC-S has its published ones, and pass the processor of your model, as `AutoProcessor` gives it.
# - The evaluation set and `images` must have the same order. Of several evaluation sets pass dicts:
#   `eval_dataset={"coco": ..., "nocaps": ...}`, `images={"coco": ..., "nocaps": ...}`, and so on.
# - A chat captioner generates the question again: `CaptionMetrics(Answers(processor), ...)` cuts it off.
# - `batch_eval_metrics=True` saves memory where the evaluation set is large; nothing else changes.
# - On several GPUs, start it with `torchrun`: each process scores its share.
# - PAC-S with published weights lies between 0.7 and 0.9 for good captioners: compare with the table in the
#   metric's card, not with the numbers above.
