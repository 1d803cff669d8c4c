"""Predict the peak memory of a run before its first step. Knows nothing of the loop.

Counted: weights, gradients, Adam's two moments (16 bytes per parameter) and the moving average; activations saved for
backward; logits and their gradient.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from dragoman.config import Config, LayersConfig, RecurrentConfig, StackSize
from dragoman.data.batching import groups_in
from dragoman.model.footprint import parameter_counts
from dragoman.model.loss import rows_at_once
from dragoman.model.packed import kernels_fit
from dragoman.tasks.task import AnyStore

LIBRARIES = {"cpu": 600 << 20, "cuda": 300 << 20}  # in use before a model exists


def predicted_peak(
    config: Config, store: AnyStore, layout: str, device: torch.device, precision: torch.dtype, shards: int = 1
) -> int:
    """Peak bytes of a step: on the device, or of the whole process on the CPU.

    `shards`: the number of processes that weights, gradients and moments are sharded over.
    """
    settings, model = config.train, config.model
    parameters = sum(parameter_counts(model).values())
    state = parameters * (16 + (4 if settings.ema else 0)) // shards
    half = precision != torch.float32
    if half:
        state += 2 * parameters  # autocast's copies
    whole_corpus = int(max(store.source_sizes.sum(), store.target_sizes.sum()))
    longest = int(store.sizes.max())
    groups = groups_in(settings.batch_tokens, longest) if layout == "padded" else 1  # processed one after the other
    tokens = min(max(settings.batch_tokens // groups, longest), whole_corpus) * (2 if settings.r_drop else 1)
    if layout == "packed":
        source_tokens = round(tokens * store.source_sizes.mean() / store.target_sizes.mean())
        rows = rows_at_once(device, settings.r_drop)
        each = 16 if rows < rows_at_once(device) else 3 if half else 4  # bytes; with fewer rows, a float32 divergence
        logits = min(tokens, rows) * model.target_vocabulary * each
    else:
        source_tokens = tokens
        # on the CPU freed memory is kept, and buckets of different shapes fragment it
        each = 24 if device.type == "cpu" else 14 if half else 12
        predicted = tokens if model.architecture != "encoder" else max(1, round(tokens / store.sizes.mean()))
        logits = predicted * model.target_vocabulary * each
    width = 2.0 if half else 4.0
    if layout == "padded" and half:
        width = 3.2  # layer norms keep float32
    if device.type == "cpu":
        width *= 1.4  # fragmentation; packed attention's padded copies
    if isinstance(model, RecurrentConfig):
        saved = _recurrent(model, tokens)
    elif layout == "packed" and kernels_fit(model, device):
        padded = {name: _with_padded_heads(size) for name, size in model.stacks.items()}
        saved = _saved(padded, source_tokens, tokens)
    else:
        saved = _saved(model.stacks, source_tokens, tokens)
        if layout == "packed":
            saved += _attention_weights(model, store, tokens)
            if device.type == "cuda":
                width *= 1.5  # padded copies; dropout masks
    activations = saved * width
    return int(state + activations + logits + LIBRARIES.get(device.type, 0))


def _with_padded_heads(size: StackSize) -> StackSize:
    """With heads padded to a width that the kernels support."""
    from dragoman.model.kernels import width_for

    width = width_for(size.d_k, size.d_v)
    return replace(size, d_k=width, d_v=width)


def _saved(stacks: Mapping[str, StackSize], source_tokens: int, target_tokens: int) -> int:
    """Numbers saved for backward by all layers: inputs of products, queries, keys, values, sums before a norm."""
    tokens = {"encoder": source_tokens, "decoder": target_tokens}
    saved = sum(
        tokens[name]
        * (size.num_layers * (_attention(size) + 3 * size.d_model + _feed_forward(size)) + 2 * size.d_model)
        for name, size in stacks.items()
    )
    if len(stacks) > 1:  # attention over the encoder's output
        decoder = stacks["decoder"]
        memory = decoder.num_heads * (decoder.d_k + decoder.d_v)
        saved += decoder.num_layers * (source_tokens * memory + target_tokens * (memory + 3 * decoder.d_model))
    return saved


def _attention_weights(model: LayersConfig, store: AnyStore, target_tokens: int) -> int:
    """Saved in addition by attention without a kernel: a number per pair of tokens that may attend."""
    source, target = store.source_sizes.astype(float), store.target_sizes.astype(float)
    looked_at = {"encoder": (source * source).sum(), "decoder": (target * (target + source)).sum()}
    pairs = sum(size.num_layers * size.num_heads * looked_at[name] for name, size in model.stacks.items())
    return int(pairs * target_tokens / target.sum())


def _attention(size: StackSize) -> int:
    return size.num_heads * (2 * size.d_k + 2 * size.d_v)


def _feed_forward(size: StackSize) -> int:
    return size.d_ff + 2 * size.d_model


def _recurrent(model: RecurrentConfig, tokens: int) -> int:
    return tokens * model.d_model * (12 * model.num_layers + 8)


def available_memory(device: torch.device) -> int:
    """Bytes of device memory, or of main memory as far as this process may use it."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    try:
        machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not on Windows
        return sys.maxsize
    try:
        return min(machine, int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))  # a container's own
    except (OSError, ValueError):
        return machine


def measured_peak(device: torch.device) -> int:
    """The actual peak in bytes."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # not on Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
