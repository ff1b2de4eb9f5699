"""Critics and reward models on rows with pictures, against a linear layer on transformers' own backbone (eager
attention, its own processor and positions) and torch in one process, which sees each row alone and unpadded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import logsigmoid
from transformers import AutoConfig

from roll.algorithms.preference import BradleyTerryLoss
from roll.configs.sections.model import Head, ModelArgs
from roll.configs.tables.sight import SEES
from roll.distributed.executor.blueprint import BatchLimits
from roll.distributed.strategy.base import ALL_STATES, ScoreStrategy
from roll.errors import StrategyError
from roll.models.loading import load_model
from roll.pipeline.rm.rm_pipeline import read_at_the_end
from roll.types.collate import pad
from roll.utils.imports import resolve
from tests.contract.test_train_strategies import DEEPSPEED as DEEPSPEED_TRAINER
from tests.contract.test_train_strategies import FSDP2 as FSDP2_TRAINER
from tests.contract.train_strategy import Case, built
from tests.helpers.processes import RankPool
from tests.parity.compare import assert_same_training
from tests.parity.strategies import pairs, runs, shown
from tests.parity.strategies.reference import LEARNING_RATE, SquaredValueLoss, join, train_reference
from tests.parity.strategies.runs import Run, context
from tests.parity.strategies.test_pictures import FAMILIES, TRAINERS, UNPACKED, tolerance_of
from tests.parity.strategies.test_scoring import DEEPSPEED, FSDP2, HF, Scorer

Pools = Callable[[int], RankPool]
CASES = [
    *[(family, "zero3-x2") for family in FAMILIES],
    *[(family, "fsdp2-x2" if family in UNPACKED else "fsdp2-x2-packed") for family in FAMILIES],
    *[("qwen2_5_vl", trainer) for trainer in TRAINERS if trainer not in ("zero3-x2", "fsdp2-x2-packed")],
]
ZERO3 = {"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}}
SCORERS = {
    "hf": Scorer("hf_infer", HF),
    "hf-packs": Scorer("hf_infer", HF, packs=True),
    "ds-zero3-x2": Scorer("deepspeed_infer", DEEPSPEED, 2, ZERO3),
    "fsdp2-x2": Scorer("fsdp2_infer", FSDP2, 2),
    "fsdp2-x2-packs": Scorer("fsdp2_infer", FSDP2, 2, packs=True),
}
SCORED = [("qwen2_5_vl", scorer) for scorer in SCORERS] + [
    (family, scorer)
    for family in FAMILIES
    if family != "qwen2_5_vl"
    for scorer in ("hf", "fsdp2-x2" if family in UNPACKED else "fsdp2-x2-packs")
]


@pytest.fixture(scope="module")
def model_dirs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {family: shown.save_tiny(tmp_path_factory.mktemp(family) / "model", family) for family in FAMILIES}


@pytest.mark.gate("qwen3_vl-fsdp2-x2-packed")
@pytest.mark.parametrize(("family", "trainer"), CASES, ids=["-".join(case) for case in CASES])
def test_a_critic_that_sees_learns_as_with_torch_adamw(
    family: str, trainer: str, rank_pool: Pools, model_dirs: dict[str, Path], tmp_path: Path
) -> None:
    """Values, gradients of the first update (of the tower, too), weights and norm of three. Two micro batches on each
    rank; of two ranks one has no picture."""
    model_dir = shown.with_numbers(model_dirs[family], tmp_path / "critic", bias=True)
    world_size, options = TRAINERS[trainer]
    run = Run(model_dir, shows=True, split=(1, 1), role="critic", loss=SquaredValueLoss(), **options)
    got = rank_pool(world_size).run(runs.train, run)[0]
    want = train_reference(
        model_dir,
        shown.rows(model_dir),
        SquaredValueLoss(),
        [LEARNING_RATE] * 3,
        given=partial(shown.hf_inputs, model_dir),
        of_tokens=shown.Numbers(model_dir),
    )
    want = replace(want, parameters=[shown.as_stored(each, model_dir) for each in want.parameters])
    assert any(name.startswith(SEES) for name in got.gradients)
    assert_same_training(got, want, max(tolerance_of(family), 6e-5))  # one weight of Qwen3-VL has almost no gradient


@pytest.mark.slow
@pytest.mark.parametrize("trainer", ["zero3-x2", "fsdp2-x2"])
def test_a_critic_never_calls_its_tower_in_runs_without_pictures(
    trainer: str, rank_pool: Pools, model_dirs: dict[str, Path], tmp_path: Path
) -> None:
    model_dir = shown.with_numbers(model_dirs["qwen2_5_vl"], tmp_path / "critic", bias=True)
    world_size, options = TRAINERS[trainer]
    run = Run(model_dir, role="critic", loss=SquaredValueLoss(), training={"weight_decay": 0.1}, **options)
    got = rank_pool(world_size).run(runs.train, run)[0]
    assert "score.weight" in got.gradients and not any("visual" in name for name in got.gradients)


def scored(scorer: Scorer, model_dir: Path, head: Head) -> list[tuple[list[int], torch.Tensor]]:
    """Rows, and their values or numbers: of this rank's micro batches, of which rank r has 3 - r. Of two ranks the
    second has no pictures."""
    where = replace(context("critic", shows=True), head=head)
    strategy: ScoreStrategy = resolve(scorer.class_path)(scorer.config(model_dir), where)  # type: ignore[operator]
    strategy.setup()
    strategy.offload_states(ALL_STATES)
    strategy.load_states(ALL_STATES)
    given, shares = shown.rows(model_dir), [[[0, 1], [2, 3], [4, 6]], [[5, 7], [1, 3]]]
    places = shares[strategy.dp_rank]
    batches = [join([given[row] for row in some]) for some in places]
    if head == "value":
        found = [output.values for output in strategy.values(batches)]
    else:
        found = strategy.row_scores(batches)
    strategy.shutdown()
    return [(some, each) for some, each in zip(places, found, strict=True) if each is not None]


@pytest.mark.gate("qwen2_5_vl-hf")
@pytest.mark.parametrize(("family", "name"), SCORED, ids=["-".join(case) for case in SCORED])
def test_values_and_numbers_of_rows_are_those_of_transformers_backbone(
    family: str, name: str, rank_pool: Pools, model_dirs: dict[str, Path], tmp_path: Path
) -> None:
    """Of a head with one label, and with three. A rank whose rows show no picture takes part all the same."""
    scorer = SCORERS[name]
    heads: tuple[tuple[Head, int], ...] = (("value", 1), ("sequence", 3))
    for head, num_labels in heads:
        directory = shown.with_numbers(model_dirs[family], tmp_path / head, num_labels, bias=head == "value")
        model, rows = shown.Numbers(directory), shown.rows(directory)
        for scores in rank_pool(scorer.world_size).run(scored, scorer, directory, head):
            assert len(scores) in (2, 3)
            for places, got in scores:
                for at, place in enumerate(places):
                    row = rows[place]
                    ids = row.input_ids.clone()
                    if place == 3:  # it ends in a placeholder that was sampled, and stands for no picture
                        ids[0, -1] = 0
                    with torch.no_grad():
                        states = model(ids, **shown.hf_inputs(directory, row))[0]
                    want = states[-1]
                    if head == "value":
                        want = torch.cat([torch.zeros(1), states[:-1, 0]]) * row.response_mask[0]
                    assert float((got[at, : len(want)] - want).abs().max()) < 1e-5


LIMITS = {
    "pairs": BatchLimits(4, together=2),
    "tokens": BatchLimits(1, max_tokens=60, together=2),
    "packs": BatchLimits(1, max_tokens=60, packs=True, together=2),
}
PAIRED = [
    (Case("deepspeed_train", DEEPSPEED_TRAINER, 2, ZERO3), "pairs"),
    (Case("fsdp2_train", FSDP2_TRAINER, 2, packs=True), "packs"),
    (Case("deepspeed_train", DEEPSPEED_TRAINER, 1, {"zero_optimization": {"stage": 0}}), "tokens"),
    (Case("fsdp2_train", FSDP2_TRAINER, 1), "tokens"),
]


def reward_update(case: Case, model_dir: Path, limits: BatchLimits) -> tuple[pairs.Gradients, float, float]:
    with built(case, model_dir, max_norm=0.0, head="reward", shows=True, **pairs.LINEAR) as strategy:
        rows = read_at_the_end(shown.pairs(model_dir), padding=0)
        return pairs.update(strategy, BradleyTerryLoss(), rows, limits)


@pytest.mark.slow
@pytest.mark.parametrize(("case", "limits"), PAIRED, ids=[str(case) for case, _ in PAIRED])
def test_the_gradient_of_a_reward_model_that_sees_is_transformers(
    case: Case, limits: str, rank_pool: Pools, model_dirs: dict[str, Path], tmp_path: Path
) -> None:
    """The gradient is told from the weights that AdamW's first update leaves; a weight of 1 that moves by 1e-3 is told
    to 6e-8."""
    model_dir = shown.with_numbers(model_dirs["qwen2_5_vl"], tmp_path / "reward")
    model, rows = shown.Numbers(model_dir), shown.pairs(model_dir)
    rewards = []
    for row in range(len(rows)):
        one = pad(rows, np.array([row]))
        rewards.append(model(one.input_ids, **shown.hf_inputs(model_dir, one))[0, -1, 0])
    gaps = [rewards[at] - rewards[at + 1] - float(rows.margins[at]) for at in range(0, len(rows), 2)]
    total = -logsigmoid(torch.stack(gaps)).mean()
    total.backward()
    want = pairs.gradients_of(model)
    norm, loss = pairs.facts(model, total)
    found = rank_pool(case.world_size).run(reward_update, case, model_dir, LIMITS[limits])
    for gradients, rank_norm, rank_loss in found:
        assert rank_loss == pytest.approx(loss, rel=1e-5) and rank_norm == pytest.approx(norm, rel=1e-4)
        if gradients:  # ranks that export nothing have none
            assert gradients.keys() == want.keys()
            for name, gradient in want.items():
                np.testing.assert_allclose(gradients[name], gradient, rtol=1e-3, atol=2e-6, err_msg=name)


def saved(run: Run, directory: Path) -> dict[str, np.ndarray]:
    with runs.trainer(run) as strategy:
        runs.one_update(strategy, run)
        strategy.save_hf_model(directory)
        return runs.exported(strategy)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "trainer"), [(family, trainer) for family in FAMILIES for trainer in ("zero3-x2", "fsdp2-x2")]
)
def test_a_saved_critic_is_read_again(
    family: str, trainer: str, rank_pool: Pools, model_dirs: dict[str, Path], tmp_path: Path
) -> None:
    """Its files have the names of the family's, and those of the layer beside them. It began from a policy, whose head
    it leaves out, and whose values are 0."""
    world_size, options = TRAINERS[trainer]
    run = Run(model_dirs[family], shows=True, role="critic", loss=SquaredValueLoss(), **options)
    weights = rank_pool(world_size).run(saved, run, tmp_path)[0]
    assert np.abs(weights["score.weight"]).max() > 0
    loaded = load_model(ModelArgs(model_name_or_path=str(tmp_path), dtype="fp32"), "value")
    parameters = {name: parameter.detach().numpy() for name, parameter in loaded.pretrained.named_parameters()}
    found = shown.as_stored(parameters, model_dirs[family])
    assert weights.keys() == found.keys()
    assert all(np.array_equal(found[name], weights[name]) for name in weights)
    names = set(load_file(model_dirs[family] / "model.safetensors"))
    stored = set(load_file(tmp_path / "model.safetensors"))
    assert stored == names - {"lm_head.weight"} | {"score.weight", "score.bias"}
    names = AutoConfig.from_pretrained(tmp_path).architectures or []
    assert len(names) == 1 and names[0].endswith("ForTokenClassification")


def test_files_without_the_layer_are_no_reward_model(model_dirs: dict[str, Path]) -> None:
    with pytest.raises(StrategyError, match=r"lacks weights that its config.json asks for: score.weight"):
        load_model(ModelArgs(model_name_or_path=str(model_dirs["qwen2_5_vl"]), dtype="fp32"), "sequence")


def test_another_picture_gives_other_numbers(model_dirs: dict[str, Path], tmp_path: Path) -> None:
    """Else the tests above would prove nothing."""
    model_dir = shown.with_numbers(model_dirs["qwen2_5_vl"], tmp_path / "model")
    model, row = shown.Numbers(model_dir), shown.rows(model_dir)[0]
    given: dict[str, Any] = shown.hf_inputs(model_dir, row)
    with torch.no_grad():
        first = model(row.input_ids, **given)
        other = model(row.input_ids, **given | {"pixel_values": -given["pixel_values"]})
    assert float((first - other)[0, -1].abs().max()) > 0.1
