"""Set-up of logging: INFO to stderr and everything to a file, without secrets and without characters that control a
terminal."""

import logging
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from roll.errors import StorageError
from roll.utils.secrets import mask
from roll.utils.text import visible

_FORMAT = "%(asctime)s %(levelname).1s {tag}%(name)s: %(message)s"
_CHATTY = ("urllib3", "filelock", "fsspec", "matplotlib", "asyncio", "httpx", "git")


class SecretFilter(logging.Filter):
    """Masks known secret values, and credentials in URLs, in message, arguments and traceback of every record, and
    spells out characters that steer a terminal."""

    def __init__(self, secrets: Iterable[str] = ()):
        super().__init__()
        self._secrets = tuple(secrets)

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = self._clean(record.getMessage()), ()
        if record.exc_info and not record.exc_text:
            # a Formatter uses exc_text when it is there, so the traceback is formatted here and masked once
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        if record.exc_text:
            record.exc_text = self._clean(record.exc_text)
        if record.stack_info:
            record.stack_info = self._clean(record.stack_info)
        return True

    def _clean(self, text: str) -> str:
        return visible(mask(text, self._secrets))


@contextmanager
def logging_given_back() -> Iterator[None]:
    """Afterwards the root logger has the handlers and the level that it has now."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    try:
        yield
    finally:
        for handler in [each for each in root.handlers if each not in handlers]:
            root.removeHandler(handler)
            handler.close()
        root.setLevel(level)


def configure_logging(
    level: int | str = logging.INFO,
    directory: Path | str | None = None,
    tag: str = "",
    secrets: Iterable[str] = (),
    terminal: logging.Handler | None = None,
) -> Path | None:
    """Sends this process's records to stderr and to `<directory>/<tag>.log`; returns that file.

    tag names the process, e.g. `driver` or `actor_train-3`; a worker's stands before its lines. terminal replaces the
    plain stderr handler (roll.run.display.console.terminal_handler, which does not disturb the progress bar).
    Called again, it replaces what the first call set up.
    """
    prefix = f"[{tag}] " if tag and tag != "driver" else ""
    formatter = logging.Formatter(_FORMAT.format(tag=prefix), datefmt="%H:%M:%S")
    stream = terminal
    if stream is None:
        stream = logging.StreamHandler(sys.stderr)
        stream.setFormatter(formatter)
    handlers = [stream]

    path = None
    if directory is not None:
        path = Path(directory) / f"{tag or 'roll'}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        handlers.append(logging.FileHandler(path, encoding="utf-8", delay=True))
        handlers[-1].setFormatter(logging.Formatter(_FORMAT.format(tag=f"[{tag or 'roll'} {os.getpid()}] ")))

    root = logging.getLogger()
    for handler in list(root.handlers):
        if isinstance(next(iter(handler.filters), None), SecretFilter):  # one that an earlier call put there
            root.removeHandler(handler)
            handler.close()
    for handler in handlers:
        handler.addFilter(SecretFilter(secrets))
        root.addHandler(handler)
    root.setLevel(level)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)
    return path


# What a command says at the terminal.


def say(text: str) -> None:
    """A line to standard output. Raises BrokenPipeError where who read has gone, StorageError where it cannot be
    written; whatever follows is lost then, so that Python does not complain once more at its end."""
    if sys.stdout is None:  # as after `>&-`
        raise StorageError("standard output cannot be written: it is closed")
    try:
        sys.stdout.writelines((visible(text), "\n"))  # two writes: the second fails where the first fell short
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise
        raise StorageError(f"standard output cannot be written: {error.strerror}") from None
