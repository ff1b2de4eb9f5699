"""The states of recurrences that engines keep for each sequence."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM
from transformers.models.auto.auto_mappings import CONFIG_MAPPING_NAMES

from roll.configs.memory.engine import cache_bytes_per_token, state_bytes_per_sequence
from roll.configs.memory.layer_shape import ModelShape
from roll.configs.memory.memory_points import MemoryPlan, memory_plan
from roll.configs.memory.model_shape import model_shape
from roll.configs.memory.parts import GB, Part
from roll.configs.memory.recurrence import gated_delta, kimi_delta, mamba, mamba2
from roll.run.spec import PIPELINES
from roll.run.start import memory_report
from roll.run.start.load import load
from tests.unit.configs.memory.test_figures import EXAMPLES
from tests.unit.configs.memory.test_forms import PUBLISHED
from tests.unit.configs.memory.test_recurrence import SIZES

CACHED = ("qwen3_next", "qwen3_5_text", "olmo_hybrid", "kimi_linear", "bamba", "falcon_h1", "granitemoehybrid",
          "nemotron_h", "jamba", "lfm2")  # fmt: skip
"""Types that hf_infer samples from."""


def shape_of(config: dict[str, Any]) -> ModelShape:
    shape, why_not = model_shape(config)
    assert shape is not None, why_not
    return shape


@pytest.mark.slow
@pytest.mark.parametrize("kind", CACHED)
def test_states_of_transformers_are_those_of_the_plan(kind: str) -> None:
    """Keys and values as well, to the byte, after a pass over eight tokens of two rows."""
    config = getattr(transformers, CONFIG_MAPPING_NAMES[kind])(**SIZES[kind])
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    with torch.no_grad():
        cache = model(input_ids=torch.full((2, 8), 5), use_cache=True).past_key_values
    states = keys = 0
    for layer in cache.layers:
        for name in ("conv_states", "recurrent_states"):
            held = getattr(layer, name, None) or {}
            states += sum(
                each.nbytes for each in (held.values() if isinstance(held, dict) else held) if each is not None
            )
        for name in ("keys", "values"):
            held = getattr(layer, name, None)
            keys += 0 if held is None else held.nbytes
    shape = shape_of(config.to_dict())
    assert states == 2 * state_bytes_per_sequence(shape, 2, state_bytes=4, inputs=0)
    assert keys == 2 * 8 * cache_bytes_per_token(shape, 2)


@pytest.mark.slow
def test_states_of_vllm_are_those_of_the_plan() -> None:
    """Elements of one layer, by vLLM's own arithmetic."""
    shapes = pytest.importorskip("vllm.model_executor.layers.mamba.mamba_utils").MambaStateShapeCalculator
    pairs = [
        (gated_delta(16, 32, 128, 96, 4), shapes.gated_delta_net_state_shape(1, 16, 32, 128, 96, 4)),
        (kimi_delta(32, 128, 4), shapes.kda_state_shape(1, 32, 128)),
        (mamba2(128, 64, 8, 128, 4, 256), shapes.mamba2_state_shape(1, 8192, 8, 128, 64, 128, 4)),
        (mamba(8192, 16, 256, 4), shapes.mamba1_state_shape(1, 8192, 16, 4)),
    ]
    for ours, (window, state) in pairs:
        assert (ours.channels * (ours.kernel - 1), ours.state) == (math.prod(window), math.prod(state))


SGLANG = (
    "actor_infer.strategy_args.strategy_name=sglang",
    "actor_infer.strategy_args.strategy_config={tp_size: 2}",
)


