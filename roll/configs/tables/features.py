"""The features that are plugged into a run. Each is a room, a folder of `roll/features`, and a row of `KEYS`.

Nothing outside names a room: it is imported if the run has one of its keys, and asked through `FeaturePlugin`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roll.configs.base import Settings
    from roll.configs.problems import Problem
    from roll.configs.sections.model import ModelArgs
    from roll.configs.sections.run import RunConfig
    from roll.configs.strategies.choice import Choice
    from roll.configs.tables.roles import Head


class FeaturePlugin:
    """What a feature adds to a run. A room overrides the methods that it needs, and imports torch in the last alone."""

    def problems(self, config: RunConfig, roles: Sequence[Choice]) -> Iterator[Problem]:
        """Find what cannot work on any machine. `roles`: those whose strategy is known."""
        yield from ()

    def warnings(self, config: RunConfig, roles: Sequence[Choice]) -> Iterator[str]:
        """Name settings that work but may not be intended."""
        yield from ()

    def machine_problems(self, config: RunConfig, roles: Sequence[Choice]) -> Iterator[Problem]:
        """Find what this machine lacks."""
        yield from ()

    def model_problems(self, config: RunConfig, role: Choice, model: Mapping[str, Any]) -> Iterator[Problem]:
        """Find what does not fit the model of a role, by its config.json."""
        yield from ()

    def add_adapters(self, pretrained: Any, args: ModelArgs, head: Head, empty: bool) -> Any:
        """Put adapters on a model of Hugging Face, and return them (`roll.models.exports.ModelAdapters`); None: it has
        none. `empty`: their form alone."""
        return None


KEYS: Mapping[str, tuple[str, ...]] = {
    "lora": (
        *("lora_target", "lora_rank", "lora_alpha", "use_rslora", "lora_dropout", "additional_target"),
        *("adapter_name_or_path", "enable_lora"),
    ),
}
"""Names of the rooms, and the keys of each, in whatever section they are. `roll.features.NAME.checks` has `PLUGIN`."""


def active(settings: Settings) -> list[FeaturePlugin]:
    """The features of which the settings have a key."""
    given = set(_keys(settings.model_dump(exclude_unset=True)))
    names = [name for name, keys in KEYS.items() if given.intersection(keys)]
    return [import_module(f"roll.features.{name}.checks").PLUGIN for name in names]


def _keys(node: object) -> Iterator[str]:
    if isinstance(node, Mapping):
        yield from map(str, node)
        for value in node.values():
            yield from _keys(value)
