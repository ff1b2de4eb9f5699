"""An agent around OpenAI's SDK: it calls tools until the model answers in words. Nothing here is of roll."""

import json
from typing import Any

from boxes import use
from openai import AsyncOpenAI

BOX = {"type": "object", "properties": {"box": {"type": "string"}}, "required": ["box"]}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": name, "description": text, "parameters": BOX}}
    for name, text in {"open": "Opens a box.", "peek": "Looks at a box."}.items()
]


async def play(task, session):
    opened, answer = 0, ""
    messages: list[Any] = [{"role": "user", "content": task["question"]}]
    async with AsyncOpenAI(base_url=session.base_url, api_key=session.api_key) as client:
        for _ in range(3):
            reply = await client.chat.completions.create(model="policy", messages=messages, tools=TOOLS)
            message = reply.choices[0].message
            answer = message.content or ""
            messages.append(message)
            if not message.tool_calls:
                break
            for call in message.tool_calls:
                asked = call.model_dump()["function"]
                opened += asked["name"] == "open"
                result = use(task["digits"], asked["name"], json.loads(asked["arguments"]))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    success = float(answer.strip() == task["digits"][task["box"]])
    return {"reward": success, "metrics": {"success": success, "opened": opened}}
