"""LoRA on the experts of Hugging Face mixtures, against W + s B A of every matrix written out in one process, and
against peft's own where the files hold all experts in one tensor."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from roll.configs.sections.model import ModelArgs
from roll.configs.strategies.fsdp2_settings import DIVIDED_EXPERTS
from roll.features.lora.adapters import add_adapters
from roll.features.lora.experts import expert_matrices
from tests.helpers.processes import RankPool
from tests.parity.compare import assert_same_training, largest_difference
from tests.parity.megatron import adapted, models
from tests.parity.strategies import runs
from tests.parity.strategies.adapters import LORA, an_adapter
from tests.parity.strategies.forks import forks
from tests.parity.strategies.reference import LEARNING_RATE, TEMPERATURE, Trace, naive_log_probs, rows
from tests.parity.strategies.runs import Run
from tests.parity.strategies.test_expert_parallel import LOSS, MAX_NORM, reference, save_mixture

Pools = Callable[[int], RankPool]
NAMES = {"mixtral": "w1, w2, w3"}
RECOMPUTED = {"disable_gradient_checkpointing": False}
slow = pytest.mark.slow
WITHOUT_OUT_PROJ = ("falcon_h1", "falcon_mamba", "mamba", "mamba2", "nemotron_h")
ODD = ("laguna", *WITHOUT_OUT_PROJ)  # shared experts that peft takes for experts; layers that it adapts nowhere


@dataclass(frozen=True)
class Case:
    model_dir: Path
    adapter: Path
    want: Trace
    target: str

    def run(self, **given: Any) -> Run:
        model = adapted.SETTINGS | {"lora_target": self.target, "adapter_name_or_path": str(self.adapter)}
        return Run(self.model_dir, model=model | given.pop("model", {}), **given)


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Case]:
    made: dict[tuple[str, bool], Case] = {}

    def case(family: str, shares: bool = False) -> Case:
        if (family, shares) not in made:
            folder = tmp_path_factory.mktemp(family)
            model_dir = models.make(folder / "model", family, vocab_size=296)
            factors = adapted.some_factors(model_dir, family)
            given = forks() if shares else rows()
            want = adapted.train(model_dir, family, factors, [LEARNING_RATE] * 3, given=given)
            target = f"all-linear, {NAMES.get(family, 'gate_proj, up_proj, down_proj')}"
            adapter = adapted.write(factors, model_dir, folder)
            made[family, shares] = Case(model_dir, adapter, want, target)
        return made[family, shares]

    return case


def by_layer(gradients: dict[str, np.ndarray], family: str) -> dict[str, np.ndarray]:
    """By peft's names, of single experts."""
    return dict(_by_layer(gradients, family))


