"""LoRA under megatron_train against peft + torch.optim.AdamW in one process; of a mixture, whose experts peft adapts in
another form, against W + s B A written out."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from roll.models.megatron.hf_files import CHECKPOINT_FOLDER
from roll.models.weight_files import PlainReader
from tests.helpers.cases import cases
from tests.helpers.processes import RankPool
from tests.parity.megatron import adapted, models, ranks
from tests.parity.megatron.compare import assert_goes_on, assert_same_training, largest_difference
from tests.parity.megatron.layouts import CP2, EP2, PP2, RECOMPUTE, SHARED, SP, TP2
from tests.parity.megatron.ranks import Run
from tests.parity.strategies.adapters import LORA, an_adapter
from tests.parity.strategies.reference import (
    LEARNING_RATE,
    TEMPERATURE,
    BentLoss,
    SquaredValueLoss,
    Trace,
    naive_log_probs,
    rows,
    train_reference,
)

Pools = Callable[[int], RankPool]


@pytest.fixture(scope="module")
def adapter(tiny_tied_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = AutoModelForCausalLM.from_pretrained(tiny_tied_model_dir, dtype=torch.float32)
    return an_adapter(model, tmp_path_factory.mktemp("adapter"))


@pytest.fixture(scope="module")
def reference(tiny_tied_model_dir: Path, adapter: Path) -> Trace:
    return under_plain_names(
        train_reference(tiny_tied_model_dir, rows(), BentLoss(), [LEARNING_RATE] * 3, adapter=adapter)
    )


def under_plain_names(trace: Trace) -> Trace:
    """As peft's files have them."""
    return replace(trace, gradients={n.replace(".default", ""): g for n, g in trace.gradients.items()})


def run_of(model_dir: Path, settings: dict[str, Any], adapter: Path | None = None, **more: Any) -> Run:
    model = LORA | ({"adapter_name_or_path": str(adapter)} if adapter else {}) | more.pop("model", {})
    return Run(model_dir, settings, model=model, **more)


PLAIN = {"use_rslora": False}  # for experts
SLOW = pytest.mark.slow
DENSE = {
    "one": (1, {}, {}),
    "tp2": (2, TP2, {}),
    "tp2-sp": (2, TP2 | SP, {}),
    "pp2": (2, PP2, {}),
    "dp2-shared": (2, SHARED, {}),
    "cp2": (2, CP2, {}),
    "tp2-sp-packed": (2, TP2 | SP, {"packs": True}),
    "tp2-sp-recompute": (2, TP2 | SP | RECOMPUTE, {}),
    "pp2-recompute": (2, PP2 | RECOMPUTE, {}),
    "tp2-pp2-sp-shared": (4, TP2 | PP2 | SP | SHARED, {}),
    "overlap": (
        4, SHARED | TP2 | {"overlap_grad_reduce": True, "overlap_param_gather": True, "bucket_size": 500}, {},
    ),
}  # fmt: skip
FAST = ("tp2", "tp2-sp", "pp2", "tp2-pp2-sp-shared")


@pytest.mark.gate("tp2-sp")
@pytest.mark.proof
@pytest.mark.parametrize("name", [n if n in FAST else pytest.param(n, marks=SLOW) for n in DENSE])
def test_three_updates_equal_peft_and_torch_adamw_on_the_whole_batch(
    name: str, rank_pool: Pools, tiny_tied_model_dir: Path, adapter: Path, reference: Trace
) -> None:
    """Gradients of A and B of every layer that qkv and gate-up stand for, norms, and the exported weights, in which the
    adapters are merged. The adapter was written by peft and is not 0."""
    world_size, settings, options = DENSE[name]
    run = run_of(tiny_tied_model_dir, settings, adapter, **options)
    assert_same_training(rank_pool(world_size).run(ranks.train, run)[0], reference)


MIXTURES = {
    "one": (1, "qwen3_moe", {}, {}),
    "tp2": (2, "qwen3_moe", TP2 | SP, {}),
    "ep2": (2, "qwen3_moe", EP2, {}),
    "tp2-latent": (2, "deepseek_v3", TP2 | SP, {}),
    "tp2-normed": (2, "glm4", TP2 | SP, {}),
    "tp2-etp1": (2, "qwen3_moe", TP2 | SP | {"expert_tensor_parallel_size": 1}, {}),
    "tp2-ep2": (4, "mixtral", TP2 | SP | EP2, {"split": (3, 1)}),
    "pp2-ep2-shared": (4, "qwen3_moe", PP2 | EP2 | SHARED, {}),
    "tp2-ep2-etp2": (
        4, "mixtral", TP2 | SP | EP2 | {"moe_token_dispatcher_type": "allgather", "expert_tensor_parallel_size": 2}, {},
    ),
}  # fmt: skip


