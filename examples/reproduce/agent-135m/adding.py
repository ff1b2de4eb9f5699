"""An agent around OpenAI's SDK that may try a sum twice, and its tasks. Nothing here is of roll."""

import random
import re
from typing import Any

from openai import AsyncOpenAI

TRIES = 2


class Sums:
    """Task number i is the same in every process."""

    def __len__(self) -> int:
        return 1 << 31

    def __getitem__(self, number: int) -> dict:
        chance = random.Random(f"sum {number}")
        a, b = chance.randint(0, 9), chance.randint(0, 9)
        return {"question": f"What is {a} + {b}? Answer with the number alone.", "sum": a + b}


async def play(task, session):
    messages: list[Any] = [{"role": "user", "content": task["question"]}]
    tries, right = 0, False
    async with AsyncOpenAI(base_url=session.base_url, api_key=session.api_key) as client:
        while tries < TRIES and not right:
            reply = await client.chat.completions.create(model="policy", messages=messages)
            text = reply.choices[0].message.content or ""
            numbers = re.findall(r"-?\d+", text)
            right, tries = bool(numbers) and int(numbers[-1]) == task["sum"], tries + 1
            messages += [
                {"role": "assistant", "content": text},
                {"role": "user", "content": "That is wrong. Try again."},
            ]
    return {"reward": right / tries, "metrics": {"success": float(right), "tries": tries}}