def _by_layer(gradients: dict[str, np.ndarray], family: str) -> Iterator[tuple[str, np.ndarray]]:
    mixtral = {"mlp": "block_sparse_moe", "gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
    for name, gradient in gradients.items():
        stem, _, factor = name.rpartition("_lora_")
        if not stem.endswith(("gate_up_proj", "down_proj")):
            yield name.replace(".default", ""), gradient
            continue
        experts, _, last = stem.rpartition(".")
        parts = ("gate_proj", "up_proj") if last == "gate_up_proj" else ("down_proj",)
        for number, of_expert in enumerate(gradient):
            for part, of_part in zip(parts, np.split(of_expert, len(parts)), strict=True):
                layer = f"{experts}.{number}.{part}"
                words = [mixtral.get(w, w) if family == "mixtral" else w for w in layer.split(".")]
                yield f"{'.'.join(words)}.lora_{factor}.weight", of_part


ENGINES: dict[str, tuple[int, str, dict[str, Any]]] = {
    "zero2": (2, "qwen3_moe", {"stage": 2}),
    "zero3": (2, "qwen3_moe", {"stage": 3, "model": RECOMPUTED}),
    "fsdp2": (2, "qwen3_moe", {"fsdp2": {}, "split": (3, 1)}),
    "fsdp2-packed": (2, "deepseek_v3", {"fsdp2": {}, "packs": True, "model": RECOMPUTED}),
    "fsdp2-w1": (2, "mixtral", {"fsdp2": {}}),
    "ep2": (2, "qwen2_moe", {"fsdp2": {"ep_size": 2}}),
    "ep2-x4-packed": (
        4, "qwen3_moe", {"fsdp2": {"ep_size": 2}, "split": (1, 1), "packs": True, "model": RECOMPUTED},
    ),
    "ep4": (4, "deepseek_v3", {"fsdp2": {"ep_size": 4}}),
    "ep2-waiting": (2, "glm4_moe", {"fsdp2": {"ep_size": 2, "param_offload": True, "optimizer_offload": True}}),
    "ep2-on-host": (2, "qwen3_moe", {"fsdp2": {"ep_size": 2, "offload_policy": True}}),
    "zero3-trees": (2, "qwen3_moe", {"stage": 3, "shares": "on"}),
    "fsdp2-trees": (2, "deepseek_v3", {"fsdp2": {}, "shares": "on", "model": RECOMPUTED}),
    "ep2-trees": (2, "mixtral", {"fsdp2": {"ep_size": 2}, "shares": "on", "split": (1, 1)}),
    "ep2-w1": (2, "mixtral", {"fsdp2": {"ep_size": 2}, "model": RECOMPUTED}),
}  # fmt: skip
GATE = ("fsdp2", "ep2-x4-packed")


@pytest.mark.gate("ep2-x4-packed")
@pytest.mark.proof
@pytest.mark.parametrize("name", [n if n in GATE else pytest.param(n, marks=slow) for n in ENGINES])
def test_three_updates_of_adapters_on_every_expert_equal_torch(
    name: str, rank_pool: Pools, cases: Callable[..., Case]
) -> None:
    """Gradients of the factors of every expert's matrices, norms, and the exported weights, in which they are merged;
    the adapters are read as peft writes them, and are not 0. Of trees, a token that several rows have goes to its
    experts once."""
    world_size, family, options = ENGINES[name]
    case = cases(family, "shares" in options)
    for trace in rank_pool(world_size).run(runs.train, case.run(**options)):
        got = replace(trace, gradients=by_layer(trace.gradients, family))
        if not got.parameters[0]:
            got = replace(got, parameters=case.want.parameters)
        assert_same_training(got, case.want)


@pytest.mark.slow
def test_a_checkpoint_of_experts_adapters_goes_on_with_other_sizes(
    rank_pool: Pools, cases: Callable[[str], Case], tmp_path: Path
) -> None:
    """Saved by four ranks of which two and two divide the experts, by a run that drops no inputs."""
    case = cases("qwen3_moe")
    run = case.run(fsdp2={"ep_size": 2}, updates=2)
    after = rank_pool(4).run(runs.save_after, run, tmp_path)[0]
    fresh = {key: value for key, value in run.model.items() if key != "adapter_name_or_path"}
    for world_size, settings in ((4, {"ep_size": 4}), (2, {"ep_size": 2}), (2, {}), (1, {})):
        later = replace(run, updates=1, fsdp2=settings, model=fresh)
        found = rank_pool(world_size).run(runs.go_on, later, tmp_path)[0].parameters[0]
        assert largest_difference(found, after) < 1e-6, (world_size, settings)


@pytest.mark.gate("qwen3_moe")
@pytest.mark.parametrize(
    "family", ["qwen3_moe", *(pytest.param(f, marks=slow) for f in ("qwen2_moe", "deepseek_v3", "mixtral"))]
)
def test_what_is_saved_is_what_was_exported_and_peft_reads_its_adapter(
    family: str, rank_pool: Pools, cases: Callable[[str], Case], tmp_path: Path
) -> None:
    """From two ranks that divide the experts; a trainer starts from it again."""
    case = cases(family)
    run = case.run(fsdp2={"ep_size": 2})
    exported = rank_pool(2).run(runs.saved_as_hugging_face, run, tmp_path)[0][1]
    merged = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    base = AutoModelForCausalLM.from_pretrained(case.model_dir, dtype=torch.float32)
    adapter = tmp_path / "adapter"
    with_adapter = PeftModel.from_pretrained(base, str(adapter))
    with torch.no_grad():
        for row in rows()[:3]:
            one, other = (naive_log_probs(model, row, TEMPERATURE)[0] for model in (merged, with_adapter))
            assert torch.allclose(one, other, atol=1e-5)
    again = replace(case, adapter=adapter).run(fsdp2={})
    assert largest_difference(rank_pool(2).run(runs.fresh_export, again)[0], exported) == 0


@pytest.mark.slow
def test_without_its_adapters_a_mixture_is_the_base_to_the_bit(rank_pool: Pools, cases: Callable[[str], Case]) -> None:
    from tests.parity.strategies.test_lora import base_of, looks

    run = cases("qwen3_moe").run(fsdp2={"ep_size": 2})
    plain = replace(run, model={})
    for base, (before, own, after, moved) in zip(
        rank_pool(2).run(base_of, plain), rank_pool(2).run(looks, run), strict=True
    ):
        for want, first, second, with_them, later in zip(base, before, after, own, moved, strict=True):
            assert np.array_equal(want, first) and np.array_equal(want, second)
            assert np.abs(with_them - first).max() > 0.02 and np.abs(with_them - later).max() > 1e-3


# Files that hold all experts of a layer in one tensor: what its two tensors are called there and in memory.
STACKED: dict[str, tuple[str, list[str]]] = {
    "gpt_oss": ("gate_up_proj, down_proj", ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]),
    **dict.fromkeys(
        ("granitemoe", "granitemoehybrid", "granitemoeshared"),
        (
            "block_sparse_moe.input_linear, block_sparse_moe.output_linear",
            ["block_sparse_moe.experts.gate_up_proj", "block_sparse_moe.experts.down_proj"],
        ),
    ),
    "granitemoe_swa": (
        "experts.gate_up_proj, experts.down_proj",
        ["block_sparse_moe.experts.gate_up_proj", "block_sparse_moe.experts.down_proj"],
    ),
    "aria_text": ("fc1, fc2", ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]),
}


