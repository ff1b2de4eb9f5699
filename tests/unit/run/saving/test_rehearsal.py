"""What would stop the first checkpoint stops the run before it starts."""

import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from roll.errors import ConfigError
from roll.run.saving.rehearsal import rehearse_saving
from roll.run.start.memory_report import checkpoint_bytes, room_problems
from tests.helpers.configs import config

Usage = namedtuple("Usage", "total used free")


def test_nothing_is_left_of_a_rehearsal(tiny_model_dir: Path, tmp_path: Path) -> None:
    rehearse_saving(config({"pretrain": str(tiny_model_dir), "output_dir": str(tmp_path / "out")}))
    assert not (tmp_path / "out" / "checkpoints").exists()


def test_a_model_whose_files_cannot_be_written_is_refused(
    tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("ModelConfig is invalid: rope")

    monkeypatch.setattr("transformers.PretrainedConfig.save_pretrained", refuse)
    with pytest.raises(ConfigError, match=r"actor_train.*could not be saved in .*ModelConfig is invalid: rope"):
        rehearse_saving(config({"pretrain": str(tiny_model_dir), "output_dir": str(tmp_path / "out")}))
    assert not (tmp_path / "out" / "checkpoints").exists()


def test_a_disk_without_room_for_the_weights_of_one_checkpoint_is_refused(
    tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = config({"pretrain": str(tiny_model_dir), "output_dir": str(tmp_path), "save_steps": 5})
    needed = int(checkpoint_bytes(made, sure=True))
    assert 0 < needed < checkpoint_bytes(made)
    for free, is_refused in ((needed - 1, True), (needed, False)):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: Usage(2 * needed, 0, free))
        texts = [problem.text for problem in room_problems(made)]
        assert bool(texts) == is_refused
    assert [*room_problems(made.model_copy(update={"save_steps": 0}))] == []


def test_a_type_that_transformers_does_not_have_is_refused_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "molmo", "auto_map": {"AutoConfig": "own.Config"}}')
    with pytest.raises(
        ConfigError, match="(?s)transformers cannot read the config.json of .*Code that comes with a model"
    ):
        rehearse_saving(config({"pretrain": str(tmp_path), "output_dir": str(tmp_path / "out")}))
