"""Trinity-RFT's on_policy_distill becomes `is_pure_opd` with a teacher."""

from __future__ import annotations

from pathlib import Path

import pytest

from roll.commands.run import main
from roll.commands.table import main as roll
from roll.importers.command import imported_from
from roll.importers.convert import read
from tests.helpers.cases import cases

SOURCE = Path(__file__).parents[2] / "importers" / "trinity_dapo.yaml"
OPD = (
    "algorithm.algorithm_type=on_policy_distill",
    "algorithm.advantage_fn_args.kl_coef=0.7",
    "explorer.auxiliary_models=[{model_path: org/teacher, engine_num: 1, tensor_parallel_size: 2, seed: 4}]",
    "explorer.rollout_model.engine_num=2",
    "explorer.rollout_model.tensor_parallel_size=1",
    "cluster.node_num=1",
    "cluster.gpu_per_node=8",
)


def test_the_first_auxiliary_model_is_the_teacher_on_the_last_devices() -> None:
    found = imported_from(read(SOURCE, OPD), source=SOURCE)
    assert found.tree["is_pure_opd"] is True and found.tree["opd_kl_coef"] == 0.7 and not found.tree["use_kl_loss"]
    assert found.tree["teacher"] == {
        "model_args": {"model_name_or_path": "org/teacher"},
        "strategy_args": {"strategy_name": "fsdp2_infer"},
        "device_mapping": "list(range(6, 8))",
    }
    places = [found.tree[role]["device_mapping"] for role in ("actor_train", "actor_infer")]
    assert places == ["list(range(0, 4))", "list(range(4, 6))"]
    outcomes = {entry.key: entry.outcome for entry in found.entries}
    assert outcomes["explorer.auxiliary_models.0.model_path"] == "approximated", "it scores, with no engine"
    assert outcomes["explorer.auxiliary_models.0.seed"] == "asks for nothing"


@pytest.mark.parametrize("words", [OPD[0] + ",advantage_fn=jsd", "algorithm.algorithm_type=jsd"])
def test_jsd_compares_teacher_and_policy_with_their_mixture(words: str) -> None:
    first, _, function = words.partition(",")
    more = [f"algorithm.{function}"] if function else []
    found = imported_from(read(SOURCE, (first, *more, *OPD[1:], "algorithm.advantage_fn_args.lambda_coef=0.3")))
    keys = ("is_pure_opd", "opd_advantage", "opd_js_weight", "opd_kl_coef", "num_return_sequences_in_group")
    assert [found.tree[key] for key in keys] == [True, "js_divergence", 0.3, 0.7, 16]
    (change,) = found.changes
    assert f"algorithm.{function or 'algorithm_type'}".split("=")[0] in change and "its updates raise it" in change
    assert "opd_advantage" not in imported_from(read(SOURCE, OPD)).tree
    nothing = imported_from(read(SOURCE, (first, *more, *OPD[1:], "algorithm.advantage_fn_args.lambda_coef=1.0")))
    assert any("nothing is learned there" in change for change in nothing.changes)


@cases("name, estimator")
def test_an_advantage_may_be_named_beside_the_algorithm(name: str, estimator: str) -> None:
    words = OPD if name == "on_policy_distill" else ("algorithm.algorithm_type=grpo",)
    found = imported_from(read(SOURCE, (*words, f"algorithm.advantage_fn={name}")))
    assert found.tree["adv_estimator"] == estimator and not found.changes


def test_a_teacher_for_which_no_device_is_left_takes_turns() -> None:
    large = "explorer.auxiliary_models=[{model_path: org/teacher, engine_num: 3, tensor_parallel_size: 4}]"
    found = imported_from(read(SOURCE, (*OPD[:2], large, *OPD[3:])), source=SOURCE)
    roles = ("teacher", "actor_train", "actor_infer")
    assert {found.tree[role]["device_mapping"] for role in roles} == {"list(range(0, 8))"}


def test_a_second_teacher_is_not_the_run_that_was_meant() -> None:
    both = "explorer.auxiliary_models=[{model_path: org/a, engine_num: 1}, {model_path: org/b, engine_num: 1}]"
    found = imported_from(read(SOURCE, (*OPD[:2], both, *OPD[3:])), source=SOURCE)
    assert found.tree["teacher"]["model_args"]["model_name_or_path"] == "org/a"
    keys = [change.partition(": the first")[0] for change in found.changes]
    assert keys == [f"explorer.auxiliary_models.1.{name}" for name in ("model_path", "engine_num")]


def test_without_a_teacher_it_says_what_to_set() -> None:
    found = imported_from(read(SOURCE, (*OPD[:2], "explorer.auxiliary_models.0.engine_num=1")), source=SOURCE)
    (note,) = [one.note for one in found.entries if one.key == "explorer.auxiliary_models.0.engine_num"]
    assert "set teacher.model_args.model_name_or_path" in note
    assert not imported_from(read(SOURCE, OPD[:1]), source=SOURCE).is_as_meant, "nothing says what is distilled"


def test_m2po_is_a_loss_with_ratios_to_what_sampled() -> None:
    words = ("algorithm.algorithm_type=grpo", "algorithm.policy_loss_fn=m2po")
    found = imported_from(read(SOURCE, (*words, "algorithm.policy_loss_fn_args.m2_threshold=0.02")), source=SOURCE)
    keys = ("pg_variant", "m2po_threshold", "force_disable_old_logprobs_recompute")
    assert [found.tree[key] for key in keys] == ["m2po", 0.02, True] and not found.changes
    assert "m2po_threshold" not in imported_from(read(SOURCE, words), source=SOURCE).tree, "the default of both is .04"


def test_a_ratio_without_a_clip_is_one_that_none_meets() -> None:
    found = imported_from(read(SOURCE, (*OPD, "algorithm.policy_loss_fn=importance_sampling")), source=SOURCE)
    assert (found.tree["pg_variant"], found.tree["dual_clip_loss"]) == ("ppo", False)
    assert (found.tree["pg_clip_low"], found.tree["pg_clip_high"]) == (1.0, 1e9)


def test_what_is_imported_passes_a_dry_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert roll(["import", str(SOURCE), *OPD, "--out", "my.yaml"]) == 0
    code = main(
        "rlvr",
        ["--config_path", str(tmp_path), "--config_name", "my", "max_steps=4", "--dry_run", "--all", "--elsewhere"],
    )
    shown = capsys.readouterr()
    assert code == 0, shown.err
    assert "advantage + 0.7 x (log q - log p) of trinity, and no reward" in shown.out
