"""Weights of megatron_train, whatever its layout, in the engines that sample, by every route."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from roll.distributed.executor.weights.sender import EngineRoute, Route, SendPlan
from tests.helpers.engine_socket import Engine
from tests.helpers.engines import forward_log_probs, prompt
from tests.helpers.processes import RankPool, shared_segments
from tests.integration.rollout_engines.senders import publish
from tests.parity.megatron.ranks import Run

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from roll.types.rollout import Generation

Pools = Callable[[int], RankPool]
TP2: dict[str, Any] = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
PP2: dict[str, Any] = {"pipeline_model_parallel_size": 2}
EP2: dict[str, Any] = {"expert_model_parallel_size": 2}
ROUTES: tuple[Route, ...] = ("memory", "broadcast", "file")
TOLERANCE = 3e-5  # the engines compute in fp32; the reference in fp64. Measured: up to 3e-6
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "tp2": (2, TP2),
    "pp2": (2, PP2),
    "tp2-pp2": (4, TP2 | PP2),
    "dp2-shared-late-gather": (
        2,
        {"use_distributed_optimizer": True, "overlap_grad_reduce": True, "overlap_param_gather": True},
    ),
}
EXPERT_LAYOUTS: dict[str, dict[str, tuple[int, dict[str, Any]]]] = {
    "qwen3_moe": {"ep2": (2, EP2), "pp2-ep2": (4, PP2 | EP2)},
    "mixtral": {"tp2": (2, TP2), "tp2-ep2": (4, TP2 | EP2)},
    "glm4_moe": {"ep2": (2, EP2)},
    "deepseek_v3": {"tp2": (2, TP2)},
}
# vLLM has no attention on CPUs for heads narrower than 32.
EXPERT_SHAPE: dict[str, Any] = {
    "vocab_size": 296, "max_position_embeddings": 512, "hidden_size": 128, "head_dim": 32, "intermediate_size": 64,
}  # fmt: skip
LATENT_SHAPE = {key: size for key, size in EXPERT_SHAPE.items() if key != "head_dim"}


@dataclass(frozen=True)
class Mixture:
    """An engine with a model of experts."""

    engine: Engine
    family: str
    model_dir: Path


@pytest.fixture(scope="module", params=["hf_infer", "vllm", "sglang"])
def engine(request: pytest.FixtureRequest, tiny_tied_model_dir: Path) -> Iterator[Engine]:
    if request.param != "hf_infer":
        pytest.importorskip(request.param, reason=f"{request.param} is not installed")
    made = Engine(request.param, tiny_tied_model_dir)
    yield made
    made.close()


@pytest.mark.gate("hf_infer-tp2", "hf_infer-dp2-shared-late-gather")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_engine_samples_with_the_weights_of_every_layout_and_route(
    layout: str, engine: Engine, rank_pool: Pools, tiny_tied_model_dir: Path, tmp_path: Path
) -> None:
    world_size, settings = LAYOUTS[layout]
    assert_engine_follows(engine, rank_pool(world_size), Run(tiny_tied_model_dir, settings), tmp_path)


@pytest.fixture(
    scope="module",
    params=[
        ("hf_infer", "qwen3_moe"),
        ("hf_infer", "mixtral"),
        ("hf_infer", "glm4_moe"),
        ("hf_infer", "deepseek_v3"),
        ("vllm", "qwen3_moe"),
        ("vllm", "glm4_moe"),
        ("vllm", "mixtral"),
        ("sglang", "qwen3_moe"),
        ("sglang", "mixtral"),
    ],
    ids="-".join,
)
def mixture(
    request: pytest.FixtureRequest, family_dir: Callable[..., Path], tiny_tokenizer: "PreTrainedTokenizerFast"
) -> Iterator[Mixture]:
    name, family = request.param
    if name != "hf_infer":
        pytest.importorskip(name, reason=f"{name} is not installed")
    model_dir = family_dir(family, **(LATENT_SHAPE if family == "deepseek_v3" else EXPERT_SHAPE))
    tiny_tokenizer.save_pretrained(model_dir)
    engine = Engine(name, model_dir)
    yield Mixture(engine, family, model_dir)
    engine.close()


@pytest.mark.slow
def test_an_engine_samples_with_the_experts_of_all_ranks(mixture: Mixture, rank_pool: Pools, tmp_path: Path) -> None:
    """Engines hold all experts of a layer in one tensor, vLLM and SGLang in an order of their kernels' own. Only one of
    an expert's matrices in the wrong place would show."""
    for name, (world_size, settings) in EXPERT_LAYOUTS[mixture.family].items():
        directory = tmp_path / name
        directory.mkdir()
        run = Run(mixture.model_dir, settings)
        assert_engine_follows(mixture.engine, rank_pool(world_size), run, directory)


def assert_engine_follows(engine: Engine, pool: RankPool, run: Run, directory: Path) -> None:
    """After every route, log-probs of what the engine samples are those of a Hugging Face model with the trainer's
    weights, which have moved by an update of 1e-2 per parameter since the last one."""
    model = AutoModelForCausalLM.from_pretrained(
        run.model_dir, dtype=torch.float64, experts_implementation="eager"
    ).eval()
    previous: list[np.ndarray] = []

    def check(weights: dict[str, np.ndarray]) -> None:
        answer = sampled(engine)
        if previous:
            old = forward_log_probs(model, prompt(17), answer.token_ids)
            assert np.abs(answer.log_probs - old).max() > 100 * TOLERANCE
        load(model, weights)
        expected = forward_log_probs(model, prompt(17), answer.token_ids)
        previous.append(expected)
        assert np.abs(answer.log_probs - expected).max() < TOLERANCE

    before = engine.worker.strategy.policy_version
    plans = [SendPlan((EngineRoute(route, (0,)),), directory=directory) for route in ROUTES]
    by_version = dict(enumerate(plans, before + 1))
    outcomes, *_ = engine.receive_from(pool, publish, (run, by_version), directory, check)
    assert outcomes == [[version] for version in by_version]
    assert len(previous) == len(ROUTES)
    assert not shared_segments(process.pid for process in pool.processes)


def load(model: "PreTrainedModel", weights: dict[str, np.ndarray]) -> None:
    """Weights under the names of the model's files; transformers 5 holds all experts of a layer in one tensor."""
    parts_of = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
    if model.config.model_type == "mixtral":
        parts_of = {"gate_up_proj": ("w1", "w3"), "down_proj": ("w2",)}
        weights = {name.replace("block_sparse_moe", "mlp"): values for name, values in weights.items()}
    for name, parameter in model.named_parameters():
        prefix, _, last = name.rpartition(".")
        parts = parts_of.get(last, ())
        if prefix.endswith(".experts"):
            values = np.stack(
                [
                    np.concatenate([weights[f"{prefix}.{expert}.{part}.weight"] for part in parts])
                    for expert in range(len(parameter))
                ]
            )
        else:
            values = weights[name]
        parameter.data.copy_(torch.from_numpy(values))


def sampled(engine: Engine) -> "Generation":
    from roll.types.rollout import GenerationRequest, SamplingParams

    request = GenerationRequest("r", prompt(17), SamplingParams(max_new_tokens=12, seed=100, ignore_eos=True), 1)
    return engine.run(engine.worker.strategy.generate(request))[0]
