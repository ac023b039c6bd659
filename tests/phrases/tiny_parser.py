"""A tiny T5 that has learnt a few scene graphs by heart, with a tokenizer of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

PROMPT = "Generate Scene Graph: "
GRAPHS = {
    "a brown dog runs in the park": "( dog , is , brown ) , ( dog , run in , park )",
    "two men": "( men , is , 2 )",
    "a boy holds a red ball near a dog": "( ball , is , red ) , ( boy , hold , ball ) , ( dog , near , boy )",
    "many birds of two different species": "( birds )",
    "nonsense": "wall wall",
    "a red ball": "( ball , is , red ) , ( ball , is",
}


def save(folder: Path, steps: int = 200) -> None:
    """Learn the graphs (about a second) and save model and tokenizer as transformers does."""
    words = [word for pair in GRAPHS.items() for text in pair for word in text.split()]
    vocabulary = ["<pad>", "</s>", "<unk>", *dict.fromkeys([*PROMPT.split(), *words])]
    inner = Tokenizer(models.WordLevel({w: i for i, w in enumerate(vocabulary)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    made: Any = PreTrainedTokenizerFast
    tokenizer = made(tokenizer_object=inner, pad_token="<pad>", eos_token="</s>", unk_token="<unk>")
    sizes: dict[str, Any] = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4}
    sizes |= {"decoder_start_token_id": 0}
    with torch.random.fork_rng():
        torch.manual_seed(3)
        config = T5Config(vocab_size=len(vocabulary), dropout_rate=0.0, **sizes)
        model = T5ForConditionalGeneration(config)
        inputs = tokenizer([PROMPT + text for text in GRAPHS], padding=True, return_tensors="pt")
        labels = tokenizer(list(GRAPHS.values()), padding=True, return_tensors="pt")["input_ids"]
        labels[labels == 0] = -100
        optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
        for _ in range(steps):
            optimizer.zero_grad()
            model(**inputs, labels=labels).loss.backward()
            optimizer.step()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
