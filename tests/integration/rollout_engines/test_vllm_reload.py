"""Weight updates of layers that vLLM keeps in another form than the checkpoint's, by its own functions for reloading.
The engine around them is in the contract suite."""

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("vllm", reason="vllm is not installed")

Named = Iterable[tuple[str, torch.Tensor]]


def load_into(model: nn.Module, weights: Named) -> set[str]:
    """As models of vLLM load: each weight by its own loader. Returns the names."""
    from vllm.model_executor.model_loader.weight_utils import default_weight_loader

    parameters, loaded = dict(model.named_parameters()), set[str]()
    for name, value in weights:
        getattr(parameters[name], "weight_loader", default_weight_loader)(parameters[name], value)
        loaded.add(name)
    return loaded


def quantised_online() -> Any:
    """A layer that vLLM quantises while it loads, as `quantization: fp8_per_tensor` asks, and tied weights."""
    from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
    from vllm.model_executor.utils import replace_parameter

    class OnlineMethod(QuantizeMethodBase):
        def create_weights(self, layer: nn.Module, *_: Any, **__: Any) -> None: ...

        def apply(self, layer: nn.Module, *_: Any, **__: Any) -> torch.Tensor:
            raise NotImplementedError

        def process_weights_after_loading(self, layer: nn.Module) -> None:
            weight: Any = layer.weight
            scale = weight.abs().max().reshape(1) / 448
            replace_parameter(layer, "weight", (weight / scale).to(torch.float8_e4m3fn).t().contiguous())
            replace_parameter(layer, "weight_scale", scale)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.proj: Any = nn.Linear(3, 2, bias=True)
            self.proj.quant_method = OnlineMethod()
            self.embed = nn.Embedding(4, 3)
            self.lm_head = nn.Linear(3, 4, bias=False)
            self.lm_head.weight = self.embed.weight

        def load_weights(self, weights: Named) -> set[str]:
            return load_into(self, weights)

    return Model()


Update = Callable[..., list[str]]


def update_of(model: Any, kind: str, monkeypatch: pytest.MonkeyPatch, rank: int = 0) -> Update:
    """Makes a whole update of the model, bucket by bucket, and says what is missing."""
    from vllm.model_executor.model_loader.reload import record_metadata_for_reloading

    from roll.distributed.strategy.vllm import worker_extension

    record_metadata_for_reloading(model.requires_grad_(False))
    config: Any = SimpleNamespace(hf_text_config=SimpleNamespace(model_type=kind))
    monkeypatch.setattr(worker_extension, "decode_source", lambda source: source)
    monkeypatch.setattr(worker_extension, "get_tensor_model_parallel_rank", lambda: rank)
    layerwise = worker_extension.LayerwiseUpdate(model, config, torch.device("cpu"), rank)
    monkeypatch.setattr(layerwise._receiver, "read", lambda source: source.items())

    def whole(*buckets: dict[str, torch.Tensor]) -> list[str]:
        layerwise.begin(whole=True)
        for bucket in buckets:
            sent = {name: value.clone() for name, value in bucket.items()}
            layerwise.add(sent)
            for value in sent.values():
                value.fill_(torch.nan)  # the next bucket takes its place
        return layerwise.finish()

    return whole


@pytest.fixture
def model() -> Any:
    return quantised_online()


@pytest.fixture
def update(model: Any, monkeypatch: pytest.MonkeyPatch) -> Update:
    whole = update_of(model, "llama", monkeypatch)
    model.proj.quant_method.process_weights_after_loading(model.proj)
    return whole


