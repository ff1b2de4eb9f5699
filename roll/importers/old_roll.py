"""A YAML of ROLL, old or new: its keys are those of here, so it stays as it is but for those that are not."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from roll.configs.base import Settings, holds_mapping, join, nested_class
from roll.configs.load.known_keys import AROUND, DROPPED, RENAMED, InertKey, holds_teachers, inert_keys, known_keys
from roll.configs.load.loader import compose_tree, references
from roll.configs.load.of_roll import KEY
from roll.configs.problems import nearest
from roll.configs.sections.model import HUGGINGFACE, MODELSCOPE
from roll.configs.strategies.megatron_config import KNOWN, NOT_HERE
from roll.configs.strategies.table import spec_of
from roll.errors import ConfigError
from roll.importers.convert import Entry, Imported, SourceKeys, leaves
from roll.importers.row_files import expanded
from roll.importers.rows import CHANGES, Outcome, data
from roll.run.kind import kind_of
from roll.run.spec import PIPELINES
from roll.utils.imports import resolve
from roll.utils.text import show

_SIGNS = ("actor_train", "actor_infer", "rollout_batch_size", "sft_train", "student", "custom_envs")

_ASKING = ("max_samples", "interleave_probs", "user_prompt_format", "reward_template")
"""Keys that are dropped here and choose rows, their shares or what the policy reads in ROLL."""
_NOT_GIVEN = (None, "None", "", {}, [])
_FORMATS = "mixed_precision"
"""A section of fsdp2 for keys that may also stand beside it."""
_OF_FSDP2: Mapping[str, str] = expanded(data("fsdp2.yaml"))
"""Keys of ROLL's FSDP2 that are not here, and cost memory or time alone."""
_OF_SPEED = ("apply_loss_scale", "router_name", "router_config", "backend_name", "backend_config")
"""Keys that are not here and change no number."""


def is_roll(tree: Mapping[str, Any]) -> bool:
    return any(key in tree for key in _SIGNS)


def convert_roll(original: SourceKeys, source: Path | None) -> Imported:
    """The YAML without the keys that would be refused, with the names of here, and with ROLL's defaults where those of
    here are others."""
    if source is None:
        raise ConfigError("a YAML of ROLL is imported from its file.")
    pipeline = _pipeline(original.tree)
    cls = PIPELINES[pipeline].config_class()
    tree = copy.deepcopy(dict(original.tree))
    if holds_teachers(tree.get("teacher")) and "teachers" not in tree:
        tree["teachers"] = tree.pop("teacher")
    whole, why = _composed(tree, source)
    variables = {name.split(".")[0] for name in references(whole or tree)}
    if whole is None:  # a fragment that is not read may refer to any key
        variables |= {str(key) for key in tree}
    hub = tuple(_hub(tree))
    entries = (*_steps(pipeline, tree), *hub, *_lengths(tree, whole, variables), *_entries(cls, tree, variables))
    for entry in hub:
        tree["model_download_type"] = _HUBS[entry.key, str(entry.value)]
    notes = ["Fragments of its defaults list are looked for beside the YAML, then among those of roll."]
    written = {} if tree.get(KEY) else {KEY: "roll: where ROLL has other defaults, they hold"}
    tree.setdefault(KEY, "roll")
    if whole is None:
        notes.append(f"Keys that are not known stay, since a fragment may refer to them that is not read here: {why}")
    return Imported("roll", pipeline, tree, entries, written, tuple(notes) if "defaults" in tree else ())


def _composed(tree: Mapping[str, Any], source: Path) -> tuple[Mapping[str, Any] | None, str]:
    """The tree with its fragments; None, and why, if one of them is not read."""
    if not tree.get("defaults"):
        return tree, ""
    if source.suffix != ".yaml":
        return None, f"fragments are read of a file that ends in .yaml. Rename {source.name}."
    try:
        return compose_tree(source.parent, source.stem, ()).tree, ""
    except ConfigError as error:
        return None, str(error)


def _pipeline(tree: Mapping[str, Any]) -> str:
    """The kind that knows most of the keys; that of RLVR where several do."""
    if "custom_envs" in tree or "train_env_manager" in tree:
        return "agentic"
    try:
        name = kind_of(tree).name
    except ConfigError:
        return "rlvr"
    return name if name in PIPELINES else "rlvr"


