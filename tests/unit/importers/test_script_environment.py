"""Variables that a script gives its program, and those that it is given."""

from pathlib import Path
from typing import Any

import pytest

from roll.importers.command import imported_from
from roll.importers.convert import Imported, read
from roll.importers.script import find_command
from tests.unit.importers.test_import import entry

RUN = "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo"


def of_script(text: str, place: Path) -> Imported:
    path = place / "run.sh"
    path.write_text(text)
    return imported_from(read(path), source=path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "script, environment",
    [
        ("export A=1 B\nB=2\nC=3\npython x a.b=1", {"A": "1", "B": "2"}),
        ("A=1 B='x y' python x a.b=1", {"A": "1", "B": "x y"}),
        ("export A=1\nA=2 python x a.b=1 && A=3 python y a.b=1 a.c=1", {"A": "3"}),
        ("set -a\nA=1\nset +a\nB=2\npython x a.b=1", {"A": "1"}),
        ("set -eo allexport\nA=1\npython x a.b=1", {"A": "1"}),
        ("declare -x A=1\ntypeset -r B=2\npython x a.b=1", {"A": "1"}),
        ("run() { python x a.b=$1; }\nA=1 run 2", {"A": "1"}),
        ("A=1 bash -c 'export B=2; python x a.b=1'", {"A": "1", "B": "2"}),
        ("env -u C A=1 python3 -m x.y a.b=1", {"A": "1"}),
        (
            'ray job submit --runtime-env-json=\'{"env_vars": {"A": "1", "B": 2}}\' -- python3 -m x.y a.b=1',
            {"A": "1", "B": "2"},
        ),
        ("ray job submit --runtime-env-json '{\"env_vars\": [1]}' -- python3 -m x.y a.b=1", {}),
        ("ray job submit --runtime-env-json '{\"env_vars\"' -- python3 -m x.y a.b=1", {}),
        ("python x a.b=1\nexport A=1", {}),
    ],
)
def test_a_program_gets_what_is_exported_before_it(script: str, environment: dict[str, str]) -> None:
    assert find_command(script).environment == environment


def test_variables_before_a_function_are_its_own_while_it_runs() -> None:
    found = find_command("N=1\nrun() { python x a.b=$N; }\nN=2 run\npython x a.b=$N a.c=1", training=1)
    assert found.overrides == ("a.b=2",)
    assert find_command("N=1\nrun() { :; }\nN=2 run\npython x a.b=$N").overrides == ("a.b=1",)


@pytest.mark.slow
@pytest.mark.parametrize(
    "line, value",
    [
        ("export M=/m\n{} actor_rollout_ref.model.path='${oc.env:M}/x'", "/m/x"),
        ("M=/m {} actor_rollout_ref.model.path='${oc.env:M,/other}'", "/m"),
        ("M=/m\n{} actor_rollout_ref.model.path='${oc.env:M}'", "${oc.env:M}"),
        ("export M=$HOME/m\n{} actor_rollout_ref.model.path='${oc.env:M}'", "${oc.env:HOME}/m"),
    ],
)
def test_a_word_that_reads_the_environment_gets_what_the_script_exports(line: str, value: str, tmp_path: Path) -> None:
    assert of_script(line.replace("{}", RUN), tmp_path).tree["pretrain"] == value


