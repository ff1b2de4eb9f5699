"""The features that are plugged into a run. Each is a room, a folder of `roll/features`, and a row of `KEYS`.

Nothing outside names a room: it is imported if the run has one of its keys, and asked through `FeaturePlugin`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roll.configs.base import Settings
    from roll.configs.plan.run_plan import RunPlan
    from roll.configs.problems import Problem
    from roll.configs.sections.model import Head, ModelArgs
    from roll.configs.sections.run import RunConfig
    from roll.configs.strategies.choice import Choice


def _nothing(*_: object) -> tuple[()]:
    return ()


@dataclass(frozen=True)
class FeaturePlugin:
    """Functions of a feature that a run asks; those of a role are asked of each whose strategy is known. None but
    `add_adapters` and `step_parts` imports torch.

    - `problems`, `warnings`: what cannot work on any machine, and what may not be intended
    - `machine_problems`: what this machine lacks; `model_problems`: what does not fit a model's config.json
    - `code_problems`: what is wrong with the user's code; `row_problems`: with rows of data, of this machine's files
      alone unless True
    - `choose_rows`: makes the choice among rows (`roll.datasets.chosen_rows.row_choice`)
    - `step_parts`: parts of a step of reinforcement learning (`roll.rl.parts`), which come before its records
    - `plan_rows`: rows of the printed plan about a step, with config.json of the roles whose model is on this machine
    - `add_adapters`: puts adapters on a model of Hugging Face and returns them (`roll.models.exports.ModelAdapters`);
      True: their form alone
    """

    problems: Callable[[RunConfig], Iterable[Problem]] = _nothing
    role_problems: Callable[[Choice], Iterable[Problem]] = _nothing
    warnings: Callable[[RunConfig], Iterable[str]] = _nothing
    machine_problems: Callable[[RunConfig], Iterable[Problem]] = _nothing
    role_machine_problems: Callable[[Choice], Iterable[Problem]] = _nothing
    model_problems: Callable[[Choice, Mapping[str, Any]], Iterable[Problem]] = _nothing
    code_problems: Callable[[RunConfig], Iterable[Problem | str]] = _nothing
    row_problems: Callable[[RunConfig, bool], Iterable[Problem | str]] = _nothing
    step_parts: Callable[[Any, Any], Iterable[Any]] = _nothing
    choose_rows: Callable[[Any, str, Any, Any], Any] | None = None
    plan_rows: Callable[[RunConfig, RunPlan, Mapping[str, Mapping[str, Any]]], Iterable[tuple[str, ...]]] = _nothing
    add_adapters: Callable[[Any, ModelArgs, Head, bool], Any] = _nothing


KEYS: Mapping[str, tuple[str, ...]] = {
    "lora": (
        *("lora_target", "lora_rank", "lora_alpha", "use_rslora", "lora_dropout", "additional_target"),
        *("adapter_name_or_path", "enable_lora"),
    ),
    "experts": ("moe_aux_loss_coef", "router_replay"),
    "mtp": ("mtp_training_mode", "mtp_loss_scaling_factor"),
    "prefix_sharing": (),
    "exact": ("exact_log_probs",),
    "teachers": (
        *("use_opd", "is_pure_opd", "teacher", "teachers", "opd_kl_coef", "opd_advantage", "opd_js_weight"),
        *("kl_loss_type", "kl_penalty"),
    ),
    "shaping": ("experience_operators",),
    "operators": ("operators",),
    "expert_rows": ("mix", "algorithm"),
}
"""Names of the rooms, and the keys of each, in whatever section they are; none: it is on by default. The module
`roll.features.NAME.checks` has `PLUGIN`."""


IN_MODELS: Mapping[str, Callable[[Any], bool]] = {
    "pictures": lambda config: (
        bool(config.sub_configs) or any(sense in key for key in vars(config) for sense in ("vision", "visual", "audio"))
    )
}
"""Rooms that say of which class a model is, and for which config.json of transformers. The module
`roll.features.NAME.model` has `kind`."""
IN_RANKS: Mapping[str, Callable[[Any], bool]] = {
    "prefix_sharing": lambda rank: rank.role.shares_prefixes,
    "exact": lambda rank: rank.is_exact,
    "pictures": lambda rank: rank.shows_pictures,
    "experts": lambda rank: rank.role.router_replay.is_on,
}
"""Rooms that change the passes of a Hugging Face model, from the inner to the outer, and for which `ModelRank`
(`roll/models/sequences/forward_plan.py`). The module `roll.features.NAME.forward` has `plan`."""
SIGHT = "roll.features.pictures.sight"
"""Module of what reads rows with pictures (`roll.datasets.sight.Sight`), for runs whose model or rows have some."""
DIVIDED_EXPERTS = "roll.features.experts.divided"
"""Module that divides the experts of a model over ranks."""
TARGETS = "roll.features.teachers.targets"
"""Module of the targets that students learn from, for the ranks that do."""


def active(settings: Settings) -> list[FeaturePlugin]:
    """The features that are on by default, or of which the settings have a key that is neither null nor false."""
    given = set(_keys(settings.model_dump(exclude_unset=True)))
    names = [name for name, keys in KEYS.items() if not keys or given.intersection(keys)]
    return [import_module(f"roll.features.{name}.checks").PLUGIN for name in names]


def _keys(node: object) -> Iterator[str]:
    if isinstance(node, Mapping):
        for key, value in node.items():
            if value is not None and value is not False:
                yield str(key)
                yield from _keys(value)
