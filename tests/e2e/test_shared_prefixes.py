"""Whole runs whose roles compute what rows have in common once: the steps of runs that do not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.helpers.runs import Run, comparable, run_starter

StartRun = Callable[..., Run]
StartLake = Callable[..., Run]
SHORT = ("max_steps=3", "eval_steps=-1", "save_steps=-1")
REFERENCE = (
    "use_kl_loss=true", "kl_loss_coef=0.01", "reference.strategy_args.strategy_name=fsdp2_infer",
    "reference.model_args.dtype=fp32", "reference.device_mapping=[0,1]",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options", "roles"),
    [
        pytest.param("tiny_sort_fsdp2", REFERENCE, ("actor_train", "reference"), id="fsdp2-reference"),
        pytest.param("tiny_sort_ppo", (), ("actor_train", "critic"), id="deepspeed-critic"),
    ],
)
def test_a_run_takes_the_steps_of_one_that_shares_nothing(
    name: str, options: tuple[str, ...], roles: tuple[str, ...], sort_data: Path, start_run: StartRun
) -> None:
    """Rewards, losses, gradients and KL of the first step, and rewards of those after it: rounding differs by 1e-6,
    and a token that is sampled another way by it would show in a reward of one response in 256."""
    metrics = []
    for way in ("off", "on"):
        shares = [f"+{role}.use_prefix_sharing={way}" for role in roles]
        run = start_run(sort_data, name, *SHORT, *options, *shares, name=way).finished()
        metrics.append(run.metrics)
    apart, shared = metrics
    for step in (1, 2, 3):
        assert shared[step]["goodput/prefix_sharing_factor"] > 1.2, "prompts are longer than responses"
        assert shared[step]["rollout/reward_mean"] == pytest.approx(apart[step]["rollout/reward_mean"], abs=0.02)
    compared = {n for n in comparable(apart[1]) if not n.startswith("system/") and "diff" not in n}
    assert {"actor/grad_norm", "rollout/reward_mean"} < compared
    for metric in sorted(compared):
        assert shared[1][metric] == pytest.approx(apart[1][metric], rel=1e-3, abs=1e-5), metric


EPISODES = (
    "env_manager_cls=step_concat", "agent_template='{history}{current_observation}'", "default_history_length=8",
    "frozen_format_penalty=-0.1", "rollout_batch_size=32", "train_env_manager.num_env_groups=8",
    "train_env_manager.group_size=4", "eval_steps=-1", "save_steps=1",
    "actor_train.training_args.warmup_steps=0", "actor_train.training_args.adam_epsilon=1e-5",
    "actor_train.training_args.lr_scheduler_type=constant",
)  # fmt: skip
THREE = "max_steps=3"
TWO_RANKS = (
    "num_gpus_per_node=3", "actor_train.device_mapping=[0,1]", "actor_infer.device_mapping=[2]",
    "actor_train.strategy_args.strategy_name=fsdp2_train", "~actor_train.strategy_args.strategy_config",
    "actor_train.use_dynamic_batching_in_train=true", "actor_train.max_tokens_per_microbatch_in_train=600",
)  # fmt: skip


@pytest.fixture(scope="module")
def start_lake(lake_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartLake]:
    """start("name", "on", "max_steps=3", ...) -> the Run, when it is over."""
    with run_starter(tmp_path_factory.mktemp("lake")) as start:

        def started(name: str, way: str, *overrides: str) -> Run:
            options = (*EPISODES, f"+actor_train.use_prefix_sharing={way}", *overrides)
            places: dict[str, str] = {"example": "tiny-frozen-lake", "pipeline": "agentic"}
            run = start(lake_data, "tiny_frozen_lake_step", *options, name=name, **places).finished()
            return run

        yield started


@pytest.fixture(scope="module")
def apart(start_lake: StartLake) -> Run:
    """Three steps that share nothing, on one rank of DeepSpeed."""
    run = start_lake("apart", "off", THREE)
    assert "goodput/prefix_sharing_factor" not in run.metrics[1]
    return run


@pytest.mark.slow
@pytest.mark.parametrize("way", ["on", "auto"])
def test_episodes_in_a_row_per_turn_learn_the_same_as_trees(way: str, apart: Run, start_lake: StartLake) -> None:
    """A row is a turn and begins with the maps of the turns before it; episodes of a group begin on one map. Weights
    after every step are those of a run that shares nothing. AdamW makes steps of any size of gradients near 0, such as
    those of the keys' biases: its epsilon is larger here."""
    run = start_lake(way, way, THREE)
    for step in (1, 2, 3):
        assert run.metrics[step]["goodput/prefix_sharing_factor"] > 1.8
        assert_same_step(run, apart, step)


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [("off", "on"), ("on", "off")])
def test_a_run_may_share_from_any_checkpoint_on(before: str, after: str, apart: Run, start_lake: StartLake) -> None:
    first = apart if before == "off" else start_lake(f"before-{after}", before, "max_steps=2")
    saved = f"resume_from_checkpoint={first.output_dir / 'checkpoints' / 'step_000002'}"
    resumed = start_lake(f"after-{before}", after, THREE, saved)
    assert_same_step(resumed, apart, 3)
    assert ("goodput/prefix_sharing_factor" in resumed.metrics[3]) == (after == "on")


