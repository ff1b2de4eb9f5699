"""The tasks: eight boxes with a digit in each, and the question what one of them holds. Nothing here is of roll."""

import random

LETTERS = "ABCDEFGH"


class Boxes:
    """Task number i is the same in every process."""

    def __len__(self) -> int:
        return 1 << 31

    def __getitem__(self, number: int) -> dict:
        chance = random.Random(f"boxes {number}")
        digits = {letter: str(chance.randrange(10)) for letter in LETTERS}
        return {"box": (box := chance.choice(LETTERS)), "question": f"box {box}?", "digits": digits}


def use(digits: dict, name: str, arguments: dict) -> str:
    """What a tool returns: `open` shows the digit, `peek` never shows anything."""
    return digits.get(str(arguments.get("box")), "?") if name == "open" else "?"
