"""`roll doctor CONFIG.yaml`: what stands between a YAML and a run on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.numpy import load_file

from roll.commands.table import main
from roll.doctor.runs import damage, disk_findings, weight_findings
from roll.run.spec import pipeline_of
from roll.run.start.load import load
from roll.run.start.memory_report import checkpoint_bytes


@pytest.fixture
def run_yaml(tmp_path: Path, tiny_model_dir: Path) -> Path:
    """A run that can start: a tiny model, four rows and a reward that looks for them."""
    rows = [{"prompt": f"{n}{n + 1}", "ground_truth": f"{n}", "tag": "digits"} for n in range(4)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    role = {"model_args": {"dtype": "fp32"}, "strategy_args": {"strategy_name": "hf_infer"}, "device_mapping": [1]}
    tree: dict[str, Any] = {
        "pretrain": str(tiny_model_dir),
        "output_dir": str(tmp_path / "out"),
        "num_gpus_per_node": 2,
        "max_steps": 4,
        "save_steps": 2,
        "eval_steps": -1,
        "track_with": "jsonl",
        "rollout_batch_size": 4,
        "num_return_sequences_in_group": 2,
        "model_update_buffer_size_mb": 16,
        "prompt_length": 32,
        "response_length": 8,
        "adv_estimator": "grpo",
        "actor_train": {
            "model_args": {"dtype": "fp32"},
            "training_args": {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2},
            "data_args": {"file_name": str(tmp_path / "rows.jsonl"), "template": "plain"},
            "strategy_args": {"strategy_name": "fsdp2_train"},
            "device_mapping": [0],
        },
        "actor_infer": role,
        "rewards": {"digits": {"reward": "exact_match"}},
    }
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(tree))
    return tmp_path / "mine.yaml"


def shown_of(run_yaml: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """The exit code is not that of this machine: only what is said of the YAML is looked at."""
    code = main(["doctor", str(run_yaml), *words])
    shown = capsys.readouterr().out
    return code, shown[shown.index("Ray") :]


def test_a_run_that_can_start_is_followed_up_to_its_reward(run_yaml: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, shown = shown_of(run_yaml, capsys)
    assert "  problem" not in shown, shown
    for said in (
        "a run of the kind rlvr on 1 node of 2 devices",
        "of weights in 1 files, all complete",
        "a checkpoint takes about 0.0",
        "the run can start",
        "actor_train.data_args: the first 4 prompts have 2 to ",
        "> '01'",
        "rewards.digits: an empty answer to the first row gets 0",
        "rewards.digits: '0' to the first row gets 1",
    ):
        assert said in shown, shown


def test_what_is_wrong_with_a_yaml_is_a_problem(run_yaml: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, shown = shown_of(run_yaml, capsys, "rolout_batch_size=3")
    assert code == 1
    assert "  problem  rolout_batch_size" in shown and "rollout_batch_size" in shown
    code, shown = shown_of(run_yaml, capsys, "actor_train.data_args.file_name=none.jsonl")
    assert code == 1
    assert "none.jsonl" in shown and "the run can start" not in shown


def test_nodes_without_a_cluster_are_a_problem(
    run_yaml: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    _, shown = shown_of(run_yaml, capsys, "num_nodes=2")
    assert "  problem  2 nodes, but no Ray cluster is configured" in shown and "RAY_ADDRESS: Start Ray" in shown


def test_a_yaml_that_is_not_there_is_bad_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(tmp_path / "none.yaml")]) == 2
    assert "does not exist" in capsys.readouterr().err


def test_a_reward_that_fails_is_a_problem(run_yaml: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = "def mine(sample):\n    return 1 / len(sample.response_text)\n"
    (run_yaml.parent / "failing_reward_of_doctor.py").write_text(code)
    _, shown = shown_of(run_yaml, capsys, "rewards.digits.reward=failing_reward_of_doctor:mine")
    assert "  problem  rewards.digits: an empty answer to the first row fails: ZeroDivisionError" in shown


def test_the_size_of_a_checkpoint_is_that_of_weights_and_states(run_yaml: Path, tiny_model_dir: Path) -> None:
    """Counted from the file itself: four bytes of weights in fp32, and twelve of states, for each number."""
    (file,) = tiny_model_dir.glob("*.safetensors")
    numbers = sum(tensor.size for tensor in load_file(file).values())
    assert checkpoint_bytes(load(pipeline_of("rlvr"), run_yaml.parent, "mine").config) == 16 * numbers


@pytest.mark.parametrize(
    ("free", "level", "said"),
    [(0.5e9, "problem", "no checkpoint fits"), (2.5e9, "problem", "4.0 GB are needed"), (4e9, "ok", "3 are kept")],
)
def test_disks_are_held_against_all_checkpoints_that_are_kept(free: float, level: str, said: str) -> None:
    (found,) = disk_findings(1e9, 3, free, Path("/out"))
    assert found.level == level and said in found.what
    assert (found.fix.startswith("Keep 1 or fewer")) == (free == 2.5e9)


def test_damaged_and_missing_weights_are_told(tiny_model_dir: Path, tmp_path: Path) -> None:
    (whole,) = tiny_model_dir.glob("*.safetensors")
    data = whole.read_bytes()
    assert damage(whole) == ""
    short = tmp_path / "model-00001.safetensors"
    short.write_bytes(data[:-10])
    assert damage(short).startswith(f"{short} is damaged: ")
    (tmp_path / "no.safetensors").write_bytes(b"<html>")
    assert damage(tmp_path / "no.safetensors").startswith(f"{tmp_path}/no.safetensors is damaged: ")
    index = {"weight_map": {"a": short.name, "b": "model-00002.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    found = list(weight_findings(tmp_path, "pretrain"))
    assert [finding.level for finding in found] == ["problem"] * 3
    assert "model-00002.safetensors is missing, which model.safetensors.index.json names" in found[1].what
    (empty,) = weight_findings(tmp_path / "none", "pretrain")
    assert empty.level == "problem" and empty.what.endswith("holds no weights")
