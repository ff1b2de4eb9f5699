"""Defaults that depend on more than their key: chosen for what a checked YAML leaves out."""

from __future__ import annotations

import os
from functools import cache

from roll.configs.load.chosen_values import Chosen, Machine, with_chosen
from roll.configs.load.validate import Checked, validate
from roll.configs.sections.run import RunConfig
from roll.run.spec import PipelineSpec
from roll.run.start.memory_report import num_visible_gpus, smallest_gpu_bytes
from roll.utils.imports import is_installed

# This machine, as defaults depend on it. Nothing is imported, and no GPU is opened.

PACKAGES = ("vllm", "sglang", "deepspeed")


def this_machine() -> Machine:
    return _machine(os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("PATH"))


@cache
def _machine(visible: str | None, path: str | None) -> Machine:
    """`path` decides which nvidia-smi answers."""
    count = num_visible_gpus(visible)
    packages = frozenset(name for name in PACKAGES if is_installed(name))
    return Machine(count, smallest_gpu_bytes() if count else None, packages)


def choose(spec: PipelineSpec, checked: Checked[RunConfig]) -> tuple[RunConfig | None, tuple[Chosen, ...]]:
    """The settings with what is chosen for keys that their tree leaves out, and these choices. Without settings that
    can be built there are none. Each round of `spec.defaults` sees what the rounds before it chose."""
    config, chosen = checked.config, list[Chosen]()
    if config is None:
        return None, ()
    user_keys, machine = checked.keys_in_yaml, this_machine()
    for hooks in spec.defaults:
        choices = spec.choices(hooks, config, user_keys, machine)
        sound = [choice for choice in choices if choice.key not in checked.broken]
        made = validate(type(config), with_chosen(checked.tree, [*chosen, *sound])).config if sound else None
        if made is not None:
            config, chosen = made, [*chosen, *sound]
    return config, tuple(chosen)
