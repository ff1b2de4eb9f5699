"""verl scores a row by its data_source; an import writes the rewards of the sources that its files have."""

from pathlib import Path
from typing import Any

import pytest

from roll.importers.command import imported_from
from roll.importers.convert import Imported, read, source_keys
from roll.importers.script import find_command
from roll.importers.verl.files import Composed
from roll.importers.verl.reward_sources import DOMAINS, domain_of
from roll.rewards.base import RewardInput
from roll.rewards.penalties import Overlong
from tests.helpers.cases import cases
from tests.unit.importers.test_import import entry
from tests.unit.importers.test_verl_meaning import GRPO, at

THEIRS = {
    "reward": "verl_function",
    "reward_args": {"path": "verl.utils.reward_score", "name": "default_compute_score"},
}
LEARN = ("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4", "data.train_batch_size=64", "trainer.logger=console")


def of(files: str, *words: str) -> Imported:
    return imported_from(read(None, [*GRPO, *LEARN, f"data.train_files={files}", *words]), "verl")


@cases("files, reward")
def test_one_kind_of_source_is_one_domain(files: str, reward: dict[str, Any]) -> None:
    found = of(files)
    assert found.tree["rewards"] == {"verl": reward} and "tag" not in at(found, "actor_train.data_args")
    assert found.is_as_meant


def test_sources_that_nothing_tells_are_left_to_verl_itself() -> None:
    """Its own function refuses what it does not know, where a reward of another kind would train on wrong rewards."""
    found = of("/d/train.parquet", "data.reward_fn_key=kind")
    assert found.tree["rewards"]["verl"]["reward_args"] == {**THEIRS["reward_args"], "data_source_key": "kind"}
    assert found.is_as_meant and "rewards.verl.reward: math_rule needs none" in entry(found, "data.reward_fn_key")[1]


def test_each_file_tells_its_own_source() -> None:
    """Rows of plain maths stay what they are beside a validation on AIME."""
    found = of("/d/math/train.parquet", "data.val_files=/d/aime-2024.parquet")
    assert sorted(found.tree["rewards"]) == ["dapo", "maths"]


@pytest.mark.parametrize("place", ["~nosuchuser0", "x" * 5000])
def test_a_name_that_no_file_can_have_has_no_rows(place: str, tmp_path: Path) -> None:
    assert of(f"{place}/gsm8k.parquet").tree["rewards"] == {"verl": {"reward": "math_rule"}}
    words = [*GRPO, *LEARN, "data.train_files=/d", "actor_rollout_ref.rollout.multi_turn.enable=true"]
    words.append(f"actor_rollout_ref.rollout.multi_turn.tool_config_path={place}/tools.yaml")
    assert not imported_from(read(None, words), "verl", tmp_path / "run.sh").is_as_meant


def test_several_kinds_are_a_domain_each_by_the_column() -> None:
    found = of("[/d/gsm8k/train.parquet,/d/dapo-math-17k.parquet]", "data.val_files=/d/aime-2024.parquet")
    rewards = found.tree["rewards"]
    assert sorted(rewards) == ["dapo", "maths"]
    assert "openai/gsm8k" in rewards["maths"]["tag_included"] and "math_dapo" in rewards["dapo"]["tag_included"]
    assert rewards["dapo"]["reward_args"] == {"wrong": -1.0} and "reward_args" not in rewards["maths"]
    assert [at(found, f"{name}.data_args.tag") for name in ("actor_train", "validation")] == ["data_source"] * 2
    assert entry(found, "data.train_files")[0] == "mapped" and at(found, "rewards.verl") is None
    assert any("A wrong answer is -1, as there" in note for note in found.notes), "no key of the source says it"


def test_a_name_of_several_kinds_is_a_domain_each() -> None:
    found = of("/d/train_kodcode_codeforce5k_dapo17k.parquet")
    assert {name: keys["reward"] for name, keys in found.tree["rewards"].items()} == {
        "dapo": "math_rule",
        "code": "code_sandbox",
    }


def test_files_of_this_machine_say_their_sources_themselves(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="files of rows are parquet")
    import pyarrow

    rows = {"source": ["openai/gsm8k", "taco", "taco", "aime2026"], "prompt": ["a", "b", "c", "d"]}
    parquet.write_table(pyarrow.table(rows), tmp_path / "gsm8k.parquet")
    found = of(f"{tmp_path}/gsm8k.parquet", "data.reward_fn_key=source")
    tags = {name: keys["tag_included"] for name, keys in found.tree["rewards"].items()}
    assert tags == {"dapo": ["aime2026"], "maths": ["openai/gsm8k"], "code": ["taco"]}
    assert at(found, "actor_train.data_args.tag") == "source"
    assert entry(found, "data.reward_fn_key")[0] == "approximated"


