"""Log-probs, entropy and values of the strategies that only score, against a plain Hugging Face forward pass."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoModelForTokenClassification

from roll.configs.sections.cluster import WorkerConfig
from roll.distributed.strategy.base import ALL_STATES, ScoreStrategy
from roll.errors import StrategyError
from roll.types.batch import MicroBatch, TokenOutputs
from roll.utils.imports import resolve
from tests.helpers.processes import RankPool
from tests.parity.strategies.forks import forks
from tests.parity.strategies.reference import TEMPERATURE, join, naive_log_probs, rows
from tests.parity.strategies.runs import context

Pools = Callable[[int], RankPool]
HF = "roll.distributed.strategy.hf.score:HfScoreStrategy"
DEEPSPEED = "roll.distributed.strategy.deepspeed.score:DeepSpeedScoreStrategy"
FSDP2 = "roll.distributed.strategy.fsdp2.score:Fsdp2ScoreStrategy"


@dataclass(frozen=True)
class Scorer:
    name: str
    class_path: str
    world_size: int = 1
    strategy_config: dict[str, Any] = field(default_factory=dict)
    packs: bool = False
    shares: bool = False  # rows of forks.py, as trees
    sequence: int = 1  # neighbouring ranks that share every sequence

    def __str__(self) -> str:
        return f"{self.name}-x{self.world_size}{'-trees' * self.shares}"

    def rows(self) -> list[MicroBatch]:
        return forks() if self.shares else rows()

    def config(self, model_dir: Path, dtype: str = "fp32") -> WorkerConfig:
        return WorkerConfig.model_validate(
            {
                "strategy_args": {"strategy_name": self.name, "strategy_config": self.strategy_config},
                "model_args": {
                    "model_name_or_path": str(model_dir),
                    "dtype": dtype,
                    "ulysses_size": self.sequence,
                },
                "use_sequence_packing": self.packs,
                "use_prefix_sharing": self.shares,
            }
        )


SCORERS = [
    Scorer("hf_infer", HF),
    Scorer("deepspeed_infer", DEEPSPEED),
    Scorer(
        "deepspeed_infer", DEEPSPEED, 1, {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}
    ),
    Scorer(
        "deepspeed_infer", DEEPSPEED, 2, {"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}}
    ),
    Scorer("deepspeed_infer", DEEPSPEED, 2, {"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}),
    Scorer("fsdp2_infer", FSDP2, 2),
    Scorer("fsdp2_infer", FSDP2, 2, {"param_offload": True, "reshard_after_forward": False}),
]
PACKS = [replace(SCORERS[i], packs=True) for i in (0, 3, 5)]
PACKS_IDS = ["hf-packs", "ds-zero3-x2-packs", "fsdp2-x2-packs"]
TREES = [replace(SCORERS[i], shares=True) for i in (0, 3, 5)]
TREES_IDS = ["hf-trees", "ds-zero3-x2-trees", "fsdp2-x2-trees"]
SHARED_IDS = ["ds-zero3-x2-shared", "fsdp2-x2-shared", "ds-zero3-x4-shared", "fsdp2-x4-shared"]
ZERO3, FSDP, *LARGE = [replace(SCORERS[i], world_size=size, sequence=2) for size in (2, 4) for i in (3, 5)]
SHARED = [ZERO3, FSDP, *(pytest.param(scorer, marks=pytest.mark.slow) for scorer in LARGE)]


def rows_of_texts() -> list[MicroBatch]:
    """The rows, one of which ends in two padding tokens: there a head is read before them."""
    made = rows()
    ids = made[4].input_ids.clone()
    ids[0, -2:] = 0
    return [*made[:4], replace(made[4], input_ids=ids), *made[5:]]


def numbers_of_rows(scorer: Scorer, model_dir: Path) -> list[torch.Tensor]:
    """Of the rows from 2r on, in 3 - 2r micro batches of data-parallel rank r."""
    config = scorer.config(model_dir)
    where = replace(context("reference"), head="sequence")
    strategy: ScoreStrategy = resolve(scorer.class_path)(config, where)  # type: ignore[operator]
    strategy.setup()
    strategy.offload_states(ALL_STATES)
    strategy.load_states(ALL_STATES)
    taken = rows_of_texts()[2 * strategy.dp_rank :]
    outputs = strategy.row_scores([join(taken[i : i + 2]) for i in range(0, 6 - 4 * strategy.dp_rank, 2)])
    with pytest.raises(StrategyError, match="sequence head and gives no log-probs"):
        strategy.log_probs([], 1.0)
    strategy.shutdown()
    return outputs


def scored(scorer: Scorer, model_dir: Path, dtype: str, role: str) -> tuple[list[TokenOutputs], list[MicroBatch]]:
    """Outputs of this rank, data-parallel rank r bringing 3 - 2r micro batches."""
    config = scorer.config(model_dir, dtype)
    where = context(role)
    cls = resolve(scorer.class_path)
    strategy: ScoreStrategy = cls(config, where)  # type: ignore[operator]
    strategy.setup()
    given = scorer.rows()
    batches = [join(given[i : i + 3]) for i in range(3 - 2 * strategy.dp_rank)]
    if role == "critic":
        outputs = strategy.values(batches)
        with pytest.raises(StrategyError, match="value head"):
            strategy.log_probs(batches, 1.0)
    else:
        strategy.offload_states(ALL_STATES)
        strategy.load_states(ALL_STATES)
        outputs = strategy.log_probs(batches, TEMPERATURE, entropy=True)
        with pytest.raises(StrategyError, match="no value head"):
            strategy.values(batches)
    strategy.shutdown()
    return outputs, batches


def assert_rows_equal(
    got: torch.Tensor | None, batch: MicroBatch, want: Sequence[torch.Tensor], tolerance: float
) -> None:
    assert got is not None and got.dtype == torch.float32
    for i, row in enumerate(want):
        assert float((got[i, : len(row)] - row).abs().max()) < tolerance
        assert not got[i, len(row) :].any()


@pytest.mark.gate("hf", "ds-zero3-x2", "fsdp2-x2", "hf-packs", "hf-trees")
@pytest.mark.parametrize(
    "scorer",
    [*SCORERS, *PACKS, *TREES, *SHARED],
    ids=[
        "hf",
        "ds",
        "ds-zero2",
        "ds-zero3-x2",
        "ds-zero3-offload-x2",
        "fsdp2-x2",
        "fsdp2-param-offload-x2",
        *PACKS_IDS,
        *TREES_IDS,
        *SHARED_IDS,
    ],
)
def test_log_probs_and_entropy_equal_a_plain_forward_pass(
    scorer: Scorer, rank_pool: Pools, tiny_model_dir: Path
) -> None:
    """fp32, another order of sums: 1e-5 on values of about 6. Rows are compared with themselves alone and unpadded."""
    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.float32)
    with torch.no_grad():
        want = [naive_log_probs(model, row, TEMPERATURE) for row in scorer.rows()]
    for outputs, batches in rank_pool(scorer.world_size).run(scored, scorer, tiny_model_dir, "fp32", "reference"):
        assert len(outputs) == len(batches)
        for i, (output, batch) in enumerate(zip(outputs, batches, strict=True)):
            assert_rows_equal(output.log_probs, batch, [log_probs[0] for log_probs, _ in want[i : i + 3]], 1e-5)
            assert_rows_equal(output.entropy, batch, [entropy[0] for _, entropy in want[i : i + 3]], 1e-5)


@pytest.mark.gate("hf")
@pytest.mark.parametrize("scorer", [SCORERS[0], SCORERS[3], SCORERS[5]], ids=["hf", "ds-zero3-x2", "fsdp2-x2"])
def test_bf16_log_probs_stay_within_bf16_rounding(scorer: Scorer, rank_pool: Pools, tiny_model_dir: Path) -> None:
    """The softmax is taken in fp32, so what is left is the rounding of logits of size 1: 2^-9 each, a few times
    over."""
    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.float32)
    with torch.no_grad():
        want = [naive_log_probs(model, row, TEMPERATURE)[0][0] for row in rows()]
    outputs, batches = rank_pool(scorer.world_size).run(scored, scorer, tiny_model_dir, "bf16", "reference")[0]
    for i, (output, batch) in enumerate(zip(outputs, batches, strict=True)):
        assert_rows_equal(output.log_probs, batch, want[i : i + 3], 3e-2)


@pytest.mark.gate("hf-packs", "fsdp2-x2", "fsdp2-x2-trees")
@pytest.mark.parametrize(
    "scorer",
    [SCORERS[0], SCORERS[3], SCORERS[5], *PACKS, *TREES, FSDP],
    ids=["hf", "ds-zero3-x2", "fsdp2-x2", *PACKS_IDS, *TREES_IDS, "fsdp2-x2-shared"],
)
def test_values_are_read_before_the_token_is_known(
    scorer: Scorer, rank_pool: Pools, tiny_model_dir: Path, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = AutoModelForTokenClassification.from_pretrained(tiny_model_dir, dtype=torch.float32, num_labels=1).eval()
    torch.nn.init.normal_(model.score.weight, std=0.1)
    model.save_pretrained(tmp_path)
    want = []
    for row in scorer.rows():
        with torch.no_grad():
            states = model(input_ids=row.input_ids).logits[0, :, 0]
        want.append(torch.cat([torch.zeros(1), states[:-1]]) * row.response_mask[0])
    assert max(float(values.abs().max()) for values in want) > 0.1
    for outputs, batches in rank_pool(scorer.world_size).run(scored, scorer, tmp_path, "fp32", "critic"):
        for i, (output, batch) in enumerate(zip(outputs, batches, strict=True)):
            assert_rows_equal(output.values, batch, want[i : i + 3], 1e-5)


@pytest.mark.gate("hf-1", "fsdp2-x2-packs-1")
@pytest.mark.parametrize("num_labels", [1, 3])
@pytest.mark.parametrize(
    "scorer",
    [SCORERS[0], SCORERS[1], SCORERS[3], SCORERS[5], *PACKS, *SHARED],
    ids=["hf", "ds", "ds-zero3-x2", "fsdp2-x2", *PACKS_IDS, *SHARED_IDS],
)
def test_numbers_of_rows_are_those_of_hugging_faces_own_model(
    scorer: Scorer, num_labels: int, rank_pool: Pools, make_tiny_model_dir: Callable[..., Path]
) -> None:
    """fp32, of rows alone and unpadded against padded micro batches, unequal in number on the ranks: 1e-5."""
    directory = make_tiny_model_dir(num_labels=num_labels)
    model = AutoModelForSequenceClassification.from_pretrained(directory, dtype=torch.float32).eval()
    with torch.no_grad():
        want = torch.cat([model(input_ids=row.input_ids).logits for row in rows_of_texts()])
    assert float(want.std(0).min()) > 0.01 and want.shape == (8, num_labels)
    for place, outputs in enumerate(rank_pool(scorer.world_size).run(numbers_of_rows, scorer, directory)):
        got, rank = torch.cat(outputs), place // scorer.sequence
        assert got.dtype == torch.float32 and got.shape == (6 - 4 * rank, num_labels)
        torch.testing.assert_close(got, want[2 * rank :][: len(got)], rtol=0, atol=1e-5)
