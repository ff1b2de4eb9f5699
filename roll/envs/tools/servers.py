"""Tools of servers of the Model Context Protocol, through its official package: started here, or reached over HTTP."""

import asyncio
import importlib
import json
import logging
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from roll.distributed.executor.processes.cleaner import MARK
from roll.envs.config import EPISODE, ToolServerConfig
from roll.envs.tools.base import ToolError
from roll.envs.tools.toolset import Schema, ToolSet, ToolsLost
from roll.errors import EnvError, describe
from roll.utils import supervision
from roll.utils.background import BackgroundTasks
from roll.utils.imports import file_on_path
from roll.utils.secrets import mask

TRIES = 3  # of a start, and of a call whose server died under it
_MOST_AT_ONCE = 32  # calls of one connection
_WAIT_S = 0.5  # before another start
_CLOSE_S = 10.0
_LONGEST_READ_S = 300.0  # of a stream of events: calls have their own limit
_GONE = ("Connection closed", "SSE stream", "Session terminated")
"""Beginnings of errors that say that the connection is of no use any more."""
_REFUSED = "Server returned an error response"
_AWAY = frozenset({401, 403, 404, 407, 408, 410, 429, *range(500, 600)})
"""HTTP statuses of a server that has forgotten the session, takes its key no more, or is away: no answers to a call."""
_PICTURES = {"image": "a picture", "audio": "a recording", "resource": "a file"}

logger = logging.getLogger(__name__)


class _Died(Exception):
    """The connection is gone; the text says how."""


@dataclass(eq=False)
class _Connection:
    """One connection, entered and left by the task `owner`: the package's scopes have to be left where they were
    entered. `status`: the last HTTP status of an error; `log_begin`: how many bytes its log had before."""

    owner: asyncio.Task[None]
    leave: asyncio.Event
    session: Any = None
    schemas: Sequence[Schema] = ()
    status: int = 0
    log_begin: int = 0
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_MOST_AT_ONCE))


