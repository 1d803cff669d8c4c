"""Predict the peak memory of a run before its first step. Knows nothing of the loop.

Counted: weights, gradients, Adam's two moments (16 bytes per parameter) and the moving average; activations saved for
backward; logits and their gradient.
"""

import os
import sys
from dataclasses import replace
from pathlib import Path

import torch

from dragoman.config import Config, RecurrentConfig, StackSize, TransformerConfig
from dragoman.data.batching import groups_in
from dragoman.data.store import Store
from dragoman.model.footprint import parameter_counts
from dragoman.model.packed import kernels_fit
from dragoman.training.loss import rows_at_once

LIBRARIES = {"cpu": 600 << 20, "cuda": 300 << 20}  # in use before a model exists


def predicted_peak(
    config: Config, store: Store, layout: str, device: torch.device, precision: torch.dtype, shards: int = 1
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
    whole_corpus = int(max(store.source_lengths.sum(), store.target_lengths.sum())) + len(store.target_lengths)
    longest = int(max(store.source_lengths.max(), store.target_lengths.max())) + 1
    groups = groups_in(settings.batch_tokens, longest) if layout == "padded" else 1  # processed one after the other
    tokens = min(max(settings.batch_tokens // groups, longest), whole_corpus) * (2 if settings.r_drop else 1)
    if layout == "packed":
        source_tokens = round(tokens * (store.source_lengths.mean() + 1) / (store.target_lengths.mean() + 1))
        rows = rows_at_once(device, settings.r_drop)
        each = 16 if rows < rows_at_once(device) else 3 if half else 4  # bytes; with fewer rows, a float32 divergence
        logits = min(tokens, rows) * model.target_vocabulary * each
    else:
        source_tokens = tokens
        # on the CPU freed memory is kept, and buckets of different shapes fragment it
        each = 24 if device.type == "cpu" else 14 if half else 12
        logits = tokens * model.target_vocabulary * each
    width = 2.0 if half else 4.0
    if layout == "padded" and half:
        width = 3.2  # layer norms keep float32
    if device.type == "cpu":
        width *= 1.4  # fragmentation; packed attention's padded copies
    if isinstance(model, RecurrentConfig):
        saved = _recurrent(model, tokens)
    elif layout == "packed" and kernels_fit(model, device):
        saved = _saved(_with_padded_heads(model.encoder), _with_padded_heads(model.decoder), source_tokens, tokens)
    else:
        saved = _saved(model.encoder, model.decoder, source_tokens, tokens)
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


def _saved(encoder: StackSize, decoder: StackSize, source_tokens: int, target_tokens: int) -> int:
    """Numbers saved for backward by all layers: inputs of products, queries, keys, values, sums before a norm."""
    each_encoder = _attention(encoder) + 3 * encoder.d_model + _feed_forward(encoder)
    each_decoder = _attention(decoder) + 3 * decoder.d_model + _feed_forward(decoder)
    cross = decoder.num_heads * (decoder.d_k + decoder.d_v) + 3 * decoder.d_model
    memory = decoder.num_heads * (decoder.d_k + decoder.d_v)
    return source_tokens * (encoder.num_layers * each_encoder + decoder.num_layers * memory + 2 * encoder.d_model) + (
        target_tokens * (decoder.num_layers * (each_decoder + cross) + 2 * decoder.d_model)
    )


def _attention_weights(model: TransformerConfig, store: Store, target_tokens: int) -> int:
    """Saved in addition by attention without a kernel: a number per pair of tokens that may attend."""
    encoder, decoder = model.encoder, model.decoder
    source, target = store.source_lengths + 1.0, store.target_lengths + 1.0
    of_source = encoder.num_layers * encoder.num_heads * (source * source).sum()
    of_target = decoder.num_layers * decoder.num_heads * (target * (target + source)).sum()
    return int((of_source + of_target) * target_tokens / target.sum())


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
