"""LoRA's settings before anything starts: what is refused, what the plan says, what memory is counted."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from roll.configs.memory import deepspeed, fsdp2, megatron
from roll.configs.memory.layer_shape import ModelShape
from roll.configs.memory.model_shape import model_shape
from roll.configs.memory.parts import RoleFacts
from roll.configs.memory.trained import held_weights
from roll.configs.plan.batch_plan import build_plan
from roll.configs.plan.describe import batch_rows, describe
from roll.configs.sections.model import ModelArgs
from roll.configs.strategies.choice import Choice
from roll.configs.strategies.table import STRATEGIES
from roll.configs.tables.roles import ACTOR_TRAIN, CRITIC, Role
from roll.features.lora import checks
from roll.features.lora.checks import lora_problems, sent_adapter_model_problems
from roll.features.lora.model_checks import EXPERTS_AND_RSLORA, EXPERTS_WITHOUT_DOWN, lora_model_problems
from roll.run.start.preflight import choices, machine_report, role_strategy_warnings
from tests.helpers.configs import checked, config, problems, warnings_of

MODELS = Path(__file__).parents[2] / "configs" / "memory" / "models"
LORA = {"actor_train.model_args.lora_target": "all-linear"}
REFERENCE = {"strategy_args": {"strategy_name": "hf_infer"}, "device_mapping": [3]}
KL = {"use_kl_loss": True, "kl_loss_coef": 0.1}


@pytest.mark.parametrize("given", ["q_proj, v_proj", ["q_proj", "v_proj"], ("q_proj", "v_proj")], ids=str)
def test_targets_are_a_list_or_one_text(given: object) -> None:
    assert ModelArgs.model_validate({"lora_target": given}).lora_target == ("q_proj", "v_proj")


def test_other_names_of_the_same_keys_are_taken() -> None:
    given = checked(
        {"actor_train.model_args": {"target_modules": "all-linear", "lora_adapter_path": "/an/adapter"}}
    ).config
    assert given is not None
    args = given.actor_train.model_args
    assert (args.lora_target, args.adapter_name_or_path) == (("all-linear",), "/an/adapter")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"lora_target": "all-linear", "lora_rank": 0}, "actor_train.model_args.lora_rank: 0 must be at least 1."),
        (
            {"lora_target": "all-linear", "lora_dropout": 1.0},
            "actor_train.model_args.lora_dropout: 1.0 must be less than",
        ),
        ({"lora_target": "all-embedding"}, "lora_target: all-embedding: adapters are for linear layers; additional_ta"),
        ({"adapter_name_or_path": "/a"}, "adapter_name_or_path is for LoRA, which lora_target switches on. Set actor_"),
        ({"additional_target": "lm_head"}, "actor_train.model_args.additional_target is for LoRA, which lora_target "),
    ],
    ids=str,
)
def test_settings_that_cannot_work_are_refused(changes: dict[str, Any], said: str) -> None:
    found = problems({f"actor_train.model_args.{key}": value for key, value in changes.items()})
    assert len(found) == 1 and said in found[0]


def test_a_strategy_that_trains_no_adapters_is_refused_and_those_that_do_are_named() -> None:
    """One of a user's own: all of ours do."""
    choice = Choice(ACTOR_TRAIN, config(LORA).actor_train)
    own = replace(STRATEGIES["deepspeed_train"], supports=frozenset())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("roll.configs.strategies.table.STRATEGIES", {**STRATEGIES, "deepspeed_train": own})
        assert [problem.text for problem in lora_problems(choice)] == [
            "actor_train.model_args.lora_target: all-linear with deepspeed_train, which does not train LoRA adapters. "
            "Supported by: megatron_train, fsdp2_train. Use one of them, or remove lora_target, and all weights are "
            "trained."
        ]
    for name in ("deepspeed_train", "fsdp2_train", "megatron_train"):
        assert problems(LORA | {"actor_train.strategy_args.strategy_name": name}) == []


