"""Between the turns of an agent: a turn ends once, and the policy sees the dialogue that its template writes."""

from pathlib import Path

import numpy as np
import pytest

from roll.pipeline.agentic.sample_forms import ChatEncoder
from tests.helpers.cases import cases
from tests.helpers.chat_traits import TRAITS, Trait, tokenizer_of

ENDING = [(name, end) for name, trait in TRAITS.items() for end in (trait.ends or (trait.eos,))]
OPENING = "opens the thinking|thinks when|drops earlier"


def context(trait: Trait, folder: Path, end: str, answer: str = "yo") -> tuple[str, str]:
    """What the policy is asked secondly, behind the first prompt, if it ended its answer so; and what the template
    writes there of that dialogue."""
    tokenizer = tokenizer_of(trait, folder)
    encoder = ChatEncoder(tokenizer)
    sampled = np.array(tokenizer.encode(f"{trait.lead}{answer}{end}", add_special_tokens=False), np.int32)
    ids = [*sampled.tolist(), *encoder.follow_up(sampled, "go").tolist()]
    talk = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": answer},
        {"role": "user", "content": "go"},
    ]
    whole = str(tokenizer.apply_chat_template(talk, add_generation_prompt=True, tokenize=False))
    return str(tokenizer.decode(ids)), trait.lead + whole[whole.index(answer) :]


@pytest.mark.parametrize(("name", "end"), ENDING)
def test_the_context_of_an_agent_is_the_templates_dialogue_up_to_the_policys_own_end(
    name: str, end: str, tmp_path: Path
) -> None:
    """What was sampled stays. Behind it stands what the template writes behind its own end of the turn; where the
    next role's mark is that end, it is not written twice."""
    trait = TRAITS[name]
    seen, written = context(trait, tmp_path, end)
    begun = f"{trait.lead}yo"
    assert seen.startswith(begun + end) and written.startswith(begun)
    behind, dialogue = seen.removeprefix(begun + end), written.removeprefix(begun)
    assert dialogue.endswith(behind)
    closing = dialogue.removesuffix(behind)
    own = {
        "<|stop|><|turn_end|>",
        "<|im_end|>",
        "<|end|>",
        "<|turn_end|>",
        "<|sentence_end|>",
        "<|user|>",
        "<|eos|>",
        "",
    }
    assert closing in own and (closing or name == "ends with the next role's mark")


@pytest.mark.parametrize("name", TRAITS)
def test_an_answer_that_was_cut_gets_the_end_of_the_template(name: str, tmp_path: Path) -> None:
    seen, written = context(TRAITS[name], tmp_path, "")
    assert seen == written


@cases("name, sampled, expected")
def test_a_turn_ends_once_whatever_the_policy_ends_it_with(
    name: str, sampled: str, expected: str, tmp_path: Path
) -> None:
    seen, _ = context(TRAITS[name], tmp_path, sampled)
    assert seen.startswith(f"{TRAITS[name].lead}yo{expected}")
