"""A minimal stand-in of the package verifiers: what an environment of it is, to those who play it."""

from __future__ import annotations

import json
import os
import urllib.request
from typing import Any

from tests.contract.verifiers_like.types import ClientConfig


class Counting:
    """Asks for a number in two turns. Its rubric is the share of right answers."""

    def __init__(self, num: int, requires_group_rollouts: bool, breaks: bool):
        self._rows = [{"example_id": i, "prompt": [{"role": "user", "content": f"say {i}"}]} for i in range(num)]
        self.requires_group_rollouts, self._breaks = requires_group_rollouts, breaks

    def get_dataset(self) -> list[dict[str, Any]]:
        return self._rows

    def get_eval_dataset(self) -> list[dict[str, Any]]:
        return [{"example_id": 99, "prompt": [{"role": "user", "content": "say 99"}]}]

    async def run_rollout(
        self, input: dict[str, Any], client: ClientConfig, model: str, sampling_args: dict[str, Any]
    ) -> dict[str, Any]:
        if self._breaks:
            return {"reward": 0.0, "error": "ModelError: refused", "metrics": {}}
        messages, said = list(input["prompt"]), []
        for _ in range(2):
            body = json.dumps({"model": model, "messages": messages, **sampling_args}).encode()
            headers = {"Authorization": f"Bearer {os.environ[client.api_key_var]}"}
            request = urllib.request.Request(f"{client.api_base_url}/chat/completions", body, headers)
            with urllib.request.urlopen(request) as reply:
                messages.append(json.load(reply)["choices"][0]["message"])
            said.append(messages[-1]["content"])
            messages.append({"role": "user", "content": "again"})
        right = sum(text == str(input["example_id"]) for text in said) / 2
        return {
            "reward": right,
            "error": None,
            "metrics": {"right": right, "note": "no number"},
            "is_truncated": False,
        }


def load_environment(
    env_id: str, num: int = 3, requires_group_rollouts: bool = False, breaks: bool = False
) -> Counting:
    assert env_id == "counting"
    return Counting(num, requires_group_rollouts, breaks)
