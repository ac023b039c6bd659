"""What an evaluation costs in a training once its pictures and references are known.

    python -m benchmarks.trainer [--fraction 0.1] [--evaluations 4]

A Seq2SeqTrainer evaluates a captioner several times and trains it in between, so that its captions change.
They are scored with PAC-S and RefPAC-S by seeded full-size ViT-B/32 weights, with 5 references each. Printed
is the time of later evaluations over that of the first: in the metrics alone, and of the whole
`trainer.evaluate()`, in which the captioner writes its captions. The goal is at most a third.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    GPT2Config,
    PreTrainedTokenizerFast,
    PrinterCallback,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    VisionEncoderDecoderConfig,
    VisionEncoderDecoderModel,
    ViTConfig,
    default_data_collator,
    set_seed,
)

from benchmarks.workload import Workload, make_weights, make_workload
from capeval_core.integrations import CaptionMetrics

SIDE = 48


class Timed:
    """`compute_metrics` that notes how long each evaluation takes."""

    def __init__(self, metrics: CaptionMetrics) -> None:
        self.metrics = metrics
        self.seconds: list[float] = []
        self.captions: list[list[str]] = []

    def __call__(self, evaluation: Any) -> dict[str, float]:
        start = time.perf_counter()
        values = self.metrics(evaluation)
        self.seconds.append(time.perf_counter() - start)
        self.captions.append(self.metrics.captions)
        return values


class Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """The pictures of the workload, small enough for a small captioner, with a reference as labels."""

    def __init__(self, work: Workload, tokenizer: PreTrainedTokenizerFast) -> None:
        self.rows = [
            self._row(path, texts[0], tokenizer)
            for path, texts in zip(work.pictures, work.references, strict=True)
        ]

    @staticmethod
    def _row(path: Path, text: str, tokenizer: PreTrainedTokenizerFast) -> dict[str, torch.Tensor]:
        pixels = np.asarray(Image.open(path).resize((SIDE, SIDE)), dtype=np.float32) / 127.5 - 1
        ids = [*tokenizer(text).input_ids, tokenizer.eos_token_id]
        labels = torch.tensor(ids + [-100] * (32 - len(ids)))
        return {"pixel_values": torch.tensor(pixels).permute(2, 0, 1), "labels": labels}

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        return self.rows[row]


def word_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    words = sorted({word for text in texts for word in text.split()})
    vocabulary = {word: i for i, word in enumerate(["<pad>", "<bos>", "<eos>", "<unk>", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
    )


def captioner(tokenizer: PreTrainedTokenizerFast) -> VisionEncoderDecoderModel:
    set_seed(0)
    special = {
        "decoder_start_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    config = VisionEncoderDecoderConfig.from_encoder_decoder_configs(
        ViTConfig(image_size=SIDE, patch_size=12, hidden_size=64, num_hidden_layers=2, num_attention_heads=2),
        GPT2Config(vocab_size=len(tokenizer), n_positions=32, n_embd=64, n_layer=2, n_head=2),
        **special,
    )
    model = VisionEncoderDecoderModel(config)
    # Drawn by lot, so that captions are as different as those of a captioner that has learnt something.
    model.generation_config.update(max_length=14, min_length=10, do_sample=True, **special)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--fraction", type=float, default=0.1, help="of 1,000 pictures with 5 references each"
    )
    parser.add_argument("--evaluations", type=int, default=4)
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        work = make_workload(folder, arguments.fraction)
        weights = make_weights("ViT-B-32", folder)
        tokenizer = word_tokenizer([text for texts in work.references for text in texts])
        metrics = Timed(
            CaptionMetrics(tokenizer, images=work.pictures, references=work.references, weights=weights)
        )
        rows = Rows(work, tokenizer)
        trainer = Seq2SeqTrainer(
            model=captioner(tokenizer),
            args=Seq2SeqTrainingArguments(
                output_dir=str(folder / "checkpoints"),
                predict_with_generate=True,
                per_device_eval_batch_size=50,
                max_steps=10,
                save_strategy="no",
                logging_strategy="no",
                report_to=[],
                disable_tqdm=True,
                dataloader_pin_memory=torch.cuda.is_available(),
            ),
            train_dataset=rows,
            eval_dataset=rows,
            data_collator=default_data_collator,
            processing_class=tokenizer,
            compute_metrics=metrics,
        )
        trainer.remove_callback(PrinterCallback)
        whole = []
        for turn in range(arguments.evaluations):
            if turn:
                trainer.train()
            start = time.perf_counter()
            trainer.evaluate()
            whole.append(time.perf_counter() - start)
    new = len(set(metrics.captions[-1]) - set(metrics.captions[-2]))
    print(
        f"{len(work.pictures)} pictures, {len(work.references[0])} references each, "
        f"{new} of the last evaluation's captions are new"
    )
    for name, seconds in (("metrics alone", metrics.seconds), ("trainer.evaluate()", whole)):
        ratios = [later / seconds[0] for later in seconds[1:]]
        print(
            f"{name}: first {seconds[0]:.2f} s, later {statistics.median(seconds[1:]):.2f} s, "
            f"later / first = {statistics.median(ratios):.3f} (from {min(ratios):.3f} to {max(ratios):.3f})"
        )


if __name__ == "__main__":
    main()
