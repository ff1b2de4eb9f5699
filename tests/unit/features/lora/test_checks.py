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
from roll.features.lora.model_checks import EXPERTS_WITHOUT_DOWN, lora_model_problems
from roll.run.start.preflight import choices, machine_report
from tests.helpers.cases import cases
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


@cases("changes, said")
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


def test_layers_without_adapters_are_named() -> None:
    megatron = {"strategy_name": "megatron_train", "strategy_config": {"transformer_impl": "transformer_engine"}}
    found = problems(LORA | {"actor_train.strategy_args": megatron})
    said = "actor_train.model_args.lora_target: adapters on layers of transformer-engine are not supported yet."
    assert [text for text in found if text.startswith(said)]
    megatron = {"strategy_name": "megatron_train", "strategy_config": {"moe_grouped_gemm": True}}
    said = "actor_train.model_args.lora_target: actor_train.strategy_args.strategy_config.moe_grouped_gemm: true, whose"
    assert [text for text in problems(LORA | {"actor_train.strategy_args": megatron}) if text.startswith(said)]
    assert not problems({"actor_train.strategy_args": megatron})
    given = {"actor_train.model_args.lora_rank": 16, "actor_train.model_args.lora_alpha": 32}
    at = "actor_train.model_args.lora"
    said = f"{at}_rank and {at}_alpha do nothing while {at}_target is off."
    assert said in warnings_of(config(given)) and said not in warnings_of(config(LORA | given))


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


def test_the_policy_without_adapters_is_the_reference_or_nobody() -> None:
    one_update = {"rollout_batch_size": 8}
    plan, with_kl = (build_plan(config(LORA | one_update | more)) for more in ({}, KL))
    assert not plan.policy_is_reference and plan.reference_batch_size is None and plan.scoring == frozenset()
    assert with_kl.policy_is_reference and with_kl.scoring == {"actor_train"}
    other = REFERENCE | {"model_args": {"model_name_or_path": "org/other"}}
    assert problems(LORA | KL | {"reference": other}) == [
        "reference.model_args.model_name_or_path: org/other is not the model of actor_train, org/model. With "
        "actor_train.model_args.lora_target the reference is the policy without its adapters. Remove it, or "
        "lora_target."
    ]
    assert problems(KL | {"reference": other}) == []
    given = LORA | KL | {"actor_train.model_args.adapter_name_or_path": "/an/adapter"}
    assert any("the KL compares with the model without any adapter" in text for text in warnings_of(config(given)))
    tied = model("qwen2.5-7b") | {"tie_word_embeddings": True}
    worker = config({"actor_train.model_args": {"lora_target": "q_proj", "additional_target": "lm_head"}}).actor_train
    assert [problem.text for problem in lora_model_problems(Choice(ACTOR_TRAIN, worker), tied)] == [
        "actor_train.model_args.additional_target: lm_head: embedding and head are one weight in this model "
        "(tie_word_embeddings); this would make two of it. Remove it."
    ]


def model(name: str) -> dict[str, Any]:
    return json.loads((MODELS / f"{name}.json").read_text())


def shape_of(name: str, role: Role = ACTOR_TRAIN) -> ModelShape:
    shape, why = model_shape(model(name), role.head or "lm")
    assert shape is not None, why
    return shape


@cases("args, name, said")
def test_targets_are_held_against_the_models_layers(args: dict[str, Any], name: str, said: str | None) -> None:
    worker = config({"actor_train.model_args": args}).actor_train
    found = [problem.text for problem in lora_model_problems(Choice(ACTOR_TRAIN, worker), model(name))]
    assert found == ([] if said is None else [said])


@pytest.mark.parametrize("target", ["down_proj", "gate_proj, up_proj, down_proj", "all-linear"])
def test_experts_are_linear_layers_of_megatron(target: str) -> None:
    changes = {"strategy_args": {"strategy_name": "megatron_train"}, "model_args": {"lora_target": target}}
    worker = config({f"actor_train.{key}": value for key, value in changes.items()}).actor_train
    assert not list(lora_model_problems(Choice(ACTOR_TRAIN, worker), model("qwen3-30b-a3b")))


MIXTRAL = {"model_type": "mixtral", "num_local_experts": 8}
GPT_OSS = {"model_type": "gpt_oss", "num_local_experts": 8}
WHERE = "actor_train.model_args."
LACKS = "no module of the model that has weights"


