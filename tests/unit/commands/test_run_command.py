"""Commands that start and measure runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from roll.commands import evaluate
from roll.commands.table import main
from roll.errors import ConfigError
from roll.run.kind import kind_of
from roll.run.spec import KIND_BY_KEY, PIPELINES, PipelineSpec
from tests.helpers.cases import cases
from tests.helpers.configs import tree

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
KINDS = {
    "tiny-sort/tiny_sort": "rlvr",
    "tiny-sort/tiny_sort_ppo": "rlvr",
    "tiny-sort/tiny_sort_sft": "sft",
    "tiny-sort/tiny_sort_dpo": "dpo",
    "tiny-sort/tiny_sort_rm": "rm",
    "tiny-frozen-lake/tiny_frozen_lake": "agentic",
    "qwen2.5-0.5B-agentic/sokoban": "agentic",
    "qwen2.5-7B-rlvr/rlvr_megatron": "rlvr",
}


@pytest.mark.parametrize(("name", "kind"), KINDS.items())
def test_the_keys_of_a_yaml_tell_its_kind(name: str, kind: str) -> None:
    assert kind_of(yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())).name == kind


def test_keys_that_tell_nothing_are_refused_and_the_key_pipeline_decides() -> None:
    with pytest.raises(ConfigError, match="pipeline is missing, and no key tells .* Set pipeline to rlvr or "):
        kind_of({"pretrain": "model", "max_steps": 3})
    assert kind_of({"pretrain": "model", "pipeline": "rm"}).name == "rm"
    assert kind_of({"pretrain": "model"}, "sft").name == "sft"
    assert kind_of({"pretrain": "model", "algorithm": "ipo"}).name == "dpo"
    assert kind_of({"rewards": {}, "algorithm": "grpo"}).name == "rlvr"
    with pytest.raises(ConfigError, match="pipeline: 3 must be the name of a kind of run"):
        kind_of({"pipeline": 3})


@cases("key, meant")
def test_a_key_that_is_misspelt_for_one_that_tells_the_kind_is_named(key: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"{key} tells no kind of run. Did you mean {meant}[?]"):
        kind_of({"pretrain": "model", key: {}})


def test_every_kind_of_run_is_known_by_its_keys() -> None:
    fragment = yaml.safe_load((EXAMPLES / "config" / "envs.yaml").read_text())
    assert kind_of({**fragment, "actor_train": {}, "rewards": {}, "prompt_length": 8}).name == "rlvr"
    assert {*KINDS.values()} <= PIPELINES.keys() == {*KIND_BY_KEY.values()}


@pytest.mark.parametrize("word", [["plan"], ["run", "--dry_run"]])
def test_a_plan_is_shown_for_a_path(word: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    command, *options = word
    path = str(EXAMPLES / "tiny-sort" / "tiny_sort_dpo.yaml")
    assert main([command, path, *options, "--elsewhere", "max_steps=7"]) == 0, capsys.readouterr().err
    shown = capsys.readouterr().out
    assert shown.startswith("tiny_sort_dpo: 7 steps") and shown.rstrip().endswith("The plan works.")


def test_a_plan_is_short_and_whole_with_all(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(EXAMPLES / "tiny-sort" / "tiny_sort.yaml")
    shown = []
    for more in ((), ("--all",)):
        assert main(["plan", path, "--elsewhere", *more]) == 0
        shown.append([line for line in capsys.readouterr().out.splitlines() if line.startswith((" ", "Devices"))])
    short, whole = shown
    assert len(short) <= 20 and [line for line in whole if line in short] == short
    assert (
        "  KL             none (default)" in whole and "  lengths        prompt 32 + response 12 = 44 tokens" in short
    )


def test_a_fragment_beside_the_yaml_and_code_beside_it_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "mine.yaml").write_text(yaml.safe_dump(tree()))
    monkeypatch.chdir(tmp_path)
    for given in ("sub/mine.yaml", "sub/mine", str(tmp_path / "sub" / "mine.yaml")):
        assert main(["plan", given, "--elsewhere"]) == 0
        assert capsys.readouterr().out.startswith("mine: 500 steps")


def test_what_is_no_yaml_is_refused_with_what_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.yaml").write_text("a: 1\n")
    assert main(["plan", f"{tmp_path}/yours.yaml"]) == 2
    said = capsys.readouterr().err
    assert f"{tmp_path}/yours.yaml does not exist. Name a YAML first. {tmp_path} has mine." in said
    assert main(["run", "max_steps=3"]) == 2
    assert "max_steps=3.yaml does not exist. Name a YAML first." in capsys.readouterr().err


def test_a_yaml_of_another_kind_than_the_script_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from roll.commands.run import main as script

    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(tree({"pipeline": "agentic"})))
    given = ["--config_path", str(tmp_path), "--config_name", "mine", "--dry_run", "--elsewhere"]
    assert script("rlvr", given) == 2
    said = capsys.readouterr().err
    assert "pipeline: agentic, but this starts a run of kind rlvr. Start it with `roll run`" in said
    assert script("rlvr", [*given, "pipeline=rlvr"]) == 0
    assert script("rlvr", [*given, "pipeline=rlvf"]) == 2


@pytest.mark.parametrize("code", [0, 1, 130])
def test_the_exit_code_is_that_of_the_run(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Run:
        def run(self) -> int:
            return code

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(PipelineSpec, "make_run", lambda spec, config, plan: Run())
    (tmp_path / "train.jsonl").write_text('{"prompt": "1+1", "ground_truth": "2", "tag": "math"}\n')
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"num_attention_heads": 4, "num_key_value_heads": 4}')
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(tree({"pretrain": "model", "track_with": "jsonl"})))
    assert main(["run", "mine.yaml"]) == code, capsys.readouterr().err


Call = tuple[str, list[str], bool, bool]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    found: list[Call] = []

    def start_yaml(config: str, overrides: list[str], is_plan: bool, elsewhere: bool) -> int:
        found.append((config, overrides, is_plan, elsewhere))
        return 2 if "max_steps=0" in overrides else 0

    monkeypatch.setattr(evaluate, "start_yaml", start_yaml)
    return found


def test_a_yaml_runs_in_mode_bench_with_the_model_that_is_named(calls: list[Call]) -> None:
    words = ["runs/sums.yaml", "--checkpoint", "out/step_000050", "val_batch_size=4"]
    assert evaluate.run(words) == 0
    given = ["val_batch_size=4", "mode=bench", "resume_from_checkpoint=out/step_000050"]
    assert calls == [("runs/sums.yaml", given, False, False)]
    evaluate.run(["sums.yaml", "--dry_run"])
    assert calls[1:] == [("sums.yaml", ["mode=bench"], True, False)]
    evaluate.run(["sums.yaml", "resume_from_checkpoint=out/step_000050"])
    assert calls[2][1] == ["resume_from_checkpoint=out/step_000050", "mode=bench"]
    assert evaluate.run(["sums.yaml", "max_steps=0"]) == 2


@cases("words, said")
def test_words_without_effect_are_refused(words: list[str], said: str, calls: list[Call]) -> None:
    with pytest.raises(ConfigError, match=said):
        evaluate.run(["sums.yaml", *words])
    assert calls == []
