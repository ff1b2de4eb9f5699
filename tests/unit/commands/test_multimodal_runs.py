"""Runs with pictures are refused in the plan: models that take them, and rows that show them."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from roll.commands import run as cli
from tests.helpers.cases import cases
from tests.helpers.configs import tree

TEXT = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 3, "max_position_embeddings": 64}


def plan(path: Path, model: dict[str, Any], row: dict[str, Any], *arguments: str, **changes: Any) -> int:
    (path / "model").mkdir()
    (path / "model" / "config.json").write_text(json.dumps(model))
    (path / "train.jsonl").write_text(json.dumps({"ground_truth": "2", "tag": "math"} | row) + "\n")
    made = tree({"pretrain": str(path / "model"), "track_with": "jsonl"} | changes)
    (path / "run.yaml").write_text(yaml.safe_dump(made))
    return cli.main("rlvr", ["--config_path", str(path), "--config_name", "run", "--dry_run", *arguments])


@pytest.mark.parametrize("kind", ["qwen2_5_omni", "mistral3", "a_new_one"])
def test_a_vision_language_model_is_refused_in_the_plan(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    model = {"model_type": kind, "text_config": TEXT, "vision_config": {"depth": 1}}
    assert plan(tmp_path, model, {"prompt": "1+1"}) == 2
    said = capsys.readouterr()
    assert "The plan works." not in said.out
    assert f"pretrain: {tmp_path}/model takes pictures, video or sound as well (config.json: {kind})" in said.err
    assert said.err.count("takes pictures") == 1


def test_one_that_trains_on_text_goes_on_with_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    model = {"model_type": "gemma4", "text_config": TEXT, "vision_config": {"depth": 1}}
    assert plan(tmp_path, model, {"prompt": "1+1"}) == 0
    said = capsys.readouterr().out
    assert said.count("this run shows it text: all of it is loaded") == 1 and said.rstrip().endswith("The plan works.")


@cases("row")
def test_rows_that_show_pictures_are_refused_in_the_plan(
    row: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert plan(tmp_path, {"model_type": "qwen3", **TEXT}, row) == 2
    said = capsys.readouterr()
    assert "train.jsonl:1: column" in said.err and "runs read text only" in said.err
    assert "The plan works." not in said.out
