"""Reasons and rows that several tables of verl's keys share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from roll.configs.strategies.megatron_config import KNOWN, SET_ELSEWHERE, UNUSED
from roll.importers import rows as words
from roll.importers.rows import (
    CHANGES,
    RELEASE,
    ApproximateValue,
    AsksNothing,
    ChangesRun,
    CombinedKeys,
    Condition,
    Row,
    SourceLookup,
    changes,
    lacks,
    needless,
    same,
    summed,
    to,
)
from roll.platforms.table import PLATFORMS

TRAIN, INFER = "actor_train", "actor_infer"
PROFILES = "profiler_timeline and profiler_memory record a run here (docs/profiling.md)"
OWN_CODE = "models are loaded without code of their own; one that needs it is refused when it is loaded"
FILES_ONCE = "files are read once"
ALL_ROWS = "all rows are read; data_args.split takes a part of a data set of the hub"
OF_MODEL = "it must be a setting in the config.json of the model, which refuses another one as it loads"
TEMPLATE_OF_MODEL = (
    "there it goes into the model's configuration, which no tokenizer reads: prompts have the tokenizer's own "
    "template, as here. model.custom_chat_template sets one"
)
PADDED = "rows are packed, or padded as far as their micro batch needs"
FP32_STATES = "states of the optimizer are fp32; adamw_bnb_8bit has smaller ones"
TILED_HEAD = "the head is computed in tiles, here always"
HIDDEN_NOISE = "noise in hidden states is a fork's, and no model here adds any"
ITSELF = "roll does it by itself"
TURNS = "roles that share devices take turns: what waits is in host memory anyway"


def model_path(value: object) -> object:
    text = str(value)
    if text.startswith(("hdfs://", "viewfs://")):
        return ApproximateValue(text, "files of HDFS are not fetched: copy it, and set pretrain to the folder")
    return value


def device(value: object) -> object:
    """The platform that trainer.device names. verl's own `cuda` is taken as "the GPUs of the machine"."""
    if value in (None, "cuda"):
        raise AsksNothing("platform: auto takes the devices that the run sees")
    if value not in PLATFORMS:
        raise ChangesRun(f"platforms are {', '.join(PLATFORMS)}")
    return value


ENGINE_GROUP = "model_engine"
"""verl's choice of files for an engine, by which actor, reference and critic have the same strategy."""
_ENGINE_GROUPS = {"dp": "fsdp"}


def engine_group(value: object) -> object:
    """The trainer of an engine's files."""
    return words.trainer(_ENGINE_GROUPS.get(str(value), value))


def strategy_of_group(values: Mapping[str, object]) -> Mapping[str, object]:
    """Return the strategy that the choice of an engine's files implies."""
    value = values.get(ENGINE_GROUP)
    return {} if value is None else {f"{ACTOR}.strategy": _ENGINE_GROUPS.get(str(value), value)}


def steps(value: object) -> object:
    if not isinstance(value, int) or value <= 0:
        raise AsksNothing("not given")
    return value


FIRST_UPDATE = (
    "update k of a warm-up of n has (k - 1) / n of the peak there, so that the first learns nothing, and "
    "k / (n + 1) here"
)


def rising(value: object) -> object:
    """The steps of a warm-up, if there are any."""
    return ApproximateValue(steps(value), FIRST_UPDATE)


def rise(value: Any) -> Any:
    """The share of a schedule in which its rate rises."""
    share = words.number(value)
    near = f"the share is rounded up to a whole update here, down there; {FIRST_UPDATE}"
    return words.ApproximateValue(share, near) if share > 0 else share


def rise_by_steps(value: Any) -> Any:
    """The share of a schedule in which its rate rises, which verl's workers of RL make once per step."""
    share = words.number(value)
    near = (
        "the share is rounded up to a whole update here, down to a whole step there; there all updates of step k of a "
        "warm-up of n have (k - 1) / n of the peak, so that the first step learns nothing; here update k of a warm-up "
        "of n has k / (n + 1)"
    )
    return words.ApproximateValue(share, near) if share > 0 else share


