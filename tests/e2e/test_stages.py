"""Stages as a user starts them: fine-tuning and then RL from a model that knows nothing, and on from any stop."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from tests.helpers.runs import START_LIMIT_S, Run, comparable, shared_directory

pytestmark = pytest.mark.timeout(2400)  # every wait for a run has a shorter limit of its own

NAME = "tiny_sort_stages"
TRAINED = ("sft_train", "actor_train")
SHORT = (
    "stages.answers.max_steps=4",
    "stages.rl.max_steps=6",
    "save_steps=2",
    "eval_steps=2",
    "sft_train.training_args.warmup_steps=0",
    "actor_train.training_args.warmup_steps=0",
)


@pytest.fixture(scope="module")
def random_model(tmp_path_factory: pytest.TempPathFactory, sort_task: ModuleType) -> Path:
    """The demo's data, and its model as it is before any training."""
    directory = shared_directory(tmp_path_factory) / "tiny-sort-random"
    sort_task.prepare(directory, sort_task.Settings(steps=0))
    return directory


def metrics(run: Run, stage: str) -> dict[int, dict[str, float]]:
    path = run.output_dir / "logs" / stage / "metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    rows = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
    return {row["step"]: {name: row[name] for name in row.keys() - {"time", "bound"}} for row in rows}


def trained(row: dict[str, float]) -> dict[str, float]:
    """What must be equal of the training; a step in which a signal comes is not validated."""
    return {name: value for name, value in comparable(row).items() if not name.startswith("val/")}


def wait_for_step(run: Run, stage: str, step: int) -> None:
    deadline = time.monotonic() + 2 * START_LIMIT_S
    while step not in metrics(run, stage):
        assert run.process.poll() is None, f"the run ended before step {step} of {stage}:\n{run.text}"
        assert time.monotonic() < deadline, f"step {step} of {stage} did not come:\n{run.text}"
        time.sleep(0.1)


@pytest.mark.slow
def test_a_model_that_knows_nothing_learns_to_sort_in_two_stages(
    random_model: Path, start_run: Callable[..., Run]
) -> None:
    run = start_run(random_model, NAME)
    assert run.wait(4 * START_LIMIT_S) == 0, run.text
    rl = metrics(run, "2-rl")
    first, last = (rl[step]["val/reward_mean"] for step in (0, 150))
    print(f"validation before RL {first:.3f}, after it {last:.3f}")
    assert 0.5 < first < 0.93 and last > 0.95, "both stages have their part in it"
    assert metrics(run, "1-answers")[0]["val/nll_mean"] > 5, "of 289 tokens, all are alike at first: log 289 = 5.67"
    assert run.text.rstrip().endswith("All stages are finished.")
    run.assert_all_gone()


@pytest.mark.slow
def test_a_curriculum_of_lengths_goes_on_with_its_optimizer(
    tmp_path_factory: pytest.TempPathFactory, sort_task: ModuleType, start_run: Callable[..., Run]
) -> None:
    """Answers of five and six digits have no room in the first stage."""
    data = shared_directory(tmp_path_factory) / "tiny-sort-lengths"
    sort_task.prepare(data, sort_task.Settings(min_digits=2, max_digits=6))
    run = start_run(data, "tiny_sort_lengths")
    assert run.wait(3 * START_LIMIT_S) == 0, run.text
    short, long = metrics(run, "1-short"), metrics(run, "2-long")
    assert "actor_train begins with the weights and the optimizer in " in run.text
    assert max(row["rollout/response_length_max"] for step, row in short.items() if step) <= 7
    print(
        "validation:", *(f"{row[step]['val/reward_mean']:.3f}" for row, step in ((short, 0), (short, 50), (long, 100)))
    )
    assert short[50]["val/reward_mean"] == pytest.approx(long[0]["val/reward_mean"], abs=0.01), "the same model"
    assert short[0]["val/reward_mean"] < short[50]["val/reward_mean"] < long[100]["val/reward_mean"]
    assert long[100]["val/reward_mean"] > 0.8


