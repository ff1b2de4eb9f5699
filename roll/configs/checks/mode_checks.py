"""What a run in parts asks of its settings (`mode`, `experience`)."""

from collections.abc import Iterator

from roll.configs.checks.sent_adapters import adapter_switch
from roll.configs.plan.rollout_bounds import oldest_allowed
from roll.configs.problems import Problem
from roll.configs.sections.algorithm import AlgorithmConfig
from roll.configs.sections.experience import LOCAL_SQL, ExperienceConfig
from roll.utils.imports import is_installed

SQLALCHEMY = "sqlalchemy"


def mode_problems(config: AlgorithmConfig) -> Iterator[Problem]:
    if not config.is_in_parts:
        return
    mode, keys = f"mode: {config.mode}", config.experience
    if config.unfinished_groups != "carry":
        yield Problem(
            f"{mode} with unfinished_groups: {config.unfinished_groups}: a restarted explorer would not know which "
            "groups were dropped. Set unfinished_groups: carry.",
            ("mode", "unfinished_groups"),
        )
    if config.rollout_mock.replays:
        yield Problem(
            f"{mode} with rollout_mock.mode: mock: recorded rollouts need no explorer. Set mode: both.",
            ("mode", "rollout_mock"),
        )
    if config.explores and (switch := adapter_switch(config)):
        yield Problem(
            f"{switch}: true sends adapters from the trainer's memory, and {mode} reads weights from files, adapters "
            f"merged into them. Remove {switch}.",
            ("mode", switch),
        )
    if config.learns and config.counts_epochs:
        yield Problem(
            f"num_train_epochs: {mode} reads no rows, so it cannot count epochs. Set max_steps, as in the explorer.",
            ("mode", "num_train_epochs", "max_steps"),
        )
    yield from _storage_problems(keys)
    if keys.reuse.enable and oldest_allowed(config) < 1:
        yield Problem(
            "experience.reuse.enable: true reuses nothing with max_staleness: 0: a group is one step old after it was "
            "trained on. Set max_staleness to 1 or more.",
            ("experience.reuse.enable", "max_staleness"),
        )


def _storage_problems(keys: ExperienceConfig) -> Iterator[Problem]:
    if keys.url is not None and keys.storage_type != "sql":
        yield Problem(
            f"experience.url: storage_type: {keys.storage_type} has no database. Set experience.storage_type: sql, or "
            "remove url.",
            ("experience.url", "experience.storage_type"),
        )
    elif keys.url is not None and "://" not in keys.url:
        yield Problem(
            "experience.url is not an address of a database: write it as SQLAlchemy does, such as "
            "sqlite:////data/run.db or postgresql://user@host/name.",
            ("experience.url",),
        )
    elif keys.url in (LOCAL_SQL, f"{LOCAL_SQL}:memory:", "sqlite://"):
        yield Problem(
            f"experience.url: {keys.url} is a database in the memory of one process, which other processes cannot see. "
            f"Name a file: {LOCAL_SQL}/data/run.db, or remove url for one in experience.dir.",
            ("experience.url",),
        )


def mode_machine_problems(config: AlgorithmConfig) -> Iterator[Problem]:
    keys = config.experience
    if not config.is_in_parts or keys.storage_type != "sql" or keys.is_local_sql:
        return
    if not is_installed(SQLALCHEMY):
        yield Problem(
            "experience.url: only SQLite works without the package SQLAlchemy, which is not installed. Install it and "
            "the driver of this database (pip install sqlalchemy), or write sqlite:///FILE.",
            ("experience.url",),
            "machine",
        )


def mode_warnings(config: AlgorithmConfig) -> Iterator[str]:
    keys = config.experience
    if not config.is_in_parts:
        if keys.model_fields_set - {"dir"}:
            yield f"experience does nothing with mode: {config.mode}: samples are handed over in memory."
        return
    if keys.storage_type != "file" and "format" in keys.model_fields_set:
        yield f"experience.format does nothing with storage_type: {keys.storage_type}."
    if not keys.reuse.enable and keys.reuse.model_fields_set - {"enable"}:
        yield "experience.reuse has settings that do nothing: its enable is false."
    if config.learns and config.save_steps <= 0 and not keys.keep:
        yield "save_steps: experience is deleted when a checkpoint is saved, and none will be saved: all of it is kept."
