"""What the settings of a run with rollouts say against themselves."""

from collections.abc import Iterator

from roll.configs.problems import Problem
from roll.configs.sections.rollout import LENGTH_KEYS, RolloutConfig

SAMPLE_TRACKERS = ("wandb", "mlflow", "swanlab", "tensorboard")
"""Those that take recorder.tracked_samples."""
VAL_LENGTH_KEYS = ("val_prompt_length", "val_sequence_length")


def unused_filter_keys(config: RolloutConfig, filters: str) -> Iterator[str]:
    """What says how to go on after a filter, in a run without one; `filters` is the key that would name it."""
    if config.is_use_additional_prompts:
        yield f"is_use_additional_prompts does nothing: no {filters} drops a group."
    if config.is_changed("on_empty") and not config.experience_operators:
        yield f"on_empty does nothing: no {filters} drops a group."


def unused_recorder_keys(config: RolloutConfig) -> Iterator[str]:
    keys = config.recorder
    if keys.num_groups == 0:
        for name, value in (("log_prob_steps", keys.log_prob_steps), ("tracked_samples", keys.tracked_samples)):
            if value > 0:
                yield f"recorder.{name} does nothing: recorder.num_groups is 0, so no rollout is recorded."
    elif keys.tracked_samples and not set(SAMPLE_TRACKERS) & set(config.track_with):
        yield f"recorder.tracked_samples does nothing: none of {', '.join(SAMPLE_TRACKERS)} is in track_with."
    if keys.tracked_samples == 0 and keys.is_changed("tracked_steps"):
        yield "recorder.tracked_steps does nothing: recorder.tracked_samples is 0."


def length_problems(config: RolloutConfig) -> Iterator[Problem]:
    prompt, response, sequence = config.prompt_length, config.response_length, config.sequence_length
    if response is None and sequence is None:
        yield Problem(
            "response_length is missing: set it, or sequence_length (prompt and answer together).", LENGTH_KEYS
        )
        return
    if response is not None and sequence is not None and sequence != prompt + response:
        yield Problem(
            f"sequence_length: {sequence} contradicts prompt_length {prompt} + response_length {response} = "
            f"{prompt + response}. Remove one of them.",
            LENGTH_KEYS,
        )
    elif sequence is not None and sequence <= prompt:
        yield Problem(
            f"sequence_length: {sequence} leaves no room for an answer after prompt_length: {prompt}. "
            f"Set it above {prompt}, or lower prompt_length.",
            LENGTH_KEYS,
        )
    val_prompt, val_sequence = config.val_lengths[0], config.val_sequence_length
    if val_sequence is not None and val_sequence <= val_prompt:
        yield Problem(
            f"val_sequence_length: {val_sequence} leaves no room for an answer after val_prompt_length: {val_prompt}.",
            LENGTH_KEYS + VAL_LENGTH_KEYS,
        )
