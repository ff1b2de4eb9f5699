"""Paths of a configuration that this machine cannot look at: a message, never a traceback."""

import json
from pathlib import Path

import pytest

from roll.configs.sections.model import ModelArgs
from roll.pipeline.rlvr.rlvr_checks import missing_files
from roll.run.saving.model_files import read_model_config
from roll.run.start.preflight import machine_report
from tests.helpers.cases import cases
from tests.helpers.configs import config
from tests.helpers.paths import hide

KEYS = ("pretrain", "output_dir", "logging_dir", "rollout_dump_dir", "resume_from_checkpoint")


def messages(key: str, value: str) -> list[str]:
    settings = config({key: value, "track_with": "jsonl"})
    found = [*machine_report(settings).problems, *missing_files(settings)]
    return [problem.text for problem in found if problem.text.startswith(key)]


@pytest.mark.parametrize("key", [*KEYS, "checkpoint_config.output_dir", "actor_train.data_args.file_name"])
def test_a_place_that_permissions_hide_is_named_with_its_key(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide(tmp_path / "locked", monkeypatch)
    (text,) = messages(key, f"{tmp_path}/locked/below/it")
    assert text.startswith(f"{key}: no permission to look at {tmp_path}/locked/below")


@pytest.mark.parametrize("content", ["[1]", "{", "[" * 100_000, "\xff"])
def test_a_config_json_that_is_none_is_not_read(content: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(content.encode("latin-1"))
    model, why = read_model_config(ModelArgs(model_name_or_path=str(tmp_path)))
    assert model is None and str(tmp_path / "config.json") in why


@cases("model, said")
def test_a_model_whose_rows_cannot_be_packed_is_told_before_it_is_loaded(
    model: dict[str, object], said: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "any"} | model))
    for packs in (True, False):
        changes = {"actor_train.model_args.model_name_or_path": str(tmp_path)}
        report = machine_report(config(changes | {"actor_train.use_sequence_packing": packs}))
        found = [problem.text for problem in report.problems if "use_sequence_packing" in problem.text]
        assert len(found) == bool(said and packs)
        if found:
            assert found[0].startswith(f"actor_train.use_sequence_packing: true with {tmp_path}, wh")
            assert said in found[0]


def test_positions_of_a_model_are_those_that_its_role_gives_it(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "qwen2", "max_position_embeddings": 8}')

    def told(**changes: object) -> list[str]:
        report = machine_report(config({"pretrain": str(tmp_path), **changes}))
        return [problem.text for problem in report.problems if "positions" in problem.text]

    roles = ("actor_train", "actor_infer", "reference")
    longer = {f"{role}.model_args.model_config_kwargs.max_position_embeddings": 4096 for role in roles}
    assert told() and not told(**longer)