@pytest.mark.slow
def test_stages_that_are_killed_and_stopped_give_the_numbers_of_unbroken_ones(
    random_model: Path, start_run: Callable[..., Run]
) -> None:
    """Killed in the first stage, Ctrl-C in the second, SIGTERM in the second; each time the same command goes on."""
    whole = start_run(random_model, NAME, *SHORT, name="whole")
    assert whole.wait(2 * START_LIMIT_S) == 0, whole.text
    stops = (
        ("1-answers", 3, signal.SIGKILL, -signal.SIGKILL),
        ("2-rl", 1, signal.SIGINT, 130),
        ("2-rl", 4, signal.SIGTERM, 143),
    )
    for stage, step, stop, code in stops:
        broken = start_run(random_model, NAME, *SHORT, name="broken")
        wait_for_step(broken, stage, step)
        broken.process.send_signal(stop)
        assert broken.wait() == code, broken.text
        broken.assert_all_gone()
    broken = start_run(random_model, NAME, *SHORT, name="broken")
    assert broken.wait(2 * START_LIMIT_S) == 0, broken.text
    assert "finished, 4 steps" in broken.text
    for stage in ("1-answers", "2-rl"):
        there, expected = metrics(broken, stage), metrics(whole, stage)
        assert there.keys() == expected.keys()
        for step, row in expected.items():
            assert trained(there[step]) == trained(row), (stage, step)
    again = start_run(random_model, NAME, *SHORT, name="broken")
    assert again.wait() == 0 and "starting Ray" not in again.text


VLLM = "{max_model_len: 64, gpu_memory_utilization: 0.3, enforce_eager: true}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trainer", "more"),
    [
        ("megatron_train", (f"actor_infer.strategy_args={{strategy_name: vllm, strategy_config: {VLLM}}}",)),
        ("fsdp2_train", ()),
    ],
)
def test_stages_on_other_trainers_hand_over_weights_and_moments(
    trainer: str, more: tuple[str, ...], random_model: Path, start_run: Callable[..., Run]
) -> None:
    trained = [f"{role}.strategy_args={{strategy_name: {trainer}, strategy_config: {{}}}}" for role in TRAINED]
    checkpointed = [f"{role}.model_args.disable_gradient_checkpointing=false" for role in TRAINED]
    run = start_run(random_model, NAME, *SHORT, "stages.rl.optimizer=kept", *trained, *checkpointed, *more)
    assert run.wait(2 * START_LIMIT_S) == 0, run.text
    assert "actor_train begins with the weights and the optimizer in " in run.text
    answers, rl = metrics(run, "1-answers"), metrics(run, "2-rl")
    assert answers[4]["val/nll_mean"] < answers[0]["val/nll_mean"]
    gaps = [row["train_infer/log_prob_diff_max"] for step, row in rl.items() if step]
    assert len(gaps) == 6 and max(gaps) < 1e-4, "of the first step, too: the engine begins with what answers left"
    assert rl[1]["actor/learning_rate"] > rl[6]["actor/learning_rate"] > 0, "a schedule of its own"
    run.assert_all_gone()


@pytest.mark.slow
def test_a_policy_learns_from_a_reward_model_that_learnt_from_preferences(
    sort_data: Path, start_run: Callable[..., Run]
) -> None:
    """No rule sees an answer; how many are right is measured afterwards."""
    run = start_run(sort_data, "tiny_sort_rlhf")
    assert run.wait(3 * START_LIMIT_S) == 0, run.text
    pairs, rl = metrics(run, "1-preferences"), metrics(run, "2-rl")
    assert pairs[0]["val/accuracy"] == 0.5 and pairs[300]["val/accuracy"] > 0.97
    assert "critic, rewards.sort: the model that preferences leaves" in run.text
    assert rl[100]["val/reward_mean"] > rl[0]["val/reward_mean"] + 3

    checkpoint = run.output_dir / "2-rl" / "checkpoints" / "step_000100"
    bench = start_run(sort_data, "tiny_sort", "mode=bench", f"resume_from_checkpoint={checkpoint}", name="bench")
    bench.output_dir = bench.output_dir / "bench"
    bench.finished()
    (measured,) = bench.metrics.values()
    print(f"right answers: {measured['val/reward_mean']:.3f}")
    assert measured["val/reward_mean"] > 0.7
