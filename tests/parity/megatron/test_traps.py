"""What goes wrong silently in megatron-core 0.16 unless one knows: each trap has a test that fails when it is stepped
into."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers import processes
from tests.helpers.processes import RankPool
from tests.parity.megatron import models, ranks
from tests.parity.megatron.compare import PARAMETER_TOLERANCE, assert_same_training, largest_difference
from tests.parity.megatron.layouts import PP2, SHARED, TP2
from tests.parity.megatron.ranks import Run
from tests.parity.strategies.reference import LEARNING_RATE, BentLoss, Trace, rows, train_reference

Pools = Callable[[int], RankPool]


def reference(model_dir: Path, updates: int = 1, **options: Any) -> Trace:
    return train_reference(
        model_dir, rows(vocab_size=models.VOCAB_SIZE), BentLoss(), [LEARNING_RATE] * updates, **options
    )


def megatron(model_dir: Path, settings: dict[str, Any], **options: Any) -> Run:
    given: dict[str, Any] = {"updates": 1} | options
    return Run(model_dir, settings, vocab_size=models.VOCAB_SIZE, **given)


def test_the_gradient_norm_counts_every_tensor_parallel_part(rank_pool: Pools, family_dir: Callable[..., Path]) -> None:
    """perform_initialization=False leaves parameters unmarked, and the norm then misses the second rank's parts."""
    model_dir = family_dir("qwen2")
    want = reference(model_dir).metrics[0]["grad_norm"]
    for trace in rank_pool(2).run(ranks.train, megatron(model_dir, TP2)):
        assert trace.metrics[0]["grad_norm"] == pytest.approx(want, rel=1e-5)


def test_weight_decay_reaches_matrices_only(rank_pool: Pools, family_dir: Callable[..., Path]) -> None:
    """Megatron's optimizer groups say so, but only its own scheduler reads that. Decay of .1 at lr 1e-3 moves a norm's
    weight by 1e-4 per update, five times the tolerance."""
    model_dir = family_dir("qwen2")
    want = reference(model_dir, weight_decay=0.1).parameters[0]
    got = rank_pool(2).run(ranks.train, megatron(model_dir, TP2, weight_decay=0.1))[0].parameters[0]
    small = [name for name in want if "norm" in name or name.endswith("bias")]
    assert len(small) > 6
    assert largest_difference({n: got[n] for n in small}, {n: want[n] for n in small}) < PARAMETER_TOLERANCE


@pytest.mark.proof
def test_an_interleaved_pipeline_of_two_ranks_ends(rank_pool: Pools, family_dir: Callable[..., Path]) -> None:
    """With batched sends and receives (Megatron's default without interleaving) its ranks wait for each other for ever.
    Three micro batches do not fill whole rounds either."""
    model_dir = family_dir("qwen3", num_hidden_layers=4)
    run = megatron(model_dir, PP2 | {"virtual_pipeline_model_parallel_size": 2}, split=(2, 1, 1))
    assert_same_training(rank_pool(2).run(ranks.train, run)[0], reference(model_dir))


def test_padded_vocabulary_takes_no_probability(rank_pool: Pools, family_dir: Callable[..., Path]) -> None:
    """Padding rows of embedding and head are set to what would win every softmax; nothing changes."""
    run = megatron(family_dir("qwen2"), TP2)
    for plain, spoiled in rank_pool(2).run(ranks.scores_with_spoiled_padding, run):
        assert np.array_equal(plain, spoiled)


@pytest.mark.gate("deepseek_v3-tp2")
@pytest.mark.parametrize("settings", [TP2, {"context_parallel_size": 2}], ids=["tp2", "cp2"])
@pytest.mark.parametrize("family", ["qwen2", "deepseek_v3"])
def test_no_layer_waits_for_the_device_to_tell_where_packed_rows_end(
    family: str, settings: dict[str, Any], rank_pool: Pools, family_dir: Callable[..., Path]
) -> None:
    """Megatron's rotary embedding asks twice in every layer, and a GPU answers when all before is done."""
    run = megatron(family_dir(family), settings, packs=True)
    for blind, plain in rank_pool(2).run(ranks.scores_without_ends_on_the_device, run):
        assert np.array_equal(blind, plain) and np.abs(plain).max() > 1


