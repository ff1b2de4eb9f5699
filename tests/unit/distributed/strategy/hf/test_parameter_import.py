"""New weights into a model in place."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_vision import (
    VISION_ARCHITECTURES,
    build_vision_model,
    build_vision_tokenizer,
    save_vision_pretrained,
)
from torch import nn
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from roll.configs.sections.cluster import WorkerConfig
from roll.configs.sections.model import ModelArgs
from roll.distributed.strategy.base import RankContext
from roll.distributed.strategy.hf import generate
from roll.distributed.strategy.hf.generate import ParameterImport
from roll.errors import StrategyError
from roll.models.exact.check import make_exact
from roll.models.exact.rows import ExactRows
from roll.models.loading import DTYPES, load_policy
from roll.models.sequences.pack import Pack
from tests.parity.megatron import models


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(4, 3)
        self.middle = nn.Linear(3, 3)
        self.head = nn.Linear(3, 4, bias=False)
        self.head.weight = self.embed.weight


def weights(value: float) -> dict[str, torch.Tensor]:
    return {name: torch.full_like(p, value) for name, p in Tied().named_parameters()}


def test_weights_are_copied_into_the_same_memory_and_tied_ones_count_once() -> None:
    model = Tied()
    before = [parameter.data_ptr() for parameter in model.parameters()]
    update = ParameterImport(model)
    update.begin()
    for name, tensor in weights(2.0).items():
        update.add(name, tensor.to(torch.bfloat16))
    update.finish()
    assert [parameter.data_ptr() for parameter in model.parameters()] == before
    assert all((parameter == 2.0).all() for parameter in model.parameters())
    assert model.head.weight is model.embed.weight


def test_a_tied_weight_may_come_under_either_name() -> None:
    update = ParameterImport(Tied())
    update.begin()
    sent = weights(1.0)
    sent["head.weight"] = sent.pop("embed.weight")
    for name, tensor in sent.items():
        update.add(name, tensor)
    update.finish()


def test_unknown_names_other_shapes_and_missing_parameters_are_refused() -> None:
    update = ParameterImport(Tied())
    update.begin()
    with pytest.raises(StrategyError, match=r"no parameter 'middle\.scale'"):
        update.add("middle.scale", torch.zeros(3))
    with pytest.raises(StrategyError, match=r"'middle\.bias' is \(4,\), the rollout model's is \(3,\)"):
        update.add("middle.bias", torch.zeros(4))
    update.add("middle.weight", torch.zeros(3, 3))
    with pytest.raises(StrategyError, match=r"2 parameters were not sent: embed\.weight, middle\.bias"):
        update.finish()


@pytest.mark.parametrize("are_large", [False, True], ids=["small", "large"])
@pytest.mark.parametrize("family", ["qwen3_moe", "mixtral"])
def test_experts_may_come_one_by_one_as_the_models_files_hold_them(
    family: str, are_large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if are_large:
        monkeypatch.setattr(generate, "_LARGE", 0)
    config: PretrainedConfig = models.config(family)
    sent, received = (AutoModelForCausalLM.from_config(config, dtype=torch.float32) for _ in range(2))
    stored = models.as_stored({name: p.detach().numpy() for name, p in sent.named_parameters()}, family)
    update = ParameterImport(received)
    update.begin()
    for name, values in stored.items():
        update.add(name, torch.from_numpy(values))
    update.finish()
    assert all(torch.equal(a, b) for a, b in zip(sent.parameters(), received.parameters(), strict=True))


def test_a_missing_expert_is_refused() -> None:
    model = AutoModelForCausalLM.from_config(models.config("qwen3_moe"), dtype=torch.float32)
    stored = models.as_stored({name: p.detach().numpy() for name, p in model.named_parameters()}, "qwen3_moe")
    update = ParameterImport(model)
    for _ in range(2):
        update.begin()
        for name, values in stored.items():
            if name != "model.layers.1.mlp.experts.2.up_proj.weight":
                update.add(name, torch.from_numpy(values))
        with pytest.raises(
            StrategyError, match=r"1 parameters were not sent: model\.layers\.1\.mlp\.experts\.gate_up_proj"
        ):
            update.finish()


@pytest.mark.parametrize("arch", VISION_ARCHITECTURES)
def test_models_that_see_take_their_weights_by_the_names_of_files_as_well(arch: str, tmp_path: Path) -> None:
    """An explorer reads them from a model that the trainer has written."""
    tokenizer = build_vision_tokenizer(arch)
    models = [build_vision_model(tokenizer, arch=arch, seed=seed) for seed in (1, 2)]
    written, own = (
        save_vision_pretrained(tmp_path / str(number), model, tokenizer) for number, model in enumerate(models)
    )
    model = load_policy(ModelArgs(model_name_or_path=str(own), dtype="fp32")).pretrained
    update = ParameterImport(model)
    update.begin()
    for name, tensor in load_file(written / "model.safetensors").items():
        update.add(name, tensor)
    update.finish()
    wanted = models[0].state_dict()
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_an_exact_engine_computes_adapters_as_their_trainer_does(dtype: str, tiny_tied_model_dir: Path) -> None:
    """It gets A and s B, and has them behind a scale of 1: the same hidden states to the bit, which the adapters move
    by a hundredth and more. A trainer computes adapters in the model's dtype."""
    role = WorkerConfig.model_validate(
        {"model_args": {"model_name_or_path": str(tiny_tied_model_dir), "dtype": dtype, "lora_target": "all-linear"}}
    )
    trained = load_policy(role.model_args, with_adapters=True)
    draw = torch.Generator().manual_seed(0)
    for name, parameter in trained.pretrained.named_parameters():
        if ".lora_" in name:
            drawn = torch.randn(parameter.shape, generator=draw) * 0.3 if ".lora_B." in name else parameter.data
            parameter.data = drawn.to(DTYPES[dtype])
    make_exact(trained)
    plain = role.model_args.model_copy(update={"lora_target": ()}).with_adapters_of(role.model_args)
    context = RankContext("actor_infer", 0, 1, 0, 0, torch.device("cpu"), adapter_rank=8, exact=True)
    engine = generate.HfGenerateStrategy(role.model_copy(update={"model_args": plain}), context)
    engine.setup()

    def hidden(model: PreTrainedModel) -> torch.Tensor:
        ids = torch.randint(3, 290, (2, 40), generator=torch.Generator().manual_seed(1))
        pack = ExactRows.of(Pack.scored(ids, torch.tensor([40, 23])))
        with torch.no_grad():
            return model.eval().base_model(**pack.arguments).last_hidden_state

    before, whole = hidden(engine._model), dict(trained.module.named_parameters())
    engine._import.begin()
    for export in trained.exports:
        for part in (export.bare(), *export.apart()):
            engine._import.add(part.name, part.value(whole.__getitem__, DTYPES[dtype]))
    engine._import.finish()
    assert torch.equal(hidden(engine._model), hidden(trained.pretrained))
    assert (hidden(engine._model) - before).abs().max() > 0.01