def optimizer(section: str, role: str) -> Iterator[Row]:
    at, args = f"{section}.optim", f"{role}.training_args"
    need = "critic" if role == "critic" else ""
    yield to(f"{at}.lr", f"{args}.learning_rate", via=words.number, default=RELEASE, needs=need)
    yield to(f"{at}.lr_warmup_steps_ratio", f"{args}.warmup_ratio", via=rise_by_steps, needs=f"{role} ratio")
    yield summed(f"{at}.lr_warmup_steps", f"{role} rise", needs=need)
    yield to(f"{at}.weight_decay", f"{args}.weight_decay", via=words.number, default=RELEASE, needs=need)
    for name in ("lr_scheduler_type", "lr_decay_style", "warmup_style"):
        yield to(f"{at}.{name}", f"{args}.lr_scheduler_type", via=words.schedule, default=RELEASE, needs=need)
    ratio = "critic cosine" if role == "critic" else "actor cosine"
    yield to(
        f"{at}.min_lr_ratio", f"{args}.lr_scheduler_kwargs.min_lr_ratio", via=words.number, needs=ratio, idle=(None,)
    )
    yield to(f"{at}.betas", f"{args}.adam_beta1", f"{args}.adam_beta2", via=words.betas, needs=need)
    yield to(f"{at}.eps", f"{args}.adam_epsilon", via=words.number, needs=need)
    yield to(f"{at}.optimizer", f"{args}.optim", via=words.adam, needs=need)
    yield changes(f"{at}.num_cycles", "a cosine falls once, from its peak to its end", 0.5)
    yield summed(f"{at}.min_lr", f"{role} floor", needs=need)
    yield lacks(f"{at}.lr_warmup_init", "a warm-up begins at 1 / (n + 1) of its peak", 0, 0.0)
    yield needless(f"{at}.total_training_steps", "the program derives it, there as here")
    yield needless(f"{at}.zero_indexed_step", "warmup_steps says what the first update has")
    yield needless(f"{at}.optimizer_impl", "one optimizer for all: AdamW of the strategy")
    yield from optimizer_overrides(at, role)
    yield changes(f"{at}.weight_decay_incr_style", "weight decay is constant", "constant")
    falls = "critic falls" if role == "critic" else "actor falls"
    why = "a schedule runs over the whole run"
    yield Row(f"{at}.lr_decay_steps", note=why, outcome=CHANGES, idle=(None,), needs=falls)
    yield changes(f"{at}.lr_wsd_**", "there is no such schedule; cosine or linear are near", "exponential")
    yield lacks(f"{at}.use_checkpoint_opt_param_scheduler", "a resumed run continues its schedule", False)


_OFFLOAD = "is_offload_optimizer_states_in_train_step"


def optimizer_overrides(section: str, role: str, offload: str = _OFFLOAD) -> Iterator[Row]:
    """Megatron's own settings of an optimizer. `offload`: the switch for states in host memory, if there is one."""
    at, args = f"{section}.override_optimizer_config", f"{role}.training_args"
    if offload:
        yield to(f"{at}.optimizer_cpu_offload", offload, idle=(None, False), via=_offloaded)
    else:
        yield lacks(f"{at}.optimizer_cpu_offload", "states of the optimizer stay on their devices", False)
    for name in ("optimizer_offload_fraction", "overlap_cpu_optimizer_d2h_h2d"):
        yield needless(f"{at}.{name}", "states of the optimizer wait in host memory, or none")
    yield needless(f"{at}.use_precision_aware_optimizer", "master weights are fp32")
    for name in ("foreach", "fused", "capturable"):
        yield needless(f"{at}.{name}", "how torch computes the same update")
    for name, target in (("adam_beta1", "adam_beta1"), ("adam_beta2", "adam_beta2"), ("adam_eps", "adam_epsilon")):
        yield to(f"{at}.{name}", f"{args}.{target}", via=words.number, needs="critic" if role == "critic" else "")
    yield changes(f"{at}.**", "the optimizer has the settings of training_args")
    yield lacks(at, "the optimizer has the settings of training_args", {})


def attention(value: object) -> object:
    return "fa2" if value == "flash_attention_2" else value


_SCHEDULES = ("lr_scheduler", "lr_scheduler_type", "lr_decay_style", "warmup_style")


def schedule_of(source: SourceLookup, optimizer: str) -> str:
    """The schedule that counts, of the keys that versions have for it: a given one before a default."""
    keys = sorted((f"{optimizer}.{key}" for key in _SCHEDULES), key=lambda key: not source.is_set(key))
    return str(next(filter(None, map(source, keys)), "constant"))


