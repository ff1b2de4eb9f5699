"""One role: its model, backend, devices and workers."""

import ast
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator

from roll.configs.base import MOST_DEVICES, MOST_DEVICES_PER_NODE, MOST_GROUPS, MOST_PROCESSES, Settings, setting
from roll.configs.sections.data import DataArgs, Names, Numbers, Strings
from roll.configs.sections.model import ModelArgs
from roll.configs.sections.training import TrainingArgs
from roll.configs.tables.policy_losses import known_pg_variant
from roll.utils.text import show

# How answers are sampled, and how requests are scheduled.


class GeneratingArgs(Settings):
    """`generating_args`: sampling of actor_infer (training) and of validation."""

    temperature: float = setting(1.0, "Divides the logits before sampling; 0 takes the likeliest token (greedy).", ge=0)
    top_p: float = setting(
        1.0, "Sample among the likeliest tokens that make up this probability; 1 is off.", gt=0, le=1
    )
    top_k: Annotated[int, BeforeValidator(lambda k: 0 if k in (None, -1) else k)] = setting(
        0, "Sample among this many likeliest tokens; 0 and -1 are off.", ge=0
    )
    max_new_tokens: int | None = setting(
        None,
        "Longest response. Follows from response_length, or sequence_length - prompt_length; if set it must agree. "
        "In validation, and for the responses of an agent, it may be less.",
        ge=1,
    )
    min_new_tokens: int = setting(0, "No end of sequence before this many tokens.", ge=0)
    repetition_penalty: float = setting(1.0, "Above 1 makes tokens that occurred less likely; 1 is off.", gt=0)
    num_return_sequences: int | None = setting(
        None,
        "Responses per prompt. In training it is num_return_sequences_in_group and must agree; in validation it is "
        "the n of pass@n (default 1).",
        ge=1,
        le=MOST_GROUPS,
    )
    stop_strings: Strings = setting((), "Texts that end a response.")
    include_stop_str_in_output: bool | None = setting(
        None,
        "Keep the text of a stop string at the end of what rewards and environments see. null: true. Its tokens were "
        "sampled and are trained on in either case.",
    )
    stop_token_ids: Numbers = setting((), "Token ids that end a response, beside the end of sequence.")
    ignore_eos: bool = setting(False, "Go on after an end of sequence token, up to max_new_tokens.")


# The grammar of `device_mapping`: a YAML list, or a string such as `list(range(0,8)) + [12,13]`. Read, never evaluated.

GRAMMAR = "a list such as [0, 1, 2], list(range(start, stop[, step])), list([0, 1]), or a sum of these"


def parse_device_mapping(value: object) -> tuple[int, ...]:
    """Device ids in the order written.

    Raises ValueError when the text is outside the grammar, holds something else than whole numbers >= 0, or is empty.

    Example: parse_device_mapping("list(range(0, 4)) + [8]") == (0, 1, 2, 3, 8)
    """
    if isinstance(value, str):
        ids = _parse_text(value)
    elif isinstance(value, list | tuple):
        ids = [_device_id(item) for item in value]
    else:
        raise ValueError(f"{show(value)} is not {GRAMMAR}")
    if not ids:
        raise ValueError("names no device; remove device_mapping to run the role on CPU workers")
    return tuple(ids)


def _parse_text(text: str) -> list[int]:
    try:
        return _sequence(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError(f"{show(text)} is not {GRAMMAR}") from None


def _sequence(node: ast.expr) -> list[int]:
    match node:
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _sequence(left) + _sequence(right)
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_device_id(_integer(item)) for item in items]
        case ast.Call(func=ast.Name(id="list"), args=[inner], keywords=[]):
            return _sequence(inner)
        case ast.Call(func=ast.Name(id="range"), args=bounds, keywords=[]) if 1 <= len(bounds) <= 3:
            return _range([_integer(bound) for bound in bounds])
    raise ValueError(f"{show(ast.unparse(node))} is not {GRAMMAR}")


def _range(bounds: list[int]) -> list[int]:
    if len(bounds) == 3 and bounds[2] == 0:
        raise ValueError("range() needs a step other than 0")
    ids = range(*bounds)
    if ids[MOST_DEVICES:]:  # len() of a larger range overflows
        raise ValueError(f"range{tuple(bounds)} names more than {MOST_DEVICES} devices, the limit")
    return [_device_id(item) for item in ids]


