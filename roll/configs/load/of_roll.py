"""Defaults of ROLL, where another value would be learned from or measured. A YAML that was written for ROLL gets them:
it has ROLL's section `hydra` or a `worker_cls` of ROLL's. `defaults_of` says it of any other, or denies it."""

from collections.abc import Iterator, Mapping
from typing import Any

from roll.utils.text import short

KEY = "defaults_of"
_LEARNING = {"learning_rate": 5e-5, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 1}
_SAMPLING = {"temperature": 0.95, "top_p": 0.7, "top_k": 50}
_RUNS: Mapping[str, Mapping[str, Any]] = {
    "rewards": {"num_return_sequences_in_group": 1},
    "train_env_manager": {"train_env_manager.group_size": 1, "train_env_manager.num_env_groups": 128},
}
"""Defaults by the section which only one kind of run has."""
_VALUES: Mapping[str, Any] = {
    **{f"{role}.training_args": _LEARNING for role in ("actor_train", "student_train", "critic")},
    **{f"{role}.generating_args": _SAMPLING for role in ("actor_infer", "student_infer")},
}


def is_of_roll(tree: Mapping[str, Any], has_hydra: bool) -> bool:
    """True for a tree that says it is ROLL's. `has_hydra`: the YAML has the section that Hydra takes out."""
    return tree[KEY] == "roll" if tree.get(KEY) else has_hydra or _has_worker_cls(tree)


def _has_worker_cls(node: Any) -> bool:
    if isinstance(node, list):
        return any(map(_has_worker_cls, node))
    if not isinstance(node, Mapping):
        return False
    return str(node.get("worker_cls")).startswith("roll.") or any(map(_has_worker_cls, node.values()))


def fill_of_roll(tree: dict[str, Any], fields: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Fills the keys that a tree of a run of RL leaves out, in place: yields each with its value. `fields`: the keys of
    this kind of run."""
    if "adv_estimator" not in fields:
        return
    values = {f"{section}.{key}": value for section, group in _VALUES.items() for key, value in group.items()}
    for section, group in _RUNS.items():
        values |= group if section in fields else {}
    clip = 0.2 if tree.get("pg_clip") is None else tree["pg_clip"]
    if tree.get("dual_clip_loss") is True and isinstance(clip, int | float):
        values["dual_clip_ratio_c"] = 1 + 2 * clip
    if tree.get("async_generation_ratio"):
        tree["train_infer_correction"] = tree.get("train_infer_correction") or {}
        values["train_infer_correction.is_weight.enabled"] = False
    for key, value in values.items():
        if _fill(tree, key, value):
            yield key, short(value)
    engine = tree.get("actor_infer") or tree.get("student_infer")
    sampling = engine.get("generating_args") if isinstance(engine, Mapping) else None
    for name in ("validation", "val_env_manager"):
        if isinstance(section := tree.get(name), dict) and isinstance(sampling, Mapping):
            usual = _SAMPLING if section.get("generating_args") else sampling
            for key in _SAMPLING:
                if _fill(tree, f"{name}.generating_args.{key}", usual[key]):
                    yield f"{name}.generating_args.{key}", short(usual[key])


def _fill(tree: dict[str, Any], key: str, value: Any) -> bool:
    """The section of a role has to be there, what is in it need not be. Some keys may have another name of ROLL's, such
    as env_groups for num_env_groups."""
    *sections, last = key.split(".")
    node: Any = tree
    for place, name in enumerate(sections):
        if place and isinstance(node, dict):
            node[name] = {} if node.get(name) is None else node[name]
        node = node.get(name) if isinstance(node, dict) else None
    if not isinstance(node, dict) or any(node.get(key) is not None for key in (last, last.removeprefix("num_"))):
        return False
    node[last] = value
    return True
