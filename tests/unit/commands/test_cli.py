"""The command line: exit codes, messages, and what a dry run never imports."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from roll.commands import run as cli
from roll.errors import ConfigError, StrategyError
from roll.models.megatron.family_table import FAMILIES
from roll.run.spec import PipelineSpec
from tests.helpers.cases import cases
from tests.helpers.configs import tree

REPOSITORY = Path(__file__).resolve().parents[3]
EXAMPLES = REPOSITORY / "examples"


MEGATRON = ("actor_train.strategy_args.strategy_name=megatron_train",)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    directory.mkdir()
    shape = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 3, "max_position_embeddings": 64}
    (directory / "config.json").write_text(json.dumps(shape))
    return directory


@pytest.fixture
def recipe(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A runnable recipe `run.yaml` with model and data, in the current directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.jsonl").write_text('{"prompt": "1+1", "ground_truth": "2", "tag": "math"}\n')
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(tree({"pretrain": str(model), "track_with": "jsonl"})))
    return tmp_path


def run(*arguments: str) -> int:
    return cli.main("rlvr", ["--config_path", ".", "--config_name", "run", *arguments])


def test_a_plan_that_works_is_printed_and_exits_0(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--dry_run") == 0
    shown = capsys.readouterr().out
    assert "32 prompts x 8 samples = 256 = 64 per update (16 x 2 x 2) x 4 updates" in shown
    assert "a real run stops here" not in shown
    assert shown.rstrip().endswith("The plan works.")
    assert not (recipe / "output").exists()


def test_a_plan_that_does_not_work_exits_2_with_every_problem_and_no_traceback(
    recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run(
        "--dry_run",
        "num_nodes=1",
        "rollout_batch_size=33",
        "actor_train.model_args.dtyp=fp32",
        "actor_infer.device_mapping=[9]",
    )
    assert code == 2
    said = capsys.readouterr().err
    assert said.startswith("The run cannot start:\n  - ")
    assert "  - actor_train.model_args.dtyp: unknown key (value 'fp32'). Did you mean dtype?" in said
    assert "Set rollout_batch_size to a multiple of 8" in said
    assert "Traceback" not in said


@cases("arguments, message")
def test_a_wrong_command_line_exits_2(
    recipe: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert cli.main("rlvr", arguments) == 2
    assert message in capsys.readouterr().err


def refused(capsys: pytest.CaptureFixture[str], *overrides: str) -> str:
    """What a real run says before it would start anything; a plan says the same and exits with 2 as well."""
    assert run("--dry_run", *overrides) == 2
    planned = capsys.readouterr()
    assert "The plan works." not in planned.out
    assert run(*overrides) == 2
    said = capsys.readouterr().err
    assert all(line.removeprefix("  - ") in planned.err + planned.out for line in said.splitlines())
    return said


@cases("override, message")
def test_what_this_machine_lacks_stops_a_real_run_and_warns_in_a_dry_run(
    recipe: Path, capsys: pytest.CaptureFixture[str], override: str, message: str
) -> None:
    assert message in refused(capsys, override)


@cases("overrides, message")
def test_the_models_shape_is_checked_where_its_config_is_readable(
    recipe: Path, capsys: pytest.CaptureFixture[str], overrides: list[str], message: str
) -> None:
    assert message in refused(capsys, *overrides)


def test_a_model_that_megatron_does_not_know_is_refused_with_the_families_it_does(
    recipe: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (model / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_head": 4}))
    message = (
        f"actor_train.strategy_args.strategy_name: megatron knows no gpt2 models; it knows {', '.join(FAMILIES)}. "
        "docs/adding_a_model.md shows how to add one; the deepspeed strategies take any Hugging Face model."
    )
    assert "llama" in message
    assert message in refused(capsys, *MEGATRON)


def test_the_shape_of_a_hub_model_is_listed_as_not_checked(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--dry_run", "--elsewhere", "pretrain=org/model")
    assert run(*words, "actor_infer.device_mapping=[2,3]", "actor_infer.num_gpus_per_worker=2") == 0
    shown = capsys.readouterr().out
    assert (
        "Not checked here: actor_infer: heads and layers against the parallel sizes (no config.json of org/model"
        in shown
    )
    assert run(*words, *MEGATRON) == 0
    shown = capsys.readouterr().out
    assert "Not checked here: actor_train: whether Megatron knows the model's family (no config.json" in shown


@cases("rows, overrides, message")
def test_bad_data_and_rewards_stop_a_real_run(
    recipe: Path, capsys: pytest.CaptureFixture[str], rows: str | None, overrides: list[str], message: str
) -> None:
    if rows is None:
        (recipe / "train.jsonl").unlink()
    else:
        (recipe / "train.jsonl").write_text(rows)
    assert message in refused(capsys, *overrides)


class FakePipeline:
    """Stands for the pipeline behind the preflight."""

    outcome: int | BaseException = 0

    def __init__(self, config: object, plan: object):
        self.made_from = (config, plan)

    def run(self) -> int:
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome


@pytest.mark.parametrize(
    ("outcome", "code", "said"),
    [
        (0, 0, ""),
        (1, 1, ""),
        (130, 130, ""),
        (StrategyError("the engine died"), 1, "The run failed (StrategyError):\n  - the engine died\n"),
        (ConfigError("late", "news"), 2, "The run cannot start:\n  - late\n  - news\n"),
        (KeyboardInterrupt(), 130, "Interrupted.\n"),
    ],
)
def test_the_exit_code_says_how_the_run_ended(
    recipe: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    outcome: int | BaseException,
    code: int,
    said: str,
) -> None:
    monkeypatch.setattr(FakePipeline, "outcome", outcome)
    monkeypatch.setattr(PipelineSpec, "make_run", lambda spec, config, plan: FakePipeline(config, plan))
    assert run() == code
    assert capsys.readouterr().err == said


PROBE = """
import sys
from roll.commands.run import main
code = main(*sys.argv[1:2], sys.argv[2:])
heavy = [m for m in ("torch", "ray", "transformers", "pyarrow", "deepspeed", "vllm", "datasets") if m in sys.modules]
print(code, heavy)
"""


@cases("kind, name")
def test_a_dry_run_imports_neither_torch_nor_ray_nor_an_engine(kind: str, name: str) -> None:
    folder, name = name.split("/")
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            PROBE,
            kind,
            "--config_path",
            str(EXAMPLES / folder),
            "--config_name",
            name,
            "--dry_run",
            "--elsewhere",
        ],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        timeout=120,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "0 []"


def test_the_yaml_of_the_current_folder_comes_before_that_of_the_scripts_folder_and_it_is_said(
    recipe: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without --config_path, and with `.`; elsewhere the script's folder comes first, if the YAML is there."""
    scripts = tmp_path_factory.mktemp("scripts")
    for folder in (scripts, scripts / "sub", recipe / "sub"):
        folder.mkdir(exist_ok=True)
    broken = "nonsense: 1\n"

    def start(name: str, *arguments: str) -> tuple[int, str]:
        code = cli.main("rlvr", ["--config_name", name, "--dry_run", *arguments], script=str(scripts / "start.py"))
        return code, "".join(capsys.readouterr())

    assert start("run")[0] == 0
    (scripts / "run.yaml").write_text(broken)
    for given in ((), ("--config_path", "."), ("--config_path=./",)):
        code, said = start("run.yaml", *given)
        assert code == 0 and f"run.yaml is also in {scripts}; the one in {recipe} is used." in said
    (scripts / "only.yaml").write_text(broken)
    code, said = start("only")
    assert code == 2 and "nonsense" in said and "is used" not in said
    code, said = start("none")
    assert code == 2 and f"there is no none.yaml in {recipe}" in said

    (recipe / "run.yaml").rename(recipe / "sub" / "run.yaml")
    assert start("run", "--config_path", "sub")[0] == 0
    (scripts / "sub" / "run.yaml").write_text(broken)
    code, said = start("run", "--config_path", "sub")
    assert code == 2 and f"is also in {recipe / 'sub'}; the one in {scripts / 'sub'} is used." in said


