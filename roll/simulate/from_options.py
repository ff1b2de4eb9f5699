"""Builds the simulation from a YAML and the options of the command line."""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from roll.configs.load.loader import compose_tree, resolve_tree, yaml_at
from roll.configs.plan.batch_plan import BatchPlan
from roll.configs.plan.engine_limits import answers_at_once
from roll.configs.plan.layout import RolePlace
from roll.configs.sections.algorithm import AlgorithmConfig
from roll.distributed.scheduler.filters import make_filter
from roll.distributed.scheduler.rollout_core import Keep
from roll.errors import ConfigError
from roll.pipeline.rlvr.rlvr_config import RLVRConfig
from roll.run.kind import kind_of
from roll.run.start.load import check
from roll.simulate.setup import Costs, Devices, Setup
from roll.simulate.step_model import PASSES
from roll.simulate.workload import NO_DELAYS, Delays, GroupWork, LogNormal, Recorded, Workload

MEDIAN_SHARE = 2200 / 16_384


def setup_of(options: argparse.Namespace, overrides: Sequence[str]) -> Setup:
    """Raises ConfigError as a start does, and for a kind of run that samples nothing."""
    from roll.simulate.forecast.forecast import known_costs  # which simulates

    raw = compose_tree(*yaml_at(options.config), overrides)
    spec = kind_of(raw.tree)
    loaded = check(spec, resolve_tree(raw, spec.config_class()))
    config, plan = loaded.config, loaded.plan
    if not isinstance(config, AlgorithmConfig) or not isinstance(plan, BatchPlan):
        raise ConfigError(f"{options.config}: a run of the kind {spec.name} samples nothing to simulate.")
    workload = _workload(options, plan.response_length, plan.prompt_length // 2)
    setup = setup_of_plan(config, plan, workload, known_costs(config, plan) or Costs())
    return replace(setup, reward_workers=options.reward_workers)


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


def _workload(options: argparse.Namespace, cap: int, prompt: int) -> Workload:
    delays = Delays(options.delay_s, options.delay_spread)
    if options.lengths is not None:
        return read_recorded(options.lengths, delays, options.seed)
    return LogNormal(
        median=options.median_length or max(1.0, MEDIAN_SHARE * cap),
        common=options.spread_of_prompts,
        own=options.spread_of_answers,
        cap=cap,
        prompt=prompt,
        turns=options.turns,
        observation=options.observation_tokens,
        delays=delays,
        seed=options.seed,
    )


def read_recorded(directory: Path, delays: Delays = NO_DELAYS, seed: int = 0) -> Recorded:
    """Reads groups from the sample rollouts of a run (`step_*.jsonl`: some groups, each attempt as one turn). Raises
    ConfigError if there are none."""
    groups: list[GroupWork] = []
    for path in sorted(directory.glob("step_*.jsonl")):
        if path.name.endswith(".val.jsonl"):
            continue
        try:
            groups += _groups_in(path)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"--lengths: {path} cannot be read: {error}.") from error
    if not groups:
        raise ConfigError(f"--lengths {directory}: no group of rollouts is there, in step_*.jsonl (rollouts of a run).")
    return Recorded(groups, delays, seed)


def _groups_in(path: Path) -> Iterator[GroupWork]:
    by_group: defaultdict[Any, list[dict[str, Any]]] = defaultdict(list)
    for line in path.read_text("utf-8").splitlines():
        row = json.loads(line)
        by_group[row["group_id"]].append(row)
    for group in by_group.values():
        rewards = np.array([row["reward"] for row in group], np.float64)  # null is NaN
        lengths = np.array([[row["response_tokens"]] for row in group], np.int64)
        yield GroupWork(int(group[0]["prompt_tokens"]), lengths, np.zeros(lengths.shape), rewards)
