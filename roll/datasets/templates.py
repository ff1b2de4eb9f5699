"""How a conversation becomes the text that the model continues: the `template` key.

- `native`: the tokenizer's own chat template; ROLL's names for it and others of ROLL's are in the table below;
- `plain`: no template, the prompt as it is, with the special tokens the tokenizer itself puts around a text (such as
  BOS);
- anything else: the path of a Jinja chat template, which sees `messages`, `add_generation_prompt` and the tokenizer's
  special tokens.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from roll.configs.problems import did_you_mean
from roll.utils.files import expanded, path_info

# Templates by name, ROLL's among them: what each does with a conversation.

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
        adapted = [
            {**message, "content": self._prefixed(message["content"])} if message["role"] == "user" else message
            for message in messages
        ]
        if self.system is not None and adapted[0]["role"] != "system":
            adapted.insert(0, {"role": "system", "content": self.system})
        return adapted

    def _prefixed(self, content: Any) -> Any:
        """A text, or the parts of a turn that shows pictures, with the prefix."""
        if not isinstance(content, list):
            return f"{self.user_prefix}{content}"
        return [{"type": "text", "text": self.user_prefix}, *content] if self.user_prefix else content


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


PLAIN = "plain"
_WRITES_ONE = "{{ messages[0]['content'] }} is the first"
_PATH = re.compile(r".*/.*|.*\.(jinja2?|j2|txt|tmpl)", re.DOTALL)


def is_text(name: str) -> bool:
    """True for a template that is written out in the YAML."""
    return "{{" in name or "{%" in name


def template_name_problem(name: str, key: str) -> str | None:
    """Return the problem of a template's name, on any machine; None for known names, for paths and for templates that
    are written out."""
    if name in FORMS or name == PLAIN or is_text(name) or _PATH.fullmatch(name) or expanded(name).is_file():
        return None
    names = (PLAIN, *FORMS)
    return (
        f"{key}: {name!r} is not a template.{did_you_mean(name, names)} Known: {', '.join(names)}; or a Jinja file's "
        "path, or its text"
    )


def template_warning(name: str, key: str) -> str | None:
    if name in OWN_WORDS:
        return f"{key}: {name} has its own wording of ROLL's template; for ROLL's exact wording write a Jinja file."
    return None


def template_problem(name: str, key: str) -> str | None:
    """Return the problem of the template setting `name` at YAML path `key`, found without a tokenizer; None if there is
    none."""
    wrong = template_name_problem(name, key)
    if wrong is not None or name in FORMS or name == PLAIN:
        return wrong
    if is_text(name):
        return _source_problem(name, key, "line ")
    status = path_info(name)
    if not status.is_file:
        return f"{key}: {f'there is no Jinja file {name}' if status.kind == 'absent' else status.why}"
    try:
        return _source_problem(status.path.read_text(encoding="utf-8"), key, f"{name}:")
    except (OSError, UnicodeDecodeError) as error:
        return f"{key}: cannot read {name}: {error}"


def _source_problem(source: str, key: str, before_line: str) -> str | None:
    """Return the problem of a template's text: its syntax, or that it reads no messages, so that every prompt is the
    same."""
    from jinja2 import TemplateSyntaxError
    from jinja2.nodes import Name
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    try:
        tree = ImmutableSandboxedEnvironment(extensions=["jinja2.ext.loopcontrols"]).parse(source)
    except TemplateSyntaxError as error:
        # `generation` is a tag that only transformers knows; it is checked when the template is used
        return None if "generation" in str(error) else f"{key}: {before_line}{error.lineno}: {error.message}"
    if any(each.name == "messages" for each in tree.find_all(Name)):
        return None
    return f"{key}: the template does not read messages: all prompts are the same. Write them: {_WRITES_ONE}"


_SET_BY_ROWS = frozenset(
    {
        "messages", "conversation", "tools", "chat_template", "add_generation_prompt", "continue_final_message",
        "tokenize", "padding", "truncation", "max_length", "return_tensors", "return_dict", "tokenizer_kwargs",
    }
)  # fmt: skip
"""Arguments of apply_chat_template that are no variables of the template."""


def variables_problem(name: str, variables: Mapping[str, Any], key: str) -> str | None:
    """Return the problem of template_kwargs that the template does not read, or that rows set; None if there is
    none."""
    if taken := [name for name in variables if name in _SET_BY_ROWS]:
        return f"{key}: template_kwargs: {', '.join(taken)} is set for every row. Remove it"
    if not variables or (name != PLAIN and (name not in FORMS or FORMS[name].source is None)):
        return None
    return (
        f"{key}: {name} reads no template_kwargs ({', '.join(variables)}). Use native for the tokenizer's own "
        "template, or a Jinja file, or remove template_kwargs"
    )