def _steps(pipeline: str, tree: dict[str, Any]) -> Iterator[Entry]:
    """The rows of a step of ROLL's DPO, which older versions make several updates of; a step here is one update."""
    if pipeline == "dpo" and "train_batch_size" in tree:
        note = "the updates are the same; save_steps, eval_steps and max_steps count updates here, as in ROLL's newer "
        note += "versions, which do not read it; older ones count batches of so many rows"
        yield Entry("train_batch_size", tree.pop("train_batch_size"), "approximated", note)
    for key in ("norm_mean_type", "norm_std_type"):
        if tree.get("adv_estimator") == "grpo" and tree.get(key) is not None:
            yield Entry(key, tree.pop(key), "asks for nothing", "ROLL's grpo does not read it")


_HUBS: Mapping[tuple[str, str], str] = {
    **{("system_envs.MODEL_DOWNLOAD_TYPE", hub): hub for hub in (HUGGINGFACE, MODELSCOPE)},
    ("system_envs.USE_MODELSCOPE", "1"): MODELSCOPE,
}
"""Variables by which ROLL chooses where it loads models from, the newer one first."""


def _hub(tree: dict[str, Any]) -> Iterator[Entry]:
    """Takes the variable that chooses the hub out of the tree, which a key does here."""
    variables = tree.get("system_envs")
    if not isinstance(variables, dict) or tree.get("model_download_type") is not None:
        return
    given = {f"system_envs.{name}": value for name, value in variables.items()}
    if chosen := next((key for key, value in _HUBS if str(given.get(key)) == value), ""):
        value = variables.pop(chosen.partition(".")[2])
        if not variables:
            del tree["system_envs"]
        yield Entry(chosen, value, "mapped", f"model_download_type: {_HUBS[chosen, str(value)]}")


def _lengths(tree: dict[str, Any], whole: Mapping[str, Any] | None, variables: set[str]) -> Iterator[Entry]:
    """Drops a response_length that contradicts sequence_length, which alone counts in ROLL."""
    composed = whole or tree
    prompt, response, total = (composed.get(f"{name}_length") for name in ("prompt", "response", "sequence"))
    if None in (response, total) or "response_length" not in tree or "response_length" in variables:
        return
    prompt = 1024 if prompt is None else prompt
    if isinstance(prompt, int) and isinstance(response, int) and total == prompt + response:
        return
    note = "ROLL reads sequence_length alone where both are set: a response has what prompt_length leaves of it"
    yield Entry("response_length", tree.pop("response_length"), "asks for nothing", note)


def _entries(cls: type[Settings], node: dict[str, Any], variables: set[str], path: str = "") -> Iterator[Entry]:
    """Yield one entry for each leaf of a section, which is changed in place."""
    known, inert = known_keys(cls), inert_keys(cls)
    names = [base.__name__ for base in cls.__mro__]
    for key in list(node):
        here, value = join(path, key), node[key]
        renamed = next((RENAMED[name, key] for name in names if (name, key) in RENAMED), None)
        dropped = next((DROPPED[name, key] for name in names if (name, key) in DROPPED), None)
        is_variable = key in variables and (key in inert or key not in known)
        if not path and (is_variable or key in ("defaults", "hydra")):
            yield from _outcome_entries(here, value, "mapped", "stays as it is")
        elif renamed is not None:
            target = renamed.removeprefix(AROUND)
            yield from _outcome_entries(
                here, value, "mapped", f"{target} is its name here; this one is understood as well"
            )
        elif key in inert:
            yield from _inert(here, node, key, inert[key])
        elif key in known:
            yield from _known(here, node, key, known[key], variables)
        else:
            del node[key]
            match = nearest(str(key), known)
            hint = f"the nearest key is {match}" if match else "no key here has this name"
            if dropped is not None:
                is_lost = key in _ASKING and not _is_nothing(key, value)
                yield from _outcome_entries(here, value, CHANGES if is_lost else "asks for nothing", dropped)
            else:
                outcome = "not available" if value in _NOT_GIVEN else CHANGES
                yield from _outcome_entries(here, value, outcome, f"no key of {path or 'a YAML'} here; {hint}")


def _is_nothing(key: str, value: Any) -> bool:
    """True for a value that chooses nothing, as the share of one file alone."""
    return value in (None, False, "") or (key == "interleave_probs" and "," not in str(value))


