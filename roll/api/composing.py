"""Arguments and keys of a call in Python become what a YAML becomes: a checked configuration of one kind of run."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from roll.api.keys import ScriptCode, nested, put
from roll.api.rewards import Reward, reward_keys
from roll.api.rows import Data, file_names
from roll.configs.load.loader import RawTree, compose_tree, resolve_tree, without_unset, yaml_at
from roll.errors import ConfigError
from roll.run.kind import kind_of
from roll.run.spec import PipelineSpec, pipeline_of
from roll.run.stages.entries import STAGES
from roll.run.start.load import Loaded, check
from roll.run.start.start_checks import StartOptions, beside_mistakes
from roll.utils.imports import with_script_code
from roll.utils.text import show

Config = str | os.PathLike[str] | Mapping[str, Any]
LEARNERS: Mapping[str, str] = {
    "rlvr": "actor_train",
    "sft": "sft_train",
    "dpo": "actor_train",
    "rm": "reward_train",
    "distill": "student",
}
"""The section that learns from rows, by kind of run."""
_ANY_TAG = ""  # no column has this name: with one reward every row is of it


@dataclass(frozen=True)
class Arguments:
    """Arguments of a call other than keys. `kind`: the kind of run, None if a YAML names it."""

    kind: str | None = None
    config: Config | None = None
    model: str | os.PathLike[str] | None = None
    data: Data | None = None
    eval_data: Data | None = None
    reward: Reward | None = None
    env: Any = None
    teacher: str | os.PathLike[str] | None = None
    keys: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Composed:
    """A run that is described, and not checked yet. `code`: what the caller's program defines for it."""

    spec: PipelineSpec
    raw: RawTree
    code: Mapping[str, object]
    unset: frozenset[str] = frozenset()

    def check(self, is_plan: bool = False) -> Loaded:
        """Raises ConfigError with all mistakes, and what else would stop a start."""
        options = StartOptions(is_plan=is_plan, unset=self.unset)
        beside = partial(beside_mistakes, self.spec, options)
        return check(self.spec, resolve_tree(self.raw, self.spec.config_class()), beside)

    @contextmanager
    def code_at_hand(self) -> Iterator[None]:
        """`resolve` finds the code meanwhile, and so do workers that are started."""
        with with_script_code(self.code):
            yield


def compose(arguments: Arguments, is_plan: bool = False) -> Composed:
    """Raises ConfigError for arguments that are none. A plan leaves variables open that the environment lacks."""
    if arguments.env is not None and any(
        each is not None for each in (arguments.data, arguments.reward, arguments.eval_data)
    ):
        raise ConfigError("A run takes env, or data and reward: an environment brings tasks and rewards itself.")
    code = ScriptCode()
    raw = _base(arguments.config, code)
    keys = nested(arguments.keys, code)
    kind = arguments.kind if arguments.config is None else None
    taking = "agentic" if arguments.env is not None else "rlvr" if arguments.reward is not None else None
    named = kind or keys.get("pipeline") or raw.tree.get("pipeline") or taking
    made = _of_arguments(arguments, keys, named or _kind_of(raw))
    if "rewards" in made:  # it takes the place of a YAML's, and is not one more
        raw.tree.pop("rewards", None)
    put(raw.tree, made, code)
    put(raw.tree, keys, code)
    if arguments.reward is not None and not isinstance(arguments.reward, Mapping):  # one for all rows
        _forget_tags(raw.tree)
    if STAGES in raw.tree:
        raise ConfigError(f"{STAGES}: several runs one after the other are started with `roll run`, not from Python.")
    unset: frozenset[str] = frozenset()
    if is_plan:
        raw, unset = without_unset(raw)
    with with_script_code(code.objects):
        spec = pipeline_of(kind) if kind and not raw.tree.get("pipeline") else kind_of(raw.tree, kind)
    return Composed(spec, raw, code.objects, unset)


