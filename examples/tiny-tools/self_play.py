"""Two sides of one policy play against each other: who takes the last of ten stones wins. No import of roll.

custom_envs:
  Stones: {env_manager_cls: proxy, agent: self_play:play, sides: [white, black], max_steps: 24}
"""

import re

import openai

STONES, MOST = 10, 3
RULES = "There are {left} stones. Take 1 to {most}; who takes the last one wins. Answer with a number."


def taken(said: str | None, left: int) -> int:
    """How many stones an answer takes; 0 if it is no move."""
    number = re.fullmatch(r"\s*(\d)\s*", said or "")
    stones = int(number[1]) if number else 0
    return stones if 1 <= stones <= min(MOST, left) else 0


def play(task: dict, session: object) -> dict[str, float]:
    client = openai.OpenAI()
    sides = ("white", "black")
    talks: dict[str, list] = {side: [] for side in sides}
    left, turn = STONES, 0
    while True:
        side, other = sides[turn % 2], sides[(turn + 1) % 2]
        before = f"The other side took stones. {left} are left." if talks[side] else RULES.format(left=left, most=MOST)
        talks[side].append({"role": "user", "content": before})
        reply = client.chat.completions.create(model=side, messages=talks[side])
        talks[side].append(reply.choices[0].message.model_dump(exclude_none=True))
        stones = taken(reply.choices[0].message.content, left)
        left, turn = left - stones, turn + 1
        if not stones:  # no move loses
            return {side: 0.0, other: 1.0}
        if not left:
            return {side: 1.0, other: 0.0}
