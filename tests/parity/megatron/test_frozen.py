"""freeze_module_prefix under Megatron: what is frozen stays, and everything else learns as it would without."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roll.distributed.weights.bucket import with_partners
from tests.helpers.processes import RankPool
from tests.parity.megatron import models, partial, ranks
from tests.parity.megatron.compare import assert_goes_on
from tests.parity.megatron.layouts import PP2, SHARED, TP2
from tests.parity.megatron.ranks import Run

Pools = Callable[[int], RankPool]
EMBEDDING = "model.embed_tokens"


def frozen(model_dir: Path, prefixes: str, settings: dict[str, Any], recompute: bool = False) -> Run:
    return Run(
        model_dir,
        settings,
        model={"freeze_module_prefix": prefixes, "disable_gradient_checkpointing": not recompute},
        vocab_size=models.VOCAB_SIZE,
    )


def assert_only_these_stay(weights: ranks.BeforeAndAfter, prefixes: tuple[str, ...]) -> None:
    stayed = {name for name, before in weights.before.items() if np.array_equal(before, weights.after[name])}
    assert stayed == {name for name in weights.before if name.startswith(prefixes)}


@pytest.mark.gate("one")
@pytest.mark.parametrize("settings", [{}, PP2], ids=["one", "pp2"])
def test_recomputed_layers_learn_above_a_frozen_embedding(
    settings: dict[str, Any], rank_pool: Pools, family_dir: Callable[..., Path]
) -> None:
    """Megatron's checkpoint gives parameters a gradient only if its input wants one, which comes from the embedding."""
    model_dir, pool = family_dir("qwen2"), rank_pool(2 if settings else 1)
    plain = pool.run(ranks.weights_around_an_update, frozen(model_dir, EMBEDDING, settings))[0]
    recomputed = pool.run(ranks.weights_around_an_update, frozen(model_dir, EMBEDDING, settings, recompute=True))[0]
    assert recomputed.grad_norm == pytest.approx(plain.grad_norm, rel=1e-6)
    assert_only_these_stay(recomputed, (EMBEDDING,))


def test_a_stage_that_is_frozen_as_a_whole_does_not_stop_the_pipeline(
    rank_pool: Pools, family_dir: Callable[..., Path]
) -> None:
    prefixes = (EMBEDDING, "model.layers.0.")
    run = frozen(family_dir("qwen2"), ",".join(prefixes), PP2)
    assert_only_these_stay(rank_pool(2).run(ranks.weights_around_an_update, run)[0], prefixes)


@pytest.mark.gate("recomputed")
@pytest.mark.parametrize("recompute", [False, True], ids=["plain", "recomputed"])
def test_the_copy_of_a_tied_embedding_on_the_last_stage_is_frozen_with_it(
    recompute: bool, rank_pool: Pools, family_dir: Callable[..., Path]
) -> None:
    """Frozen on the first stage only, the last one would wait for its gradient for ever."""
    model_dir = family_dir("qwen2", tie_word_embeddings=True)
    run = frozen(model_dir, EMBEDDING, PP2, recompute)
    assert_only_these_stay(rank_pool(2).run(ranks.weights_around_an_update, run)[0], (EMBEDDING,))


def test_a_tied_model_has_no_head_to_freeze(rank_pool: Pools, family_dir: Callable[..., Path]) -> None:
    """As with the other strategies, wherever the copy lies."""
    run = frozen(family_dir("qwen2", tie_word_embeddings=True), "lm_head", PP2)
    message = "model_args.freeze_module_prefix: no parameter's name begins with 'lm_head'"
    assert rank_pool(2).run(ranks.refusal, run) == [message] * 2


@pytest.mark.gate("shared")
@pytest.mark.parametrize("settings", [{}, SHARED], ids=["plain", "shared"])
def test_a_run_with_a_frozen_layer_goes_on_under_other_sizes(
    settings: dict[str, Any], rank_pool: Pools, family_dir: Callable[..., Path], tmp_path: Path
) -> None:
    """A frozen layer has no state of the optimizer, so a file in which all layers are one tensor is not whole."""
    run, other = (frozen(family_dir("qwen2"), "model.layers.0.", each) for each in (settings, PP2 | settings))
    assert_goes_on(rank_pool, tmp_path, (2, run), (2, other))


def test_single_experts_are_not_frozen(rank_pool: Pools, family_dir: Callable[..., Path]) -> None:
    run = frozen(family_dir("qwen3_moe"), "model.layers.0.mlp.experts.1", {})
    assert "'model.layers.0.mlp.experts.1' names single experts" in rank_pool(1).run(ranks.refusal, run)[0]


@pytest.mark.gate("pp2")
@pytest.mark.parametrize("settings", [PP2, TP2], ids=["pp2", "tp2"])
def test_what_is_frozen_is_neither_sent_to_engines_again_nor_gathered(
    settings: dict[str, Any], rank_pool: Pools, family_dir: Callable[..., Path]
) -> None:
    prefixes = (EMBEDDING, "model.layers.0.", "model.layers.1.mlp")
    run = frozen(family_dir("qwen2"), ",".join(prefixes), settings)
    (whole, part, received), (_, nothing, sent) = rank_pool(2).run(partial.exports, run)
    assert part.keys() == with_partners(whole, [name for name in whole if not name.startswith(prefixes)])
    assert all(np.array_equal(part[name], whole[name]) for name in part) and not nothing
    assert len(part) < len(whole) / 2
    assert 0 < received == sent < 1.1 * sum(weight.size for weight in part.values())  # the vocabulary is padded
