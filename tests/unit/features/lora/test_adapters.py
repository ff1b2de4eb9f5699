"""Adapters on a model: which layers get them, what is refused, what switching them off and merging them means."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, GraniteMoeHybridConfig
from transformers.models.granitemoehybrid import modeling_granitemoehybrid

from roll.configs.sections.model import ModelArgs
from roll.errors import StrategyError
from roll.models.exports import plain_name
from roll.models.hf import LogProbHead
from roll.models.loading import LoadedModel, load_model, load_policy, write_hf_model
from tests.helpers.cases import cases
from tests.parity.families.models import save_tiny
from tests.parity.megatron import models

GRANITE = GraniteMoeHybridConfig(
    vocab_size=64, hidden_size=32, intermediate_size=48, shared_intermediate_size=48, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, num_local_experts=0, mamba_n_heads=8, mamba_d_head=8,
    mamba_d_state=8, mamba_n_groups=1, layer_types=["linear_attention", "full_attention"],
)  # fmt: skip


def loaded(model_dir: Path, **more: Any) -> LoadedModel:
    """With a rank of 2, unless told otherwise."""
    settings = {"lora_target": "all-linear", "lora_rank": 2} | more
    args = ModelArgs.model_validate({"model_name_or_path": str(model_dir), "dtype": "fp32"} | settings)
    torch.manual_seed(0)
    return load_model(args, "lm", with_adapters=True)


def with_b(model: LoadedModel) -> LoadedModel:
    """Adapters that add something."""
    for name, parameter in model.module.named_parameters():
        if ".lora_B." in name or name.endswith("_lora_B"):
            torch.nn.init.normal_(parameter, std=0.1)
    return model


def merged(model: LoadedModel) -> dict[str, torch.Tensor]:
    parameters = dict(model.module.named_parameters())
    return {export.name: export.value(parameters.__getitem__, torch.float32) for export in model.exports}


def layers(model: LoadedModel) -> set[str]:
    return {export.name.removesuffix(".weight") for export in model.exports if export.adapter}


def adapter_dir(model_dir: Path, directory: Path) -> Path:
    """Of rank 2 on all linear layers."""
    model = with_b(loaded(model_dir))
    trained = {model.hf_names[n]: p.detach() for n, p in model.module.named_parameters() if p.requires_grad}
    args = ModelArgs.model_validate({"model_name_or_path": str(model_dir), "dtype": "fp32"})
    write_hf_model(directory, model, args, "lm", merged(model), trained)
    return directory / "adapter"


@cases("given, found")
def test_a_target_is_the_last_part_of_a_name(given: dict[str, Any], found: list[str], tiny_model_dir: Path) -> None:
    assert layers(loaded(tiny_model_dir, **given)) == {f"model.layers.{name}" for name in found}


def test_targets_scale_and_dropout_are_those_of_peft(tiny_model_dir: Path) -> None:
    model = loaded(tiny_model_dir)
    assert len(layers(model)) == 14 and not [name for name in layers(model) if "lm_head" in name]
    trained = [name for name, parameter in model.module.named_parameters() if parameter.requires_grad]
    assert len(trained) == 28 and all(".lora_" in name for name in trained)
    for given, scale in (({}, 2.0), ({"lora_alpha": 3}, 0.75), ({"lora_alpha": 3, "use_rslora": True}, 1.5)):
        exports = loaded(tiny_model_dir, lora_rank=4, **given).exports
        assert {export.adapter[2] for export in exports if export.adapter} == {scale}
    model = with_b(loaded(tiny_model_dir, lora_dropout=0.5))
    ids, mask = torch.arange(3, 33).reshape(2, 15), torch.ones(2, 15, dtype=torch.bool)
    assert model.adapters is not None
    with torch.no_grad():
        with model.adapters.without_dropout():
            assert torch.equal(model.module(ids, mask)[0], model.module(ids, mask)[0])
        assert not torch.equal(model.module(ids, mask)[0], model.module(ids, mask)[0])
    with pytest.raises(StrategyError, match="additional_target trains every layer in full that lora_target names"):
        loaded(tiny_model_dir, lora_target="q_proj, o_proj", additional_target="self_attn")


@cases("given, said")
def test_what_does_not_fit_the_model_is_refused(given: dict[str, Any], said: str, tiny_tied_model_dir: Path) -> None:
    with pytest.raises(StrategyError, match=said):
        loaded(tiny_tied_model_dir, **given)


@cases("given, said")
def test_an_adapter_to_start_from_must_be_the_one_that_is_described(
    given: dict[str, Any], said: str, tiny_model_dir: Path, tmp_path: Path
) -> None:
    place = adapter_dir(tiny_model_dir, tmp_path)
    with pytest.raises(StrategyError, match=said):
        loaded(tiny_model_dir, adapter_name_or_path=str(place), **given)


def test_an_adapter_that_was_saved_is_taken_up_as_it_was(tiny_model_dir: Path, tmp_path: Path) -> None:
    place = adapter_dir(tiny_model_dir, tmp_path)
    want = merged(load_policy(ModelArgs(model_name_or_path=str(tmp_path), dtype="fp32")))
    again = merged(loaded(tiny_model_dir, adapter_name_or_path=str(place)))
    assert want.keys() == again.keys() and all(torch.equal(want[name], again[name]) for name in want)


def test_adapters_of_indexers_are_saved_and_taken_up_though_no_gradient_reaches_them(tmp_path: Path) -> None:
    """`all-linear` of DeepSeek-V3.2 names layers of its indexers."""
    base = save_tiny("deepseek_v32", tmp_path)
    place = adapter_dir(base, tmp_path / "saved")
    again = loaded(base, adapter_name_or_path=str(place))
    factors = [(name, p) for name, p in again.module.named_parameters() if ".lora_B." in name and ".indexer." in name]
    assert factors and all(bool(factor.any()) for _, factor in factors)


def test_merging_leaves_the_trained_weights_alone_and_equals_peft(tiny_model_dir: Path) -> None:
    model = with_b(loaded(tiny_model_dir))
    before = {name: parameter.detach().clone() for name, parameter in model.module.named_parameters()}
    found = merged(model)
    assert all(torch.equal(before[name], parameter) for name, parameter in model.module.named_parameters())
    for name, module in model.pretrained.named_modules():
        if hasattr(module, "get_delta_weight"):
            want = module.base_layer.weight + module.get_delta_weight("default")  # type: ignore[operator,union-attr]
            assert torch.allclose(found[f"{name}.weight"], want, atol=1e-7)


def test_switched_off_everything_is_the_base_and_stays_trainable(tiny_model_dir: Path) -> None:
    """Also the head that additional_target trains in full, whether its logits are made whole or in tiles."""
    base = load_policy(ModelArgs(model_name_or_path=str(tiny_model_dir), dtype="fp32"))
    model = with_b(loaded(tiny_model_dir, additional_target="lm_head"))
    head = model.module.head
    assert isinstance(head, LogProbHead) and model.adapters is not None
    with torch.no_grad():
        next(p for n, p in model.module.named_parameters() if "modules_to_save" in n).mul_(1.5)
    ids, mask = torch.arange(3, 33).reshape(2, 15), torch.ones(2, 15, dtype=torch.bool)
    trained = [name for name, parameter in model.module.named_parameters() if parameter.requires_grad]
    for positions in (100, 2):
        head.logits_per_chunk = base.module.head.logits_per_chunk = positions * 40  # type: ignore[union-attr]
        with model.adapters.off(), torch.no_grad():
            assert [n for n, p in model.module.named_parameters() if p.requires_grad] == trained
            assert torch.equal(model.module(ids, mask)[0], base.module(ids, mask)[0])
        with torch.no_grad():
            assert (model.module(ids, mask)[0] - base.module(ids, mask)[0]).abs().max() > 0.05
    assert [n for n, p in model.module.named_parameters() if p.requires_grad] == trained


def test_an_adapter_of_the_head_is_part_of_its_log_probs_and_learns(tiny_model_dir: Path) -> None:
    """Against peft's own forward pass of the whole model with dense logits; and the head without it, to the bit."""
    model = with_b(loaded(tiny_model_dir, lora_target="lm_head, q_proj"))
    assert "lm_head" in layers(model) and model.adapters is not None
    ids, mask = torch.arange(3, 33).reshape(2, 15), torch.ones(2, 15, dtype=torch.bool)
    head = {n: p for n, p in model.pretrained.named_parameters() if "lm_head.lora" in n}
    found = []
    for forward in (
        lambda: model.module(ids, mask)[0][:, 1:],
        lambda: model.pretrained(input_ids=ids).logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0],
    ):
        log_probs = forward()
        (log_probs * torch.linspace(-1, 1, 14)).sum().backward()
        found.append([log_probs.detach(), *(p.grad for p in head.values())])
        model.module.zero_grad()
    for mine, theirs in zip(*found, strict=True):
        assert mine.any()
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    base = load_policy(ModelArgs(model_name_or_path=str(tiny_model_dir), dtype="fp32"))
    with model.adapters.off(), torch.no_grad():
        assert torch.equal(model.module(ids, mask)[0], base.module(ids, mask)[0])
    want = base.pretrained.lm_head.weight + model.pretrained.lm_head.get_delta_weight("default")
    assert torch.allclose(merged(model)["lm_head.weight"], want, atol=1e-7)


