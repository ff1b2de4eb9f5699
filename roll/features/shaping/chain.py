"""`experience_operators`: what drops groups, and rewards them anew, between rollout and training."""

import functools
import inspect
import json
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np

from roll.configs.sections.operators import EXPERIENCE_OPERATORS, ExperienceOperatorConfig
from roll.distributed.scheduler.rollout_core import StepGroups
from roll.errors import AlgorithmError, ConfigError, describe
from roll.rl.parts import Metrics, StepContext, StepPart
from roll.types.rollout import TrajectoryGroup
from roll.utils.imports import line_of, resolve
from roll.utils.text import show

logger = logging.getLogger(__name__)

Operator = Callable[[Sequence[TrajectoryGroup]], Sequence[TrajectoryGroup]]


@runtime_checkable
class StatefulOperator(Protocol):
    """An operator whose state is saved in checkpoints, as JSON values."""

    def state_dict(self) -> Mapping[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


@dataclass(frozen=True)
class _Entry:
    """An operator of the chain. `at`: its YAML path."""

    at: str
    name: str
    run: Operator
    may_drop: bool


class Shaping(StepPart):
    """The operators of a run. Raises ConfigError for one that cannot be built."""

    state_key = "shaping"

    def __init__(self, chain: Sequence[ExperienceOperatorConfig]):
        self._entries = [built(f"experience_operators[{place}]", entry) for place, entry in enumerate(chain)]

    @property
    def filters(self) -> bool:
        """True if groups may be dropped; what one of the user's does is not known."""
        return any(entry.may_drop for entry in self._entries)

    def after_rollout(self, at: StepContext, groups: StepGroups) -> tuple[StepGroups, Metrics]:
        if not self._entries:
            return groups, {}
        with at.timer("gather"):
            return self.apply(groups)

    def apply(self, groups: StepGroups) -> tuple[StepGroups, dict[str, float]]:
        """The groups of a step as the operators leave those that are kept, and metrics. What they drop is as it was
        sampled."""
        if not self._entries:
            return groups, {}
        remaining = list(groups.groups)
        for entry in self._entries:
            remaining = _checked(entry, remaining, _called(entry, remaining))
        ids = {group.group_id for group in remaining}
        dropped = [group for group in groups.groups if group.group_id not in ids]
        rewards = [side.rewards for group in groups.sampled for side in group.by_side]
        known = np.concatenate(rewards)[~np.isnan(np.concatenate(rewards))] if rewards else np.zeros(0)
        metrics = {"rollout/sampled_reward_mean": float(known.mean())} if len(known) else {}
        return replace(groups, groups=remaining, dropped=[*groups.dropped, *dropped]), metrics

    def state(self) -> list[dict[str, Any]]:
        """JSON values, one for each operator that remembers something."""
        return [
            {
                "at": entry.at,
                "name": entry.name,
                "state": _plain(entry, _guarded(entry, ".state_dict", entry.run.state_dict)),
            }
            for entry in self._entries
            if isinstance(entry.run, StatefulOperator)
        ]

    def resume(self, saved: Any, path: Path) -> None:
        self.load(saved or [])

    def load(self, saved: Sequence[Mapping[str, Any]]) -> None:
        """Operators of the same name in the same place go on with their state; others start anew, which is told."""
        states = {(each["at"], each["name"]): each["state"] for each in saved}
        for entry in self._entries:
            if not isinstance(entry.run, StatefulOperator):
                continue
            state = states.get((entry.at, entry.name))
            if state is None:
                logger.warning("%s: %s starts anew: the checkpoint has no state of it there", entry.at, entry.name)
            else:
                _guarded(entry, ".load_state_dict", functools.partial(entry.run.load_state_dict, state))


def built(at: str, entry: ExperienceOperatorConfig) -> _Entry:
    """An operator ready to be called. Raises ConfigError for one of the user's own that cannot be."""
    known = EXPERIENCE_OPERATORS.get(entry.name)
    if known is not None:
        build = cast("Callable[..., Operator]", resolve(known.function))
        return _Entry(at, entry.name, build(known.args.model_validate(entry.args)), known.drops)
    try:
        operator = cast("Callable[..., Any]", resolve(entry.name))
    except ImportError as error:
        raise ConfigError(f"{at}: {error}.") from error
    try:
        if inspect.isclass(operator):
            run = cast("Operator", operator(**entry.args))
            inspect.signature(run).bind([])
        else:
            run = functools.partial(operator, **entry.args)
            inspect.signature(operator).bind([], **entry.args)
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"{at}: {entry.name} cannot be called with the groups of a step and its args: {describe(error)}"
            f"{line_of(error, __file__)}. See docs/data.md."
        ) from error
    return _Entry(at, entry.name, run, True)


def _called(entry: _Entry, groups: Sequence[TrajectoryGroup]) -> Sequence[TrajectoryGroup]:
    if entry.name in EXPERIENCE_OPERATORS:
        return entry.run(groups)
    return _guarded(entry, "", lambda: list(entry.run(list(groups))))


def _guarded(entry: _Entry, method: str, call: Callable[[], Any]) -> Any:
    """Raises AlgorithmError for whatever the user's code raises."""
    try:
        return call()
    except (Exception, SystemExit) as error:
        text = f"{entry.at}: {entry.name}{method} raised {describe(error)}{line_of(error, __file__)}"
        raise AlgorithmError(f"{text}.") from error


def _checked(
    entry: _Entry, input_groups: Sequence[TrajectoryGroup], output_groups: Sequence[Any]
) -> list[TrajectoryGroup]:
    """Return the groups that the operator kept, in the order in which it received them. Raises AlgorithmError for
    anything else."""
    for problem in _problems(input_groups, output_groups):
        raise AlgorithmError(f"{entry.at}: {entry.name} {problem}. It must give the groups that stay, each once.")
    by_id = {group.group_id: group for group in output_groups}
    return [by_id[group.group_id] for group in input_groups if group.group_id in by_id]


def _problems(input_groups: Sequence[TrajectoryGroup], output_groups: Sequence[Any]) -> Iterator[str]:
    before = {group.group_id: group for group in input_groups}
    seen: set[int] = set()
    for group in output_groups:
        if not isinstance(group, TrajectoryGroup):
            yield f"gave {show(group)}, not a TrajectoryGroup"
            return
        if group.group_id in seen or group.group_id not in before:
            yield f"gave group {group.group_id} {'twice' if group.group_id in seen else 'which it was not given'}"
            return
        seen.add(group.group_id)
        if len(group.trajectories) != len(before[group.group_id].trajectories):
            yield (
                f"gave {len(group.trajectories)} rows for group {group.group_id}, which has "
                f"{len(before[group.group_id].trajectories)}: attempts are left out by Trajectory.failed"
            )
        elif any(row.failure is None and not math.isfinite(row.reward) for row in group.trajectories):
            yield f"gave group {group.group_id} the rewards {group.rewards.tolist()}"


def _plain(entry: _Entry, state: object) -> Any:
    try:
        return json.loads(json.dumps(state, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise AlgorithmError(f"{entry.at}: the state of {entry.name} is no JSON value: {error}.") from error
