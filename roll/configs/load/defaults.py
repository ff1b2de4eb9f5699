"""Defaults of one key that follow from another: filled into the raw tree, so that a built configuration is complete."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from roll.configs.base import DEVICES_PER_NODE
from roll.configs.load.known_keys import ROLL_REWARD_KEYS, ROLL_REWARDS
from roll.configs.sections.cluster import parse_device_mapping
from roll.configs.sections.experience import mode_directory
from roll.configs.strategies.table import OTHER_NAMES, spec_of
from roll.configs.tables.presets import fill_algorithm
from roll.configs.tables.roles import ACTOR_INFER, ACTOR_TRAIN, LLM_JUDGE, REWARD_MODEL, REWARD_PRETRAIN, Role, Use

LENGTH_KEYS = ("max_steps", "num_train_epochs", "total_epochs", "total_steps", "total_training_steps")
ENGINE_JUDGE_TIMEOUT_S = 600.0


def with_epochs(tree: Mapping[str, Any], roles: Mapping[str, Role]) -> Mapping[str, Any]:
    """The tree with the number of epochs where this run has it: ROLL writes it in the training_args of the role that
    learns the rows. It counts where the run says nothing of its length.

    Example: `sft_train: {training_args: {num_train_epochs: 3}}` becomes `num_train_epochs: 3`.
    """
    if any(tree.get(key) is not None for key in LENGTH_KEYS):
        return tree
    for name in (role.name for role in roles.values() if role.learns and "data_args" in role.reads):
        worker = tree.get(name)
        args = worker.get("training_args") if isinstance(worker, Mapping) else None
        if isinstance(worker, Mapping) and isinstance(args, Mapping) and args.get("num_train_epochs") is not None:
            rest = {key: value for key, value in args.items() if key != "num_train_epochs"}
            return {**tree, name: {**worker, "training_args": rest}, "num_train_epochs": args["num_train_epochs"]}
    return tree


def fill_run(tree: Mapping[str, Any], roles: Mapping[str, Role]) -> dict[str, Any]:
    """The tree with names, model paths, parallel sizes and folders filled in. What is given stays as it is.

    Example: `pretrain: Qwen/Qwen2.5-7B` fills `reference.model_args.model_name_or_path` if there is a reference.
    """
    filled = dict(tree)
    for role in roles.values():
        worker = _opened(filled, role.name, create=role.is_needed)
        if worker is None:
            continue
        _model(worker, tree, role.model_keys)
        _name(worker, role.name)
        _strategy(worker, role.use)
        _parallel_size(worker)
    _tokenizer(filled)
    if filled.get("num_nodes") is None:
        named = (filled.get(key) for key in ("rewards", "teachers"))
        others = (worker for group in named if isinstance(group, Mapping) for worker in group.values())
        sections = [*map(filled.get, roles), filled.get("teacher"), *others]
        filled["num_nodes"] = _num_nodes(filled, sections)
    if not filled.get("output_dir"):
        filled["output_dir"] = f"./output/{filled.get('exp_name') or 'roll'}"
    if not filled.get("logging_dir"):
        filled["logging_dir"] = f"{filled['output_dir']}/logs"
    if not filled.get("profiler_output_dir"):
        filled["profiler_output_dir"] = f"{filled['output_dir']}/profiler"
    fill_algorithm(filled)
    return filled


def fill_roles(tree: Mapping[str, Any], roles: Mapping[str, Role]) -> dict[str, Any]:
    """The same, and the estimator, rewards and validation of reinforcement learning."""
    filled = fill_run(mode_directory(tree), roles)
    for domain, worker in (_opened(filled, "rewards") or {}).items():
        if isinstance(worker, Mapping):
            roll_cls = str(worker.get("worker_cls"))
            named = {"name": f"rewards.{domain}", "reward": ROLL_REWARDS.get(roll_cls)}
            settings = {key: value for key, value in worker.items() if value is not None}
            filled["rewards"][domain] = named | dict(ROLL_REWARD_KEYS.get(roll_cls, {})) | settings
            _fill_judge(filled["rewards"][domain], filled.get("reward_model"))
            _strategy(filled["rewards"][domain], "score")
            if filled["rewards"][domain]["reward"] == REWARD_MODEL:
                _model(filled["rewards"][domain], tree, REWARD_PRETRAIN)
            elif settings.get("judge_model_type") == "inference":
                _model(filled["rewards"][domain], tree, ())
    teachers = _opened(filled, "teachers") or {}
    taught = {f"teachers.{name}": _opened(teachers, name) for name in list(teachers)}
    for role, worker in {"teacher": _opened(filled, "teacher"), **taught}.items():
        if worker is not None:
            _name(worker, role)
            _strategy(worker, "score")
            _model(worker, tree, ())
    validation = _opened(filled, "validation")
    if validation is not None:
        _name(validation, "validation")
        if not validation.get("generating_args"):
            validation["generating_args"] = {"temperature": 0.0}
    for name, section in (_opened(filled, "eval_sets") or {}).items():
        if isinstance(section, Mapping) and not section.get("generating_args"):
            filled["eval_sets"][name] = {**section, "generating_args": {"temperature": 0.0}}
    if filled.get("adv_estimator") is None:
        filled["adv_estimator"] = "gae" if filled.get("critic") else "grpo"
    if not filled.get("rollout_dump_dir"):
        filled["rollout_dump_dir"] = f"{filled['output_dir']}/rollouts"
    return filled


def _fill_judge(reward: dict[str, Any], shared: Any) -> None:
    """A judge takes the likeliest words, unless told otherwise: by its domain, or by the section `shared` whose engines
    it asks. One on engines of the run has time to wait in line."""
    parts = reward.get("reward_manager_config")
    names = [part.get("reward") for part in parts if isinstance(part, Mapping)] if isinstance(parts, list) else []
    if LLM_JUDGE not in (reward["reward"], *names):
        return
    sampling = _opened(reward, "generating_args", create=True)
    if sampling is not None:
        if reward.get("judge_model_type") == "cluster" and isinstance(shared, Mapping):
            common = shared.get("generating_args")
            settings = {key: value for key, value in sampling.items() if value is not None}
            sampling |= {**common, **settings} if isinstance(common, Mapping) else settings
        if sampling.get("temperature") is None:
            sampling["temperature"] = 0.0
    if reward.get("judge_model_type") in ("inference", "cluster"):
        reward.setdefault("timeout_s", ENGINE_JUDGE_TIMEOUT_S)
        _parallel_size(reward)


def _num_nodes(tree: Mapping[str, Any], sections: Iterable[Any]) -> int:
    """The nodes that hold the largest device id of any role. Mappings that are wrong are left to the checks.

    Example: ids up to 15 with num_gpus_per_node 8 are on 2 nodes.
    """
    per_node = tree.get("num_gpus_per_node")
    if type(per_node) is not int or per_node < 1:
        per_node = DEVICES_PER_NODE
    largest = 0
    for worker in sections:
        mapping = worker.get("device_mapping") if isinstance(worker, Mapping) else None
        if mapping is None:
            continue
        try:
            largest = max(largest, *parse_device_mapping(mapping))
        except ValueError:
            continue
    return largest // per_node + 1


def _opened(tree: dict[str, Any], key: str, create: bool = False) -> dict[str, Any] | None:
    """A copy of the mapping under `key`, put back into the tree so that it can be filled; None if there is no
    mapping."""
    value = tree.get(key)
    if value is None and create:
        value = {}
    if not isinstance(value, Mapping):
        return None
    tree[key] = dict(value)
    return tree[key]


def _model(worker: dict[str, Any], tree: Mapping[str, Any], keys: Iterable[str]) -> None:
    """Its model, where the section names none: that of the first of these keys which is given; and its hub."""
    model = _opened(worker, "model_args", create=True)
    path = next((tree[key] for key in keys if tree.get(key)), None)
    if model is not None and path and not model.get("model_name_or_path"):
        model["model_name_or_path"] = path
    if model is not None and tree.get("model_download_type") and not model.get("download_type"):
        model["download_type"] = tree["model_download_type"]


def _tokenizer(tree: dict[str, Any]) -> None:
    """The engine that samples for a policy has the policy's."""
    policy, engine = (_opened(_opened(tree, name) or {}, "model_args") for name in (ACTOR_TRAIN.name, ACTOR_INFER.name))
    if policy is not None and engine is not None and policy.get("tokenizer_path") is not None:
        engine.setdefault("tokenizer_path", policy["tokenizer_path"])


def _name(worker: dict[str, Any], role: str) -> None:
    if not worker.get("name"):
        worker["name"] = role


def _strategy(worker: dict[str, Any], use: Use) -> None:
    """Replaces another system's strategy name with ours, if it fits the use of the role."""
    strategy = _opened(worker, "strategy_args")
    name = strategy.get("strategy_name") if strategy is not None else None
    if strategy is not None and isinstance(name, str):
        strategy["strategy_name"] = OTHER_NAMES.get(name, {}).get(use, name)


def _parallel_size(worker: dict[str, Any]) -> None:
    """Workers of an engine have as many devices as its tensor x pipeline parallel sizes ask for."""
    strategy = worker.get("strategy_args")
    options = strategy.get("strategy_config") if isinstance(strategy, Mapping) else None
    if (
        worker.get("num_gpus_per_worker") is not None
        or not isinstance(strategy, Mapping)
        or not isinstance(options, Mapping)
    ):
        return
    name = strategy.get("strategy_name")
    keys = spec_of(name).size_keys if isinstance(name, str) else ()
    sizes = [options.get(key, 1) for key in keys]
    if keys and all(type(size) is int and size > 0 for size in sizes):
        worker["num_gpus_per_worker"] = math.prod(sizes)
