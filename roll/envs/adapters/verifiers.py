"""Plays environments of the package verifiers as they are: their rollout asks the session, their rubric is the
reward."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from roll.envs.gymnasium import numbers
from roll.errors import EnvError, MissingPackage
from roll.utils.imports import is_installed, resolve

PACKAGE = "verifiers"
BUILT_IN = ("harbor", "nemo_gym", "openenv", "textarena")
"""Tasksets that are in the package since 0.4."""
_TRAINING = "train"
_KEY = "OPENAI_API_KEY"


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


class _Rollouts(Protocol):
    """How a version of the package is asked for one episode. Its reward and its metrics; EnvError if it failed."""

    async def play(self, session: Session) -> tuple[float, dict[str, Any]]: ...


class VerifiersAgent:
    """Agent of env_manager_cls: proxy. `env` is the environment's name as the package takes it. `package`: the module.

    Before 0.4 `kwargs` go to `load_environment`, and an episode gets row seed modulo their number: of the environment's
    training data, and of its evaluation data in validation. Since 0.4 `env` names a taskset, `kwargs` are the other
    keys of its configuration (`taskset`, `agent`, ...), and all episodes get the taskset's tasks. An episode whose
    rollout ends with an error has failed.
    """

    def __init__(self, env: str, kwargs: Mapping[str, Any] | None = None, package: str = PACKAGE):
        if not is_installed(package):
            raise MissingPackage(f"{env!r} is an environment of verifiers and needs the package {package}")
        self._rollouts = _rollouts_of(package)(env, kwargs or {}, package)

    async def __call__(self, task: Mapping[str, Any], session: Session) -> dict[str, Any]:
        reward, metrics = await self._rollouts.play(session)
        return {"reward": reward, "metrics": numbers(metrics)}


def _rollouts_of(package: str) -> Callable[[str, Mapping[str, Any], str], _Rollouts]:
    """The way to ask this version of the package. Raises EnvError if there is none."""
    try:
        resolve(f"{package}:load_environment")
        return _EnvironmentRollouts
    except ImportError as error:
        if is_installed(f"{package}.v1"):
            return _TasksetRollouts
        raise EnvError(
            f"this {package} has neither load_environment nor tasksets: install verifiers>=0.1.14,<0.5 ({error})"
        ) from None


class _EnvironmentRollouts:
    """Environments up to 0.3, which have `run_rollout`."""

    def __init__(self, env: str, kwargs: Mapping[str, Any], package: str):
        load: Any = resolve(f"{package}:load_environment")
        self._client: Any = resolve(f"{package}.types:ClientConfig")
        self._env = load(env, **kwargs)
        if getattr(self._env, "requires_group_rollouts", False):
            raise EnvError(
                f"{env}: its rubric judges the rollouts of a group together, and episodes are judged one by one here"
            )
        self._rows: dict[bool, Sequence[Any]] = {}

    async def play(self, session: Session) -> tuple[float, dict[str, Any]]:
        rows = self._rows_of(session.purpose == _TRAINING)
        row = dict(rows[session.seed % len(rows)])
        client = self._client(api_key_var=_KEY, api_base_url=session.base_url)
        output = await self._env.run_rollout(row, client, session.model, {})
        if output.get("error"):
            raise EnvError(f"the rollout ended with an error: {output['error']}")
        return output.get("reward"), {**(output.get("metrics") or {}), "truncated": bool(output.get("is_truncated"))}

    def _rows_of(self, is_training: bool) -> Sequence[Any]:
        if is_training not in self._rows:
            self._rows[is_training] = self._env.get_dataset() if is_training else self._env.get_eval_dataset()
        return self._rows[is_training]


class _TasksetRollouts:
    """Tasksets since 0.4, which environments play with harnesses."""

    def __init__(self, env: str, kwargs: Mapping[str, Any], package: str):
        package = f"{package}.v1"
        configure: Any = resolve(f"{package}:resolve_env_config")
        load: Any = resolve(f"{package}:load_environment")
        self._client: Any = resolve(f"{package}:EvalClientConfig")
        self._context: Any = resolve(f"{package}:ModelContext")
        self._env = load(configure({**kwargs, "taskset": {**kwargs.get("taskset", {}), "id": env}}))
        if not self._env.taskset.bounded:
            raise EnvError(f"{env}: its tasks never end, and episodes are drawn from all of them. Take one that ends.")
        self._tasks: list[Any] = list(self._env.taskset)
        if not self._tasks:
            raise EnvError(f"{env}: its taskset is empty")

    async def play(self, session: Session) -> tuple[float, dict[str, Any]]:
        """The reward is that of the one agent that is trained, or the mean of several."""
        context = self._context(session.model, self._client(base_url=session.base_url, api_key_var=_KEY))
        async with self._env.serving():
            episode = await self._env.run_episode(self._tasks[session.seed % len(self._tasks)], context)
        errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
        if not episode.ok:
            why = f"{errors[-1].type}: {errors[-1].message}" if errors else "it is not complete"
            raise EnvError(f"the rollout ended with an error: {why}")
        traces = [trace for trace in episode.traces if trace.agent.trainable]
        if not any(reward is not None for trace in traces for reward in trace.rewards.values()):
            raise EnvError("the rollout has no reward")
        metrics = {name: value for trace in traces for name, value in trace.metrics.items()}
        truncated = any(trace.is_truncated for trace in traces)
        return sum(trace.reward for trace in traces) / len(traces), {**metrics, "truncated": truncated}
