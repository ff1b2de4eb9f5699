"""Weights that an explorer finds: the newest that are whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from roll.features.experience.weights import WeightFolder
from roll.run.interrupts import StepAbandoned
from tests.helpers.configs import config


def weights(tmp_path: Path, **keys: object) -> WeightFolder:
    return WeightFolder(config({"mode": "explore", "output_dir": str(tmp_path), "experience": keys}))


def model_of(version: int, directory: Path) -> None:
    directory.mkdir(parents=True)
    (directory / "model.safetensors").write_text(str(version))


def test_the_newest_whole_weights_are_found(tmp_path: Path) -> None:
    trainer, explorer = weights(tmp_path), weights(tmp_path)
    assert explorer.newest(0) is None
    for version in (1, 2, 3, 4, 5):
        trainer.write(version, lambda directory, v=version: model_of(v, directory))
    found = explorer.newest(2)
    assert found is not None and found[0] == 5 and (found[1] / "model.safetensors").read_text() == "5"
    assert explorer.newest(6) is None
    kept = sorted(path.name for path in (tmp_path / "experience" / "weights").glob("step_*"))
    assert kept == ["step_000003", "step_000004", "step_000005"]


def test_weights_that_were_not_finished_are_none(tmp_path: Path) -> None:
    trainer = weights(tmp_path)

    def fails(directory: Path) -> None:
        model_of(1, directory)
        raise RuntimeError("the trainer dies")

    with pytest.raises(RuntimeError):
        trainer.write(1, fails)
    assert weights(tmp_path).newest(0) is None
    with pytest.raises(StepAbandoned):
        weights(tmp_path).wait(1, lambda: True)


def test_versions_that_are_written_again_do_not_hide_newer_ones(tmp_path: Path) -> None:
    """A trainer that was killed goes on from an earlier checkpoint."""
    trainer = weights(tmp_path)
    for version in (1, 2, 3, 2):
        trainer.write(version, lambda directory, v=version: model_of(v, directory))
    found = weights(tmp_path).newest(3)
    assert found is not None and found[0] == 3
