"""`roll explain NAME`: an algorithm's formula and settings."""

from collections.abc import Iterator, Sequence

from roll.commands.options import explain_parser
from roll.configs.tables.presets import PRESETS, Preset, known_algorithm
from roll.errors import ConfigError


def run(argv: Sequence[str]) -> list[str]:
    """The lines for one name; without one, the help, which lists all. Raises ConfigError for a name that is none."""
    if len(argv) > 1:
        raise ConfigError(f"one name at a time, not {' '.join(argv)}.")
    if not argv:
        return explain_parser().format_help().splitlines()
    try:
        return list(_explained(PRESETS[known_algorithm(argv[0])]))
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _explained(preset: Preset) -> Iterator[str]:
    yield f"{preset.name}: {preset.paper}"
    yield "Formula"
    yield from (f"  {line}" for line in preset.formula)
    yield f"Settings: `algorithm: {preset.name}` fills these in; each can be set to another value"
    settings = {key: str(value).lower() if isinstance(value, bool) else value for key, value in preset.settings.items()}
    yield from (f"  {key}: {value}" for key, value in settings.items())
    if preset.beside:
        yield f"  To be set in the YAML: {preset.beside}"
