"""A server made with the package mcp itself: over standard input and output, or over HTTP in a thread of a test."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from mcp import types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

SCHEMA = {"type": "object", "properties": {"box": {"type": "string"}}, "required": ["box"]}


def boxes() -> Server[Any]:
    """`open`, and on another page `meet`, whose calls are answered in pairs."""
    waiting: list[asyncio.Event] = []

    async def on_list(context: Any, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        is_second = params is not None and params.cursor == "2"
        tool = types.Tool(name="meet" if is_second else "open", description="A box.", input_schema=SCHEMA)
        return types.ListToolsResult(tools=[tool], next_cursor=None if is_second else "2")

    async def on_call(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        box = (params.arguments or {}).get("box", "")
        if params.name == "meet":
            if waiting:
                waiting.pop().set()
            else:
                waiting.append(asyncio.Event())
                await waiting[0].wait()
        text = "7" if params.name == "open" and box == "F" else "?"
        return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=not box)

    return Server("boxes", on_list_tools=on_list, on_call_tool=on_call)


@contextmanager
def served(headers: list[str], port: int = 0) -> Iterator[str]:
    """The address of the server, which runs in a thread; `headers` collects the Authorization of requests."""
    app: Any = boxes().streamable_http_app()

    async def remembering(scope: Any, receive: Any, send: Any) -> None:
        found = [value.decode() for name, value in scope.get("headers", ()) if name == b"authorization"]
        headers.extend(found)
        if found == ["Bearer wrong"]:
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body"})
        else:
            await app(scope, receive, send)

    listener = socket.create_server(("127.0.0.1", port))
    server = uvicorn.Server(uvicorn.Config(remembering, log_config=None, lifespan="on"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
    finally:
        server.should_exit = server.force_exit = True
        thread.join(30)


async def main() -> None:
    """Serves over standard input and output."""
    server = boxes()
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


if __name__ == "__main__":
    asyncio.run(main())
