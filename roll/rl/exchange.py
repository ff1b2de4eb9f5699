"""A run in two processes: weights in one direction, groups in the other.

    explorer (mode: explore)                       trainer (mode: train)
    ---------------------------------------------------------------------------
    groups of step s, rewarded ----- buffer -----> step s trains on them
    engines read version v <----- weight folder -- writes version v

The explorer samples the groups of step s under the version that one process would have then, so what a step trains on
is the same. It has no state but the buffer: which groups there have been.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from roll.configs.plan.rollout_bounds import oldest_allowed
from roll.configs.sections.algorithm import AlgorithmConfig
from roll.rl.experience.buffer import Buffer
from roll.rl.experience.directory import DirectoryBuffer
from roll.rl.experience.reader import ExperienceReader, Reading
from roll.rl.experience.reuse import Reuse
from roll.rl.experience.rows import FORMS
from roll.rl.experience.sql import AlchemyDatabase, SqlBuffer, SqliteDatabase


def make_buffer(config: AlgorithmConfig) -> Buffer:
    """The buffer of `experience`. Raises StorageError where it cannot be opened."""
    keys, directory = config.experience, Path(config.experience_dir)
    match keys.storage_type:
        case "queue":
            return DirectoryBuffer(directory, FORMS["npz"], keys.keep)
        case "file":
            return DirectoryBuffer(directory, FORMS[keys.format], keys.keep)
        case "sql":
            if not keys.is_local_sql:
                return SqlBuffer(AlchemyDatabase(str(keys.url)), FORMS["npz"], keys.keep)
            file = Path(keys.url.partition("///")[2]) if keys.url else directory / "experience.db"
            return SqlBuffer(SqliteDatabase(file), FORMS["npz"], keys.keep)


def make_reader(config: AlgorithmConfig, buffer: Buffer, is_stopped: Callable[[], bool]) -> ExperienceReader:
    keys = config.experience
    reuse = Reuse(keys.reuse, config.seed) if keys.reuse.enable else None
    return ExperienceReader(buffer, Reading(keys, config.num_groups, oldest_allowed(config)), reuse, is_stopped)
