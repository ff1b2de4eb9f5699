"""What a command says at the terminal."""

import os
import sys

from roll.errors import StorageError
from roll.utils.text import visible


def say(text: str) -> None:
    """A line to standard output. Raises BrokenPipeError where who read has gone, StorageError where it cannot be
    written; whatever follows is lost then, so that Python does not complain once more at its end."""
    try:
        sys.stdout.writelines((visible(text), "\n"))  # two writes: the second fails where the first fell short
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise
        raise StorageError(f"standard output cannot be written: {error.strerror}") from None
