"""Shapes that transformers was asked for: their weights against those of real models of every type that was tried, and
what layers keep and compute against autograd, a count of all products, and the closed forms of common families."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_vision import VISION_ARCHITECTURES, build_vision_model, build_vision_tokenizer
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoModelForCausalLM,
    PretrainedConfig,
)
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from roll.configs.memory import model_shape as asked
from roll.configs.memory.closed_forms import closed_form
from roll.configs.memory.engine import cache_bytes_per_token, state_bytes_per_sequence
from roll.configs.memory.flops import forward_flops, training_flops
from roll.configs.memory.layer_shape import ModelShape
from roll.configs.memory.model_shape import model_shape
from roll.configs.memory.passes import layer_bytes
from roll.configs.memory.trained import is_frozen
from roll.configs.strategies.choice import Choice
from roll.configs.strategies.model_facts import TRIED
from roll.configs.tables.families import FAMILIES
from roll.configs.tables.roles import ACTOR_TRAIN
from roll.features.lora.model_checks import lora_model_problems
from roll.models.sequences.packed_attention import of_one_width
from tests.helpers.configs import config as of_run
from tests.parity.families.models import tiny_config

ROWS, LENGTH = 2, 256
TYPES = sorted(TRIED & MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.keys())
UNKNOWN = "longcat_flash"  # its experts look at numbers
FIRST = (
    *FAMILIES,
    *("apertus", "aria_text", "bamba", "bloom", "diffllama", "granitemoe", "granitemoehybrid", "hrm_text", "hy_v4"),
    *("jamba", "kimi_linear", "lfm2_moe", "llama4_text", "longcat_flash", "minimax", "nemotron_h", "phi", "phi3"),
    *("qwen3_next", "recurrent_gemma"),
)
NEXT, BAMBA, KERNELS = "Qwen3-Next-80B-A3B", "bamba", "bamba with kernels"
PUBLISHED: Mapping[str, Any] = {
    "model_type": "qwen3_next", "vocab_size": 151_936, "hidden_size": 2048, "intermediate_size": 5120,
    "num_hidden_layers": 48, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256,
    "full_attention_interval": 4, "linear_conv_kernel_dim": 4, "linear_value_head_dim": 128, "num_experts": 512,
    "num_experts_per_tok": 10, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
    "decoder_sparse_step": 1, "mlp_only_layers": [], "tie_word_embeddings": False, "linear_num_key_heads": 16,
    "linear_num_value_heads": 32, "linear_key_head_dim": 128,
}  # fmt: skip
"""The config.json of Qwen3-Next-80B-A3B, as its authors wrote it."""


def wide_config(kind: str) -> PretrainedConfig:
    """Hidden states of 256, and MLPs three times as wide."""
    known = tiny_config(kind).to_dict()
    changes: dict[str, Any] = {key: 0.0 for key in known if "drop" in key or "jitter" in key}
    widths = ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")
    changes |= {key: 768 for key in widths if isinstance(known.get(key), int)}
    changes |= {"alibi": False} if kind == "falcon" else {"head_dim": 128} if kind == "mamba2" else {}
    return tiny_config(kind, scale=8, max_position_embeddings=LENGTH, **changes)


def said_of(models: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What one process says of all these models, of one also with kernels."""
    questions = [{"model": model, "kernels": []} for model in models.values()]
    questions.append({"model": models[BAMBA], "kernels": ["mamba_ssm", "causal_conv1d"]})
    command = [sys.executable, "-m", "roll.run.start.measure"]
    done = subprocess.run(command, input=json.dumps(questions), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return dict(zip((*models, KERNELS), json.loads(done.stdout), strict=True))


@pytest.fixture(scope="module")
def answers() -> dict[str, dict[str, Any]]:
    models = {kind: json.loads(wide_config(kind).to_json_string()) for kind in FIRST} | {NEXT: PUBLISHED}
    models |= {arch: json.loads(seeing(arch).config.to_json_string()) for arch in VISION_ARCHITECTURES}
    return said_of(models)


@pytest.fixture(scope="module")
def shapes(answers: dict[str, dict[str, Any]]) -> dict[str, ModelShape]:
    return {kind: asked._shape(dict(answer)) for kind, answer in answers.items() if "why_not" not in answer}


def seeing(arch: str) -> Any:
    return build_vision_model(build_vision_tokenizer(arch), arch=arch)


def names_and_sizes(weights: Mapping[str, int]) -> Counter[str]:
    """Elements by name; those of experts together, which files hold apart."""
    sizes = Counter[str]()
    for name, size in weights.items():
        sizes["experts" if ".experts." in name else name] += size
    return sizes


def check_weights(shape: ModelShape, model: Any) -> None:
    found = names_and_sizes({name: weight.numel() for name, weight in model.named_parameters()})
    assert names_and_sizes({weight.name: weight.num_elements for weight in shape.weights}) == found
    assert shape.ties_head == (model.get_output_embeddings().weight is model.get_input_embeddings().weight)


@pytest.mark.parametrize("arch", VISION_ARCHITECTURES)
def test_every_weight_is_one_of_a_model_that_sees(arch: str, shapes: dict[str, ModelShape]) -> None:
    check_weights(shapes[arch], seeing(arch))


@pytest.mark.slow
def test_every_weight_is_one_of_the_model_of_every_type() -> None:
    configs = {kind: wide_config(kind) for kind in TYPES}
    said = said_of({kind: json.loads(config.to_json_string()) for kind, config in configs.items()})
    assert "nonzero" in said.pop(UNKNOWN)["why_not"]
    for kind, config in configs.items():
        if kind != UNKNOWN:
            with torch.device("meta"):
                check_weights(asked._shape(said[kind]), AutoModelForCausalLM.from_config(config))


@pytest.mark.parametrize("family", [kind for kind, family in FAMILIES.items() if not family.is_measured])
def test_a_closed_form_is_what_transformers_says(family: str, shapes: dict[str, ModelShape]) -> None:
    """Exact but for what layers keep, where numbers of each head and angles of rotary embeddings are left out."""
    ours, theirs = closed_form(json.loads(wide_config(family).to_json_string())), shapes[family]
    assert ours is not None
    names = ("products", "trained_products", "ties_head", "hidden_size", "vocab_size", "num_elements", "num_layers")
    assert [getattr(ours, name) for name in names] == [getattr(theirs, name) for name in names]
    cuts = [Counter({each.cut: each.num_elements for each in shape.weights}) for shape in (ours, theirs)]
    assert cuts[0]["expert"] == cuts[1]["expert"]
    for mine, other in zip(ours.layers, theirs.layers, strict=True):
        names = ("heads", "pair_products", "cached", "cache_cuts", "experts_per_token", "trained_passes")
        assert [getattr(mine, name) for name in names] == [getattr(other, name) for name in names]
        assert mine.products == pytest.approx(other.products, rel=0.01)
        assert layer_bytes(mine, 2) == pytest.approx(layer_bytes(other, 2), rel=0.05)


class _Kernel(torch.autograd.Function):
    """Keeps what a kernel keeps on GPUs: queries, keys, values, their mixture, and a number for each head."""

    @staticmethod
    def forward(ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        batch, heads, length, width = query.shape
        output = query.new_zeros(batch, length, heads, width)
        ctx.save_for_backward(query, key, value, output, torch.zeros(batch, heads, length))
        return output


def stand_in(_: nn.Module, query: Any, key: Any, value: Any, *__: object, **___: object) -> tuple[Any, None]:
    return _Kernel.apply(*of_one_width(query, key, value))[..., : value.shape[-1]], None


def kept_by_layers(kind: str) -> float:
    """Bytes per token that autograd saves while the layers of a model compute on real numbers."""
    AttentionInterface.register("stand_in", stand_in)  # type: ignore[arg-type]
    AttentionMaskInterface.register("stand_in", lambda *_, **__: None)  # type: ignore[arg-type]
    config = wide_config(kind)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="stand_in").train()
    storages: dict[int, torch.UntypedStorage] = {}
    inside = [0]

    def note(tensor: torch.Tensor) -> torch.Tensor:
        if inside[0]:
            storages[tensor.untyped_storage()._cdata] = tensor.untyped_storage()
        return tensor

    def enter(*_: object) -> None:
        inside[0] += 1

    def leave(*_: object) -> None:
        inside[0] -= 1

    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer):
            module.register_forward_pre_hook(enter)
            module.register_forward_hook(leave)
    ids = torch.randint(3, 60, (ROWS, LENGTH), generator=torch.Generator().manual_seed(0))
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        model.base_model(input_ids=ids, use_cache=False)
    not_kept = {each.untyped_storage()._cdata for each in (*model.parameters(), *model.buffers())}
    return sum(storage.nbytes() for key, storage in storages.items() if key not in not_kept) / ids.numel()


