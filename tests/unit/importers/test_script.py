"""bash runs scripts in the sandbox, where recorders stand for programs."""

import os
import random
from pathlib import Path

import pytest

from roll.commands.table import main as roll
from roll.errors import ConfigError
from roll.importers import recording
from roll.importers.command import imported_from
from roll.importers.convert import read, source_keys
from roll.importers.script import COUNTED, find_command, variables_of_job
from roll.importers.verl.files import Composed
from roll.utils.sandbox.backends import SandboxUnavailable
from tests.helpers.cases import cases

FOLDER = Path(__file__).parents[2] / "importers"


def overrides(text: str) -> tuple[str, ...]:
    return find_command(text).overrides


@pytest.mark.slow
@cases("script, found")
def test_words_are_those_of_a_shell(script: str, found: list[str]) -> None:
    assert list(overrides(script)) == found


@pytest.mark.slow
@cases("words, found")
def test_a_script_knows_where_it_lies(words: str, found: str) -> None:
    assert find_command(f'D={words}\npython x "a.b=$D"', file="/repo/scripts/run.sh").overrides == (f"a.b={found}",)


def test_a_line_that_lost_the_line_before_is_told_until_it_is_given(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(
        "python -m verl.trainer.main_ppo actor_rollout_ref.model.path=/m algorithm.use_kl_in_reward=false \\\n"
        " data.train_files=/d\n a.b=1"
    )
    assert "a.b=1 begins a line of its own" in imported_from(read(script)).changes[0]
    script.write_text(script.read_text().replace("a.b=1", "trainer.total_epochs=3"))
    assert imported_from(read(script, ["trainer.total_epochs=3"])).changes == ()


@pytest.mark.slow
def test_a_value_that_only_a_shell_knows_is_no_reference_of_the_yaml(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    words = "python -m verl.trainer.main_ppo actor_rollout_ref.model.path=/m data.train_files=/d"
    script.write_text(f"D=$(find ${{X[0]}})\n{words} custom_reward_function.path=$D/f.py")
    found = imported_from(read(script))
    assert found.tree["rewards"]["verl"]["reward_args"]["path"] == "$(find ${oc.env:X})/f.py"
    assert found.entries[-1].outcome == "approximated" and "give it after the file" in found.entries[-1].note
    assert found.unresolved == ("custom_reward_function.path",)


@pytest.mark.slow
@cases("lines")
def test_files_that_only_a_run_would_tell_are_asked_for(lines: str, tmp_path: Path) -> None:
    """Alone, or in a list that holds them, as run scripts write lists of files."""
    script, out = tmp_path / "run.sh", tmp_path / "out.yaml"
    words = "python -m verl.trainer.main_ppo actor_rollout_ref.model.path=/m data.train_files=/d"
    script.write_text(f'{lines}\n{words} data.val_files="$V"')
    found = imported_from(read(script))
    assert found.unresolved == ("data.val_files",) and not found.is_as_meant
    assert found.entries[-1].outcome == "approximated"
    assert roll(["import", str(script), "--out", str(out)]) == 3


@pytest.mark.slow
@cases("name, written, is_as_meant")
def test_what_a_program_prints_is_asked_for(name: str, written: str, is_as_meant: bool, tmp_path: Path) -> None:
    """A date of the start is left out; without one a name is the same but for it."""
    script = tmp_path / "run.sh"
    words = "python -m verl.trainer.main_ppo actor_rollout_ref.model.path=/m data.train_files=/d"
    words += " algorithm.use_kl_in_reward=false custom_reward_function.path=/f.py"
    script.write_text(f"N={name}\n{words} trainer.experiment_name=$N")
    found = imported_from(read(script))
    assert found.tree["exp_name"] == written and found.is_as_meant == is_as_meant


@pytest.mark.slow
@cases("script, found")
def test_what_a_script_decides_by_itself_is_what_bash_makes_of_it(script: str, found: str) -> None:
    values = [word.partition("=")[2] for word in overrides(script)]
    assert values == found.split("|" if "|" in found else " ")


@pytest.mark.slow
@cases("script")
def test_what_is_never_closed_is_told_with_its_line(script: str) -> None:
    with pytest.raises(ConfigError, match=r"line [23]: "):
        overrides(f"python x a.b=1\n{script}")


@pytest.mark.slow
def test_a_damaged_script_is_read_or_refused_in_a_sentence() -> None:
    """Cuts, swaps and foreign characters in scripts of verl: no other exception, and no more time than the script."""
    chance = random.Random(0)
    texts = [path.read_text() for path in sorted(FOLDER.glob("verl_*.sh"))]
    refused = 0
    for i in range(12):
        text = list(chance.choice(texts)[: chance.randint(1, 2500)])
        for _ in range(chance.randint(1, 8)):
            text[chance.randrange(len(text))] = chance.choice("\"'`$(){}[]\\;|&<>#!=\n \0\x85é*?/:-+@~,.0a")
        try:
            command = find_command("".join(text))
            if i % 3 == 0:
                imported_from(source_keys(Composed(), (), command), "verl")
        except ConfigError as error:
            refused += 1
            assert all("\n" not in problem for problem in error.problems)
    assert 0 < refused < 12


def test_words_of_a_launcher_are_known() -> None:
    command = find_command("torchrun --nnodes=2 --nproc_per_node 4 -m x a.b=1 --config-name=big")
    assert command.flag("nnodes") == "2" and command.flag("nproc-per-node") == "4"
    assert command.flag("config-name") == "big" and command.flag("other") is None


@pytest.mark.slow
@cases("opened")
def test_output_that_stays_open_is_one_word_though_blanks_are_in_it(opened: str) -> None:
    script = f"N=x-{opened.replace('${oc.env:A}', '$A')}-y\npython x a.b=$N t.e=15 a.c=z"
    assert overrides(script) == (f"a.b=x-{opened}-y", "t.e=15", "a.c=z")


@pytest.mark.slow
def test_a_script_that_ends_before_its_command_is_read_as_if_its_tests_had_passed() -> None:
    script = """M=""
    for path in /a /b; do [ -f "$path" ] && M=$path && break; done
    [ -z "$M" ] && echo "no model" && exit 1
    python x a.b=1 a.m=$M"""
    found = find_command(script)
    assert found.overrides == ("a.b=1", "a.m=${M}") and any("ends at an exit" in note for note in found.notes)
    first = find_command("python x a.b=1; exit 0; python x a.b=2 a.c=3")
    assert first.overrides == ("a.b=1",) and not any("exit" in note for note in first.notes)


JOB = "#!/bin/bash\n#SBATCH --nodes=4\n#SBATCH --gres=gpu:h100:8  # all\n#SBATCH --ntasks-per-node 1\n#SBATCH -J run\n"


@pytest.mark.slow
@cases("words, found")
def test_a_job_of_slurm_says_its_nodes_and_gpus(words: str, found: str) -> None:
    assert overrides(f"{JOB}python x a.b={words}") == (f"a.b={found}",)


@cases("line, found")
def test_lines_of_slurm_are_read_as_it_reads_them(line: str, found: list[str]) -> None:
    variables = variables_of_job(f"{line}\npython x a.n=$SLURM_NNODES".replace("\r\n", "\n"))
    assert [variables.get("SLURM_NNODES", ""), variables.get("SLURM_GPUS_ON_NODE", "")] == found


@pytest.mark.slow
def test_nodes_that_no_line_tells_have_no_default_within_a_job() -> None:
    found = find_command("#SBATCH --gres=gpu:8\npython x a.n=${SLURM_NNODES:-1} a.g=$SLURM_GPUS_ON_NODE")
    assert found.overrides == ("a.n=${oc.env:SLURM_NNODES}", "a.g=8")
    assert found.notes == ("From its #SBATCH lines: SLURM_GPUS_ON_NODE=8.",)


TEXTS = [
    ("echo $L | tr ',' '\\n' | wc -l", "4"),
    ("echo $L | awk -F, '{print $2}'", "1"),
    ("echo $L | tr -d ,", "0123"),
    ("echo a-b-c | sed 's/-/_/g'", "a_b_c"),
    ("echo '2^3^2 - 010*2' | bc", "492"),
    ("basename /x/Qwen.sh .sh | head -n 1", "Qwen"),
    ("echo a b | tr ' ' '\\n' | tr '\\n' ',' | sed 's/,$//'", "a,b"),
    ("echo -n a | wc -l", "0"),
]


def test_programs_that_only_change_a_text_are_run() -> None:
    words = " ".join(f'"a.b{i}=$({program})"' for i, (program, _) in enumerate(TEXTS))
    assert overrides(f"L=0,1,2,3\npython x {words}") == tuple(f"a.b{i}={found}" for i, (_, found) in enumerate(TEXTS))


@pytest.mark.slow
@cases("program, found")
def test_what_only_a_run_would_print_stays_open(program: str, found: str) -> None:
    assert overrides(f'python x "a.b=$({program})"') == (f"a.b={found}",)


@pytest.mark.slow
def test_trainings_of_a_script_are_those_of_its_program() -> None:
    script = """python prepare.py a.b=1
torchrun --master_port 1 -m x.train a.b=1 a.c=2
torchrun --master_port 2 -m x.train a.b=1 a.c=2
torchrun --master_port 2 -m x.train a.b=3 a.c=2
"""
    first, third = find_command(script), find_command(script, training=3)
    assert first.trainings == ("", "", "a.b=3") and first.chosen == 0
    assert third.overrides == ("a.b=3", "a.c=2") and third.trainings == ("a.b=1", "a.b=1", "")
    assert first.notes == ("Not imported, another command: python prepare.py ...",)
    assert find_command("python -m x a.b=1").trainings == ()


@pytest.mark.slow
def test_words_that_a_missing_backslash_cuts_off_belong_to_the_line_before() -> None:
    found = find_command('W=(a.b=1 a.c=2)\npython3 -m recipe.dapo.main_dapo\n    "${W[@]}" \\\n  a.d=3')
    assert found.overrides == ("a.b=1", "a.c=2", "a.d=3") and found.program == (
        "python3",
        "-m",
        "recipe.dapo.main_dapo",
    )
    assert any("lacks its backslash" in note for note in found.notes)


@pytest.mark.slow
def test_a_command_may_have_a_configuration_alone() -> None:
    assert find_command("python -m x.y --config-path=/c --config-name=mine").flag("config-name") == "mine"
    assert find_command("python -m x.y -cn mine\npython -m x.z a.b=1").overrides == ("a.b=1",)


def test_which_branch_a_script_took_is_said_with_its_line() -> None:
    notes = find_command("N=1\nif [ -d /data/m ]; then N=2; fi\ncase $MODE in a) N=3;; esac\npython x a.b=$N").notes
    assert [note.partition(" here")[0] for note in notes[:1]] == ["Line 2: `[ -d /data/m ]` is false"]
    assert notes[1].startswith("Line 3: no pattern but * fits in `case $MODE in`")


def test_a_command_has_the_line_on_which_it_stands() -> None:
    assert find_command("A=1\n\npython x \\\n  a.b=1 2>&1 | tee log/x").line == 3


@pytest.mark.slow
@cases("script, asked")
def test_a_sum_with_a_value_that_only_a_run_has_is_asked_for(script: str, asked: str) -> None:
    with pytest.raises(ConfigError, match="it computes with ") as caught:
        find_command(script)
    assert asked in str(caught.value)


def test_gpus_are_counted_as_given() -> None:
    script = "G=$(nvidia-smi -L | wc -l)\npython x a.b=$((G / 2)) a.c=$(nvidia-smi --query-gpu=name | wc -l)"
    assert find_command(script, gpus=4).overrides == ("a.b=2", "a.c=4")
    script = script.replace("G=", "T=$(python3 -c 'import torch; print(torch.cuda.device_count())')\nG=") + " a.d=$T"
    found = find_command(script)
    assert found.overrides == ("a.b=4", "a.c=8", "a.d=8") and "GPUs to the machine: 8 are taken" in found.notes[-1]
    assert overrides("python x a.b=$(nvidia-smi -L | grep -c H100)")[0].startswith("a.b=$(")


def test_a_yaml_that_a_program_is_given_is_named() -> None:
    with pytest.raises(ConfigError, match=r"It gives /x/c.yaml to a program: import that file."):
        find_command("set -x\npython3 -m a.b /x/c.yaml")


def test_a_comment_behind_a_backslash_ends_the_command() -> None:
    found = find_command("# one\npython3 -m a.b x.y=1 \\\n    # z.a=2 \\\n    z.b=3\n")
    assert (found.overrides, found.stray) == (("x.y=1",), ("z.b=3",))


@cases("script, number, is_told")
def test_gpus_that_a_program_sees_are_those_of_the_variable(script: str, number: int, is_told: bool) -> None:
    found = find_command(f"{script.replace('COUNT', COUNT)}\npython x a.b=$N", gpus=4)
    assert found.overrides == (f"a.b={number}",) and (COUNTED.format(4) in found.notes) is is_told


COUNT = "import torch; print(torch.cuda.device_count())"


@pytest.mark.slow
def test_what_else_a_gpu_is_stays_open() -> None:
    found = find_command("M=$(nvidia-smi --query-gpu=memory.total --format=csv,noheader)\npython x a.b=$M", gpus=8)
    assert found.overrides == ("a.b=$(nvidia-smi --query-gpu=memory.total --format=csv,noheader)",)


@cases("script")
def test_a_variable_that_is_passed_on_or_asked_for_has_no_value(script: str) -> None:
    assert overrides(script)[-1] == "a.b=${oc.env:D}/t"
    given = find_command(script, variables={"D": "/d"})
    assert given.overrides[-1] == "a.b=/d/t" and not given.unread


def test_a_variable_that_must_be_given_has_a_say() -> None:
    script = "export KEY=${KEY:?}\npython x a.b=1"
    assert overrides(script) == ("a.b=1",) and not find_command(script, variables={"KEY": "k"}).unread


def test_no_device_and_no_file_that_cannot_be_read_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(recording, "_text_of", opened)
    (tmp_path / "env.sh").write_text("N=1")
    found = find_command(f"cat /proc/kmsg\n. {tmp_path}/env.sh\npython x a.b=1")
    assert found.overrides == ("a.b=1",) and "env.sh is not here, is hidden or cannot be read" in found.notes[-1]
    assert recording._found_here("/nowhere/run.sh", [("/", "/proc/kmsg"), ("/", "/proc/self/environ")]) == []


def test_files_beside_a_script_are_read_and_others_are_said(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/env.sh").write_text('declare -A LR=([a]=3)\nrun() { bash lib/train.sh a.b=$1 "$@"; }\n')
    (tmp_path / "lib/train.sh").write_text('exec python3 -m x "$@" > "$LOGS/x/log" 2>&1\n')
    (tmp_path / ".env").write_text("N=9\n")
    script = tmp_path / "run.sh"
    script.write_text(
        'cd "$(dirname "$0")"\nsource lib/env.sh\n. ./.env\nsource /opt/conda/bin/activate me\nrun ${LR[a]}\n'
    )
    found = find_command(script.read_text(), str(script), str(script))
    assert (found.program, found.overrides, found.line) == (("python3", "-m", "x"), ("a.b=3",), 1)
    assert [note.split(" ")[0] for note in found.notes] == ["./.env", "/opt/conda/bin/activate"]


@pytest.mark.slow
@cases("script")
def test_however_a_program_is_started_it_is_found(script: str) -> None:
    assert overrides(script) == ("a.b=1",)


@pytest.mark.slow
def test_a_script_without_end_is_refused() -> None:
    with pytest.raises(ConfigError, match="no command .* It does not end within 5 s"):
        overrides("while true; do a=1; done\npython x a.b=1")
    assert overrides(":() { : | : & }; :\npython x a.b=1") == ("a.b=1",)
    found = find_command("while :; do python x a.b=1; done")
    assert found.overrides == ("a.b=1",) and "does not end by itself" in found.notes[-1]


@cases("line")
def test_nothing_outside_is_written(line: str, tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o777)
    find_command(f"({line.format(tmp_path)})\npython x a.b=1")
    assert not any(tmp_path.iterdir())


def test_secrets_of_the_environment_are_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    assert overrides("python x a.b=$WANDB_API_KEY a.c=$(export -p | grep -c secret)") == (
        "a.b=${oc.env:WANDB_API_KEY}",
        "a.c=0",
    )


def test_without_the_sandbox_only_a_plain_command_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: str) -> None:
        raise SandboxUnavailable("there is none")

    monkeypatch.setattr(recording, "find_means", missing)
    assert overrides("# a run\nA=1 python -m x \\\n  a.b='x y' a.c=[1,2]") == ("a.b=x y", "a.c=[1,2]")
    with pytest.raises(ConfigError, match="there is none. Or import the key=value words"):
        overrides("python x a.b=$N")
