"""How answers are sampled, and how requests are scheduled."""

from typing import Annotated

from pydantic import BeforeValidator

from roll.configs.base import Settings, setting
from roll.configs.limits import MOST_GROUPS
from roll.configs.sections.data import Numbers, Strings


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
        "Longest answer. Follows from response_length, or sequence_length - prompt_length; if given it must agree. In "
        "validation, and for the answers of an agent, it may be less.",
        ge=1,
    )
    min_new_tokens: int = setting(0, "No end of sequence before this many tokens.", ge=0)
    repetition_penalty: float = setting(1.0, "Above 1 makes tokens that occurred less likely; 1 is off.", gt=0)
    num_return_sequences: int | None = setting(
        None,
        "Answers per prompt. In training it is num_return_sequences_in_group and must agree; in validation it is the "
        "n of pass@n (default 1).",
        ge=1,
        le=MOST_GROUPS,
    )
    stop_strings: Strings = setting((), "Texts that end an answer.")
    include_stop_str_in_output: bool | None = setting(
        None,
        "Keep the text of a stop string at the end of what rewards and environments see. null: true. Its tokens were "
        "sampled and are trained on in either case.",
    )
    stop_token_ids: Numbers = setting((), "Token ids that end an answer, beside the end of sequence.")
    ignore_eos: bool = setting(False, "Go on after an end of sequence token, up to max_new_tokens.")
