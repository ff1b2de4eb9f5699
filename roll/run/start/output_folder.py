"""A run that begins with its first step does not replace another one's results."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from roll.configs.problems import Problem
from roll.configs.sections.run import RunConfig
from roll.run.records.run_record import RUN_FILE, read_story

_KEYS = ("output_dir", "logging_dir", "checkpoint_config", "resume_from_checkpoint", "overwrite_output_dir")


def folder_problems(config: RunConfig) -> Iterator[Problem]:
    """A finished run where this one writes, checkpoints, or a run of another name. What failed before its first
    checkpoint is in nobody's way: its metrics are put aside (`metrics.1.jsonl`)."""
    if config.overwrite_output_dir or not config.begins_afresh or (held := _held(config)) is None:
        return
    place = config.output_dir.rstrip("/")
    yield Problem(
        f"output_dir: {held}. To go on from there set resume_from_checkpoint: true; to replace it set "
        f"overwrite_output_dir: true; to keep both choose another name, such as output_dir: {place}-2.",
        _KEYS,
        "place",
    )


def _held(config: RunConfig) -> str | None:
    """What is there already, in a few words."""
    try:
        saved = sorted(path.name for path in config.checkpoint_dir.glob("step_*") if path.is_dir())
    except OSError:
        saved = []
    try:
        story = read_story(Path(config.logging_dir) / RUN_FILE)
    except (OSError, ValueError):
        story = None
    name = story.config.get("exp_name") if story is not None else None
    last = story.starts[-1] if story is not None and story.starts else None
    if last is not None and name != config.exp_name:
        return f"{config.logging_dir} holds the run {name}, and this one is {config.exp_name}"
    if last is not None and last.exit_code == 0:
        return f"{config.output_dir} holds a finished run, {name}, that ended at {last.ended}"
    if saved:
        return f"{config.checkpoint_dir} holds checkpoints up to {saved[-1]}, which new ones would replace"
    return None
