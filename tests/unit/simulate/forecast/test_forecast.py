"""The forecast: seconds by FLOPs and bytes, lengths, the bar and what it rests on, and lines of the plan."""

import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from roll.configs.memory.flops import gpu_of, training_flops
from roll.run.records.scorecard import Forecast, plain, scorecard_of
from roll.run.start.memory_report import gather_facts
from roll.run.tracking.local import write_metrics
from roll.simulate.forecast import forecast as forecasts
from roll.simulate.forecast.costs import Hardware, Phases
from roll.simulate.forecast.forecast import forecast
from roll.simulate.forecast.lengths import Lengths, lengths_of
from roll.simulate.forecast.machine import Cpus, Gpus
from roll.simulate.setup import LogNormal
from tests.unit.simulate.forecast.plans import CPUS, ON_GPUS, PROBE, SEVEN_B, loaded


@pytest.fixture(autouse=True)
def no_past_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(forecasts, "HISTORY", str(tmp_path / "forecasts.jsonl"))


def phases_of(folder: Path, hardware: Hardware = CPUS, **keys: Any) -> Phases:
    run = loaded(folder, **keys)
    facts = gather_facts(run.config, run.plan, None)[0]
    return Phases(run.config, run.plan, facts, lengths_of(run.config, run.plan), hardware)


def made(folder: Path, hardware: Hardware = CPUS, **keys: Any) -> Forecast:
    run = loaded(folder, **keys)
    found = forecast(run.config, run.plan, hardware=hardware)
    assert isinstance(found, Forecast), found
    return found


def test_cores_interpolate_the_probe_and_share_what_all_workers_take() -> None:
    probe = PROBE | {"flops": {"1": {"fp32": [1e9, 2e9, 4e9, 8e9]}, "2": {"fp32": [1e9, 4e9, 8e9, 16e9]}}}
    probe["layer_flops"] = {"fp32": 4e9}  # half of what products alone reach
    alone, both = Cpus(probe, 1, 2), Cpus(probe, 2, 2)
    seconds = [alone.pass_s("train", 0.45e9, 0, rows, 4) for rows in (1, 8, 64, 512, 4096)]
    assert seconds == pytest.approx([1, 1 / 2, 1 / 4, 1 / 8, 1 / 8])
    assert both.pass_s("train", 0.45e9, 0, 8, 4) == pytest.approx(1 / 4)
    assert replace(both, share=0.5).pass_s("train", 0.45e9, 0, 8, 4) == pytest.approx(1 / 2)


def test_a_decode_step_of_a_gpu_reads_all_weights_once() -> None:
    gpu = gpu_of("H100")
    assert gpu is not None and gpu == gpu_of("NVIDIA H100 80GB HBM3") == gpu_of("h100")
    read = Gpus(gpu).read_s(3350e9)
    assert read == pytest.approx(1 / 0.6) and Gpus(gpu, 2).read_s(3350e9) == pytest.approx(read / 2)


def test_an_update_costs_its_flops_and_what_reads_the_optimizer(tmp_path: Path) -> None:
    phases = phases_of(tmp_path)
    shape = phases.facts["actor_train"].shape
    products, beside = phases.train_s("actor_train")
    rows, tokens = 32, 32 * (16 + 64)
    assert products == pytest.approx(training_flops(shape, tokens, rows * 80 * 80 / 2) / (2e9 * 0.9) * 1.02)
    launches = 3 * 8 * 2 * 180e-6  # passes, micro batches, layers
    assert beside == pytest.approx((launches + 48 * shape.num_elements / 1e9 + 0.1) * 1.02)  # of fsdp2_train


def test_shared_prompts_are_computed_once_and_checkpointing_repeats_a_pass(tmp_path: Path) -> None:
    plain, shared, repeated = (
        phases_of(tmp_path, actor_train=section).train_s("actor_train")[0]
        for section in (
            {},
            {"use_prefix_sharing": "on"},
            {"model_args": {"dtype": "fp32"}},
        )
    )
    assert shared / plain == pytest.approx((64 + 16 / 4) / 80, rel=0.02)
    assert 1.2 < repeated / plain < 1.34