def _known(here: str, node: dict[str, Any], key: str, annotation: Any, variables: set[str]) -> Iterator[Entry]:
    inner, value = nested_class(annotation), node[key]
    if key == "strategy_config" and isinstance(value, dict):
        yield from _not_of_megatron(here, value, _is_megatron(node.get("strategy_name")))
        yield from _not_of_settings(here, value, _settings_of(node.get("strategy_name")))
    if inner is None or not isinstance(value, dict | list):
        yield from _outcome_entries(here, value, "mapped", "the same here")
    elif isinstance(value, list):
        for i, item in enumerate(value):
            if isinstance(item, dict):
                yield from _entries(inner, item, variables, f"{here}.{i}")
            else:
                yield from _outcome_entries(f"{here}.{i}", item, "mapped", "the same here")
    elif holds_mapping(annotation):
        for name, child in value.items():
            if isinstance(child, dict):
                yield from _entries(inner, child, variables, join(here, name))
            else:
                yield from _outcome_entries(join(here, name), child, "mapped", "the same here")
    else:
        yield from _entries(inner, value, variables, here)


def _is_megatron(strategy: Any) -> bool:
    return isinstance(strategy, str) and spec_of(strategy).problems == "roll.configs.strategies.megatron:problems"


def _not_of_megatron(here: str, config: dict[str, Any], is_megatron: bool) -> Iterator[Entry]:
    """Takes settings of Megatron's that a plan refuses out of a strategy_config: those of ROLL that are not here, and
    of a strategy of Megatron's also keys that it does not know."""
    for at, part in ((here, config), (f"{here}.additional_configs", config.get("additional_configs"))):
        if isinstance(part, dict):
            known = (*KNOWN, "additional_configs") if is_megatron else tuple(part)
            yield from _left_out(at, part, known, NOT_HERE, CHANGES)


def _left_out(
    at: str, part: dict[str, Any], known: Collection[str], said: Mapping[str, str], lost: Outcome
) -> Iterator[Entry]:
    """Takes keys out of a section: those that are not known, and those that are `said` to be not here, with the outcome
    `lost`."""
    for name in [name for name in part if name in said or name not in known]:
        value, match = part.pop(name), nearest(str(name), known)
        unknown = f"no such key of this strategy; {f'the nearest is {match}' if match else 'none is near'}"
        is_nothing = value in _NOT_GIVEN or (name in said and not value)
        outcome: Outcome = "asks for nothing" if is_nothing else lost if name in said else CHANGES
        yield from _outcome_entries(f"{at}.{name}", value, outcome, said.get(name, unknown))


def _settings_of(strategy: Any) -> type[Settings] | None:
    """The class that the settings of a strategy must fit, if it has one."""
    path = spec_of(strategy).settings if isinstance(strategy, str) else ""
    return cast("type[Settings]", resolve(path)) if path else None


def _not_of_settings(here: str, config: dict[str, Any], cls: type[Settings] | None) -> Iterator[Entry]:
    """Takes settings out of a strategy_config that the class of the strategy's settings does not know."""
    if cls is None:
        return
    known = known_keys(cls)
    yield from _left_out(here, config, (*known, _FORMATS), _OF_FSDP2, "not available")
    for name, value in config.items():
        inner = cls if name == _FORMATS else nested_class(known[name])
        if inner is not None and isinstance(value, dict):
            yield from _not_of_settings(f"{here}.{name}", value, inner)


def _inert(here: str, node: dict[str, Any], key: str, inert: InertKey) -> Iterator[Entry]:
    """A key that does nothing here is left out; one that asks for what is not here makes it another run."""
    value = node.pop(key)
    asks = value is not None and value not in (inert.default, *inert.inert)
    if inert.kind == "planned" and asks:
        yield from _outcome_entries(
            here, value, "not available" if key in _OF_SPEED else CHANGES, f"not implemented: {inert.help}"
        )
    else:
        yield from _outcome_entries(here, value, "asks for nothing", inert.reason or "this is always so here")


def _outcome_entries(here: str, value: Any, outcome: Outcome, note: str) -> Iterator[Entry]:
    """An entry for every leaf below a key."""
    for key, leaf in leaves({here: value}):
        yield Entry(key, leaf, outcome, note if outcome != "mapped" else f"{note}: {show(leaf)}")
