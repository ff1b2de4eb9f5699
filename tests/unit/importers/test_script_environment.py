"""Variables that a script gives its program, and those that it is given."""

from pathlib import Path
from typing import Any

import pytest

from roll.importers.command import imported_from
from roll.importers.convert import Imported, read
from roll.importers.script import find_command
from tests.helpers.cases import cases
from tests.unit.importers.test_import import entry

RUN = "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo"


def of_script(text: str, place: Path) -> Imported:
    path = place / "run.sh"
    path.write_text(text)
    return imported_from(read(path), source=path)


@pytest.mark.slow
@cases("script, environment")
def test_a_program_gets_what_is_exported_before_it(script: str, environment: dict[str, str]) -> None:
    assert find_command(script).environment == environment


def test_variables_before_a_function_are_its_own_while_it_runs() -> None:
    found = find_command("N=1\nrun() { python x a.b=$N; }\nN=2 run\npython x a.b=$N a.c=1", training=1)
    assert found.overrides == ("a.b=2",)
    assert find_command("N=1\nrun() { :; }\nN=2 run\npython x a.b=$N").overrides == ("a.b=1",)


@pytest.mark.slow
@cases("line, value")
def test_a_word_that_reads_the_environment_gets_what_the_script_exports(line: str, value: str, tmp_path: Path) -> None:
    assert of_script(line.replace("{}", RUN), tmp_path).tree["pretrain"] == value


def test_so_does_a_configuration_beside_the_script(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("defaults: [ppo_trainer]\ntrainer: {nnodes: '${oc.env:NODES}'}\n")
    found = of_script(f"export NODES=2\n{RUN} --config-name=mine data.train_files=x", tmp_path)
    assert found.tree["num_nodes"] == 2 and not found.unresolved


@pytest.mark.slow
@cases("script, key, value")
def test_trackers_get_the_variables_of_a_script(script: str, key: str, value: Any, tmp_path: Path) -> None:
    tracker, _, name = key.partition(".")
    assert of_script(script.replace("{}", RUN), tmp_path).tree["tracker_kwargs"][tracker][name] == value


def test_keys_of_trackers_are_told_and_not_written(tmp_path: Path) -> None:
    found = of_script(f"export WANDB_API_KEY=secret\n{RUN} trainer.logger=wandb", tmp_path)
    assert any("WANDB_API_KEY, which no YAML should hold" in note for note in found.notes)
    assert "secret" not in str(found)


@pytest.mark.slow
def test_what_counts_with_an_open_key_says_so(tmp_path: Path) -> None:
    found = of_script(f"{RUN} trainer.nnodes=$N trainer.n_gpus_per_node=4 {KL}", tmp_path)
    assert found.unresolved == ("trainer.nnodes",)
    assert (
        entry(found, "trainer.nnodes")[1] == "${oc.env:N} is left open. Give N=... or trainer.nnodes=... after the file"
    )
    outcome, note = entry(found, "trainer.n_gpus_per_node")
    assert outcome == "not available" and "as soon as trainer.nnodes is given" in note


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
@cases("script, overrides")
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
@cases("line, value")
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
@cases("word, has_say")
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