def test_a_step_is_what_the_scheduler_plays_of_these_costs(tmp_path: Path) -> None:
    phases, found = phases_of(tmp_path), made(tmp_path)
    decode = 64 * (phases.decode_s("actor_infer", 32) + phases.context_s("actor_infer") * 32 * (16 + 32))
    assert found.phases["rollout"] == pytest.approx(decode + 8 * phases.prefill_s("actor_infer", 16), rel=0.05)
    assert found.phases["train_actor"] == pytest.approx(sum(phases.train_s("actor_train")))
    assert found.run_s == pytest.approx(10 * found.step_s + 30)


def test_ahead_hides_rollouts_and_a_pass_for_old_log_probs_is_a_phase(tmp_path: Path) -> None:
    apart = {"actor_train": {"system_envs": {"OMP_NUM_THREADS": "1"}}, "num_gpus_per_node": 2, "platform": "cpu"}
    found = made(tmp_path, enable_old_logprobs_recompute=True, **apart)
    assert found.phases["score"] == pytest.approx(found.phases["train_actor"] / 3, rel=0.2)
    ahead = made(tmp_path, async_generation_ratio=1, **apart)
    assert ahead.step_s < made(tmp_path, **apart).step_s * 1.05


def test_lengths_are_assumed_exact_or_those_of_an_earlier_run(tmp_path: Path) -> None:
    run = loaded(tmp_path)
    assert (lengths_of(run.config, run.plan).mean, lengths_of(run.config, run.plan).error) == (64, 0)
    run = loaded(tmp_path, actor_infer={"generating_args": {}}, response_length=1000)
    assumed = lengths_of(run.config, run.plan)
    assert (assumed.mean, assumed.error) == (200, 0.5) and "assumed" in assumed.source
    row = {"rollout/response_length_mean": 50.0, "rollout/response_length_max": 200.0}
    row |= {"rollout/prompt_length_mean": 20.0, "actor/skipped_fraction": 0.25}
    (tmp_path / "out" / "logs").mkdir(parents=True)
    write_metrics(tmp_path / "out" / "logs" / "metrics.jsonl", [(step, row) for step in range(1, 4)])
    before = lengths_of(run.config, run.plan)
    assert (before.mean, before.prompt, before.skipped, before.error) == (50, 20, 0.25, 0.1)
    assert 0.5 < before.spread < 0.8 and "3 steps" in before.source


def test_gpus_give_hours_and_money_and_a_long_run_is_said_last(tmp_path: Path) -> None:
    gpu = gpu_of("H100")
    keys: dict[str, Any] = ON_GPUS | {"gpu_hour_cost": 2.0, "max_steps": 100, "response_length": 2048}
    found = made(tmp_path, Hardware("H100", gpu), model=SEVEN_B, **keys)
    lines = list(found.lines())
    hours = 8 * found.run_s / 3600
    assert found.num_gpus == 8 and f"{plain(hours)} GPU-hours" in lines[0] and "100 steps" in lines[0]
    assert lines[-1] == f"Cost     ~{plain(2 * hours)} (gpu_hour_cost: 2)"
    assert 5 < found.step_s < 300 and list(found.warnings()) == []
    slow = replace(found, phases={"rollout": 7200.0}, steps=1000)
    assert [line.partition(" about ")[0] for line in slow.warnings()] == ["A step takes", "The run takes"]


def test_where_nothing_says_which_machine_there_is_no_forecast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = loaded(tmp_path, **ON_GPUS)
    found = forecast(run.config, run.plan, elsewhere=True)
    assert isinstance(found, str) and "gpu_name" in found
    monkeypatch.setattr(forecasts, "lacks_gpus", lambda config: True)
    assert forecast(run.config, run.plan) == found  # and not the cores of a laptop
    run = loaded(tmp_path, gpu_name="H900", **ON_GPUS)
    assert "H900" in str(forecast(run.config, run.plan))
    run = loaded(tmp_path, gpu_name="H100", **ON_GPUS)
    assert isinstance(forecast(run.config, run.plan), Forecast)
    assert scorecard_of(run.config, run.plan).forecast is None  # a run is measured on what is here


