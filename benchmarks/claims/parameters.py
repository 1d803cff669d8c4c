"""Where the parameters are: the share of the feed-forward part."""

import re
from collections.abc import Mapping
from typing import Any

from dragoman.config import TransformerConfig
from dragoman.model.footprint import parameter_counts


def parameters() -> dict[str, Any]:
    """The feed-forward share of all parameters, of the layers' (no embeddings), of the encoder's, of the decoder's."""
    results = {}
    for name, vocab_size in (("base", 37_000), ("big", 37_000), ("base", 8_000)):
        counts = parameter_counts(TransformerConfig.preset(name, vocab_size=vocab_size))

        def share(pattern: str, counts: Mapping[str, int] = counts) -> float:
            among = {part: count for part, count in counts.items() if re.search(pattern, part)}
            return sum(count for part, count in among.items() if "feed-forward" in part) / sum(among.values())

        results[f"{name}, {vocab_size:,} pieces"] = {
            "parameters": sum(counts.values()),
            "of all": share(""),
            "of the layers": share("^(encoder|decoder)"),
            "of the encoder": share("^encoder"),
            "of the decoder": share("^decoder"),
        }
    return results
