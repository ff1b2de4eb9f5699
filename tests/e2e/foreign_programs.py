"""Programs that know nothing of roll: one that a run starts, and one that takes sessions of a run from outside."""

import hashlib
import json
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

RARE = 1 << 24
"""So many rewards between 0 and 1 can be told apart in float32."""


def play(task: dict[str, Any], session: Any, pause_s: float = 0.0) -> dict[str, Any]:
    """Two answers, some time between them; the reward is whether the second is longer."""
    messages: list[dict[str, str]] = [{"role": "user", "content": f"Say {task['seed'] % 10}."}]
    for _ in range(2):
        _, reply = asked(f"{session.base_url}/chat/completions", session.api_key, {"messages": messages})
        messages += [reply["choices"][0]["message"], {"role": "user", "content": "More."}]
        time.sleep(pause_s)
    return {"reward": float(len(messages[3]["content"]) > len(messages[1]["content"]))}


def own_reward(session: Any) -> int:
    """Below RARE, by the key of the session."""
    return int.from_bytes(hashlib.blake2b(session.api_key.encode(), digest_size=3).digest())


def serve(folder: Path) -> int:
    """Takes sessions until the run is over; how many it played."""
    file, num_played = folder / "agent_endpoint.json", 0
    while not file.exists():
        time.sleep(0.2)
    told = read(file)
    while True:
        try:
            status, session = asked(f"{told['url']}/sessions", told["token"], {"wait_s": 5})
        except (urllib.error.URLError, ConnectionError):
            return num_played
        if status == 200:
            earned = play(session["task"], Session(session))
            asked(f"{told['url']}/sessions/{session['session']}/reward", session["api_key"], earned)
            num_played += 1


def read(file: Path) -> dict[str, str]:
    """Where the run listens, and its token."""
    return json.loads(file.read_text())


class Session:
    def __init__(self, told: dict[str, Any]):
        self.base_url, self.api_key = told["base_url"], told["api_key"]


def asked(url: str, key: str, body: dict[str, Any]) -> tuple[int, Any]:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Authorization": f"Bearer {key}"})
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=600) as reply:
            text = reply.read()
            return reply.status, json.loads(text) if text else None
    except urllib.error.HTTPError as error:
        if error.code == 410 and "/sessions" in url:
            raise ConnectionError("the run is over") from None
        raise ValueError(f"{url}: {error.code} {error.read().decode(errors='replace')}") from None