def floor(section: str, role: str) -> Callable[[SourceLookup], CombinedKeys]:
    """Megatron's least learning rate, as a share of the peak."""
    at = f"{section}.optim" if section else "optim"

    def combine(source: SourceLookup) -> CombinedKeys:
        rate, least = source.amount(f"{at}.lr"), source.amount(f"{at}.min_lr", 0)
        if least == 0:
            return CombinedKeys({}, "a schedule ends at 0")
        name = schedule_of(source, at)
        if name == "constant":
            return CombinedKeys({}, "a constant rate does not fall")
        if name != "cosine":
            raise ChangesRun("only a cosine ends above 0: its end is lr_scheduler_kwargs.min_lr_ratio")
        key, ratio = f"{role}.training_args.lr_scheduler_kwargs.min_lr_ratio", least / rate
        return CombinedKeys({key: ratio}, f"{key}: {ratio:g} = {least:g} / {rate:g}.")

    return combine


def model_dtype(key: str, learns: bool) -> Row:
    """The row for the format in which weights are given to FSDP, and so to the optimizer."""
    if not learns:
        return lacks(key, "model_args.dtype is the format of the weights", "fp32", "float32", "bf16", "bfloat16")
    note = "weights and states of the optimizer are fp32 here, there of this format: no update is lost to its rounding"
    return Row(key, note=note, idle=(None, "fp32", "float32"), outcome="approximated")


def fsdp(section: str, role: str, need: str, learns: bool) -> Iterator[Row]:
    at, config = f"{section}.fsdp_config", f"{role}.strategy_args.strategy_config"
    names = ["fsdp_size", "reshard_after_forward", "forward_prefetch"]
    names += ["wrap_policy.min_num_params", "wrap_policy.transformer_layer_cls_to_wrap"]
    for name in names:
        yield to(f"{at}.{name}", f"{config}.{name}", needs=need)
    yield needless(f"{at}.param_offload", TURNS, needs=need)
    yield needless(f"{at}.optimizer_offload", TURNS, needs=need)
    yield needless(f"{at}.grad_offload", "gradients live in an update only", needs=need)
    yield to(f"{at}.offload_policy", f"{config}.offload_policy", needs=need, idle=(False,))
    yield to(f"{at}.mixed_precision.param_dtype", f"{role}.model_args.dtype", via=words.dtype, needs=need)
    yield to(f"{at}.mixed_precision.reduce_dtype", f"{config}.reduce_dtype", via=words.dtype, needs=need)
    yield lacks(f"{at}.mixed_precision.buffer_dtype", "buffers keep their format", "fp32")
    yield model_dtype(f"{at}.model_dtype", learns)
    yield to(f"{at}.dtype", f"{role}.model_args.dtype", via=words.dtype, needs=need)
    yield to(f"{at}.ulysses_sequence_parallel_size", f"{role}.model_args.ulysses_size", needs=need)
    yield lacks(f"{at}.use_orig_params", "FSDP2 always has the original parameters", False, True)
    for name in ("from_logits_with_chunking", "checkpointing"):
        yield needless(f"{at}.entropy_{name}", "the head is computed in tiles, here always")
    for name in ("strategy", "use_torch_compile", "forward_only", "full_determinism", "seed"):
        yield needless(f"{at}.{name}", "set by the role and the run")
    if learns:
        yield to(f"{section}.ulysses_sequence_parallel_size", f"{role}.model_args.ulysses_size", needs=need, idle=(1,))


def _offloaded(value: object) -> object:
    return ApproximateValue(
        value, "states wait in host memory while gradients are computed; the update itself is on the GPU"
    )


_RECOMPUTED = ("recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_modules")
SPLITS = (
    *(f"num_layers_in_{end}_pipeline_stage" for end in ("first", "last")),
    *(f"account_for_{what}_in_pipeline_split" for what in ("embedding", "loss")),
)
PLAIN = KNOWN - SET_ELSEWHERE.keys()
"""Keys of Megatron's own that have a place in strategy_config under the same name."""