@torch.no_grad()
def test_the_adapter_of_a_reward_model_has_its_head_for_peft_and_for_a_start(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    from peft import PeftModel

    def reward_model(**more: Any) -> LoadedModel:
        given = {"model_name_or_path": str(tiny_model_dir), "dtype": "fp32", "lora_target": "q_proj", "lora_rank": 2}
        return load_model(ModelArgs.model_validate(given | more), "reward", with_adapters=True)

    model = with_b(reward_model())
    torch.nn.init.normal_(model.pretrained.get_parameter("score.weight"))
    trained = {model.hf_names[n]: p.detach() for n, p in model.module.named_parameters() if p.requires_grad}
    args = ModelArgs(model_name_or_path=str(tiny_model_dir), dtype="fp32")
    write_hf_model(tmp_path, model, args, "reward", merged(model), trained)

    ids = torch.arange(3, 18)[None]
    want = model.pretrained(input_ids=ids).logits
    base = AutoModelForSequenceClassification.from_pretrained(tiny_model_dir, dtype=torch.float32, num_labels=1)
    peft_model = PeftModel.from_pretrained(base, str(tmp_path / "adapter"))
    torch.testing.assert_close(peft_model(input_ids=ids).logits, want)
    again = reward_model(adapter_name_or_path=str(tmp_path / "adapter"))
    torch.testing.assert_close(again.pretrained(input_ids=ids).logits, want)


def test_a_model_that_only_scores_has_no_adapters(make_tiny_model_dir: Callable[..., Path]) -> None:
    """ROLL's recipes write the same model_args for the role that samples."""
    args = ModelArgs(model_name_or_path=str(make_tiny_model_dir()), dtype="fp32", lora_target=("q_proj",))
    model = load_model(args, "lm")
    assert model.adapters is None and not [name for name in model.hf_names if "lora" in name]


MIXTURES = {
    "qwen3_moe": {"mlp_only_layers": [0]},
    "qwen2_moe": {},
    "glm4_moe": {},
    "glm4_moe_lite": {},
    "deepseek_v2": {},
    "deepseek_v3": {},
}


DENSE = {"qwen3_moe": "mlp.gate_proj", "qwen2_moe": "shared_expert.gate_proj"}
EVERY_EXPERT = "gate_proj, up_proj, down_proj, o_proj"


@pytest.mark.parametrize("target", ["all-linear", "down_proj, o_proj", EVERY_EXPERT, "dense"])
@pytest.mark.parametrize("family", MIXTURES)
def test_experts_get_the_adapters_where_a_name_is_also_theirs(family: str, target: str, tmp_path: Path) -> None:
    """In the trainer, in what engines get, and where peft loads what was saved: of itself it would take the names of
    dense and shared layers for the experts."""
    experts = {"down_proj, o_proj": {"down_proj"}, EVERY_EXPERT: {"gate_up_proj", "down_proj"}}.get(target, set())
    if target == "dense":
        target = DENSE.get(family, "shared_experts.gate_proj")
    config = models.config(family)
    for name, value in MIXTURES[family].items():
        setattr(config, name, value)
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "base")
    model = with_b(loaded(tmp_path / "base", lora_target=target, lora_dropout=0.1))
    dense = {name for name, _ in model.pretrained.named_modules() if name.endswith("down_proj")}
    found = layers(model)
    assert {name.rpartition(".")[2] for name in found if ".experts." in name} == experts
    is_dense = target.endswith(".gate_proj")
    assert is_dense or {plain_name(f"{name}.weight").removesuffix(".weight") for name in dense} <= found

    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.float32).eval()
    tokens = torch.arange(1, 9)[None]
    with torch.no_grad():
        start = plain(tokens).logits
        want = model.pretrained.eval()(tokens).logits
        assert (want - start).abs().max() > 1e-3
        trained = {model.hf_names[n]: p.detach() for n, p in model.module.named_parameters() if p.requires_grad}
        args = ModelArgs.model_validate({"model_name_or_path": str(tmp_path / "base"), "dtype": "fp32"})
        write_hf_model(tmp_path / "saved", model, args, "lm", merged(model), trained)
        read = PeftModel.from_pretrained(plain, str(tmp_path / "saved" / "adapter")).eval()
        assert torch.allclose(read(tokens).logits, want, atol=1e-5)
        whole = AutoModelForCausalLM.from_pretrained(tmp_path / "saved", dtype=torch.float32).eval()
        assert torch.allclose(whole(tokens).logits, want, atol=1e-5)
    again = loaded(
        tmp_path / "base", lora_target=target, adapter_name_or_path=str(tmp_path / "saved" / "adapter")
    ).pretrained.eval()
    with torch.no_grad():
        assert torch.equal(again(tokens).logits, want)