def test_so_does_a_configuration_beside_the_script(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("defaults: [ppo_trainer]\ntrainer: {nnodes: '${oc.env:NODES}'}\n")
    found = of_script(f"export NODES=2\n{RUN} --config-name=mine data.train_files=x", tmp_path)
    assert found.tree["num_nodes"] == 2 and not found.unresolved


@pytest.mark.slow
@pytest.mark.parametrize(
    "script, key, value",
    [
        ("export SWANLAB_MODE=local\n{} trainer.logger=swanlab", "swanlab.mode", "local"),
        ("SWANLAB_WORKSPACE=w {} trainer.logger=[console,swanlab]", "swanlab.workspace", "w"),
        ("WANDB_MODE=offline {} trainer.logger=wandb", "wandb.mode", "offline"),
        ("export WANDB_RUN_GROUP=g\n{} trainer.logger=wandb", "wandb.group", "g"),
        ("export WANDB_TAGS=a,b\n{} trainer.logger=wandb", "wandb.tags", ["a", "b"]),
    ],
)
def test_trackers_get_the_variables_of_a_script(script: str, key: str, value: Any, tmp_path: Path) -> None:
    tracker, _, name = key.partition(".")
    assert of_script(script.replace("{}", RUN), tmp_path).tree["tracker_kwargs"][tracker][name] == value


def test_keys_of_trackers_are_told_and_not_written(tmp_path: Path) -> None:
    found = of_script(f"export WANDB_API_KEY=secret\n{RUN} trainer.logger=wandb", tmp_path)
    assert any("WANDB_API_KEY, which no YAML should hold" in note for note in found.notes)
    assert "secret" not in str(found)


@pytest.mark.slow
def test_what_counts_with_an_open_key_says_so_and_is_written(tmp_path: Path) -> None:
    found = of_script(f"{RUN} trainer.nnodes=$N trainer.n_gpus_per_node=4 {KL}", tmp_path)
    assert found.unresolved == ("trainer.nnodes",)
    assert (
        entry(found, "trainer.nnodes")[1] == "${oc.env:N} is left open. Give N=... or trainer.nnodes=... after the file"
    )
    outcome, note = entry(found, "trainer.n_gpus_per_node")
    assert outcome == "approximated" and "as soon as trainer.nnodes is given" in note
    assert found.tree["num_gpus_per_node"] == 4
    assert found.tree["reference"]["strategy_args"]["strategy_name"] == "fsdp2_infer"


@pytest.mark.slow
def test_all_open_keys_of_a_sum_are_asked_for_at_once(tmp_path: Path) -> None:
    found = of_script(
        f"{RUN} data.train_batch_size=$B actor_rollout_ref.rollout.n=$N actor_rollout_ref.actor.ppo_mini_batch_size=8",
        tmp_path,
    )
    assert found.unresolved == ("actor_rollout_ref.rollout.n", "data.train_batch_size")
    assert entry(found, "actor_rollout_ref.rollout.n")[1].startswith("${oc.env:N} is left open")
    mini = entry(found, "actor_rollout_ref.actor.ppo_mini_batch_size")
    assert mini[1] == "it counts as soon as data.train_batch_size is given, which the script leaves open"


KL = "actor_rollout_ref.actor.use_kl_loss=true"


@pytest.mark.slow
@pytest.mark.parametrize(
    "script, overrides",
    [
        ("declare -A P\nP[a]=/x\nP[b]=/y\nD=${D:-b}\npython x a.b=${P[$D]} a.c=${P[z]:-q}", ["a.b=/y a.c=q"]),
        ("declare -A P=([a]=1 ['b c']='2 3')\npython x a.n=${#P[@]} \"a.k=${!P[*]}\"", ["a.n=2 a.k=b c a"]),
        ("declare -A P\nP+=([a]=1)\nP[a]+=2\npython x a.b=${P[a]}", ["a.b=12"]),
        ('A=(x y)\npython x "a.b=${!A[*]}"', ["a.b=0 1"]),
        ("for ((i=1; i<=2; i++)); do python x a.b=$i; done", ["a.b=1", "a.b=2"]),
        ("N=3\nfor (( s = 10 ; s < 10 * N ; s += 10 )) ; do\npython x a.b=$s\ndone", ["a.b=10", "a.b=20"]),
        ("for ((i=0; i<90; i++)); do nc $i; sleep 1; ls; done\npython x a.b=1", ["a.b=1"]),
        ("for ((i=1; i<=9; i++)); do [ $i -eq 3 ] && break; python x a.b=$i; done", ["a.b=1", "a.b=2"]),
        ("for i in 1 2 3; do if [ $i = 2 ]; then continue; fi; python x a.b=$i; done", ["a.b=1", "a.b=3"]),
        ("for ((i=0; i<120; i++)); do nc -z h && break; [ $i -eq 119 ] && exit 1; done\npython x a.b=1", ["a.b=1"]),
    ],
)
def test_arrays_by_names_and_loops_that_count_are_followed(script: str, overrides: list[str]) -> None:
    found = [" ".join(find_command(script, training=i + 1).overrides) for i in range(len(overrides))]
    assert found == overrides


@pytest.mark.slow
def test_variables_of_a_script_are_given_after_the_file(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(
        f"M=${{M:-q}}\nL=3\n{RUN} actor_rollout_ref.rollout.n=$N trainer.nnodes=$((N * L)) trainer.logger=$M"
    )
    found = imported_from(read(path, ["N=2", "L=5", "M=wandb", "trainer.total_epochs=7"]), source=path)
    assert found.tree["num_return_sequences_in_group"] == 2 and found.tree["num_nodes"] == 6
    assert found.tree["track_with"] == ["wandb"] and found.tree["num_train_epochs"] == 7
    path.write_text(f"case $1 in a) N=1;; b) N=2;; esac\n{RUN} actor_rollout_ref.rollout.n=$N trainer.nnodes=$2")
    found = imported_from(read(path, ["1=b", "2=4"]), source=path)
    assert found.tree["num_return_sequences_in_group"] == 2 and found.tree["num_nodes"] == 4
    assert entry(imported_from(read(path)), "trainer.nnodes")[1].startswith("${2} is left open. Give 2=... or trainer.")
    yaml = tmp_path / "mine.yaml"
    yaml.write_text("algorithm: {adv_estimator: grpo}\nactor_rollout_ref: {rollout: {n: '${oc.env:N}'}}\n")
    assert imported_from(read(yaml, ["N=2"])).tree["num_return_sequences_in_group"] == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "line, value",
    [
        ("N=$(awk -F',' '{print NF}' <<< \"$G\")", "4"),
        ("IFS=',' read -ra A <<< \"$G\"\nN=${#A[@]}-${A[1]}", "4-5"),
        ("IFS=, read -r a b <<< $G\nN=$a:$b", "3:5,7,9"),
        ("mapfile -t A <<< $'x\\ny'\nN=${A[1]}", "y"),
        ("N=1\nread -p 'which? ' N", "${oc.env:N}"),
        ("IFS=','\nset -- $G\nN=$#", "4"),
        ("OLD=$IFS; IFS=,; A=($G); IFS=$OLD; B=(1 2); N=${#A[@]}${#B[@]}", "42"),
        ("N=$(echo $G | tr ',' '\\n' | grep -c .)", "4"),
        ("N=$(($(echo $G | tr -cd ',' | wc -c) + 1))", "4"),
        ("N=$(echo \"$G\" | sed 's/[^,]//g' | wc -c)", "4"),
        ("N=$(python3 -c \"print(len('$G'.split(',')))\")", "4"),
        ("N=$(python -c 'print(4 * 8 // 3)')", "10"),
        ("N=$(python -c 'import x; print(4)')", "$(python -c import x; print(4))"),
        ("N=$(awk 'BEGIN {print 3*4}')", "12"),
        ("N=$(awk 'BEGIN {print 3/4}')", "0.75"),
        ("N=$(printf '%s_%02d' a 7)", "a_07"),
        ("N=$(printf '%.1f' 7)", "7.0"),
        ("N=$(seq -s, 0 3)", "0,1,2,3"),
        ("N=$(bc <<< '2^3 * 2')", "16"),
        ("N=0; for i in $(seq 2 2 6); do N=$((N + i)); done", "12"),
        ("N=1; while [ $N -lt 20 ]; do N=$((N * 2)); done", "32"),
        ("N=1; until [ $N -ge 20 ]; do N=$((N * 3)); done", "27"),
        ("N=1; while :; do N=2; break; done", "2"),
        ("N=7; while [[ $# -gt 0 ]]; do case $1 in --n) N=$2; shift 2;; esac; done", "7"),
    ],
)
def test_what_programs_and_loops_make_of_texts_is_read(line: str, value: str) -> None:
    assert find_command(f'G=3,5,7,9\n{line}\npython x "a.b=$N"').overrides == (f"a.b={value}",)


OWN = """N=${N:-4}
GPUS=8
BS=$((${M:-1} * 16))
if [ -z "$MODE" ]; then MODE=a; fi
declare -A LR
LR[a]=1e-6
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "word, has_say",
    [("N=8", True), ("M=2", True), ("MODE=b", True), ("GPUS=4", False), ("LR=3", False), ("X=1", False)],
)
def test_a_variable_that_a_script_does_not_take_is_told(word: str, has_say: bool, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(f"{OWN}{RUN} x.n=$N x.g=$GPUS x.b=$BS x.m=$MODE x.l=${{LR[$MODE]}}")
    found = imported_from(read(tmp_path / "run.sh", [word]), source=tmp_path / "run.sh")
    name = word.partition("=")[0]
    assert any(change.startswith(f"{name} is given, and changes nothing") for change in found.changes) != has_say


@pytest.mark.slow
def test_a_variable_that_a_configuration_or_a_tracker_reads_has_a_say(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("actor_rollout_ref: {model: {path: '${oc.env:MODEL}'}}")
    (tmp_path / "run.sh").write_text(f"{RUN} --config-path=. --config-name=mine")
    found = imported_from(read(tmp_path / "run.sh", ["MODEL=org/m", "WANDB_MODE=offline"]), source=tmp_path / "run.sh")
    assert entry(found, "actor_rollout_ref.model.path")[1] == "pretrain: 'org/m'"
    assert not any("changes nothing" in change for change in found.changes)


@pytest.mark.slow
@pytest.mark.parametrize("key", ["data.train_files", "actor_rollout_ref.model.path"])
def test_what_a_run_reads_is_asked_for_where_only_the_shell_knows_it(key: str, tmp_path: Path) -> None:
    found = of_script(f'V="$(cat list)"\n{RUN} {key}=${{V%,}}', tmp_path)
    assert found.unresolved == (key,)
