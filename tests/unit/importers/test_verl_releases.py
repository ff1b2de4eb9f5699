"""Defaults are those of verl's release: every one that is written has the value of the release's own files."""

from pathlib import Path

import pytest

from roll.errors import ConfigError
from roll.importers.command import imported_from
from roll.importers.convert import Imported, read
from roll.importers.rows import RELEASE, same
from roll.importers.verl.releases import PPO, releases
from roll.importers.verl.tables import VERL_RL
from tests.unit.importers.test_verl_meaning import ACTOR, ROLLOUT, at

FEW = (
    "algorithm.adv_estimator=grpo",
    "data.train_files=a.parquet",
    "data.val_files=b.parquet",
    f"{ACTOR}.clip_ratio=0.2",
)


def of(*words: str, version: str | None = None) -> Imported:
    return imported_from(read(None, [*FEW, *words]), "verl", version=version)


@pytest.mark.parametrize("tag", releases(PPO))
def test_defaults_are_those_of_the_release(tag: str) -> None:
    found, keys = of(version=tag), releases(PPO)[tag].keys
    is_older = tag < "v0.4"
    assert found.tree["entropy_loss_coef"] == (0.001 if is_older else 0)
    assert (found.tree["add_token_level_kl"], found.tree["dual_clip_loss"]) == (is_older, not is_older)
    written = 0
    for row in VERL_RL.rows:
        if row.default is RELEASE and row.via is same and row.key in keys and row.targets[0] in found.defaults:
            written += 1
            assert at(found, row.targets[0]) == keys[row.key], row.key
    assert written > 5 and (not found.changes or tag == "v0.1"), "whose rewards are code"


def test_the_newest_release_with_all_keys_is_taken_and_told() -> None:
    found = of("algorithm.use_kl_in_reward=false", f"{ROLLOUT}.val_kwargs.n=1")
    assert found.is_as_meant and found.tree["entropy_loss_coef"] == 0
    assert any("as in verl v0.9.0, which has all given keys, as have v0.4.0 to v0.8.0" in note for note in found.notes)
    gone = of("algorithm.rollout_is=true", "algorithm.rollout_is_threshold=2")
    assert any("as in verl v0.6.0." in note for note in gone.notes), "the one release that has these keys"


def test_releases_that_differ_are_asked_about_with_their_values() -> None:
    (change,) = of("algorithm.kl_ctrl.kl_coef=0.001").changes
    for told in (
        "entropy_loss_coef is 0.0 (v0.4.0 to v0.9.0) or 0.001 (v0.1 to v0.3.0.post1)",
        "add_token_level_kl is false (v0.4.0 to v0.9.0) or true (v0.1 to v0.3.0.post1)",
        "init_kl_coef is 0.2 (v0.4.0 to v0.9.0) or 0.001 (v0.1 to v0.3.0.post1)",
    ):
        assert told in change
    assert of("algorithm.kl_ctrl.kl_coef=0.001", version="v0.3.0.post1").is_as_meant


def test_a_release_that_is_not_known_is_refused_with_those_that_are() -> None:
    with pytest.raises(ConfigError, match=r"--version v9: ppo_trainer is known for v0.1, .*v0.9.0"):
        of(version="v9")


def test_keys_of_several_releases_are_told() -> None:
    found = of("data.return_raw_input_ids=true", "trainer.use_legacy_worker_impl=auto", version="v0.4.1")
    assert any("v0.4.1 has no trainer.use_legacy_worker_impl" in note for note in found.notes)


PROGRAM = """raise SystemExit("this is never run")
@hydra.main(config_path="config", config_name="own", version_base=None)
def main(config): ...
"""


def test_defaults_are_those_of_the_checkout_around_a_script(tmp_path: Path) -> None:
    """A fork's own files count before any release; keys of its own that are off by default ask for nothing."""
    config = tmp_path / "fork" / "config"
    (config / "actor").mkdir(parents=True)
    (config.parent / "main.py").write_text(PROGRAM)
    (config / "own.yaml").write_text(
        "defaults: [{actor@actor_rollout_ref.actor: one}, _self_]\ndata: {train_files: a}\n"
        "algorithm: {adv_estimator: grpo, trick: false, search: true}\n"
        "actor_rollout_ref: {model: {path: m}, rollout: {n: 5, top_p: 0.95}}\n"
    )
    (config / "actor" / "one.yaml").write_text("entropy_coeff: 0.01\noptim: {lr: 2e-6, betas: [0.9, 0.95]}\n")
    script = tmp_path / "run.sh"
    script.write_text("python3 -m fork.main algorithm.trick=false data.train_files=b.parquet algorithm.new=1\n")
    found = imported_from(read(script), "verl", script)
    tree = found.tree
    assert (tree["adv_estimator"], tree["entropy_loss_coef"]) == ("grpo", 0.01)
    assert at(found, "actor_train.training_args.adam_beta2") == 0.95
    assert at(found, "actor_infer.generating_args.top_p") == 0.95
    outcomes = {entry.key: entry.outcome for entry in found.entries}
    assert outcomes["algorithm.trick"] == "asks for nothing" and outcomes["algorithm.new"] == "changes the run"
    assert any(f"as in {config / 'own.yaml'}" in note for note in found.notes)
    assert any("not read: algorithm.search" in note for note in found.notes)


def test_files_that_build_on_verls_own_have_its_defaults(tmp_path: Path) -> None:
    """verl itself may be installed elsewhere, so that its ppo_trainer is not beside them."""
    config = tmp_path / "fork" / "config"
    config.mkdir(parents=True)
    (config.parent / "main.py").write_text(PROGRAM)
    (config / "own.yaml").write_text(
        "hydra: {searchpath: ['pkg://verl.trainer.config']}\ndefaults: [ppo_trainer, _self_]\n"
        "algorithm: {adv_estimator: grpo, use_kl_in_reward: false}\nactor_rollout_ref: {rollout: {n: 5}}\n"
    )
    script = tmp_path / "run.sh"
    script.write_text("python3 -m fork.main data.train_files=b.parquet actor_rollout_ref.model.path=m\n")
    found = imported_from(read(script), "verl", script)
    assert (at(found, "actor_train.training_args.learning_rate"), found.tree["add_token_level_kl"]) == (1e-6, False)
    assert at(found, "actor_infer.generating_args.temperature") == 1.0


def test_a_checkout_counts_before_what_the_importer_knows_of_its_program(tmp_path: Path) -> None:
    config = tmp_path / "recipe" / "prime" / "config"
    config.mkdir(parents=True)
    (config.parent / "main_prime.py").write_text(PROGRAM)
    (config / "own.yaml").write_text(
        "algorithm: {adv_estimator: grpo}\n"
        "actor_rollout_ref: {rollout: {n: 6}, actor: {entropy_coeff: 0.02, ppo_mini_batch_size: 8}}\n"
    )
    script = tmp_path / "run.sh"
    script.write_text("python3 -m recipe.prime.main_prime data.train_files=b.parquet data.train_batch_size=8\n")
    tree = imported_from(read(script), "verl", script).tree
    assert (tree["adv_estimator"], tree["num_return_sequences_in_group"], tree["entropy_loss_coef"]) == (
        "grpo",
        6,
        0.02,
    )