def balance(section: str, role: str) -> Callable[[SourceLookup], CombinedKeys]:
    """Weigh the loss that keeps experts of Megatron's evenly loaded; `section` has its override_transformer_config."""
    kind, weight = (f"{section}.override_transformer_config.{name}" for name in _BALANCE)

    def combine(source: SourceLookup) -> CombinedKeys:
        of_kind, coefficient = source(kind), source.amount(weight, 0)
        if of_kind == "none":
            return CombinedKeys({}, "no loss of balance", idle={weight: f"{_BALANCE[0]} is none"})
        if of_kind in _LOSSES and source.is_set(weight) and coefficient == 0:
            return CombinedKeys({}, "no loss of balance")
        if of_kind not in (None, "aux_loss"):
            text = f"experts are balanced by aux_loss alone, whose weight is {role}.model_args.moe_aux_loss_coef"
            return CombinedKeys({}, "", changes=dict.fromkeys((kind, weight), text))
        if of_kind and not source.is_set(weight):
            text = f"its weight is the model's own there: set {weight}, which is {role}.model_args.moe_aux_loss_coef"
            return CombinedKeys({}, "", changes={kind: text})
        if coefficient == 0:
            return CombinedKeys({}, "no loss of balance")
        key = f"{role}.model_args.moe_aux_loss_coef"
        unsure = "" if of_kind else f"some bridges of verl's leave the loss out where {_BALANCE[0]} is not set"
        return CombinedKeys({key: coefficient}, f"{key}: {coefficient:g}.", difference=unsure)

    return combine


_LOSSES = ("aux_loss", "seq_aux_loss", "global_aux_loss")
_BALANCE = ("moe_router_load_balancing_type", "moe_aux_loss_coeff")
_OF_ROUTERS = {"moe_z_loss_coeff": 0, "moe_router_bias_update_rate": 0}
"""Further keys by which Megatron's routers learn beside the loss, with the values that turn them off."""


def _dispatcher(value: object) -> object:
    if value == "flex":
        return ApproximateValue("alltoall", "flex sends as alltoall does, by DeepEP")
    return value


def megatron(section: str, role: str, need: str, learns: bool) -> Iterator[Row]:
    at, config = f"{section}.megatron", f"{role}.strategy_args.strategy_config"
    sizes = ["tensor_model_parallel_size", "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size"]
    sizes += ["context_parallel_size", "expert_model_parallel_size", "expert_tensor_parallel_size"]
    for name in sizes:
        yield to(f"{at}.{name}", f"{config}.{name}", needs=need, idle=(None,))
    yield to(f"{at}.sequence_parallel", f"{config}.sequence_parallel", default=RELEASE, needs=need)
    yield to(f"{at}.use_remove_padding", f"{role}.use_sequence_packing", needs=need)
    if not learns:
        yield needless(f"{at}.use_distributed_optimizer", "nothing is learnt here")
    if learns:
        yield to(f"{at}.use_distributed_optimizer", f"{config}.use_distributed_optimizer", default=RELEASE, needs=need)
    for name in _RECOMPUTED:
        key = f"{at}.override_transformer_config.{name}"
        if learns:
            idle = (None, ["core_attn"]) if name == "recompute_modules" else (None,)
            yield to(key, f"{config}.{name}", needs=need, idle=idle)
        else:
            yield needless(key, "nothing is kept for a backward pass here", needs=need)
    for name in SPLITS:
        yield to(f"{at}.override_transformer_config.{name}", f"{config}.{name}", needs=need, idle=(None, False))
    for name, note in UNUSED.items():
        yield needless(f"{at}.override_transformer_config.{name}", note, needs=need)
    for name in sorted(PLAIN - UNUSED.keys() - {*SPLITS, *_RECOMPUTED}):
        via = _dispatcher if name == "moe_token_dispatcher_type" else same
        yield to(f"{at}.override_transformer_config.{name}", f"{config}.{name}", needs=need, idle=(None,), via=via)
    yield needless(f"{at}.param_offload", TURNS, needs=need)
    yield needless(f"{at}.grad_offload", "gradients live in an update only", needs=need)
    yield needless(f"{at}.optimizer_offload", TURNS, needs=need)
    for name in ("use_mbridge", "vanilla_mbridge", "use_dist_checkpointing", "dist_checkpointing_*", "forward_only"):
        yield needless(f"{at}.{name}", "weights of Hugging Face are read and written directly")
    yield needless(f"{at}.seed", "seed of the run counts")
    yield to(f"{at}.dtype", f"{role}.model_args.dtype", via=words.dtype, needs=need)
    yield lacks(f"{at}.override_transformer_config.attention_backend", "attention is the fused kernel", "flash", "auto")
    for name in (*_BALANCE, *_OF_ROUTERS):
        key = f"{at}.override_transformer_config.{name}"
        if not learns:
            yield needless(key, "nothing is learnt here")
        elif name in _BALANCE:
            yield summed(key, f"{role} balance", needs=need)
        else:
            yield changes(key, "routers learn as the loss and moe_aux_loss_coef tell them", _OF_ROUTERS[name])
    yield lacks(
        f"{at}.override_**",
        f"keys of Megatron's that have a place here go into {config} (docs/config_reference.md)",
        {},
    )


