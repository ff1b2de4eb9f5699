"""`roll eval`: a model, or the policy of a checkpoint, on the validation and the evaluation sets of a YAML."""

from collections.abc import Sequence

from roll.commands.options import eval_parser
from roll.commands.run import start_yaml
from roll.errors import ConfigError


def run(argv: Sequence[str]) -> int:
    """The exit code of the run. Raises ConfigError for an empty checkpoint and for keys that it sets itself."""
    options, overrides = eval_parser().parse_known_args(argv)
    if options.checkpoint == "":
        raise ConfigError("--checkpoint is empty: name a directory step_000050, or true for the newest of the run.")
    ours = {"mode": "bench"} | ({"resume_from_checkpoint": options.checkpoint} if options.checkpoint else {})
    if twice := [word for word in overrides if word.partition("=")[0].lstrip("+") in ours]:
        raise ConfigError(f"{', '.join(twice)}: roll eval sets {' and '.join(ours)} itself. Leave it out.")
    own = [f"{key}={value}" for key, value in ours.items()]
    return start_yaml(options.config, [*overrides, *own], options.dry_run, options.elsewhere)
