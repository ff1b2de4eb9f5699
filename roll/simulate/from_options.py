"""Builds the simulation from a YAML and the options of the command line."""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np

from roll.configs.load.loader import locate_yaml
from roll.configs.plan.batch_plan import BatchPlan, RolloutBounds, ahead_by, least_staleness
from roll.configs.plan.engine_limits import answers_at_once
from roll.configs.plan.layout import RolePlace
from roll.configs.sections.algorithm import AlgorithmConfig
from roll.distributed.scheduler.filters import make_filter
from roll.distributed.scheduler.rollout_core import Keep
from roll.errors import ConfigError
from roll.pipeline.rlvr.rlvr_config import RLVRConfig
from roll.run.spec import pipeline_of
from roll.run.start.load import load
from roll.simulate.setup import Costs, Devices, Setup, read_costs
from roll.simulate.step_model import PASSES
from roll.simulate.workload import NO_DELAYS, Delays, GroupWork, LogNormal, Recorded, Workload
from roll.types.rollout import Trajectory

if TYPE_CHECKING:
    from roll.types.group_codec import RecordedGroup

# Lengths of groups that another run has sampled.

KEY = "--lengths"


def read_recorded(directory: Path, delays: Delays = NO_DELAYS, seed: int = 0) -> Recorded:
    """Reads groups from the dumps of `rollout_mock` (`step_*.npz`: every group, turn by turn), or from the sample
    rollouts of a run (`step_*.jsonl`: some groups, each attempt as one turn). Raises ConfigError if there are
    neither."""
    dumps = sorted(directory.glob("step_*.npz"))
    records = sorted(path for path in directory.glob("step_*.jsonl") if not path.name.endswith(".val.jsonl"))
    groups: list[GroupWork] = []
    for path in dumps or records:
        try:
            recorded = _of_dumps(path) if dumps else _of_records(path)
            groups += [group for group in recorded if group.lengths.size]
        except (OSError, EOFError, ValueError, KeyError, TypeError, BadZipFile) as error:
            raise ConfigError(f"{KEY}: {path} cannot be read: {error}.") from error
    if not groups:
        raise ConfigError(
            f"{KEY} {directory}: no group of rollouts is there, neither in step_*.npz (rollout_mock) nor in "
            "step_*.jsonl (rollouts of a run)."
        )
    return Recorded(groups, delays, seed)


def _of_dumps(path: Path) -> Iterator[GroupWork]:
    from roll.types.group_codec import read_groups  # imports torch

    return map(_of_dump, read_groups(path))