class Planned:
    """The memory of a shipped recipe with a published model."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch):
        self._folder, self._monkeypatch = folder, monkeypatch

    def __call__(self, name: str, *overrides: str, kernels: tuple[str, ...] = ()) -> MemoryPlan:
        (self._folder / "config.json").write_text(json.dumps(PUBLISHED[name][1]))
        self._monkeypatch.setenv("MODEL", str(self._folder))
        self._monkeypatch.setattr(memory_report, "is_installed", lambda module: module in kernels)
        loaded = load(PIPELINES["rlvr"], EXAMPLES / "qwen2.5-7B-rlvr", "rlvr_zero3", overrides)
        facts, missing = memory_report.gather_facts(loaded.config, loaded.plan, 80 * GB)
        assert missing == []
        return memory_plan(loaded.plan.layout, facts)


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Planned:
    return Planned(tmp_path, monkeypatch)


def activations(plan: MemoryPlan) -> Part:
    return next(part for part in plan.roles["actor_train"].passes["training"] if part.name.startswith("activations"))


def cache(plan: MemoryPlan) -> Part:
    (part,) = plan.roles["actor_infer"].states["kv_cache"]
    return part


@pytest.mark.slow
def test_without_kernels_a_plan_says_what_they_would_save(planned: Planned) -> None:
    without, installed = activations(planned("Bamba-9B")), activations(planned("Bamba-9B", kernels=("mamba_ssm",)))
    assert installed.name == "activations"
    assert without.name == f"activations (with the kernels of mamba-ssm ~{installed.num_bytes / GB:.1f})"
    assert without.num_bytes > 3 * installed.num_bytes
    assert activations(planned("LFM2-1.2B")).name == "activations"  # kernels keep as much
    adapted = activations(planned("Bamba-9B", "actor_train.model_args.lora_target=q_proj", kernels=("mamba_ssm",)))
    assert installed.num_bytes < adapted.num_bytes < without.num_bytes


def test_states_have_the_bytes_that_were_worked_out_by_hand() -> None:
    """Qwen3-Next: 36 layers with 32 heads of 128 x 128, and 8192 channels of convolutions; 12 of attention."""
    shape = shape_of(PUBLISHED["Qwen3-Next-80B-A3B"][1])
    assert state_bytes_per_sequence(shape, 2, None, -1) == 36 * (32 * 128 * 128 + 3 * 8192) * 2
    assert state_bytes_per_sequence(shape, 2, 4, -1, tensor=4) == 36 * (32 * 128 * 128 * 2 + 3 * 8192) * 2 / 4
    assert cache_bytes_per_token(shape, 2) == 12 * 2 * 2 * 256 * 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "states", "size", "part"),
    [
        ((), 2, 2, 0.0),
        (("actor_infer.strategy_args.strategy_config.enable_prefix_caching=false",), 1, 2, 0.0),
        (SGLANG, 3, 4, 0.9 / 1.9),
        ((*SGLANG, "+actor_infer.strategy_args.strategy_config.disable_radix_cache=true"), 1, 4, 0.9 / 1.9),
    ],
    ids=("vllm", "no-shared-prefixes", "sglang", "sglang-no-shared-prefixes"),
)
def test_an_engine_has_room_for_sequences(
    planned: Planned, overrides: tuple[str, ...], states: int, size: int, part: float
) -> None:
    """vLLM has one pool for states and keys, SGLang one for each."""
    plan = planned("Bamba-9B", *overrides)
    tensor, longest, room = 2, 5120, cache(plan).num_bytes
    shape = shape_of(PUBLISHED["Bamba-9B"][1])
    of_states = states * state_bytes_per_sequence(shape, 2, size, -1, tensor)
    of_keys = longest * cache_bytes_per_token(shape, 2, tensor)
    sequences = min(room * part / of_states, room * (1 - part) / of_keys) if part else room / (of_states + of_keys)
    assert cache(plan).name == f"key-value cache and states for {sequences:.0f} sequences of 5.12 k tokens"


def test_states_in_fp32_where_vllm_wants_them() -> None:
    in_fp32 = {
        name: {recurrence.in_fp32 for recurrence in shape_of(PUBLISHED[name][1]).recurrences}
        for name in ("Kimi-Linear-48B-A3B", "NVIDIA-Nemotron-Nano-9B-v2", "Bamba-9B")
    }
    assert in_fp32 == {"Kimi-Linear-48B-A3B": {True}, "NVIDIA-Nemotron-Nano-9B-v2": {True}, "Bamba-9B": {False}}
