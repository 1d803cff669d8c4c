"""Translate with the bundled model: one sentence, several, alternatives, and what can be known of each.

python examples/translate.py
"""

import dragoman


def main() -> None:
    translator = dragoman.load("en-de")  # or the --out of `dragoman train`

    result = translator.translate("Where is the nearest train station?")
    print(result.text)
    print(f"log-probability {result.score:.2f}, status {result.status}")

    # a list in, a list out, in the same order
    for result in translator.translate(["Good morning!", "", "See you tomorrow."]):
        print(f"{result.source!r} -> {result.text!r} ({result.status})")

    # the best of a wider beam
    result = translator.translate("I like it.", beam=8, n_best=3)
    for alternative in result.alternatives:
        print(f"{alternative.normalized_score:6.2f}  {alternative.text}")


if __name__ == "__main__":
    main()
