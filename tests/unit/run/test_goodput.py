"""What a step's numbers say of schedules that are known."""

import pytest

from roll.configs.memory.flops import ModelFlops, model_flops
from roll.configs.tables.roles import Use
from roll.distributed.executor.usage import RoleUsage, Work, WorkerUsage
from roll.run.accounting import Sizes, UsefulTokens, goodput_metrics
from roll.types.metrics import SharedWork
from roll.utils.worker_usage import Usage

NOTHING = Sizes({})


def worker(rank: int, devices: tuple[int, ...], seconds: dict[str, float], **counts: float) -> WorkerUsage:
    return WorkerUsage(rank, devices, Usage(seconds, counts, host_bytes=10 * (rank + 1)))


def role(name: str, use: Use, *workers: WorkerUsage, **work: Work) -> RoleUsage:
    return RoleUsage(name, use, workers, work)


def tiny_model() -> ModelFlops:
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    model = model_flops({"model_type": "llama", "vocab_size": 10, **sizes}, "lm")
    assert model is not None
    return model


def test_two_devices_of_which_one_is_idle_for_half_of_the_step_have_a_bubble_of_a_quarter() -> None:
    usages = [
        role("actor_train", "train", worker(0, (0,), {"train": 10.0})),
        role("actor_infer", "generate", worker(0, (1,), {"sampling": 5.0, "idle": 5.0})),
    ]
    metrics = goodput_metrics(usages, NOTHING, 10.0)
    assert metrics["goodput/bubble_fraction"] == pytest.approx(0.25)
    assert metrics["busy/actor_train_fraction"] == pytest.approx(1.0)
    assert metrics["busy/actor_infer_fraction"] == pytest.approx(0.5)


def test_roles_count_by_devices_and_answers() -> None:
    usages = [
        role("actor_train", "train", worker(0, (0,), {"train": 3.0, "score": 1.0, "offload_states": 1.0, "idle": 5.0})),
        role("actor_infer", "generate", worker(0, (0,), {"sampling": 5.0, "away": 5.0})),
    ]
    metrics = goodput_metrics(usages, NOTHING, 10.0)
    assert metrics["goodput/bubble_fraction"] == pytest.approx(0.1)
    assert metrics["busy/actor_train_fraction"] == pytest.approx(0.4), "moving states is no work"
    useful = UsefulTokens()
    useful.add_restored(100)
    useful.add([role("actor_train", "train", worker(0, (0,), {}), train=Work(rows=4, tokens=300, learnt=80))], NOTHING)
    assert useful.metrics() == {"goodput/useful_fraction": pytest.approx(0.8)}
    usages = [
        role("rewards.math", "cpu", worker(0, (), {"score": 8.0, "idle": 2.0})),
        role("actor_train", "train", worker(0, (0,), {"train": 5.0, "idle": 5.0})),
    ]
    metrics = goodput_metrics(usages, NOTHING, 10.0)
    assert metrics["busy/rewards.math_fraction"] == pytest.approx(0.8)
    assert metrics["goodput/bubble_fraction"] == pytest.approx(0.5)
    usages = [role("sft_train", "train", worker(0, (0,), {"train": 5.0, "idle": 5.0}), train=Work(4, 80, 0.0, 60))]
    metrics = goodput_metrics(usages, Sizes({}, learner="sft_train"), 10.0)
    assert metrics["goodput/trained_tokens_per_s"] == pytest.approx(6)
    assert not [name for name in metrics if name.startswith(("rollout/", "sync/", "goodput/useful"))]
    assert goodput_metrics([role("actor_infer", "generate")], NOTHING, 10.0) == {}


