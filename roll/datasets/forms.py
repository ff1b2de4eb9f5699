"""Templates by name, ROLL's among them: what each does with a conversation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_ONE_PROMPT = (
    "{% if messages | length != 1 or messages[0]['role'] != 'user' %}"
    "{{ raise_exception('it takes one user message') }}{% endif %}"
)
EMPTY = (
    _ONE_PROMPT + "{{ '<|im_start|>user\n' + messages[0]['content'] + '<|im_end|>\n' }}{{ '<|im_start|>assistant\n' }}"
)
BASE = (
    _ONE_PROMPT
    + "{{ 'Below a user asks a question and an assistant solves it. The assistant reasons first and answers "
    "then, as <think> the reasoning </think> <answer> the answer </answer>, with the final result in \\\\boxed{}. "
    "User: ' + messages[0]['content'] + ' Assistant:' }}"
)
LONG_THOUGHT = (
    "Think about a question at length before you answer it: analyse it, try ways to solve it, check your steps and go "
    "back where one is wrong. Write this between <|begin_of_thought|> and <|end_of_thought|>, with an empty line "
    "between steps. Then write the solution, short and complete, between <|begin_of_solution|> and <|end_of_solution|>."
)


@dataclass(frozen=True)
class Form:
    """`source` None: the tokenizer's own template, which sees `variables`. `system` goes before a conversation that has
    no system message, `user_prefix` before every user message, `suffix` behind the whole."""

    variables: Mapping[str, Any] = field(default_factory=dict)
    source: str | None = None
    system: str | None = None
    user_prefix: str = ""
    suffix: str = ""

    @property
    def has_turns(self) -> bool:
        """False for what is made for one prompt and one answer."""
        return self.source in (None, CHATML) and self == Form(self.variables, self.source)

    @property
    def takes_one_prompt(self) -> bool:
        """True for what refuses more than one user message, or ends inside the answer."""
        return bool(self.suffix) or (self.source or "").startswith(_ONE_PROMPT)

    def adapted(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        found = [
            {**message, "content": f"{self.user_prefix}{message['content']}"} if message["role"] == "user" else message
            for message in messages
        ]
        if self.system is not None and found[0]["role"] != "system":
            found.insert(0, {"role": "system", "content": self.system})
        return found


FORMS: Mapping[str, Form] = {
    **dict.fromkeys(("native", "qwen2_5", "qwen2-vl", "qwen3_coder"), Form()),
    "qwen3": Form({"enable_thinking": True}),
    **dict.fromkeys(("native_nonthinking", "qwen3_nothink"), Form({"enable_thinking": False})),
    "chatml": Form(source=CHATML),
    "empty": Form(source=EMPTY),
    "base": Form(source=BASE),
    "longCOT_qwen2.5": Form(system=LONG_THOUGHT, user_prefix="Return your final response within \\boxed{}. "),
    "longcot_V3": Form(suffix="<think>\n"),
}
OWN_WORDS = ("base", "longCOT_qwen2.5")
"""Names of ROLL's whose prompt says here in other words what ROLL's says."""
