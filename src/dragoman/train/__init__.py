"""From corpora to a model directory: the loop, its loss, layouts, checkpoints and processes.

`dragoman.train(config, run)` trains. Python binds this package to the same name as soon as anything in it is imported,
so the package can be called as well and does the same.
"""

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    def __call__(self, *arguments: Any, **options: Any) -> Any:
        from dragoman.train.loop import train

        return train(*arguments, **options)


sys.modules[__name__].__class__ = _Callable
