"""The counts of a step against loops that count one by one, and the nearest values of a batch that does not divide."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roll.configs.plan.batch_plan import batch_problems, build_plan
from roll.configs.plan.describe import batch_sum
from tests.helpers.configs import config, problems

PER_DEVICE = "actor_train.training_args.per_device_train_batch_size"
ACCUMULATION = "actor_train.training_args.gradient_accumulation_steps"


def updates_by_counting(samples: int, per_device: int, accumulation: int, ranks: int, epochs: int) -> int | None:
    """Hands out samples one micro batch at a time, as a trainer would; None if some are left over."""
    updates = 0
    for _ in range(epochs):
        left = samples
        while left > 0:
            for _ in range(accumulation):
                for _ in range(ranks):
                    left -= per_device
            if left < 0:
                return None
            updates += 1
    return updates


@settings(max_examples=60)
@given(
    prompts=st.integers(1, 40),
    group=st.integers(2, 8),
    per_device=st.integers(1, 8),
    accumulation=st.integers(1, 6),
    ranks=st.integers(1, 4),
    epochs=st.integers(1, 3),
)
def test_updates_equal_those_of_a_trainer_that_counts(
    prompts: int, group: int, per_device: int, accumulation: int, ranks: int, epochs: int
) -> None:
    made = config(
        {
            "rollout_batch_size": prompts,
            "num_return_sequences_in_group": group,
            PER_DEVICE: per_device,
            ACCUMULATION: accumulation,
            "actor_train.device_mapping": list(range(ranks)),
            "ppo_epochs": epochs,
            "max_steps": 7,
        }
    )
    counted = updates_by_counting(prompts * group, per_device, accumulation, ranks, epochs)
    found = list(batch_problems(made))
    assert bool(found) == (counted is None)
    if counted is not None:
        plan = build_plan(made).actor_train
        assert (plan.updates_per_step, plan.total_updates) == (counted, 7 * counted)
        assert plan.samples_per_update == per_device * accumulation * ranks


def test_a_batch_that_does_not_divide_names_keys_and_values() -> None:
    assert problems({PER_DEVICE: 12}) == [
        "actor_train: a step has 32 x 8 = 256 samples (rollout_batch_size, num_return_sequences_in_group), which do "
        "not "
        "split into updates of 48 (actor_train.training_args.per_device_train_batch_size 12 x "
        "gradient_accumulation_steps 2 x 2 data-parallel ranks). Set rollout_batch_size to a multiple of 6, or make "
        "an update a divisor of 256."
    ]


def test_the_sum_reads_as_the_plan_computes() -> None:
    plan = build_plan(config())
    text = "32 prompts x 8 samples = 256 = 64 per update (16 x 2 x 2) x 4 updates"
    assert batch_sum(plan, plan.actor_train) == text
    plan = build_plan(config({"ppo_epochs": 2}))
    assert batch_sum(plan, plan.actor_train) == f"{text} x 2 epochs = 8 updates"


def test_megatron_divides_ranks_by_tensor_pipeline_and_context_but_not_expert_parallel() -> None:
    made = config(
        {
            "actor_train.device_mapping": "list(range(0,8))",
            "actor_train.strategy_args": {
                "strategy_name": "megatron_train",
                "strategy_config": {
                    "tensor_model_parallel_size": 2,
                    "pipeline_model_parallel_size": 2,
                    "expert_model_parallel_size": 2,
                },
            },
        }
    )
    plan = build_plan(made).actor_train
    assert (plan.dp_size, plan.samples_per_update, plan.updates_per_step) == (2, 64, 4)


def test_megatron_sizes_that_do_not_divide_the_ranks_are_a_problem() -> None:
    found = problems(
        {
            "actor_train.device_mapping": "list(range(0,6))",
            "actor_infer.device_mapping": [6],
            "actor_train.strategy_args": {
                "strategy_name": "megatron_train",
                "strategy_config": {"tensor_model_parallel_size": 4},
            },
        }
    )
    assert any(
        "actor_train: 6 ranks do not divide by tensor x pipeline x context parallel = 4. Use 4 or 8 devices" in text
        for text in found
    )


def test_the_critic_has_its_own_arithmetic_and_the_actor_skips_the_warm_up_steps() -> None:
    critic = {
        "strategy_args": {"strategy_name": "deepspeed_train"},
        "training_args": {"per_device_train_batch_size": 32, "gradient_accumulation_steps": 4, "warmup_ratio": 0.1},
        "device_mapping": [3],
    }
    made = config({"critic": critic, "adv_estimator": "gae", "critic_warmup": 5, "max_steps": 20})
    plan = build_plan(made)
    assert plan.critic is not None
    assert (plan.critic.samples_per_update, plan.critic.updates_per_step, plan.critic.total_updates) == (128, 2, 40)
    assert plan.critic.warmup_updates == 4
    assert (plan.actor_train.updates_per_step, plan.actor_train.total_updates) == (4, 60)


def test_a_critic_may_have_epochs_and_a_norm_of_its_own() -> None:
    """2 updates in an epoch of 256 samples: 3 epochs make 6 a step, whatever the policy makes."""
    critic = {"strategy_args": {"strategy_name": "deepspeed_train"}, "device_mapping": [0], "ppo_epochs": 3}
    critic["training_args"] = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 16}
    made = config({"critic": critic | {"max_grad_norm": 0.5}, "adv_estimator": "gae", "max_steps": 10})
    plan = build_plan(made)
    assert plan.critic is not None
    assert (plan.critic.epochs, plan.critic.updates_per_step, plan.critic.total_updates) == (3, 6, 60)
    assert (plan.critic.max_grad_norm, plan.actor_train.max_grad_norm) == (0.5, 1.0)
    assert plan.actor_train.epochs == 1
    same = build_plan(config({"critic": {**critic, "ppo_epochs": None}, "adv_estimator": "gae", "ppo_epochs": 2}))
    assert same.critic is not None and (same.critic.epochs, same.critic.max_grad_norm) == (2, 1.0)
    idle = build_plan(config({"actor_train.ppo_epochs": 3, "actor_train.max_grad_norm": 0.5}))
    assert (idle.actor_train.epochs, idle.actor_train.max_grad_norm) == (1, 1.0), "the run's count for the policy"


@settings(max_examples=50)
@given(prompts=st.integers(1, 200), weights=st.lists(st.integers(0, 20), min_size=2, max_size=5).filter(any))
def test_domain_prompts_sum_to_the_batch_and_miss_their_share_by_less_than_one(
    prompts: int, weights: list[int]
) -> None:
    shares = {f"d{i}": weight / sum(weights) for i, weight in enumerate(weights)}
    made = config(
        {
            "rollout_batch_size": prompts,
            "rewards": {domain: {"reward": "math_rule"} for domain in shares},
            "actor_train.data_args.domain_interleave_probs": shares,
        }
    )
    counts = build_plan(made).prompts_per_domain
    assert counts is not None and sum(counts.values()) == prompts
    assert all(abs(counts[domain] - prompts * share) < 1 for domain, share in shares.items())


def test_without_shares_one_domain_gets_all_prompts_and_several_follow_the_data() -> None:
    assert build_plan(config()).prompts_per_domain == {"math": 32}
    assert build_plan(config({"rewards.code": {"reward": "regex"}})).prompts_per_domain is None


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"response_length": 12}, (32, 12, 44)),
        ({"response_length": ..., "sequence_length": 100}, (32, 68, 100)),
        ({"response_length": 12, "sequence_length": 44}, (32, 12, 44)),
    ],
)
def test_lengths_follow_from_any_two(changes: dict[str, object], expected: tuple[int, int, int]) -> None:
    plan = build_plan(config(changes))
    assert (plan.prompt_length, plan.response_length, plan.sequence_length) == expected


def test_validation_lengths_default_to_those_of_training() -> None:
    assert build_plan(config()).val_sequence_length == 44
    plan = build_plan(config({"val_prompt_length": 40, "val_sequence_length": 100}))
    assert (plan.val_prompt_length, plan.val_response_length) == (40, 60)
