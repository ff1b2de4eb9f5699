"""Training of every type that was tried, against Hugging Face + torch.optim.AdamW in one process, which sees each row
alone and unpadded; and what is saved after it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from transformers.core_model_loading import revert_weight_conversion

from roll.configs.strategies.model_facts import STATES, UNPACKED
from tests.helpers.processes import RankPool
from tests.parity.compare import assert_same_training, largest_difference
from tests.parity.families.models import save_tiny
from tests.parity.families.page import problems, record
from tests.parity.families.test_numbers import ALONE
from tests.parity.strategies import runs
from tests.parity.strategies.reference import LEARNING_RATE, BentLoss, Trace, rows, train_reference
from tests.parity.strategies.runs import Run

Pools = Callable[[int], RankPool]
SPREAD = 0.06
OWN: dict[str, dict[str, Any]] = {"youtu": {"pad_token_id": None}}  # transformers empties its embedding's row
_ROUGHER = {"gradient_tolerance": 5e-4, "parameter_tolerance": 1e-4, "norm_tolerance": 5e-3}
ROUGH: dict[str, dict[str, Any]] = dict.fromkeys(("gemma4_text", "gemma4_unified_text"), _ROUGHER)
"""Attention without a scale: a gradient of 4 in fp32 is off that in fp64 by 1.2e-4, in one process."""
LOSS, MAX_NORM, DECAY = BentLoss(entropy_coef=0.3), 0.05, 0.5
TRAINERS: dict[str, dict[str, Any]] = {"zero2": {"stage": 2}, "zero3": {"stage": 3}, "fsdp2": {"fsdp2": {}}}
FIRST = ("longcat_flash",)  # experts that are called in a loop, not as often on one rank as on another
EVERY = sorted({*ALONE, *(STATES - UNPACKED.keys())})


def save(kind: str, directory: Path) -> Path:
    return save_tiny(kind, directory, SPREAD, vocab_size=296, **OWN.get(kind, {}))


def as_sent(trace: Trace, model_dir: Path) -> Trace:
    """The weights by the names of the model's files, which trainers send, with what the files hold beside them."""
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    stored = model.state_dict().keys()
    kept = {name: buffer for name, buffer in model.named_buffers() if name in stored}
    sent = []
    for parameters in trace.parameters:
        weights = {name: torch.from_numpy(values) for name, values in parameters.items()}
        named = revert_weight_conversion(model, weights | kept).items()
        sent.append({name: tensor.numpy() for name, tensor in named})
    return replace(trace, parameters=sent)


@pytest.mark.parametrize(
    "kind", [kind if kind in FIRST else pytest.param(kind, marks=pytest.mark.slow) for kind in EVERY]
)
def test_three_updates_equal_torch_adamw(kind: str, rank_pool: Pools, tmp_path: Path) -> None:
    """Gradient of the first update, parameters and gradient norm of three: clipped, with weight decay and entropy,
    activations computed again, micro batches of other sizes on two ranks, padded and, where the type can be, packed."""
    model_dir = save(kind, tmp_path)
    assert problems(model_dir, "actor_train") == []
    rates = [LEARNING_RATE] * 3
    want = as_sent(train_reference(model_dir, rows(), LOSS, rates, max_norm=MAX_NORM, weight_decay=DECAY), model_dir)
    run = Run(
        model_dir,
        split=(3, 1, 2),
        training={"weight_decay": DECAY},
        model={"disable_gradient_checkpointing": False},
        max_norm=MAX_NORM,
        loss=LOSS,
    )
    seen = []
    for packs in (False,) if problems(model_dir, "actor_train", packs=True) else (False, True):
        for name in ("zero3", "fsdp2") if packs else TRAINERS:
            got = rank_pool(2).run(runs.train, replace(run, packs=packs, **TRAINERS[name]))[0]
            assert_same_training(got, want, **ROUGH.get(kind, {}))
            pairs = zip(got.parameters, want.parameters, strict=True)
            seen.append(max(largest_difference(*pair) for pair in pairs))
    record(kind, "updates", max(seen))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["granitemoe", "hrm_text", "youtu"])
def test_a_saved_model_has_what_was_sent_by_the_names_of_its_start(kind: str, rank_pool: Pools, tmp_path: Path) -> None:
    """After an update of either trainer, whose ranks have a part of the weights each; the head where it is the
    embedding is in one file only."""
    model_dir, start = save(kind, tmp_path / "start"), {}
    for name, tensor in load_file(model_dir / "model.safetensors").items():
        start[name] = tuple(tensor.shape)
    for trainer in ("zero3", "fsdp2"):
        saved = tmp_path / trainer
        run = Run(model_dir, loss=LOSS, **TRAINERS[trainer])
        sent = rank_pool(2).run(runs.saved_as_hugging_face, run, saved)[0][1]
        stored = load_file(saved / "model.safetensors")
        assert largest_difference(sent, {name: tensor.numpy() for name, tensor in stored.items()}) == 0
        shapes = {name: tuple(tensor.shape) for name, tensor in stored.items()}
        assert start.items() - shapes.items() in (set(), {("lm_head.weight", start.get("lm_head.weight"))})
        assert shapes.items() <= start.items()
        loaded: Any = AutoModelForCausalLM.from_pretrained(saved, output_loading_info=True)
        report = loaded[1]
        assert not report["missing_keys"] and not report["unexpected_keys"]
