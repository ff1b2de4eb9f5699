"""What is said of data_args before a row is read."""

from pathlib import Path

import pytest

from roll.configs.sections.data import DataArgs
from roll.datasets import sources as hub_set
from roll.run.start.data_files import data_args_problems, data_args_warnings, missing_data_files

TRAIN, VALIDATION = "actor_train.data_args", "validation.data_args"


def problems(at: str, **keys: object) -> list[str]:
    return [problem.text for problem in data_args_problems({at: DataArgs.model_validate(keys)})]


def test_data_sets_without_names_splits_or_sound_limits_are_refused() -> None:
    assert problems(TRAIN, file_name="openai/gsm8k") == []
    assert problems(VALIDATION, file_name="openai/gsm8k", split="test") == []
    assert problems(VALIDATION, file_name="openai/gsm8k.jsonl") == []
    assert problems(VALIDATION, file_name=["a.jsonl", "openai/gsm8k"]) == [
        "validation.data_args.split is missing: which split of openai/gsm8k is validated? train is what is trained on "
        "by default."
    ]
    assert problems(TRAIN)[0].startswith("actor_train.data_args.file_name is missing: name files (.json, ")
    assert problems(TRAIN, file_name=["a", "b", "c"], dataset_type="json, csv") == [
        "actor_train.data_args.dataset_type has 2 entries for 3 of actor_train.data_args.file_name. Give one for all, "
        "one each, or none."
    ]
    assert problems(TRAIN, file_name="a.jsonl", image_min_pixels=3136, image_max_pixels=3136) == []
    args = DataArgs(file_name=("a.jsonl",), image_min_pixels=200_000, image_max_pixels=3136)
    (problem,) = data_args_problems({TRAIN: args})
    assert problem.keys == (f"{TRAIN}.image_min_pixels", f"{TRAIN}.image_max_pixels")
    assert "image_min_pixels: 200000 is more than actor_train.data_args.image_max_pixels: 3136" in problem.text


def test_a_split_of_files_is_warned_about() -> None:
    def warnings(**keys: object) -> list[str]:
        return list(data_args_warnings({TRAIN: DataArgs.model_validate(keys)}))

    assert warnings(file_name="openai/gsm8k", split="test", subset="main") == []
    assert warnings(file_name="folder", split="test") == []
    assert warnings(file_name="a.jsonl", subset="main") == [
        "actor_train.data_args.subset does nothing here: file_name names files, and only data sets have splits."
    ]


def test_a_file_that_two_names_stand_for_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text("{}")
    names = [str(tmp_path), "a.jsonl", "memory://none.jsonl"]
    assert list(data_args_warnings({TRAIN: DataArgs.model_validate({"file_name": names})})) == [
        f"actor_train.data_args.file_name stands for {tmp_path}/a.jsonl 2 times, so its rows are there 2 times."
    ]
    assert list(data_args_warnings({TRAIN: DataArgs.model_validate({"file_name": ["a.jsonl", "b.jsonl"]})})) == []


def test_a_dry_run_names_what_is_not_there_and_asks_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_set, "is_installed", lambda name: False)
    names = ["memory://none.jsonl", f"{tmp_path}/*.jsonl", "openai/gsm8k", str(tmp_path)]
    found = [problem.text for problem in missing_data_files({TRAIN: DataArgs.model_validate({"file_name": names})})]
    assert found == [
        f"actor_train.data_args.file_name: no file matches {tmp_path}/*.jsonl.",
        f"actor_train.data_args.file_name: the folder {tmp_path} holds no .json, .jsonl, .csv, .parquet files. Name "
        f"others by a pattern, such as {tmp_path}/**/*.jsonl.",
        "actor_train.data_args.file_name: openai/gsm8k is not a file on this machine: reading it as a data set of the "
        "Hugging Face hub needs the package datasets. Install it: pip install 'datasets>=4,<6'.",
    ]


def test_files_without_a_byte_are_told_where_no_other_has_rows(tmp_path: Path) -> None:
    empty, full = tmp_path / "empty.jsonl", tmp_path / "full.jsonl"
    empty.touch()
    full.write_text("{}\n")

    def missing(*files: Path) -> list[str]:
        args = DataArgs.model_validate({"file_name": [*map(str, files)]})
        return [problem.text for problem in missing_data_files({"eval_sets.a.data_args": args})]

    assert missing(empty) == [f"eval_sets.a.data_args.file_name: {empty} is empty: it has no rows."]
    assert missing(empty, full) == []
