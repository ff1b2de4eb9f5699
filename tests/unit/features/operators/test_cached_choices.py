"""What operators chose is kept by content: nothing stale is read, and nothing broken."""

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from roll.configs.problems import Problem
from roll.configs.sections.data import DataArgs
from roll.configs.sections.model import ModelArgs
from roll.configs.sections.operators import ContaminationArgs
from roll.datasets import conversations, preferences, rows
from roll.datasets.chosen_rows import Places, Texts
from roll.datasets.loader import Row
from roll.datasets.sources import data_sources
from roll.errors import ConfigError
from roll.features.operators import choice
from roll.features.operators import choice as kept
from roll.features.operators.choice import dry_report, row_choice
from roll.types.group_codec import RecordedGroup, write_groups
from tests.unit.features.operators.test_bounds import attempt

TRAIN, VAL = "actor_train.data_args", "validation.data_args"


class Words:
    """A tokenizer of words."""

    def __call__(self, texts: list[str], **_: object) -> dict[str, list[list[int]]]:
        return {"input_ids": [[1] * len(text.split()) for text in texts]}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    write(tmp_path / "train.jsonl", ["a b", "a b", "a b c", "the very same words"])
    write(tmp_path / "val.jsonl", ["x the very same words"])
    return tmp_path


def write(path: Path, prompts: list[str]) -> None:
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in prompts))


def places(folder: Path, *operators: Any, kind: str = "k", tokenizer: str = "org/model", **args: Any) -> Places:
    cache = {"operators_cache": str(folder / "cache")}
    train = {"file_name": str(folder / "train.jsonl"), "operators": list(operators), **cache, **args}
    made = {TRAIN: DataArgs.model_validate(train), VAL: DataArgs(file_name=(str(folder / "val.jsonl"),))}
    return Places(made, TRAIN, kind, ModelArgs(model_name_or_path=tokenizer))


def chosen(asked: Places) -> list[str]:
    tokenizer: Any = Words()
    choose = row_choice(asked, TRAIN, lambda row, args, key: Texts(str(row.values["prompt"])), tokenizer)
    return [str(row.values["prompt"]) for row in choose(data_sources(asked.data_args[TRAIN], TRAIN)[0])]


def runs(asked: Places, caplog: pytest.LogCaptureFixture) -> bool:
    """Whether the operators ran for it."""
    caplog.clear()
    with caplog.at_level(logging.INFO):
        chosen(asked)
    return "operators, run now" in caplog.text


CONTAMINATION = {"name": "contamination", "args": {"ngram": 3}}
TOKENS = {"name": "length", "args": {"unit": "tokens", "max": 3}}


def test_the_rows_are_the_same_from_the_cache(files: Path, caplog: pytest.LogCaptureFixture) -> None:
    asked = places(files, "deduplicate", CONTAMINATION)
    assert chosen(asked) == ["a b", "a b c"]
    assert not runs(asked, caplog) and "2 of 4 rows remain" in caplog.text
    assert chosen(asked) == ["a b", "a b c"]
    assert len(list((files / "cache").iterdir())) == 1


def test_without_operators_every_row_is_there_and_nothing_is_written(files: Path) -> None:
    assert len(chosen(places(files))) == 4 and not (files / "cache").exists()


