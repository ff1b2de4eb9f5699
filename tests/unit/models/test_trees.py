"""Rows that share prefixes as one tree against the same rows as a pack: numbers and gradients of whole models."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    Gemma3TextConfig,
    Qwen2Config,
)

from roll.features.prefix_sharing.forward import check_trees
from roll.models.loading import LoadedModel
from roll.models.sequences.check import check_packs
from roll.models.sequences.layout import Padded, RowLayout, computed, rows_at
from roll.models.sequences.pack import Pack
from roll.models.sequences.packed_attention import use_packed_attention
from roll.models.sequences.tree import Tree, tree_or_pack
from roll.types.forest import ON_CPUS
from tests.unit.models.test_packs import CPU, HALVES, SHAPE, TAKEN, gradients, loaded, saved
from tests.unit.types.test_forest import random_rows

# A group with one prompt, an equal answer twice and one that was cut at once; an episode's turns, each the beginning of
# the next; a row of one token, and one that has nothing in common with others.
PROMPT = [5, 9, 4, 8, 3, 11, 7]
ROWS = [
    [*PROMPT, 20, 21, 22, 23, 24],
    [*PROMPT, 20, 30, 31, 32],
    [*PROMPT, 20, 21, 22, 23, 24],
    [*PROMPT],
    [*PROMPT, 40, 41],
    [50, 51, 52],
    [50, 51, 52, 53, 54, 55],
    [50, 51, 52, 53, 54, 55, 56, 57, 58, 59],
    [60],
    [33, 34, 35, 36],
]
LENGTHS = torch.tensor([len(row) for row in ROWS])


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.zeros(len(ROWS), int(LENGTHS.max()), dtype=torch.int64)
    for at, row in enumerate(ROWS):
        ids[at, : len(row)] = torch.tensor(row)
    mask = torch.arange(ids.shape[1]) < LENGTHS[:, None]
    mask[:, :2] = False
    return ids, mask


def tree(routes: torch.Tensor | None = None) -> Tree:
    ids, _ = batch()
    found = tree_or_pack(ids, computed(LENGTHS), routes, least_saved=0)
    assert isinstance(found, Tree)
    return found


def taking_trees(model: LoadedModel) -> LoadedModel:
    use_packed_attention(model.pretrained, is_shared=True)
    with torch.no_grad():
        check_packs(model, CPU)
        check_trees(model, CPU)
    return model


def test_a_tree_has_every_token_once_at_its_column() -> None:
    ids, _ = batch()
    found = tree()
    assert found.input_ids.shape == (1, 7 + 4 + 2 + 1 + 9 + 1 + 3)
    places = [tuple(ROWS[at][: c + 1]) for at, row in enumerate(ROWS) for c in range(max(len(row) - 1, 1))]
    assert len(set(places)) == found.input_ids.shape[1]
    assert torch.equal(found.input_ids[0][found.row_tokens()], ids[found.inside])
    columns = torch.arange(ids.shape[1]).expand_as(ids)[found.inside]
    assert torch.equal(found.position_ids[0][found.row_tokens()], columns)
    assert found.places(torch.tensor([0, 1, 4]), torch.tensor([6, 6, 6])).unique().numel() == 1


def test_rows_that_share_nothing_are_a_pack_and_padding_does_not_count() -> None:
    ids = torch.tensor([[5, 6, 7], [6, 6, 7]])
    assert isinstance(tree_or_pack(ids, torch.tensor([2, 2]), least_saved=0), Pack)
    assert isinstance(tree_or_pack(ids[[0, 0]], torch.tensor([2, 2]), calls=ON_CPUS), Tree), "a duplicate costs nothing"
    ids, _ = batch()
    assert len(Padded(ids, LENGTHS).row_tokens()) == int(computed(LENGTHS).sum())


def test_experts_of_tokens_are_part_of_what_they_share() -> None:
    """Rows 0 and 2 are equal; where the recorded experts of one differ in column 3, they part there."""
    ids, _ = batch()
    routes = torch.zeros(*ids.shape, 2, 2, dtype=torch.int16)
    same = tree(routes)
    assert torch.equal(same.input_ids, tree().input_ids)
    routes[2, 3, 1, 0] = 1
    parted = tree(routes)
    assert parted.input_ids.shape[1] == same.input_ids.shape[1] + 11 - 3
    assert torch.equal(parted.of_rows(parted.of_tokens(routes), ids)[parted.inside], routes[parted.inside])
    unknown = parted.of_rows(parted.of_tokens(routes), ids)[~parted.inside]
    assert (unknown == -1).all()


def test_a_head_is_asked_once_for_a_place_and_the_token_behind_it() -> None:
    places, targets = torch.tensor([4, 1, 1, 1]), torch.tensor([9, 7, 8, 7])
    asked, tokens, answers = tree().asked_once(places, targets)
    assert (
        answers is not None
        and asked.tolist() == [1, 1, 4]
        and tokens.tolist() == [7, 8, 9]
        and answers.tolist() == [2, 0, 1, 0]
    )


def test_gradients_of_one_place_add_up_before_they_are_rounded() -> None:
    """256 + 1 is 256 in bf16: one by one, the small ones would be lost."""
    hidden = torch.zeros(2, 1, dtype=torch.bfloat16, requires_grad=True)
    found = rows_at(hidden, torch.zeros(9, dtype=torch.int64))
    found.backward(torch.tensor([256.0] + [1.0] * 8, dtype=torch.bfloat16)[:, None])
    assert hidden.grad is not None and hidden.grad.flatten().tolist() == [264, 0]


def scores_and_gradients(
    model: LoadedModel, ids: torch.Tensor, mask: torch.Tensor, layout: RowLayout, balanced: bool = False
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Log-probs, entropy and what a mixture says of its balance; gradients of a loss that pulls at each token another
    way."""
    weights = torch.linspace(-1, 1, mask.numel()).view(mask.shape)
    log_probs, entropy, *more = model.module(ids, mask, 0.7, True, layout, balanced)
    loss = (log_probs * weights + entropy * weights.flip(0)).sum() + sum(each.sum() for each in more)
    return [part.detach() for part in (log_probs, entropy, *more)], gradients(model, loss)


