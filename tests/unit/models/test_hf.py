"""Token scores of a small model, on one process: alignment, chunks, temperature."""

import copy
import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM, MixtralConfig, PhimoeConfig, PretrainedConfig

from roll.configs.model import ModelArgs
from roll.errors import StrategyError
from roll.models.hf import LogProbHead, TokenValueModel
from roll.models.loading import LoadedModel, load_critic, load_policy


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


def head(softcap: float | None = None, chunk: int = 100) -> LogProbHead:
    torch.manual_seed(0)
    made = LogProbHead(torch.nn.Linear(6, 13), 13, softcap)
    made.positions_per_chunk = chunk
    return made


def test_each_log_prob_is_of_its_own_token_given_what_precedes_it(policy: LoadedModel) -> None:
    log_probs, entropy = policy.module(IDS, MASK, 1.0)
    assert entropy is None
    logits = policy.pretrained(input_ids=IDS).logits.double()
    for row, t in [(0, 2), (0, 4), (1, 1), (1, 2)]:
        want = torch.log_softmax(logits[row, t - 1], -1)[IDS[row, t]]
        assert float(log_probs[row, t]) == pytest.approx(float(want), abs=1e-5)
    assert (log_probs != 0).tolist() == [[False, False, True, False, True], [False, True, True, False, False]]


def test_temperature_divides_the_logits(policy: LoadedModel) -> None:
    log_probs, entropy = policy.module(IDS, MASK, 0.5, True)
    assert entropy is not None
    everything = torch.log_softmax(policy.pretrained(input_ids=IDS).logits[0, 1].double() / 0.5, -1)
    assert float(log_probs[0, 2]) == pytest.approx(float(everything[17]), abs=1e-5)
    assert float(entropy[0, 2]) == pytest.approx(float(-(everything.exp() * everything).sum()), abs=1e-5)


def test_padding_on_the_right_changes_nothing(policy: LoadedModel) -> None:
    padded = torch.nn.functional.pad(IDS, (0, 3), value=7)
    mask = torch.nn.functional.pad(MASK, (0, 3))
    torch.testing.assert_close(policy.module(padded, mask)[0][:, :5], policy.module(IDS, MASK)[0])


def test_a_batch_with_nothing_to_score_has_a_graph_and_a_zero_gradient(policy: LoadedModel) -> None:
    log_probs, _ = policy.module(IDS, torch.zeros_like(MASK))
    log_probs.sum().backward()
    gradients = [p.grad for p in policy.module.parameters()]
    policy.module.zero_grad()
    assert all(gradient is not None and not gradient.any() for gradient in gradients)


def test_a_row_of_one_token_is_scored_as_zero(policy: LoadedModel) -> None:
    assert policy.module(torch.tensor([[5]]), torch.tensor([[True]]))[0].tolist() == [[0.0]]


@pytest.mark.parametrize("entropy", [False, True])
@pytest.mark.parametrize("chunk", [1, 3, 7])
def test_chunks_give_the_same_numbers_and_gradients(chunk: int, entropy: bool) -> None:
    hidden, targets = torch.randn(7, 6), torch.arange(7)
    weight = torch.linspace(-1, 1, 7)
    results = []
    for made in (head(), head(chunk=chunk)):
        states = hidden.clone().requires_grad_()
        log_probs, entropies = made(states, targets, 0.7, entropy)
        total = (log_probs * weight).sum() + ((entropies * weight**2).sum() if entropies is not None else 0)
        total.backward()
        results.append([log_probs.detach(), states.grad, made.lm_head.weight.grad, made.lm_head.bias.grad])
    for whole, chunked in zip(*results, strict=True):
        torch.testing.assert_close(chunked, whole, rtol=1e-5, atol=1e-6)


