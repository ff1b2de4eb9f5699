"""A server of the Model Context Protocol in plain Python, so that it starts at once, whose tools misbehave.

python plain_server.py [silent | dies | stubborn | one NAME]
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

how = sys.argv[1:] or [""]
TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
NAMES = ["echo", "count", "die", "die_once", "hang", "flood", "shout", "picture", "mixed", "fail", "refuse",
         "environment", "leave", "odd"]  # fmt: skip
count = 0


def send(message: dict[str, Any]) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def text(said: str, **fields: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": said}], **fields}


def listed(cursor: str | None) -> dict[str, Any]:
    if how[0] == "one":
        return {"tools": [{"name": how[1], "description": "The one tool.", "inputSchema": TEXT}]}
    place = int(cursor or 0)
    page = [{"name": name, "description": f"Does {name}.", "inputSchema": TEXT} for name in NAMES[place : place + 5]]
    return {"tools": page} | ({"nextCursor": str(place + 5)} if place + 5 < len(NAMES) else {})


def called(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    global count
    said = arguments.get("text", "")
    picture = {"type": "image", "data": "aGk=", "mimeType": "image/png"}
    match name:
        case "echo":
            time.sleep(float(arguments.get("seconds", 0)))
            return text(said)
        case "count":
            count += 1
            return text(str(count))
        case "die":
            print("the ice broke", file=sys.stderr, flush=True)
            os._exit(3)
        case "die_once":
            if not os.path.exists(said):
                open(said, "w").close()
                os._exit(3)
            return text("alive")
        case "hang":
            time.sleep(600)
        case "flood":
            return text("begin" + "x y " * int(said) + "end")
        case "shout":
            print("loud " * (1 << 20), file=sys.stderr, flush=True)
            return text("shouted")
        case "picture":
            return {"content": [picture]}
        case "mixed":
            return {"content": [{"type": "text", "text": "see"}, picture]}
        case "fail":
            return text("no such box", isError=True)
        case "odd":
            return {"content": [{"type": "hologram"}]}
        case "environment":
            return text(" ".join(sorted(os.environ)))
        case "leave":
            code = "import os, time; os.setsid(); time.sleep(600)"
            return text(str(subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.DEVNULL).pid))
    raise LookupError(f"there is no {name}")


def main() -> None:
    if how[0] == "dies":
        print("no licence found", file=sys.stderr, flush=True)
        sys.exit(2)
    if how[0] == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for line in sys.stdin:
        message = json.loads(line)
        method, params = message.get("method"), message.get("params") or {}
        if "id" not in message or how[0] == "silent":
            continue
        if method == "initialize":
            result: dict[str, Any] = {
                "protocolVersion": params["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "plain", "version": "1"},
            }
            print("this is no JSON", flush=True)
        elif method == "tools/list":
            result = listed(params.get("cursor"))
        elif params["name"] == "refuse":
            send({"id": message["id"], "error": {"code": -32000, "message": "not today"}})
            continue
        else:
            result = called(params["name"], params.get("arguments") or {})
        send({"id": message["id"], "result": result})
    while how[0] == "stubborn":
        time.sleep(1)


main()
