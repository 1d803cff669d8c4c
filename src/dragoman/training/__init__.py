"""From corpora to a model directory: the loop, its steps, checkpoints, validation and processes."""
