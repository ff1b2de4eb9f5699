"""Tools of an episode, which a policy calls by name and arguments: their schemas, and a call."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from roll.envs.tools.base import ToolError
from roll.errors import EnvError

Schema = Mapping[str, Any]
"""A tool as chat templates show it: {"type": "function", "function": {"name", "description", "parameters"}}."""


class ToolsLost(EnvError):
    """The tools are gone, and with them what the episode has changed: another attempt has to begin anew."""


class ToolSet(ABC):
    """Tools of one episode. `is_parallel`: several calls may run at once; else they run in order."""

    is_parallel = True
    num_deaths = 0
    """How often what is behind the tools died under a call of this episode."""

    @abstractmethod
    async def schemas(self) -> Sequence[Schema]:
        """The tools, asked for once, when the episode begins. Raises EnvError."""

    @abstractmethod
    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """The result of a call. Raises ToolError with what the policy reads in its place, and EnvError, which ends the
        episode."""

    @abstractmethod
    async def close(self) -> None:
        """Ends what belongs to the episode alone."""


class ToolBox:
    """The tools of several sets under their names."""

    def __init__(self, sets: Mapping[str, ToolSet]):
        """`sets` by the key of the YAML that says what they are."""
        self._sets = sets
        self._owners: dict[str, ToolSet] = {}

    async def open(self) -> list[Schema]:
        """All schemas. Raises EnvError if two tools have one name, or there is none."""
        places: dict[str, str] = {}
        shown: list[Schema] = []
        for place, tools in self._sets.items():
            for schema in await tools.schemas():
                name = str(schema["function"]["name"])
                if name in places:
                    raise EnvError(
                        f"two tools are called {name}: of {places[name]} and of {place}. Set prefix of one of the "
                        "tool_servers, for example prefix: other_."
                    )
                places[name], self._owners[name] = place, tools
                shown.append(schema)
        if not shown:
            raise EnvError(f"{' and '.join(self._sets)} have no tools")
        return shown

    def is_parallel(self, name: str) -> bool:
        return name not in self._owners or self._owners[name].is_parallel

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """The result of a call, by the set that has the tool. Raises what ToolSet.call raises."""
        if name not in self._owners:
            raise ToolError(f"there is no tool {name}. Tools: {', '.join(self._owners)}.")
        return await self._owners[name].call(name, arguments)

    @property
    def num_deaths(self) -> int:
        return sum(tools.num_deaths for tools in self._sets.values())

    async def close(self) -> None:
        for tools in self._sets.values():
            await tools.close()


def as_text(value: Any) -> str:
    """The result of a tool as the policy reads it: texts as they are, nothing for None, else JSON where it is some."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return str(value)


Count = Callable[[str], int]
"""How many tokens a text has."""
_MOST_CHARACTERS = 6  # for each token that is kept: what is tried first


def cut_in_middle(text: str, most: int, count: Count) -> str:
    """The text if it has at most so many tokens; else its beginning and its end, with a line between them that says how
    much is left out.

    Example: of 9000 characters and 1024 tokens, the first and the last 2400 and "[4200 characters left out]".
    """
    side = most * _MOST_CHARACTERS // 2
    if len(text) <= 2 * side and count(text) <= most:
        return text
    side = min(side, len(text) // 2)
    while True:
        cut = f"{text[:side]}\n[{len(text) - 2 * side} characters left out]\n{text[len(text) - side :]}"
        length = count(cut)
        if length <= most or side <= 1:
            return cut
        side = max(1, min(side - 1, int(0.97 * side * most / length)))