def checkpoint(section: str) -> Iterator[Row]:
    yield needless(f"{section}.profile.**", PROFILES)
    yield needless(f"{section}.checkpoint.**", "a checkpoint holds all that the run continues with, and an HF model")
    yield lacks(f"{section}.load_weight", "weights are always read", True)
    yield lacks(f"{section}.data_loader_seed", "seed of the run counts for every stream")
    yield needless(f"{section}.nccl_timeout", "backend_timeout (minutes) and rpc_timeout (seconds) are the limits here")
    for name in ("from_logits_with_chunking", "checkpointing"):
        yield needless(f"{section}.entropy_{name}", "the head is computed in tiles, here always")
    yield needless(f"{section}.use_fused_kernels", "log-probs never come from whole logits")
    yield needless(f"{section}.rollout_n", "rollout.n counts")
    yield needless(f"{section}.global_batch_info", "counts of an update are known before it")
    yield needless(f"{section}.mtp.**", "model.mtp says what becomes of MTP heads")
    yield needless(f"{section}._target_", "classes of verl's")


AVERAGES_PASSES = "the loss is a mean of means"
"""A default that stands for verl's fine-tuning on FSDP alone, and for no key."""
IS_OLD = "before 0.2"
"""A default that stands for the version, and for no key."""

# Sections of verl's keys, and what decides whether they ask for anything.

ACTOR, ROLLOUT, REF, CRITIC = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref", "critic"
MODEL = "actor_rollout_ref.model"
SECTION = f"{MODEL}.lora"  # of Megatron's adapters
MEGATRON = "megatron"


OF_KWARGS = "reward_model.reward_kwargs.overlong_buffer_cfg"
OVERLONG = (
    "reward_model.overlong_buffer",
    OF_KWARGS,
    "custom_reward_function.overlong_buffer",
)
"""Sections in which versions of verl have DAPO's soft penalty."""
MOST_TOKENS = "reward_model.reward_kwargs.max_resp_len"


_WITHOUT_PENALTY = (None, "naive", "prime", "remote")
"""verl's own classes around rewards that read no buffer; none is naive."""


def overlong_buffer(source: SourceLookup) -> str:
    """The section of the penalty that counts; empty where it is off."""
    given = (at for at in OVERLONG if source(f"{at}.enable") and source(f"{at}.len") and penalty_factor(source, at))
    return next((at for at in given if at != OF_KWARGS or not unread_buffer(source)), "")


def penalty_factor(source: SourceLookup, buffer: str) -> float:
    """The weight of the penalty, which the recipe of DAPO has 0 by default."""
    return source.amount(f"{buffer}.penalty_factor", 0.0 if buffer == OVERLONG[0] else 1.0)


def unread_buffer(source: SourceLookup) -> str:
    """Why the arguments of the class around rewards have no effect; empty where it reads them."""
    names = [source(key) for key in ("reward_model.reward_manager", "reward_manager.name")]
    name = next((each for each in names if each is not None), None)
    return f"verl's reward manager {name or 'naive'} has no such penalty, dapo has" if name in _WITHOUT_PENALTY else ""


PER_ANSWER = ("gspo", "sapo", "geo_mean")
"""Losses that verl averages over answers, whatever loss_agg_mode says."""


def has_critic(source: SourceLookup) -> str:
    enable = source(f"{CRITIC}.enable")
    name = source("algorithm.adv_estimator")
    is_there = name == "gae" if enable is None else enable
    return "" if is_there else f"no critic runs: algorithm.adv_estimator is {name}"


