"""`roll eval`: a model, or the policy of a checkpoint, on the validation and the evaluation sets of a YAML."""

from collections.abc import Sequence

from roll.commands.options import eval_parser
from roll.commands.run import start_yaml


def run(argv: Sequence[str]) -> int:
    """The exit code of the run."""
    options, overrides = eval_parser().parse_known_args(argv)
    checkpoint = [f"resume_from_checkpoint={options.checkpoint}"] if options.checkpoint else []
    return start_yaml(options.config, [*overrides, "mode=bench", *checkpoint], options.dry_run, options.elsewhere)
