"""A small Hugging Face BART model, random or trained for a moment, in a folder as that library writes it."""

from pathlib import Path
from typing import Any

import torch

from tests.marian import OTHERS, WORDS, lines, train_by_words

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")  # ids 0 to 3, as in facebook/bart-base; <mask> is the last


def bart_folder(folder: Path, *, fast: bool = False, steps: int = 0, pickled: bool = False, **settings: Any) -> Path:
    """`fast`: with tokenizer.json alone, as newer versions of the library write it; otherwise as the older ones.

    `steps` of training; without any, the weights are random.
    """
    import tokenizers
    from transformers import AutoTokenizer, BartConfig, BartForConditionalGeneration

    folder.mkdir(parents=True)
    bpe = tokenizers.ByteLevelBPETokenizer()
    text = [*lines(WORDS, 1), *lines(OTHERS, 2), "it's 42 € — <br> and    more"]
    bpe.train_from_iterator(text, vocab_size=400, special_tokens=list(SPECIAL), show_progress=False)
    bpe.add_special_tokens(["<mask>"])
    bpe.save_model(str(folder))
    size = bpe.get_vocab_size()
    sizes: dict[str, Any] = {
        "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
        "encoder_attention_heads": 4, "decoder_attention_heads": 4, "max_position_embeddings": 64, "num_beams": 4,
    }  # fmt: skip
    config = BartConfig(**{**sizes, **settings}, vocab_size=size)
    config.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = BartForConditionalGeneration(config)
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(0.1 * torch.randn_like(weight))
            model.final_logits_bias.add_(0.5 * torch.randn_like(model.final_logits_bias))
        if steps:
            train_by_words(model, tokenizer, steps)
    model.save_pretrained(folder)
    if fast:
        for name in ("vocab.json", "merges.txt"):
            (folder / name).unlink()
        tokenizer.save_pretrained(folder)
    if pickled:
        torch.save(model.state_dict(), folder / "pytorch_model.bin")  # noqa: TID251
        (folder / "model.safetensors").unlink()
    return folder