@pytest.fixture(scope="module")
def stacked(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Case]:
    made: dict[str, Case] = {}

    def case(kind: str) -> Case:
        if kind not in made:
            folder, (words, parameters) = tmp_path_factory.mktemp(kind), STACKED[kind]
            model_dir = save_mixture(kind, folder / "model")
            plain = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
            layers = ["q_proj", "o_proj"]
            adapter = an_adapter(plain, folder / "adapter", target_modules=layers, target_parameters=parameters)
            made[kind] = Case(model_dir, adapter, reference(model_dir, adapter=adapter), f"q_proj, o_proj, {words}")
        return made[kind]

    return case


def as_peft_has_them(gradients: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """By peft's names, which wraps `down` around `gate_up`: A [experts x r, inputs], B [outputs, r x experts]."""
    named = {}
    for name, gradient in gradients.items():
        stem, _, factor = name.rpartition("_lora_")
        if not stem.endswith(("gate_up_proj", "down_proj")):
            named[name] = gradient
            continue
        module, _, last = stem.rpartition(".")
        flat = gradient.reshape(-1, gradient.shape[2])
        if factor == "B":
            flat = gradient.transpose(1, 2, 0).reshape(gradient.shape[1], -1)
        inside = ".base_layer" if last == "gate_up_proj" else ""
        named[f"{module}{inside}.lora_{factor}.default.weight"] = flat
    return named


@pytest.mark.gate("gpt_oss-ep2")
@pytest.mark.proof
@pytest.mark.parametrize(
    ("kind", "trainer"),
    [
        *(("gpt_oss", trainer) for trainer in ("zero3", "fsdp2", "ep2")),
        *(("granitemoe", trainer) for trainer in ("zero2", "zero3", "ep2")),
        ("aria_text", "fsdp2"),
    ],
)
def test_adapters_of_experts_that_files_stack_learn_as_those_of_peft(
    kind: str, trainer: str, rank_pool: Pools, stacked: Callable[[str], Case]
) -> None:
    """With rank-stabilised scale, which peft reads of these as it is meant; the exported weights are merged, and have
    the names of the files."""
    options: dict[str, dict[str, Any]] = {
        "zero2": {"stage": 2, "split": (3, 1)},
        "zero3": {"stage": 3, "model": RECOMPUTED},
        "fsdp2": {"fsdp2": {}},
        "ep2": {"fsdp2": {"ep_size": 2}, "model": RECOMPUTED},
    }
    case = stacked(kind)
    assert case.want.parameters[0].keys() >= load_file(case.model_dir / "model.safetensors").keys() - {"lm_head.weight"}
    for trace in rank_pool(2).run(runs.train, stacked_run(case, **options[trainer])):
        got = replace(trace, gradients=as_peft_has_them(trace.gradients))
        assert_same_training(got if got.parameters[0] else replace(got, parameters=case.want.parameters), case.want)


def stacked_run(case: Case, **given: Any) -> Run:
    more = {"lora_target": case.target, "adapter_name_or_path": str(case.adapter)}
    return Run(case.model_dir, loss=LOSS, max_norm=MAX_NORM, model=LORA | more | given.pop("model", {}), **given)


@pytest.mark.slow
@pytest.mark.parametrize("kind", STACKED)
def test_adapters_of_stacked_experts_are_saved_as_peft_reads_them_and_go_on_with_other_sizes(
    kind: str, rank_pool: Pools, stacked: Callable[[str], Case], tmp_path: Path
) -> None:
    case = stacked(kind)
    run = stacked_run(case, fsdp2={"ep_size": 2} if kind in DIVIDED_EXPERTS else {})
    exported = rank_pool(2).run(runs.saved_as_hugging_face, run, tmp_path / "saved")[0][1]
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "saved", dtype=torch.float32)
    adapter = tmp_path / "saved" / "adapter"
    base = AutoModelForCausalLM.from_pretrained(case.model_dir, dtype=torch.float32)
    with_adapter = PeftModel.from_pretrained(base, str(adapter))
    with torch.no_grad():
        for row in rows()[:3]:
            one, other = (naive_log_probs(model, row, TEMPERATURE)[0] for model in (merged, with_adapter))
            assert torch.allclose(one, other, atol=1e-5)
    again = stacked_run(replace(case, adapter=adapter), fsdp2={})
    assert largest_difference(rank_pool(2).run(runs.fresh_export, again)[0], exported) == 0
    after = rank_pool(2).run(runs.save_after, replace(run, updates=2), tmp_path / "checkpoint")[0]
    for world_size, settings in ((2, {}), (1, {})):
        later = replace(run, updates=1, fsdp2=settings)
        found = rank_pool(world_size).run(runs.go_on, later, tmp_path / "checkpoint")[0].parameters[0]
        assert largest_difference(found, after) < 1e-6, (world_size, settings)


