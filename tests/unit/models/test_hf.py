"""Token scores of a small model, on one process: alignment, temperature, factors on logits."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    Cohere2Config,
    CohereConfig,
    Gemma2Config,
    Glm4MoeConfig,
    GraniteConfig,
    HyperCLOVAXConfig,
    MixtralConfig,
    ModernBertDecoderConfig,
    PhimoeConfig,
    PretrainedConfig,
    Qwen3Config,
    RecurrentGemmaConfig,
)

from roll.configs.sections.model import ModelArgs
from roll.errors import StrategyError
from roll.models.copied_files import is_of_prediction_head
from roll.models.hf import TokenValueModel
from roll.models.loading import LoadedModel, load_critic, load_policy, write_hf_model
from tests.helpers.cases import cases


def model_args(model_dir: Path, **options: object) -> ModelArgs:
    return ModelArgs.model_validate(
        {"model_name_or_path": str(model_dir), "dtype": "fp32", "disable_gradient_checkpointing": True} | options
    )


@pytest.fixture(scope="module")
def policy(tiny_tied_model_dir: Path) -> LoadedModel:
    return load_policy(model_args(tiny_tied_model_dir))


MIXTURE: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_local_experts": 4,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
IDS = torch.tensor([[5, 9, 17, 4, 30], [8, 3, 11, 2, 2]])
MASK = torch.tensor([[False, False, True, False, True], [True, True, True, False, False]])


def test_log_probs_are_of_the_next_token_at_the_temperature(policy: LoadedModel) -> None:
    log_probs, entropy = policy.module(IDS, MASK, 1.0)
    assert entropy is None
    logits = policy.pretrained(input_ids=IDS).logits.double()
    for row, t in [(0, 2), (0, 4), (1, 1), (1, 2)]:
        want = torch.log_softmax(logits[row, t - 1], -1)[IDS[row, t]]
        assert float(log_probs[row, t]) == pytest.approx(float(want), abs=1e-5)
    assert (log_probs != 0).tolist() == [[False, False, True, False, True], [False, True, True, False, False]]
    log_probs, entropy = policy.module(IDS, MASK, 0.5, True)
    assert entropy is not None
    everything = torch.log_softmax(policy.pretrained(input_ids=IDS).logits[0, 1].double() / 0.5, -1)
    assert float(log_probs[0, 2]) == pytest.approx(float(everything[17]), abs=1e-5)
    assert float(entropy[0, 2]) == pytest.approx(float(-(everything.exp() * everything).sum()), abs=1e-5)
    padded = torch.nn.functional.pad(IDS, (0, 3), value=7)
    mask = torch.nn.functional.pad(MASK, (0, 3))
    torch.testing.assert_close(policy.module(padded, mask)[0][:, :5], policy.module(IDS, MASK)[0])
    assert policy.module(torch.tensor([[5]]), torch.tensor([[True]]))[0].tolist() == [[0.0]]


def test_a_batch_with_nothing_to_score_has_a_graph_and_a_zero_gradient(policy: LoadedModel) -> None:
    log_probs, _ = policy.module(IDS, torch.zeros_like(MASK))
    log_probs.sum().backward()
    gradients = [p.grad for p in policy.module.parameters()]
    policy.module.zero_grad()
    assert all(gradient is not None and not gradient.any() for gradient in gradients)


def test_a_new_critic_is_zero_and_reads_the_state_before_the_token(tiny_tied_model_dir: Path) -> None:
    critic = load_critic(model_args(tiny_tied_model_dir))
    assert not critic.module(IDS, MASK).any()
    assert isinstance(critic.module, TokenValueModel)
    torch.nn.init.ones_(critic.module.head.score.weight)
    states = critic.pretrained.base_model(input_ids=IDS).last_hidden_state.sum(-1)
    values = critic.module(IDS, MASK)
    torch.testing.assert_close(values[0, 2], states[0, 1])
    torch.testing.assert_close(values[1, 1:3], states[1, 0:2])
    assert not values[0, [0, 1, 3]].any()


def test_names_are_those_of_the_checkpoint(tiny_model_dir: Path, policy: LoadedModel) -> None:
    untied = load_policy(model_args(tiny_model_dir))
    assert untied.hf_names["head.lm_head.weight"] == "lm_head.weight"
    assert untied.hf_names["backbone.layers.0.mlp.up_proj.weight"] == "model.layers.0.mlp.up_proj.weight"
    assert "lm_head.weight" not in policy.hf_names.values()


def test_model_config_kwargs_reach_the_model_and_unknown_ones_are_refused(tiny_model_dir: Path) -> None:
    loaded = load_policy(model_args(tiny_model_dir, model_config_kwargs={"rms_norm_eps": 0.5}))
    assert loaded.pretrained.model.norm.variance_epsilon == 0.5
    with pytest.raises(StrategyError, match="model_config_kwargs.rms_eps"):
        load_policy(model_args(tiny_model_dir, model_config_kwargs={"rms_eps": 0.5}))


def test_dropout_of_the_checkpoint_is_switched_off(tiny_model_dir: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_model_dir, tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"attention_dropout": 0.5}))
    module = load_policy(model_args(tmp_path)).module
    assert module.training
    torch.testing.assert_close(module(IDS, MASK)[0], module(IDS, MASK)[0], rtol=0, atol=0)


@pytest.mark.parametrize(
    "config",
    [
        MixtralConfig(**MIXTURE, router_jitter_noise=0.1),
        PhimoeConfig(**MIXTURE, router_jitter_noise=0.1, input_jitter_noise=0.1),
    ],
    ids=["mixtral", "phimoe"],
)
def test_routers_of_mixtures_add_no_noise_and_compute_as_the_engine_does(
    config: PretrainedConfig, tmp_path: Path
) -> None:
    """Of a whole model in eval mode, which is what an engine samples from: the same hidden states, bit for bit."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    model.save_pretrained(tmp_path)
    loaded = load_policy(model_args(tmp_path))
    assert loaded.module.training
    want = model.base_model(input_ids=IDS).last_hidden_state
    for _ in range(2):
        assert torch.equal(loaded.pretrained.base_model(input_ids=IDS).last_hidden_state, want)