@pytest.mark.parametrize(
    ("family", "target"), [("qwen3_moe", "o_proj, gate_proj, up_proj"), ("mixtral", "o_proj, w1, w3")]
)
def test_gate_and_up_of_experts_without_down_are_refused(family: str, target: str, tmp_path: Path) -> None:
    """peft would load the adapter with a warning, and with no adapters on the experts."""
    AutoModelForCausalLM.from_config(models.config(family)).save_pretrained(tmp_path)
    with pytest.raises(StrategyError, match=f"lora_target: {target} adapts gate and up of experts without down"):
        loaded(tmp_path, lora_target=target)
    assert loaded(tmp_path, lora_target="o_proj, w2" if family == "mixtral" else "o_proj, down_proj")


def test_adapters_of_a_layer_with_states_are_not_passed_over_in_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where mamba-ssm is there, one kernel computes all of the layer, from the weights that it is given."""

    def kernel(*arguments: object, **more: object) -> None:
        raise AssertionError("this kernel knows no adapters")

    monkeypatch.setattr(modeling_granitemoehybrid, "mamba2_split_conv1d_scan_combined", kernel)
    AutoModelForCausalLM.from_config(GRANITE).save_pretrained(tmp_path)
    ids, mask = torch.randint(3, 64, (2, 9)), torch.ones(2, 9, dtype=torch.bool)
    with pytest.raises(AssertionError, match="knows no adapters"):
        load_policy(ModelArgs(model_name_or_path=str(tmp_path), dtype="fp32")).module(ids, mask)
    model = with_b(loaded(tmp_path, lora_dropout=0.5))
    assert any("mamba.out_proj" in layer for layer in layers(model))
    assert all(child.training for name, child in model.module.named_modules() if ".lora_dropout." in name)
    for name, child in model.module.named_modules():
        if ".lora_dropout." in name:
            child.eval()
    found = model.module(ids, mask)[0]
    plain = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    plain.load_state_dict(merged(model), strict=False)
    wanted = torch.log_softmax(plain(input_ids=ids).logits[:, :-1].float(), -1).gather(-1, ids[:, 1:, None])[..., 0]
    assert found is not None
    torch.testing.assert_close(found[:, 1:], wanted, rtol=0, atol=1e-5)
