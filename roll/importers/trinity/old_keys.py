"""Trinity-RFT's older ways: keys before its `buffer` had the tasks, and a file of verl's keys beside the YAML."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from roll.configs.load.yaml_file import read_yaml
from roll.importers.convert import SourceKeys, resolved_leaves
from roll.importers.rows import CHANGES, Condition, Row, SourceLookup, changes, lacks, needless
from roll.importers.verl.files import beside

_CONFIG = "trainer.trainer_config"
_CONFIG_PATH = f"{_CONFIG}_path"
_INPUT = "buffer.explorer_input"
_TASKS = f"{_INPUT}.taskset"
_ENGINE = (
    "engine_type", "engine_num", "tensor_parallel_size", "enable_prefix_caching", "enforce_eager", "dtype", "seed",
    "gpu_memory_utilization", "enable_chunked_prefill", "max_model_len",
)  # fmt: skip
_RENAMED: Mapping[str, str] = {
    "data.total_epoch": "buffer.total_epochs",
    "data.total_epochs": "buffer.total_epochs",
    "data.batch_size": "buffer.batch_size",
    "data.dataset_path": f"{_TASKS}.path",
    "data.train_split": f"{_TASKS}.split",
    "data.subset_name": f"{_TASKS}.subset_name",
    "data.default_workflow_type": f"{_INPUT}.default_workflow_type",
    "data.default_reward_fn_type": f"{_INPUT}.default_reward_fn_type",
    "explorer.repeat_times": "algorithm.repeat_times",
    "explorer.temperature": "model.temperature",
    "explorer.top_p": "model.top_p",
    "explorer.top_k": "model.top_k",
    "trainer.algorithm_type": "algorithm.algorithm_type",
    "trainer.eval_interval": "explorer.eval_interval",
    "trainer.sft_warmup_iteration": "buffer.trainer_input.sft_warmup_steps",
    "trainer.sft_warmup_steps": "buffer.trainer_input.sft_warmup_steps",
    "synchronizer.sync_iteration_interval": "synchronizer.sync_interval",
    "monitor.project": "project",
    "monitor.name": "name",
    "model.checkpoint_path": "checkpoint_root_dir",
    "model.load_checkpoint": "continue_from_checkpoint",
    **{f"explorer.{name}": f"explorer.rollout_model.{name}" for name in _ENGINE},
}
CONFIG_ROW = Row(
    _CONFIG_PATH,
    note="a file of its own, which is not beside this one: give its keys behind it, as trainer.trainer_config.x=y",
    needs="unread config",
    outcome=CHANGES,
    idle=(None, ""),
)
_FORMATS = ("data.format.", "data.format_config.")
_FIRST = f"{_INPUT}.tasksets.0."
"""The first of several task sets: alone it is what `taskset` was."""
OLD_ROWS: tuple[Row, ...] = (
    changes(
        f"{_INPUT}.tasksets.**",
        "the first of several task sets is read: a run here has one set of rows, whose tags are the domains of "
        "`rewards` (docs/rewards.md)",
    ),
    lacks("data.eval_split", "name the rows of a validation: buffer.explorer_input.eval_tasksets", "", None),
    lacks(f"{_CONFIG}.custom_reward_function.path", "default_reward_fn_type says how answers are judged", ""),
    changes(
        "algorithm.add_strategy",
        "adv_estimator makes advantages of the rewards of a group; which groups and samples count, an operator of "
        "yours says (docs/data.md)",
    ),
    needless("explorer.use_ray", "engines are the run's own"),
    needless("explorer.backend", "weights go by memory, collectives or a file"),
    needless("explorer.logprobs", "the sampled token's log-prob is always returned"),
    needless("explorer.max_pending_requests", "max_running_requests bounds answers in flight"),
    needless("explorer.max_waiting_steps", "requests are answered oldest group first"),
    needless("explorer.runner_num", "groups run as coroutines of one loop"),
    needless("monitor.cache_root_dir", "logging_dir is the place of the trackers"),
    needless("buffer.train_dataset.**", "in one process groups are handed over in memory"),
    needless("buffer.db_url", "in one process groups are handed over in memory"),
)


def present_key(key: str) -> str:
    """Return the present name of a key. Example: data.format.prompt_key is that of the task set."""
    for old in _FORMATS:
        if key.startswith(old):
            return f"{_TASKS}.format.{key.removeprefix(old)}"
    if key.startswith(_FIRST):
        return f"{_TASKS}.{key.removeprefix(_FIRST)}"
    return _RENAMED.get(key, key)


_TELLING = ("data.", "explorer.repeat_times", "trainer.algorithm_type", "buffer.train_dataset.")


def old_notes(keys: Iterable[tuple[str, Any]]) -> Iterator[str]:
    """A line on a YAML of the first versions, whose keys have moved since."""
    if any(value is not None and key.startswith(_TELLING) for key, value in keys):
        yield "Read as Trinity-RFT before 0.2, by its keys: tasks in data, the algorithm in explorer and trainer."


class ReadPath(str):
    """The path of a file whose keys have been read."""

    __slots__ = ()


def with_trainer_config(original: SourceKeys, source: Path | None) -> SourceKeys:
    """The keys with those of the file of `trainer_config_path`, where it lies beside the YAML, whose own keys count
    before them."""
    path = next((value for key, value in original.keys if key == _CONFIG_PATH), None)
    file = beside(path, source) if isinstance(path, str) and source is not None else None
    if file is None or file.suffix not in (".yaml", ".yml"):
        return original
    there = {key for key, _ in original.keys}
    more = [(f"{_CONFIG}.{key}", value) for key, value in resolved_leaves(read_yaml(file))]
    keys = [(key, ReadPath(value) if key == _CONFIG_PATH else value) for key, value in original.keys]
    return replace(original, keys=(*keys, *(item for item in more if item[0] not in there)))


def _is_read(source: SourceLookup) -> str:
    value = source(_CONFIG_PATH) or source(f"trinity.{_CONFIG_PATH}")
    return "the file beside this one is read" if isinstance(value, ReadPath) else ""


OLD_CONDITIONS: Mapping[str, Condition] = {"unread config": _is_read}