def test_layers_of_transformer_engine_get_no_adapters() -> None:
    megatron = {"strategy_name": "megatron_train", "strategy_config": {"transformer_impl": "transformer_engine"}}
    found = problems(LORA | {"actor_train.strategy_args": megatron})
    said = "actor_train.model_args.lora_target: adapters on layers of transformer-engine are not supported yet."
    assert [text for text in found if text.startswith(said)]


def test_experts_in_one_product_get_no_adapters() -> None:
    megatron = {"strategy_name": "megatron_train", "strategy_config": {"moe_grouped_gemm": True}}
    said = "actor_train.model_args.lora_target: actor_train.strategy_args.strategy_config.moe_grouped_gemm: true, whose"
    assert [text for text in problems(LORA | {"actor_train.strategy_args": megatron}) if text.startswith(said)]
    assert not problems({"actor_train.strategy_args": megatron})


def test_settings_of_adapters_without_a_target_are_said_to_do_nothing() -> None:
    given = {"actor_train.model_args.lora_rank": 16, "actor_train.model_args.lora_alpha": 32}
    said = "actor_train.model_args: lora_rank, lora_alpha do nothing: LoRA is off (lora_target is not set)."
    assert said in role_strategy_warnings(config(given))
    assert role_strategy_warnings(config(LORA | given)) == []


def test_without_peft_it_is_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not [p for p in machine_report(config(LORA)).problems if "peft" in p.text]
    monkeypatch.setattr(checks, "is_installed", lambda module: module != "peft")
    assert [p.text for p in machine_report(config(LORA)).problems if "peft" in p.text] == [
        "actor_train.model_args.lora_target needs the package peft, which is not installed. Install it: "
        'pip install -e ".[lora]"'
    ]


def test_the_reference_is_the_policy_without_adapters_and_no_role_of_its_own() -> None:
    made = config(LORA | KL | {"reference": REFERENCE, "actor_train.infer_batch_size": 5})
    plan = build_plan(made)
    assert problems(LORA | KL) == []  # no section is needed
    assert "reference" not in made.model_roles and "reference" not in {place.role for place in plan.layout.roles}
    assert plan.policy_is_reference and "actor_train" in plan.scoring
    shown = describe(made, plan, batch_rows(made, plan))
    assert "actor_train without its adapters: log-probs in batches of 5" in shown
    said = "reference is not started: with LoRA its log-probs are those of actor_train without its adapters."
    assert said in warnings_of(made)


def test_without_a_kl_term_nobody_is_the_reference() -> None:
    one_update = {"rollout_batch_size": 8}
    plan, with_kl = (build_plan(config(LORA | one_update | more)) for more in ({}, KL))
    assert not plan.policy_is_reference and plan.reference_batch_size is None and plan.scoring == frozenset()
    assert with_kl.policy_is_reference and with_kl.scoring == {"actor_train"}


def test_a_reference_that_is_another_model_is_refused() -> None:
    other = REFERENCE | {"model_args": {"model_name_or_path": "org/other"}}
    assert problems(LORA | KL | {"reference": other}) == [
        "reference.model_args.model_name_or_path: org/other is not the model of actor_train, org/model. With "
        "actor_train.model_args.lora_target the reference is the policy without its adapters. Remove it, or "
        "lora_target."
    ]
    assert problems(KL | {"reference": other}) == []


def test_a_start_from_an_adapter_is_no_reference() -> None:
    given = LORA | KL | {"actor_train.model_args.adapter_name_or_path": "/an/adapter"}
    assert any("the KL compares with the model without any adapter" in text for text in warnings_of(config(given)))


def model(name: str) -> dict[str, Any]:
    return json.loads((MODELS / f"{name}.json").read_text())


def shape_of(name: str, role: Role = ACTOR_TRAIN) -> ModelShape:
    shape, why = model_shape(model(name), role.head or "lm")
    assert shape is not None, why
    return shape


