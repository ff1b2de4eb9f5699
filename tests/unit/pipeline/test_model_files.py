"""Where a config.json is looked for."""

import json
from pathlib import Path

import pytest

from roll.pipeline.model_files import read_model_config


def test_a_model_in_the_hubs_cache_is_read_without_a_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--owner--model"
    snapshot = repository / "snapshots" / "0123abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps({"hidden_size": 64}))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0123abc")
    assert read_model_config("owner/model") == ({"hidden_size": 64}, "")
    assert read_model_config("owner/other") == (None, "no config.json of owner/other on this machine")
    assert read_model_config(None)[0] is None


def test_a_directory_of_that_name_comes_before_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("owner/model").mkdir(parents=True)
    Path("owner/model/config.json").write_text(json.dumps({"hidden_size": 8}))
    assert read_model_config("owner/model") == ({"hidden_size": 8}, "")
