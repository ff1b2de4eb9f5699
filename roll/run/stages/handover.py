"""Handover of models: which model each role of a stage starts from."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from roll.configs.problems import did_you_mean
from roll.configs.sections.run import AT_THE_START, RunConfig
from roll.errors import ConfigError
from roll.run.stages.entries import Entry

MODEL = "model_args.model_name_or_path"
ADAPTERS = "model_args.adapter_name_or_path"
_KEY_OF_HEAD = {"lm": "pretrain", "reward": "reward_pretrain"}
"""Key whose default is the saved model of a stage, by the head of the model that the stage trains."""


@dataclass(frozen=True)
class StageModel:
    """A stage, as those after it see it. `key`: the key in whose place its model comes; None: it saves none that others
    could start from. `origin`: the model that it starts from, whose shape its own has."""

    name: str
    key: str | None
    origin: str


def model_key(cls: type[RunConfig]) -> str | None:
    """The `key` of a Giver, by the roles that learn: the policy where there is one."""
    heads = {role.head for role in cls.role_table.values() if role.learns}
    return next((key for head, key in _KEY_OF_HEAD.items() if head in heads), None)


def origin(config: RunConfig) -> str:
    learners = {config.roles[name].head: worker for name, worker in config.learning_roles.items()}
    worker = next((learners[head] for head in (*_KEY_OF_HEAD, *learners) if head in learners), None)
    return (worker.model_args.model_name_or_path if worker is not None else None) or ""


def receivers(config: RunConfig, entry: Entry, earlier: Sequence[StageModel]) -> dict[str, StageModel]:
    """The roles of a stage that start from the model of an earlier one: the last that comes in the place of a key which
    names the role's model, unless the stage says otherwise. Raises ConfigError for `models` that cannot be."""
    last = {giver.key: giver for giver in earlier}
    wanted = entry.settings.models
    if problems := [text for role in wanted for text in _wrong(config, role, wanted[role], earlier)]:
        raise ConfigError(*problems)
    receivers: dict[str, StageModel] = {}
    for name in _with_models(config):
        named = wanted.get(name)
        giver = None
        if named is None and not entry.says([*name.split(".", 1), *MODEL.split(".")]):
            giver = _by_default(config, config.roles[name].model_keys, entry, last)
        elif named is not None and named != AT_THE_START:
            giver = next(giver for giver in earlier if giver.name == named)
        if giver is not None:
            receivers[name] = giver
    return receivers


def _with_models(config: RunConfig) -> list[str]:
    """The sections of a model, whether their role is started or not: they have to agree with each other."""
    return [name for name in config.sections if config.roles[name].head is not None]


def _by_default(
    config: RunConfig, keys: Sequence[str], entry: Entry, last: Mapping[str | None, StageModel]
) -> StageModel | None:
    for key in keys:
        if key in last and not entry.says((key,)):
            return last[key]
        if config.value(key) is not None:
            return None
    return None


def _wrong(config: RunConfig, role: str, named: str, earlier: Sequence[StageModel]) -> Iterator[str]:
    givers = {giver.name: giver for giver in earlier}
    if role not in (roles := _with_models(config)):
        yield (
            f"models.{role}: there is no such role with a model in this stage.{did_you_mean(role, roles)} It has "
            f"{', '.join(roles)}."
        )
    elif named != AT_THE_START and named not in givers:
        there = ", ".join((*givers, AT_THE_START))
        yield f"models.{role}: {named} is no stage before this one.{did_you_mean(named, givers)} Possible: {there}."
    elif named != AT_THE_START and givers[named].key not in (config.roles[role].model_keys or ("pretrain",)):
        what = {None: "no model", "reward_pretrain": "a reward model"}.get(givers[named].key, "a policy")
        yield f"models.{role}: {named} leaves {what}, from which {role} cannot start."


def with_models(settings: Mapping[str, Any], models: Mapping[str, str], entry: Entry) -> dict[str, Any]:
    """The resolved tree of a stage with these models, by role, and the adapters of an earlier stage."""
    tree: dict[str, Any] = copy.deepcopy(dict(settings))
    for role, path in models.items():
        _section(tree, role, MODEL)[MODEL.split(".")[1]] = path
        if not entry.says([*role.split(".", 1), *ADAPTERS.split(".")]):
            _section(tree, role, ADAPTERS).pop(ADAPTERS.split(".")[1], None)
    return tree


def _section(tree: dict[str, Any], role: str, key: str) -> dict[str, Any]:
    """The mapping of a role's section that holds a key, made if there is none."""
    for part in (*role.split(".", 1), key.split(".")[0]):
        tree[part] = tree[part] if isinstance(tree.get(part), dict) else {}
        tree = tree[part]
    return tree