@pytest.mark.parametrize(
    ("args", "name", "said"),
    [
        (
            {"lora_target": "query"},
            "qwen2.5-7b",
            "actor_train.model_args.lora_target: no linear layer of the model is named query. It has down_proj, "
            "gate_proj, k_proj, lm_head, o_proj, q_proj, up_proj, v_proj, or write all-linear.",
        ),
        (
            {"lora_target": "gate_proj"},
            "qwen3-30b-a3b",
            "actor_train.model_args.lora_target: gate_proj and up_proj of experts are one matrix, and gate_proj names "
            "a part of it. Name both, or none.",
        ),
        (
            {"lora_target": "gate_proj, up_proj, down_proj"},
            "qwen3-30b-a3b",
            "actor_train.model_args.lora_target: gate_proj, up_proj, down_proj names layers of experts alone. Name one "
            "beside them, such as o_proj.",
        ),
        (
            {"lora_target": "gate_proj, up_proj, o_proj"},
            "qwen3-30b-a3b",
            f"actor_train.model_args.lora_target: gate_proj, up_proj, o_proj {EXPERTS_WITHOUT_DOWN}.",
        ),
        ({"lora_target": "down_proj, o_proj"}, "qwen3-30b-a3b", None),
        ({"lora_target": "gate_proj, up_proj, down_proj, o_proj"}, "qwen3-30b-a3b", None),
        (
            {"lora_target": "down_proj, o_proj", "use_rslora": True},
            "qwen3-30b-a3b",
            f"actor_train.model_args.use_rslora: {EXPERTS_AND_RSLORA}.",
        ),
        (
            {"lora_target": "q_proj", "freeze_module_prefix": "model."},
            "qwen2.5-7b",
            "actor_train.model_args.freeze_module_prefix: model. leaves no layer that "
            "actor_train.model_args.lora_target could name.",
        ),
        (
            {"lora_target": "q_proj, o_proj", "additional_target": "self_attn"},
            "qwen2.5-7b",
            "actor_train.model_args.additional_target: self_attn leaves no layer that "
            "actor_train.model_args.lora_target could name.",
        ),
        ({"lora_target": "q_proj, up_proj", "additional_target": "self_attn"}, "qwen2.5-7b", None),
        ({"lora_target": "layers.3.mlp.up_proj"}, "qwen2.5-7b", None),
        ({"lora_target": "lm_head"}, "qwen2.5-7b", None),
        (
            {"lora_target": "q_proj", "additional_target": "lm_heads"},
            "qwen2.5-7b",
            "actor_train.model_args.additional_target: no module of the model that has weights is named lm_heads. It "
            "has down_proj, embed_tokens, gate_proj, input_layernorm, k_proj, layers, lm_head, mlp, model, norm, "
            "o_proj, post_attention_layernorm, q_proj, self_attn, up_proj, v_proj.",
        ),
        (
            {"lora_target": "q_proj", "additional_target": "embed_tokens", "freeze_module_prefix": "model.embed"},
            "qwen2.5-7b",
            "actor_train.model_args.freeze_module_prefix: model.embed leaves no module that "
            "actor_train.model_args.additional_target: embed_tokens names. Remove one of them.",
        ),
        ({"lora_target": "q_proj", "additional_target": ["lm_head", "layers.3.mlp", "norm"]}, "qwen2.5-7b", None),
        ({"lora_target": "all-linear"}, "qwen3-30b-a3b", None),
        ({}, "qwen2.5-7b", None),
    ],
)
def test_targets_are_held_against_the_models_layers(args: dict[str, Any], name: str, said: str | None) -> None:
    worker = config({"actor_train.model_args": args}).actor_train
    found = [problem.text for problem in lora_model_problems(Choice(ACTOR_TRAIN, worker), model(name))]
    assert found == ([] if said is None else [said])