def kl_in_loss(source: SourceLookup) -> str:
    return "" if source(f"{ACTOR}.use_kl_loss") else "actor.use_kl_loss is off: no KL in the loss"


def kl_in_reward(source: SourceLookup) -> str:
    return "" if source("algorithm.use_kl_in_reward") else "algorithm.use_kl_in_reward is off: no KL in the reward"


def has_reference(source: SourceLookup) -> str:
    return kl_in_loss(source) and kl_in_reward(source) and "no KL term is on: no reference runs"


def _adapts_kl(source: SourceLookup) -> str:
    return kl_in_reward(source) or ("" if source("algorithm.kl_ctrl.type") == "adaptive" else "kl_ctrl.type is fixed")


def terms_beside(source: SourceLookup) -> list[str]:
    """Terms of a loss that verl averages by loss_agg_mode beside a policy loss that is a mean over answers; none where
    that is the same."""
    if source(f"{ACTOR}.policy_loss.loss_mode") not in PER_ANSWER:
        return []
    if source(f"{ACTOR}.loss_agg_mode") == "seq-mean-token-mean":
        return []
    has_kl = source(f"{ACTOR}.use_kl_loss") and source.amount(f"{ACTOR}.kl_loss_coef") != 0
    has_entropy = source.amount(f"{ACTOR}.entropy_coeff") != 0
    return [*(["KL"] if has_kl else []), *(["entropy"] if has_entropy else [])]


def _aggregates(source: SourceLookup) -> str:
    mode = source(f"{ACTOR}.policy_loss.loss_mode")
    if mode not in PER_ANSWER:
        return ""
    terms = terms_beside(source)
    when = "in verl before 0.9.1 and here" if mode == "gspo" else "in any case"
    others = f"; there the key holds for {' and '.join(terms)}: see policy_loss.loss_mode" if terms else ""
    return f"loss_mode: {mode} is seq-mean-token-mean {when}{others}"


def _has_loss(name: str) -> Condition:
    def condition(source: SourceLookup) -> str:
        mode = source(f"{ACTOR}.policy_loss.loss_mode")
        return "" if mode == name else f"loss_mode: {mode} has no such setting"

    return condition


def _has_opmd_baseline(source: SourceLookup) -> str:
    name = source("algorithm.adv_estimator")
    return "" if name == "opmd" else f"{name} has no such setting"


def _is_normed(source: SourceLookup) -> str:
    mode = source(f"{ACTOR}.loss_agg_mode")
    return "" if mode == "seq-mean-token-sum-norm" else f"loss_agg_mode: {mode} divides by no such number"


def _has_reward_model(source: SourceLookup) -> str:
    return "" if source("reward_model.enable") else "reward_model.enable is off"


def has_adapters(source: SourceLookup) -> bool:
    """True if the flat keys ask for LoRA. An initial adapter means LoRA too, whatever lora_rank says."""
    return source.is_set(f"{MODEL}.lora_adapter_path") or source.number(f"{MODEL}.lora_rank", 0) > 0


def has_section(source: SourceLookup) -> bool:
    """True if the keys that only Megatron reads ask for LoRA."""
    return strategy_of(source, ACTOR) == MEGATRON and source.number(f"{SECTION}.rank", 0) > 0


def _is_cosine(section: str) -> Condition:
    def condition(source: SourceLookup) -> str:
        return "" if schedule_of(source, f"{section}.optim") == "cosine" else "only a cosine ends above 0"

    return condition


def _falls(section: str) -> Condition:
    def condition(source: SourceLookup) -> str:
        return "a constant rate does not fall" if schedule_of(source, f"{section}.optim") == "constant" else ""

    return condition


def no_ratio(source: SourceLookup, section: str) -> str:
    """Why the share of a warm-up does not count: a number of steps does. 0 steps are none for workers on FSDP, and not
    given for Megatron's."""
    key = f"{section}.optim.lr_warmup_steps"
    if not source.is_set(key) or not source(f"{section}.optim.lr_warmup_steps_ratio"):
        return ""
    steps = source.number(key)
    is_given = steps > 0 or (steps == 0 and strategy_of(source, section) != MEGATRON)
    return f"lr_warmup_steps: {steps} counts" if is_given else ""


