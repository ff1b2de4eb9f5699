"""`roll schema KIND`: what an editor has to know of the YAML of a kind of run."""

import json
from collections.abc import Sequence

from roll.configs.schema import schema_of
from roll.errors import ConfigError
from roll.run.spec import PIPELINES, pipeline_of

USAGE = f"""roll schema KIND > roll.schema.json      KIND: {", ".join(PIPELINES)}, or package.module:SPEC

A YAML that begins with the line
# yaml-language-server: $schema=roll.schema.json
has its keys completed and explained by editors with a YAML language server (VS Code, Neovim, Emacs ...)."""


def run(argv: Sequence[str]) -> list[str]:
    """Return the schema of a kind of run as JSON. Raises ConfigError for an unknown kind."""
    if argv and argv[0] in ("-h", "--help"):
        return [USAGE]
    if len(argv) != 1:
        raise ConfigError(f"name one kind of run: {', '.join(PIPELINES)}, or package.module:SPEC.")
    return [json.dumps(schema_of(pipeline_of(argv[0]).config_class()), indent=1)]
