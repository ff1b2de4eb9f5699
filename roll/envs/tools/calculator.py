"""`calculator`: exact arithmetic."""

from roll.envs.tools.base import Tool, ToolError
from roll.utils.answers.calculations import CalculationProblem, evaluate


class CalculatorTool(Tool):
    name = "calculator"
    instruction = (
        "You can calculate: <calculator>(12 + 3) * 4</calculator> gives the value of whole numbers with + - * / and "
        "parentheses."
    )
    example = "(12 + 3) * 4"

    def run(self, call: str) -> str:
        try:
            value, _ = evaluate(call)
        except CalculationProblem as error:
            raise ToolError(f"not understood: {error}") from None
        return f"{call} = {value}"
