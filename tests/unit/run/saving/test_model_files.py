"""Where a config.json is looked for."""

import json
from pathlib import Path
from typing import Any

import pytest

from roll.configs.sections.model import ModelArgs
from roll.configs.strategies.model_numbers import text_part
from roll.run.saving.model_files import read_model_config


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


def test_a_directory_of_that_name_comes_before_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("owner/model").mkdir(parents=True)
    Path("owner/model/config.json").write_text(json.dumps({"hidden_size": 8}))
    assert read_model_config(model("owner/model")) == ({"hidden_size": 8}, "")


def test_a_role_reads_its_own_settings_over_those_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 8, "max_position_embeddings": 32}))
    args = model(str(tmp_path), model_config_kwargs={"max_position_embeddings": 64})
    assert read_model_config(args) == ({"hidden_size": 8, "max_position_embeddings": 64}, "")


@pytest.mark.parametrize("inner", [None, [], [1], "llama", 5, True, 0.5])
def test_what_is_no_part_for_text_says_nothing(inner: object) -> None:
    assert text_part({"hidden_size": 8, "text_config": inner}) == {"hidden_size": 8, "text_config": inner}


def test_the_part_for_text_says_its_sizes() -> None:
    assert text_part({"hidden_size": 8, "text_config": {"hidden_size": 64}})["hidden_size"] == 64
