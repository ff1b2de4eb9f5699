"""One suite over every TrainStrategy. What the numbers should be is in tests/parity/strategies."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoModelForCausalLM

from tests.contract import train_strategy as contract
from tests.contract.train_strategy import Case
from tests.helpers.pages import snippets, write_files
from tests.helpers.processes import RankPool
from tests.parity.strategies.reference import LEARNING_RATE

Pools = Callable[[int], RankPool]

DEEPSPEED = "roll.distributed.strategy.deepspeed.train:DeepSpeedTrainStrategy"
FSDP2 = "roll.distributed.strategy.fsdp2.train:Fsdp2TrainStrategy"
MEGATRON = "roll.distributed.strategy.megatron.train:MegatronTrainStrategy"
ZERO3 = {"stage": 3, "stage3_param_persistence_threshold": 0}
CASES = [
    Case("deepspeed_train", DEEPSPEED, 1, {"zero_optimization": {"stage": 0}}),
    Case("deepspeed_train", DEEPSPEED, 2, {"zero_optimization": ZERO3}),
    Case("megatron_train", MEGATRON, 2, {"tensor_model_parallel_size": 2, "sequence_parallel": True}),
    Case("fsdp2_train", FSDP2, 2, packs=True),
    Case("plain:SPEC", "plain_torch:PlainTrainStrategy", 1),  # of docs/adding_a_strategy.md
]
MORE_CASES = [
    Case("deepspeed_train", DEEPSPEED, 2, {"zero_optimization": {"stage": 2}}),
    Case("deepspeed_train", DEEPSPEED, 2, {"zero_optimization": ZERO3}, packs=True),
    Case("megatron_train", MEGATRON, 2, {"pipeline_model_parallel_size": 2}),
    Case("megatron_train", MEGATRON, 2, {"use_distributed_optimizer": True}),
    Case("fsdp2_train", FSDP2, 1),
    Case("fsdp2_train", FSDP2, 2),
]


@pytest.fixture(scope="module")
def page_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("own")
    write_files(snippets("adding_a_strategy.md", "python"), folder)
    return str(folder)


@pytest.fixture(params=[*CASES, *(pytest.param(case, marks=pytest.mark.slow) for case in MORE_CASES)], ids=str)
def case(request: pytest.FixtureRequest, page_folder: str) -> Case:
    return replace(request.param, folder=page_folder if ":" in request.param.strategy_name else "")


def test_updates_lower_the_loss_and_every_rank_reports_the_same(
    case: Case, rank_pool: Pools, tiny_model_dir: Path
) -> None:
    ranks = rank_pool(case.world_size).run(contract.losses_and_metrics, case, tiny_model_dir)
    losses = [loss for loss, _ in ranks[0]]
    assert losses == sorted(losses, reverse=True)
    assert losses[3] < losses[0] - 0.05
    rates = [metrics["learning_rate"] for _, metrics in ranks[0]]
    assert rates == pytest.approx([LEARNING_RATE * (1 + np.cos(np.pi * i / 20)) / 2 for i in range(4)])
    assert all(metrics["grad_norm"] > 0 for _, metrics in ranks[0])
    assert all(rank == ranks[0] for rank in ranks)


@pytest.fixture(scope="module")
def deepspeed_losses(rank_pool: Pools, tiny_model_dir: Path) -> list[float]:
    return [loss for loss, _ in rank_pool(1).run(contract.losses_and_metrics, CASES[0], tiny_model_dir)[0]]


def test_every_strategy_has_the_same_losses(
    case: Case, rank_pool: Pools, tiny_model_dir: Path, deepspeed_losses: list[float]
) -> None:
    """Same seed and rows, and passes between the updates, which change none. The first loss is that of the same
    weights; AdamW turns rounding errors of gradients near 0 into whole steps, so later ones drift apart a little."""
    losses = rank_pool(case.world_size).run(contract.losses_between_passes, case, tiny_model_dir)[0]
    assert losses[0] == pytest.approx(deepspeed_losses[0], abs=1e-5)
    assert losses == pytest.approx(deepspeed_losses, abs=1e-4)


def test_an_update_does_not_depend_on_the_micro_batches(case: Case, rank_pool: Pools, tiny_model_dir: Path) -> None:
    """AdamW's first step is the sign of the gradient nearly everywhere: where one is 0 but for rounding, the weights
    differ by up to two steps; nearly all agree to a thousandth of one."""
    whole, split = rank_pool(case.world_size).run(contract.weights_after_splits, case, tiny_model_dir)[0]
    differences = np.concatenate([np.abs(whole[name] - split[name]).ravel() for name in whole])
    assert np.quantile(differences, 0.999) < 1e-3 * LEARNING_RATE


def test_rows_without_trained_tokens_leave_the_weights_alone(
    case: Case, rank_pool: Pools, tiny_model_dir: Path
) -> None:
    before, after, grad_norm = rank_pool(case.world_size).run(contract.masked_update, case, tiny_model_dir)[0]
    assert grad_norm == 0
    assert all((before[name] == after[name]).all() for name in before)


def test_rows_without_advantage_may_be_left_out_of_an_update(
    case: Case, rank_pool: Pools, tiny_model_dir: Path
) -> None:
    """As skip_idle_rows does. The sums are the same but for the padding of the micro batch."""
    for whole, without in rank_pool(case.world_size).run(contract.gradients_without_idle_rows, case, tiny_model_dir):
        assert whole["grad_norm"] > 0.01
        assert without["grad_norm"] == pytest.approx(whole["grad_norm"], rel=1e-5)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_exported_weights_are_the_state_dict_bit_by_bit(
    case: Case, tied: bool, rank_pool: Pools, make_tiny_model_dir: Callable[..., Path]
) -> None:
    model_dir = make_tiny_model_dir(tie_word_embeddings=tied)
    bucket_bytes = 100_000
    both = rank_pool(case.world_size).run(contract.buckets, case, model_dir, bucket_bytes)
    ranks = [rank for rank, _ in both]
    want = dict(AutoModelForCausalLM.from_pretrained(model_dir).named_parameters())
    assert ("lm_head.weight" in want) == (not tied)
    assert len({len(rank) for rank in ranks}) == 1
    assert len(ranks[0]) > 3
    got = [entry for rank in ranks for bucket in rank for entry in bucket]
    assert [name for name, _, _ in got] == list(want)
    for name, dtype, weight in got:
        assert dtype == "torch.float32"
        assert (weight == want[name].detach().numpy()).all()
    for bucket in ranks[0]:
        assert len(bucket) == 1 or sum(weight.nbytes for _, _, weight in bucket) <= bucket_bytes
    for _, filled in (both[0], both[-1]):
        for bucket, first in zip(filled, ranks[0], strict=True):
            for (name, _, weight), (first_name, _, first_weight) in zip(bucket, first, strict=True):
                assert name == first_name
                assert (weight == first_weight).all()


def test_log_probs_and_entropy_equal_hugging_face(case: Case, rank_pool: Pools, tiny_tied_model_dir: Path) -> None:
    """fp32: the order of sums differs, 1e-5 on values of about 6."""
    for differences in rank_pool(case.world_size).run(contract.scores_against_hf, case, tiny_tied_model_dir):
        assert max(differences) < 1e-5


def test_a_loaded_checkpoint_goes_on_exactly(
    case: Case, rank_pool: Pools, tiny_tied_model_dir: Path, tmp_path: Path
) -> None:
    for unbroken, loaded in rank_pool(case.world_size).run(contract.resumed, case, tiny_tied_model_dir, tmp_path):
        assert loaded[:2] == unbroken[:2]
        assert all((loaded[2][name] == weight).all() for name, weight in unbroken[2].items())


@pytest.mark.parametrize("role", ["actor_train", "critic"])
def test_a_saved_model_loads_with_the_exported_weights(
    case: Case, role: str, rank_pool: Pools, tiny_tied_model_dir: Path, tmp_path: Path
) -> None:
    ranks = rank_pool(case.world_size).run(contract.saved_model, case, tiny_tied_model_dir, tmp_path, role)
    weights, loaded = ranks[0]
    assert weights.keys() == loaded.keys()
    assert all((weights[name] == loaded[name]).all() for name in weights)


def test_a_critic_starts_at_zero_and_gives_the_values_of_its_weights(
    case: Case, rank_pool: Pools, tiny_tied_model_dir: Path
) -> None:
    for fresh, difference in rank_pool(case.world_size).run(contract.critic_values, case, tiny_tied_model_dir):
        assert fresh == 0
        assert difference < 1e-5


def test_states_moved_away_come_back_unchanged(case: Case, rank_pool: Pools, tiny_tied_model_dir: Path) -> None:
    for before, after in rank_pool(case.world_size).run(contract.moved_and_back, case, tiny_tied_model_dir):
        assert before == after


def test_a_supervised_update_is_that_of_hugging_face(case: Case, rank_pool: Pools, tiny_model_dir: Path) -> None:
    """Loss and gradient norm of the same batch, with labels on the response tokens; the difference is rounding."""
    ranks = rank_pool(case.world_size).run(contract.supervised_update, case, tiny_model_dir)
    loss, norm = contract.supervised_by_hf(tiny_model_dir)
    assert loss > 0 and norm > 0
    assert all(rank == pytest.approx((loss, norm), rel=1e-5) for rank in ranks)