@pytest.mark.parametrize(
    ("kind", "target", "is_refused"),
    [
        ("falcon_h1", "all-linear", True),
        ("nemotron_h", "q_proj, mixer.out_proj", True),
        ("falcon_h1", "q_proj, in_proj", False),
        ("granitemoehybrid", "all-linear", False),
    ],
)
def test_layers_to_which_peft_gives_no_adapters_are_refused_by_name(kind: str, target: str, is_refused: bool) -> None:
    worker = config({"actor_train.model_args": {"lora_target": target}}).actor_train
    found = [problem.text for problem in lora_model_problems(Choice(ACTOR_TRAIN, worker), {"model_type": kind})]
    assert len(found) == is_refused and all("adapts out_proj of" in text for text in found)


NEMOTRON = {
    "model_type": "nemotron_h", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "num_hidden_layers": 3, "mamba_num_heads": 4, "mamba_head_dim": 16,
    "n_groups": 2, "hybrid_override_pattern": "M-*",
}  # fmt: skip


@pytest.mark.parametrize("target", ["all-linear", "q_proj, gate_proj"])
def test_layers_that_are_named_in_place_of_others_are_there_and_can_have_adapters(target: str) -> None:
    """Nemotron-H's MLP has no gate_proj, and all-linear has its out_proj in it."""

    def found(words: str) -> list[str]:
        worker = config({"actor_train.model_args": {"lora_target": words}}).actor_train
        return [problem.text for problem in lora_model_problems(Choice(ACTOR_TRAIN, worker), NEMOTRON)]

    (text,) = found(target)
    names = text.rpartition("Name others: " if target == "all-linear" else "It has ")[2].removesuffix(".")
    assert set(names.split(", ")) - {"lm_head"} == {
        *("in_proj", "up_proj", "down_proj", "q_proj", "k_proj", "v_proj", "o_proj")
    }
    assert not found(names)


def test_one_weight_of_embedding_and_head_cannot_be_trained_in_full() -> None:
    tied = model("qwen2.5-7b") | {"tie_word_embeddings": True}
    worker = config({"actor_train.model_args": {"lora_target": "q_proj", "additional_target": "lm_head"}}).actor_train
    assert [problem.text for problem in lora_model_problems(Choice(ACTOR_TRAIN, worker), tied)] == [
        "actor_train.model_args.additional_target: lm_head: embedding and head are one weight in this model "
        "(tie_word_embeddings); this would make two of it. Remove it."
    ]


@pytest.mark.parametrize("target", ["down_proj", "gate_proj, up_proj, down_proj", "all-linear"])
def test_experts_are_linear_layers_of_megatron(target: str) -> None:
    changes = {"strategy_args": {"strategy_name": "megatron_train"}, "model_args": {"lora_target": target}}
    worker = config({f"actor_train.{key}": value for key, value in changes.items()}).actor_train
    assert not list(lora_model_problems(Choice(ACTOR_TRAIN, worker), model("qwen3-30b-a3b")))


MIXTRAL = {"model_type": "mixtral", "num_local_experts": 8}
GPT_OSS = {"model_type": "gpt_oss", "num_local_experts": 8}
WHERE = "actor_train.model_args."
LACKS, PART = "no module of the model that has weights", "are one parameter in Megatron, of which only a part is named"


