"""What stands against sending models to the Hugging Face hub."""

from collections.abc import Iterator

from roll.configs.problems import Problem
from roll.configs.sections.run import RunConfig

KEY = "checkpoint_config.hub_model_id"


def hub_problems(config: RunConfig) -> Iterator[Problem]:
    if config.hub_repo is not None and (why := why_not()):
        yield Problem(f"{KEY}: {why}", ("checkpoint_config",), "machine")


def why_not() -> str:
    """What of this machine stands against sending anything; empty if nothing does."""
    from huggingface_hub import constants, get_token

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set, and the hub is elsewhere: unset it."
    return "" if get_token() else "there is no token for the hub. `hf auth login` asks for one, or set HF_TOKEN."
