"""The task of a configuration, and what to say where another one is needed."""

from dragoman.config import CLASSIFICATION, LANGUAGE_MODEL, TRANSLATION, Config
from dragoman.tasks.classification import Classification
from dragoman.tasks.language_model import LanguageModelling
from dragoman.tasks.task import Task
from dragoman.tasks.translation import Translating

TASKS: dict[str, Task] = {
    TRANSLATION: Translating(),
    LANGUAGE_MODEL: LanguageModelling(),
    CLASSIFICATION: Classification(),
}


def task_of(config: Config) -> Task:
    return TASKS[config.task]
