"""Models, optimizers and the driver's state as a run finds them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roll.configs.sections.model import ModelArgs
from roll.configs.strategies.model_numbers import text_part
from roll.errors import ConfigError
from roll.run.saving.checkpoint import HF_MODEL, CheckpointStore, DriverState, read_state, saved_model, write_state
from roll.run.saving.model_files import read_model_config


def save(run: Path, step: int, with_model: bool = True) -> Path:
    with CheckpointStore(run / "checkpoints").writing(step) as directory:
        if with_model:
            (directory / HF_MODEL).mkdir()
            (directory / HF_MODEL / "config.json").write_text("{}")
        write_state(directory, DriverState(steps_done=step, run={}))
    return run / "checkpoints" / f"step_{step:06d}"


def test_a_run_stands_for_its_newest_model_and_a_name_for_the_hubs(tmp_path: Path) -> None:
    first, second = save(tmp_path, 2), save(tmp_path, 4)
    assert saved_model(str(tmp_path), "MODEL") == str(second / HF_MODEL)
    assert saved_model(str(first), "MODEL") == str(first / HF_MODEL) == saved_model(str(first / HF_MODEL), "MODEL")
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


def model(name: str | None, **settings: Any) -> ModelArgs:
    return ModelArgs.model_validate({"model_name_or_path": name, **settings})


def test_a_model_in_the_hubs_cache_is_read_without_a_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--owner--model"
    snapshot = repository / "snapshots" / "0123abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps({"hidden_size": 64}))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0123abc")
    assert read_model_config(model("owner/model")) == ({"hidden_size": 64}, "")
    assert read_model_config(model("owner/other")) == (None, "no config.json of owner/other on this machine")
    assert read_model_config(model(None))[0] is None


def test_a_role_reads_its_own_settings_over_those_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 8, "max_position_embeddings": 32}))
    args = model(str(tmp_path), model_config_kwargs={"max_position_embeddings": 64})
    assert read_model_config(args) == ({"hidden_size": 8, "max_position_embeddings": 64}, "")


def test_the_part_for_text_says_its_sizes() -> None:
    assert text_part({"hidden_size": 8, "text_config": {"hidden_size": 64}})["hidden_size"] == 64


def test_state_is_json_with_numpy_as_numbers_and_the_config_redacted(tmp_path):
    run = {"tokens": np.int64(3), "cursor": {"math": [1, 2]}, "best": 0.1 + 0.2}
    path = write_state(
        tmp_path, DriverState(steps_done=3, run=run, config={"tracker_kwargs": {"api_key": "k"}, "seed": 1})
    )
    assert json.loads(path.read_text()) == {
        "steps_done": 3,
        "run": {"tokens": 3, "cursor": {"math": [1, 2]}, "best": 0.1 + 0.2},
        "config": {"tracker_kwargs": {"api_key": "***"}, "seed": 1},
    }
    assert read_state(tmp_path).model_dump() == json.loads(path.read_text())


def test_what_json_cannot_hold_is_refused(tmp_path):
    with pytest.raises(TypeError, match="got set"):
        write_state(tmp_path, DriverState(steps_done=1, run={"seen": {1, 2}}))


GOOD = '{"steps_done": 3, "run": {}, "config": {}}'
