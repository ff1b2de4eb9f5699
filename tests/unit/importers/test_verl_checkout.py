"""What the code of a checkout around a script says: rewards of its own, keys that it reads, prompts, the KL."""

from pathlib import Path

import pytest

from roll.importers.command import imported_from
from roll.importers.convert import Imported, read
from roll.importers.verl.checkout import _is_own_choice
from tests.helpers.cases import cases
from tests.unit.importers.test_import import entry

WORDS = "algorithm.adv_estimator=grpo data.train_files=/d/x.parquet actor_rollout_ref.model.path=m data.own=1 data.no=1"
MAIN = """
from verl.trainer.ppo.ray_trainer import RayPPOTrainer
def _select_rm_score_fn(data_source):
    if data_source == "openai/gsm8k":
        return gsm8k
    else:
        {}
@hydra.main(config_path="config", config_name="ppo_trainer")
def main(config): ...
"""
RAISES, RETURNS = 'raise NotImplementedError("x")', "return mine"
LOSSES = """
def compute_policy_loss(advantages, clip_ratio_c):
    return -advantages * clip_ratio_c
@register_policy_loss("vanilla")
def compute_policy_loss_vanilla(advantages, clip_ratio_c):
    return advantages {}
"""
SCORES = (
    'def default_compute_score(data_source):\n    if data_source in ["{}"]:\n        return 1\n    raise ValueError\n'
)


def checkout(
    place: Path, script: str, last: str = RAISES, source: str = "openai/gsm8k", own: str = "", losses: str = ""
) -> Imported:
    """A fork below `verl` in a repository; its trainer takes no KL off the rewards."""
    files = {
        "__init__.py": "",
        "trainer/main_ppo.py": MAIN.format(last),
        "trainer/ppo/ray_trainer.py": "x = config.data.own\n# apply_kl_penalty(x)\ny = config.data.prompt_type\n",
        "trainer/ppo/core_algos.py": losses,
        "trainer/config/ppo_trainer.yaml": "algorithm: {gamma: 1.0}\n"
        f"data: {{max_prompt_length: 512, max_response_length: '${{room}}'{own}}}\n",
        "trainer/config/mine.yaml": "defaults: [ppo_trainer, user, _self_]\nalgorithm: {gamma: 0.9}\nroom: 64\n",
        "trainer/config/user.yaml": "custom_reward_function: {path: '${oc.env:HOME}/my.py'}\n",
        "utils/reward_score/__init__.py": SCORES.format(source),
    }
    for name, text in files.items():
        path = place / "verl" / "verl" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (place / ".git").mkdir()
    (place / "run.sh").write_text(script)
    return imported_from(read(place / "run.sh"), "verl", place / "run.sh")


def test_keys_are_judged_by_what_the_code_reads(tmp_path: Path) -> None:
    of_forks = "actor_rollout_ref.rollout.val_temperature"
    found = checkout(tmp_path, f"python3 -m verl.trainer.main_ppo {WORDS} {of_forks}=0.6")
    outcome, note = entry(found, "data.own")
    assert outcome == "changes the run" and note.endswith("See verl/trainer/ppo/ray_trainer.py:1.")
    for key in ("data.no", of_forks):
        assert entry(found, key) == ("asks for nothing", "no file of the checkout names it")
    assert found.tree["add_token_level_kl"] is False, "the call is commented out there"
    (tmp_path / "mine.yaml").write_text("actor_rollout_ref: {model: {path: m}}\ndata: {own: 1}\n")
    of_yaml = imported_from(read(tmp_path / "mine.yaml"), "verl", tmp_path / "mine.yaml")
    assert entry(of_yaml, "data.own") == (outcome, note) and of_yaml.tree["prompt_length"] == 512


MANAGER = """
class NaiveRewardManager:
    def __call__(self, data):
        for i in range(len(data)):
            score = self.compute_score(data_source=data[i].source)
            reward_tensor[i, valid_response_length - 1] = {}
            if data_source not in printed:
                printed[data_source] = 0
            printed[data_source] += 1
"""