class ToolServer:
    """One server, started when it is first needed, and again when it died. Any number of calls at once."""

    def __init__(self, name: str, config: ToolServerConfig, log: Path):
        self.name, self.config = name, config
        self._log = log
        self._connection: _Connection | None = None
        self._opening: asyncio.Task[_Connection] | None = None
        self._owners = BackgroundTasks(lambda error: None)  # whoever waits for a connection learns why there is none
        self._leaving: set[asyncio.Task[None]] = set()
        self.suspects = asyncio.Lock()
        """Lock of calls that a death has met: they go one by one, so that one that kills its server each time takes
        no others with it."""

    async def schemas(self) -> Sequence[Schema]:
        """Its tools as the server listed them when it was started, under its own names. Raises EnvError."""
        return (await self._opened()).schemas

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> str:
        """The text of the result. Raises ToolError, and _Died if the server died under the call."""
        connection = await self._opened()
        try:
            async with connection.slots, asyncio.timeout(self.config.timeout_s):
                result = await connection.session.call_tool(tool, dict(arguments))
        except TimeoutError:
            raise ToolError(f"{tool} took longer than {self.config.timeout_s:g} s") from None
        except Exception as error:
            if not _is_death(connection, error):
                raise ToolError(str(error) or describe(error)) from None
            self._bury(connection)
            if self.config.command is not None:  # its last words are in the log when it is gone
                await asyncio.wait({connection.owner}, timeout=_CLOSE_S)
            raise _Died(self._cause(connection, error)) from None
        return _text_of(tool, result)

    async def close(self) -> None:
        """Ends the connection and the server's processes, and waits for that."""
        if self._opening is not None:
            self._opening.cancel()
        if self._connection is not None:
            self._bury(self._connection)
        if self._leaving:
            await asyncio.wait(set(self._leaving), timeout=_CLOSE_S)

    # --- connections

    async def _opened(self) -> _Connection:
        """The connection that is there, or a new one: all who wait for it share one start."""
        connection = self._connection
        if connection is not None and not connection.owner.done():
            return connection
        if self._opening is None or self._opening.done():
            self._opening = self._owners.start(self._open())
        return await asyncio.shield(self._opening)

    async def _open(self) -> _Connection:
        cause = ""
        for number in range(TRIES):
            await asyncio.sleep(_WAIT_S * number)
            ready: asyncio.Future[_Connection] = asyncio.get_running_loop().create_future()
            owner = self._owners.start(self._hold(ready, asyncio.Event()))
            self._leaving.add(owner)
            owner.add_done_callback(self._leaving.discard)
            try:
                self._connection = connection = await asyncio.shield(ready)
                return connection
            except asyncio.CancelledError:
                owner.cancel()
                raise
            except EnvError as error:
                cause = str(error)
        raise EnvError(self.text(f"cannot be used: {cause}"))

    async def _hold(self, ready: asyncio.Future[_Connection], leave: asyncio.Event) -> None:
        """Enters a connection, says so, and leaves it when it is asked to, or when the server is gone."""
        task = asyncio.current_task()
        assert task is not None
        connection = _Connection(task, leave, log_begin=self._log.stat().st_size if self._log.is_file() else 0)
        try:
            async with AsyncExitStack() as stack:
                mcp = await asyncio.to_thread(_package)
                read, write = await stack.enter_async_context(self._transport(connection))
                info = mcp.types.Implementation(name="roll", version="1")
                client = mcp.ClientSession(read, write, client_info=info)
                connection.session = await stack.enter_async_context(client)
                async with asyncio.timeout(self.config.start_timeout_s):
                    await connection.session.initialize()
                    connection.schemas = await _listed(connection.session)
                if not ready.done():
                    ready.set_result(connection)
                await leave.wait()
        except BaseException as error:
            if not ready.done():
                ready.set_exception(EnvError(self._cause(connection, error)))
                ready.exception()  # the start may have been given up
            if isinstance(error, asyncio.CancelledError | KeyboardInterrupt | SystemExit):
                raise
            logger.debug("%s: the connection ended", self.name, exc_info=error)

    @asynccontextmanager
    async def _transport(self, connection: _Connection) -> AsyncIterator[tuple[Any, Any]]:
        config = self.config
        if config.command is not None:
            from mcp.client.stdio import StdioServerParameters, stdio_client

            self._log.parent.mkdir(parents=True, exist_ok=True)
            command = [file_on_path(word) for word in (config.command, *config.args)]
            job = json.dumps({"command": command, "log": str(self._log.absolute())})
            mark = {MARK: os.environ[MARK]} if MARK in os.environ else {}
            server = StdioServerParameters(
                command=sys.executable, args=["-I", supervision.__file__, job], env={**config.env, **mark}
            )
            async with stdio_client(server) as streams:
                yield streams
            return
        import httpx2
        from mcp.client.streamable_http import streamable_http_client

        async def look(response: httpx2.Response) -> None:
            if response.status_code >= 400 and response.request.method == "POST":
                connection.status = response.status_code

        assert config.url is not None
        limits = httpx2.Timeout(config.start_timeout_s, read=max(config.timeout_s, _LONGEST_READ_S))
        async with (
            httpx2.AsyncClient(headers=config.headers, timeout=limits, event_hooks={"response": [look]}) as client,
            streamable_http_client(config.url, http_client=client) as streams,
        ):
            yield streams

    def _bury(self, connection: _Connection) -> None:
        """Leaves a connection that is dead, or no longer wanted; another one takes its place when one is needed."""
        connection.leave.set()
        if self._connection is connection:
            self._connection = None

    def _cause(self, connection: _Connection, error: BaseException) -> str:
        """The first error inside groups of them, in words, with the server's last ones."""
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        text = describe(error)
        if isinstance(error, TimeoutError):
            text = f"it did not list its tools within start_timeout_s: {self.config.start_timeout_s:g}"
        elif isinstance(error, EnvError | _package().MCPError):
            text = str(error)
        if connection.status:
            text = f"HTTP status {connection.status}: {text}"
        said = supervision.last_lines(self._log, connection.log_begin) if self.config.command is not None else ""
        return f"{text} ({said})" if said else text

    def text(self, text: str) -> str:
        """Words for the server, without its secrets."""
        config = self.config
        what = config.command if config.url is None else config.url
        secrets = [*config.headers.values(), *config.env.values()]
        return mask(f"tool_servers.{self.name} ({what}) {text}", [one for one in secrets if len(one) >= 6])