@pytest.mark.parametrize(
    ("changes", "args", "said"),
    [
        ({}, {"lora_target": "gate_proj"}, "lora_target: gate_proj and up_proj of experts are one matrix, and gate_pr"),
        ({}, {"lora_target": "gate_proj, up_proj, o_proj"}, f"gate_proj, up_proj, o_proj {EXPERTS_WITHOUT_DOWN}."),
        ({}, {"lora_target": "experts.7.down_proj"}, "lora_target: experts.7.down_proj names 1 of 128 experts, and p"),
        ({}, {"lora_target": [f"experts.{number}.down_proj" for number in range(128)]}, None),
        (MIXTRAL, {"lora_target": "block_sparse_moe.experts.7.w1, w2"}, "names 1 of 128 experts, and peft reads "),
        ({}, {"lora_target": "experts.gate_proj"}, "lora_target: no linear layer of the model is named experts.g"),
        (MIXTRAL, {"lora_target": "w1, o_proj"}, "w1 and w3 of experts are one matrix, and w1, o_proj names a part"),
        (MIXTRAL, {"lora_target": "gate_proj"}, "gate_proj. It has k_proj, o_proj, q_proj, v_proj, w1, "),
        ({}, {"lora_target": "lm_head"}, "lora_target: no linear layer of the model is named lm_head."),
        (GPT_OSS, {"additional_target": "self_attn"}, f"{LACKS} of its own is named self_attn."),
        (MIXTRAL, {"additional_target": "block_sparse_moe.gate"}, None),
        ({}, {"additional_target": "mlp"}, f"{LACKS} of its own is named mlp."),
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


@cases("strategy, target, said")
def test_experts_in_one_tensor_of_the_files_get_adapters_by_its_name(
    strategy: str, target: str, said: str | None
) -> None:
    """Those of gpt-oss, with a rank-stabilised scale, which peft keeps where it fuses nothing."""
    args = {"lora_target": target, "use_rslora": True}
    given = {"actor_train.strategy_args": {"strategy_name": strategy}, "actor_train.model_args": args}
    gpt_oss = {key: value for key, value in model("qwen3-30b-a3b").items() if key != "num_experts"} | GPT_OSS
    found = lora_model_problems(Choice(ACTOR_TRAIN, config(given).actor_train), gpt_oss)
    assert [said is not None and said in problem.text for problem in found] == [True] * (said is not None)


def test_memory_counts_adapters_and_modules_trained_in_full() -> None:
    """Rank 4 for each of 8 experts: [2048, 2 x 6144] and [6144, 2048], of each of 48 layers."""
    gpt_oss = {key: value for key, value in model("qwen3-30b-a3b").items() if key != "num_experts"} | GPT_OSS
    shape, why = model_shape(gpt_oss)
    assert shape is not None, why
    args = ModelArgs.model_validate({"lora_target": "gate_up_proj, down_proj", "lora_rank": 4})
    trained = sum(weight.num_elements for weight, learns in held_weights(shape, args) if learns)
    assert trained == 48 * 8 * 4 * (2048 + 2 * 6144 + 6144 + 2048)
    # A of q, k, v, gate and up is whole on each rank, and B of o and down.
    whole = 28 * 16 * (5 * 3584 + 2 * 3584)
    held = (adapter_elements(16) - whole) / 2 + whole
    states = states_of(megatron, "megatron_train", {"tensor_model_parallel_size": 2, "use_distributed_optimizer": True})
    assert states["gradients"] == 4 * held
    assert states["optimizer"] == 12 * held
    head = 152_064 * 3584
    without, with_head = (
        states_of(deepspeed, "deepspeed_train", {"zero_optimization": {"stage": 0}}, additional_target=target)
        for target in ([], ["lm_head"])
    )
    assert with_head["weights"] - without["weights"] == 2 * head
    assert with_head["optimizer"] - without["optimizer"] == 12 * head
    # Rank 1: 152,064 rows and 3584 columns; all-linear leaves it out.
    zero = {"zero_optimization": {"stage": 0}}
    without, named = (
        states_of(deepspeed, "deepspeed_train", zero, lora_target=target, lora_rank=1)
        for target in (["all-linear"], ["all-linear", "lm_head"])
    )
    assert named["optimizer"] - without["optimizer"] == 12 * (152_064 + 3584)
    worker = config({"actor_train.model_args": {"lora_target": ["q_proj"], "lora_rank": 1}}).actor_train
    facts = RoleFacts(worker, shape_of("qwen2.5-7b", CRITIC), "train", 1, shares_devices=False)
    states = {p.name: p.num_bytes for parts in deepspeed.train_memory(facts).states.values() for p in parts}
    assert states["optimizer"] == 12 * (28 * 2 * 3584 + 3584 + 1)


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


SENT = "actor_infer.strategy_args"
ENABLED = LORA | {SENT: {"strategy_name": "vllm", "strategy_config": {"enable_lora": True}}}
KEY = "actor_infer.strategy_args.strategy_config.enable_lora"


def test_engines_know_the_rank_or_get_merged_weights() -> None:
    run = checked(ENABLED | {"actor_train.model_args.lora_rank": 12}).config
    assert run is not None and build_plan(run).adapter_rank == 12
    for changes in (LORA, ENABLED | {SENT: {"strategy_name": "vllm", "strategy_config": {"enable_lora": False}}}):
        merged = checked(changes).config
        assert merged is not None and build_plan(merged).adapter_rank is None
    choice = next(choice for choice in choices(config(ENABLED)) if choice.role.use == "generate")
    model = json.loads((MODELS / "qwen3-30b-a3b.json").read_text())
    (found,) = sent_adapter_model_problems(choice, model)
    assert found.text.startswith(f"{KEY}: true with a mixture (org/model): the engine would put adapters on its exp")
    assert list(sent_adapter_model_problems(choice, {"text_config": model})) == [found]
    assert not list(sent_adapter_model_problems(choice, json.loads((MODELS / "qwen2.5-7b.json").read_text())))


@cases("changes, said")
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