@pytest.mark.parametrize(("score", "asks"), [("score", False), ("alpha * score - beta * length", True)])
def test_rewards_that_the_class_around_them_computes_are_asked_for(score: str, asks: bool, tmp_path: Path) -> None:
    at = tmp_path / "verl" / "verl" / "workers" / "reward_manager"
    at.mkdir(parents=True)
    (at / "naive.py").write_text(MANAGER.format(score))
    found = checkout(tmp_path, f"python3 -m verl.trainer.main_ppo {WORDS} custom_reward_function.path=own.py")
    told = [change for change in found.changes if "verl/workers/reward_manager/naive.py:6: alpha * score" in change]
    assert bool(told) is asks
    named = imported_from(
        read(tmp_path / "run.sh", ["custom_reward_function.path=all.py"]), "verl", tmp_path / "run.sh"
    )
    assert not any("class around rewards" in change for change in named.changes)


@pytest.mark.parametrize(("text", "asks"), [("answer.split('Assistant:')", True), ("answer", False)])
def test_a_reward_that_looks_for_a_turn_gets_no_prompt_here(text: str, asks: bool, tmp_path: Path) -> None:
    for name, code in (
        ("workers/reward_manager.py", "x = torch.cat((valid_prompt_ids, valid_response_ids))\n"),
        ("utils/reward_score/own.py", f"{text}\n"),
    ):
        path = tmp_path / "verl" / "verl" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code)
    found = checkout(tmp_path, f"python3 -m verl.trainer.main_ppo {WORDS}", source="mine")
    assert any("look for the assistant's turn" in change for change in found.changes) is asks


def test_a_switch_of_a_fork_that_is_off_asks_for_nothing(tmp_path: Path) -> None:
    words = f"{WORDS} trainer.mine=False trainer.other=False trainer.hidden=False +trainer.my_coef=0.0"
    (tmp_path / "verl/verl/trainer/ppo/.ipynb_checkpoints").mkdir(parents=True)
    (tmp_path / "verl/verl/trainer/ppo/.ipynb_checkpoints/old.py").write_text("x = config.trainer.hidden\n")
    (tmp_path / "verl/verl/trainer/ppo/own.py").write_text(
        "if self.config.trainer.mine:\n    a()\nif config.trainer.get('mine', False):\n    b()\n"
        "if config.trainer.other:\n    c()\nd(config.trainer.other)\n"
    )
    found = checkout(tmp_path, f"python3 -m verl.trainer.main_ppo {words}")
    outcomes = [entry(found, f"trainer.{name}")[0] for name in ("mine", "other", "hidden", "my_coef")]
    assert outcomes == ["asks for nothing", "changes the run", "asks for nothing", "asks for nothing"]


def test_what_a_script_exports_for_a_reward_of_its_own_goes_with_the_run(tmp_path: Path) -> None:
    exports = "export MODE=1 NCCL_DEBUG=INFO OWN=$(hostname) API_KEY=sk-1 PYTHONPATH=/code\n"
    found = checkout(tmp_path, f"{exports}python3 -m verl.trainer.main_ppo {WORDS}", RETURNS, "mine")
    assert found.tree["system_envs"] == {"MODE": "1"} and entry(found, "$MODE")[0] == "mapped"


@cases("product, is_bounded")
def test_a_dual_clip_is_one_that_the_loss_of_the_checkout_has(product: str, is_bounded: bool, tmp_path: Path) -> None:
    own, losses = "}\nactor_rollout_ref: {actor: {clip_ratio: 0.2, clip_ratio_c: 5}", LOSSES.format(product)
    found = checkout(tmp_path, f"python3 -m verl.trainer.main_ppo {WORDS}", own=own, losses=losses)
    assert found.tree["dual_clip_loss"] is is_bounded
    assert any("bounded by actor_rollout_ref.actor.clip_ratio_c" in note for note in found.notes) is not is_bounded
    found = imported_from(
        read(tmp_path / "run.sh", ["actor_rollout_ref.actor.clip_ratio_c=5"]), "verl", tmp_path / "run.sh"
    )
    assert next(each.value for each in found.entries if each.key.endswith("clip_ratio_c")) == 5


