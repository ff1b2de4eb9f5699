"""Defaults that depend on more than their key: chosen for what a checked YAML leaves out."""

from __future__ import annotations

from roll.configs.load.chosen_values import Chosen, Machine, with_chosen
from roll.configs.load.validate import Checked, validate
from roll.configs.sections.run import RunConfig
from roll.platforms.table import CUDA, PLATFORMS
from roll.run.spec import PipelineSpec
from roll.run.start.machine import machine_of


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
