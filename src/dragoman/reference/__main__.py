"""python -m dragoman.reference: check every gradient, then learn to copy. Exit 0 when both succeed."""

import sys
import time
from dataclasses import replace

import numpy as np

from dragoman.reference import check, copying
from dragoman.reference.parameters import Config, initialise
from dragoman.reference.training import Adam, learning_rate, loss_and_gradients

SMALL = Config(vocab_size=7, num_layers=2, d_model=8, d_ff=12, num_heads=2)
VARIANTS: dict[str, Config] = {
    "post-norm, as in the paper": SMALL,
    "pre-norm, GELU": replace(SMALL, norm="pre", activation="gelu"),
    "nothing tied, output bias, d_k 3, d_v 5": replace(
        SMALL, share_source_target=False, share_target_output=False, output_bias=True, d_k=3, d_v=5
    ),
    "another decoder, swish, no attention bias, no positions": replace(
        SMALL,
        share_source_target=False,
        target_vocab_size=9,
        decoder_num_layers=1,
        decoder_d_model=6,
        decoder_num_heads=3,
        activation="swish",
        attention_bias=False,
        positions="none",
    ),
}

COPIER = Config(vocab_size=copying.VOCABULARY, num_layers=1, d_model=32, d_ff=64, num_heads=4)
BATCH, WARMUP_STEPS, MAX_STEPS, LOOK_EVERY, TEST_SENTENCES = 64, 200, 3_000, 100, 500


def check_gradients() -> bool:
    """Print the difference between each derived and measured gradient; True if all are within the tolerance."""
    print(f"Gradients against central differences: the largest relative difference (tolerance {check.TOLERANCE:.0e})")
    random = np.random.default_rng(0)
    differences = dict(check.check_functions(random))
    for variant, config in VARIANTS.items():
        parameters = dict(check.check_model(config, random))
        differences[f"{variant} ({len(parameters)} arrays)"] = float(
            np.max(list(parameters.values()))
        )  # unlike max(), it keeps a NaN
    for name, difference in differences.items():
        print(f"  {name:<70} {difference:.1e}")
    right = all(difference < check.TOLERANCE for difference in differences.values())
    print("  all right" if right else "  WRONG")
    return right


def learn_to_copy() -> bool:
    """Train until every test sentence is copied without a mistake; False if that never happens."""
    random = np.random.default_rng(0)
    parameters, adam = initialise(COPIER, random), Adam()
    test = copying.draw(TEST_SENTENCES, random)
    print(f"The copy task: {copying.NUM_SYMBOLS} symbols, 1 to {copying.LONGEST} in a sentence")
    for step in range(1, MAX_STEPS + 1):
        loss, gradients = loss_and_gradients(parameters, COPIER, copying.draw(BATCH, random))
        adam.update(parameters, gradients, learning_rate(step, COPIER.d_model, WARMUP_STEPS))
        if step % LOOK_EVERY == 0:
            right = copying.share_right(parameters, COPIER, test)
            print(f"  step {step:>5}  loss {loss:.3f}  copied {right:6.1%} of {TEST_SENTENCES}", flush=True)
            if right == 1.0:
                print("  solved")
                return True
    print(f"  NOT solved in {MAX_STEPS} steps")
    return False


def main() -> int:
    start = time.perf_counter()
    succeeded = check_gradients() and learn_to_copy()
    print(f"{time.perf_counter() - start:.1f} s")
    return 0 if succeeded else 1


if __name__ == "__main__":
    sys.exit(main())
