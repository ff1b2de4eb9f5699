"""`trinity_reward`: a reward function as Trinity-RFT calls them, by its path."""

import inspect
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from roll.rewards.base import RewardInput, RewardResult, finite
from roll.utils.imports import resolve

_ARGUMENTS = ("response", "prompt", "truth")


class TrinityReward:
    """The sum of what a reward function of Trinity-RFT returns: a number, or a mapping of names to numbers, which are
    metrics as well.

    `path` names a class, built once per process with `args` as keywords, or a function. It is called with those of
    `response`, `prompt` and `truth` that it takes, as keywords: the whole response with its thinking, the prompt's text
    and the row's `ground_truth`. Raises ValueError for a path that cannot be imported, and for one that wants anything
    else (`response_token` is not here: `num_response_tokens` of a reward of your own is, docs/adding_a_reward.md).
    """

    def __init__(self, path: str, args: Mapping[str, Any] | None = None):
        try:
            self._class = resolve(path)
        except ImportError as error:
            raise ValueError(f"path: {error}") from error
        self._args = dict(args or {})
        is_class = inspect.isclass(self._class)
        called: Any = self._class.__call__ if inspect.isclass(self._class) else self._class
        if not callable(self._class) or (is_class and "__call__" not in dir(self._class)):
            raise ValueError(f"path: {path} cannot be called with a response")
        if inspect.iscoroutinefunction(called):
            raise ValueError(f"path: {path} is async; a reward of your own may be (docs/adding_a_reward.md)")
        self._names = _names(path, called, is_class, {} if is_class else self._args)
        if is_class:
            try:
                inspect.signature(self._class).bind(**self._args)
            except TypeError as error:
                raise ValueError(f"args: {path} cannot be built with {self._args}: {error}") from None

    @cached_property
    def _call(self) -> Any:
        return self._class(**self._args) if inspect.isclass(self._class) else self._class

    def __call__(self, sample: RewardInput) -> RewardResult:
        values: dict[str, Any] = dict(
            zip(_ARGUMENTS, (sample.response_text, sample.prompt_text, sample.ground_truth), strict=True)
        )
        more = {} if inspect.isclass(self._class) else self._args
        returned = self._call(**{name: values[name] for name in self._names}, **more)
        parts = returned if isinstance(returned, Mapping) else {"": returned}
        scores = {str(name): finite(value) for name, value in parts.items()}
        if not scores or None in scores.values():
            raise TypeError(f"it returned {returned!r:.200}: a number is wanted, or a mapping of names to numbers")
        numbers = {name: value for name, value in scores.items() if value is not None}
        return RewardResult(sum(numbers.values()), {name: value for name, value in numbers.items() if name})


def _names(path: str, called: Any, is_method: bool, args: Mapping[str, Any]) -> tuple[str, ...]:
    """Return which of `response`, `prompt` and `truth` a function takes. Raises ValueError for one that needs more."""
    parameters = list(inspect.signature(called).parameters.values())[int(is_method) :]
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters)
    by_name = [each for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
    known = {each.name for each in by_name}
    needed = {each.name for each in by_name if each.default is each.empty}
    if missing := sorted(needed - {*_ARGUMENTS, *args}):
        raise ValueError(
            f"path: {path} wants {', '.join(missing)}; there are {', '.join(_ARGUMENTS)}. Give others as `args`, or "
            "write "
            "a reward of your own (docs/adding_a_reward.md)"
        )
    return tuple(name for name in _ARGUMENTS if name not in args and (name in known or takes_any))