@pytest.mark.parametrize("kind", ["apertus", "glm4_moe", "gpt_oss", "hrm_text", "phi3", "qwen3_next"])
def test_layers_keep_what_autograd_saves(kind: str, shapes: dict[str, ModelShape]) -> None:
    """Angles of rotary embeddings are left out, which are kept once for all layers."""
    kept = sum(layer.trained_passes * layer_bytes(layer, 2) for layer in shapes[kind].layers)
    assert kept == pytest.approx(kept_by_layers(kind), rel=0.03)


@pytest.mark.parametrize("kind", ["bloom", "diffllama", "hrm_text", "qwen3_moe"])
def test_an_update_costs_what_torch_counts(kind: str, shapes: dict[str, ModelShape]) -> None:
    """torch counts the products of eager attention with later tokens as well: pairs are T x T then. Rotary embeddings
    are a product, too, of nothing that is counted here, and so are a mixture's weights."""
    config, tokens = wide_config(kind), 16
    config._experts_implementation = "eager"
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").train()
    with FlopCounterMode(display=False) as counter:
        logits = model(torch.arange(tokens)[None], use_cache=False).logits
        forward = counter.get_total_flops()
        logits.sum().backward()
    assert forward == pytest.approx(forward_flops(shapes[kind], tokens, tokens**2), rel=0.02)
    assert counter.get_total_flops() == pytest.approx(training_flops(shapes[kind], tokens, tokens**2), rel=0.03)


