"""Small chat templates, each with a trait that families of models differ in, and tokenizers that have their marks."""

import json
from dataclasses import dataclass
from pathlib import Path

from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

from roll.models.tiny import build_tokenizer

_TOOLS = "{% for tool in tools or [] %}[{{ tool | tojson }}]{% endfor %}"
_CALLS = (
    "{% for call in m.tool_calls or [] %}<call>{{ call.function.name }} {{ call.function.arguments | tojson }}</call>"
    "{% endfor %}"
)
_LAST_USER = (
    "{% set ns = namespace(u=-1) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.u = loop.index0 %}"
)
_LAST_USER += "{% endif %}{% endfor %}"
_START = "{{ '<|im_start|>' ~ m.role ~ '\n' }}"
_END = "{{ '<|im_end|>\n' }}"
_ASKS = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"


@dataclass(frozen=True)
class Trait:
    """`eos`: the tokenizer's; `ends`: those of generation_config.json; `marks`: further special tokens; `lead`: what an
    answer begins with when it is sampled."""

    like: str
    template: str
    eos: str = "<|im_end|>"
    ends: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    lead: str = ""
    bos: str | None = None


TRAITS = {
    "keeps every turn": Trait(
        "Qwen2.5, Qwen3-2507",
        _TOOLS
        + "{% for m in messages %}"
        + _START
        + "{{ m.content or '' }}"
        + _CALLS
        + _END
        + "{% endfor %}"
        + _ASKS
        + "{% endif %}",
    ),
    "drops earlier reasoning": Trait(
        "Qwen3, Qwen3.5, Qwen3.6",
        _TOOLS
        + _LAST_USER
        + "{% for m in messages %}"
        + _START
        + "{% if m.role == 'assistant' and loop.index0 > ns.u and (loop.last or m.reasoning_content) %}"
        "{{ '<think>\n' ~ (m.reasoning_content or '') ~ '\n</think>\n\n' }}{% endif %}{{ m.content or '' }}"
        + _CALLS
        + _END
        + "{% endfor %}"
        + _ASKS
        + "{% if enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}",
    ),
    "opens the thinking, can be asked without": Trait(
        "Nemotron-3",
        _TOOLS
        + _LAST_USER
        + "{% for m in messages %}"
        + _START
        + "{% if m.role == 'assistant' %}{% if m.reasoning_content and loop.index0 > ns.u %}"
        "{{ '<think>\n' ~ m.reasoning_content ~ '\n</think>\n' }}{% else %}<think></think>{% endif %}{% endif %}"
        "{{ (m.content or '') | trim }}"
        + _CALLS
        + _END
        + "{% endfor %}"
        + _ASKS
        + "{% if enable_thinking is false %}<think></think>{% else %}{{ '<think>\n' }}{% endif %}{% endif %}",
    ),
    "opens the thinking, writes none": Trait(
        "DeepSeek-V3, DeepSeek-R1 distills",
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}<|User|>{{ m.content }}"
        "{% elif m.role == 'assistant' %}<|Assistant|>{{ m.content.split('</think>')[-1] }}{{ eos_token }}"
        "{% else %}{{ m.content }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|Assistant|><think>\n' }}{% endif %}",
        eos="<|sentence_end|>",
        marks=("<|User|>", "<|Assistant|>", "<|sentence_begin|>"),
        bos="<|sentence_begin|>",
    ),
    "thinks when it is asked to": Trait(
        "DeepSeek-V3.1",
        "{{ bos_token }}" + _TOOLS + "{% for m in messages %}{% if m.role == 'user' %}<|User|>{{ m.content }}"
        "{% elif m.role == 'assistant' %}<|Assistant|></think>{{ (m.content or '').split('</think>')[-1] }}"
        "{% for call in m.tool_calls or [] %}{{ '<call>' + call.function.name + ' ' + call.function.arguments }}"
        "{% endfor %}{{ eos_token }}{% else %}{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}"
        "<|Assistant|>{% if thinking %}<think>{% else %}</think>{% endif %}{% endif %}",
        eos="<|sentence_end|>",
        marks=("<|User|>", "<|Assistant|>", "<|sentence_begin|>"),
        bos="<|sentence_begin|>",
    ),
    "channels, one call": Trait(
        "gpt-oss",
        _TOOLS + "{% for m in messages %}{% if m.role == 'assistant' %}{% if m.tool_calls %}"
        "{% set answered = messages[loop.index:] | selectattr('role', 'equalto', 'assistant') | list %}"
        "{% if m.thinking and not answered %}<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>"
        "{% endif %}<|start|>assistant to={{ m.tool_calls[0].function.name }}<|message|>"
        "{{ m.tool_calls[0].function.arguments | tojson }}<|call|>{% else %}"
        "{% if m.thinking and loop.last and not add_generation_prompt %}<|start|>assistant<|channel|>analysis"
        "<|message|>{{ m.thinking }}<|end|>{% endif %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}"
        "{% if loop.last and not add_generation_prompt %}<|return|>{% else %}<|end|>{% endif %}{% endif %}"
        "{% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|start|>assistant{% endif %}",
        eos="<|return|>",
        ends=("<|return|>", "<|call|>"),
        marks=("<|start|>", "<|end|>", "<|channel|>", "<|message|>"),
        lead="<|channel|>final<|message|>",
    ),
    "ends with the next role's mark": Trait(
        "GLM-4.5, GLM-4.6",
        _TOOLS + _LAST_USER + "{% for m in messages %}{% if m.role == 'assistant' %}<|assistant|>{{ '\n<think>' }}"
        "{% if loop.index0 > ns.u %}{{ m.reasoning_content }}{% endif %}{{ '</think>\n' ~ (m.content or '') }}"
        + _CALLS
        + "{% else %}{{ '<|' ~ ('observation' if m.role == 'tool' else m.role) ~ '|>\n' ~ m.content }}{% endif %}"
        "{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}",
        eos="<|endoftext|>",
        ends=("<|endoftext|>", "<|user|>", "<|observation|>"),
        marks=("<|assistant|>", "<|system|>"),
    ),
    "ends the whole with eos": Trait(
        "Phi-3, Phi-3.5",
        "{% for m in messages if m.role != 'tool' %}{{ '<|' ~ m.role ~ '|>\n' ~ m.content ~ '<|end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}",
        eos="<|endoftext|>",
        ends=("<|endoftext|>", "<|end|>"),
        marks=("<|user|>", "<|assistant|>", "<|system|>"),
    ),
    "two marks end a turn": Trait(
        "Cohere Command",
        _TOOLS
        + "{% for m in messages %}<|turn|>{{ m.role }}<|start|>{{ m.content or '' }}"
        + _CALLS
        + "<|stop|><|turn_end|>"
        "{% endfor %}{% if add_generation_prompt %}<|turn|>assistant<|start|>{% endif %}",
        eos="<|turn_end|>",
        marks=("<|turn|>", "<|start|>", "<|stop|>"),
    ),
    "alternates, ends turns with another mark than eos": Trait(
        "Gemma-2, Gemma-3",
        "{{ bos_token }}{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('roles must alternate user/assistant') }}{% endif %}"
        "{{ '<|turn|>' ~ m.role ~ '\n' ~ m.content | trim ~ '<|turn_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|turn|>assistant\n' }}{% endif %}",
        eos="<|eos|>",
        ends=("<|eos|>", "<|turn_end|>"),
        marks=("<|turn|>", "<|bos|>"),
        bos="<|bos|>",
    ),
    "a call instead of the content": Trait(
        "Llama-3.1, Llama-3.2",
        _TOOLS + "{% for m in messages %}{{ '<|im_start|>' ~ m.role ~ '\n\n' }}{% if m.tool_calls %}"
        "{% if m.tool_calls | length != 1 %}{{ raise_exception('a single call at once') }}{% endif %}"
        "{{ m.tool_calls[0].function | tojson }}{% else %}{{ m.content | trim }}{% endif %}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n\n' }}{% endif %}",
    ),
    "system and tools beside the last question, nothing opens answers": Trait(
        "Mistral-7B-v0.3",
        "{{ bos_token }}{% set said = messages %}{% if messages[0].role == 'system' %}{% set said = messages[1:] %}"
        "{% endif %}"
        "{% for m in said %}{% if m.role == 'user' %}{% if loop.last %}" + _TOOLS + "{% endif %}[INST]"
        "{% if loop.last and messages[0].role == 'system' %}{{ messages[0].content ~ '\n\n' }}{% endif %}"
        "{{ m.content }}[/INST]{% elif m.role == 'tool' %}[RESULT]{{ m.content }}[/RESULT]{% else %}"
        "{{ ' ' ~ (m.content or '') }}" + _CALLS + "{{ eos_token }}{% endif %}{% endfor %}",
        eos="<|eos|>",
        marks=("<|bos|>", "[INST]", "[/INST]"),
        bos="<|bos|>",
    ),
    "ends with a mark at which no engine stops": Trait(
        "base models with a chat template, such as Qwen2.5",
        "{% for m in messages %}" + _START + "{{ m.content }}" + _END + "{% endfor %}" + _ASKS + "{% endif %}",
        eos="<|endoftext|>",
    ),
}


def tokenizer_of(trait: Trait, folder: Path) -> PreTrainedTokenizerFast:
    """A byte-level one with the trait's template and marks, as if loaded from `folder`, whose files say what ends."""
    raw = build_tokenizer().backend_tokenizer
    marks = {trait.eos, *trait.ends, *trait.marks, "<|endoftext|>"}
    raw.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in sorted(marks)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, eos_token=trait.eos, bos_token=trait.bos, chat_template=trait.template
    )
    folder.mkdir(parents=True, exist_ok=True)
    ends = [tokenizer.convert_tokens_to_ids(mark) for mark in trait.ends or (trait.eos,)]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    tokenizer.name_or_path = str(folder)
    return tokenizer
