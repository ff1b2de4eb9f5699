"""LoRA adapters in an engine, sent by themselves: log-probs are those of Hugging Face's model with peft's adapter."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from roll.errors import StrategyError
from tests.helpers.engines import EngineHarness, changed_model, forward_log_probs, load_model, open_harness, prompt

TOLERANCE = 1e-5  # fp32; several kernels, sums in another order
LENGTHS = (200, 17, 200, 40)  # the long ones fill a block of the prefix cache, and share it
NAMES = ("q_proj", "v_proj", "gate_proj", "up_proj", "down_proj")  # of q, k and v, which are one in vLLM, not k
Weights = dict[str, torch.Tensor]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["vllm"])
def harness(request: pytest.FixtureRequest, tiny_tied_model_dir: Path) -> Iterator[EngineHarness]:
    if find_spec(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    yield from open_harness(request.param, tiny_tied_model_dir, adapter_rank=5)


def adapted(base: torch.nn.Module, seed: int) -> tuple[torch.nn.Module, Weights]:
    """This model with an adapter of rank 5 by peft, and what is sent of the adapter: A, and s B."""
    from peft import LoraConfig, get_peft_model, get_peft_model_state_dict

    model = get_peft_model(base, LoraConfig(r=5, lora_alpha=12, use_rslora=True, target_modules=list(NAMES)))  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if ".lora_B." in name:
            torch.nn.init.normal_(parameter, std=0.05, generator=generator)
    sent = {
        name.removeprefix("base_model.model."): tensor * (12 / 5**0.5 if ".lora_B." in name else 1)
        for name, tensor in get_peft_model_state_dict(model).items()
    }
    return model, sent


def assert_answers_are_those_of(harness: EngineHarness, model: torch.nn.Module) -> None:
    requests = [harness.request(prompt(length), 2) for length in LENGTHS]
    for request, answers in zip(requests, harness.generate(*requests), strict=True):
        for answer in answers:
            want = forward_log_probs(model, request.prompt_ids, answer.token_ids)  # type: ignore[arg-type]
            assert np.abs(answer.log_probs - want).max() < TOLERANCE
            assert (answer.policy_versions == harness.version).all()


def send(harness: EngineHarness, weights: Weights, tmp_path: Path, whole: bool, route: str = "memory") -> None:
    version = harness.version + 1
    harness.run(harness.send(weights.items(), route, tmp_path, version, whole))
    harness.version = version


def test_the_engine_samples_with_the_adapter_that_came_last(harness: EngineHarness, tmp_path: Path) -> None:
    """At first there is none; then one comes with the weights that it stands beside, which are others than those that
    the engine has loaded; then adapters alone, by every route; then other weights again."""
    directory = harness.model_dir
    assert_answers_are_those_of(harness, load_model(directory))
    base = changed_model(directory, 1)
    weights = {name: parameter.detach().clone() for name, parameter in base.named_parameters()}
    model, sent = adapted(base, 1)
    send(harness, weights | sent, tmp_path, whole=True)
    assert_answers_are_those_of(harness, model)
    for seed, route in enumerate(("memory", "broadcast", "file"), 2):
        model, sent = adapted(changed_model(directory, 1), seed)
        send(harness, sent, tmp_path, whole=False, route=route)
        assert_answers_are_those_of(harness, model)
    base = load_model(directory)
    weights = {name: parameter.detach().clone() for name, parameter in base.named_parameters()}
    model, sent = adapted(base, 9)
    send(harness, weights | sent, tmp_path, whole=True)
    assert_answers_are_those_of(harness, model)


def test_half_an_adapter_is_refused_and_the_next_whole_one_taken(harness: EngineHarness, tmp_path: Path) -> None:
    base = load_model(harness.model_dir)
    weights = {name: parameter.detach().clone() for name, parameter in base.named_parameters()}
    model, sent = adapted(base, 3)
    name = "model.layers.1.self_attn.v_proj.lora_B.weight"
    halved = {n: tensor for n, tensor in sent.items() if n != name}
    fewer = {n: tensor for n, tensor in sent.items() if ".v_proj." not in n}
    for lacking in (halved, fewer):
        with pytest.raises(StrategyError, match=r"parameters were not sent: model.layers.*v_proj.lora_"):
            harness.run(harness.send(lacking.items(), "file", tmp_path, whole=False))
    send(harness, weights | sent, tmp_path, whole=True)
    assert_answers_are_those_of(harness, model)
