"""Problems of a configuration: one `Problem` per finding, and the words to suggest something better."""

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from roll.errors import ConfigError, describe
from roll.utils.imports import line_of, resolve

Whose = Literal["run", "place", "machine"]


@dataclass(frozen=True)
class Problem:
    """A finding and the YAML paths it depends on. A path that is itself broken silences the findings built on it.

    Every problem stops a start. `of`: what would have to change, and so what a plan says of it. run: the settings, the
    model or the user's code; a plan fails. place: a file, a folder or a login that this machine lacks; a plan fails,
    unless it is made for another machine. machine: a package, a GPU or the hub; a plan lists it as not checked."""

    text: str
    keys: tuple[str, ...] = ()
    of: Whose = "run"

    def __str__(self) -> str:
        return self.text


SLIP = 0.85  # how alike an unknown key must be to a known one to be taken for it misspelt


def nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known word most like this one, if any is alike.

    Example: nearest("learning_rat", ["learning_rate", "seed"]) == "learning_rate"
    """
    matches = difflib.get_close_matches(word.lower(), list(known), n=1, cutoff=cutoff)
    return matches[0] if matches else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A sentence with the nearest known word, or nothing."""
    match = nearest(word, known)
    return f" Did you mean {match}?" if match else ""


def ids_text(ids: Iterable[int]) -> str:
    """Device ids for people. Example: ids_text([0, 1, 2, 3, 8]) == "0..3, 8"; ids_text([0, 2, 4, 6]) == "0..6 by 2"."""
    parts: list[str] = []
    rest = list(ids)
    while rest:
        run, step = 1, rest[1] - rest[0] if len(rest) > 1 else 0
        while step > 0 and run < len(rest) and rest[run] - rest[run - 1] == step:
            run += 1
        if run >= 3 or (run == 2 and step == 1):
            parts.append(f"{rest[0]}..{rest[run - 1]}" + (f" by {step}" if step > 1 else ""))
        else:
            run = 1
            parts.append(str(rest[0]))
        rest = rest[run:]
    return ", ".join(parts)


# Functions that a spec names by path. What one of the user's own raises, or gives instead of an answer, is told with
# the path; an exception out of this package is a fault of its own, and keeps its traceback.


def call_hook(owner: str, path: str, kind: type[Any], *arguments: Any) -> Any:
    """The answer of one function, an object of `kind`. `owner`, such as "strategy plain", begins the message."""
    returned = _call(owner, path, named(owner, path), *arguments)
    if not isinstance(returned, kind):
        raise ConfigError(f"{owner}: {path} returned a {type(returned).__name__}. It must return a {kind.__name__}.")
    return returned


def hook_findings(owner: str, path: str, kind: type[Any] | tuple[type[Any], ...], *arguments: Any) -> list[Any]:
    """All that one function finds: objects of `kind`, returned in a list or yielded."""
    function = named(owner, path)
    returned = _call(owner, path, lambda: _list(function(*arguments)))
    wrong = next((each for each in returned or () if not isinstance(each, kind)), None)
    if returned is None or wrong is not None:
        gave = "did not return a list" if returned is None else f"gave a {type(wrong).__name__}"
        names = " or ".join(each.__name__ for each in (kind if isinstance(kind, tuple) else (kind,)))
        raise ConfigError(f"{owner}: {path} {gave}. It must yield {names}, or return a list of them, one per finding.")
    return returned


def named(owner: str, path: str) -> Any:
    """Return the object at a path; raises ConfigError if there is none."""
    try:
        return resolve(path)
    except ImportError as error:
        raise ConfigError(f"{owner}: {error}") from error


def _list(result: object) -> list[Any] | None:
    return list(result) if isinstance(result, Iterable) and not isinstance(result, str) else None


def _call(owner: str, path: str, function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        if path.startswith("roll."):
            raise
        raise ConfigError(f"{owner}: {path} raised {describe(error)}{line_of(error, __file__)}.") from error
