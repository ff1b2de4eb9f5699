"""A tool class of verl's, used as it is: verl is not imported unless the class does so itself."""

import asyncio
import inspect
import json
from collections.abc import Mapping
from typing import Any

from roll.envs.tools.base import Tool, ToolError, first_between
from roll.envs.tools.toolset import as_text
from roll.errors import EnvError
from roll.utils.imports import resolve

_METHODS = ("create", "execute", "release")


class SchemaPart:
    """A mapping whose entries are attributes as well, as those of verl's schemas are. Entries that are not there are
    None."""

    def __init__(self, entries: Mapping[str, Any]):
        self._entries = dict(entries)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        value = self._entries.get(name)
        return SchemaPart(value) if isinstance(value, Mapping) else value

    def __getitem__(self, name: str) -> Any:
        return self._entries[name]

    def model_dump(self, **_: Any) -> dict[str, Any]:
        """The mapping itself: nothing unset is in it."""
        return dict(self._entries)


class VerlTool(Tool):
    """Calls a class with verl's interface (`BaseTool`): create, execute and release, one after the other for each call,
    as verl's agent loop does. `<name>{"argument": value}</name>` in an answer is a call.

    `class_name`, `config` and `tool_schema` are those of an entry of verl's tool configuration. `create` gets the
    `create_kwargs` that `extra_info.tools_kwargs` of the episode's row has for the tool: as a mapping of that name, and
    one by one where it has parameters of their names, as in older versions. What the tool says of rewards has no say,
    as in verl unless a reward function asks for it. Raises ImportError, or EnvError for a class without this interface.
    """

    def __init__(
        self, class_name: str, config: Mapping[str, Any] | None = None, tool_schema: Mapping[str, Any] | None = None
    ):
        self._path = class_name
        cls: Any = resolve(class_name)
        if missing := [name for name in _METHODS if not callable(getattr(cls, name, None))]:
            raise EnvError(f"class_name: {class_name} is no tool of verl's: it has no {', '.join(missing)}")
        self._of_create = inspect.signature(cls.create).parameters
        self._create_kwargs: dict[str, Any] = {}
        self._tool = cls(dict(config or {}), SchemaPart(tool_schema) if tool_schema else None)
        function = _function(self._tool, tool_schema)
        self.name, self._parameters = str(function["name"]), function.get("parameters") or {}
        shown = json.dumps(self._parameters.get("properties") or {}, ensure_ascii=False)
        self.example = json.dumps(dict.fromkeys(self._parameters.get("required") or (), "1"))
        self.instruction = (
            f"<{self.name}>{self.example}</{self.name}>: {function.get('description') or 'a tool'} Its arguments are "
            f"JSON: {shown}"
        )

    def find(self, answer: str) -> tuple[int, str] | None:
        return first_between(answer, self.name)

    def begin(self, row: Mapping[str, Any]) -> None:
        kwargs: Any = row
        for key in ("extra_info", "tools_kwargs", self.name, "create_kwargs"):
            kwargs = kwargs.get(key) if isinstance(kwargs, Mapping) else None
        self._create_kwargs = dict(kwargs) if isinstance(kwargs, Mapping) else {}

    def run(self, call: str) -> str:
        try:
            arguments = json.loads(call)
        except ValueError as error:
            raise ToolError(f"Invalid JSON in arguments for '{self.name}': {error}") from None
        if not isinstance(arguments, dict):
            raise ToolError(f"Arguments for '{self.name}' are a JSON object, not {type(arguments).__name__}.")
        return _text(self._path, asyncio.run(self._called(arguments)))

    def _for_create(self) -> dict[str, Any]:
        taken, kwargs = self._of_create, self._create_kwargs
        given = {key: value for key, value in kwargs.items() if key in taken}
        takes_any = any(each.kind is each.VAR_KEYWORD for each in taken.values())
        return given | ({"create_kwargs": kwargs} if takes_any or "create_kwargs" in taken else {})

    async def _called(self, arguments: dict[str, Any]) -> Any:
        instance = None
        try:
            created = await self._tool.create(**self._for_create())
            instance = created[0] if isinstance(created, tuple) else created
            return await self._tool.execute(instance, arguments)
        finally:
            if instance is not None:
                await self._tool.release(instance)


def _function(tool: Any, given: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Name, description and parameters of the tool: those of the file, or what the tool says itself."""
    schema: Any = given or getattr(tool, "tool_schema", None)
    if hasattr(schema, "model_dump"):
        schema = schema.model_dump(exclude_none=True)
    function = schema.get("function") if isinstance(schema, Mapping) else None
    if not isinstance(function, Mapping) or not function.get("name"):
        raise EnvError(f"tool_schema of {type(tool).__name__} has no function.name, and the class gives none itself")
    return function


def _text(path: str, result: Any) -> str:
    """Return the text of (response, reward, metrics) for the policy; older versions of verl respond with a text."""
    response = result[0] if isinstance(result, tuple) else result
    if isinstance(response, str) or response is None:
        return as_text(response)
    if any(getattr(response, kind, None) for kind in ("image", "video")):
        raise EnvError(f"class_name: {path} responds with pictures, which no tool of an episode can show here")
    return as_text(getattr(response, "text", response))
