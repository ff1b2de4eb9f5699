"""The same agent around Anthropic's SDK. Nothing here is of roll."""

from typing import Any

from anthropic import AsyncAnthropic
from boxes import use

BOX = {"type": "object", "properties": {"box": {"type": "string"}}, "required": ["box"]}
TOOLS: list[Any] = [
    {"name": name, "description": text, "input_schema": BOX}
    for name, text in {"open": "Opens a box.", "peek": "Looks at a box."}.items()
]


async def play(task, session):
    opened, answer = 0, ""
    messages: list[Any] = [{"role": "user", "content": task["question"]}]
    async with AsyncAnthropic() as client:
        for _ in range(3):
            reply = await client.messages.create(model="policy", messages=messages, tools=TOOLS, max_tokens=64)
            messages.append({"role": "assistant", "content": reply.content})
            answer = "".join(block.text for block in reply.content if block.type == "text")
            calls = [block for block in reply.content if block.type == "tool_use"]
            if not calls:
                break
            results = []
            for call in calls:
                opened += call.name == "open"
                result = use(task["digits"], call.name, call.input)
                results.append({"type": "tool_result", "tool_use_id": call.id, "content": result})
            messages.append({"role": "user", "content": results})
    success = float(answer.strip() == task["digits"][task["box"]])
    return {"reward": success, "metrics": {"success": success, "opened": opened}}
