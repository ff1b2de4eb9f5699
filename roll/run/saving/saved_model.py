"""The Hugging Face model that a place on disk holds: a directory of weights, a checkpoint, or a run."""

from __future__ import annotations

from pathlib import Path

from roll.errors import ConfigError
from roll.run.saving.checkpoint import HF_MODEL, CheckpointStore
from roll.utils.files import expanded

_CHECKPOINTS = "checkpoints"


def saved_model(place: str, named: str) -> str:
    """The model's own directory, of `place`: one of weights, a checkpoint (step_000050), or the output_dir of a run,
    whose newest whole checkpoint counts; what is no path is a name of the hub, and stays. `named` is how the place was
    given, for messages. Raises ConfigError for a directory without a model."""
    directory = expanded(place)
    if not directory.is_dir():
        if not place or place.startswith((".", "/", "~")) or place.count("/") > 1 or directory.exists():
            raise ConfigError(f"{named} {place}: there is no such directory.")
        return place
    if (directory / "config.json").is_file():
        return str(directory)
    if (directory / HF_MODEL / "config.json").is_file():
        return str(directory / HF_MODEL)
    if not (directory / _CHECKPOINTS).is_dir():
        raise ConfigError(f"{named} {place}: {_nothing_in(directory)}")
    checkpoint = CheckpointStore(directory / _CHECKPOINTS, verify=False).resolve(True, cleans=False)
    if checkpoint is None:
        raise ConfigError(f"{named} {place}: the run has saved no checkpoint yet (save_steps says when it does).")
    if not (checkpoint.path / HF_MODEL / "config.json").is_file():
        raise ConfigError(f"{named} {place}: its newest checkpoint, {checkpoint.path}, holds no {HF_MODEL}.")
    return str(checkpoint.path / HF_MODEL)


def _nothing_in(directory: Path) -> str:
    stages = sorted(str(path.parent) for path in directory.glob(f"*/{_CHECKPOINTS}"))
    if stages:
        return f"it is a run in stages. Name one of them: {', '.join(stages)}."
    return (
        "it holds no model. Name a directory with config.json and weights, a checkpoint (checkpoints/step_000050), or "
        "the output_dir of a run."
    )
