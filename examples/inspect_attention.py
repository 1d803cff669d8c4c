"""Look inside a translation: where each target token attended to, and how sure the model was of it.

    python examples/inspect_attention.py

`dragoman inspect TEXT --out page.html` shows every head in a browser.
"""

import dragoman
from dragoman.pictures import terminal_heatmap


def main() -> None:
    translator = dragoman.load("en-de")
    result = translator.translate("I would like to thank you all.", attention=True)
    print(result.text)

    attention = result.attention
    assert attention is not None
    print("layers, heads, target tokens, source tokens:", attention.cross.shape)

    mean = attention.cross[-1].mean(axis=0)  # of all heads of the last layer; every row sums to 1
    print(terminal_heatmap(mean, attention.tokens, attention.source_tokens, color=False, width=100))

    # the head that looks most sharply, over the whole model
    sharpness = attention.cross.max(axis=-1).mean(axis=-1)  # [layer, head]
    layer, head = divmod(int(sharpness.argmax()), sharpness.shape[1])
    print(f"sharpest head: layer {layer + 1}, head {head + 1}")


if __name__ == "__main__":
    main()