def test_tokens_are_counted_by_the_window_and_by_the_time_that_was_spent_on_them() -> None:
    usages = [
        role(
            "actor_train",
            "train",
            worker(0, (0,), {"train": 2.0, "score": 1.0, "idle": 7.0}),
            worker(1, (1,), {"train": 4.0, "score": 1.0, "idle": 5.0}),
            train=Work(rows=40, tokens=3000, learnt=1000, shared=SharedWork(3000, 1200)),
            score=Work(rows=40, tokens=1500),
        ),
        role(
            "actor_infer",
            "generate",
            worker(0, (2,), {"sampling": 4.0, "held": 1.0, "idle": 5.0}, sampled_tokens=1100, other_tokens=100),
            worker(1, (3,), {"sampling": 6.0, "held": 3.0, "idle": 1.0}, sampled_tokens=900, recomputed_tokens=70),
        ),
    ]
    metrics = goodput_metrics(usages, NOTHING, 10.0)
    assert metrics["goodput/trained_tokens_per_s"] == pytest.approx(100)
    assert metrics["goodput/trained_tokens_per_device_s"] == pytest.approx(25)
    assert metrics["throughput/actor_train/train_tokens_per_s"] == pytest.approx(1000)
    assert metrics["throughput/actor_train/score_tokens_per_s"] == pytest.approx(1500)
    assert metrics["throughput/actor_infer/sample_tokens_per_s"] == pytest.approx(420)
    assert metrics["throughput/samples_per_s"] == pytest.approx(4)
    assert metrics["goodput/prefix_sharing_factor"] == 2.5
    assert metrics["sync/held_s"] == pytest.approx(2)
    assert metrics["rollout/recomputed_tokens"] == 70
    assert metrics["memory/actor_infer_host_bytes"] == 20
    assert not [name for name in metrics if "mfu" in name], "of no known model"


def test_prefixes_that_rows_share_are_computed_and_counted_once() -> None:
    """Rows of 3000 tokens of which 1200 are computed, and a third of their pairs: the operations of these."""
    model, shared = tiny_model(), SharedWork(2800, 1000, 60_000)
    work = Work(rows=40, tokens=3000, pairs=90_000.0, learnt=1000, shared=shared)
    trainer = role("actor_train", "train", worker(0, (0,), {"train": 10.0}), train=work, score=work)
    metrics = goodput_metrics([trainer], Sizes({"actor_train": model}, peak=1e6), 10.0)
    once = model.forward(1200, 30_000)
    assert metrics["mfu/actor_train_fraction"] == pytest.approx(4 * once / (10 * 1e6))
    assert metrics["goodput/mfu_fraction"] == pytest.approx(3 * once / (10 * 1e6))
    assert metrics["throughput/actor_train/train_tokens_per_s"] == pytest.approx(300), "tokens of rows"
    assert metrics["goodput/prefix_sharing_factor"] == pytest.approx(2.8)


def test_what_was_sampled_ahead_is_useful_once_it_is_trained_on_and_never_more_than_wholly() -> None:
    """Two steps' worth in the first step, one in the second, none in the last; validation is not for training."""
    useful, fractions = UsefulTokens(), []
    assert useful.metrics() == {}
    for sampled in (200, 100, 0):
        engine = worker(0, (1,), {}, sampled_tokens=sampled, other_tokens=50)
        trainer = role("actor_train", "train", worker(0, (0,), {}), train=Work(rows=4, tokens=300, learnt=100))
        useful.add([trainer, role("actor_infer", "generate", engine)], NOTHING)
        fractions.append(useful.metrics()["goodput/useful_fraction"])
    assert fractions == pytest.approx([1 / 2, 2 / 3, 1])


def test_utilisation_is_the_models_operations_by_what_the_devices_could_have_done() -> None:
    model = tiny_model()
    forward = model.forward(200, 1000.0)
    assert forward == 2 * (model.shape.products + model.shape.head_products) * 200 + 4 * 2 * 2 * 4 * 1000
    usages = [
        role(
            "actor_train",
            "train",
            worker(0, (0,), {"train": 2.0, "score": 1.0, "idle": 7.0}),
            worker(1, (1,), {"train": 2.0, "score": 1.0, "idle": 7.0}),
            train=Work(10, 200, 1000.0, 50),
            score=Work(10, 200, 1000.0),
        ),
        role(
            "actor_infer",
            "generate",
            worker(0, (2,), {"sampling": 4.0, "idle": 6.0}, prompt_tokens=50, sampled_tokens=150, pairs=1000),
        ),
    ]
    peak = forward * 10
    metrics = goodput_metrics(usages, Sizes({"actor_train": model, "actor_infer": model}, peak), 10.0)
    assert metrics["mfu/actor_train_fraction"] == pytest.approx((3 + 1) * forward / (2 * 3 * peak))
    assert metrics["mfu/actor_infer_fraction"] == pytest.approx(forward / (4 * peak))
    assert metrics["goodput/mfu_fraction"] == pytest.approx(3 * forward / (3 * 10 * peak))
    assert "goodput/mfu_fraction" not in goodput_metrics(usages, Sizes({"actor_train": model}), 10.0), "no known peak"
