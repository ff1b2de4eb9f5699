"""The demo with LoRA: no reference beside the policy, merged weights in the engine, adapters in the checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.helpers.runs import Run

StartRun = Callable[..., Run]
KL = ("use_kl_loss=true", "kl_loss_coef=0.001")
# As ROLL's recipes have it: a section with devices, of which nothing is started.
REFERENCE = ("reference.strategy_args.strategy_name=hf_infer", "reference.device_mapping=[1]")


@pytest.mark.slow
def test_a_run_with_a_kl_term_starts_no_reference_and_its_engine_has_the_merged_weights(
    sort_data: Path, start_run: StartRun
) -> None:
    """With the weights of one update before, the engine's log-probs would differ by 1e-2 and more."""
    given = ("max_steps=2", "eval_steps=-1", "save_steps=2", *KL, *REFERENCE)
    run = start_run(sort_data, "tiny_sort_lora", *given).finished()
    assert "actor_train without its adapters: log-probs in batches of" in run.text
    assert "reference is not started: with LoRA" in run.text
    assert "actor_train: processes are up" in run.text and "reference: processes are up" not in run.text
    assert run.metrics[1]["actor/kl_loss"] == 0  # B is 0
    assert run.metrics[2]["actor/kl_loss"] > 1e-6
    assert max(run.metrics[step]["train_infer/log_prob_diff_max"] for step in (1, 2)) < 1e-4
    assert [run.metrics[step]["sync/sent_bytes"] for step in (1, 2)] == [model_bytes(sort_data), layer_bytes(sort_data)]


def model_bytes(sort_data: Path, part: str = "") -> int:
    weights = load_file(sort_data / "model" / "model.safetensors")
    return sum(tensor.nbytes for name, tensor in weights.items() if part in name)


def layer_bytes(sort_data: Path) -> int:
    """Of attention and MLP, which the demo's adapters change: embedding, head and norms stay as they were."""
    return model_bytes(sort_data, "_proj.")


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_engines_in_processes_of_their_own_have_the_merged_weights(
    engine: str, sort_data: Path, start_run: StartRun
) -> None:
    """After the first publish they get only the layers that have adapters."""
    pytest.importorskip(engine, reason=f"{engine} is not installed")
    named = (f"actor_infer.strategy_args.strategy_name={engine}", "max_steps=3", "eval_steps=-1", "save_steps=-1")
    run = start_run(sort_data, "tiny_sort_lora", *named).finished()
    assert max(run.metrics[step]["train_infer/log_prob_diff_max"] for step in (1, 2, 3)) < 1e-4
    sent = [run.metrics[step]["sync/sent_bytes"] for step in (1, 2, 3)]
    assert sent == [model_bytes(sort_data), layer_bytes(sort_data), layer_bytes(sort_data)]


@pytest.mark.slow
def test_vllm_samples_with_adapters_that_were_sent_by_themselves(sort_data: Path, start_run: StartRun) -> None:
    """The model once, and of every update A and B alone."""
    pytest.importorskip("vllm", reason="vllm is not installed")
    named = ("actor_infer.strategy_args.strategy_name=vllm", "max_steps=3", "eval_steps=-1", "save_steps=3")
    run = start_run(
        sort_data, "tiny_sort_lora", *named, "+actor_infer.strategy_args.strategy_config.enable_lora=true"
    ).finished()
    assert max(run.metrics[step]["train_infer/log_prob_diff_max"] for step in (1, 2, 3)) < 1e-4
    adapter = load_file(next(run.output_dir.rglob("adapter/adapter_model.safetensors")))
    alone = sum(tensor.nbytes for tensor in adapter.values())
    assert [run.metrics[step]["sync/sent_bytes"] for step in (1, 2, 3)] == [
        model_bytes(sort_data) + alone,
        alone,
        alone,
    ]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["deepspeed_train", "fsdp2_train"])
def test_the_demo_learns_with_adapters_alone(strategy: str, sort_data: Path, start_run: StartRun) -> None:
    named = (f"actor_train.strategy_args.strategy_name={strategy}", "~actor_train.strategy_args.strategy_config")
    run = start_run(sort_data, "tiny_sort_lora", "eval_steps=50", "save_steps=-1", *named)
    assert run.wait(900) == 0, run.text
    assert run.metrics[0]["val/reward_mean"] < 0.3
    assert run.metrics[100]["val/reward_mean"] > 0.95