def _base(config: Config | None, code: ScriptCode) -> RawTree:
    """The tree that keys are set in."""
    if config is None or isinstance(config, Mapping):
        tree: dict[str, Any] = {}
        put(tree, config or {}, code)
        if "defaults" in tree:
            raise ConfigError("defaults names fragments of a YAML. Write a YAML, and name its path.")
        return RawTree(Path(f"{_script_name()}.yaml"), tree, frozenset())
    if not isinstance(config, str | os.PathLike):
        raise ConfigError(f"{show(config)}: give the path of a YAML, or a mapping of its keys.")
    return compose_tree(*yaml_at(os.fspath(config)), ())


def _kind_of(raw: RawTree) -> str | None:
    """The kind of run that a YAML is; None if nothing in it tells."""
    try:
        return kind_of(raw.tree).name
    except ConfigError:
        return None


def _script_name() -> str:
    """The script's, or that of its package, which names the run; "notebook" where there is none."""
    file = getattr(sys.modules["__main__"], "__file__", None)
    if not file:
        return "notebook"
    path = Path(file)
    return path.absolute().parent.name if path.stem == "__main__" else path.stem


def _of_arguments(arguments: Arguments, beside: Mapping[str, Any], kind: Any) -> dict[str, Any]:
    """Keys, by dotted name. `beside`: the tree of the call's own keys; `kind`: of the run, if that is known already.
    Raises ConfigError for a key that an argument gives, too."""
    learner = LEARNERS.get(str(kind), "actor_train")
    for name, wanted in (("reward", "rlvr"), ("env", "agentic")):
        if getattr(arguments, name) is not None and kind in {*LEARNERS, "agentic"} - {wanted}:
            raise ConfigError(f"{name}: a run of the kind {kind} has no such argument. It is for the kind {wanted}.")
    keys: dict[str, Any] = {}
    places = {
        "model": "pretrain",
        "teacher": "teacher_pretrain",
        "data": f"{learner}.data_args.file_name",
        "eval_data": "validation.data_args.file_name",
        "reward": "rewards",
    }
    for name, key in places.items():
        if (value := getattr(arguments, name)) is None:
            continue
        made = keys[key] = _READ[name](value)
        if (twice := _in_both(key, made, beside)) is not None:
            raise ConfigError(f"{name}: the key {twice} is given beside it. Leave out one of the two.")
    if arguments.env is not None:
        keys |= _env_keys(arguments.env)
    return keys


_READ: Mapping[str, Callable[[Any], Any]] = {
    "model": os.fspath,
    "teacher": os.fspath,
    "data": partial(file_names, "data"),
    "eval_data": partial(file_names, "eval_data"),
    "reward": reward_keys,
}
"""How the value of an argument becomes that of its key."""


def _in_both(key: str, made: Any, beside: Any) -> str | None:
    """The key at or below `key` that a tree has, too, whose value for `key` is `made`; None if there is none. Of
    rewards, the tree may set more keys of the same domains."""
    for part in key.split("."):
        beside = _mapping(beside).get(part)
    if isinstance(made, Mapping) and isinstance(beside, Mapping):
        others = (f"{key}.{name}" for name in beside if name not in made)
        shared = (f"{key}.{one}.{name}" for one in made for name in _mapping(beside.get(one)) if name in made[one])
        return next(others, None) or next(shared, None)
    return None if beside is None else key


def _forget_tags(tree: dict[str, Any]) -> None:
    """Sets every `tag` that no key gives to a column that no data has. With one reward, rows need no tag."""
    sets = [each for each in _mapping(tree.get("eval_sets")).values() if isinstance(each, dict)]
    sections = [tree.setdefault("actor_train", {}), *filter(None, [tree.get("validation")]), *sets]
    for section in sections:
        if isinstance(section, dict) and isinstance(args := section.setdefault("data_args", {}), dict):
            args.setdefault("tag", _ANY_TAG)


def _env_keys(env: Any) -> dict[str, Any]:
    """One environment under its own name, which is played in training."""
    if not (isinstance(env, str) or callable(env)):
        raise ConfigError(f"env: {show(env)}: give a class, or the name of an environment.")
    name = env.rpartition(":")[2] if isinstance(env, str) else str(getattr(env, "__name__", type(env).__name__))
    return {f"custom_envs.{name}.env_type": env, "train_env_manager.tags": [name]}


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
