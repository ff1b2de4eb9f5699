"""Every value that a YAML leaves to roll, as `roll plan --defaults` lists them."""

from collections.abc import Collection, Iterable, Iterator, Mapping

from roll.configs.base import Settings, join
from roll.configs.load.chosen_values import Chosen, KeysInYaml
from roll.configs.sections.run import RunConfig
from roll.configs.tables.estimators import ESTIMATORS
from roll.configs.tables.policy_losses import POLICY_FORMS
from roll.configs.tables.roles import Role
from roll.utils.text import short, table

_FOLLOWING = ("name", "model_name_or_path", "bf16", "fp16")  # from other keys


def default_lines(config: RunConfig, user_keys: KeysInYaml, chosen: Iterable[Chosen]) -> list[str]:
    """Every key that this run reads, that its YAML does not say and that was not chosen for it, with its default. Keys
    whose default is to do nothing (null, or empty) are left out.

    Example: "  pg_clip  0.2"
    """
    taken = {*user_keys, *(choice.key for choice in chosen)}
    return [
        "Defaults that are the same on every machine",
        *(f"  {row}" for row in table(_left_to_roll(config, taken))),
    ]


def _left_to_roll(config: RunConfig, taken: Collection[str]) -> Iterator[tuple[str, str]]:
    sections = {name.split(".")[0] for name in config.sections}
    idle = _unused_keys(config)
    for key in type(config).model_fields:
        if key not in sections:
            yield from _values(config, key, "", {*taken, *idle}, None)
    for name, section in config.sections.items():
        role = config.roles[name]
        if role.head is None or name in config.model_roles:
            for key in type(section).model_fields:
                yield from _values(section, key, name, {*taken, *idle}, role)


def _values(
    section: Settings, key: str, at: str, taken: Collection[str], role: Role | None
) -> Iterator[tuple[str, str]]:
    path, value = join(at, key), getattr(section, key)
    if (path in taken and (not isinstance(value, Settings) or path.endswith(".strategy_args"))) or key in _FOLLOWING:
        return
    if role is not None and not _reads(role, path.removeprefix(f"{role.name}."), isinstance(value, Settings)):
        return
    if isinstance(value, Settings):
        for inner in type(value).model_fields:
            yield from _values(value, inner, path, taken, role)
    elif value is not None and value != "" and not (isinstance(value, tuple | Mapping) and not value):
        yield path, short(value)


def _reads(role: Role, key: str, is_section: bool) -> bool:
    parts = key.split(".")
    if any(".".join(parts[:count]) in role.reads for count in range(1, len(parts) + 1)):
        return True
    return is_section and any(read.startswith(f"{key}.") for read in role.reads)


def _unused_keys(config: RunConfig) -> set[str]:
    """Keys that belong to other estimators and losses than those of the run."""
    idle: set[str] = set()
    for key, rows in (("adv_estimator", ESTIMATORS), ("pg_variant", POLICY_FORMS)):
        if key in type(config).model_fields:
            used = rows.get(getattr(config, key) or "ppo")
            idle |= {each for row in rows.values() for each in row.keys} - {*(used.keys if used else ())}
    return idle
