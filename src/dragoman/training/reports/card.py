"""The model card: data, training and scores, for people. Knows nothing of the loop."""

from collections.abc import Iterator, Mapping
from typing import Any

from dragoman.config import TrainConfig
from dragoman.model.footprint import parameter_table
from dragoman.tasks.choice import task_of
from dragoman.tasks.task import PreparedData
from dragoman.training.checkpoint import Progress


def _fine_tuning(settings: TrainConfig) -> Iterator[str]:
    if settings.start_from:
        yield f"- fine-tuned: began with the weights and the vocabulary of {settings.start_from}"
    for side in ("source", "target"):
        if getattr(settings, f"{side}_vectors"):
            yield f"- {side} embeddings began with the word vectors of {getattr(settings, f'{side}_vectors')}"
    if settings.freeze:
        yield f"- left as they were: {', '.join(settings.freeze)}"


def model_card(prepared: PreparedData, progress: Progress, scores: Mapping[str, Any]) -> str:
    config, data = prepared.config, prepared.config.data
    task = task_of(config)
    training = task.files[: len(task.files) // 2]
    files = dict.fromkeys(path for name in training for path in getattr(data, name))  # one may be given twice
    corpus = f"the generated corpus `{data.generated}`" if data.generated else ", ".join(files)
    units = dict.fromkeys(("exact_match", "accuracy", "macro_f1", "word_error_rate"), " (per cent)")
    measured = [
        f"| {name}{units.get(name, '')} | {value:.4g} |" for name, value in scores.items() if isinstance(value, float)
    ]
    lines = [
        f"# {task.title}",
        "",
        f"- trained on {corpus}: {len(prepared.train):,} {task.rows} (data key `{prepared.train.key[:16]}`)",
        f"- {task.describe_vocabulary(prepared)}",
        *_fine_tuning(config.train),
        f"- {progress.step:,} steps, {progress.tokens:,} {task.predicted}, {progress.seconds / 60:.1f} minutes, "
        f"seed {config.train.seed}",
        "",
        f"## Scores on the validation set, {task.describe_validation(prepared)}",
        "",
        "| metric | score |",
        "| --- | --- |",
        *measured,
        "",
        "## Parameters",
        "",
        "```",
        parameter_table(config.model),
        "```",
        "",
    ]
    return "\n".join(lines)
