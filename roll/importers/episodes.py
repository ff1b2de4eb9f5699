"""Changes the table of a run of prompts into that of a run of episodes: the same rows, with other target keys."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from roll.importers.rows import (
    NOTHING,
    ApproximateValue,
    ChangesRun,
    CombinedKeys,
    HasNoPlace,
    Row,
    SourceLookup,
    Table,
)

TRAINING, VALIDATION = "Training", "Validation"
"""The entries of custom_envs that an import writes."""
_MANAGER, _VALIDATED = "train_env_manager", "val_env_manager"
_PER_PROCESS = 128
_COLUMNS: Mapping[str, str] = {
    "file_name": "env_config.dataset_name",
    "split": "env_config.split",
    "subset": "env_config.subset",
    "messages": "env_config.question_key",
    "prompt": "env_config.question_key",
    "ground_truth": "env_config.answer_key",
    "system_prompt": "agent_system_template",
}
"""Keys of `data_args` for rows, and the keys of an environment that replace them."""
_SECTIONS: Mapping[str, str] = {"actor_train.data_args": TRAINING, "validation.data_args": VALIDATION}
_GENERATION = "validation.generating_args"
_ELSEWHERE = "the environment gives tasks and rewards here, and has no such setting"
_FILTER = "roll.pipeline.agentic.settings:DropEqualRewards"
_TEMPLATE = "global_template"
_RENAMED: Mapping[str, str] = {
    _TEMPLATE: "actor_train.data_args.template",
    f"{_GENERATION}.num_return_sequences": f"{_VALIDATED}.group_size",
}
_TIMES: Mapping[str, str] = {"timeout_s": f"{_MANAGER}.episode_timeout_s", "reward_retries": f"{_MANAGER}.env_retries"}
"""Time keys of a reward domain, and those of episodes."""


def of_episodes(
    table: Table, rows: Iterable[Row], sums: Mapping[str, Callable[[SourceLookup], CombinedKeys]], asks_rows: bool
) -> Table:
    """The table with `rows` and `sums` in the place of its own of those names. Every other key keeps its meaning;
    what it writes about rows goes to the environment, where it asks any (`asks_rows`), else nowhere."""
    new_rows = {row.key: row for row in rows}
    others = [_moved(row, asks_rows) for row in table.rows if row.key not in new_rows]
    moved = {name: _moved_sum(made, asks_rows) for name, made in table.sums.items()}
    return replace(table, pipeline="agentic", rows=(*new_rows.values(), *others), sums={**moved, **sums})


def place(target: str, asks_rows: bool) -> str | None:
    """The key in a run of episodes for a key of a run of prompts; None if there is none."""
    if target in _RENAMED:
        return _RENAMED[target]
    if target.startswith(f"{_GENERATION}."):
        return f"{_VALIDATED}.{target.removeprefix('validation.')}"
    section, _, name = target.rpartition(".")
    if section in _SECTIONS and name != "template":
        return f"custom_envs.{_SECTIONS[section]}.{_COLUMNS[name]}" if asks_rows and name in _COLUMNS else None
    if target.startswith("rewards."):
        return _TIMES.get(name)
    return None if target.startswith(("validation.", "eval_sets.")) else target


def _moved(row: Row, asks_rows: bool) -> Row:
    if not row.targets:
        return row
    places = [place(target, asks_rows) for target in row.targets]
    if None in places:
        return replace(row, targets=(), default=NOTHING, outcome="not available", note=_ELSEWHERE)
    if list(row.targets) == places:
        return row
    of_files = any(str(written_at).endswith(".dataset_name") for written_at in places)
    via = (lambda value: _one_file(row.via(value))) if of_files else row.via
    return replace(row, targets=tuple(map(str, places)), via=via)


def _one_file(converted: Any) -> Any:
    value = converted.value if isinstance(converted, ApproximateValue) else converted
    if isinstance(value, list) and len(value) != 1:
        raise ChangesRun(f"an environment asks the rows of one file, and these are {len(value)}: join them")
    return value[0] if isinstance(value, list) else value


def _moved_sum(made: Callable[[SourceLookup], CombinedKeys], asks_rows: bool) -> Callable[[SourceLookup], CombinedKeys]:
    """The same arithmetic, whose samples are episodes: groups of them are played at once."""

    def moved(source: SourceLookup) -> CombinedKeys:
        result = made(source)
        settings: dict[str, Any] = {}
        for target, value in result.settings.items():
            if (there := place(target, asks_rows)) is not None:
                settings[there] = _one_file(value) if there.endswith(".dataset_name") else value
        settings = _in_groups(settings)
        text = result.text.replace(_GENERATION, f"{_VALIDATED}.generating_args")
        text = text.replace(_TEMPLATE, _RENAMED[_TEMPLATE])
        if "response_length" in settings:
            settings["sequence_length"] = settings["prompt_length"] + settings.pop("response_length")
            text += f" sequence_length: {settings['sequence_length']}, the whole conversation."
        if not settings and result.settings:
            raise HasNoPlace(_ELSEWHERE)
        return replace(result, settings=settings, text=text)

    return moved


def _in_groups(settings: dict[str, Any]) -> dict[str, Any]:
    """Example: 64 prompts of 4 answers are 256 episodes in 64 groups of 4."""
    if "rollout_batch_size" not in settings:
        return settings
    groups, size = settings["rollout_batch_size"], settings.pop("num_return_sequences_in_group")
    return settings | {
        "rollout_batch_size": groups * size,
        f"{_MANAGER}.num_env_groups": groups,
        f"{_MANAGER}.group_size": size,
        f"{_MANAGER}.max_env_num_per_worker": _PER_PROCESS,
        f"{_MANAGER}.tags": [TRAINING],
    }


def environment(
    env: Mapping[str, Any], validated: Mapping[str, Any] | None, num_validated: int | None = None
) -> dict[str, Any]:
    """The settings of what is played; `validated`: how the environment of the validation differs, None without one."""
    settings = {f"custom_envs.{TRAINING}.{key}": value for key, value in env.items()}
    if validated is not None:
        settings |= {f"custom_envs.{VALIDATION}.{key}": value for key, value in {**env, **validated}.items()}
        settings |= {f"{_VALIDATED}.tags": [VALIDATION]}
        settings |= {f"{_VALIDATED}.num_env_groups": num_validated} if num_validated else {}
    return settings


def without_equal_groups(source: SourceLookup) -> CombinedKeys:
    """Dynamic sampling: groups whose episodes all earn the same are replaced."""
    settings = {f"{_MANAGER}.group_filter_cls": _FILTER, "is_use_additional_prompts": True}
    text = "group_filter_cls: DropEqualRewards: groups with equal rewards are dropped, others take their place."
    return CombinedKeys(settings, text, "A step starts at most as many groups again as it has.")
