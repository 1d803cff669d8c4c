"""Neighbours in a learned embedding: are words of the same kind close to each other?

Shapes: N words, M width.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.model.transformer import Transformer
from dragoman.text.tokenizer import Tokenizer

ENGLISH = (
    ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
     "December"),
    ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"),
    ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"),
    ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine"),
)  # fmt: skip
GERMAN = (
    ("Januar", "Februar", "März", "April", "Mai", "Juni", "Juli", "August", "September", "Oktober", "November",
     "Dezember"),
    ("Montag", "Dienstag", "Mittwoch", "Donnerstag", "Freitag", "Samstag", "Sonntag"),
    ("zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig"),
    ("ein", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"),
)  # fmt: skip


def neighbours(model: Transformer, source: Tokenizer, target: Tokenizer) -> dict[str, Any]:
    """The English embedding, which is input only, and the German one, which is also the output projection."""
    torch.manual_seed(0)
    drawn = Transformer(model.config)
    sides = (
        ("English", source, ENGLISH, model.source_embedding, drawn.source_embedding),
        ("German", target, GERMAN, model.target_embedding, drawn.target_embedding),
    )
    results: dict[str, Any] = {}
    for language, tokenizer, kinds, trained, untrained in sides:
        results[language] = kinship(tokenizer, kinds, trained.weight.detach())
        results[f"{language}, untrained"] = kinship(tokenizer, kinds, untrained.weight.detach())
        del results[f"{language}, untrained"]["nearest"]
    return results


def kinship(tokenizer: Tokenizer, kinds: Sequence[Sequence[str]], table: Tensor) -> dict[str, Any]:
    """The nearest word by cosine of every listed word that is a single piece; how often both are of the same kind."""
    pieces = tokenizer.pieces(range(tokenizer.size))
    kind_of = {f"▁{word}": kind for kind, words in enumerate(kinds) for word in words}
    known = [index for index, piece in enumerate(pieces) if piece in kind_of]
    kinds_N = torch.tensor([kind_of[pieces[index]] for index in known])
    vectors_NM = F.normalize(table[known], dim=1)
    cosines_NN = (vectors_NM @ vectors_NM.T).fill_diagonal_(-1.0)
    kin_NN = kinds_N[:, None] == kinds_N
    others_NN = ~torch.eye(len(known), dtype=torch.bool)
    best = cosines_NN.max(dim=1)
    return {
        "words": len(known),
        "nearest is kin": float((kinds_N[best.indices] == kinds_N).float().mean()),
        "by chance": float(kin_NN[others_NN].float().mean()),
        "cosine among kin": float(cosines_NN[kin_NN & others_NN].mean()),
        "cosine among others": float(cosines_NN[~kin_NN].mean()),
        "nearest": {
            pieces[index]: (pieces[known[nearest]], cosine)
            for index, nearest, cosine in zip(known, best.indices.tolist(), best.values.tolist(), strict=True)
        },
    }