def test_a_published_model_has_the_numbers_that_its_authors_say(shapes: dict[str, ModelShape]) -> None:
    """80 B parameters, 3 B of a token and those of the head. 36 layers have 32 heads with a state of 128 x 128 and
    8192 channels of convolutions, 12 have two heads of keys and values."""
    shape = shapes[NEXT]
    assert shape.num_elements == pytest.approx(79.7e9, rel=0.01)
    assert shape.products + shape.head_products == pytest.approx(3.56e9, rel=0.03)
    assert state_bytes_per_sequence(shape, 2, None) == 36 * (32 * 128 * 128 + 4 * 8192) * 2
    assert state_bytes_per_sequence(shape, 2, 4, tensor=4) == 36 * (32 * 128 * 128 * 2 + 4 * 8192) * 2 / 4
    assert cache_bytes_per_token(shape, 2) == 12 * 2 * 2 * 256 * 2
    assert (shape.experts_per_token, shape.cache_cuts, shape.lacking) == (10, 2, ("causal_conv1d", "fla"))


def test_kernels_of_recurrences_keep_less(shapes: dict[str, ModelShape]) -> None:
    without, installed = (sum(layer_bytes(layer, 2) for layer in shapes[kind].layers) for kind in (BAMBA, KERNELS))
    assert installed < 0.6 * without
    assert (shapes[BAMBA].lacking, shapes[KERNELS].lacking) == (("causal_conv1d", "mamba_ssm"), ())
    assert shapes["nemotron_h"].states_in_fp32 and not shapes[BAMBA].states_in_fp32


@pytest.mark.parametrize(
    ("kind", "target", "said"),
    [
        ("nemotron_h", "q_proj, in_proj, up_proj, down_proj", ""),
        *((kind, "all-linear", "") for kind in ("qwen3_next", "jamba", "lfm2_moe", "kimi_linear", "recurrent_gemma")),
        *((kind, "q_proj, w1, w2, w3", "") for kind in ("lfm2_moe", "kimi_linear", "minimax")),
        ("granitemoehybrid", "q_proj, gate_proj", "no linear layer of the model is named gate_proj. It has "),
        ("granitemoe", "q_proj, block_sparse_moe.input_linear, output_linear", ""),
        ("aria_text", "q_proj, fc1, fc2", ""),
        ("hy_v4", "q_b_proj, gate_up_proj", ""),
        ("llama4_text", "q_proj, gate_up_proj", "no linear layer of the model is named gate_up_proj. It has "),
        ("jamba", "q_proj, up_proj, down_proj", "gate_proj and up_proj of experts are one matrix"),
        ("qwen3_next", "in_proj_qkv", "no linear layer of the model is named in_proj_qkv. It has "),
    ],
)
def test_layers_that_can_have_adapters_are_known(
    kind: str, target: str, said: str, shapes: dict[str, ModelShape], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("roll.features.lora.model_checks.model_shape", lambda *_: (shapes[kind], ""))
    worker = of_run({"actor_train.model_args": {"lora_target": target}}).actor_train
    found = [problem.text for problem in lora_model_problems(Choice(ACTOR_TRAIN, worker), {"model_type": kind})]
    assert [said in text for text in found] == [True] * bool(said), found


def test_words_of_recipes_name_parts_of_a_model_that_sees(shapes: dict[str, ModelShape]) -> None:
    names = {
        word: {weight.name for weight in shapes["qwen3_vl"].weights if is_frozen(weight, (word,))}
        for word in ("vision_model", "projector")
    }
    assert all(name.startswith("model.visual.") and "merger" not in name for name in names["vision_model"])
    assert all("merger" in name for name in names["projector"])
    tower = {weight.name for weight in shapes["qwen3_vl"].weights if weight.name.startswith("model.visual.")}
    assert names["vision_model"] | names["projector"] == tower
    assert {weight.cut for weight in shapes["qwen3_vl"].weights if weight.name in tower} == {"whole"}


def test_an_answer_is_kept_and_one_that_may_change_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = [{"why_not": "it took too long", "is_final": False}, {"why_not": "unknown type new", "is_final": True}]
    monkeypatch.setattr(asked, "CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(asked, "_ask", lambda _: said.pop(0))
    reasons = []
    for _ in range(3):
        asked._measured.cache_clear()
        reasons.append(model_shape({"model_type": "new"})[1].partition("cannot build it: ")[2])
    asked._measured.cache_clear()
    assert reasons == ["it took too long", "unknown type new", "unknown type new"]
