"""`roll eval`: a model, or the policy of a checkpoint, on the validation and the evaluation sets of a YAML."""

from collections.abc import Sequence

from roll.commands.options import eval_parser
from roll.commands.run import start_yaml
from roll.errors import ConfigError


def run(argv: Sequence[str]) -> list[str]:
    """Ends the program with the exit code of the run where that is not 0. Raises ConfigError for words that are no
    call."""
    options, overrides = eval_parser().parse_known_args(argv)
    if unknown := [word for word in overrides if word.startswith("-") or "=" not in word]:
        raise ConfigError(f"{', '.join(unknown)}: unknown option; see roll eval --help.")
    taken = ["mode", *(["resume_from_checkpoint"] if options.checkpoint is not None else [])]
    if twice := [word for word in overrides if word.partition("=")[0].lstrip("+") in taken]:
        raise ConfigError(f"{', '.join(twice)}: roll eval sets {' and '.join(taken)} itself. Leave it out.")
    if options.checkpoint == "":
        raise ConfigError("--checkpoint is empty: name a directory step_000050, or true for the newest of the run.")
    bench_keys = ["mode=bench", *([f"resume_from_checkpoint={options.checkpoint}"] if options.checkpoint else [])]
    code = start_yaml(options.config, [*overrides, *bench_keys], options.dry_run, options.elsewhere, options.pipeline)
    if code:
        raise SystemExit(code)
    return []
