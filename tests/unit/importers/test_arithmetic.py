"""Batches of the other systems and of here train the same samples in every update."""

from hypothesis import given, settings
from hypothesis import strategies as st

from roll.configs.load.validate import validate
from roll.configs.plan.batch_plan import build_plan
from roll.configs.sections.cluster import parse_device_mapping
from roll.importers.command import imported_from
from roll.importers.convert import read
from roll.importers.rows import divisors, largest_divisor, nearest_divisor, split
from roll.pipeline.rlvr.rlvr_config import RLVRConfig

A = "actor_rollout_ref.actor"


@settings(max_examples=60, deadline=None)
@given(
    mini=st.integers(1, 64),
    minis=st.integers(1, 8),
    answers=st.integers(1, 16),
    micro=st.integers(1, 32),
    nodes=st.integers(1, 3),
    shared=st.sampled_from([1, 2, 4]),
    megatron=st.booleans(),
)
def test_an_update_trains_the_samples_that_verl_trains(
    mini: int, minis: int, answers: int, micro: int, nodes: int, shared: int, megatron: bool
) -> None:
    """verl: ppo_mini_batch_size x n samples, of which every rank takes the same number; what does not divide by the
    ranks it refuses or cuts. Here the plan's own samples per update are the same, and so are its updates."""
    ranks = nodes * 8 // shared
    mini *= ranks  # every rank has whole rows
    words = {
        "algorithm.adv_estimator": "grpo",
        "actor_rollout_ref.model.path": "org/model",
        "data.train_files": "rows.parquet",
        "data.train_batch_size": mini * minis,
        "actor_rollout_ref.rollout.n": answers,
        f"{A}.ppo_mini_batch_size": mini,
        f"{A}.ppo_micro_batch_size_per_gpu": micro,
        "trainer.nnodes": nodes,
        "trainer.total_training_steps": 3,
        f"{A}.strategy": "megatron" if megatron else "fsdp2",
        (f"{A}.megatron.tensor_model_parallel_size" if megatron else f"{A}.ulysses_sequence_parallel_size"): shared,
    }
    tree = imported_from(read(None, [f"{key}={value}" for key, value in words.items()])).tree
    config = validate(RLVRConfig, tree).config
    assert config is not None
    train = build_plan(config).actor_train
    assert train.samples_per_update == mini * answers
    assert train.updates_per_epoch == minis and train.splits_evenly
    assert train.micro_batch_size <= micro
    assert parse_device_mapping(tree["actor_train"]["device_mapping"]) == tuple(range(nodes * 8))


@given(step=st.integers(1, 500), update=st.integers(1, 600), ranks=st.integers(1, 9), micro=st.integers(1, 40))
def test_a_split_is_always_of_whole_updates_and_micro_batches(step: int, update: int, ranks: int, micro: int) -> None:
    made = split(step * ranks, update, ranks, micro)
    assert step * ranks % made.samples == 0 and made.micro <= max(1, micro)
    assert (made.near == "") == (made.samples == update)


def test_divisors_next_to_a_value() -> None:
    assert divisors(12) == [1, 2, 3, 4, 6, 12]
    assert (largest_divisor(160, 6), largest_divisor(7, 6)) == (5, 1)
    assert (nearest_divisor(7, 32), nearest_divisor(5, 6), nearest_divisor(100, 6)) == (8, 6, 6)
