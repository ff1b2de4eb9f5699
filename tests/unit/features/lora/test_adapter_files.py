"""The adapters that a run starts from are looked at before anything starts."""

import json
from pathlib import Path

import pytest

from roll.run.start.preflight import machine_report
from tests.helpers.configs import config

KEY = "actor_train.model_args.adapter_name_or_path"
FITS = {"r": 4, "lora_alpha": 6, "use_rslora": False, "alpha_pattern": {}, "rank_pattern": {}}


def told(place: str) -> list[str]:
    args = {"lora_target": "all-linear", "lora_rank": 4, "lora_alpha": 6, "adapter_name_or_path": place}
    report = machine_report(config({"actor_train.model_args": args, "track_with": "jsonl"}))
    return [problem.text for problem in report.problems if KEY in problem.keys]


def adapter(directory: Path, content: str) -> str:
    (directory / "adapter_config.json").write_text(content)
    (directory / "adapter_model.safetensors").touch()
    return str(directory)


def test_a_folder_that_is_not_there_or_holds_no_adapter_is_told(tmp_path: Path) -> None:
    missing = f"{tmp_path}/missing"
    assert told(missing) == [
        f"{KEY}: there is no adapter directory {missing}. Correct the path, or give a hub id (owner/name)."
    ]
    assert told(str(tmp_path)) == [
        f"{KEY}: {tmp_path} holds no adapter_config.json and no adapter_model.safetensors, so it is no adapter of peft."
    ]
    assert told("owner/adapter") == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, None),
        ({"r": 8, "use_rslora": True}, "was made with lora_rank: 8, use_rslora: True. Set that in model_args."),
        ({"alpha_pattern": {"q_proj": 64}}, "has per-layer settings (alpha_pattern), which are not supported. "),
    ],
    ids=str,
)
def test_an_adapter_of_another_form_is_told(changes: dict[str, object], said: str | None, tmp_path: Path) -> None:
    found = told(adapter(tmp_path, json.dumps(FITS | changes)))
    assert found == [] if said is None else len(found) == 1 and found[0].startswith(f"{KEY}: {tmp_path} {said}")


@pytest.mark.parametrize("content", ["{", "[1]", "[" * 100_000])
def test_settings_that_are_none_are_told(content: str, tmp_path: Path) -> None:
    (text,) = told(adapter(tmp_path, content))
    assert text.startswith(f"{KEY}: {tmp_path}") and "adapter_config.json" in text
