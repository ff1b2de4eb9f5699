"""Set-up of logging: INFO to stderr, everything to a file, without secrets or characters that steer a terminal."""

import logging
import os
import shutil
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any, Literal, TextIO, cast

from roll.errors import ConfigError, RollError, StorageError
from roll.utils.secrets import find_secrets, mask
from roll.utils.text import visible

_FORMAT = "%(asctime)s %(levelname).1s {tag}%(name)s: %(message)s"
_CHATTY = ("urllib3", "filelock", "fsspec", "asyncio", "httpx", "git")


_LIBRARIES = ("huggingface_hub", "transformers", "datasets", "vllm", "sglang", "ray", "DeepSpeed", "megatron", "wandb")


class _LibraryLogger(logging.Logger):
    """Logger of a library that would write to the terminal itself: its records go to the root's handlers alone."""

    @property
    def propagate(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return True

    @propagate.setter
    def propagate(self, value: bool) -> None: ...

    def addHandler(self, hdlr: logging.Handler) -> None:
        if isinstance(hdlr, logging.FileHandler):
            super().addHandler(hdlr)


def _take_over_libraries() -> None:
    for name in _LIBRARIES:
        library = logging.getLogger(name)
        library.handlers = [handler for handler in library.handlers if isinstance(handler, logging.FileHandler)]
        library.__class__ = _LibraryLogger


class MaskedStream:
    """A stream without secrets: the last way out for what libraries print beside the log."""

    def __init__(self, stream: TextIO):
        self.secrets: frozenset[str] = frozenset()
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(mask(text, self.secrets))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def masked_output() -> Iterator[None]:
    """Inside, what is written to stderr has no secrets, a traceback that ends the program included."""
    _take_over_libraries()
    with redirect_stderr(cast(TextIO, MaskedStream(sys.stderr))):
        try:
            yield
        except Exception:
            traceback.print_exc()
            raise SystemExit(1) from None


class SecretFilter(logging.Filter):
    """Masks secrets, and credentials in URLs, in every record, and spells out characters that steer a terminal."""

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
    more: Sequence[logging.Handler] = (),
) -> Path | None:
    """Sends this process's records to stderr and to `<directory>/<tag>.log`; returns that file. tag names the process,
    e.g. `driver` or `actor_train-3`. terminal replaces the plain stderr handler; `more` handlers get every record too.
    Called again, it replaces what the first call set up. Secrets of the environment are masked."""
    _take_over_libraries()
    environment = {name: value for name, value in os.environ.items() if name != "PWD"}  # the folder, no password
    secrets = find_secrets(environment).union(secrets)
    for masked in (sys.stdout, sys.stderr):
        if isinstance(masked, MaskedStream):
            masked.secrets = secrets
    prefix = f"[{tag}] " if tag and tag != "driver" else ""
    formatter = logging.Formatter(_FORMAT.format(tag=prefix), datefmt="%H:%M:%S")
    stream = terminal
    if stream is None:
        stream = logging.StreamHandler(sys.stderr)
        stream.setFormatter(formatter)
    handlers = [stream, *more]

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


Tone = Literal["", "good", "bad", "warning"]
_COLORS: dict[Tone, str] = {"": "", "good": "1;32", "bad": "1;31", "warning": "33"}


def toned(text: str, tone: Tone, stream: TextIO) -> str:
    """The text as a terminal shows it: lines of at most 120 characters and no more than fit, and the tone as a colour
    unless NO_COLOR is set. Unchanged for anything but a terminal."""
    if not stream.isatty():
        return text
    width, lines = min(120, shutil.get_terminal_size().columns), list[str]()
    wrapper = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False)
    for line in text.split("\n"):
        wrapper.subsequent_indent = " " * (4 + len(line) - len(line.lstrip()))
        lines.append(wrapper.fill(line))
    text = "\n".join(lines)
    color = "" if os.environ.get("NO_COLOR") else _COLORS[tone]
    return f"\033[{color}m{text}\033[0m" if color else text


OK, FAILED, BAD_USE, INTERRUPTED = 0, 1, 2, 130


def reported(act: Callable[[], int], cannot: str, failed: str) -> int:
    """Its exit code, or that of what it raises, which is told under `cannot` (ConfigError) or `failed`."""
    try:
        return act()
    except ConfigError as error:
        complain(cannot, error.problems)
        return BAD_USE
    except RollError as error:
        complain(failed.format(type(error).__name__), [str(error)])
        return FAILED
    except KeyboardInterrupt:
        complain("Interrupted.", [])
        return INTERRUPTED


def complain(title: str, problems: Iterable[str]) -> None:
    lines = [toned(title, "bad", sys.stderr), *(toned(f"  - {visible(each)}", "", sys.stderr) for each in problems)]
    sys.stderr.write("".join(f"{line}\n" for line in lines))
    sys.stderr.flush()


def say(text: str, is_secret: bool = False, tone: Tone = "") -> None:
    """A line to standard output, masked unless what is secret in it is for the reader. Raises BrokenPipeError where who
    read has gone, StorageError where it cannot be written; whatever follows is lost then, so that Python does not
    complain once more at its end."""
    if sys.stdout is None:  # as after `>&-`
        raise StorageError("standard output cannot be written: it is closed")
    try:
        sys.stdout.writelines(
            (toned(visible(text if is_secret else mask(text)), tone, sys.stdout), "\n")
        )  # two writes: the second fails where the first fell short
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise
        raise StorageError(f"standard output cannot be written: {error.strerror}") from None
