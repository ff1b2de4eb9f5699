"""`roll completion`: its script in a real bash."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from roll.commands.completion import keys, run, words_of
from roll.commands.table import SUBCOMMANDS, main

LISTS = """
compopt() { echo "compopt $*"; }  # there is no completion under way
source "$1"
shift
COMP_WORDS=("$@")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_roll
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("completion") / "roll.bash"
    file.write_text("\n".join(run(["bash"])))
    return file


def completed(script: Path, *words: str) -> list[str]:
    done = subprocess.run(
        ["bash", "--norc", "-c", LISTS, "bash", str(script), "roll", *words], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return done.stdout.split("\n")[:-1]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("re",), ["replay", "report", "reproduce"]),
        (("run", "--max"), ["--max_restarts"]),
        (("run", ""), ["--help", "--dry_run", "--elsewhere", "--max_restarts"]),
        (("convert", "to_"), ["to_hf", "to_megatron"]),
        (("schema", "rl"), ["rlvr"]),
        (("explain", "dap"), ["dapo"]),
        (("data", "ch"), ["check"]),
        (("run", "my.yaml", "max_st"), ["compopt -o nospace", "max_steps=", "max_staleness="]),
        (("plan", "my.yaml", "max_grad"), ["compopt -o nospace", "max_grad_norm="]),
        (("run", "my.yaml", "max_steps", "="), [""]),
        (("run", "my.yaml", "max_steps", "=", "m"), [""]),
        (("report", "out", "max_"), [""]),
    ],
)
def test_a_shell_completes(script: Path, words: Sequence[str], expected: Sequence[str]) -> None:
    assert sorted(set(completed(script, *words))) == sorted(expected)


def test_keys_come_level_by_level(script: Path) -> None:
    assert set(completed(script, "run", "my.yaml", "actor_tr")) == {"compopt -o nospace", "actor_train."}
    below = set(completed(script, "run", "my.yaml", "actor_train."))
    assert {"actor_train.training_args.", "actor_train.device_mapping="} < below
    assert not any(".learning_rate" in key for key in below)
    args = "actor_train.training_args.learning_"
    assert set(completed(script, "plan", "my.yaml", args)) == {"compopt -o nospace", f"{args}rate="}


def test_every_subcommand_and_each_key_of_every_kind_is_known() -> None:
    assert all(words_of(name) for name in SUBCOMMANDS)
    assert {"sft_train.model_args.lora_rank=", "adv_estimator=", "train_env_manager.group_size="} < set(keys())


def test_another_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "fish"]) == 2
    assert "name one shell: bash or zsh" in capsys.readouterr().err