def test_a_project_with_a_trainer_beside_verls_has_its_losses(tmp_path: Path) -> None:
    for name in ("__init__.py", "main_ppo.py", "my_ray_trainer.py"):
        (tmp_path / "mine").mkdir(exist_ok=True)
        (tmp_path / "mine" / name).touch()
    (tmp_path / "run.sh").write_text(f"python3 -m mine.main_ppo {WORDS} actor_rollout_ref.actor.clip_ratio_c=5")
    found = imported_from(read(tmp_path / "run.sh"), "verl", tmp_path / "run.sh")
    assert found.tree["dual_clip_ratio_c"] == 5


@cases("source, is_own")
def test_a_reward_for_no_source_or_by_a_table_with_others_is_a_forks_own(
    source: str, is_own: bool, tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text(source)
    assert _is_own_choice(tmp_path / "own.py") is is_own


@cases("last, source, reward, words, asks")
def test_rewards_of_a_fork_are_called_by_path_or_asked_for(
    last: str, source: str, reward: str, words: str, asks: bool, tmp_path: Path
) -> None:
    found = checkout(tmp_path, f"python3 -m verl.trainer.main_ppo {WORDS} {words}", last, source)
    assert any("custom_reward_function.path=FILE" in change for change in found.changes) is asks
    assert reward in found.tree["rewards"]["verl"]["reward_args"]["path"]


def test_prompts_of_a_forks_own_keys_change_the_run(tmp_path: Path) -> None:
    found = checkout(tmp_path, f"python3 -m verl.trainer.main_ppo {WORDS}", own=", prompt_type: qwen")
    assert any("data.prompt_type 'qwen' (verl/trainer/ppo/ray_trainer.py:3)" in change for change in found.changes)


def test_the_file_of_a_config_name_lies_beside_the_program(tmp_path: Path) -> None:
    found = checkout(tmp_path, f"python3 -m verl.trainer.main_ppo --config-name=mine {WORDS}")
    assert all(each.key != "room" for each in found.entries), "a variable of the files"
    assert found.tree["rewards"]["verl"]["reward_args"]["path"] == "${oc.env:HOME}/my.py"
    assert found.tree["gamma"] == 0.9 and not any("not beside the script" in change for change in found.changes)


def test_the_first_node_starts_the_run(tmp_path: Path) -> None:
    script = f"if [ $NODE_RANK == 0 ]; then python3 -m verl.trainer.main_ppo {WORDS}; fi"
    found = checkout(tmp_path, f"{script}\nA=$LORA_RANK$SLURM_ARRAY_TASK_ID")
    assert "As on the first node: NODE_RANK=0." in found.notes, "neither of the others numbers nodes"


def test_variables_of_a_program_are_no_keys(tmp_path: Path) -> None:
    found = checkout(tmp_path, f"env A=1 B=2 python3 -c pass\npython3 -m verl.trainer.main_ppo {WORDS}\n")
    assert found.tree["pretrain"] == "m"


def test_a_release_is_judged_by_the_keys_of_the_command_beside_a_checkout(tmp_path: Path) -> None:
    checkout(tmp_path, f"python3 -m verl.trainer.main_ppo {WORDS} actor_rollout_ref.rollout.mode=async")
    found = imported_from(read(tmp_path / "run.sh"), "verl", tmp_path / "run.sh", version="v0.1")
    assert any(note.startswith("Verl v0.1 has no actor_rollout_ref.rollout.mode") for note in found.notes)