def test_a_name_may_have_its_folder_before_it(
    recipe: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (recipe / "sub").mkdir()
    text = (recipe / "run.yaml").read_text()
    (recipe / "run.yaml").rename(recipe / "sub" / "run.yaml")
    (recipe / "sub" / "run.yaml").write_text(f"{text}\nsteps: 7\nmax_steps: ${{steps}}\n")
    for given in (["--config_name", "sub/run"], ["--config_name", f"{recipe}/sub/run.yaml"]):
        assert cli.main("rlvr", [*given, "--dry_run"]) == 0
        assert capsys.readouterr().out.startswith("run: 7 steps")


def test_a_reward_in_a_file_beside_the_yaml_is_found(
    recipe: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (recipe / "beside_the_yaml.py").write_text("def score(sample):\n    return 1.0\n")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir("/")
    started: list[object] = []
    monkeypatch.setattr(PipelineSpec, "make_run", lambda spec, config, plan: Started(config, plan))

    class Started:
        def __init__(self, config: object, plan: object):
            started.append(config)

        def run(self) -> int:
            return 0

    given = ["--config_path", str(recipe), "--config_name", "run", "rewards.math.reward=beside_the_yaml:score"]
    data = f"actor_train.data_args.file_name={recipe}/train.jsonl"
    assert cli.main("rlvr", [*given, data, f"output_dir={recipe}/output"]) == 0, capsys.readouterr().err
    assert len(started) == 1
    assert cli.main("rlvr", [*given, data, "rewards.math.reward=beside_the_yaml:scores"]) == 2
    assert f"beside_the_yaml has no scores ({recipe}/beside_the_yaml.py)" in capsys.readouterr().err