@pytest.mark.parametrize(
    "change",
    ["rows", "evaluation", "arguments", "kind", "columns", "tokenizer", "code"],
)
def test_what_the_choice_depends_on_makes_it_anew(
    change: str, files: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = places(files, "deduplicate", CONTAMINATION, TOKENS)
    assert runs(asked, caplog) and not runs(asked, caplog)
    if change == "rows":
        write(files / "train.jsonl", ["a b", "c d"])
    elif change == "evaluation":
        write(files / "val.jsonl", ["x"])
    elif change == "arguments":
        asked = places(files, "deduplicate", {"name": "contamination", "args": {"ngram": 4}}, TOKENS)
    elif change == "kind":
        asked = places(files, "deduplicate", CONTAMINATION, TOKENS, kind="l")
    elif change == "columns":
        asked = places(files, "deduplicate", CONTAMINATION, TOKENS, prompt="prompt")
    elif change == "tokenizer":
        asked = places(files, "deduplicate", CONTAMINATION, TOKENS, tokenizer="org/other")
    else:
        monkeypatch.setattr("roll.features.operators.choice._code", lambda entries: ["another"])
    assert runs(asked, caplog)


def test_an_argument_that_is_not_given_is_its_default(
    files: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = places(files, CONTAMINATION)
    assert runs(asked, caplog) and not runs(asked, caplog)
    monkeypatch.setattr(ContaminationArgs.model_fields["share"], "default", 0.5)
    ContaminationArgs.model_rebuild(force=True)
    try:
        assert runs(asked, caplog), "a later version has another default"
    finally:
        monkeypatch.undo()
        ContaminationArgs.model_rebuild(force=True)


@pytest.mark.parametrize("name", ["vocab.txt", "added_tokens.json", "merges.txt", "vocab.tiktoken"])
def test_every_file_of_a_tokenizer_counts(name: str, files: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = files / "tokenizer"
    folder.mkdir()
    (folder / "weights.safetensors").write_bytes(b"x")
    asked = places(files, {"name": "length", "args": {"unit": "tokens", "max": 9}}, tokenizer=str(folder))
    assert runs(asked, caplog)
    (folder / "weights.safetensors").write_bytes(b"y")
    assert not runs(asked, caplog)
    (folder / name).write_text("[]")
    assert runs(asked, caplog) and not runs(asked, caplog)


def test_a_step_of_recorded_rollouts_that_is_set_aside_counts(files: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its file has another name, in the same folder."""
    dumps = files / "dumps"
    dumps.mkdir()
    for step, reward in enumerate((1.0, 0.0)):
        groups = [RecordedGroup(row, f"train.jsonl:{row}", (attempt(0, reward),)) for row in range(1, 5)]
        write_groups(dumps / f"step_{step:06d}.npz", groups)
    asked = places(files, {"name": "pass_rate", "args": {"rollouts": str(dumps), "max": 0.5}})
    assert len(chosen(asked)) == 4, "every row is solved once of two times"
    (dumps / "step_000001.npz").rename(dumps / "step_000001.npz.aside")
    with pytest.raises(ConfigError, match="leaves none of 4 rows"):
        chosen(asked)


def test_the_code_that_reads_rows_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    read: set[Path] = set()
    monkeypatch.setattr(kept, "_content_of_file", lambda path: read.add(path) or "")
    list(kept._code([]))
    for reader in (conversations, preferences, rows):
        assert Path(str(reader.__file__)) in read


def test_what_it_does_not_depend_on_leaves_it(files: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert runs(places(files, "deduplicate"), caplog)
    write(files / "val.jsonl", ["x"])
    other = places(files, "deduplicate", tokenizer="org/other", shuffle=False, truncation="drop", template="plain")
    assert not runs(other, caplog)


def test_a_broken_file_is_made_again(files: Path, caplog: pytest.LogCaptureFixture) -> None:
    asked = places(files, "deduplicate")
    chosen(asked)
    (path,) = (files / "cache").iterdir()
    whole = path.read_text()
    for broken in ("", "[]", whole[:-3], whole.replace("[0, 2, 3]", "[0, 1, 2]")):
        path.write_text(broken)
        assert runs(asked, caplog) and "is computed again" in caplog.text
        assert path.read_text() == whole


def test_a_folder_that_cannot_be_written_does_not_stop_the_run(files: Path, caplog: pytest.LogCaptureFixture) -> None:
    (files / "cache").write_text("a file")
    assert chosen(places(files, "deduplicate")) == ["a b", "a b c", "the very same words"]
    assert "could not be saved in" in caplog.text
    assert chosen(places(files, "deduplicate", operators_cache=""))


def found_by(asked: Places) -> list[str | Problem]:
    return list(dry_report(replace(asked, reader=lambda: lambda row, args, key: Texts(str(row.values["prompt"])))))


def reported(asked: Places) -> list[str]:
    return [str(found) for found in found_by(asked)]


def test_a_dry_run_finds_out_what_is_quick_and_keeps_nothing(files: Path) -> None:
    asked = places(files, {"name": "length", "args": {"max": 5}}, CONTAMINATION)
    shown = reported(asked)
    assert shown[0] == f"{TRAIN}.operators: length (max 5), contamination (ngram 3)"
    assert [line.split()[:3] for line in shown[2:4]] == [["length", "4", "1"], ["contamination", "3", "0"]]
    assert not (files / "cache").exists()


def test_a_dry_run_shows_of_what_takes_longer_what_an_earlier_run_has_kept(files: Path) -> None:
    asked = places(files, TOKENS)
    assert "user code, models and tokens are used only then" in reported(asked)[1]
    chosen(asked)
    assert reported(asked)[2].split()[:3] == ["length", "4", "1"]
    write(files / "train.jsonl", ["a"])
    assert "user code, models and tokens are used only then" in reported(asked)[1]


def test_a_dry_run_says_what_will_stop_the_run(files: Path) -> None:
    (line,) = found_by(places(files, {"name": "length", "args": {"min": 500}}))[1:]
    assert isinstance(line, Problem)
    assert line.text.startswith(f"{TRAIN}.operators[0]: length leaves none of 4 rows")
    (files / "val.jsonl").unlink()
    (line,) = reported(places(files, "deduplicate"))[1:]
    assert "not all rows are in files on this machine" in line


def test_two_that_write_at_once_leave_one_whole_file(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second runs whole while the first is between running its operators and writing."""
    asked, run = places(files, "deduplicate"), choice.run_chain
    nested: list[list[str]] = []

    def interrupted(*arguments: Any) -> Any:
        found = run(*arguments)
        if not nested:
            nested.append([])
            nested[0] = chosen(asked)
        return found

    monkeypatch.setattr(choice, "run_chain", interrupted)
    assert chosen(asked) == nested[0]
    assert len(list((files / "cache").iterdir())) == 1
    assert chosen(asked) == nested[0]


def test_rows_are_told_by_their_id_or_place() -> None:
    assert Row("/data/f.jsonl", 7, {}).short_place == "f.jsonl:7"