@pytest.mark.gate("ep2")
@pytest.mark.proof
@pytest.mark.parametrize("name", [n if n in ("tp2", "ep2") else pytest.param(n, marks=SLOW) for n in MIXTURES])
def test_experts_are_linear_layers_with_adapters(
    name: str, rank_pool: Pools, family_dir: Callable[..., Path], tmp_path: Path
) -> None:
    world_size, family, settings, options = MIXTURES[name]
    model_dir = family_dir(family)
    factors = adapted.some_factors(model_dir, family)
    place = adapted.write(factors, model_dir, tmp_path)
    want = adapted.train(model_dir, family, factors, [LEARNING_RATE] * 3)
    run = run_of(model_dir, settings, place, model=adapted.SETTINGS, vocab_size=models.VOCAB_SIZE, **options)
    assert_same_training(rank_pool(world_size).run(ranks.train, run)[0], want)


SINKS = {
    "tp2-sp": TP2 | SP | {"expert_tensor_parallel_size": 1},
    "pp2": PP2,
    "ep2": EP2,
}


@pytest.mark.proof
@pytest.mark.parametrize("name", [n if n == "tp2-sp" else pytest.param(n, marks=SLOW) for n in SINKS])
def test_experts_that_are_one_tensor_get_no_adapters_and_attention_does(
    name: str, rank_pool: Pools, family_dir: Callable[..., Path], tmp_path: Path
) -> None:
    """As with peft, of whose linear layers the experts of gpt-oss are none."""
    model_dir, given = family_dir("gpt_oss"), rows(vocab_size=models.VOCAB_SIZE)
    place = an_adapter(AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32), tmp_path)
    want = under_plain_names(train_reference(model_dir, given, BentLoss(), [LEARNING_RATE] * 3, adapter=place))
    assert {key.split(".")[-3] for key in want.gradients} == {"q_proj", "k_proj", "v_proj", "o_proj"}
    run = run_of(model_dir, SINKS[name], place, vocab_size=models.VOCAB_SIZE)
    assert_same_training(rank_pool(2).run(ranks.train, run)[0], want)


@cases("model, said")
def test_experts_that_are_one_tensor_are_refused_by_name(
    model: dict[str, Any], said: str, rank_pool: Pools, family_dir: Callable[..., Path]
) -> None:
    run = run_of(family_dir("gpt_oss"), {}, model=model, vocab_size=models.VOCAB_SIZE)
    assert said in rank_pool(1).run(ranks.refusal, run)[0]


@pytest.mark.gate("one")
@pytest.mark.parametrize("settings, world_size", [({}, 1), (TP2 | PP2 | SP, 4)], ids=["one", "tp2-pp2-sp"])
def test_with_the_adapters_off_log_probs_are_those_of_the_base_to_the_bit(
    settings: dict[str, Any], world_size: int, rank_pool: Pools, tiny_tied_model_dir: Path, adapter: Path
) -> None:
    """Before an update and after it; with them they are peft's, and change with the update."""
    run = run_of(tiny_tied_model_dir, settings, adapter)
    pool = rank_pool(world_size)
    want = pool.run(ranks.log_probs, Run(tiny_tied_model_dir, settings))[0]
    before, own, after, moved = pool.run(ranks.looks, run)[0]
    assert np.array_equal(want, before) and np.array_equal(want, after)
    assert np.abs(own - moved).max() > 1e-3
    base = AutoModelForCausalLM.from_pretrained(tiny_tied_model_dir, dtype=torch.float32)
    peft_model = PeftModel.from_pretrained(base, str(adapter))
    with torch.no_grad():
        for index, row in enumerate(rows()):
            scored = naive_log_probs(peft_model, row, TEMPERATURE)[0][0].numpy()
            assert np.abs(own[index][: len(scored)] - scored).max() < 1e-5


@pytest.mark.gate("tp2-sp")
@pytest.mark.parametrize("settings", [TP2 | SP, PP2], ids=["tp2-sp", "pp2"])
def test_a_model_is_saved_merged_and_as_an_adapter_that_peft_loads(
    settings: dict[str, Any], rank_pool: Pools, make_tiny_model_dir: Callable[..., Path], tmp_path: Path
) -> None:
    """Both give the same log-probs, and the merged one is what engines get; lm_head, trained in full, is in both. A
    trainer starts from it again."""
    model_dir = make_tiny_model_dir(tie_word_embeddings=False)
    run = run_of(model_dir, settings, model={"additional_target": "lm_head", "lora_target": "q_proj, v_proj, up_proj"})
    base_scores = rank_pool(2).run(ranks.log_probs, Run(model_dir, settings))[0]
    exported, switched_off = rank_pool(2).run(ranks.saved_as_hugging_face, run, tmp_path)[0]
    assert np.array_equal(base_scores, switched_off)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert largest_difference({n: p.detach().numpy() for n, p in merged.named_parameters()}, exported) == 0
    base = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    start = base.lm_head.weight.detach().numpy().copy()
    adapted_model = PeftModel.from_pretrained(base, str(tmp_path / "adapter"))
    with torch.no_grad():
        for row in rows():
            one, other = (naive_log_probs(model, row, TEMPERATURE)[0] for model in (merged, adapted_model))
            assert torch.allclose(one, other, atol=1e-5)
    assert np.abs(exported["lm_head.weight"] - start).max() > LEARNING_RATE / 2
    again = run_of(
        model_dir,
        settings,
        tmp_path / "adapter",
        model=dict(run.model) | {"adapter_name_or_path": str(tmp_path / "adapter")},
    )
    assert largest_difference(rank_pool(2).run(ranks.fresh_export, again)[0], exported) == 0


