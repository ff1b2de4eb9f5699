"""Fields of requests beside those that a protocol's reader takes: which do nothing here, and which are refused."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from roll.pipeline.agentic.proxy.endpoint.errors import Refusal
from roll.pipeline.agentic.proxy.transcript.message import Others

SAMPLING = frozenset({"temperature", "top_p", "top_k", "frequency_penalty", "presence_penalty", "seed", "min_p",
                      "repetition_penalty", "logit_bias"})  # fmt: skip
"""Fields that the run decides about, whatever the program says."""
TEMPLATE = ("chat_template_kwargs", "enable_thinking")
"""Fields that name what the chat template sees beside the messages."""
_LEAVE_OUT = "leave it out"
_CHANGES: Mapping[str, str] = {
    "functions": "send tools",
    "function_call": "send tool_choice",
    "structured_outputs": "send response_format",
    "guided_json": "send response_format",
    "guided_regex": "send response_format",
    "guided_choice": "send response_format",
    "guided_grammar": "send response_format",
    "stop_token_ids": "send their texts as stop",
    "allowed_token_ids": "send response_format",
    "bad_words": _LEAVE_OUT,
    "logits_processors": _LEAVE_OUT,
    "ignore_eos": _LEAVE_OUT,
    "min_tokens": "set actor_infer.generating_args.min_new_tokens",
    "use_beam_search": _LEAVE_OUT,
    "echo": _LEAVE_OUT,
    "documents": "send them as a message",
    "chat_template": "set actor_train.data_args.template",
    "continue_final_message": _LEAVE_OUT,
    "top_logprobs": "engines return the log-prob of the sampled token only",
    "prompt_logprobs": "engines return the log-prob of the sampled token only",
    "audio": _LEAVE_OUT,
    "background": _LEAVE_OUT,
    "conversation": "send the items as input",
    "prompt": "send its text as input",
    "thread": "send its messages",
}
"""Fields that would change what is sampled, or what a reply means, with what to do instead."""

_NOTHING: Mapping[str, Sequence[Any]] = {"function_call": ("auto", "none")}
"""Values of these fields that change nothing, since functions of old are refused."""


class Body(BaseModel):
    """The fields of a request that are read, and all others as they came."""

    model_config = ConfigDict(extra="allow")

    def others(self, tools_left_out: Sequence[str]) -> Others:
        """The fields that are not read. Raises Refusal for one without which the reply would not be what was asked."""
        extra = self.model_extra or {}
        given = {name: value for name, value in extra.items() if value is not None}
        for name in given:
            if given[name] and name in _CHANGES and given[name] not in _NOTHING.get(name, ()):
                raise Refusal(400, f"{name} is not supported by this endpoint: {_CHANGES[name]}.", "unsupported", name)
        shown = given.pop(TEMPLATE[0], {})
        if not isinstance(shown, Mapping):
            raise Refusal(400, f"{TEMPLATE[0]}: it is no object.", param=TEMPLATE[0])
        shown = {**shown, **({TEMPLATE[1]: given.pop(TEMPLATE[1])} if TEMPLATE[1] in given else {})}
        ignored = (*sorted(given.keys() - SAMPLING), *(f"the tool {name}" for name in tools_left_out))
        return Others({name: value for name, value in given.items() if name in SAMPLING}, ignored, shown)