class Largest(TorchDispatchMode):
    """The most elements of any tensor that was computed."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for made in result if isinstance(result, list | tuple) else [result]:
            if isinstance(made, torch.Tensor):
                self.elements = max(self.elements, made.numel())
        return result


def test_the_logits_of_all_positions_never_exist_at_once() -> None:
    """40 positions of 13 logits are 520; 5 of them and the head's gradient (13 x 6) may exist."""
    made, hidden = head(chunk=5), torch.randn(40, 2)
    made.lm_head = torch.nn.Linear(2, 13)
    with Largest() as seen:
        made(hidden.requires_grad_(), torch.arange(40) % 13, 0.7, True)[0].sum().backward()
    assert seen.elements <= 3 * 40


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("frozen", ["nothing", "head", "backbone"])
def test_gradients_of_tiles_are_those_of_float64(frozen: str, softcap: float | None) -> None:
    """fp32, through log-probs and entropy, with temperature and bias; what is frozen gets none."""
    made, hidden, targets = head(softcap, chunk=2), torch.randn(9, 6), torch.arange(9) % 13
    weight, entropy_weight = torch.randn(9), torch.randn(9)
    exact = copy.deepcopy(made).double()
    states, exact_states = hidden.clone(), hidden.double().requires_grad_()
    states.requires_grad_(frozen != "backbone")
    made.lm_head.requires_grad_(frozen != "head")
    log_probs, entropy = made(states, targets, 0.7, True)
    ((log_probs * weight).sum() + (entropy * entropy_weight).sum()).backward()
    logits = exact.lm_head(exact_states)
    if softcap is not None:
        logits = torch.tanh(logits / softcap) * softcap
    everything = torch.log_softmax(logits / 0.7, -1)
    wanted = everything[range(9), targets], -(everything.exp() * everything).sum(-1)
    ((wanted[0] * weight).sum() + (wanted[1] * entropy_weight).sum()).backward()
    close: Any = partial(torch.testing.assert_close, rtol=1e-5, atol=2e-6, check_dtype=False)
    close(log_probs, wanted[0])
    close(entropy, wanted[1])
    if frozen == "backbone":
        assert states.grad is None
    else:
        close(states.grad, exact_states.grad)
    for parameter, reference in zip(made.lm_head.parameters(), exact.lm_head.parameters(), strict=True):
        if frozen == "head":
            assert parameter.grad is None
        else:
            close(parameter.grad, reference.grad)


def test_the_heads_gradient_in_bf16_is_rounded_once_however_many_tiles() -> None:
    """Against float64, relative: bf16 rounds what flows into the head (2**-9 at most, 1.7e-3 in the mean) and the
    result; a sum over 37 parts of the batch rounds 37 times more."""
    torch.manual_seed(0)
    hidden, targets, weight = torch.randn(37 * 8, 16).bfloat16(), torch.randint(0, 100, (37 * 8,)), torch.randn(37 * 8)
    linear = torch.nn.Linear(16, 100, bias=False)
    made = LogProbHead(linear, 100).bfloat16()
    exact = linear.weight.detach().double().requires_grad_()
    errors = []
    for chunk in (8, 37 * 8):
        made.positions_per_chunk = chunk
        made.zero_grad()
        (made(hidden, targets, 1.0, False)[0] * weight).sum().backward()
        exact.grad = None
        log_probs = torch.log_softmax(hidden.double() @ exact.T, -1)[range(37 * 8), targets]
        (log_probs * weight).sum().backward()
        assert linear.weight.grad is not None and exact.grad is not None
        errors.append(float((linear.weight.grad.double() - exact.grad).norm() / exact.grad.norm()))
    assert errors[0] < 1.1 * errors[1] < 4e-3


def test_softcap_bends_the_logits_before_the_temperature() -> None:
    made = head(softcap=2.0)
    hidden = torch.randn(4, 6)
    logits = 2 * torch.tanh(made.lm_head(hidden) / 2) / 0.5
    want = torch.log_softmax(logits, -1)[range(4), range(4)]
    torch.testing.assert_close(made(hidden, torch.arange(4), 0.5, False)[0], want)


def test_bf16_hidden_states_are_scored_in_fp32() -> None:
    made = head().bfloat16()
    log_probs, _ = made(torch.randn(4, 6).bfloat16(), torch.arange(4), 1.0, False)
    assert log_probs.dtype == torch.float32


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


def test_architectures_that_hide_a_factor_on_the_logits_are_refused(tmp_path: Path) -> None:
    from transformers import GraniteConfig

    GraniteConfig(hidden_size=8, num_hidden_layers=1, logits_scaling=4.0).save_pretrained(tmp_path)
    with pytest.raises(StrategyError, match="logits_scaling"):
        load_policy(model_args(tmp_path))