def test_a_checkpoint_without_all_weights_is_refused(tiny_model_dir: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_model_dir, tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    layers = {"num_hidden_layers": 3, "layer_types": ["full_attention"] * 3}
    (tmp_path / "config.json").write_text(json.dumps(config | layers))
    for load in (load_policy, load_critic):
        with pytest.raises(StrategyError, match=r"lacks weights.*model\.layers\.2"):
            load(model_args(tmp_path))


def test_frozen_modules_do_not_learn(tiny_model_dir: Path) -> None:
    args = model_args(tiny_model_dir).model_copy(update={"freeze_module_prefix": "model.embed_tokens, model.layers.0"})
    loaded = load_policy(args)
    frozen = {loaded.hf_names[name] for name, p in loaded.module.named_parameters() if not p.requires_grad}
    assert "model.embed_tokens.weight" in frozen
    assert all(name.startswith(("model.embed_tokens", "model.layers.0.")) for name in frozen)
    with pytest.raises(StrategyError, match="no parameter's name begins with 'vision'"):
        load_policy(args.model_copy(update={"freeze_module_prefix": "vision"}))
    with pytest.raises(StrategyError, match="freeze_module_prefix: model,lm_head leaves nothing to train"):
        load_policy(args.model_copy(update={"freeze_module_prefix": "model,lm_head"}))


FACTORS: list[tuple[Any, str, float]] = [
    (GraniteConfig, "logits_scaling", 4.0),
    (CohereConfig, "logit_scale", 0.25),
    (Cohere2Config, "logit_scale", 0.25),
    (HyperCLOVAXConfig, "logits_scaling", 0.25),
    (Gemma2Config, "final_logit_softcapping", 2.0),
    (RecurrentGemmaConfig, "logits_soft_cap", 2.0),
]


@pytest.mark.parametrize(("kind", "key", "value"), FACTORS, ids=lambda given: getattr(given, "__name__", None))
def test_what_an_architecture_does_to_its_logits_is_done_to_log_probs(
    kind: Any, key: str, value: float, tmp_path: Path
) -> None:
    """Against the model's own forward pass, which without the factor is off by more than .05."""
    shape = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1}
    torch.manual_seed(0)
    config = kind(
        **shape,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=8,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    config.update({key: value})
    options = {"attn_implementation": "eager"} if kind is Gemma2Config else {}  # sdpa leaves its other cap out
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, **options).eval()
    torch.nn.init.normal_(model.get_output_embeddings().weight, std=2.0)
    model.save_pretrained(tmp_path)
    logits = model(input_ids=IDS).logits
    wanted = torch.log_softmax(logits.double() / 0.7, -1)[0, 1, IDS[0, 2]]
    found = float(load_policy(model_args(tmp_path)).module(IDS, MASK, 0.7)[0][0, 2])
    assert found == pytest.approx(float(wanted), abs=1e-5)
    config.update({key: {"final_logit_softcapping": None, "logits_soft_cap": 1e6}.get(key, 1.0)})
    AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    config.save_pretrained(tmp_path)
    assert abs(float(load_policy(model_args(tmp_path)).module(IDS, MASK, 0.7)[0][0, 2]) - found) > 0.05