class ServerTools(ToolSet):
    """The tools of one server in one episode. With scope: episode the server is the episode's own."""

    def __init__(self, server: ToolServer):
        self._server = server
        self._is_own = server.config.scope == EPISODE

    async def schemas(self) -> Sequence[Schema]:
        prefix = self._server.config.prefix
        return [
            {**schema, "function": {**schema["function"], "name": prefix + schema["function"]["name"]}}
            for schema in await self._server.schemas()
        ]

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """The server is asked again after a death, unless it held what the episode has changed."""
        server, tool, cause = self._server, name.removeprefix(self._server.config.prefix), ""
        for number in range(TRIES):
            try:
                async with server.suspects if number else nullcontext():
                    return await server.call(tool, arguments)
            except _Died as death:
                self.num_deaths += 1
                cause = str(death)
            if self._is_own:
                text = f"died under {tool}, and with it what the episode had changed: {cause}"
                raise ToolsLost(server.text(text))
        raise EnvError(server.text(f"died under {tool} {TRIES} times in a row: {cause}"))

    async def close(self) -> None:
        if self._is_own:
            await self._server.close()


class ToolServers:
    """The servers of one custom_envs entry in one process. What servers write to standard error is kept in `logs`."""

    def __init__(self, configs: Mapping[str, ToolServerConfig], logs: Path):
        self._configs, self._logs = configs, logs
        self._shared = {name: self._make(name) for name, config in configs.items() if config.scope != EPISODE}

    def episode(self) -> dict[str, ToolSet]:
        """Tools for one episode by the key of each server."""
        servers = {name: self._shared.get(name) or self._make(name) for name in self._configs}
        return {f"tool_servers.{name}": ServerTools(server) for name, server in servers.items()}

    async def close(self) -> None:
        await asyncio.gather(*(server.close() for server in self._shared.values()))

    def _make(self, name: str) -> ToolServer:
        return ToolServer(name, self._configs[name], self._logs / f"{name}.log")


def _package() -> Any:
    """The package, imported when a server is first needed. What it logs of a server's faults is told by the episode."""
    package = importlib.import_module("mcp")
    for name in ("mcp.client.stdio", "mcp.client.streamable_http"):
        importlib.import_module(name)
    logging.getLogger("mcp").setLevel(logging.CRITICAL)
    return package


def _is_death(connection: _Connection, error: Exception) -> bool:
    """Whether the connection ended with the call; False for an answer of the server, also for one that the client does
    not accept."""
    if connection.owner.done() or connection.leave.is_set():
        return True
    if isinstance(error, _package().MCPError):
        text = str(error)
        return text.startswith(_GONE) or (text.startswith(_REFUSED) and connection.status in _AWAY)
    return type(error).__module__.partition(".")[0] == "anyio"


async def _listed(session: Any) -> Sequence[Schema]:
    shown: list[Schema] = []
    cursor: str | None = None
    while True:
        page = await session.list_tools(params=_package().types.PaginatedRequestParams(cursor=cursor))
        shown += [_schema(tool) for tool in page.tools]
        cursor = page.next_cursor
        if cursor is None:
            return shown


def _schema(tool: Any) -> Schema:
    parameters = {name: value for name, value in tool.input_schema.items() if name != "$schema"}
    function = {"name": tool.name, "description": tool.description or "", "parameters": parameters}
    return {"type": "function", "function": function}


def _text_of(tool: str, result: Any) -> str:
    """The texts of a result; what is no text is named in its place. Raises ToolError for a result that is an error, or
    has nothing that can be read."""
    parts: list[str] = []
    refused: list[str] = []
    for block in result.content:
        resource = getattr(block, "resource", None)
        text = getattr(block, "text", None) if resource is None else getattr(resource, "text", None)
        if isinstance(text, str):
            parts.append(text)
        elif block.type == "resource_link":
            parts.append(f"{block.name}: {block.uri}")
        else:
            kind = getattr(block if resource is None else resource, "mime_type", None) or "of an unknown kind"
            refused.append(f"{_PICTURES.get(block.type, block.type)} ({kind})")
    if not parts and not refused and result.structured_content is not None:
        parts.append(json.dumps(result.structured_content, ensure_ascii=False))
    left_out = f"{tool} returned {', '.join(refused)}, but only text can be read" if refused else ""
    text = "\n".join(part for part in (*parts, f"[{left_out}]" if parts and left_out else "") if part)
    if result.is_error or (refused and not parts):
        raise ToolError(text or left_out or f"{tool} failed without a word")
    return text