@pytest.mark.parametrize(
    ("changes", "args", "said"),
    [
        ({}, {"lora_target": "gate_proj"}, "lora_target: gate_proj and up_proj of experts are one matrix, and gate_pr"),
        ({}, {"lora_target": "gate_proj, up_proj, o_proj"}, f"gate_proj, up_proj, o_proj {EXPERTS_WITHOUT_DOWN}."),
        ({}, {"lora_target": "experts.7.down_proj"}, "lora_target: experts.7.down_proj names 1 of 128 experts, and p"),
        ({}, {"lora_target": [f"experts.{number}.down_proj" for number in range(128)]}, None),
        ({}, {"lora_target": "experts.gate_proj"}, "lora_target: no linear layer of the model is named experts.g"),
        (MIXTRAL, {"lora_target": "block_sparse_moe.experts.7.w1, w2"}, "names 1 of 128 experts, and peft reads "),
        (MIXTRAL, {"lora_target": "block_sparse_moe.experts.7.w2, w2"}, None),
        (MIXTRAL, {"lora_target": "w1, o_proj"}, "w1 and w3 of experts are one matrix, and w1, o_proj names a part"),
        (MIXTRAL, {"lora_target": "gate_proj"}, "gate_proj. It has k_proj, o_proj, q_proj, v_proj, w1, "),
        ({}, {"lora_target": "lm_head"}, "lora_target: no linear layer of the model is named lm_head."),
        (GPT_OSS, {"additional_target": "self_attn"}, f"{LACKS} of its own is named self_attn."),
        (GPT_OSS, {"additional_target": "experts.3"}, f"{LACKS} of its own is named experts.3."),
        (MIXTRAL, {"additional_target": "block_sparse_moe.gate"}, None),
        (MIXTRAL, {"additional_target": "mlp.gate"}, f"{LACKS} of its own is named mlp.gate."),
        ({}, {"additional_target": "mlp"}, f"{LACKS} of its own is named mlp."),
        ({}, {"additional_target": "k_proj"}, f"additional_target: q_proj, k_proj, v_proj {PART}. Name all"),
        ({}, {"additional_target": "gate_proj, up_proj, q_proj"}, f"additional_target: q_proj, k_proj, v_proj {PART}"),
        ({}, {"additional_target": "layers.3.self_attn.q_proj, k_proj, v_proj"}, PART),
        ({}, {"additional_target": "q_proj, k_proj, v_proj, o_proj, gate, norm"}, None),
    ],
    ids=str,
)  # fmt: skip
def test_modules_are_called_as_the_trainer_knows_them(
    changes: dict[str, Any], args: dict[str, Any], said: str | None
) -> None:
    """Megatron's have weights of their own and the names of the model's files."""
    given = {"strategy_args": {"strategy_name": "megatron_train"}, "model_args": {"lora_target": "o_proj"} | args}
    choice = Choice(ACTOR_TRAIN, config({f"actor_train.{key}": value for key, value in given.items()}).actor_train)
    found = [problem.text for problem in lora_model_problems(choice, model("qwen3-30b-a3b") | changes)]
    assert len(found) == (said is not None) and all(WHERE in text and str(said) in text for text in found)


@pytest.mark.parametrize(
    ("strategy", "target", "said"),
    [
        ("fsdp2_train", "q_proj, gate_up_proj, down_proj", None),
        ("deepspeed_train", "o_proj, experts.gate_up_proj", None),  # peft reads gate and up alone of a parameter
        ("fsdp2_train", "experts.down_proj", "names layers of experts alone"),
        (
            "fsdp2_train",
            "q_proj, gate_proj",
            "is named gate_proj. It has down_proj, gate_up_proj, k_proj",
        ),
        (
            "megatron_train",
            "q_proj, down_proj",
            "no linear layer of the model is named down_proj. It has k_",
        ),
    ],
)
def test_experts_in_one_tensor_of_the_files_get_adapters_by_its_name(
    strategy: str, target: str, said: str | None
) -> None:
    """Those of gpt-oss, with a rank-stabilised scale, which peft keeps where it fuses nothing."""
    args = {"lora_target": target, "use_rslora": True}
    given = {"actor_train.strategy_args": {"strategy_name": strategy}, "actor_train.model_args": args}
    gpt_oss = {key: value for key, value in model("qwen3-30b-a3b").items() if key != "num_experts"} | GPT_OSS
    found = lora_model_problems(Choice(ACTOR_TRAIN, config(given).actor_train), gpt_oss)
    assert [said is not None and said in problem.text for problem in found] == [True] * (said is not None)


