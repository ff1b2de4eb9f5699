"""Keys of every run whose data come from rollouts: how many, how long, and how engines get weights and requests."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Annotated, Literal

from pydantic import BeforeValidator

from roll.configs.base import MOST_GROUPS, Settings, setting
from roll.configs.problems import Problem
from roll.configs.sections.data import Place
from roll.configs.sections.experience import EXPLORES, LEARNS, OTHER_SCHEDULES, SAMPLES, ExperienceConfig, Mode
from roll.configs.sections.operators import ExperienceOperators
from roll.configs.sections.run import RunConfig
from roll.utils.text import show

# `recorder`: which rollouts of a step are kept to be looked at, and what of them.


class RecorderConfig(Settings):
    """`recorder`: sample rollouts in rollout_dump_dir, for `roll report` and for people."""

    num_groups: int = setting(
        4, "Groups that are recorded of every step, and up to 64 of every validation; 0: none.", ge=0
    )
    num_samples_per_group: int = setting(8, "Attempts that are recorded of each of them, at most.", ge=1)
    log_prob_steps: int = setting(
        0,
        "Every so many steps the sampled tokens of these attempts are recorded with the log-prob that engine and "
        "trainer give them. Where a step computes none before training, this takes a forward pass over these rows. 0 "
        "or -1: never.",
        ge=-1,
    )
    tracked_samples: int = setting(
        0,
        "Of the recorded attempts so many go to the trackers as well, one of each group in turn: as a table to wandb, "
        "mlflow and swanlab, as text to tensorboard, without pictures. 0: none leave this machine.",
        ge=0,
    )
    tracked_steps: int = setting(10, "With tracked_samples: those of every N steps, and of each validation.", ge=1)

    def is_tracked(self, step: int, kind: str) -> bool:
        """True if trackers get samples of a step, or of a validation after it."""
        return self.tracked_samples > 0 and (kind != "train" or step % self.tracked_steps == 0)


ROLL_LOOP = "roll.distributed.scheduler.user_defined_rollout_loop.UserDefinedRolloutLoop"
LENGTH_KEYS = ("prompt_length", "response_length", "sequence_length")


def _user_loop(name: object) -> object:
    return None if name == ROLL_LOOP else name


class RolloutMockConfig(Settings):
    """`rollout_mock`: keep what a run samples, or train on what another has sampled."""

    enable: bool = setting(False, "Switch it on.")
    mode: Literal["dump", "mock"] = setting(
        "dump",
        "dump: write the rollouts of every training step, with their rewards. mock: take them from there instead of "
        "sampling and scoring; data, seed, batch and lengths must be those of the run that was dumped.",
    )
    dump_dir: Place = setting("./rollout_mock_dumps", "Where they are, one file per step.", min_length=1)

    @property
    def dumps(self) -> bool:
        return self.enable and self.mode == "dump"

    @property
    def replays(self) -> bool:
        return self.enable and self.mode == "mock"


class RolloutConfig(RunConfig):
    """Settings that RLVR and agentic runs share beside the mathematics."""

    mode: Mode = setting(
        "both",
        "Which parts of the run this process does. both: it samples and learns. explore: it samples, rewards and "
        "writes groups of experience. train: it reads them and learns. bench: it validates the model, or the "
        "checkpoint that resume_from_checkpoint names, and learns nothing. docs/modes.md.",
    )
    experience: ExperienceConfig = setting({}, "Between mode: explore and mode: train: where groups wait.")
    rollout_batch_size: int = setting(
        128,
        "Prompts per step, each sampled num_return_sequences_in_group times (agentic: trajectories per step).",
        ge=1,
        le=MOST_GROUPS,
    )
    val_batch_size: int = setting(128, "Validation prompts in flight at once.", ge=1, le=MOST_GROUPS)

    # rollouts that run ahead of training (docs/rollouts.md)
    async_generation_ratio: float = setting(
        0.0,
        "Groups that may be in flight beyond those of a step, as a share of them: they run while the step trains. 0: "
        "rollout and training take turns; 1: another step's worth of groups is always on its way. docs/rollouts.md.",
        ge=0,
    )
    max_staleness: int | None = setting(
        None,
        "The most steps by which any token may be older than the weights that learn from it: no group is ever older "
        "than that. Default: model_update_frequency - 1 + async_generation_ratio, rounded up.",
        ge=0,
    )
    max_token_staleness: int | None = setting(
        None,
        "With async_generation_ratio: tokens that are more steps old than this are not trained on. Off by default, "
        "since only the ends of long responses remain.",
        ge=0,
    )

    unfinished_groups: Literal["carry", "drop", "defer"] = setting(
        "carry",
        "What happens to groups that still run when a step has its own. carry: they continue, and a later step "
        "trains on them. drop and defer: async_generation_ratio more groups are started in every step than it takes, "
        "the first to finish are trained on, and the others are cut: for good (short responses win, see "
        "rollout/length_bias), or until a step can be made of such groups alone, which then waits for all of them.",
    )
    unfinished_grace_s: float = setting(
        0.0,
        "Seconds that a step which could take its groups waits for older ones, before it takes younger ones instead.",
        ge=0,
    )

    # lengths in tokens
    prompt_length: int = setting(
        1024,
        "Longest prompt in tokens; see data_args.truncation. Agentic runs: the default is at most half of "
        "sequence_length.",
        ge=1,
    )
    response_length: int | None = setting(
        None,
        "Longest response in tokens; sequence_length = prompt_length + response_length. Give one of the two. "
        "Default: 2048, or what the model's positions leave.",
        ge=1,
    )
    sequence_length: int | None = setting(
        None, "Longest prompt and response together. Default of agentic runs: 4096, or the model's positions.", ge=2
    )
    val_prompt_length: int | None = setting(
        None, "The same as prompt_length in validation. Default: prompt_length.", ge=1
    )
    val_sequence_length: int | None = setting(
        None, "The same as sequence_length in validation. Default: sequence_length.", ge=2
    )

    # engines
    model_update_buffer_size_mb: int = setting(
        1024, "Size of a bucket when weights go to the rollout engine, in MB.", ge=1
    )
    weight_sync_route: Literal["auto", "memory", "broadcast", "file"] = setting(
        "auto",
        "How weights go to the rollout engine. memory: shared memory of a host, or CUDA IPC where all of an engine's "
        "GPUs are the trainer's; every node with engines needs a rank of actor_train. broadcast: a collective. file: "
        "in output_dir. auto: memory where trainer and engine share GPUs or have none, else broadcast.",
    )
    kv_on_update: Literal["recompute", "keep"] = setting(
        "recompute",
        "What to do with the keys and values of responses in flight when weights change. recompute: the engine "
        "computes them again, so that log-probs of later tokens are those of the new weights. keep: it continues "
        "with the old ones, which costs nothing; log-probs of later tokens are what they were sampled from, of new "
        "weights over keys of old ones. Engines that have left their devices meanwhile always compute them again.",
    )
    partial_gpu_mode: bool = setting(
        True,
        "With async_generation_ratio, where actor_infer shares a part of its devices with roles that take turns "
        "there: engines that use none of a role's devices keep sampling while that role works, and take over the "
        "responses of engines that leave. false: all engines leave.",
    )
    max_failed_fraction: float = setting(
        0.1,
        "The run stops when more than this share of a step's trajectories failed (reward or environment).",
        ge=0,
        le=1,
    )

    # requests
    max_running_requests: int | None = setting(
        None,
        "Most responses in flight per rollout engine, and of vLLM on GPUs its max_num_seqs. Default: 128; 512 for "
        "vLLM and SGLang on GPUs. A smaller limit in the engine's own strategy_config counts.",
        ge=1,
    )
    is_use_additional_prompts: bool = setting(
        False,
        "When query_filter_config drops groups, start others in their place, at most as many as a step has. Off: the "
        "step trains on what is left, in as many fewer updates; see on_empty for a step of which nothing is.",
    )
    max_additional_running_prompts: int = setting(
        0,
        "With is_use_additional_prompts: so many more groups run from the start, in case that others are dropped. No "
        "batch changes by it; what a step does not need starts again in the next one.",
        ge=0,
        le=MOST_GROUPS,
    )
    on_empty: Literal["train_all", "skip_step", "fail"] = setting(
        "skip_step",
        "What to do with a step whose groups are all dropped by query_filter_config, group_filter_cls or "
        "experience_operators: it trains on as many of them as a step has, makes no update, or ends the run.",
    )
    experience_operators: ExperienceOperators = setting(
        (),
        "What drops or rewards anew the groups of a step between rollout and training, one after the other: names, or "
        "mappings of name and args. docs/data.md.",
    )

    runner_state_report_interval: float = setting(
        0.0,
        "While a step is sampled the log says every N seconds which groups are in flight, how many have ended, "
        "how old the oldest is, and what the engines have to do. 0: never.",
        ge=0,
    )
    user_defined_rollout_loop_cls: Annotated[str | None, BeforeValidator(_user_loop)] = setting(
        None,
        "How one group of attempts is made and rewarded, in a class of your own: package.module:Class "
        "(docs/adding_a_rollout_loop.md). ROLL's default is understood.",
    )

    # output
    rollout_mock: RolloutMockConfig = setting({}, "Record rollouts, or replay recorded ones.")
    recorder: RecorderConfig = setting({}, "Which rollouts are kept to be looked at, and what of them.")
    rollout_dump_dir: Place | None = setting(None, "Where sample rollouts go. Default: <output_dir>/rollouts.")

    @property
    def uses_engines(self) -> bool:
        """True if this process has rollout engines."""
        return self.mode in SAMPLES

    @property
    def has_rollouts(self) -> bool:
        """True if it samples what is trained on."""
        return self.mode in EXPLORES

    @property
    def begins_afresh(self) -> bool:
        """Whether a run starts from scratch: one that does not learn continues from the buffer, or measures."""
        return self.has_training and super().begins_afresh

    @property
    def has_training(self) -> bool:
        """True if this process trains."""
        return self.mode in LEARNS

    @property
    def is_async(self) -> bool:
        """True if groups of later steps run while a step trains."""
        return self.async_generation_ratio > 0 and self.unfinished_groups == "carry"

    @property
    def takes_steps(self) -> bool:
        return self.has_training or self.has_rollouts

    @property
    def other_schedule(self) -> Mapping[str, str]:
        return OTHER_SCHEDULES.get(self.mode, {})

    @property
    def is_in_parts(self) -> bool:
        """True if another process does the other half: one samples, one trains."""
        return self.has_training != self.has_rollouts

    @property
    def trains_stale(self) -> bool:
        """True if groups that are older than the weights are expected, beside those of model_update_frequency."""
        keys = self.experience
        comes_back = keys.reuse.enable or keys.on_timeout == "partial"
        return self.is_async or (self.has_training and self.is_in_parts and comes_back)

    @property
    def lengths(self) -> tuple[int, int, int]:
        """(prompt, response, sequence) in tokens. The preflight has checked that they agree.

        Example: prompt_length 1024 with response_length 3072, or with sequence_length 4096: (1024, 3072, 4096).
        """
        response = self.response_length
        if response is None:
            response = max(1, (self.sequence_length or 0) - self.prompt_length)
        return self.prompt_length, response, self.prompt_length + response

    @property
    def trained_length(self) -> int:
        return self.lengths[2]

    @property
    def longest_row(self) -> int:
        return max(self.lengths[2], self.val_lengths[2])

    @property
    def length_keys(self) -> tuple[str, ...]:
        return LENGTH_KEYS

    @property
    def directories(self) -> Mapping[str, str | None]:
        dumps = {"rollout_mock.dump_dir": self.rollout_mock.dump_dir} if self.rollout_mock.dumps else {}
        experience = {"experience.dir": self.experience_dir} if self.is_in_parts else {}
        return {**super().directories, "rollout_dump_dir": self.rollout_dump_dir, **dumps, **experience}

    @property
    def sources(self) -> Mapping[str, str]:
        return {"rollout_mock.dump_dir": self.rollout_mock.dump_dir} if self.rollout_mock.replays else {}

    @property
    def experience_dir(self) -> str:
        """Filled in for a run in parts."""
        return self.experience.dir or f"{self.output_dir}/experience"

    @property
    def val_lengths(self) -> tuple[int, int, int]:
        """(prompt, response, sequence) in tokens of validation."""
        prompt, response = self.val_prompt_length or self.prompt_length, self.lengths[1]
        if self.val_sequence_length is not None:
            response = max(1, self.val_sequence_length - prompt)
        return prompt, response, prompt + response


# What evaluation sets of any kind of run may be called, and which pass@k they can have.

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_MEASURED = ("reward_mean", "response_length_mean", "failed_fraction")  # val/<one of these>/<tag> is taken


def purpose_of(name: str) -> str:
    """Return the name that the random streams of a validation set depend on, beside the run's seed; they depend neither
    on the step nor on the other sets."""
    return f"validation/{name}" if name else "validation"


def name_problems(name: str, taken: Collection[str] = ()) -> Iterator[Problem]:
    """`taken`: other words behind val/."""
    reserved = (*_MEASURED, *taken)
    if not _NAME.fullmatch(name) or name in reserved or name.startswith("pass_at_"):
        yield Problem(
            f"eval_sets: {show(name)} cannot be part of metric names such as val/NAME/reward_mean. Choose letters, "
            f"digits, _, . and -, and none of {', '.join(reserved)}.",
            (f"eval_sets.{name}",),
        )


def pass_at_problems(name: str, pass_at: Sequence[int], num_answers: int, key: str) -> Iterator[Problem]:
    """`key`: of the set, which says how many answers there are to each prompt."""
    at = f"eval_sets.{name}"
    wrong = [k for k in pass_at if not 1 <= k <= num_answers]
    if wrong:
        yield Problem(
            f"{at}.pass_at: {wrong[0]} responses cannot be drawn from {num_answers}. Raise {at}.{key}, or name numbers "
            f"from 1 to {num_answers}.",
            (f"{at}.pass_at", f"{at}.{key}"),
        )
