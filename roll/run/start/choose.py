"""Defaults that depend on more than their key: chosen for what a checked YAML leaves out."""

from __future__ import annotations

from roll.configs.load.chosen import Chosen, with_chosen
from roll.configs.load.validate import Checked, validate
from roll.configs.sections.run import RunConfig
from roll.run.spec import PipelineSpec
from roll.run.start.this_machine import this_machine


def choose(spec: PipelineSpec, checked: Checked[RunConfig]) -> tuple[RunConfig | None, tuple[Chosen, ...]]:
    """The settings with what is chosen for keys that their tree leaves out, and these choices. Without settings that
    can be built there are none. Each round of `spec.defaults` sees what the rounds before it chose."""
    config, chosen = checked.config, list[Chosen]()
    if config is None:
        return None, ()
    given, machine = checked.given, this_machine()
    for hooks in spec.defaults:
        found = spec.choices(hooks, config, given, machine)
        sound = [choice for choice in found if choice.key not in checked.broken]
        made = validate(type(config), with_chosen(checked.tree, [*chosen, *sound])).config if sound else None
        if made is not None:
            config, chosen = made, [*chosen, *sound]
    return config, tuple(chosen)
