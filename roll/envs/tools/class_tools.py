"""A class whose public methods are tools, as in TRL: `reset(**task)` begins an episode, `get_reward()` judges it."""

import asyncio
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any, Protocol

from roll.envs.table import TOOL_CLASSES
from roll.envs.tools.base import tool_errors
from roll.envs.tools.toolset import Schema, ToolSet, as_text
from roll.errors import EnvError
from roll.utils.imports import resolve

REWARD, RESET = "get_reward", "reset"
NO_TOOLS = frozenset({RESET, REWARD, "close", "reward"})
"""Public names that are no tools."""
_METHODS = (FunctionType, staticmethod, classmethod)


class UserCode(Protocol):
    """Calls user code in a thread of its own, one call after the other."""

    async def call(self, what: str, function: Callable[..., Any], *arguments: Any) -> Any: ...

    def finished(self, result: Any) -> Any:
        """The result itself, or of a coroutine what it comes to; for functions that are called there."""
        ...


def tool_class(path: str) -> Any:
    """Raises ImportError, or EnvError if what it names is no class with tools."""
    cls = resolve(path, TOOL_CLASSES)
    if not inspect.isclass(cls):
        raise EnvError(f"{path} is not a class")
    if not tool_names(cls):
        raise EnvError(f"{path} has no public method that could be a tool")
    return cls


def tool_names(cls: type) -> list[str]:
    """Public methods in the order in which they are written, those of base classes first."""
    written = [name for base in reversed(cls.__mro__[:-1]) for name in vars(base)]
    public = [name for name in dict.fromkeys(written) if not name.startswith("_") and name not in NO_TOOLS]
    return [name for name in public if isinstance(inspect.getattr_static(cls, name), _METHODS)]


def method_problems(cls: type) -> Iterator[str]:
    """Yield why methods are no tools: each needs a docstring, type hints, a line for each argument, and arguments that
    can be given by name."""
    for name in tool_names(cls):
        try:
            _schema(cls, name)
            for one in inspect.signature(_bound(cls, name)).parameters.values():
                if one.kind not in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY):
                    yield f"{cls.__name__}.{name}: the argument {one.name} cannot be given by name"
        except Exception as error:  # a hint that does not resolve raises what it likes
            yield f"{cls.__name__}.{name} has no schema: {error}"


@functools.lru_cache(maxsize=64)
def class_schemas(cls: type) -> tuple[Schema, ...]:
    """The schemas of its methods. Raises EnvError that names the method."""
    if (problem := next(method_problems(cls), None)) is not None:
        raise EnvError(f"tool_class: {problem}")
    return tuple(_schema(cls, name) for name in tool_names(cls))


def _schema(cls: type, name: str) -> Schema:
    from transformers.utils.chat_template_utils import get_json_schema  # brings torch

    schema = get_json_schema(_bound(cls, name))
    schema["function"].pop("return", None)
    return {**schema, "function": {**schema["function"], "name": name}}


def _bound(cls: type, name: str) -> Any:
    """The method as an object has it, without making one: `self` is none of its arguments."""
    attribute = inspect.getattr_static(cls, name)
    if isinstance(attribute, staticmethod | classmethod):
        return getattr(cls, name)
    return getattr(cls, name).__get__(object(), cls)


class ClassTools(ToolSet):
    """An object of the class, made for the episode."""

    is_parallel = False

    def __init__(self, path: str, arguments: Mapping[str, Any], code: UserCode):
        self._path, self._arguments, self._code = path, arguments, code
        self._object: Any = None

    async def begin(self, task: Mapping[str, Any]) -> str | None:
        """Makes the object and resets it to the task; the text that it shows."""
        self._object = await self._code.call("the constructor", self._make)
        shown = await self._code.call(RESET, self._reset, task)
        if shown is not None and not isinstance(shown, str):
            raise EnvError(f"tool_class: {self._path}.reset returned {type(shown).__name__}, not text or None")
        return shown

    async def schemas(self) -> Sequence[Schema]:
        return await asyncio.to_thread(lambda: class_schemas(tool_class(self._path)))

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        return await self._code.call(name, self._answered, name, arguments)

    async def reward(self) -> Any:
        """Return the result of the tool's get_reward(), or its attribute `reward`. Raises EnvError if it has
        neither."""
        if not (hasattr(self._object, REWARD) or hasattr(self._object, "reward")):
            raise EnvError(f"tool_class: {self._path} has neither get_reward() nor an attribute reward")
        return await self._code.call(REWARD, self._judged)

    def _judged(self) -> Any:
        judge = getattr(self._object, REWARD, None) or self._object.reward
        return self._code.finished(judge()) if callable(judge) else judge

    def end(self) -> None:
        """Closes the object; called in the thread of its code."""
        if callable(close := getattr(self._object, "close", None)):
            self._code.finished(close())

    async def close(self) -> None:
        """The thread of its code ends it, see `end`."""

    def _make(self) -> Any:
        return tool_class(self._path)(**self._arguments)

    def _reset(self, task: Mapping[str, Any]) -> Any:
        if not callable(reset := getattr(self._object, RESET, None)):
            return None
        parameters = inspect.signature(reset).parameters.values()
        takes_all = any(one.kind is one.VAR_KEYWORD for one in parameters)
        names = task if takes_all else [one.name for one in parameters if one.name in task]
        return self._code.finished(reset(**{name: task[name] for name in names}))

    def _answered(self, name: str, arguments: Mapping[str, Any]) -> str:
        with tool_errors():
            return as_text(self._code.finished(getattr(self._object, name)(**arguments)))
