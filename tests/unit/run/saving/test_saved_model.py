"""Which model a place on disk stands for."""

from __future__ import annotations

from pathlib import Path

import pytest

from roll.errors import ConfigError
from roll.run.saving.checkpoint import HF_MODEL, CheckpointStore, DriverState, saved_model, write_state


def save(run: Path, step: int, with_model: bool = True) -> Path:
    with CheckpointStore(run / "checkpoints").writing(step) as directory:
        if with_model:
            (directory / HF_MODEL).mkdir()
            (directory / HF_MODEL / "config.json").write_text("{}")
        write_state(directory, DriverState(steps_done=step, run={}))
    return run / "checkpoints" / f"step_{step:06d}"


def test_a_run_stands_for_its_newest_checkpoint_and_a_checkpoint_for_its_model(tmp_path: Path) -> None:
    first, second = save(tmp_path, 2), save(tmp_path, 4)
    assert saved_model(str(tmp_path), "MODEL") == str(second / HF_MODEL)
    assert saved_model(str(first), "MODEL") == str(first / HF_MODEL) == saved_model(str(first / HF_MODEL), "MODEL")


def test_what_is_no_path_is_a_name_of_the_hub() -> None:
    assert saved_model("Qwen/Qwen2.5-0.5B", "MODEL") == "Qwen/Qwen2.5-0.5B"


def test_a_place_without_a_model_is_refused_with_what_to_name(tmp_path: Path) -> None:
    save(tmp_path / "stages" / "1-warm-up", 2)
    save(tmp_path / "no_model", 2, with_model=False)
    (tmp_path / "early" / "checkpoints").mkdir(parents=True)
    (tmp_path / "empty").mkdir()
    for place, text in (
        ("stages", "it holds runs, or the stages of one. Name one of them: .*1-warm-up"),
        ("no_model", "holds no hf_model"),
        ("early", "has saved no checkpoint yet"),
        ("empty", "it holds no model"),
        ("gone", "there is no such directory"),
    ):
        with pytest.raises(ConfigError, match=f"MODEL .*{text}"):
            saved_model(str(tmp_path / place), "MODEL")