def test_rslora_on_experts_is_refused(rank_pool: Pools, family_dir: Callable[..., Path]) -> None:
    said = rank_pool(1).run(ranks.refusal, run_of(family_dir("qwen3_moe"), {}, vocab_size=models.VOCAB_SIZE))[0]
    assert said.startswith("model_args.use_rslora: true with adapters on the experts of a mixture")


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (
            {"lora_target": "query"},
            "lora_target: no linear layer of the model is named query. It has down_proj, gate_pro",
        ),
        ({"additional_target": "k_proj"}, "additional_target: k_proj names only a part of one Megatron parameter"),
        ({"additional_target": "lm_head"}, "additional_target: lm_head: embedding and head are one weight"),
        ({"freeze_module_prefix": "vision"}, "freeze_module_prefix: no parameter's name begins with 'vision'"),
        ({"lora_rank": 8}, "was made with lora_rank: 4. Set that in model_args"),
        ({"lora_target": "q_proj"}, "has adapters for other layers than"),
    ],
    ids=str,
)
def test_what_does_not_fit_the_model_is_refused_on_every_rank(
    model: dict[str, Any], said: str, rank_pool: Pools, tiny_tied_model_dir: Path, adapter: Path
) -> None:
    found = rank_pool(2).run(ranks.refusal, run_of(tiny_tied_model_dir, PP2, adapter, model=model))
    assert all(said in text for text in found)


def test_a_critic_learns_its_head_in_full_and_goes_on(
    rank_pool: Pools, family_dir: Callable[..., Path], tmp_path: Path
) -> None:
    """The head is in the checkpoint beside the adapters; of the backbone only adapted weights change."""
    run = run_of(
        family_dir("qwen2"), TP2 | SP, loss=SquaredValueLoss(), role="critic", vocab_size=models.VOCAB_SIZE,
        model={"lora_target": "q_proj, down_proj"},
    )  # fmt: skip
    start = rank_pool(2).run(ranks.fresh_export, run)[0]
    saved = assert_goes_on(rank_pool, tmp_path, (2, run), (2, run))
    moved = {name for name in start if not np.array_equal(start[name], saved[name])}
    assert {name.split(".")[-2] for name in moved} == {"q_proj", "down_proj", "score"}


@pytest.mark.parametrize("settings", [TP2 | SP, pytest.param(TP2, marks=SLOW)], ids=["tp2-sp", "tp2"])
def test_dropout_is_of_training_alone_and_goes_on_with_a_checkpoint(
    settings: dict[str, Any], rank_pool: Pools, family_dir: Callable[..., Path], tmp_path: Path
) -> None:
    """Its draws are in the checkpoint; ranks that hold the same inputs draw the same, or the gradients of a factor that
    both hold would part, and with them the exported weights of a resumed run."""
    run = run_of(family_dir("qwen2"), settings, model={"lora_dropout": 0.3}, vocab_size=models.VOCAB_SIZE)
    before, own, after, moved = rank_pool(2).run(ranks.looks, run)[0]
    assert np.array_equal(before, own) and np.array_equal(before, after) and not np.array_equal(own, moved)
    _, unbroken, norm = rank_pool(2).run(ranks.save_and_go_on, run, tmp_path)[0]
    _, resumed, other_norm = rank_pool(2).run(ranks.load_and_go_on, run, tmp_path)[0]
    assert largest_difference(unbroken, resumed) == 0 and other_norm == norm
    plain = run_of(family_dir("qwen2"), settings, vocab_size=models.VOCAB_SIZE)
    assert rank_pool(2).run(ranks.weights_around_an_update, plain)[0].grad_norm != norm


