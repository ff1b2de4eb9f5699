"""Functions that a spec names by path. What one of the user's own raises, or gives instead of an answer, is told with
the path; an exception out of this package is a fault of its own, and keeps its traceback."""

from collections.abc import Callable, Iterable
from typing import Any

from roll.errors import ConfigError, describe
from roll.utils.imports import line_of, resolve


def ask(owner: str, path: str, kind: type[Any], *arguments: Any) -> Any:
    """The answer of one function, an object of `kind`. `owner`, such as "strategy plain", begins the message."""
    found = _call(owner, path, named(owner, path), *arguments)
    if not isinstance(found, kind):
        raise ConfigError(f"{owner}: {path} returned a {type(found).__name__}. It must return a {kind.__name__}.")
    return found


def findings(owner: str, path: str, kind: type[Any] | tuple[type[Any], ...], *arguments: Any) -> list[Any]:
    """All that one function finds: objects of `kind`, returned in a list or yielded."""
    function = named(owner, path)
    found = _call(owner, path, lambda: _list(function(*arguments)))
    wrong = next((each for each in found or () if not isinstance(each, kind)), None)
    if found is None or wrong is not None:
        gave = "did not return a list" if found is None else f"gave a {type(wrong).__name__}"
        names = " or ".join(each.__name__ for each in (kind if isinstance(kind, tuple) else (kind,)))
        raise ConfigError(f"{owner}: {path} {gave}. It must yield {names}, or return a list of them, one per finding.")
    return found


def named(owner: str, path: str) -> Any:
    """What a path leads to."""
    try:
        return resolve(path)
    except ImportError as error:
        raise ConfigError(f"{owner}: {error}") from error


def _list(found: object) -> list[Any] | None:
    return list(found) if isinstance(found, Iterable) and not isinstance(found, str) else None


def _call(owner: str, path: str, function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        if path.startswith("roll."):
            raise
        raise ConfigError(f"{owner}: {path} raised {describe(error)}{line_of(error, __file__)}.") from error