class WithSinks(nn.Module):
    """As vLLM's gpt-oss and MiMo-V2: two of four heads are this rank's, and their sinks are copied past its loaders."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.attn: Any = nn.Linear(3, 2, bias=False)
        self.attn.register_parameter(name, nn.Parameter(torch.zeros(2)))

    def load_weights(self, weights: Named) -> set[str]:
        from vllm.model_executor.model_loader.weight_utils import default_weight_loader

        parameters, loaded = dict(self.named_parameters()), set[str]()
        for name, value in weights:
            own = name.replace("self_attn", "attn")
            if "sink" in name:
                parameters[own].data.copy_(value.narrow(0, 2, 2))
            else:
                getattr(parameters[own], "weight_loader", default_weight_loader)(parameters[own], value)
            loaded.add(own)
        return loaded


@pytest.mark.parametrize("name", ["sinks", "attention_sink_bias"])
def test_sinks_that_a_model_copies_itself_are_updated(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They kept their first values for the whole of a run of gpt-oss, and nobody said so."""
    model = WithSinks(name)
    update = update_of(model, "gpt_oss", monkeypatch, rank=1)
    place = model.get_parameter(f"attn.{name}").data_ptr()
    for factor in (1.0, 2.0):
        sinks, weight = torch.arange(4.0) * factor, torch.ones(2, 3) * factor
        assert update({f"self_attn.{name}": sinks}, {"self_attn.weight": weight}) == []
        assert model.get_parameter(f"attn.{name}").tolist() == [2 * factor, 3 * factor]
        assert model.attn.weight.unique().tolist() == [factor]
    assert model.get_parameter(f"attn.{name}").data_ptr() == place


class WithJoined(nn.Module):
    """As a mixture of vLLM's whose router and gate of shared experts are one product on AMD's GPUs, and a layer that
    joins three convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.shared_expert_gate = nn.Linear(3, 4, bias=False), nn.Linear(3, 1, bias=False)
        self._combined_gate_weight: torch.Tensor | None = None
        self.q_conv1d, self.k_conv1d, self.v_conv1d = (nn.Conv1d(2, 2, 3, groups=2, bias=False) for _ in range(3))
        self._merged_conv_weight = torch.zeros(6, 3)

    def load_weights(self, weights: Named) -> set[str]:
        return load_into(self, weights)


def test_weights_that_vllm_joined_in_the_first_pass_are_updated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The method that joins gates is vLLM's own. Captured graphs read the memory that it took."""
    from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner

    model: Any = WithJoined()
    update = update_of(model, "qwen3_next", monkeypatch)
    MoERunner._maybe_fuse_gate_weights(model)
    joined = model._combined_gate_weight
    gates = {"gate.weight": torch.full((4, 3), 2.0), "shared_expert_gate.weight": torch.full((1, 3), 3.0)}
    convolutions = {f"{each}_conv1d.weight": torch.full((2, 1, 3), float(n)) for n, each in enumerate("qkv")}
    assert update(gates, convolutions) == []
    assert model._merged_conv_weight.tolist() == [[number] * 3 for number in (0.0, 0.0, 1.0, 1.0, 2.0, 2.0)]
    assert model._combined_gate_weight is joined
    assert joined.tolist() == [[2.0] * 3] * 4 + [[3.0] * 3]


class WithExperts(nn.Module):
    """As vLLM's gpt-oss without quantisation: experts of a layer that come as one tensor are copied past its loaders,
    single ones are not."""

    def __init__(self) -> None:
        super().__init__()
        self.experts: Any = nn.Module()
        weight: Any = nn.Parameter(torch.zeros(2, 4, 3))
        weight.weight_loader = self.load_one
        self.experts.w2_weight = weight

    def load_one(self, param: Any, value: torch.Tensor, expert: int) -> None:
        param.data[expert].copy_(value.t())

    def load_weights(self, weights: Named) -> set[str]:
        own: Any = self.experts.w2_weight
        for name, value in weights:
            if name.endswith("experts.down_proj"):
                own.copy_(value.permute(0, 2, 1))
            else:
                own.weight_loader(own, value, int(name.split(".")[5]))
        return {"experts.w2_weight"}


