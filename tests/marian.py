"""Small Hugging Face Marian models, random or trained for a moment, in folders as OPUS-MT publishes them."""

import io
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import sentencepiece
import torch

TRANSLATIONS = {
    "the": "die", "cat": "Katze", "sat": "saß", "on": "auf", "a": "eine", "mat": "Matte", "dog": "Hund", "ran": "lief",
    "in": "im", "park": "Park", "we": "wir", "see": "sehen", "red": "rote", "and": "und", "green": "grüne",
    "birds": "Vögel", "forty": "vierzig", "two": "zwei", "seven": "sieben", "house": "Haus",
}  # fmt: skip
WORDS, OTHERS = list(TRANSLATIONS), list(TRANSLATIONS.values())
TAGS = (">>deu<<", ">>fra<<")


def lines(words: list[str], seed: int, count: int = 200) -> list[str]:
    chance = random.Random(seed)
    return [" ".join(chance.choices(words, k=chance.randint(2, 9))) for _ in range(count)]


def train_pieces(text: list[str], kind: str, size: int) -> bytes:
    """A sentencepiece model with the trainer's own defaults, as OPUS-MT has them."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text), model_writer=model, model_type=kind, vocab_size=size, hard_vocab_limit=False,
        minloglevel=5,
    )  # fmt: skip
    return model.getvalue()


def names(model: bytes) -> list[str]:
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    every = range(processor.get_piece_size())
    return [processor.id_to_piece(index) for index in every if not processor.is_control(index)]


def marian_folder(
    folder: Path,
    *,
    kind: str = "unigram",
    tags: bool = False,
    separate: bool = False,
    left_out: int = 0,
    pickled: bool = False,
    half: bool = False,
    steps: int = 0,
    **settings: Any,
) -> Path:
    """Ids as in OPUS-MT: </s>, <unk>, the pieces of both sides, tags, <pad>, with which the decoder starts.

    `left_out` pieces of the source have no id. `separate`: each side has ids of its own. `steps` of
    training; without any, the weights are random.
    """
    from transformers import MarianConfig, MarianMTModel, MarianTokenizer

    folder.mkdir(parents=True)
    source, target = train_pieces(lines(WORDS, 1), kind, 60), train_pieces(lines(OTHERS, 2), kind, 70)
    missing = set(names(source)[len(names(source)) - left_out :])
    pieces = [[name for name in names(model) if name not in missing] for model in (source, target)]
    if not separate:
        pieces = [list(dict.fromkeys([*pieces[0], *pieces[1]]))] * 2
    special = {"<unk>", "</s>"}
    vocabularies = [
        ["</s>", "<unk>", *(name for name in part if name not in special), *(TAGS if tags else ()), "<pad>"]
        for part in pieces
    ]
    if separate:  # the same special ids on both sides, as the library requires
        shorter = min(vocabularies, key=len)
        shorter[-1:-1] = [f"<filler {number}>" for number in range(abs(len(vocabularies[0]) - len(vocabularies[1])))]
    size = len(vocabularies[0])
    sizes: dict[str, Any] = {
        "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
        "encoder_attention_heads": 4, "decoder_attention_heads": 4, "activation_function": "swish",
        "scale_embedding": True, "max_position_embeddings": 64, "num_beams": 4,
        "share_encoder_decoder_embeddings": not separate,
    }  # fmt: skip
    config = MarianConfig(
        **{**sizes, **settings}, vocab_size=size, decoder_vocab_size=size, pad_token_id=size - 1, eos_token_id=0,
        forced_eos_token_id=0, decoder_start_token_id=size - 1,
    )  # fmt: skip
    (folder / "source.spm").write_bytes(source)
    (folder / "target.spm").write_bytes(target)
    for name, vocabulary in zip(("vocab.json", "target_vocab.json"), vocabularies, strict=True):
        if separate or name == "vocab.json":
            (folder / name).write_text(json.dumps({piece: index for index, piece in enumerate(vocabulary)}))
    tokenizer = {"tokenizer_class": "MarianTokenizer", "separate_vocabs": separate, "source_lang": "en"}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = MarianMTModel(config)
        with torch.no_grad():
            for weight in model.parameters():
                if weight.requires_grad:  # positions are fixed
                    weight.add_(0.1 * torch.randn_like(weight))
            model.final_logits_bias.add_(0.5 * torch.randn_like(model.final_logits_bias))
        if steps:
            train_by_words(model, MarianTokenizer.from_pretrained(folder), steps, TAGS if tags else ("",))
    with torch.no_grad():
        for embedding in {model.model.encoder.embed_tokens, model.model.decoder.embed_tokens}:
            embedding.weight[size - 1] = 0.0
    if half:
        model.half()
    model.save_pretrained(folder)
    if pickled:
        torch.save(model.state_dict(), folder / "pytorch_model.bin")  # noqa: TID251
        (folder / "model.safetensors").unlink()
    return folder


def train_by_words(model: Any, tokenizer: Any, steps: int, tags: Sequence[str] = ("",)) -> None:
    """Until it translates word by word, more or less."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    model.train()
    for step in range(steps):
        sources = lines(WORDS, 100 + step, 24)
        targets = [" ".join(TRANSLATIONS[word] for word in line.split()) for line in sources]
        tagged = [tags[number % len(tags)] + line for number, line in enumerate(sources)]
        batch = tokenizer(tagged, text_target=targets, return_tensors="pt", padding=True)
        batch["labels"][batch["labels"] == tokenizer.pad_token_id] = -100
        optimizer.zero_grad()
        model(**batch).loss.backward()
        optimizer.step()
    model.eval()