@pytest.mark.gate("qwen3_5_moe_text")
@pytest.mark.proof
@pytest.mark.parametrize(
    "kind", [k if k == "qwen3_5_moe_text" else pytest.param(k, marks=slow) for k in (*DIVIDED_EXPERTS,) if k not in ODD]
)
def test_peft_reads_adapters_of_experts_and_of_all_layers_beside_them(kind: str, tmp_path: Path) -> None:
    """The logits of what peft loads are those of the adapted model. The layers are more than the twenty whose names
    peft keeps as they are, and the types those that it knows and others."""
    model_dir = save_mixture(kind, tmp_path / "model")
    adapted_model, fresh = (AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32) for _ in range(2))
    words = {layer.rpartition(".")[2] for matrix in expert_matrices(adapted_model).values() for layer in matrix.layers}
    settings = {"model_name_or_path": str(model_dir), "lora_rank": 4, "lora_target": ["all-linear", *sorted(words)]}
    adapters = add_adapters(adapted_model, ModelArgs.model_validate(settings), "lm", False)
    trained = {name: weight for name, weight in adapted_model.named_parameters() if weight.requires_grad}
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in trained.values():
            weight.normal_(0, 0.1)
        tokens = torch.arange(3, 35)[None]
        want = adapted_model.eval()(tokens).logits
        plain = fresh.eval()(tokens).logits
        adapters.save(tmp_path / "adapter", str(model_dir), trained)
        got = PeftModel.from_pretrained(fresh, tmp_path / "adapter").eval()(tokens).logits
    assert (want - plain).abs().max() > 0.1
    torch.testing.assert_close(got, want, rtol=0, atol=1e-4)  # fp32; logits of some types reach 60
