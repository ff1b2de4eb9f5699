"""One role: its model, backend, devices and workers."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator

from roll.configs.base import Settings, setting
from roll.configs.limits import MOST_DEVICES_PER_NODE, MOST_PROCESSES
from roll.configs.sections.configs_rollout import GeneratingArgs
from roll.configs.sections.data import DataArgs, Names
from roll.configs.sections.device_mapping import parse_device_mapping
from roll.configs.sections.model import ModelArgs
from roll.configs.sections.strategy import StrategyArgs
from roll.configs.sections.training import TrainingArgs
from roll.configs.tables.policy_losses import known_pg_variant

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
        "none: the rows of a micro batch are one pack. load_balance: micro batches are made by tokens, as few and as "
        "even as fit.",
    )
    max_packed_sequence_length_forward: int | None = setting(
        None, "With load_balance: most tokens of a pack when scoring. Required.", ge=1
    )
    max_packed_sequence_length_train: int | None = setting(
        None, "With load_balance: most tokens of a pack in training. Required.", ge=1
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
        "R2: every token goes to the experts that the pass of the old log-probs chose, which there is then in every "
        "step. R3: to those that it had in the rollout, in that pass as well. Weights of experts, and their gradient, "
        "are the present router's.",
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
        "Workers of a role without device_mapping (default 1). With one it follows from it, and must agree if given.",
        ge=1,
        le=MOST_PROCESSES,
    )
    model_update_frequency: int = setting(
        1,
        "Of actor_train: the rollout engine gets the trained weights after every so many steps, and after the last.",
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
    pg_variant: PgVariant | None = setting(None, "Of actor_train: form of the policy loss, over the run's pg_variant.")
    topr_positive_weight: float = setting(
        1.0, "Of actor_train, with pg_variant topr: weight of positive advantages.", ge=0
    )
    topr_negative_weight: float = setting(
        1.0, "Of actor_train, with pg_variant topr: weight of negative advantages.", ge=0
    )
    ppo_epochs: int | None = setting(None, "Of critic: passes over a step's samples. Default: the run's.", ge=1)
    max_grad_norm: float | None = setting(
        None, "Of critic: its gradients are scaled down to this norm; 0 is off. Default: the run's.", ge=0
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
        "off",
        "Rows of a micro batch that begin alike (answers to one prompt, turns of an episode) as one tree: what they "
        "have in common is computed once, in training and when scoring, with the same numbers. on: wherever it saves "
        "tokens. auto: where it saves time, and off for a role that cannot. On CPUs, for models whose layers attend "
        "to whole rows (docs/prefix_sharing.md).",
    )

    router_replay: RouterReplayConfig = setting({}, "Experts of a mixture, chosen once for a step.")

    mtp_training_mode: Literal["disabled", "standalone", "joint"] | None = setting(
        "disabled",
        "Of actor_train, with megatron_train: training of the head for the token after the next one that the model's "
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