@pytest.mark.parametrize(("kind", "lost"), [("gpt_oss", []), ("llama", ["experts.w2_weight (lost by vllm)"])])
def test_what_a_model_copies_past_the_update_comes_in_another_form_or_is_named(
    kind: str, lost: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Engines of gpt-oss sampled with the experts of their first weights for ever, and nobody said so."""
    model = WithExperts()
    update = update_of(model, kind, monkeypatch)
    for factor in (1.0, 2.0):
        sent = factor * torch.arange(24.0).reshape(2, 3, 4)
        assert update({"model.layers.0.mlp.experts.down_proj": sent}) == lost
        assert torch.equal(model.experts.w2_weight, sent.permute(0, 2, 1) * (not lost))


WEIGHTS = {
    "proj.weight": torch.tensor([[448.0, 0, 0], [0, 224, 0]]),
    "proj.bias": torch.tensor([1.0, 2]),
    "embed.weight": torch.arange(12.0).reshape(4, 3),
}


def test_scales_of_online_quantisation_are_not_awaited_from_the_trainer(model: Any, update: Update) -> None:
    """The names were taken from the quantised layers, so that the first update of every such engine failed."""
    place = model.proj.weight.data_ptr()
    for factor in (1.0, 2.0):
        assert update({name: value * factor for name, value in WEIGHTS.items()}) == []
        assert model.proj.weight.to(torch.float32).t().tolist() == [[448, 0, 0], [0, 224, 0]]
        assert model.proj.weight_scale.tolist() == [factor]
        assert model.proj.bias.tolist() == [factor, 2 * factor]
    assert model.proj.weight.data_ptr() == place  # CUDA graphs read there


@pytest.mark.parametrize("name", sorted(WEIGHTS))
def test_a_weight_that_was_not_sent_is_named_and_a_tied_one_once(update: Update, name: str) -> None:
    assert update({other: value for other, value in WEIGHTS.items() if other != name}) == [name]


def test_a_layer_that_two_others_hold_may_be_sent_by_either_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's experts around transformers' code hold the router as well, first, and every update of them failed."""
    router = nn.Linear(3, 2, bias=False)
    model: Any = nn.Module()
    model.experts, model.gate = nn.Sequential(router), router

    def load_weights(weights: Named) -> set[str]:
        for _, value in weights:
            router.weight.weight_loader(router.weight, value)  # type: ignore[operator]
        return {"gate.weight"}

    model.load_weights = load_weights
    update = update_of(model, "dots1", monkeypatch)
    assert update({"gate.weight": torch.arange(6.0).reshape(2, 3)}) == []
    assert router.weight.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert update() == ["experts.0.weight"]


@pytest.mark.parametrize(
    ("bias", "named"), [("key.bias", ["key.bias (of which vllm's model has none)"]), ("visual.fc.bias", [])]
)
def test_a_bias_that_vllm_has_no_place_for_is_named_unless_its_layer_is_elsewhere(
    bias: str, named: list[str], model: Any, update: Update, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With attention_bias: true vLLM's Gemma passes over the biases, as over all that it does not know."""
    load = model.load_weights
    monkeypatch.setattr(model, "load_weights", lambda sent: load((name, w) for name, w in sent if name in WEIGHTS))
    assert update(WEIGHTS | {bias: torch.ones(2)}) == named
    assert update(WEIGHTS) == []


def test_a_bias_in_a_bucket_of_its_own_is_kept_until_its_layer_is_complete(model: Any, update: Update) -> None:
    others = {name: value for name, value in WEIGHTS.items() if name != "proj.bias"}
    assert update({"proj.bias": WEIGHTS["proj.bias"]}, others) == []
    assert model.proj.bias.tolist() == WEIGHTS["proj.bias"].tolist()


class WithConvolution(nn.Module):
    """As vLLM's Mamba on CPUs with bf16: it computes with a buffer, and the weight is packed into other memory."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1d: Any = nn.Linear(3, 2, bias=False)
        self.conv_weights: torch.Tensor
        self.register_buffer("conv_weights", self.conv1d.weight.detach().clone(), persistent=False)

    def load_weights(self, weights: Named) -> set[str]:
        from vllm.model_executor.model_loader.weight_utils import default_weight_loader

        loaded = set[str]()
        for name, value in weights:
            own = self.conv1d.weight
            getattr(own, "weight_loader", default_weight_loader)(own, value)
            self.conv1d._cpu_unpacked_conv_weight = value.clone()  # as its packing leaves it
            loaded.add(name)
        return loaded


def test_a_convolution_whose_weight_is_packed_is_updated(monkeypatch: pytest.MonkeyPatch) -> None:
    """It computed with the weights of the start for the whole of a run on a CPU in bf16."""
    model = WithConvolution()
    update = update_of(model, "falcon_h1", monkeypatch)
    place, weight = model.conv_weights.data_ptr(), torch.randn(2, 3)
    assert update({"conv1d.weight": weight}) == []
    assert torch.equal(model.conv_weights, weight) and model.conv_weights.data_ptr() == place