def test_penalties_and_filters_are_those_of_every_domain(tmp_path: Path) -> None:
    buffer = "reward_model.overlong_buffer"
    words = (f"{buffer}.enable=true", f"{buffer}.len=128", "algorithm.filter_groups.enable=true")
    unweighted = of("/d/gsm8k.parquet", *words).tree["rewards"]["verl"]
    assert "reward_manager_config" not in unweighted, "penalty_factor is 0 there without a key"
    words = (*words, f"{buffer}.penalty_factor=1.0")
    rewards = of("[/d/gsm8k.parquet,/d/taco.parquet]", *words).tree["rewards"]
    assert sorted(rewards) == ["code", "maths"]
    for keys in rewards.values():
        assert keys["reward_manager_config"][0]["reward"] == "overlong"
        assert keys["query_filter_config"]["type"] == "std_filter"


@pytest.mark.parametrize("most", [1024, 2048, 4096, 6000])
def test_a_penalty_for_length_is_that_of_verl_wherever_its_buffer_ends(most: int) -> None:
    kwargs, longest, length, factor = "reward_model.reward_kwargs", 4096, 512, 0.5
    buffer = f"{kwargs}.overlong_buffer_cfg"
    words = (f"{buffer}.enable=true", f"{buffer}.len={length}", f"{buffer}.penalty_factor={factor}")
    words = (*words, "reward_model.reward_manager=dapo")
    found = of("/d/gsm8k.parquet", *words, f"{kwargs}.max_resp_len={most}", f"data.max_response_length={longest}")
    assert entry(found, f"{kwargs}.max_resp_len")[0] == "approximated"  # as all keys of this reward
    (part,) = at(found, "rewards.verl.reward_manager_config")
    penalty = Overlong(**part["reward_args"])
    for tokens in (1, most - length, most - length // 2, most, longest):
        if 0 < tokens <= longest:
            theirs = min(-(tokens - (most - length)) / length * factor, 0)
            ours = part["weight"] * penalty(RewardInput("", "", num_response_tokens=tokens))
            assert ours == pytest.approx(theirs, abs=1e-12)
    assert of("/d/gsm8k.parquet", f"{kwargs}.max_resp_len=2048").is_as_meant, "no penalty is on"
    stops = of("/d/gsm8k.parquet", *words, f"{kwargs}.max_resp_len=500", f"data.max_response_length={longest}")
    assert entry(stops, f"{buffer}.len")[0] == "changes the run"
    assert stops.tree["rewards"]["verl"] == {"reward": "math_rule"}


def test_no_source_is_of_two_domains() -> None:
    for name, domain in DOMAINS.items():
        assert {domain_of(source) for source in domain.sources} == {name}


@cases("files")
def test_a_file_of_the_training_that_tells_nothing_is_left_to_verl(files: str) -> None:
    assert of(files, "data.val_files=/d/aime-2024.parquet").tree["rewards"] == {"verl": THEIRS}


@pytest.mark.parametrize("files", ["/d/math/train.parquet", "/d/MATH-lighteval.parquet", "/d/math500/t.parquet"])
def test_sets_of_maths_are_told_by_their_names(files: str) -> None:
    assert of(files).tree["rewards"] == {"verl": {"reward": "math_rule"}}


@pytest.mark.parametrize("files", ["/d/dapo-math-17k.parquet", "/d/codecontests.parquet", "/d/mine.parquet"])
def test_the_recipe_of_entropy_grades_every_row_as_maths(files: str) -> None:
    """verl's recipe/entropy/reward_score: one grader, 1 or 0, whatever data_source says. main_ppo pays -1 for a wrong
    answer of DAPO's, and runs the tests of a program."""
    words = " ".join([*GRPO, f"data.train_files={files}", f"data.val_files={files}"])
    of_recipe = source_keys(Composed(), (), find_command(f"python3 -m recipe.entropy.main_entropy {words}"))
    found = imported_from(of_recipe, "verl")
    assert found.tree["rewards"] == {"verl": {"reward": "math_rule"}}
    assert any("grades every row as maths" in note for note in found.notes)
    of_main = source_keys(Composed(), (), find_command(f"python3 -m verl.trainer.main_ppo {words}"))
    assert imported_from(of_main, "verl").tree["rewards"] != found.tree["rewards"]
    own = f"{words} custom_reward_function.path=mine.py"
    of_own = source_keys(Composed(), (), find_command(f"python3 -m recipe.entropy.main_entropy {own}"))
    assert imported_from(of_own, "verl").tree["rewards"]["verl"]["reward"] == "verl_function"
