"""The chat template of verl's prompts: its text, the switch of its thinking and its other variables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from roll.importers.rows import CombinedKeys, SourceLookup
from roll.utils.text import show

_KWARGS = "data.apply_chat_template_kwargs"
SWITCH, ARGUMENT, OF_MODEL = f"{_KWARGS}.enable_thinking", f"{_KWARGS}.chat_template", "model.custom_chat_template"
DEFAULT_SWITCH = "data.enable_thinking_default"
"""The switch of verl's fine-tuning for rows without a column that says it."""
_OF_ROWS = "Rows with a column enable_thinking say it themselves there."
_OF_OWN_ROWS = (SWITCH, ARGUMENT)
_TEXTS = (ARGUMENT, OF_MODEL, f"actor_rollout_ref.{OF_MODEL}")
"""Keys that may hold the text of a template; verl's tokenizer takes the argument of the call before its own."""


def _is_written(source: SourceLookup) -> bool:
    return any(source(key) is not None for key in _TEXTS)


def _variables(source: SourceLookup, role: str, given: Mapping[str, Any]) -> CombinedKeys:
    """Variables of a template in training and validation."""
    settings: dict[str, Any] = {}
    for at in (role, *(("validation",) if source("data.val_files") else ())):
        settings |= {f"{at}.data_args.template_kwargs.{key}": value for key, value in given.items()}
    said = ", ".join(f"{key} {show(value)}" for key, value in given.items())
    return CombinedKeys(settings, f"data_args.template_kwargs: {said}.")


def template_sums(role: str) -> Mapping[str, Callable[[SourceLookup], CombinedKeys]]:
    """Returns the arithmetic over the keys of a template for the rows of a role."""

    def variables(source: SourceLookup) -> CombinedKeys:
        others = {key: value for key, value in source.below(_KWARGS).items() if f"{_KWARGS}.{key}" not in _OF_OWN_ROWS}
        return _variables(source, role, others)

    def thinking(source: SourceLookup) -> CombinedKeys:
        default = source(DEFAULT_SWITCH) if source(DEFAULT_SWITCH) != "none" else None
        value, differences = (source(SWITCH), {}) if default is None else (default, {DEFAULT_SWITCH: _OF_ROWS})
        if value is None:
            return CombinedKeys({}, "")
        if not isinstance(value, bool):
            raise ValueError(value)
        if _is_written(source):
            return replace(_variables(source, role, {"enable_thinking": value}), differences=differences)
        settings = {"global_template": "native" if value else "native_nonthinking"}
        near = "It is the tokenizer's own template, which thinks unless it says otherwise." if value else ""
        return CombinedKeys(settings, f"global_template: {settings['global_template']}.", near, differences=differences)

    return {"template variables": variables, "thinking": thinking}