def runs_on(section: str, megatron: bool) -> Condition:
    """Build a condition: a role trains with Megatron, or it does not."""

    def condition(source: SourceLookup) -> str:
        if section != ACTOR and (reason := (has_critic if section == CRITIC else has_reference)(source)):
            return reason
        name = strategy_of(source, section)
        return "" if (name == MEGATRON) == megatron else f"{section} runs on {name}"

    return condition


def drafts(source: SourceLookup) -> str:
    """Check that engines draft tokens with an MTP head; returns the reason if they do not."""
    on = source(f"{MODEL}.mtp.enable") and source(f"{MODEL}.mtp.enable_rollout")
    return "" if on else "model.mtp.enable_rollout is off: no engine uses the head"


def validates(source: SourceLookup) -> str:
    return "" if source("data.val_files") else "there are no data.val_files: no validation"


def runs_validation(source: SourceLookup) -> str:
    """Why no validation takes place; empty where one does."""
    steps = [source(key, -1) for key in ("trainer.test_freq", "rollout.test_freq")]
    is_asked = source("trainer.val_before_train") or any(every not in (None, -1, 0) for every in steps)
    return validates(source) or ("" if is_asked else "test_freq and val_before_train are off: no validation")


ENDS_SOONER = "it counts here; there the last epoch of trainer.total_epochs ends a run too, if it comes first"


def counts_epochs(source: SourceLookup) -> str:
    if source("trainer.total_training_steps") is None:
        return ""
    return "trainer.total_training_steps counts here: its row says what ends a run there"


def _filters(source: SourceLookup) -> str:
    return "" if source("algorithm.filter_groups.enable") else "algorithm.filter_groups.enable is off"


CONDITIONS: Mapping[str, Condition] = {
    "gdpo": lambda source: (
        "" if source("algorithm.adv_estimator") == "gdpo" else "algorithm.adv_estimator compares whole rewards"
    ),
    "critic": has_critic,
    "kl loss": kl_in_loss,
    "kl reward": kl_in_reward,
    "adaptive kl": _adapts_kl,
    "reference": has_reference,
    "own aggregation": _aggregates,
    "norm": _is_normed,
    "clip cov": _has_loss("clip_cov"),
    "kl cov": _has_loss("kl_cov"),
    "cppo": _has_loss("cppo"),
    "m2po": lambda source: "" if source(f"{ACTOR}.use_m2po_loss") else _has_loss("m2po")(source),
    "opmd": _has_loss("opmd"),
    "opmd baseline": _has_opmd_baseline,
    "rec": _has_loss("rec"),
    "drafts": drafts,
    "sppo": _has_loss("sppo"),
    "dro": _has_loss("dro"),
    "reward model": _has_reward_model,
    "open reward model": lambda source: _has_reward_model(source) if source.is_set("reward_model.enable") else "",
    "lora": lambda source: "" if has_adapters(source) else "lora_rank is 0: no adapters",
    "lora section": lambda source: "" if has_section(source) else "no adapters of Megatron",
    "turns": lambda source: "" if source(f"{ROLLOUT}.multi_turn.enable") else "multi_turn.enable is off",
    "validation": validates,
    "validations": runs_validation,
    "overlong": lambda source: "" if overlong_buffer(source) else "no penalty on long answers is on",
    "filter": _filters,
    "epochs": counts_epochs,
    "actor_train ratio": lambda source: no_ratio(source, ACTOR),
    "critic ratio": lambda source: has_critic(source) or no_ratio(source, CRITIC),
    "actor cosine": _is_cosine(ACTOR),
    "critic cosine": lambda source: has_critic(source) or _is_cosine(CRITIC)(source),
    "actor falls": _falls(ACTOR),
    "critic falls": lambda source: has_critic(source) or _falls(CRITIC)(source),
    "actor fsdp": runs_on(ACTOR, megatron=False),
    "actor megatron": runs_on(ACTOR, megatron=True),
    "ref fsdp": runs_on(REF, megatron=False),
    "ref megatron": runs_on(REF, megatron=True),
    "critic fsdp": runs_on(CRITIC, megatron=False),
    "critic megatron": runs_on(CRITIC, megatron=True),
}


def strategy_of(source: SourceLookup, section: str) -> str:
    return str(source(f"{section}.strategy") or source(f"{ACTOR}.strategy"))