def test_adapters_of_experts_in_one_tensor_are_counted() -> None:
    """Rank 4 for each of 8 experts: [2048, 2 x 6144] and [6144, 2048], of each of 48 layers."""
    gpt_oss = {key: value for key, value in model("qwen3-30b-a3b").items() if key != "num_experts"} | GPT_OSS
    shape, why = model_shape(gpt_oss)
    assert shape is not None, why
    args = ModelArgs.model_validate({"lora_target": "gate_up_proj, down_proj", "lora_rank": 4})
    trained = sum(weight.num_elements for weight, learns in held_weights(shape, args) if learns)
    assert trained == 48 * 8 * 4 * (2048 + 2 * 6144 + 6144 + 2048)


@pytest.mark.parametrize("word", ["down_proj", "experts.0.down_proj"])
def test_experts_are_one_module_of_hugging_face(word: str) -> None:
    worker = config({"actor_train.model_args": {"lora_target": "q_proj", "additional_target": word}}).actor_train
    found = [problem.text for problem in lora_model_problems(Choice(ACTOR_TRAIN, worker), model("qwen3-30b-a3b"))]
    assert len(found) == 1 and f"{LACKS} is named {word}. It has embed_tokens, experts, gate, input" in found[0]


def adapter_elements(rank: int) -> int:
    """Of Qwen2.5-7B: 28 layers; hidden size 3584, keys and values 512, MLP 18944."""
    inputs_and_outputs = [(3584, 3584), (3584, 512), (3584, 512), (3584, 3584)]
    inputs_and_outputs += [(3584, 18944), (3584, 18944), (18944, 3584)]
    return 28 * rank * sum(a + b for a, b in inputs_and_outputs)


def states_of(module: Any, name: str, strategy_config: dict[str, Any], **args: Any) -> dict[str, float]:
    changes = {
        "actor_train.strategy_args": {"strategy_name": name, "strategy_config": strategy_config},
        "actor_train.model_args": {"lora_target": "all-linear", "lora_rank": 16} | args,
    }
    facts = RoleFacts(config(changes).actor_train, shape_of("qwen2.5-7b"), "train", 4, shares_devices=False)
    return {part.name: part.num_bytes for parts in module.train_memory(facts).states.values() for part in parts}


def test_a_frozen_base_has_neither_gradients_nor_moments() -> None:
    """40 million parameters are trained of 7.6 billion."""
    base, adapters = 7_615_616_512, adapter_elements(16)
    assert adapters == 40_370_176
    assert states_of(deepspeed, "deepspeed_train", {"zero_optimization": {"stage": 2}}) == {
        "weights": 2 * (base + adapters),
        "gradients": 4 * adapters / 4,
        "optimizer": 12 * adapters / 4,
    }
    assert states_of(fsdp2, "fsdp2_train", {}) == {
        "weights": 2 * base / 4 + 4 * adapters / 4,
        "gradients": 4 * adapters / 4,
        "optimizer": 8 * adapters / 4,
    }


def test_tensor_parallel_divides_one_factor_of_every_adapter() -> None:
    """A of q, k, v, gate and up is whole on each rank, and B of o and down."""
    whole = 28 * 16 * (5 * 3584 + 2 * 3584)
    held = (adapter_elements(16) - whole) / 2 + whole
    states = states_of(megatron, "megatron_train", {"tensor_model_parallel_size": 2, "use_distributed_optimizer": True})
    assert states["gradients"] == 4 * held
    assert states["optimizer"] == 12 * held


def test_a_module_trained_in_full_is_there_twice() -> None:
    head = 152_064 * 3584
    without, with_head = (
        states_of(deepspeed, "deepspeed_train", {"zero_optimization": {"stage": 0}}, additional_target=target)
        for target in ([], ["lm_head"])
    )
    assert with_head["weights"] - without["weights"] == 2 * head
    assert with_head["optimizer"] - without["optimizer"] == 12 * head


