"""Plays environments of OpenEnv, which are servers: reset, step and state over the WebSocket of their session."""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

from roll.envs.base import SUCCESS, VALID, Env, EnvStep
from roll.envs.gymnasium import numbers
from roll.errors import EnvError, MissingPackage, describe
from roll.utils.imports import is_installed, resolve

_OPEN_S = 30.0
_LARGEST_MESSAGE = 100 << 20
_KINDS: Mapping[str, tuple[type, ...]] = {"integer": (int,), "number": (int, float), "boolean": (bool,)}
_HIDDEN = ("metadata", "done", "reward")


class OpenEnv(Env):
    """`url` is the server's address. Each episode has a connection of its own, so a session of its own.

    An action that is a JSON object goes to the server as it is; any other text becomes the field `action_key`, by
    default the only one that the server's schema requires. An observation is the text of `observation_key`, or of its
    only field, or else its fields as JSON. `reset` are more fields of every reset beside the seed.

    An episode was a success if the observation's metadata says so (`success`), or else if it ended with a reward above
    `success_reward`. Numbers of the metadata, and of the state when the episode has ended, are metrics.
    """

    def __init__(
        self,
        url: str,
        action_key: str | None = None,
        observation_key: str | None = None,
        reset: Mapping[str, Any] | None = None,
        instruction: str = "",
        success_reward: float = 0.0,
        max_steps: int | None = None,
    ):
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise EnvError(f"url: {url!r} is not the address of a server, such as http://127.0.0.1:8000")
        if not is_installed("websockets"):
            raise MissingPackage("openenv speaks with its servers through the package websockets")
        self._url, self._action_key, self._observation_key = url.rstrip("/"), action_key, observation_key
        self._extra, self.instruction = dict(reset or {}), instruction
        self._success_reward, self._max_steps = success_reward, max_steps
        self._socket: Any = None
        self._last, self._steps = "", 0

    def reset(self, seed: int) -> str:
        connect: Any = resolve("websockets.sync.client:connect")
        address = f"ws{self._url.removeprefix('http')}/ws"
        try:
            self._socket = connect(address, open_timeout=_OPEN_S, max_size=_LARGEST_MESSAGE, proxy=None)
        except Exception as error:  # of the network, of TLS, of the handshake
            raise EnvError(f"url: the server at {self._url} cannot be reached: {describe(error)}") from None
        self._last = self._text(self._ask("reset", {**self._extra, "seed": seed})["observation"])
        return self._last

    def step(self, action: str) -> EnvStep:
        self._steps += 1
        is_cut = self._max_steps is not None and self._steps >= self._max_steps
        fields = self._fields(action)
        answer = None if fields is None else self._ask("step", fields, refuses=True)
        if answer is None:
            return EnvStep(self._last, 0.0, False, is_cut, {VALID: 0.0, SUCCESS: 0.0})
        observation = answer["observation"]
        self._last, reward, is_over = self._text(observation), float(answer.get("reward") or 0.0), bool(answer["done"])
        metrics = numbers(observation.get("metadata") or answer.get("metadata") or {})
        if is_over:
            metrics = {**numbers(self._ask("state")), **metrics}
        metrics.setdefault(SUCCESS, float(is_over and reward > self._success_reward))
        return EnvStep(self._last, reward, is_over, is_cut and not is_over, {**metrics, VALID: 1.0})

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()

    def _ask(self, kind: str, fields: Mapping[str, Any] | None = None, refuses: bool = False) -> Any:
        """The data of the server's answer; None for an action that it refuses. Raises EnvError for another error."""
        try:
            self._socket.send(json.dumps({"type": kind} if fields is None else {"type": kind, "data": dict(fields)}))
            answer = json.loads(self._socket.recv())
        except Exception as error:  # the connection is gone, or it was no JSON
            raise EnvError(f"the server at {self._url} did not answer {kind}: {describe(error)}") from None
        data = answer.get("data") or {}
        if answer.get("type") != "error":
            return data
        code = data.get("code")
        if refuses and code == "VALIDATION_ERROR":
            return None
        more = ": raise max_concurrent_envs of its create_app" if code == "CAPACITY_REACHED" else ""
        raise EnvError(f"the server at {self._url} answered {kind} with {code}: {data.get('message')}{more}")

    def _fields(self, action: str) -> dict[str, Any] | None:
        """The action as the server takes it; None for a text that means none."""
        try:
            fields = json.loads(action, parse_constant=lambda name: None)  # NaN and Infinity are no JSON
        except (ValueError, RecursionError):
            fields = None
        if isinstance(fields, dict):
            return fields
        key = self._action_key
        properties, required = _action_schema(self._url)
        if key is None:
            names = required or [name for name in properties if name not in _HIDDEN]
            if len(names) != 1:
                raise EnvError(
                    f"an action of {self._url} has the fields {', '.join(names) or 'none'}: set action_key to the one "
                    "that a text fills, or let the policy write the fields as a JSON object"
                )
            key = names[0]
        kinds = _KINDS.get(str((properties.get(key) or {}).get("type")), (str,))
        value = action if kinds == (str,) else fields
        return {key: value} if type(value) in kinds else None

    def _text(self, observation: Mapping[str, Any]) -> str:
        if self._observation_key is not None:
            if self._observation_key not in observation:
                raise EnvError(
                    f"observation_key: an observation has {', '.join(observation)}, not {self._observation_key}"
                )
            value = observation[self._observation_key]
        else:
            shown = {name: value for name, value in observation.items() if name not in _HIDDEN}
            value = next(iter(shown.values())) if len(shown) == 1 else shown
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@lru_cache(maxsize=64)
def _action_schema(url: str) -> tuple[Mapping[str, Any], list[str]]:
    """The properties of an action of this server, and which it requires. Raises EnvError."""
    try:
        with urlopen(f"{url}/schema", timeout=_OPEN_S) as reply:
            schema = json.load(reply)["action"]
    except Exception as error:  # HTTP, network, or another shape
        raise EnvError(f"the server at {url} does not say what an action is (/schema): {describe(error)}") from None
    return schema.get("properties") or {}, list(schema.get("required") or ())