@pytest.mark.proof
def test_weights_are_whole_when_they_are_exported(rank_pool: Pools, family_dir: Callable[..., Path]) -> None:
    """With overlap_param_gather a step leaves every rank with its share of the update only, until somebody asks."""
    model_dir = family_dir("qwen2")
    overlap = {"overlap_grad_reduce": True, "overlap_param_gather": True}
    got = rank_pool(2).run(ranks.train, megatron(model_dir, SHARED | overlap, updates=2))[0]
    assert_same_training(got, reference(model_dir, updates=2))


@pytest.mark.gate("pp2-tied")
@pytest.mark.proof
@pytest.mark.parametrize("settings", [{}, PP2, TP2], ids=["untied", "pp2-tied", "tp2"])
def test_a_late_gather_reaches_the_head_before_it_is_used(
    settings: dict[str, Any], rank_pool: Pools, family_dir: Callable[..., Path]
) -> None:
    """The gathers hang on the calls of modules, in buckets one after the other. The head's weight is used without its
    module's own product: read past the call it would stay behind, in training and in what is exported."""
    model_dir = family_dir("qwen2", tie_word_embeddings="pipeline_model_parallel_size" in settings)
    late = SHARED | {"overlap_grad_reduce": True, "overlap_param_gather": True, "bucket_size": 1000}
    run = megatron(model_dir, settings | late, updates=3, looks=False)
    want = reference(model_dir, updates=3)
    got = rank_pool(4 if settings else 2).run(ranks.train, run)[0]
    assert_same_training(got, replace(want, parameters=want.parameters[-1:]))


@pytest.mark.gate("shared")
@pytest.mark.parametrize("settings", [TP2, SHARED], ids=["plain", "shared"])
def test_adams_step_count_is_right_after_loading(
    settings: dict[str, Any], rank_pool: Pools, family_dir: Callable[..., Path], tmp_path: Path
) -> None:
    """The loader gives all parameters one step tensor, and each parameter's update counts it up: AdamW's bias
    correction is then that of update 60 where it should be that of update 3."""
    model_dir = family_dir("qwen2")
    got = rank_pool(2).run(ranks.resumed_steps, megatron(model_dir, settings), tmp_path)
    assert all(steps == {3.0} for steps in got)


def test_saving_starts_no_process(rank_pool: Pools, family_dir: Callable[..., Path], tmp_path: Path) -> None:
    """Megatron's own writer starts a manager that stays, and hangs where psutil is missing."""
    got = rank_pool(2).run(ranks.processes_after_saving, megatron(family_dir("qwen2"), SHARED), tmp_path)
    assert got == [0, 0]


@pytest.mark.gate("alltoall")
@pytest.mark.proof
@pytest.mark.parametrize("dispatcher", ["alltoall", "allgather"])
def test_pipeline_shapes_may_differ_whatever_the_dispatcher(
    dispatcher: str, rank_pool: Pools, family_dir: Callable[..., Path]
) -> None:
    """Megatron refuses variable_seq_lengths unless the dispatcher is alltoall, which is not its default, for dense
    models too. With allgather micro batches are padded to one shape instead."""
    model_dir = family_dir("qwen2")
    run = megatron(model_dir, PP2 | {"moe_token_dispatcher_type": dispatcher}, split=(3, 1))
    assert_same_training(rank_pool(2).run(ranks.train, run)[0], reference(model_dir))


def test_a_rank_that_fails_does_not_leave_the_others_waiting(rank_pool: Pools, family_dir: Callable[..., Path]) -> None:
    """A gradient that is not finite is an error on every rank, with the weights as they were. (Megatron's own check
    raises on the rank that sees it, and the others wait.)"""
    for message, unchanged in rank_pool(2).run(ranks.broken_update, megatron(family_dir("qwen2"), SHARED)):
        assert message.startswith("actor_train: the gradient is not finite (norm nan); the weights are untouched. ")
        assert unchanged


@pytest.mark.gate("tp2")
@pytest.mark.parametrize("settings", [TP2, PP2, SHARED], ids=["tp2", "pp2", "dp2"])
def test_a_rank_that_dies_does_not_leave_the_others_waiting(
    settings: dict[str, Any], family_dir: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other rank raises by itself when its partner's connection closes. The pool would kill it after a second:
    it is given time to say what it saw."""
    monkeypatch.setattr(processes, "GRACE_S", 60.0)
    with processes.RankPool(2) as pool, pytest.raises(processes.RankError) as caught:
        pool.run(ranks.left_alone, megatron(family_dir("qwen2"), settings), timeout_s=90)
    assert str(caught.value) == "rank 1: died, exit code -9"  # and nothing of rank 0, which has answered
