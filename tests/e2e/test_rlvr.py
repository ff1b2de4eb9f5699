"""The demo in a shortened form and its relatives: they learn, engine and trainer agree, a resumed run is the same."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.helpers.runs import Run, comparable
from tests.helpers.trace_format import problems_of

StartRun = Callable[..., Run]


def test_the_demo_learns_and_a_resumed_run_equals_it(sort_data: Path, start_run: StartRun):
    """24 of the demo's 100 steps. Held-out greedy accuracy starts near .04; in the whole demo it was .88 to .95 after
    25 steps at three seeds (examples/tiny-sort/README.md), so .7 leaves room. The second run takes up the first one's
    checkpoint of step 20: the same seed must give the same numbers, bit for bit, in everything but times, which also
    shows that a run is reproducible."""
    steps = ("max_steps=24", "eval_steps=24", "save_steps=20", "profiler_timeline=true", "profiler_memory=true")
    whole = start_run(sort_data, "tiny_sort", *steps, name="whole").finished()
    assert whole.metrics[0]["val/reward_mean"] < 0.15
    assert whole.metrics[24]["val/reward_mean"] > 0.7
    assert (whole.output_dir / "report.html").stat().st_size > 10_000
    assert_engine_and_trainer_agree(whole)
    assert "step 24/24" in whole.text and "validation" in whole.text
    for stage in ("starting Ray", "actor_train: processes are up", "actor_infer: models are loaded", "ready in"):
        assert stage in whole.text, "what a start that takes minutes is waiting for"
    assert_the_account_is_that_of_the_run(whole)
    recorded = sorted(path.name for path in (whole.output_dir / "rollouts").glob("*.txt"))
    training = [f"step_{step:06d}.txt" for step in range(1, 25)]  # the steps of the metrics
    assert recorded == sorted([*training, "step_000000.val.txt", "step_000024.val.txt"])

    checkpoint = whole.output_dir / "checkpoints" / "step_000020"
    assert (checkpoint / "hf_model" / "model.safetensors").exists()
    resumed = start_run(
        sort_data,
        "tiny_sort",
        "max_steps=24",
        "eval_steps=24",
        "save_steps=-1",
        f"resume_from_checkpoint={checkpoint}",
        name="resumed",
    ).finished()
    assert sorted(resumed.metrics) == [21, 22, 23, 24]
    for step in (21, 22, 23, 24):
        assert comparable(resumed.metrics[step]) == comparable(whole.metrics[step]), f"step {step}"


def assert_engine_and_trainer_agree(run: Run, tolerance: float = 1e-4) -> None:
    """Log-probs of the sampled tokens, from the engine and from the trainer: fp32, so they differ by rounding only. A
    weight update that did not arrive, or old keys and values, would show as 1e-3 and more from the second update on."""
    gaps = [row["train_infer/log_prob_diff_max"] for step, row in run.metrics.items() if step]
    assert gaps and max(gaps) < tolerance, gaps


def test_the_vllm_form_runs_on_two_training_ranks(sort_data: Path, start_run: StartRun):
    run = start_run(sort_data, "tiny_sort_vllm", "max_steps=4", "eval_steps=4", "save_steps=-1")
    run.wait_for_step(1)
    run.assert_nothing_open_to_others()
    run.assert_sockets_in_its_directory()
    run.finished()
    assert run.metrics[4]["val/reward_mean"] > run.metrics[0]["val/reward_mean"]
    assert_engine_and_trainer_agree(run)


@pytest.mark.slow
def test_the_sglang_form_runs_on_two_training_ranks(sort_data: Path, start_run: StartRun):
    if find_spec("sglang") is None:
        pytest.skip("sglang is not installed")
    run = start_run(sort_data, "tiny_sort_sglang", "max_steps=4", "eval_steps=4", "save_steps=-1")
    run.wait_for_step(1)
    run.assert_nothing_open_to_others()
    run.finished()
    assert run.metrics[4]["val/reward_mean"] > run.metrics[0]["val/reward_mean"]
    assert_engine_and_trainer_agree(run)


@pytest.mark.slow
def test_ppo_with_reference_on_answers_of_varied_length(varied_sort_dir: Path, start_run: StartRun):
    """Everything that moves rows around, at once: answers of 6 to 15 tokens, two ranks with balanced rows, two updates
    per step with old log-probs of their own, micro batches by tokens, a critic of another layout, a reference for the
    KL in the reward, and groups that are the first 8 of 11 answers. Equal log-probs of engine and trainer, ratios near
    1 and a KL that begins at 0 show that no value reached a wrong row."""
    run = start_run(
        varied_sort_dir,
        "tiny_sort_ppo",
        "max_steps=3",
        "eval_steps=-1",
        "save_steps=-1",
        "response_length=16",
        "num_gpus_per_node=3",
        "actor_train.device_mapping=[0,1]",
        "critic.device_mapping=[0]",
        "actor_infer.device_mapping=[2]",
        "actor_train.training_args.gradient_accumulation_steps=1",
        "actor_train.use_dynamic_batching_in_train=true",
        "actor_train.max_tokens_per_microbatch_in_train=512",
        "add_token_level_kl=true",
        "reference.strategy_args.strategy_name=hf_infer",
        "reference.model_args.dtype=fp32",
        "reference.device_mapping=[2]",
        "group_size_redundancy=3",
        "max_running_requests=352",
        "rewards.sort.reward_retries=1",
        "rewards.sort.dynamic_timeout.enable=true",
        "runner_state_report_interval=0.01",
    ).finished()
    assert_engine_and_trainer_agree(run)
    rows = run.metrics
    assert all(0 < rows[step]["rollout/length_bias"] < 1 for step in (1, 2, 3)), "of 11 answers the longest are cut"
    assert [rows[step]["rollout/failed_fraction"] for step in (1, 2, 3)] == [0, 0, 0]
    assert [rows[step]["rollout/reward_retries_mean"] for step in (1, 2, 3)] == [0, 0, 0]
    assert rows[1]["rollout/reward_timeout_s_mean"] <= 30
    assert re.search(r"; the oldest, group 0, began \d+ s ago", run.text)
    assert rows[1]["rollout/response_length_max"] > rows[1]["rollout/response_length_mean"] + 1
    assert abs(rows[1]["actor/kl_mean"]) < 1e-6
    assert abs(rows[1]["actor/ratio_mean"] - 1) < 0.02
    assert all(0 <= rows[step]["critic/value_loss"] < 1 for step in (1, 2, 3))


def assert_the_account_is_that_of_the_run(run: Run) -> None:
    """What a clock cannot change: fractions are fractions, tokens are counted once by each side, and the trace has
    every step and call on one clock."""
    rows = {step: row for step, row in run.metrics.items() if step}
    for step, row in rows.items():
        shares = [value for name, value in row.items() if name.startswith(("busy/", "goodput/bubble"))]
        assert len(shares) == 4 and all(0 <= share <= 1 for share in shares), (step, row)
        assert row["busy/actor_train_fraction"] > 0 and row["busy/actor_infer_fraction"] > 0
        busy = row["busy/actor_train_fraction"] + row["busy/actor_infer_fraction"]
        assert abs(row["goodput/bubble_fraction"] - (1 - busy / 2)) < 1e-9, "each role has a device of its own"
        assert row["goodput/useful_fraction"] == 1 and row["rollout/recomputed_tokens"] == 0
        assert row["memory/actor_train_host_bytes"] > 50e6
    lines = [json.loads(line) for line in (run.output_dir / "logs" / "metrics.jsonl").read_text().splitlines()]
    assert all(("bound" in line) == bool(line["step"]) for line in lines)
    profiler = run.output_dir / "profiler"
    assert len((profiler / "memory.jsonl").read_text().splitlines()) == 2 * len(rows)
    trace = json.loads((profiler / "trace.json").read_text())
    assert problems_of(trace) == []
    events = trace["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert set(names.values()) == {"driver", "actor_train", "actor_infer", "rewards.sort"}
    spans = [(names[e["pid"]], e["name"], e["ts"], e["ts"] + e["dur"]) for e in events if e["ph"] == "X"]
    steps = [(began, ended) for _, name, began, ended in spans if name == "train_actor"]
    calls = [(began, ended) for role, name, began, ended in spans if (role, name) == ("actor_train", "train")]
    assert len(steps) == len(calls) == len(rows)
    for (began, ended), (first, last) in zip(sorted(steps), sorted(calls), strict=True):
        assert began <= first <= last <= ended, "the driver waits for the call"


@pytest.mark.slow
def test_a_filter_that_keeps_little_or_nothing_skips_updates_and_the_run_resumes_exactly(
    sort_data: Path, start_run: StartRun
):
    """The policy begins at .04, and 8 prompts with 2 of 8 right answers each are few among 16: some steps keep none.
    Two updates of policy and critic are planned per step. The second run takes up the first one's checkpoint of step
    3, schedules of the learning rates included."""
    filtered = (
        "rewards.sort.query_filter_config={type: mean_filter, filter_args: {threshold_down: 0.2}}",
        "rollout_batch_size=16",
        "actor_train.training_args.gradient_accumulation_steps=1",
        "critic.training_args.gradient_accumulation_steps=1",
        "max_steps=6",
        "eval_steps=-1",
    )
    whole = start_run(sort_data, "tiny_sort_ppo", "save_steps=3", *filtered, name="whole").finished()
    rows = [row for step, row in sorted(whole.metrics.items()) if step]
    for row in rows:
        kept, updates = row["rollout/kept_groups"], row["actor/num_updates"]
        assert kept + row["rollout/dropped_groups"] == 16
        assert updates == (2 if kept > 8 else 1 if kept else 0)
        assert ("actor/grad_norm" in row) == ("critic/value_loss" in row) == bool(kept)
        assert kept == 16 or row["rollout/reward_mean"] < row.get("rollout/kept_reward_mean", 1)
    assert {row["actor/num_updates"] for row in rows} >= {0.0, 1.0}, [row["rollout/kept_groups"] for row in rows]
    assert "the filter dropped all 16 groups, so the step makes no update" in whole.text

    checkpoint = f"resume_from_checkpoint={whole.output_dir}/checkpoints/step_000003"
    resumed = start_run(sort_data, "tiny_sort_ppo", "save_steps=-1", *filtered, checkpoint, name="resumed").finished()
    for step in (4, 5, 6):
        assert comparable(resumed.metrics[step]) == comparable(whole.metrics[step]), f"step {step}"
