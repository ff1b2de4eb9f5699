"""An agent around OpenAI's SDK with a calculator, and its tasks. Nothing here is of roll."""

import json
import operator
import random
import re
from typing import Any

from openai import AsyncOpenAI

OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
SCHEMA = {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}
CALCULATOR: Any = {
    "type": "function",
    "function": {"name": "calculate", "description": "Calculates an expression.", "parameters": SCHEMA},
}
STORIES = {
    "Ann has {a} coins and finds {b} more. How many coins does she have?": "+",
    "A school has {a} girls and {b} boys. How many children is that?": "+",
    "Ben drove {a} miles and then {b} miles. How far did he drive?": "+",
    "Kim had {a} stamps before Lee gave her {b}. How many stamps has she now?": "+",
    "A town of {a} people grew by {b}. How many people live there now?": "+",
    "There were {a} birds and {b} flew away. How many birds are left?": "-",
    "A shop had {a} pens and sold {b}. How many pens are left?": "-",
    "Eve has {a} dollars and spends {b}. How many dollars are left?": "-",
    "A box holds {a} nails. How many nails are in {b} boxes?": "*",
    "Each of {a} trucks carries {b} bags. How many bags is that?": "*",
    "A book costs {a} cents. How many cents do {b} books cost?": "*",
}


class Stories:
    """Task number i is the same in every process."""

    def __len__(self) -> int:
        return 1 << 31

    def __getitem__(self, number: int) -> dict:
        chance = random.Random(f"story {number}")
        story = chance.choice(list(STORIES))
        a, b = chance.randint(500, 999), chance.randint(100, 499)
        return {"question": story.format(a=a, b=b), "number": OPERATORS[STORIES[story]](a, b)}


def calculate(arguments: str) -> str:
    """The value of a call's expression, or what is wrong with it."""
    said = json.loads(arguments)
    found = re.fullmatch(r"\s*(\d+)\s*([-+*])\s*(\d+)\s*", str(said.get("expression")))
    return str(OPERATORS[found[2]](int(found[1]), int(found[3]))) if found else "Error: write one like 12 + 34"


async def play(task, session):
    messages: list[Any] = [{"role": "user", "content": task["question"]}]
    async with AsyncOpenAI(base_url=session.base_url, api_key=session.api_key) as client:
        calls, answer = 0, ""
        for _ in range(2):
            reply = await client.chat.completions.create(model="policy", messages=messages, tools=[CALCULATOR])
            message = reply.choices[0].message
            messages.append(message)
            answer = message.content or ""
            if not message.tool_calls:
                break
            calls += 1
            for call in message.tool_calls:
                result = calculate(call.model_dump()["function"]["arguments"])
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    numbers = re.findall(r"-?\d+", answer)
    right = float(bool(numbers) and int(numbers[-1]) == task["number"])
    return {"reward": right, "metrics": {"success": right, "calls": calls}}