@pytest.mark.slow
def test_two_ranks_that_cut_by_tokens_learn_the_same_as_trees(start_lake: StartLake) -> None:
    """A limit by tokens is of computed ones, so trees are cut elsewhere than rows; rows that cannot move the gradient
    are left out before."""
    apart, shared = (start_lake(f"two-{way}", way, THREE, *TWO_RANKS) for way in ("off", "on"))
    for step in (1, 2, 3):
        assert shared.metrics[step]["goodput/prefix_sharing_factor"] > 1.8
        assert_same_step(shared, apart, step)


@pytest.mark.slow
def test_episodes_that_ran_ahead_teach_the_same_as_trees(start_lake: StartLake, tmp_path: Path) -> None:
    """A run that shares plays ahead of its training and records what it trained on; two runs train on that, one of
    which shares. The recorded episodes are of older weights."""
    record = (THREE, "+rollout_mock.enable=true", f"+rollout_mock.dump_dir={tmp_path / 'mock'}")
    ahead = ("+async_generation_ratio=1", "+max_staleness=2", "+rollout_mock.mode=dump")
    sampled = start_lake("sampled", "on", *record, *ahead)
    assert max(sampled.metrics[step]["rollout/staleness_max"] for step in (2, 3)) >= 1
    apart, shared = (start_lake(f"mock-{way}", way, *record, "+rollout_mock.mode=mock") for way in ("off", "on"))
    for step in (1, 2, 3):
        assert_same_step(shared, apart, step)
        assert sampled.metrics[step]["goodput/prefix_sharing_factor"] > 1.8


def assert_same_step(run: Run, apart: Run, step: int) -> None:
    """Weights after the step within 1e-6, where a step moves them by up to 1e-3; its metrics, but for what the engine's
    rounding shows in."""
    files = [r.output_dir / f"checkpoints/step_{step:06d}/hf_model/model.safetensors" for r in (run, apart)]
    shared, alone = (load_file(file) for file in files)
    assert shared.keys() == alone.keys()
    assert max(float((weight - alone[name]).abs().max()) for name, weight in shared.items()) < 1e-6
    outside = ("system/", "train_infer/", "actor/prefix_sharing_factor")
    rows = [{n: v for n, v in comparable(r.metrics[step]).items() if not n.startswith(outside)} for r in (run, apart)]
    assert rows[0].keys() == rows[1].keys() >= {"actor/grad_norm", "actor/pg_loss", "rollout/reward_mean"}
    for name, value in rows[1].items():
        assert rows[0][name] == pytest.approx(value, rel=3e-4, abs=1e-6), (step, name)