def test_the_memory_of_gpus_is_that_of_their_name_or_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB", "Tesla V100-PCIE-16GB", "Tesla V100-SXM2-32GB")
    assert [gpu.memory for name in names if (gpu := gpu_of(name))] == [40, 80, 16, 32]
    monkeypatch.setattr(forecasts, "lacks_gpus", lambda config: False)
    monkeypatch.setattr(forecasts, "_name_of_gpus", lambda: names[1])
    monkeypatch.setattr(forecasts, "smallest_gpu_bytes", lambda: 20e9)
    run = loaded(tmp_path, **ON_GPUS)
    where = forecasts.hardware_of(run.config, run.plan)
    assert isinstance(where, Hardware) and where.gpu and where.gpu.memory == 20


def test_an_engine_has_the_share_of_the_gpu_that_the_yaml_says(tmp_path: Path) -> None:
    where = Hardware("H100", gpu_of("H100"))
    engine = {"strategy_name": "vllm", "strategy_config": {"gpu_memory_utilization": 0.3}}
    small = ON_GPUS | {"actor_infer": ON_GPUS["actor_infer"] | {"strategy_args": engine}}
    few, usual = (phases_of(tmp_path, where, **keys).kv_tokens("actor_infer") for keys in (small, ON_GPUS))
    assert few and usual and few / usual == pytest.approx(0.3 / 0.6, rel=0.01)


def test_a_role_whose_model_is_not_here_is_named(tmp_path: Path) -> None:
    absent = {"model_args": {"model_name_or_path": "no-such-owner/no-such-model"}}
    found = made(tmp_path, reference=absent, init_kl_coef=0.1, add_token_level_kl=True)
    assert "without reference: no config.json here" in found.source


def test_the_update_of_a_critic_costs_by_its_own_model(tmp_path: Path) -> None:
    critic = {"training_args": {"per_device_train_batch_size": 32, "gradient_accumulation_steps": 1}}
    critic |= {"strategy_args": {"strategy_name": "fsdp2_train"}, "model_args": {"dtype": "fp32"}}
    keys: dict[str, Any] = {"adv_estimator": "gae", "critic": critic}
    phases, found = phases_of(tmp_path, **keys), made(tmp_path, **keys)
    assert found.phases["train_critic"] == pytest.approx(sum(phases.train_s("critic")), rel=0.01)
    assert found.phases["train_critic"] != pytest.approx(found.phases["train_actor"], rel=0.05)


def test_responses_have_their_mean_after_the_cut_at_the_cap() -> None:
    lengths = Lengths(16, 180, 240, 0.9, "", 0.5)
    drawn = LogNormal(lengths.median, 0.72, 0.54, 240)
    played = statistics.fmean(drawn.group(number, 8).lengths.mean() for number in range(500))
    assert played == pytest.approx(180, rel=0.03)


def test_the_bar_is_that_of_the_runs_that_finished_here(tmp_path: Path) -> None:
    first = made(tmp_path)
    assert "a probe" in first.source and 0.3 <= first.error <= 0.4
    others = [{"machine": "2 cores", "ratio": 9}, {"kind": "cores 1e10", "ratio": 9}]  # without a size; a larger model
    rows = others + [{"kind": first.kind, "ratio": ratio} for ratio in (1.1, 0.9, 2.5)]
    (tmp_path / "forecasts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = made(tmp_path)
    assert found.error == pytest.approx(1.5) and "3 runs of such a size on 2 cores" in found.source


def test_a_small_cache_runs_fewer_responses_at_once(tmp_path: Path) -> None:
    gpu = gpu_of("H100")
    assert gpu is not None
    keys: dict[str, Any] = ON_GPUS | {"model": SEVEN_B, "response_length": 4096, "num_return_sequences_in_group": 32}
    small = made(tmp_path, Hardware("small", replace(gpu, memory=40)), **keys)
    assert small.phases["rollout"] > 1.3 * made(tmp_path, Hardware("H100", gpu), **keys).phases["rollout"]
