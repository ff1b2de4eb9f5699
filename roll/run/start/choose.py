"""Defaults that depend on more than their key: chosen for what a checked YAML leaves out."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache

from roll.configs.load.chosen_values import Chosen, Machine, with_chosen
from roll.configs.load.validate import Checked, validate
from roll.configs.sections.run import RunConfig
from roll.platforms.table import CUDA, NPU, PLATFORMS, ROCM, Platform, machine_platform
from roll.run.spec import PipelineSpec
from roll.run.start.device_defaults import THREADS
from roll.run.start.memory_report import num_shown, num_visible_gpus, smallest_gpu_bytes
from roll.utils.imports import is_installed

# This machine, as defaults depend on it. Nothing is imported, and no GPU is opened.

PACKAGES = ("vllm", "sglang", "deepspeed")


def this_machine() -> Machine:
    platform = machine_platform()
    shown_by = platform if platform in (ROCM, NPU) else CUDA
    machine = _machine(shown_by, os.environ.get(shown_by.visible_variable), os.environ.get("PATH"))
    cores, limit = len(os.sched_getaffinity(0)), os.environ.get(THREADS, "")
    return replace(machine, num_cores=min(cores, int(limit)) if limit.isdecimal() and int(limit) else cores)


@cache
def _machine(platform: Platform, visible: str | None, path: str | None) -> Machine:
    """Return facts about this machine. `path`: the PATH on which nvidia-smi is found, part of the key of the cache."""
    packages = frozenset(name for name in PACKAGES if is_installed(name))
    if platform is not CUDA:
        return Machine(num_shown(visible, platform.num_devices()), None, packages, platform.name)
    count = num_visible_gpus(visible)
    return Machine(count, smallest_gpu_bytes() if count else None, packages)


def machine_of(config: RunConfig) -> Machine:
    """This machine as far as the run uses it: without its devices where the run is for those of another platform."""
    machine = this_machine()
    if config.platform in ("auto", machine.platform):
        return machine
    return replace(machine, num_gpus=0, gpu_bytes=None)


def lacks_gpus(config: RunConfig) -> bool:
    """Whether engines of the run compute on CPUs."""
    return config.platform in ("auto", "cpu") and not machine_of(config).num_gpus


def platform_choice(config: RunConfig, machine: Machine) -> list[Chosen]:
    """The platform of a machine with other devices than NVIDIA's: the plan has to know what they lack."""
    if config.platform != "auto" or not machine.num_gpus or machine.platform == CUDA.name:
        return []
    platform = PLATFORMS[machine.platform]
    return [Chosen("platform", platform.name, f"this process sees {machine.num_gpus} {platform.devices} of it")]


def choose(spec: PipelineSpec, checked: Checked[RunConfig]) -> tuple[RunConfig | None, tuple[Chosen, ...]]:
    """The settings with what is chosen for keys that their tree leaves out, and these choices. Without settings that
    can be built there are none. Each round of `spec.defaults` sees what the rounds before it chose."""
    config, chosen = checked.config, list[Chosen]()
    if config is None:
        return None, ()
    user_keys, machine = checked.keys_in_yaml, machine_of(config)
    for hooks in ((), *spec.defaults):
        choices = spec.choices(hooks, config, user_keys, machine) if hooks else platform_choice(config, machine)
        sound = [choice for choice in choices if choice.key not in checked.broken]
        made = validate(type(config), with_chosen(checked.tree, [*chosen, *sound])).config if sound else None
        if made is not None:
            config, chosen = made, [*chosen, *sound]
    return config, tuple(chosen)
