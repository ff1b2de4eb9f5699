"""Keys that are known and do nothing here: one table for all sections, so that the settings classes show what is.

By the class of the section; a key holds for the classes below it as well. No settings object has them: `validate`
checks and removes them. Four kinds:

- `ignored`  users know it, its job is done another way: a warning when it has another value than the default;
- `unread`   ROLL declares it and never reads it: a warning whenever it is given;
- `planned`  not implemented yet: silent at its default and at `inert` values, an error otherwise;
- `section`  holds keys of this table only: silent.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from roll.configs.base import Settings, holds_mapping, join, nested_class
from roll.configs.sections.cluster import WorkerConfig


@dataclass(frozen=True)
class InertKey:
    """`type`: what its value must be all the same, null aside. `reason`: why it does nothing. `inert`: values beside
    the default that ask for nothing. Of a planned key `reason` names the nearest thing."""

    kind: Literal["ignored", "unread", "planned", "section"]
    type: Any
    default: Any
    help: str
    reason: str = ""
    inert: tuple[Any, ...] = ()


def ignored(type: Any, default: Any, help: str, reason: str) -> InertKey:
    return InertKey("ignored", type, default, help, reason)


def unread(type: Any, default: Any, help: str) -> InertKey:
    return InertKey("unread", type, default, help, "ROLL declares this key and never reads it")


def planned(type: Any, default: Any, help: str, inert: tuple[Any, ...] = (), nearest: str = "") -> InertKey:
    return InertKey("planned", type, default, help, nearest, inert)


def section(type: Any, help: str) -> InertKey:
    return InertKey("section", type, None, help)


class RouterArgs(Settings):
    """`router_args`: which engine replica gets a request."""


class TransferBackendArgs(Settings):
    """`transfer_backend`: another road for rollout data."""


class LLMProxyConfig(Settings):
    """`llm_proxy`: who answers in an episode."""


COMMUNICATORS_STAY = (
    "communication buffers stay on the devices: NCCL gives them back with the communicator, which FSDP2's meshes, "
    "ZeRO's engine and Megatron's buckets hold as long as they live, and torch has no call that suspends one; "
    "NCCL_BUFFSIZE in system_envs makes them smaller"
)
NO_VIDEOS = "frames are sized as pictures are, by image_min_pixels and image_max_pixels"
ROLE_DECIDES = "the role decides what stands on top of the model (the critic gets a value head)"

INERT: Mapping[str, Mapping[str, InertKey]] = {
    "CheckpointConfig": {
        "async_upload": ignored(
            bool | None, None, "Upload in the background.", "checkpoints are written to a directory"
        ),
        "keep_local_file": ignored(bool | None, None, "Keep the local copy.", "checkpoints are written to a directory"),
        "use_hard_links": ignored(bool, False, "Upload links to files.", "checkpoints are written to a directory"),
    },
    "TransferBackendArgs": {
        "backend_name": planned(str | None, None, "Name of the backend."),
        "backend_config": planned(dict[str, Any], {}, "Its settings."),
    },
    "RunConfig": {
        "is_offload_states": ignored(
            bool,
            False,
            "Move a role's states to host memory between its turns.",
            "roles that share devices take turns by themselves",
        ),
        "otlp_output_dir": ignored(str, "./output/otlp", "Where traces go.", "traces are not recorded"),
        "base_dir": unread(str, "./output", "Base directory."),
        "local_rank": unread(int, -1, "Rank."),
        "report_length_and_rewards": unread(bool, False, "Report lengths and rewards."),
        "length_profiler_dir": unread(str, "./output/profiler", "Directory of that report."),
    },
    "RolloutConfig": {
        "generate_opt_level": ignored(
            int, 1, "0 batches prompts, 1 schedules requests.", "requests are always scheduled"
        ),
        "is_num_return_sequences_expand": ignored(
            bool, False, "Send a prompt once per response.", "an engine prefills a prompt once for all its responses"
        ),
        "router_args": section(RouterArgs, "Routing between engine replicas."),
        "transfer_backend": section(TransferBackendArgs, "Another transport for rollout data."),
    },
    "AlgorithmConfig": {
        "reward": planned(WorkerConfig | None, None, "A reward model for all domains."),
        "opsd_mode": planned(
            bool,
            False,
            "On-policy self-distillation, whose teacher also reads the solution of a row.",
            nearest="a teacher reads what the policy reads: is_pure_opd with a larger model as `teacher`",
        ),
        "opsd_solution_key": ignored(str | None, None, "Column with that solution.", "there is no opsd_mode"),
        "opsd_max_solution_length": ignored(int | None, None, "Longest solution.", "there is no opsd_mode"),
        "pure_opd_pipeline_type": ignored(
            Literal["rlvr", "agentic"], "rlvr", "Rollouts of is_pure_opd.", "the script that starts the run says which"
        ),
        "l2": unread(float, 0.0, "L2 penalty."),
        "use_reward_scaling": unread(bool, False, "Reward scaling."),
        "add_len_reward": unread(bool, False, "Length reward."),
        "use_reward_norm": unread(bool, False, "Reward normalization."),
    },
    "DistillConfig": {
        "logits_transfer_backend": ignored(
            str, "ipc+nccl", "How logits travel.", "a teacher's targets travel through Ray's object store"
        ),
        "distill_on_prompt": planned(bool, False, "Compare the models on the tokens of the prompt, too."),
    },
    "WorkerConfig": {
        "eval_steps": ignored(int | None, None, "Steps between evaluations.", "the run's eval_steps counts"),
        "max_concurrency": ignored(
            int, 1, "Calls in flight per worker.", "each kind of worker knows how many it takes"
        ),
        "offload_nccl": ignored(bool, False, "Free NCCL's buffers while the role waits.", COMMUNICATORS_STAY),
        "logits_in_fp32": ignored(bool, False, "Log-probs from fp32 logits.", "log-probs are always computed in fp32"),
        "apply_loss_scale": planned(
            bool, True, "Cancel the backend's own averaging; the loss here is always normalised globally."
        ),
    },
    "ModelArgs": {
        "model_type": ignored(str | None, None, "Kind of head on the model.", ROLE_DECIDES),
        "num_labels": ignored(int, 1, "Width of that head.", ROLE_DECIDES),
        "use_fused_kernels": ignored(
            bool,
            False,
            "Log-probs without the logits of all tokens.",
            "they never come from whole logits; fused_kernel_options says how",
        ),
        "device_map": ignored(str | None, "balanced", "Placement of the layers.", "device_mapping places the role"),
        "autocast_adapter_dtype": ignored(
            bool, True, "Keep adapters in fp32.", "adapters have fp32 master weights and compute in dtype in any case"
        ),
    },
    "TrainingArgs": {
        "max_steps": ignored(int, -1, "Length of the training.", "the run's max_steps counts"),
        "num_train_epochs": ignored(
            float, 1.0, "Passes over the data.", "the run's max_steps or num_train_epochs counts"
        ),
        "output_dir": ignored(str, "", "Where to write.", "the run's output_dir counts"),
        "seed": ignored(int, 42, "Seed.", "the run's seed counts"),
        "dataloader_num_workers": ignored(int, 0, "Processes that read data.", "the driver reads the data"),
        "save_hf_model": ignored(
            bool, False, "Write a loadable Hugging Face directory with a checkpoint.", "every checkpoint holds one"
        ),
        "data_seed": unread(int | None, None, "Seed of the data order."),
        "tf32": unread(bool | None, None, "TF32 matrix products."),
    },
    "DataArgs": {
        "preprocessing_num_workers": ignored(
            int | None, None, "Processes that tokenize.", "tokenizing happens as prompts are needed"
        ),
        "response": ignored(str, "solution", "Column with a demonstration.", "RLVR does not read demonstrations"),
        "eval_file_name": unread(str | None, None, "Evaluation file."),
        "audio_folder": planned(str | None, None, "Folder with sound."),
        "custom_data_kwargs_func": planned(str | None, None, "Function that adds fields to a row."),
        "video_max_pixels": ignored(int, 4194304, "Largest frame.", NO_VIDEOS),
        "video_min_pixels": ignored(int, 3136, "Smallest frame.", NO_VIDEOS),
        "video_total_pixels": ignored(int, 12845056, "All frames of a video.", NO_VIDEOS),
        "video_resize_chunk_frames": ignored(int, 64, "Frames resized at once.", NO_VIDEOS),
    },
    "GeneratingArgs": {
        "do_sample": unread(bool | None, True, "Sample or not; temperature: 0 is how to be greedy."),
        "num_beams": planned(int, 1, "Beam search."),
        "length_penalty": ignored(float, 1.0, "Length penalty of beam search.", "there is no beam search"),
        "max_length": ignored(int | None, 8192, "Prompt and response together.", "sequence_length counts"),
        "logprobs": ignored(int | None, 0, "Log-probs to return.", "the sampled token's log-prob is always returned"),
    },
    "RouterArgs": {
        "router_name": planned(
            Literal["PromptAffinityRouter", "EnvAffinityRouter", "SglangRouter"] | None,
            None,
            "Kind of router. The one there is, is both affinity routers at once: requests go to the least loaded "
            "engine, but turns of an episode and equal prompts stay together.",
            inert=("PromptAffinityRouter", "EnvAffinityRouter"),
        ),
        "router_config": planned(dict[str, Any], {}, "The router's own settings."),
        "max_running_requests": ignored(int, 128, "Requests in flight.", "the run's max_running_requests counts"),
    },
    "RewardConfig": {
        "response_filter_config": unread(dict[str, Any], {}, "Responses to leave out."),
    },
    "RLVRConfig": {
        "dataset_filter": unread(dict[str, Any], {}, "Filter of the rows."),
        "postive_loss_coef": unread(float, 0.0, "Weight of a loss on rewarded samples."),
        "use_topr_neg_loss_coef": unread(float, 0.0, "Weight of TOPR's negative part."),
        "use_policy_loss_type": unread(Literal["PPO", "PG"], "PPO", "Form of the policy loss."),
        "use_topr_loss": unread(bool, False, "TOPR."),
        "val_greedy": unread(bool, False, "Greedy validation; see validation.generating_args."),
        "val_n_sample": unread(
            int, 1, "Validation responses per prompt; see validation.generating_args.num_return_sequences."
        ),
        "mask_type": unread(Literal["all", "loss"], "loss", "What a mask leaves out."),
        "balance_length": unread(bool, False, "Balance lengths over ranks."),
        "minibatch_data_iter_num": unread(int, 1, "Passes over a mini batch."),
    },
    "EnvConfig": {
        "added_text": planned(
            str, "", "Text that every response begins with.", nearest="agent_template asks for the form of a response"
        ),
        "use_thread_lock": ignored(
            bool,
            True,
            "Serialise calls into one environment.",
            "every environment has a thread of its own; see max_env_step_concurrent",
        ),
        "agent_runner_cls": planned(str | None, None, "An agent of your own."),
    },
    "EnvManagerConfig": {
        "llm_proxy": section(LLMProxyConfig, "Who responds."),
    },
    "LLMProxyConfig": {
        "proxy_type": planned(
            Literal["policy", "openai", "random"], "policy", "What acts: the policy, a server, or random actions."
        ),
        "proxy_config": ignored(dict[str, Any], {}, "Settings of the proxy.", "the policy responds"),
    },
    "RewardNormalizationConfig": {
        "global_scale_factor": unread(float | None, None, "Factor."),
        "global_shift_value": unread(float | None, None, "Summand."),
    },
    "EnvMonitorConfig": {
        "monitor_interval": ignored(int, 30, "Seconds between checks.", "every call has an alarm of its own"),
    },
    "AgenticConfig": {
        "enable_response_mask": planned(
            bool, True, "Train on the policy's own tokens alone.", nearest="observations are never trained on"
        ),
        "use_turn_scores": planned(
            bool,
            False,
            "Give every turn its own reward, at its last token.",
            nearest="adv_estimator: step_reinforce or gigpo, with env_manager_cls: step",
        ),
        "enable_think": planned(
            bool,
            False,
            "Ask the policy to think before it acts.",
            nearest="agent_template asks for it, and action_pattern finds the action behind it",
        ),
        "exp_mode": planned(str, "train", "What to do."),
        "skip_mock_system_prompt": ignored(bool, False, "No made-up system message.", "none is ever made up"),
        "render_save_dir": unread(str | None, None, "Directory of renderings."),
        "dirty_data_mask": unread(bool, False, "Mask of invalid data."),
        "open_feedback_turn": unread(bool, False, "A turn of feedback."),
        "use_token_reward": unread(bool, False, "Rewards per token."),
    },
}


def inert_keys(settings: type[Settings]) -> dict[str, InertKey]:
    """The keys that do nothing in a section, those of the classes above it included."""
    names = [base.__name__ for base in reversed(settings.__mro__)]
    entries = {key: inert for name in names for key, inert in INERT.get(name, {}).items()}
    return {key: inert for key, inert in entries.items() if key not in settings.model_fields}


# Which keys may stand in a section of a YAML, those that do nothing included, and a walk over a raw tree by them.

Path = tuple[str | int, ...]


def known_keys(settings: type[Settings]) -> dict[str, Any]:
    """The type of the value of each key that a section may have."""
    fields = {key: field.annotation for key, field in settings.model_fields.items()}
    return fields | {key: inert.type for key, inert in inert_keys(settings).items()}


def sections(
    settings: type[Settings], tree: Any, path: Path = ()
) -> Iterator[tuple[type[Settings], dict[str, Any], Path]]:
    """Every mapping of a raw tree together with the settings class it will become and its place, outer ones first."""
    if not isinstance(tree, dict):
        return
    yield settings, tree, path
    for key, annotation in known_keys(settings).items():
        inner, value = nested_class(annotation), tree.get(key)
        if inner is None or value is None:
            continue
        if isinstance(value, Mapping) and holds_mapping(annotation):
            for name, child in value.items():
                yield from sections(inner, child, (*path, key, name))
        elif isinstance(value, list):
            for i, child in enumerate(value):
                yield from sections(inner, child, (*path, key, i))
        else:
            yield from sections(inner, value, (*path, key))


def path_text(path: Path) -> str:
    """A place as it is written. Example: path_text(("rewards", "math", "tags", 0)) == "rewards.math.tags[0]"."""
    text = ""
    for part in path:
        text = f"{text}[{part}]" if isinstance(part, int) else join(text, part)
    return text
