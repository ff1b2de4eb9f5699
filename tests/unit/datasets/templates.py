"""Chat templates as families write them, in small."""

CALLS = (
    "{% for tool in tools or [] %}[{{ tool | tojson }}]{% endfor %}{% for m in messages %}{{ m.role }}:{{ m.content }}"
    "{% for call in m.tool_calls or [] %}<{{ call.function.name }} {{ call.function.arguments | tojson }}>{% endfor %}"
    "{{ '<|im_end|>' if m.role == 'assistant' else ';' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
"""Most: arguments are a mapping, written as JSON."""
_TEXT = "{{ '<' + call['function']['name'] + ' ' + call['function']['arguments'] + '>' }}"
TEXT_ARGUMENTS = CALLS.replace("<{{ call.function.name }} {{ call.function.arguments | tojson }}>", _TEXT)
"""DeepSeek-V3: arguments are added to a text."""
PLAIN_ARGUMENTS = CALLS.replace("{{ call.function.arguments | tojson }}", "{{ call.function.arguments }}")
"""Arguments are written as they are, which of a mapping is Python."""
NONE_CONTENT = (
    "{% for m in messages %}{% if m.role == 'assistant' and m.content is none %}assistant:"
    "{% for call in m.tool_calls %}" + _TEXT + "{% endfor %}<|im_end|>{% else %}{{ m.role + ':' + m.content }}"
    "{{ '<|im_end|>' if m.role == 'assistant' else ';' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)
"""DeepSeek-R1: only a message without content calls."""
ITEMS = CALLS.replace(
    "{{ call.function.arguments | tojson }}",
    "{% for key, value in call.function.arguments.items() %}{{ key }}={{ value }} {% endfor %}",
)
"""Qwen3-Coder: the mapping is gone through."""