def test_architectures_with_an_unknown_factor_on_the_logits_are_refused(tmp_path: Path) -> None:
    config = Qwen3Config(hidden_size=8, num_hidden_layers=1)
    config.logits_scaling = 4.0
    config.save_pretrained(tmp_path)
    with pytest.raises(StrategyError, match="logits_scaling: 4.0, which is not supported for qwen3 models"):
        load_policy(model_args(tmp_path))


def test_a_head_of_several_layers_is_refused(tmp_path: Path) -> None:
    config = ModernBertDecoderConfig(
        vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, pad_token_id=0
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(StrategyError, match=r"has a head of several layers.*lm_head\.dense"):
        load_policy(model_args(tmp_path))


@pytest.fixture(scope="module")
def glm_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small GLM-4-MoE with a head that predicts one token more, as its files have it: as a layer behind the last."""
    directory = tmp_path_factory.mktemp("glm")
    mixture = {key: value for key, value in MIXTURE.items() if key != "num_local_experts"}
    small = {"head_dim": 8, "moe_intermediate_size": 8, "n_routed_experts": 4, "num_experts_per_tok": 2}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = AutoModelForCausalLM.from_config(Glm4MoeConfig(**mixture, **small, num_mtp_layers=1))  # type: ignore[arg-type]
        made.get_buffer("model.layers.1.mlp.gate.e_score_correction_bias").normal_()
        made.save_pretrained(directory)
        heads = {"eh_proj.weight": (16, 32), "enorm.weight": (16,), "mlp.experts.3.down_proj.weight": (16, 8)}
        more = {f"model.layers.2.{name}": torch.randn(shape) for name, shape in heads.items()}
    file = directory / "model.safetensors"
    save_file(load_file(file) | more | {"mtp.fc.weight": torch.ones(2, 2)}, file, metadata={"format": "pt"})
    return directory


def test_a_saved_model_holds_what_is_kept_beside_its_weights(glm_dir: Path, tmp_path: Path) -> None:
    """The bias by which routers of GLM-4-MoE choose is no parameter, and a model without it cannot be loaded; heads
    that predict further tokens are no part of the model that is trained."""
    args = model_args(glm_dir)
    model = load_policy(args)
    parameters = dict(model.module.named_parameters())
    weights = [(export.name, parameters[export.weight].detach() + 1) for export in model.exports]
    write_hf_model(tmp_path, model, args, "lm", dict(model.in_checkpoint_form(weights)), {})
    before, after = (load_file(directory / "model.safetensors") for directory in (glm_dir, tmp_path))
    assert before.keys() == after.keys()
    same = {name for name in before if torch.equal(before[name], after[name])}
    assert same == {
        "model.layers.1.mlp.gate.e_score_correction_bias",
        "model.layers.2.eh_proj.weight",
        "model.layers.2.enorm.weight",
        "model.layers.2.mlp.experts.3.down_proj.weight",
        "mtp.fc.weight",
    }
    load_policy(model_args(tmp_path))


def test_a_router_that_is_trained_in_full_beside_adapters_is_saved_with_its_bias(glm_dir: Path, tmp_path: Path) -> None:
    """In the merged model, and in the adapter, which is a start for others."""
    chosen = {"lora_target": "q_proj", "additional_target": "mlp.gate"}
    args = model_args(glm_dir, **chosen)
    model = load_policy(args, with_adapters=True)
    parameters = dict(model.module.named_parameters())
    weights = [(export.name, export.value(parameters.__getitem__, torch.float32)) for export in model.exports]
    trained = {model.hf_names[name]: value.detach() for name, value in parameters.items() if value.requires_grad}
    write_hf_model(tmp_path, model, args, "lm", dict(model.in_checkpoint_form(weights)), trained)
    before, after = (load_file(directory / "model.safetensors") for directory in (glm_dir, tmp_path))
    assert before.keys() == after.keys()
    bias = "model.layers.1.mlp.gate.e_score_correction_bias"
    assert torch.equal(before[bias], after[bias])
    started = load_policy(
        model_args(glm_dir, **chosen, adapter_name_or_path=str(tmp_path / "adapter")), with_adapters=True
    )
    kept = started.pretrained.get_buffer(bias.replace("gate.", "gate.modules_to_save.default."))
    assert torch.equal(kept, before[bias])


@pytest.mark.parametrize("changes", [{}, {"lora_target": "q_proj"}])
def test_what_a_head_shares_with_the_model_is_saved_as_the_model_has_it(
    changes: dict[str, str], glm_dir: Path, tmp_path: Path
) -> None:
    """Files repeat the embedding and the output matrix as parts of the head behind the last layer. What is not the
    same is the head's own, and stays."""
    start, saved = tmp_path / "start", tmp_path / "saved"
    shutil.copytree(glm_dir, start)
    held = load_file(start / "model.safetensors")
    embedding, output = "model.layers.2.embed_tokens.weight", "model.layers.2.shared_head.head.weight"
    copies = {embedding: held["model.embed_tokens.weight"].clone(), output: held["lm_head.weight"] + 1}
    save_file(held | copies, start / "model.safetensors", metadata={"format": "pt"})
    args = model_args(start, **changes)
    model = load_policy(args, with_adapters=bool(changes))
    parameters = dict(model.module.named_parameters())
    if not changes:
        for value in parameters.values():
            value.data += 1
    weights = [(export.name, export.value(parameters.__getitem__, torch.float32)) for export in model.exports]
    write_hf_model(saved, model, args, "lm", dict(model.in_checkpoint_form(weights)), {})
    after = load_file(saved / "model.safetensors")
    assert after.keys() == held.keys() | copies.keys()
    assert torch.equal(after[embedding], after["model.embed_tokens.weight"])
    assert torch.equal(after[embedding], copies[embedding]) == bool(changes)
    assert torch.equal(after[output], copies[output])


def test_layers_that_a_run_leaves_out_are_no_heads(tiny_model_dir: Path, tmp_path: Path) -> None:
    fewer = {"num_hidden_layers": 1, "layer_types": ["full_attention"]}
    args = model_args(tiny_model_dir, model_config_kwargs=fewer)
    model = load_policy(args)
    parameters = dict(model.module.named_parameters())
    weights = [(export.name, parameters[export.weight].detach()) for export in model.exports]
    write_hf_model(tmp_path, model, args, "lm", dict(model.in_checkpoint_form(weights)), {})
    assert not [name for name in load_file(tmp_path / "model.safetensors") if ".layers.1." in name]


@cases("name, is_one")
def test_heads_that_predict_further_tokens_are_known_by_their_names(name: str, is_one: bool) -> None:
    assert is_of_prediction_head(name, 61) == is_one
