"""`roll push`: the model of a checkpoint goes to the Hugging Face hub."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from roll.errors import ConfigError
from roll.run.saving.hub import message_of, push
from roll.run.saving.saved_model import saved_model

USAGE = """roll push MODEL OWNER/NAME [--private] [--revision BRANCH] [--message TEXT]

MODEL is a directory with config.json and weights, a checkpoint of a run (.../checkpoints/step_000050), or the
output_dir of a run: then its newest checkpoint goes. The repository is made if there is none, a branch too. The token
is that of `hf auth login`, or HF_TOKEN; HF_ENDPOINT names another hub. docs/serving.md."""
_WEIGHTS = ("*.safetensors", "*.bin")


def run(argv: Sequence[str]) -> Iterator[str]:
    """Raises ConfigError for what cannot be sent, RollError for what the hub says."""
    options = _parser().parse_args(argv)
    folder = Path(saved_model(options.model, "MODEL"))
    if not folder.is_dir():
        raise ConfigError(f"MODEL {options.model}: there is no such directory.")
    if not any(any(folder.glob(pattern)) for pattern in _WEIGHTS):
        raise ConfigError(f"MODEL {options.model}: {folder} holds no weights ({' or '.join(_WEIGHTS)}).")
    message = options.message or message_of(folder)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    yield f"{folder}, {size / 1e9:.3g} GB, goes to {options.repo}"
    yield f"It is there: {push(folder, options.repo, message, options.private, options.revision)}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="roll push", usage=USAGE, allow_abbrev=False)
    parser.add_argument("model", metavar="MODEL", help="a directory, a checkpoint or a run's output_dir")
    parser.add_argument("repo", metavar="OWNER/NAME", help="the repository of the hub")
    parser.add_argument("--private", action="store_true", help="if it has to be made, for its owner alone")
    parser.add_argument("--revision", metavar="BRANCH", help="of the repository; default: main")
    parser.add_argument("--message", help="of the commit; default: the step and the run")
    return parser