def _integer(node: ast.expr) -> int:
    match node:
        case ast.Constant(value=value) if type(value) is int:
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=value)) if type(value) is int:
            return -value
    raise ValueError(f"{show(ast.unparse(node))} is not a whole number")


def _device_id(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{show(value)} is not a device id (a whole number from 0 on)")
    if value >= MOST_DEVICES:
        raise ValueError(f"device {value} is beyond the limit of {MOST_DEVICES} devices")
    return value


# Which backend runs a role, and that backend's own settings.


class StrategyArgs(Settings):
    """`strategy_args` of a role."""

    strategy_name: str = setting(
        ...,
        "The backend: deepspeed_train, fsdp2_train or megatron_train learn; hf_infer, deepspeed_infer, fsdp2_infer and "
        "megatron_infer score; vllm, sglang and hf_infer generate. Or one of your own, package.module:SPEC "
        "(docs/adding_a_strategy.md). Which trainer: docs/trainers.md. Required.",
    )
    strategy_config: dict[str, Any] = setting(
        {},
        "The backend's own settings: a DeepSpeed configuration (usually `${deepspeed_zero2}` from a fragment), "
        "the keys of FSDP2 (below), Megatron's parallel sizes, or arguments of the rollout engine. On GPUs that "
        "another role uses as well, gpu_memory_utilization (vllm) or mem_fraction_static (sglang) is 0.6 unless given.",
    )
    allow_untested_arguments: Names = setting(
        (),
        "Arguments of vLLM or SGLang, and variables in system_envs with their prefix, that are let through though they "
        "were not tested here. Those that were: roll/configs/strategies/engine_arguments.yaml.",
    )


PgVariant = Annotated[str, AfterValidator(known_pg_variant)]
DeviceMapping = Annotated[
    tuple[int, ...] | None, BeforeValidator(lambda value: None if value is None else parse_device_mapping(value))
]
Environment = Annotated[
    dict[str, str],
    BeforeValidator(
        lambda value: (
            {k: str(v) if isinstance(v, int | float) else v for k, v in value.items()}
            if isinstance(value, dict)
            else value
        )
    ),
]


PrefixSharing = Annotated[
    Literal["off", "auto", "on"],
    BeforeValidator(lambda value: {True: "on", False: "off"}[value] if isinstance(value, bool) else value),  # of YAML
]


class SequencePackingArgs(Settings):
    """`sequence_packing_args` of a role, with use_sequence_packing."""

    algorithm: Literal["none", "load_balance"] = setting(
        "none",
        "none: the rows of a micro batch are one pack. load_balance: micro batches are filled by tokens; there are "
        "as few as possible, of even size.",
    )
    max_packed_sequence_length_forward: int | None = setting(
        None, "With load_balance: the most tokens of a pack when scoring. Required.", ge=1
    )
    max_packed_sequence_length_train: int | None = setting(
        None, "With load_balance: the most tokens of a pack in training. Required.", ge=1
    )
    min_num_micro_batches_forward: int = setting(1, "With load_balance: fewest packs of one rank when scoring.", ge=1)
    min_num_micro_batches_train: int = setting(1, "With load_balance: fewest packs of one rank in an update.", ge=1)

    @property
    def by_tokens(self) -> bool:
        return self.algorithm == "load_balance"


class RouterReplayConfig(Settings):
    """`router_replay` of a policy with experts: with those of which pass it trains."""

    mode: Literal["disable", "R2", "R3"] = setting(
        "disable",
        "R2: every token goes to the experts that the pass of the old log-probs chose; this pass then runs in every "
        "step. R3: to the experts of the rollout, in that pass too. The weights of the experts are the present "
        "router's, which learns.",
    )

    @property
    def is_on(self) -> bool:
        return self.mode != "disable"

    @property
    def tells(self) -> bool:
        """True where the pass of the old log-probs has to tell which experts it chose."""
        return self.mode == "R2"


class WorkerConfig(Settings):
    """A role: actor_train, actor_infer, reference, critic, validation, and what the rewards build on."""

    name: str | None = setting(None, "Name of the role in logs. Default: its key.")
    strategy_args: StrategyArgs | None = setting(
        None,
        "Backend of the role. Default: what is installed (vllm, then sglang, else hf_infer; deepspeed_train, "
        "else fsdp2_train); without GPUs hf_infer generates.",
    )
    model_args: ModelArgs = setting({}, "The model.")
    training_args: TrainingArgs = setting({}, "Batch, optimizer and schedule of a role that learns.")
    data_args: DataArgs = setting({}, "Rows: of actor_train for training, of validation for validation.")
    generating_args: GeneratingArgs = setting({}, "Sampling: of actor_infer in training, of validation in validation.")

    device_mapping: DeviceMapping = setting(
        None,
        "Global device ids of the role: a list, or a string such as list(range(0,8)). Node of a device: id // "
        "num_gpus_per_node. Default: all GPUs that the run sees, which roles share; without GPUs, or with "
        "`world_size`, CPU workers.",
    )
    num_gpus_per_worker: int = setting(
        1,
        "So many consecutive ids of device_mapping form one worker (tensor x pipeline parallel of a rollout engine). "
        "Default: tensor_parallel_size x pipeline_parallel_size of strategy_config.",
        ge=1,
        le=MOST_DEVICES_PER_NODE,
    )
    world_size: int | None = setting(
        None,
        "Workers of a role without device_mapping (default 1). With one it follows from it, and must agree if set.",
        ge=1,
        le=MOST_PROCESSES,
    )
    model_update_frequency: int = setting(
        1,
        "For actor_train: the rollout engine gets the trained weights after every N steps, and after the last.",
        ge=1,
    )
    infer_batch_size: int = setting(
        16, "Samples in one forward pass of one rank when log-probs or values are computed.", ge=1
    )
    backend_timeout: int = setting(
        30,
        "Minutes that a collective operation between the ranks, or a sign of life of a rollout engine, may take.",
        ge=1,
    )
    system_envs: Environment = setting({}, "Environment variables of the role's workers, over the run's system_envs.")

    worker_cls: str | None = setting(
        None,
        "ROLL's class path of the worker. Accepted where it names what this role does here anyway; rewards: see "
        "`reward`.",
    )
    pg_variant: PgVariant | None = setting(None, "For actor_train: form of the policy loss, over the run's pg_variant.")
    topr_positive_weight: float = setting(
        1.0, "For actor_train, with pg_variant topr: weight of positive advantages.", ge=0
    )
    topr_negative_weight: float = setting(
        1.0, "For actor_train, with pg_variant topr: weight of negative advantages.", ge=0
    )
    ppo_epochs: int | None = setting(None, "For critic: passes over a step's samples. Default: the run's.", ge=1)
    max_grad_norm: float | None = setting(
        None, "For critic: its gradients are scaled down to this norm; 0 is off. Default: the run's.", ge=0
    )
    tag_included: Names = setting(
        (), "Tags of the data that belong to this reward's domain, beside the domain's own name."
    )

    use_dynamic_batching_in_train: bool = setting(False, "Micro batches by tokens instead of rows, in training.")
    max_tokens_per_microbatch_in_train: int = setting(
        0, "With it: most tokens of a micro batch; padding counts where rows are not packed. Required.", ge=0
    )
    sequence_length_round_in_train: int = setting(4, "With it: lengths are rounded up to a multiple of this.", ge=1)
    use_dynamic_batching_in_infer: bool = setting(False, "Micro batches by tokens instead of rows, when scoring.")
    max_tokens_per_microbatch_in_infer: int | None = setting(
        None, "With it: most tokens of a micro batch; padding counts where rows are not packed. Required.", ge=0
    )
    sequence_length_round_in_infer: int = setting(4, "With it: lengths are rounded up to a multiple of this.", ge=1)
    use_sequence_packing: bool = setting(
        False,
        "Rows of a micro batch one after the other instead of padded ones, in training and when scoring: same numbers, "
        "less to compute. With use_dynamic_batching_in_train or _in_infer, or with algorithm: load_balance, micro "
        "batches are packs filled up to a number of tokens. For models whose layers all attend (docs/trainers.md).",
    )
    sequence_packing_args: SequencePackingArgs = setting({}, "Details of sequence packing.")
    use_prefix_sharing: PrefixSharing = setting(
        "auto",
        "Rows of a micro batch that begin alike (responses to one prompt, turns of an episode) as one tree: what "
        "they have in common is computed once, in training and when scoring, with the same numbers. on: wherever it "
        "saves tokens. auto: where it saves time, and off for a role that cannot. On NVIDIA's GPUs and CPUs, for "
        "models whose layers attend to whole rows (docs/trainers.md).",
    )

    router_replay: RouterReplayConfig = setting({}, "Experts of a mixture, chosen once for a step.")

    mtp_training_mode: Literal["disabled", "standalone", "joint"] | None = setting(
        "disabled",
        "For actor_train, with megatron_train: training of the head for the token after the next one that the model's "
        "files hold (DeepSeek-V3, GLM-4.5), by the cross-entropy of the tokens that are trained. standalone: that loss "
        "changes the head alone, and the policy learns as without it. joint: it has a gradient for the whole model. "
        "disabled: heads are saved as they were.",
    )
    mtp_loss_scaling_factor: float = setting(
        0.1, "With mtp_training_mode: weight of that loss, its mean over the tokens of the update.", ge=0
    )

    use_torch_compile: bool = setting(
        False,
        "The blocks of the model, and the arithmetic of its head, by torch.compile: less time per pass, and a minute "
        "or more for the first ones. On a CPU it needs a C++ compiler.",
    )

    @property
    def trains_prediction_head(self) -> bool:
        return self.mtp_training_mode in ("standalone", "joint")

    @property
    def packs_rows(self) -> bool:
        """True where the rows of a micro batch are one sequence, as those are that ranks share."""
        return self.use_sequence_packing or self.model_args.ulysses_size > 1

    @property
    def shares_prefixes(self) -> bool:
        """True where rows that begin alike may be one tree."""
        return self.use_prefix_sharing != "off"

    @property
    def packing_switch(self) -> tuple[str, str]:
        """The key that makes it so, and its value."""
        sequence = ("model_args.ulysses_size", str(self.model_args.ulysses_size))
        return ("use_sequence_packing", "true") if self.use_sequence_packing else sequence

    @property
    def packed_tokens_in_train(self) -> int | None:
        """Most tokens of a pack in training; None where rows are not packed, or packed by their number."""
        if self.packs_rows and self.sequence_packing_args.by_tokens:
            return self.sequence_packing_args.max_packed_sequence_length_train
        packs = self.packs_rows and self.use_dynamic_batching_in_train
        return self.max_tokens_per_microbatch_in_train if packs else None

    @property
    def packed_tokens_in_infer(self) -> int | None:
        """The same when scoring."""
        if self.packs_rows and self.sequence_packing_args.by_tokens:
            return self.sequence_packing_args.max_packed_sequence_length_forward
        packs = self.packs_rows and self.use_dynamic_batching_in_infer
        return self.max_tokens_per_microbatch_in_infer if packs else None

    @property
    def saved_facts(self) -> dict[str, object]:
        """Facts on which the saved state of a role that learns depends, whatever its strategy."""
        return {
            "strategy_name": self.strategy_name,
            "freeze_module_prefix": self.model_args.freeze_module_prefix,
            "lora": self.model_args.adapter_text,
            "dtype": self.model_args.dtype,
            "optim": self.training_args.optim,
        }

    @property
    def num_devices(self) -> int:
        return len(self.device_mapping or ())

    @property
    def num_workers(self) -> int:
        """Processes of the role. Example: 8 devices with num_gpus_per_worker 2 are 4 workers."""
        if self.device_mapping is None:
            return self.world_size or 1
        return max(1, self.num_devices // self.num_gpus_per_worker)

    @property
    def strategy_name(self) -> str | None:
        return self.strategy_args.strategy_name if self.strategy_args else None

    @property
    def strategy_config(self) -> dict[str, Any]:
        return self.strategy_args.strategy_config if self.strategy_args else {}

    @property
    def allowed_arguments(self) -> tuple[str, ...]:
        return self.strategy_args.allow_untested_arguments if self.strategy_args else ()
