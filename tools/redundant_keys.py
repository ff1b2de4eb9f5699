"""Finds keys of YAMLs that say what is the default: without them the configuration is the same.

    python tools/redundant_keys.py [examples/tiny-sort/tiny_sort.yaml ...]

Keys whose value the machine would choose (devices, backends, lengths) stay, and so do those that a reader looks for,
and those with a comment: these teach. The exit code is 1 if there are any."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from roll.configs.load.loader import RawTree, compose_tree, resolve_tree
from roll.errors import ConfigError
from roll.run.kind import kind_of
from roll.run.spec import PIPELINES
from roll.run.start.load import Loaded, check

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
SHARED = ("config", "data", "questions")
SHOWN = frozenset({
    "exp_name", "output_dir", "pretrain", "seed", "max_steps", "pipeline", "algorithm", "adv_estimator", "num_nodes",
    "num_gpus_per_node", "eval_steps", "save_steps", "track_with", "dtype", "prompt_length", "num_env_groups",
    "group_size", "per_device_train_batch_size", "gradient_accumulation_steps", "infer_batch_size", "temperature",
    "top_p", "top_k", "agent_template", "pg_clip_low", "step_reward_gamma", "kd_objective", "logits_topk",
    "opd_kl_coef",
})  # fmt: skip
"""Names of keys that a reader of an example looks for, whatever their value."""

KeyPath = tuple[str, ...]


def main(paths: list[Path]) -> int:
    found = [(path, key) for path in paths for key in redundant(path)]
    sys.stdout.writelines(f"{path}: {'.'.join(key)}\n" for path, key in found)
    return int(bool(found))


def shipped() -> list[Path]:
    return [path for path in sorted(EXAMPLES.glob("*/*.yaml")) if path.parent.name not in SHARED]


def redundant(path: Path) -> list[KeyPath]:
    """The keys of a YAML without which its configuration is the same; none of a YAML that builds on another one, whose
    keys it may undo, or that has stages."""
    text = path.read_text(encoding="utf-8")
    written = yaml.safe_load(text)
    if "stages" in written or any("config/" not in str(each) for each in written.get("defaults", [])):
        return []
    raw = compose_tree(path.parent, path.stem, [])
    whole = _loaded(raw)
    keys = [key for key in _leaves(written, ()) if key[0] != "defaults" and not _is_shown(text, key)]
    return [key for key in keys if whole is not None and _is_same(raw, key, whole)]


def _is_same(raw: RawTree, key: KeyPath, whole: Loaded) -> bool:
    tree = copy.deepcopy(raw.tree)
    section: Any = tree
    for name in key[:-1]:
        section = section[name]
    del section[key[-1]]
    without = _loaded(replace(raw, tree=tree))
    return without is not None and without.config == whole.config and without.chosen == whole.chosen


def _loaded(raw: RawTree) -> Loaded | None:
    try:
        spec = PIPELINES[kind_of(raw.tree).name]
        return check(spec, resolve_tree(raw, spec.config_class()))
    except ConfigError:
        return None


def _leaves(node: dict[str, Any], path: KeyPath) -> Iterator[KeyPath]:
    for name, value in node.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, (*path, name))
        else:
            yield (*path, name)


def _is_shown(text: str, key: KeyPath) -> bool:
    """Whether the key is there for a reader: by its name, or with a comment beside or above it."""
    if key[-1] in SHOWN:
        return True
    lines = text.splitlines()
    own = [number for number, line in enumerate(lines) if line.strip().removeprefix("- ").startswith(f"{key[-1]}:")]
    return any("#" in lines[number] or (number and lines[number - 1].strip().startswith("#")) for number in own)


if __name__ == "__main__":
    sys.exit(main([Path(word) for word in sys.argv[1:]] or shipped()))
