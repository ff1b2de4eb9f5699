"""LoRA under deepspeed_train and fsdp2_train against peft + torch.optim.AdamW in one process, on the same eight rows.

What is compared starts from an adapter that is not 0 and was written by peft. Not covered: dropout, whose draws depend
on the ranks.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

from tests.helpers.processes import RankPool
from tests.parity.compare import assert_same_training, largest_difference
from tests.parity.strategies import runs
from tests.parity.strategies.adapters import LORA, an_adapter
from tests.parity.strategies.models import save_critic
from tests.parity.strategies.reference import (
    LEARNING_RATE,
    TEMPERATURE,
    BentLoss,
    SquaredValueLoss,
    Trace,
    join,
    naive_log_probs,
    rows,
    train_reference,
)
from tests.parity.strategies.runs import Run, my_micro_batches, one_update, trainer

Pools = Callable[[int], RankPool]
Engine = dict[str, Any]  # of Run: a ZeRO stage, or the settings of fsdp2_train
FSDP2: Engine = {"fsdp2": {}}
ON_HOST: Engine = {"fsdp2": {"offload_policy": True}}
WAITING: Engine = {"fsdp2": {"param_offload": True, "optimizer_offload": True}}
OFFLOADED: Engine = {
    "stage": 3,
    "zero": {"offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}},
}
GATHERED: Engine = {"stage": 3, "zero": {"stage3_param_persistence_threshold": 100_000}}  # DeepSpeed's own default


def zero(stage: int) -> Engine:
    return {"stage": stage}


@pytest.fixture(scope="module")
def adapter(tiny_tied_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = AutoModelForCausalLM.from_pretrained(tiny_tied_model_dir, dtype=torch.float32)
    return an_adapter(model, tmp_path_factory.mktemp("adapter"))


@pytest.fixture(scope="module")
def reference(tiny_tied_model_dir: Path, adapter: Path) -> Trace:
    return train_reference(tiny_tied_model_dir, rows(), BentLoss(), [LEARNING_RATE] * 3, adapter=adapter)


def run_of(model_dir: Path, engine: Engine, adapter: Path | None = None, **more: Any) -> Run:
    model = LORA | ({"adapter_name_or_path": str(adapter)} if adapter else {}) | more.pop("model", {})
    return Run(model_dir, model=model, **engine, **more)


@pytest.mark.gate("{'fsdp2': {}}-2")
@pytest.mark.proof
@pytest.mark.parametrize(
    "engine, world_size",
    [
        (zero(3), 2),
        (FSDP2, 2),
        *(
            pytest.param(engine, world_size, marks=pytest.mark.slow)
            for engine, world_size in [
                (zero(0), 1), (zero(0), 2), (zero(1), 2), (zero(2), 2), (zero(3), 1), (GATHERED, 2), (OFFLOADED, 2),
                (FSDP2, 1), (FSDP2, 4), (ON_HOST, 2), (WAITING, 2), ({"fsdp2": {"fsdp_size": 1}}, 2),
            ]
        ),
    ],
    ids=str,
)  # fmt: skip
def test_three_updates_equal_peft_and_torch_adamw_on_the_whole_batch(
    engine: Engine, world_size: int, rank_pool: Pools, tiny_tied_model_dir: Path, adapter: Path, reference: Trace
) -> None:
    """Gradients of A and B, gradient norms, and the exported weights, in which the adapters are merged."""
    run = run_of(tiny_tied_model_dir, engine, adapter, split=(1, 1) if world_size == 4 else (3, 1, 2))
    assert_same_training(rank_pool(world_size).run(runs.train, run)[0], reference)


def looks(run: Run) -> tuple[list[np.ndarray], ...]:
    """Log-probs without adapters, then those with them, before and after an update; without comes first of all."""
    with trainer(run) as strategy:
        batches = my_micro_batches(run, strategy.dp_rank, strategy.dp_size)

        def look() -> tuple[list[np.ndarray], list[np.ndarray]]:
            base = strategy.base_log_probs(batches, TEMPERATURE)
            own = strategy.log_probs(batches, TEMPERATURE)
            return tuple([o.log_probs.numpy() for o in each if o.log_probs is not None] for each in (base, own))  # type: ignore[return-value]

        before = look()
        one_update(strategy, run)
        return (*before, *look())


def base_of(run: Run) -> list[np.ndarray]:
    """Log-probs under the same strategy without LoRA."""
    with trainer(run) as strategy:
        batches = my_micro_batches(run, strategy.dp_rank, strategy.dp_size)
        outputs = strategy.log_probs(batches, TEMPERATURE)
        return [o.log_probs.numpy() for o in outputs if o.log_probs is not None]


@pytest.mark.gate("{'fsdp2': {}}-2-fp32")
@pytest.mark.parametrize(
    "engine, world_size, dtype",
    [
        (zero(3), 2, "fp32"),
        (FSDP2, 2, "fp32"),
        pytest.param(zero(0), 1, "fp32", marks=pytest.mark.slow),
        pytest.param(zero(2), 2, "bf16", marks=pytest.mark.slow),
        pytest.param(FSDP2, 2, "bf16", marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_with_the_adapters_off_log_probs_are_those_of_the_base_to_the_bit(
    engine: Engine, world_size: int, dtype: str, rank_pool: Pools, tiny_tied_model_dir: Path, adapter: Path
) -> None:
    """Before an update and after it; with them they are peft's, and change with the update. The first pass of all is
    one without adapters: what is trained afterwards must not depend on it."""
    run = run_of(tiny_tied_model_dir, engine, adapter, split=(3, 1, 2), model={"dtype": dtype})
    pool = rank_pool(world_size)
    without = pool.run(base_of, replace(run, model={"dtype": dtype}))
    found = pool.run(looks, run)
    for base, (before, own, after, moved) in zip(without, found, strict=True):
        for want, first, second in zip(base, before, after, strict=True):
            assert np.array_equal(want, first) and np.array_equal(want, second)
        assert max(np.abs(a - b).max() for a, b in zip(own, before, strict=True)) > 0.02
        assert max(np.abs(a - b).max() for a, b in zip(own, moved, strict=True)) > 1e-3


def test_log_probs_with_adapters_are_those_of_peft(rank_pool: Pools, tiny_tied_model_dir: Path, adapter: Path) -> None:
    """fp32: the order of sums differs."""
    run = run_of(tiny_tied_model_dir, zero(0), adapter)
    (_, own, _, _) = rank_pool(1).run(looks, run)[0]
    base = AutoModelForCausalLM.from_pretrained(tiny_tied_model_dir, dtype=torch.float32)
    peft_model = PeftModel.from_pretrained(base, str(adapter))
    with torch.no_grad():
        want = [naive_log_probs(peft_model, row, TEMPERATURE)[0] for row in rows()]
    padded = join(rows())
    for index, row in enumerate(want):
        length = int(padded.lengths[index])
        assert np.abs(own[0][index][:length] - row[0].numpy()).max() < 1e-5


def saved(run: Run, directory: Path) -> tuple[dict[str, np.ndarray], int]:
    """The exported weights of what was written after an update, and the bytes of the checkpoint beside it."""
    with trainer(run) as strategy:
        one_update(strategy, run)
        strategy.save_hf_model(directory / "hf_model")
        (directory / "state").mkdir(exist_ok=True)
        strategy.save_checkpoint(directory / "state")
        size = sum(file.stat().st_size for file in (directory / "state").rglob("*") if file.is_file())
        return runs.exported(strategy), size


@pytest.mark.gate("{'fsdp2': {}}")
@pytest.mark.parametrize("engine", [zero(3), FSDP2], ids=str)
def test_a_model_is_saved_merged_and_as_an_adapter_that_peft_loads(
    engine: Engine, rank_pool: Pools, make_tiny_model_dir: Callable[..., Path], tmp_path: Path
) -> None:
    """Both give the same log-probs, and the merged one is what engines get; lm_head, trained in full, is in both."""
    model_dir = make_tiny_model_dir(tie_word_embeddings=False)
    run = run_of(model_dir, engine, model={"additional_target": "lm_head"})
    exported, size = rank_pool(2).run(saved, run, tmp_path)[0]
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "hf_model", dtype=torch.float32)
    assert largest_difference({n: p.detach().numpy() for n, p in merged.named_parameters()}, exported) == 0
    base = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    start = base.lm_head.weight.detach().numpy().copy()
    adapted = PeftModel.from_pretrained(base, str(tmp_path / "hf_model" / "adapter"))
    with torch.no_grad():
        for row in rows():
            one, other = (naive_log_probs(model, row, TEMPERATURE)[0] for model in (merged, adapted))
            assert torch.allclose(one, other, atol=1e-5)
    assert np.abs(exported["lm_head.weight"] - start).max() > LEARNING_RATE / 2
    base_bytes = sum(parameter.nbytes for parameter in base.parameters())
    assert 0 < size < base_bytes  # adapters, head and the moments of both, where a full state is three times the model


@pytest.mark.gate("{'fsdp2': {}}-2")
@pytest.mark.parametrize(
    "engine, world_size", [pytest.param(zero(2), 2, marks=pytest.mark.slow), (zero(3), 2), (FSDP2, 2)], ids=str
)
def test_a_checkpoint_holds_adapters_and_goes_on_exactly(
    engine: Engine, world_size: int, rank_pool: Pools, tiny_tied_model_dir: Path, adapter: Path, tmp_path: Path
) -> None:
    """Taken up by a trainer whose adapters are new ones."""
    run = run_of(tiny_tied_model_dir, engine, adapter, updates=2, model={"lora_dropout": 0.2})
    pool = rank_pool(world_size)
    want = pool.run(runs.save_after, run, tmp_path)[0]
    size = sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file())
    assert size < 0.5 * (tiny_tied_model_dir / "model.safetensors").stat().st_size
    later = replace(run, updates=1, model=LORA | {"lora_dropout": 0.2})
    got = pool.run(runs.go_on, later, tmp_path)[0].parameters[0]
    assert largest_difference(got, want) == 0


@pytest.mark.gate("{'fsdp2': {}}-2")
@pytest.mark.parametrize("engine, world_size", [(zero(2), 1), (FSDP2, 2)], ids=str)
def test_recomputation_of_either_form_changes_no_gradient(
    engine: Engine, world_size: int, rank_pool: Pools, tiny_tied_model_dir: Path, adapter: Path, reference: Trace
) -> None:
    """The reentrant form recomputes for inputs that want a gradient only, and frozen embeddings give none."""
    model = {"disable_gradient_checkpointing": False, "gradient_checkpointing_use_reentrant": True}
    run = run_of(tiny_tied_model_dir, engine, adapter, updates=1, model=model)
    got = rank_pool(world_size).run(runs.train, run)[0]
    assert largest_difference(got.gradients, reference.gradients) < 1e-6


@pytest.mark.proof
@pytest.mark.parametrize("engine, world_size", [pytest.param(zero(3), 2, marks=pytest.mark.slow), (FSDP2, 2)], ids=str)
def test_a_critic_learns_its_head_in_full(
    engine: Engine, world_size: int, rank_pool: Pools, tiny_model_dir: Path, tmp_path: Path
) -> None:
    """Against peft on a token classifier, whose head peft trains as well."""
    start = save_critic(tiny_model_dir, tmp_path / "critic")
    more = {"target_modules": ["q_proj", "down_proj"], "modules_to_save": ["score"]}
    an_adapter(start, tmp_path / "adapter", **more)
    want = train_reference(
        tmp_path / "critic", rows(), SquaredValueLoss(), [LEARNING_RATE] * 3, adapter=tmp_path / "adapter"
    )
    want.gradients = {name.replace(".modules_to_save.default", ""): g for name, g in want.gradients.items()}
    torch.manual_seed(0)
    again = AutoModelForTokenClassification.from_pretrained(tmp_path / "critic", dtype=torch.float32)
    an_adapter(again, tmp_path / "headless", target_modules=["q_proj", "down_proj"])
    run = run_of(
        tmp_path / "critic",
        engine,
        tmp_path / "headless",
        split=(3, 1, 2),
        loss=SquaredValueLoss(),
        role="critic",
        model={"lora_target": ["q_proj", "down_proj"]},
    )
    assert_same_training(rank_pool(world_size).run(runs.train, run)[0], want)
