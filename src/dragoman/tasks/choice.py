"""The task of a configuration."""

from dragoman.config import CLASSIFICATION, FORECASTING, LANGUAGE_MODEL, TRANSCRIPTION, TRANSLATION, Config
from dragoman.tasks.classification import ClassificationTask, VectorLabelStore
from dragoman.tasks.forecasting import ForecastingTask
from dragoman.tasks.language_model import LanguageModelTask
from dragoman.tasks.sources import VectorSource
from dragoman.tasks.task import Task
from dragoman.tasks.transcription import TranscriptionTask
from dragoman.tasks.translation import TranslationTask

TASKS: dict[str, Task] = {
    TRANSLATION: TranslationTask(),
    LANGUAGE_MODEL: LanguageModelTask(),
    CLASSIFICATION: ClassificationTask(),
    TRANSCRIPTION: TranscriptionTask(),
    FORECASTING: ForecastingTask(),
}
VECTOR_TASKS: dict[str, Task] = {CLASSIFICATION: ClassificationTask(VectorSource(), VectorLabelStore)}


def task_of(config: Config) -> Task:
    return VECTOR_TASKS.get(config.task, TASKS[config.task]) if config.model.reads_vectors else TASKS[config.task]