@pytest.mark.parametrize("settings", [{}, pytest.param({"context_parallel_size": 2}, marks=SLOW)], ids=["dp2", "cp2"])
def test_ranks_with_other_tokens_drop_other_inputs(
    settings: dict[str, Any], rank_pool: Pools, family_dir: Callable[..., Path]
) -> None:
    """Their generators say so, which agreed before and gave every rank the same masks."""
    run = run_of(family_dir("qwen2"), settings, model={"lora_dropout": 0.3}, vocab_size=models.VOCAB_SIZE)
    one, other = rank_pool(2).run(ranks.first_draws, run)
    assert not set(one) & set(other) and len(set(one)) == len(one)


@pytest.mark.gate("qwen3_moe-all-linear", "deepseek_v3-what every token meets")
@pytest.mark.parametrize("target", ["all-linear", "gate_proj, up_proj, down_proj, o_proj", "what every token meets"])
@pytest.mark.parametrize("family", ["qwen3_moe", "qwen2_moe", "deepseek_v3", "glm4_moe"])
def test_adapters_of_a_mixture_are_saved_as_peft_reads_them(
    family: str, target: str, rank_pool: Pools, family_dir: Callable[..., Path], tmp_path: Path
) -> None:
    """Experts by the names of single ones, which peft fuses as it loads them; dense and shared layers as parameters."""
    if target == "what every token meets":
        target = {"qwen3_moe": "down_proj", "qwen2_moe": "shared_expert.down_proj"}.get(
            family, "shared_experts.down_proj"
        )
    model_dir = family_dir(family)
    run = run_of(model_dir, EP2, model=PLAIN | {"lora_target": target}, vocab_size=models.VOCAB_SIZE)
    exported, _ = rank_pool(2).run(ranks.saved_as_hugging_face, run, tmp_path)[0]
    base = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    peft_model = PeftModel.from_pretrained(base, str(tmp_path / "adapter"))
    whole = peft_model.merge_and_unload()  # type: ignore[operator]
    stored = models.as_stored({n: p.detach().numpy() for n, p in whole.named_parameters()}, family)
    assert largest_difference(stored, {name: exported[name] for name in stored}) < 1e-6
    again = run_of(
        model_dir,
        EP2,
        model=PLAIN | {"lora_target": target, "adapter_name_or_path": str(tmp_path / "adapter")},
        vocab_size=models.VOCAB_SIZE,
    )
    assert largest_difference(rank_pool(2).run(ranks.fresh_export, again)[0], exported) == 0


def test_a_router_trained_in_full_leaves_its_correction_of_experts(
    rank_pool: Pools, family_dir: Callable[..., Path]
) -> None:
    model_dir = family_dir("glm4_moe")
    run = run_of(
        model_dir,
        EP2,
        model=PLAIN | {"lora_target": "o_proj", "additional_target": "gate"},
        vocab_size=models.VOCAB_SIZE,
    )
    trace = rank_pool(2).run(ranks.train, run)[0]
    name, start = "model.layers.1.mlp.gate.weight", load_file(model_dir / "model.safetensors")
    after = trace.parameters[-1]
    assert np.abs(after[name] - start[name].numpy()).max() > 1e-5
    for name, values in models.corrections(model_dir).items():
        assert np.array_equal(after[name], values)


RESHARDS = {
    "tp2-sp-to-pp2": ("qwen2", TP2 | SP, 2, PP2, 2),
    "tp2-pp2-shared-to-dp2-shared": ("qwen3", TP2 | PP2 | SHARED, 4, SHARED, 2),
    "ep2-shared-to-dp2-shared": ("qwen3_moe", EP2 | SHARED, 2, SHARED, 2),
    "dp2-shared-to-tp2-sp-ep2-shared": ("qwen3_moe", SHARED, 2, TP2 | SP | EP2 | SHARED, 4),
}


@pytest.mark.gate("tp2-sp-to-pp2")
@pytest.mark.parametrize(
    "name", [n if n != "dp2-shared-to-tp2-sp-ep2-shared" else pytest.param(n, marks=SLOW) for n in RESHARDS]
)
def test_a_checkpoint_holds_adapters_and_goes_on_under_another_layout(
    name: str, rank_pool: Pools, family_dir: Callable[..., Path], tmp_path: Path
) -> None:
    """Taken up by a trainer whose adapters are new ones."""
    family, before, ranks_before, after, ranks_after = RESHARDS[name]
    model_dir = family_dir(family)
    model = PLAIN if family == "qwen3_moe" else {}
    run = run_of(model_dir, before, model=model, vocab_size=models.VOCAB_SIZE)
    other = run_of(model_dir, after, model=model, vocab_size=models.VOCAB_SIZE)
    assert_goes_on(rank_pool, tmp_path, (ranks_before, run), (ranks_after, other))
    names = PlainReader(tmp_path / CHECKPOINT_FOLDER).read_metadata().state_dict_metadata
    assert [name for name in names if ".lora_A." in name] and not [name for name in names if "lora" not in name]