def test_the_heads_adapter_is_counted_where_it_is_named() -> None:
    """Rank 1: 152,064 rows and 3584 columns; all-linear leaves it out."""
    zero = {"zero_optimization": {"stage": 0}}
    without, named = (
        states_of(deepspeed, "deepspeed_train", zero, lora_target=target, lora_rank=1)
        for target in (["all-linear"], ["all-linear", "lm_head"])
    )
    assert named["optimizer"] - without["optimizer"] == 12 * (152_064 + 3584)


def test_a_critic_trains_its_head_in_place() -> None:
    worker = config({"actor_train.model_args": {"lora_target": ["q_proj"], "lora_rank": 1}}).actor_train
    facts = RoleFacts(worker, shape_of("qwen2.5-7b", CRITIC), "train", 1, shares_devices=False)
    states = {p.name: p.num_bytes for parts in deepspeed.train_memory(facts).states.values() for p in parts}
    assert states["optimizer"] == 12 * (28 * 2 * 3584 + 3584 + 1)


SENT = "actor_infer.strategy_args"
ENABLED = LORA | {SENT: {"strategy_name": "vllm", "strategy_config": {"enable_lora": True}}}
KEY = "actor_infer.strategy_args.strategy_config.enable_lora"


def test_engines_that_get_adapters_by_themselves_know_their_rank() -> None:
    run = checked(ENABLED | {"actor_train.model_args.lora_rank": 12}).config
    assert run is not None and build_plan(run).adapter_rank == 12
    for changes in (LORA, ENABLED | {SENT: {"strategy_name": "vllm", "strategy_config": {"enable_lora": False}}}):
        merged = checked(changes).config
        assert merged is not None and build_plan(merged).adapter_rank is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"actor_train.model_args.lora_target": []},
            "true sends LoRA adapters to the engine, and actor_train trains no",
        ),
        (
            {"actor_train.strategy_args.strategy_name": "megatron_train"},
            "true with actor_train.strategy_args.strategy_name: megatron_train, which does not send LoRA adapters "
            "apart from the weights. Supported by: deepspeed_train, fsdp2_train. Use one of them, or remove it.",
        ),
        (
            {"actor_train.model_args.additional_target": "lm_head"},
            "additional_target trains lm_head in full. Remove one",
        ),
        (
            {"actor_train.model_args.lora_target": "q_proj, lm_head"},
            "true sends no adapter of lm_head, which actor_trai",
        ),
        (
            {"actor_train.model_args.lora_rank": 600},
            "actor_train.model_args.lora_rank: 600; vllm takes at most 512. Low",
        ),
    ],
    ids=str,
)
def test_adapters_that_cannot_be_sent_by_themselves_are_refused(changes: dict[str, Any], said: str) -> None:
    found = [text for text in problems(ENABLED | changes) if text.startswith(KEY)]
    assert len(found) == 1 and said in found[0]


def test_an_engine_that_no_adapter_reaches_is_refused_one() -> None:
    judge = {
        "reward": "llm_judge",
        "judge_model_type": "inference",
        "model_args": {"model_name_or_path": "org/judge"},
        "strategy_args": ENABLED[SENT],
        "device_mapping": [3],
    }
    (said,) = (text for text in problems(LORA | {"rewards.math": judge}) if "adapter" in text)
    key = "rewards.math.strategy_args.strategy_config.enable_lora"
    assert said == f"{key}: no adapter ever reaches rewards.math. Remove it."


def test_a_mixture_gets_merged_weights() -> None:
    choice = next(choice for choice in choices(config(ENABLED)) if choice.role.use == "generate")
    model = json.loads((MODELS / "qwen3-30b-a3b.json").read_text())
    (found,) = sent_adapter_model_problems(choice, model)
    assert found.text.startswith(f"{KEY}: true with a mixture (org/model): the engine would put adapters on its exp")
    assert list(sent_adapter_model_problems(choice, {"text_config": model})) == [found]
    assert not list(sent_adapter_model_problems(choice, json.loads((MODELS / "qwen2.5-7b.json").read_text())))
