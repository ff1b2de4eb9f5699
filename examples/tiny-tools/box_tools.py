"""The boxes as a class whose public methods are tools, and the reward of an episode. Nothing here is of roll."""

from boxes import use


class BoxTools:
    """One object plays one episode."""

    def reset(self, digits):
        self.digits = digits

    def open(self, box: str) -> str:
        """Opens a box.

        Args:
            box: The letter of the box.
        """
        return use(self.digits, "open", {"box": box})

    def peek(self, box: str) -> str:
        """Looks at a box.

        Args:
            box: The letter of the box.
        """
        return use(self.digits, "peek", {"box": box})


def reward(task, messages):
    """1 if the last answer is the digit in the box; `opened` counts the boxes that were opened."""
    calls = [call["function"]["name"] for message in messages for call in message.get("tool_calls", ())]
    success = float(messages[-1]["content"].strip() == task["digits"][task["box"]])
    return {"reward": success, "metrics": {"success": success, "opened": calls.count("open")}}
