"""Plays environments of the package verifiers as they are: their rollout asks the session, their rubric is the
reward."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

from roll.errors import EnvError, MissingPackage
from roll.utils.imports import is_installed, resolve

PACKAGE = "verifiers"
_TRAINING = "train"


class Session(Protocol):
    """Access of an agent to its model."""

    @property
    def base_url(self) -> str: ...

    @property
    def model(self) -> str: ...

    @property
    def purpose(self) -> str: ...

    @property
    def seed(self) -> int: ...


class VerifiersAgent:
    """Agent of env_manager_cls: proxy. `env` is the environment's name as `verifiers.load_environment` takes it;
    `kwargs` go there. `package` is the module that has `load_environment` and `types.ClientConfig`.

    An episode gets row seed modulo their number: of the environment's training data, and of its evaluation data in
    validation. An episode whose rollout ends with an error has failed.
    """

    def __init__(self, env: str, kwargs: Mapping[str, Any] | None = None, package: str = PACKAGE):
        if not is_installed(package):
            raise MissingPackage(f"{env!r} is an environment of verifiers and needs the package {package}")
        try:
            load: Any = resolve(f"{package}:load_environment")
            self._client: Any = resolve(f"{package}.types:ClientConfig")
        except ImportError as error:
            raise EnvError(
                f"this {package} has no load_environment with a rollout that takes a client: install verifiers>=0.1.14,"
                f"<0.4 ({error})"
            ) from None
        self._env = load(env, **dict(kwargs or {}))
        if getattr(self._env, "requires_group_rollouts", False):
            raise EnvError(
                f"{env}: its rubric judges the rollouts of a group together, and episodes are judged one by one here"
            )
        self._rows: dict[bool, Any] = {}

    async def __call__(self, task: Mapping[str, Any], session: Session) -> dict[str, Any]:
        rows = self._rows_of(session.purpose == _TRAINING)
        row = dict(rows[session.seed % len(rows)])
        client = self._client(api_key_var="OPENAI_API_KEY", api_base_url=session.base_url)
        output = await self._env.run_rollout(row, client, session.model, {})
        if output.get("error"):
            raise EnvError(f"the rollout ended with an error: {output['error']}")
        metrics = {name: float(value) for name, value in (output.get("metrics") or {}).items() if _is_number(value)}
        return {"reward": output.get("reward"), "metrics": {**metrics, "truncated": bool(output.get("is_truncated"))}}

    def _rows_of(self, is_training: bool) -> Any:
        if is_training not in self._rows:
            self._rows[is_training] = self._env.get_dataset() if is_training else self._env.get_eval_dataset()
        return self._rows[is_training]


def _is_number(value: object) -> bool:
    return isinstance(value, bool | int | float) and math.isfinite(value)
