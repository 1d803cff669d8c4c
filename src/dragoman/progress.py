"""How a long job reports its progress: by calling a function. Knows nothing of terminals."""

from collections.abc import Callable

Advance = Callable[[int], None]  # called with how much was completed since the last call


def no_progress(_count: int) -> None:
    """Ignore progress."""
