"""Keys that ROLL overrules itself, or that ask for something done another way here: they are corrected in the tree,
with a message."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from roll.configs.base import DEVICES_PER_NODE
from roll.configs.load.known_keys import FSDP2_KEYS, STUDENTS, holds_teachers
from roll.configs.problems import Problem, ids_text
from roll.configs.sections.cluster import parse_device_mapping
from roll.configs.strategies.features import Feature
from roll.configs.strategies.table import NOTHING_KNOWN, spec_of

TRANSFORMER_ENGINE: Mapping[str, tuple[str, ...]] = {
    "linear_qkv": ("q_proj", "k_proj", "v_proj"),
    "linear_proj": ("o_proj",),
    "linear_fc1": ("gate_proj", "up_proj"),
    "linear_fc2": ("down_proj",),
}
"""Layers by Megatron's names, and what they are in a model's files."""

_FSDP2 = "roll.configs.strategies.fsdp2_settings:Fsdp2Settings"


@dataclass
class Overruled:
    """`changed`: the top-level keys of the tree that differ, with their values."""

    changed: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def overruled(tree: Mapping[str, Any], roles: Mapping[str, Any]) -> Overruled:
    """Return what differs in the tree of a run whose roles have these sections, as ROLL would read it. Never raises for
    what a user wrote."""
    result = Overruled()
    sections = {name: tree.get(name) for name in (*roles, "teacher", *STUDENTS)}
    groups = ("rewards", "teachers", *(("teacher",) if holds_teachers(tree.get("teacher")) else ()))
    for group in groups:
        named = tree.get(group)
        sections |= {f"{group}.{name}": each for name, each in named.items()} if isinstance(named, Mapping) else {}
    for at, section in sections.items():
        if isinstance(section, Mapping):
            changed = _section(at, section, result.warnings)
            if changed is not section:
                _put(result.changed, tree, at, changed)
    _nodes(result, tree, {at: section for at, section in sections.items() if isinstance(section, Mapping)})
    return result


def _section(at: str, section: Mapping[str, Any], warnings: list[str]) -> Mapping[str, Any]:
    strategy = section.get("strategy_args")
    name = strategy.get("strategy_name") if isinstance(strategy, Mapping) else None
    config = strategy.get("strategy_config") if isinstance(strategy, Mapping) else None
    if isinstance(name, str):
        section = _devices(at, name, config if isinstance(config, Mapping) else {}, section, warnings)
    if isinstance(name, str) and spec_of(name).settings == _FSDP2 and isinstance(config, Mapping):
        remaining = _without_unused(f"{at}.strategy_args.strategy_config", config, warnings)
        if remaining != config:
            section = {**section, "strategy_args": {**dict(strategy or {}), "strategy_config": remaining}}
    model = section.get("model_args")
    for key in ("lora_target", "target_modules"):
        if isinstance(model, Mapping) and (names := _layers(model.get(key))) is not None:
            theirs = [word for word in names if word in TRANSFORMER_ENGINE]
            ours = [each for word in names for each in TRANSFORMER_ENGINE.get(word, (word,))]
            section = {**section, "model_args": {**model, key: list(dict.fromkeys(ours))}}
            parts = "; ".join(f"{word}: {', '.join(TRANSFORMER_ENGINE[word])}" for word in theirs)
            warnings.append(f"{at}.model_args.{key}: {parts} get adapters, each one of its own.")
    return section


def _devices(
    at: str, name: str, config: Mapping[str, Any], section: Mapping[str, Any], warnings: list[str]
) -> Mapping[str, Any]:
    """num_gpus_per_worker where ROLL sets it itself: by the parallel sizes, and to 1 where a worker has one device."""
    size, spec, key = section.get("num_gpus_per_worker"), spec_of(name), f"{at}.num_gpus_per_worker"
    if type(size) is not int or size < 1:
        return section
    sizes = {key: config[key] for key in spec.size_keys if config.get(key) is not None}
    if (
        "tensor_parallel_size" in spec.size_keys
        and sizes
        and all(type(each) is int and each > 0 for each in sizes.values())
    ):
        wanted, why = math.prod(sizes.values()), " x ".join(f"{key} {each}" for key, each in sizes.items())
    elif spec is not NOTHING_KNOWN and Feature.MULTI_DEVICE_WORKER not in spec.supports:
        wanted, why = 1, f"{name} has one device per worker"
    else:
        return section
    if wanted == size:
        return section
    warnings.append(f"{key}: {size} is overruled: it is {wanted} ({why}).")
    return {**section, "num_gpus_per_worker": wanted}


def _without_unused(at: str, config: Mapping[str, Any], warnings: list[str]) -> dict[str, Any]:
    remaining: dict[str, Any] = dict(config)
    for path, why in FSDP2_KEYS.items():
        outer, _, key = path.rpartition(".")
        node = remaining.get(outer) if outer else remaining
        if not isinstance(node, dict) or key not in node:
            continue
        value, rest = node[key], {each: node[each] for each in node if each != key}
        remaining = {**remaining, outer: rest} if outer else rest
        if value not in (None, False, 1, [], ()):
            warnings.append(f"{at}.{path} does nothing here: {why}.")
    return remaining


def _layers(value: object) -> list[str] | None:
    """The names, where one of them is Megatron's."""
    names = [name.strip() for name in value.split(",")] if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        return None
    return list(names) if set(names) & set(TRANSFORMER_ENGINE) else None


def _nodes(result: Overruled, tree: Mapping[str, Any], sections: Mapping[str, Mapping[str, Any]]) -> None:
    """num_nodes follows from the device ids, as in ROLL; a node that nothing is on was hardly meant."""
    per_node = tree.get("num_gpus_per_node")
    per_node = per_node if type(per_node) is int and per_node > 0 else DEVICES_PER_NODE
    ids = dict(_mappings(sections))
    num_nodes, used = tree.get("num_nodes"), {device // per_node for each in ids.values() for device in each}
    needed = max(used, default=0) + 1
    if needed == 1 or (num_nodes is not None and (type(num_nodes) is not int or num_nodes >= needed or num_nodes < 1)):
        return
    largest = max(device for each in ids.values() for device in each)
    what = f"device ids go up to {largest}, and num_gpus_per_node is {per_node}: that takes {needed} nodes"
    if free := sorted({*range(needed)} - used):
        keys = tuple(f"{at}.device_mapping" for at in ids)
        at = next(at for at, each in ids.items() if largest in each)
        result.problems.append(
            Problem(
                f"{at}.device_mapping: {what}, and no role is on node {ids_text(free)}. Use ids from 0 on "
                f"(0..{per_node - 1} on one node), or set num_nodes: {needed} if these nodes are to stay free.",
                (*keys, "num_nodes", "num_gpus_per_node"),
            )
        )
    elif num_nodes is None:
        result.warnings.append(f"num_nodes is not set: {what}.")
    else:
        result.warnings.append(f"num_nodes: {num_nodes} is overruled: {what}.")
    result.changed["num_nodes"] = needed


def _mappings(sections: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, tuple[int, ...]]]:
    for at, section in sections.items():
        if section.get("device_mapping") is not None:
            try:
                yield at, parse_device_mapping(section["device_mapping"])
            except ValueError:  # told with the settings
                continue


def _put(changed: dict[str, Any], tree: Mapping[str, Any], at: str, section: Mapping[str, Any]) -> None:
    group, _, name = at.partition(".")
    changed[group] = {**changed.get(group, tree[group]), name: dict(section)} if name else dict(section)
