"""Recipes of models that see: their plans and memory, ROLL's script for them, and the run of verl's guide."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from roll.commands.run import main
from roll.configs.load.yaml_file import read_yaml
from roll.configs.sections.data import DataArgs
from roll.configs.tables.vision import vision_model
from roll.datasets.encoding import load_tasks
from roll.datasets.rows import Domain
from roll.importers.command import imported_from
from roll.importers.convert import read
from tests.conftest import REPOSITORY
from tests.unit.datasets.pictures.files import png

FOLDER = REPOSITORY / "examples" / "qwen2.5-vl-rlvr"
MODELS = REPOSITORY / "tests" / "unit" / "configs" / "memory" / "models"
RECIPES = {"qwen2_5_vl_3b": 21, "qwen2_5_vl_7b": 36, "qwen2_5_vl_32b": 37, "qwen3_vl_4b": 23, "qwen3_vl_30b_a3b": 53}
"""What training takes of a GPU, in GB."""


def model_folder(name: str, place: Path) -> Path:
    """A folder with the published numbers of a model. Example: qwen2_5_vl_3b is qwen2.5-vl-3b.json."""
    config = MODELS / f"{re.sub('(?<=n2)_5', '.5', name).replace('_', '-')}.json"
    (place / "config.json").write_text(config.read_text(encoding="utf-8"), encoding="utf-8")
    (place / "tokenizer.json").write_text("{}", encoding="utf-8")
    return place


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_trains_on_gpus_of_80_gb_with_what_its_page_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MODEL", str(model_folder(name, tmp_path)))
    words = ["--config_path", str(FOLDER), "--config_name", name, "--dry_run", "--all", "--elsewhere"]
    assert main("rlvr", [*words, "gpu_memory_gb=80", "host_memory_gb=1000"]) == 0, capsys.readouterr().err
    shown = capsys.readouterr().out
    assert "The plan works." in shown and "does not fit" not in shown and "Warning" not in shown, shown
    assert re.search(rf"training (of| ) *actor_train,? +~{RECIPES[name]} ", shown), shown
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert re.search(rf"\| `{name}.yaml` \|.*\| ~{RECIPES[name]} GB \|", page)


def test_the_agent_that_looks_trains_on_gpus_of_80_gb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MODEL", str(model_folder("qwen2_5_vl_3b", tmp_path)))
    words = ["--config_path", str(FOLDER.parent / "qwen2.5-vl-agentic"), "--config_name", "sokoban", "--dry_run"]
    assert main("agentic", [*words, "--elsewhere", "gpu_memory_gb=80", "host_memory_gb=1000"]) == 0
    shown = capsys.readouterr().out
    assert "The plan works." in shown and "does not fit" not in shown and "Warning" not in shown, shown


def test_the_script_that_roll_has_for_pictures_starts_an_rlvr_run(tmp_path: Path) -> None:
    script = REPOSITORY / "examples" / "start_rlvr_vl_pipeline.py"
    words = ["--config_path", str(REPOSITORY / "tests" / "recipes" / "rlvr"), "--config_name", "pictures_math"]
    done = subprocess.run(
        [sys.executable, str(script), *words, "--dry_run", "--elsewhere"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "The plan works." in done.stdout


def test_the_recipe_of_32b_has_the_numbers_of_verls_guide() -> None:
    guide = imported_from(read(REPOSITORY / "tests" / "importers" / "guide_verl_ascend.yaml"), "verl").tree
    recipe = read_yaml(FOLDER / "qwen2_5_vl_32b.yaml")
    shared = read_yaml(FOLDER / "qwen2_5_vl_7b.yaml")
    for key in ("rollout_batch_size", "num_return_sequences_in_group", "prompt_length", "response_length"):
        assert recipe[key] == guide[key]
    assert guide["adv_estimator"] == shared.get("adv_estimator", "grpo")  # the default
    for key in ("use_kl_loss", "kl_loss_coef", "loss_agg_mode"):
        assert shared[key] == guide[key]
    ours, theirs = (tree["actor_train"]["training_args"] for tree in (recipe, guide))
    assert ours["per_device_train_batch_size"] == theirs["per_device_train_batch_size"] == 1
    # 32 samples an update: 4 passes of 8 ranks there, 1 of 32 ranks here
    assert ours["gradient_accumulation_steps"] * 32 == theirs["gradient_accumulation_steps"] * 8
    assert shared["actor_train"]["training_args"]["learning_rate"] == theirs["learning_rate"]
    engine, asked = (tree["actor_infer"]["strategy_args"]["strategy_config"] for tree in (recipe, guide))
    assert {key: engine[key] for key in asked} == asked
    assert shared["actor_train"]["data_args"]["image_key"] == guide["actor_train"]["data_args"]["image_key"]


PICTURE = {"bytes": png(70, 90), "path": None}
OF_THE_HUB = {"images": [PICTURE], "problem": "<image>Find x.", "answer": "3"}
OF_VERL = {
    "data_source": "hiyouga/geometry3k",
    "prompt": [{"role": "user", "content": "<image>Find x."}],
    "images": [PICTURE],
    "reward_model": {"ground_truth": "3", "style": "rule"},
    "extra_info": {"index": 0, "split": "train"},
}


def of_the_recipe() -> dict[str, Any]:
    return read_yaml(FOLDER / "qwen2_5_vl_7b.yaml")["actor_train"]["data_args"]


def of_the_script() -> dict[str, Any]:
    path = REPOSITORY / "tests" / "importers" / "verl_geometry3k.sh"
    return imported_from(read(path), source=path).tree["actor_train"]["data_args"]


@pytest.mark.parametrize(
    ("args", "row"), [(of_the_recipe, OF_THE_HUB), (of_the_script, OF_VERL)], ids=["the hub's", "verl's"]
)
def test_rows_of_geometry3k_become_tasks_with_their_pictures(args: Any, row: dict[str, Any], tmp_path: Path) -> None:
    from tiny_vision import build_vision_model, build_vision_tokenizer

    tokenizer = build_vision_tokenizer()
    vision = vision_model(json.loads(build_vision_model(tokenizer).config.to_json_string(use_diff=False)), {})
    file = tmp_path / "train.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row, row]), file)
    tasks = load_tasks(
        DataArgs(**{**args(), "file_name": str(file)}),
        "actor_train.data_args",
        [Domain("geometry", ("geometry",), ("ground_truth",))],
        tokenizer,
        max_prompt_tokens=2000,
        vision=vision,
    ).tasks
    assert [(len(task.pictures), task.payload["ground_truth"]) for task in tasks] == [(1, "3"), (1, "3")]


def test_rows_that_the_script_makes_become_tasks_with_their_pictures(tmp_path: Path) -> None:
    """Of rows that name a picture in their text, in the middle of it, twice, or not at all."""
    from tiny_vision import build_vision_model, build_vision_tokenizer

    rows = [
        OF_THE_HUB,
        {"images": [PICTURE], "problem": "In <image> find x.", "answer": "\\frac{1}{2}"},
        {"images": [PICTURE, {"bytes": png(90, 70), "path": None}], "problem": "<image><image>Compare.", "answer": "2"},
        {"images": [PICTURE], "problem": "Find x.", "answer": "4"},
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "train.parquet")
    script = REPOSITORY / "examples" / "data" / "prepare_geometry3k.py"
    command = [sys.executable, str(script), str(tmp_path / "train.parquet"), "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    tokenizer = build_vision_tokenizer()
    vision = vision_model(json.loads(build_vision_model(tokenizer).config.to_json_string(use_diff=False)), {})
    tasks = load_tasks(
        DataArgs(file_name=(str(tmp_path / "out" / "train.jsonl"),)),
        "actor_train.data_args",
        [Domain("geometry", ("geometry3k",), ("ground_truth",))],
        tokenizer,
        max_prompt_tokens=2000,
        vision=vision,
    ).tasks
    found = [(len(task.pictures), task.payload["ground_truth"]) for task in tasks]
    assert found == [(1, "3"), (1, "\\frac{1}{2}"), (2, "2"), (1, "4")]
    assert all(Path(source.place).is_file() for task in tasks for source in task.pictures)
    first, second = (task.prompt_text for task in tasks[:2])
    assert "user\n<|vision_start|><|image_pad|><|vision_end|>Find x." in first
    assert "user\nIn<|vision_start|><|image_pad|><|vision_end|>find x." in second
