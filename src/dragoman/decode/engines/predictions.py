"""What a model predicts by teacher forcing, and what it attends to meanwhile."""

from typing import NamedTuple

from dragoman.int8 import Array


class Predictions(NamedTuple):
    """At every target position of a batch; shapes as in search.py, L layers, S source positions."""

    weight_LBTS: Array  # attention of each layer to the source: the mean over its heads
    log_prob_BTC: Array  # of the best next ids, best first
    id_BTC: Array
