"""The task of a configuration."""

from dragoman.config import CLASSIFICATION, LANGUAGE_MODEL, TRANSLATION, Config
from dragoman.tasks.classification import ClassificationTask
from dragoman.tasks.language_model import LanguageModelTask
from dragoman.tasks.task import Task
from dragoman.tasks.translation import TranslationTask

TASKS: dict[str, Task] = {
    TRANSLATION: TranslationTask(),
    LANGUAGE_MODEL: LanguageModelTask(),
    CLASSIFICATION: ClassificationTask(),
}


def task_of(config: Config) -> Task:
    return TASKS[config.task]