def _of_dump(group: RecordedGroup) -> GroupWork:
    attempts: defaultdict[int, list[Trajectory]] = defaultdict(list)
    for row in group.trajectories:
        attempts[row.index].append(row)
    rows = list(attempts.values())
    turns = [[length for row in attempt for length in _sampled_runs(row.response_mask)] for attempt in rows]
    first = group.trajectories[0]
    prompt = int(first.response_mask.argmax()) if first.response_mask.any() else len(first.input_ids)
    between = sum(int((~row.response_mask).sum()) - prompt for row in group.trajectories)
    later = sum(len(lengths) - 1 for lengths in turns if lengths)
    rewards = [attempt[0].reward for attempt in rows]
    return _group(prompt, turns, rewards, max(0, between // later) if later else 0)


def _sampled_runs(mask: np.ndarray) -> Iterator[int]:
    for is_sampled, run in groupby(mask.tolist()):
        if is_sampled:
            yield sum(1 for _ in run)


def _of_records(path: Path) -> Iterator[GroupWork]:
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]
    by_group: defaultdict[Any, list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        by_group[line["group_id"]].append(line)
    for group in by_group.values():
        rewards = [float("nan") if line["reward"] is None else float(line["reward"]) for line in group]
        yield _group(int(group[0]["prompt_tokens"]), [[int(line["response_tokens"])] for line in group], rewards, 0)


def _group(prompt: int, turns: Sequence[Sequence[int]], rewards: Sequence[float], observation: int) -> GroupWork:
    lengths = np.zeros((len(turns), max(map(len, turns), default=0)), np.int64)
    for row, turn_lengths in enumerate(turns):
        lengths[row, : len(turn_lengths)] = turn_lengths
    return GroupWork(prompt, lengths, np.zeros(lengths.shape), np.array(rewards, np.float64), observation)


DEFAULT_CAP, MEDIAN_SHARE = 16_384, 2200 / 16_384


def load_yaml(options: argparse.Namespace, overrides: Sequence[str]) -> tuple[AlgorithmConfig, BatchPlan]:
    """Raises ConfigError as a start does, and for a pipeline that samples nothing."""
    directory, name = locate_yaml(options.config_path, options.config_name)
    loaded = load(pipeline_of(options.pipeline), directory, name, overrides)
    if not isinstance(loaded.config, AlgorithmConfig) or not isinstance(loaded.plan, BatchPlan):
        raise ConfigError(f"--pipeline {options.pipeline}: this kind of run samples nothing to simulate.")
    return loaded.config, loaded.plan


def setup_of(options: argparse.Namespace, overrides: Sequence[str]) -> Setup:
    """Options count before the YAML. Raises ConfigError for what does not fit together."""
    costs = read_costs(options.calibration) if options.calibration else None
    if options.config_name is None:
        if overrides:
            raise ConfigError(f"{overrides[0]}: there is no such option, and no YAML (--config_name) to override.")
        base = _default_setup(options, costs or Costs())
    else:
        from roll.simulate.forecast.forecast import known_costs  # which simulates

        config, plan = load_yaml(options, overrides)
        workload = _workload(options, plan.response_length, plan.prompt_length // 2)
        base = setup_of_plan(config, plan, workload, costs or known_costs(config, plan) or Costs())
    setup = replace(
        base,
        group_size=options.group_size or base.group_size,
        max_running=options.max_running_requests or base.max_running,
        reward_workers=options.reward_workers,
        devices=_devices(options, base.devices),
    )
    return replace(setup, bounds=bounds_of(setup.bounds, options))


def bounds_of(base: RolloutBounds, options: argparse.Namespace) -> RolloutBounds:
    """Rollout bounds, changed by the given options. Raises ConfigError if a step would wait forever."""
    num_groups, ratio, staleness = options.groups or base.num_groups, options.async_generation_ratio, base.max_staleness
    unfinished = options.unfinished or base.unfinished
    if unfinished != "carry":
        staleness = 0
    elif ratio is not None:
        staleness = least_staleness(ratio, base.sync_interval)
    ratio = base.ahead / base.num_groups if ratio is None else ratio
    staleness = staleness if options.max_staleness is None else options.max_staleness
    grace_s = base.grace_s if options.grace_s is None else options.grace_s
    ahead, interval = ahead_by(ratio, num_groups), base.sync_interval
    try:
        return RolloutBounds(num_groups, ahead, interval, staleness, unfinished, grace_s, base.additional)
    except ValueError as error:
        raise ConfigError(
            f"--async_generation_ratio {ratio:g} and --max_staleness {staleness}: {error}. Raise --max_staleness to "
            f"{least_staleness(ratio, interval)}."
        ) from error


def _default_setup(options: argparse.Namespace, costs: Costs) -> Setup:
    workload = _workload(options, DEFAULT_CAP, 512)
    return Setup(RolloutBounds(options.groups or 128), 16, Devices.shared(16), workload, costs)


def setup_of_plan(config: AlgorithmConfig, plan: BatchPlan, workload: Workload, costs: Costs) -> Setup:
    """The simulation of a planned run."""
    layout = plan.layout
    wanted = {
        "values": plan.critic is not None,
        "ref_log_probs": plan.needs_reference,
        "old_log_probs": plan.old_log_probs.source == "pass",
    }
    scorers = {**PASSES, "ref_log_probs": "actor_train" if plan.policy_is_reference else "reference"}
    return Setup(
        bounds=plan.bounds,
        group_size=plan.group_size,
        devices=devices_of(plan),
        workload=workload,
        costs=costs,
        max_running=answers_at_once(config.max_running_requests, config.actor_infer, on_gpus=False),
        max_replacements=plan.num_groups if config.is_use_additional_prompts else 0,
        keep=_filter_of(config),
        passes={name: _num_devices(layout[role]) for name, role in scorers.items() if wanted[name]},
        trains_critic=plan.critic is not None,
    )


def _num_devices(place: RolePlace) -> int:
    """CPU workers count as one each."""
    return len(place.device_ids) or len(place.workers)


def devices_of(plan: BatchPlan) -> Devices:
    """Engines on some device of the trainer leave when it has its turn."""
    train, infer = plan.layout["actor_train"], plan.layout["actor_infer"]
    common, num_infer = len(train.device_ids & infer.device_ids), _num_devices(infer)
    leaving = len(infer.workers) - len(plan.layout.apart("actor_infer", "actor_train"))
    if infer.role in plan.leaving_whole and leaving:
        leaving = len(infer.workers)
    devices = Devices(_num_devices(train), num_infer, num_infer // len(infer.workers), common)
    return devices if leaving == devices.num_leaving else replace(devices, leaving=leaving)


def _filter_of(config: AlgorithmConfig) -> Keep | None:
    """Return the filter of the first domain that has one: simulated groups have no domain."""
    rewards: Mapping[str, object] = config.rewards if isinstance(config, RLVRConfig) else {}
    for reward in rewards.values():
        keys = reward.query_filter_config  # type: ignore[attr-defined]
        if keys.type != "no_filter":
            return make_filter(keys.type, keys.filter_args)
    return None


def _devices(options: argparse.Namespace, base: Devices) -> Devices:
    """The engines sample on all devices, or on those that do not train."""
    devices = (options.devices, options.devices_per_engine, options.train_devices, options.shared)
    if all(value is None for value in devices):
        return base
    is_shared = options.shared
    if is_shared is None:
        is_shared = bool(base.common) and options.train_devices is None
    total = options.devices or base.total
    per_engine = options.devices_per_engine or base.per_engine
    train = options.train_devices
    try:
        if is_shared:
            if train is None and not base.is_shared and base.common and not options.devices:
                train = base.train
            return Devices.shared(total, per_engine, train)
        if train is None:
            train = base.train if not base.common and not options.devices else max(1, total // 4)
        return Devices(train, total - train, per_engine)
    except ValueError as error:
        raise ConfigError(f"--devices, --train_devices, --devices_per_engine: {error}.") from error


def _workload(options: argparse.Namespace, cap: int, prompt: int) -> Workload:
    delays = Delays(options.delay_s, options.delay_spread)
    if options.lengths is not None:
        return read_recorded(options.lengths, delays, options.seed)
    cap = options.cap or cap
    return LogNormal(
        median=options.median_length or max(1.0, MEDIAN_SHARE * cap),
        common=options.spread_of_prompts,
        own=options.spread_of_answers,
        cap=cap,
        prompt=prompt if options.prompt_tokens is None else options.prompt_tokens,
        turns=options.turns,
        observation=options.observation_tokens,
        delays=delays,
        seed=options.seed,
    )