@pytest.fixture(scope="module", params=["full", "norms", "window", "window-in-some-layers", "mixture"])
def any_model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """Qwen2, Gemma-3 with windows that hold a row, Mistral and Gemma-3 with windows of 4 tokens, and a mixture."""
    longer = Gemma3TextConfig(**SHAPE, head_dim=8, sliding_window=64, **HALVES)
    config = TAKEN.get(request.param, longer)
    return taking_trees(loaded(saved(config, tmp_path_factory.mktemp("model"))))


@pytest.mark.parametrize("seed", range(8))
def test_random_forests_score_and_train_as_rows_alone(seed: int, any_model: LoadedModel) -> None:
    """Copies, beginnings and continuations of other rows, on many levels, from `random_rows`; some rows are cut to one
    length, some end where their answer would begin, and some have answers that begin alike. The rows of the other side
    are computed one by one."""
    drawn, draw = [row[:17] + 3 for row in random_rows(seed)], np.random.default_rng(seed)
    lengths = torch.tensor([len(row) for row in drawn])
    ids = torch.zeros(len(drawn), int(lengths.max()) + 1, dtype=torch.int64)
    mask = torch.zeros_like(ids, dtype=torch.bool)
    for at, row in enumerate(drawn):
        ids[at, : len(row)] = torch.from_numpy(row)
        mask[at, int(draw.integers(0, len(row) + 1)) : len(row)] = True  # from its end on: an empty answer
    layout = tree_or_pack(ids, computed(lengths), least_saved=0)
    got, got_gradients = scores_and_gradients(any_model, ids, mask, layout)
    weights = torch.linspace(-1, 1, mask.numel()).view(mask.shape)
    any_model.module.zero_grad()
    for at, length in enumerate(lengths.tolist()):
        one, its_mask = ids[at : at + 1, :length], mask[at : at + 1, :length]
        log_probs, entropy = any_model.module(one, its_mask, 0.7, True, Pack.scored(one, lengths[at : at + 1]))
        for mine, alone in zip(got, (log_probs, entropy), strict=True):
            torch.testing.assert_close(mine[at, :length], alone[0].detach(), rtol=0, atol=2e-5)
            assert not mine[at, length:].any()
        pulls = (weights[at, :length], weights.flip(0)[at, :length])
        (log_probs * pulls[0] + entropy * pulls[1]).sum().backward()
    wanted = [p.grad for p in any_model.module.parameters() if p.grad is not None]
    largest = max(float(gradient.abs().max()) for gradient in wanted)
    assert largest > 0.1 or not mask[:, 1:].any()
    for a, b in zip(got_gradients, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-5 * max(1.0, largest))


@pytest.mark.parametrize("recomputes", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("kind", ["full", "mixture"])
def test_log_probs_entropy_balance_and_gradients_of_a_tree_are_those_of_rows(
    kind: str, recomputes: bool, tmp_path: Path
) -> None:
    """fp32, other orders of sums: 1e-5 of the largest. The mixture's load balance counts every row's tokens."""
    model = taking_trees(loaded(saved(TAKEN[kind], tmp_path), disable_gradient_checkpointing=not recomputes))
    ids, mask = batch()
    balanced = kind == "mixture"
    want, wanted_gradients = scores_and_gradients(model, ids, mask, Pack.scored(ids, LENGTHS), balanced)
    got, got_gradients = scores_and_gradients(model, ids, mask, tree(), balanced)
    for a, b in zip(got + got_gradients, want + wanted_gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-5 * max(1.0, float(b.abs().max())))


@pytest.mark.parametrize("head", ["value", "sequence"])
def test_numbers_of_tokens_and_rows_of_a_tree_are_those_of_rows(head: Any, tmp_path: Path) -> None:
    config = Qwen2Config(**SHAPE)
    config.num_labels = 1
    kind = AutoModelForTokenClassification if head == "value" else AutoModelForSequenceClassification
    model = taking_trees(loaded(saved(config, tmp_path, kind), head))
    ids, mask = batch()
    if head == "value":
        got, want = (model.module(ids, mask, layout) for layout in (tree(), Pack.scored(ids, LENGTHS)))
    else:
        got = model.module(ids, LENGTHS, tree_or_pack(ids, LENGTHS, least_saved=0))
        want = model.module(ids, LENGTHS, Pack.of(ids, LENGTHS))
    torch.testing.assert_close(got, want, rtol=0, atol=1e-5)
    for a, b in zip(gradients(model, got.sum()), gradients(model, want.sum()), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-5 * max(1.0, float(b.abs().max())))
