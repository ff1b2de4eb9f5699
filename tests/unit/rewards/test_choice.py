"""multiple_choice, general_rule and crossthinkqa on answers written in many ways."""

from typing import Any

import pytest

from roll.configs.load.aliases import ROLL_REWARDS
from roll.rewards.base import RewardInput
from roll.rewards.choice import CrossThinkQA, MultipleChoice, choice_problem
from roll.rewards.config import RewardType
from roll.rewards.worker import RewardWorker
from tests.helpers.configs import config, problems

CITIES = ["Paris", "London", "Rome", "Berlin"]

RIGHT = [
    # after a concession
    ("Option A looks plausible, but B fits better.", "B"),
    ("Option A looks plausible, but option B is better.", "B"),
    ("While option A is tempting, (B) is correct.", "B"),
    ("Although (A) is close, (B) is exact.", "B"),
    ("One might think (A), but it is (B).", "B"),
    ("Option B looks plausible, and it fits all of the data.", "B"),
    ("Option B looks right.", "B"),
    ("Option B looks odd, but it is right.", "B"),
    ("Option B looks odd, but it fits.", "B"),
    ("Option B seems possible, but so does A. A has no river, so option B.", "B"),
    ("(A) and (C) are traps. (B) is right, but only just.", "B"),
    ("The answer is B (the key says A).", "B"),
    ("So (B). However, (A) looks tempting.", "B"),
    ("So (B), but (A) is close.", "B"),
    ("(A) is close, but not (C). However, (B) is correct.", "B"),
    # after a word and a mark, in any language
    ("Wait, no \u2014 B.", "B"),
    ("(A). Wait, no, (B).", "B"),
    ("(B) is correct. Actually, option A would be wrong because it is red.", "B"),
    ("I choose (B). Actually, (A) was close.", "B"),
    ("R\u00e9ponse : B", "B"),
    ("**Antwort:** B", "B"),
    ("\uc815\ub2f5: (B)", "B"),
    ("Actually, B.", "B"),
    ("It could be A, but actually B.", "B"),
    ("A? No. It must be B!", "B"),
    # of questions for what is not so
    ("(B) is not a mammal.", "B"),
    ("The answer is (B), which is not a mammal.", "B"),
    ("The answer is (B) is not a mammal.", "B"),
    ("The answer is B which is incorrect.", "B"),
    ("All are true except (B).", "B"),
    # what it is instead of what it is not
    ("The answer is not A but B.", "B"),
    ("The answer is not (A), it is (B).", "B"),
    ("The answer isn't A. It's B.", "B"),
    ("It is not (A) but rather (B), as the map shows.", "B"),
    ("(A) doesn't work, (C) fails and (D) is ruled out. So (B).", "B"),
    ("I discard option A, so option B.", "B"),
    # with words between
    ("The answer is therefore B.", "B"),
    ("The answer is thus (B).", "B"),
    ("The answer is, clearly, B.", "B"),
    ("The answer is indeed B", "B"),
    ("The answer is most likely B.", "B"),
    ("The answer must be B.", "B"),
    ("The answer to the question is B.", "B"),
    ("Ans: B", "B"),
    ("**Ans.:** (B)", "B"),
    ("\u6545\u9009B\u3002", "B"),
    ("\u6545\u9009\uff1aB", "B"),
    ("\u9009B", "B"),
    ("\u7b54\u6848\u5e94\u8be5\u662fB\u3002", "B"),
    ("\u6240\u4ee5\u9009B\uff0c\u56e0\u4e3a\u5b83\u5bf9\u3002", "B"),
    ("\u56e0\u6b64\uff0c\u6b63\u786e\u9009\u9879\u662fB\u3002", "B"),
    ("The one that is incorrect: option B.", "B"),
    ("The correct answer is B, not A.", "B"),
    # at the end, or below a heading
    ("A is incorrect, so B.", "B"),
    ("Let's go with B.", "B"),
    ("### Answer\nB", "B"),
    ("**Final Answer**\n\n(B) Paris", "B"),
    ("Answer: B - Paris", "B"),
    ("Answer: B; Paris", "B"),
    ('{"answer": "B", "explanation": "The option: \'A\' is wrong"}', "B"),
    # in a box
    (r"so \boxed{B}", "B"),
    (r"$\boxed{B}$.", "(B)"),
    (r"\boxed{(B)}", "B"),
    (r"\boxed{[B]}", "B"),
    (r"\boxed{ B }", "B"),
    (r"\boxed{b}", "B"),
    (r"\boxed{B.}", "B"),
    (r"\boxed{\text{B}}", "B"),
    (r"\boxed{\textbf{(B)}}", "B"),
    (r"\boxed{\mathrm{\text{B}}}", "B"),
    (r"\boxed{B. London}", "B"),
    (r"\boxed{B) London}", "B"),
    (r"\boxed{B: London}", "B"),
    (r"\boxed{B (London)}", "B"),
    (r"\boxed{\text{B. London}}", "B"),
    (r"\boxed{Option B}", "B"),
    (r"\boxed{Answer: B}", "B"),
    (r"\boxed{London}", "B"),
    (r"\boxed{the london}", "B"),
    (r"\boxed{A} no, \boxed{B}", "B"),
    (r"(A) is wrong, hence \boxed{B}", "B"),
    # in a tag
    ("<answer>B</answer>", "B"),
    ("<answer>\n(B)\n</answer>", "B"),
    ("<ANSWER>B</ANSWER>", "B"),
    ("<answer>A</answer> no: <answer>B</answer>", "B"),
    ("<answer>London</answer>", "B"),
    ("The answer is A? <answer>B</answer>", "B"),
    # said
    ("The answer is B.", "B"),
    (r"The answer is \(B\).", "B"),
    ("The answer is **B**: London", "B"),
    ("The answer is B", "B"),
    ("the answer is (B)", "B"),
    ("the answer is: **B**", "B"),
    ("So the answer is **(B) London**.", "B"),
    ("Answer: B", "B"),
    ("**Answer:** B", "B"),
    ("Final answer: B. London", "B"),
    ("The answer would be B!", "B"),
    ("The answer is B. A is wrong.", "B"),
    ("The answer is A. Wait, the answer is B.", "B"),
    ("The answer is\nB", "B"),
    ("The correct answer is B, because A is too small.", "B"),
    ("The correct answer is B since A is too small.", "B"),
    ("The correct option is B", "B"),
    ("The best choice is B.", "B"),
    ("the answer is option B", "B"),
    ("The answer is London.", "B"),
    ("\u7b54\u6848\u662fB", "B"),
    ("\u7b54\u6848\uff1aB\u3002", "B"),
    ("\u7b54\u6848\uff1a\uff08\uff22\uff09", "B"),  # full-width brackets and letter
    # all of it
    ("B", "B"),
    ("b", "B"),
    ("(B)", "B"),
    ("B.", "B"),
    ("B. London", "B"),
    ("**B**", "B"),
    ("London", "B"),
    ("London.", "B"),
    # the last choice that is written as one
    ("I think (A) is wrong, so (B)", "B"),
    ("A good question. I would take option B", "B"),
    ("Between choice A and choice B I prefer choice B", "B"),
    # after thinking
    ("<think>(A), surely</think>B", "B"),
    ("<think>\\boxed{A}</think>The answer is B.", "B"),
    # how the reference is written
    (r"\boxed{B}", "b"),
    (r"\boxed{B}", "B."),
    (r"\boxed{B}", "B. London"),
    (r"\boxed{B}", "(B) London"),
    (r"\boxed{London}", "B. London"),
    (r"\boxed{B}", "London"),
    (r"\boxed{B}", ["B"]),
    (r"\boxed{B}", ["A", "B"]),
    # several
    (r"\boxed{A, C}", "A,C"),
    (r"\boxed{C, A}", "AC"),
    (r"\boxed{A and C}", "A, C"),
    (r"\boxed{AC}", "A,C"),
    (r"\boxed{(A), (C)}", "AC"),
    (r"\boxed{A; C; D}", "ACD"),
    (r"\boxed{A} and \boxed{C}", "AC"),
    (r"\boxed{C}, $\boxed{A}$", "AC"),
    ("The answer is A as well as C.", "AC"),
    ("It is both (A) and (C).", "AC"),
    ("The answer is A and C.", "AC"),
    ("B is correct.", "B"),
    ("I would go with B.", "B"),
    ("I choose option B", "B"),
    ("After all of this I pick (B).", "B"),
    ("Not (A), since it is too far. Rather (B).", "B"),
    ("It is (B), not (A).", "B"),
    ('{"answer": "B"}', "B"),
    ('```json\n{"reasoning": "(A) is far", "answer": "B"}\n```', "B"),
    # texts
    (r"\boxed{Paris}", "Paris"),
    (r"\boxed{paris.}", "Paris"),
    (r"\boxed{New   York}", "new york"),
    ("The answer is the Great Wall.", "Great Wall"),
    ("The answer is 1,000.", "1000"),
    ("answer: 3.50", "3.5"),
    (r"\boxed{-5}", "-5"),
    (r"\boxed{yes}", "Yes"),
    ("Yes", "yes"),
    (r"\boxed{C++}", "C++"),
    ("\\boxed{caf\u00e9}", "Caf\u00e9"),
    (r"\boxed{Lisbon}", ["Lisboa", "Lisbon"]),
]
WRONG = [
    # conceded, before the answer goes on to another
    ("Option B looks plausible, but it ignores inflation.", "B"),
    ("Option B looks plausible, but A fits better.", "B"),
    ("Option B looks plausible, but the capital of France is Paris.", "B"),
    ("Option B seems right at first, but the text says Paris.", "B"),
    ("Option (B) is tempting. However, Paris is the capital.", "B"),
    ("Option (B) is tempting; however, (A) has the seat of government.", "B"),
    ("While option B is plausible, Paris is the correct one.", "B"),
    ("Although (B) sounds attractive, the passage is about France.", "B"),
    ("(B) may be considered, yet the evidence favours Paris.", "B"),
    ("At first glance (B) appears correct, but it is a trap.", "B"),
    ("(B) is close but not exact.", "B"),
    ("Option B is partially correct, but A is complete.", "B"),
    ("One might think (B), but it is Paris.", "B"),
    ("Many students pick option B.", "B"),
    ("Option B is a common mistake.", "B"),
    ("(B) is a distractor.", "B"),
    ("Option B is too narrow.", "B"),
    ("The answer is A (the key says B).", "B"),
    ("The answer is A, but the answer key says B.", "B"),
    (r"\boxed{A} (the reference answer is \boxed{B})", "B"),
    ("B? C?", "B"),
    ("The options are A, C, B", "B"),
    ("Wait, not B.", "B"),
    ("It is not actually B.", "B"),
    ("B | C", "B"),
    # one of several
    ("The answer is (B) or (C).", "B"),
    ("The answer is B) or C).", "B"),
    ("The answer is B. or C.", "B"),
    ("The answer is B - or C.", "B"),
    ("The answer is B: or C.", "B"),
    ("The answer is B and/or C.", "B"),
    ("The answer is B as well as D.", "B"),
    ("The answer is B plus D.", "B"),
    ("The answer is B (possibly C).", "B"),
    ("The answer is B, perhaps C.", "B"),
    ("It is (C) or (B).", "B"),
    ("It is option C and option B.", "B"),
    (r"\boxed{B (or C)}", "B"),
    (r"\boxed{B. Or C}", "B"),
    (r"\boxed{B) or C)}", "B"),
    (r"\boxed{C} or \boxed{B}", "B"),
    (r"\boxed{A} and \boxed{B}", "B"),
    (r"\boxed{A}, \boxed{B}", "B"),
    # denied
    ("(B) can't be right.", "B"),
    ("(B) doesn't work.", "B"),
    ("(B) does not fit.", "B"),
    ("Option B fails.", "B"),
    ("Option B is ruled out.", "B"),
    ("We can discard option B.", "B"),
    ("Ruling out option B is easy.", "B"),
    ("Option (B) is unlikely.", "B"),
    ("C is right. (B) is not.", "B"),
    ("The answer is not (A) or (B).", "B"),
    ("The answer is neither (A) nor (B).", "B"),
    ("The answer is not B but A.", "B"),
    ("The answer isn't B. It's A.", "B"),
    ("The answer is not (B), it is (A).", "B"),
    # with words between
    ("The answer is therefore not B.", "B"),
    ("The answer is clearly A or B.", "B"),
    ("The answer must be A.", "B"),
    ("Ans: A, B", "B"),
    ("\u4e0d\u9009B", "B"),
    ("\u6545\u9009B\u6216C\u3002", "B"),
    ("\u6545\u9009B\u548cC\u3002", "B"),
    ("\u9009B\u662f\u9519\u7684\u3002", "B"),
    ("(B) is not the right answer.", "B"),
    ("The answer is A; B", "B"),
    ("It is not B", "B"),
    ("The correct answer is A, not B.", "B"),
    (r"so \boxed{A}", "B"),
    (r"\boxed{C. Rome}", "B"),
    (r"\boxed{Paris}", "B"),
    (r"\boxed{B} no, \boxed{A}", "B"),
    (r"\boxed{B} no, \boxed{", "B"),
    (r"\boxed{}", "B"),
    (r"\boxed{K}", "B"),
    (r"\boxed{A or B}", "B"),
    (r"\boxed{A, B}", "B"),
    (r"\boxed{ABCD}", "B"),
    (r"\boxed{A, B, C, D}", "B"),
    (r"\boxed{not B}", "B"),
    (r"\boxed{BB}", "B"),
    (r"\boxed{I am sure it is B}", "B"),
    ("<answer>A</answer>", "B"),
    ("<answer>B</answer><answer>A</answer>", "B"),
    ("<answer></answer> B", "B"),
    ("The answer is A.", "B"),
    ("The answer is A. B is wrong.", "B"),
    ("The answer is A or B", "B"),
    ("The answer is not B", "B"),
    ("The answer is B or C, I cannot say", "B"),
    ("I think (B) is wrong, so (A)", "B"),
    ("It is not (B).", "B"),
    ("It cannot be (B).", "B"),
    ("It isn't (B)", "B"),
    ("Everything except (B)", "B"),
    ("I would rule out option B.", "B"),
    ("(B) is not right", "B"),
    ("(B) isn't it", "B"),
    ("B is incorrect.", "B"),
    ('{"answer": "A", "second": "B"}', "B"),
    ("A", "B"),
    ("A nice city is London", "B"),
    ("Because of the weather I would go there", "B"),
    ("", "B"),
    ("no idea", "B"),
    ("<think>B</think>A", "B"),
    ("<think>B</think>", "B"),
    ("<think>B", "B"),
    ("<think>The answer is B. ", "B"),
    (r"\boxed{A}", "A, C"),
    (r"\boxed{A, B, C}", "A, C"),
    (r"\boxed{C}", "AC"),
    (r"\boxed{C}", "C++"),
    (r"\boxed{5}", "-5"),
    (r"\boxed{Paris}", "Lisbon"),
    ("The answer is 3.5 m.", "3.5"),
    (r"\boxed{1000.5}", "1000"),
    (r"\boxed{nan}", "Lisbon"),
    (r"\boxed{Porto}", ["Lisboa", "Lisbon"]),
    ("\\text{" * 5000 + "B" + "}" * 5000, "B"),
    ("The answer" + " " * 100_000, "B"),
    ("(" * 100_000, "B"),
    ("A, " * 30_000, "B"),
]


def judged(text: str, truth: Any, **settings: Any) -> tuple[float, dict[str, float]]:
    result = MultipleChoice(**settings)(RewardInput("", text, truth, payload={"options": CITIES}))
    return result.score, dict(result.metrics)


@pytest.mark.parametrize(("text", "truth"), RIGHT)
def test_right_choices_score_1(text: str, truth: Any) -> None:
    score, metrics = judged(text, truth)
    assert score == 1 and metrics["success"] == 1 and metrics["answer_found"] == 1


@pytest.mark.parametrize(("text", "truth"), WRONG)
def test_wrong_choices_score_0(text: str, truth: Any) -> None:
    score, metrics = judged(text, truth)
    assert score == 0 and metrics["success"] == 0


NEGATIVE = "Which of the following statements is NOT true?\n(A) a (B) b (C) c (D) d"


@pytest.mark.parametrize(
    ("question", "text", "score"),
    [
        (NEGATIVE, "(B) is not true.", 1),
        (NEGATIVE, "(B) is not true, since c.", 1),
        (NEGATIVE, "Statement (B) is false.", 1),
        (NEGATIVE, "(B) isn't true.", 1),
        (NEGATIVE, "B is incorrect.", 1),
        (NEGATIVE, "The answer is (B), which is not true.", 1),
        (NEGATIVE, "The answer is (B) is not true.", 1),
        (NEGATIVE, r"\boxed{B}", 1),
        (NEGATIVE, "(B) is false. (A) is true and (C) is true.", 1),
        (NEGATIVE, "(A) is true. (C) is true. (D) is true. So it is (B).", 1),
        ("Which option is incorrect?", "(B) is incorrect.", 1),
        ("All of these are mammals EXCEPT", "(B) is not true.", 1),
        ("Select the statement that is false.", "(B) is wrong.", 1),
        (NEGATIVE, "(A) is true. (B) is not.", 1),
        ("Which of these can't be true?", "(B) can't be true.", 1),
        ("Which does not work?", "(B) doesn't work.", 1),
        (NEGATIVE, "Option B is ruled out.", 0),
        (NEGATIVE, "(B) is true.", 0),
        (NEGATIVE, "(A) is not true.", 0),
        (NEGATIVE, "(B) is not the answer.", 0),
        (NEGATIVE, "(B) isn't the right choice.", 0),
        (NEGATIVE, "It is not (B).", 0),
        (NEGATIVE, "(A) is not true and (B) is not true, so (A).", 0),
        ("Which of the following is true?", "(B) is not true.", 0),
        ("Which of the following is true?", "(B) is false.", 0),
        ("Which of the following is true? Do not explain.", "(B) is not true.", 0),
        ("", "(B) is not true.", 0),
    ],
)
def test_a_question_for_what_is_not_true_is_answered_by_what_is_not(question: str, text: str, score: float) -> None:
    assert MultipleChoice()(RewardInput("", text, "B", question=question)).score == score


@pytest.mark.parametrize(
    ("reward_type", "scores"),
    [
        ("hard", (1, 1, 0, 0)),
        ("soft", (1, 0.5, -0.5, -1)),
        ("loose", (1, 1, -1, -1)),
        ("strict", (1, -1, -1, -1)),
    ],
)
def test_a_reward_type_pays_for_the_box_as_in_roll(reward_type: RewardType, scores: tuple[float, ...]) -> None:
    texts = (r"\boxed{B}", "The answer is B.", r"\boxed{A}", "The answer is A.")
    assert tuple(judged(text, "B", reward_type=reward_type)[0] for text in texts) == scores
    assert tuple(CrossThinkQA(reward_type)(RewardInput("", text, "B")).score for text in texts) == scores


def test_crossthinkqa_is_soft_unless_told_otherwise() -> None:
    assert CrossThinkQA()(RewardInput("", "The answer is B.", "B")).score == 0.5


@pytest.mark.parametrize(("text", "score"), [(r"\boxed{B}", 1), ("The answer is B.", 0), ("<answer>B</answer>", 0)])
def test_a_box_may_be_demanded(text: str, score: float) -> None:
    assert judged(text, "B", require_boxed=True)[0] == score


def test_thinking_that_the_prompt_opened_and_nobody_closed_holds_no_answer() -> None:
    assert MultipleChoice()(RewardInput("<think>\n", "B", "B")).score == 0
    assert MultipleChoice()(RewardInput("<think>\n", "A</think>B", "B")).score == 1


@pytest.mark.parametrize(
    ("options", "text", "score"),
    [
        (["A. Paris", "B. London"], r"\boxed{London}", 1),
        (["A. Paris", "B. London"], r"\boxed{Paris}", 0),
        ({"A": "Paris", "B": "London"}, r"\boxed{London}", 1),
        ({"a": "Paris", "b": "London"}, r"\boxed{London}", 1),
        ({"A": "Paris", "B": "London"}, r"\boxed{Rome}", 0),
        (None, r"\boxed{London}", 0),
        ("Paris, London", r"\boxed{London}", 0),
        ([1, 2], r"\boxed{2.0}", 1),
    ],
)
def test_the_text_of_an_option_is_as_good_as_its_letter(options: Any, text: str, score: float) -> None:
    assert MultipleChoice()(RewardInput("", text, "B", payload={"options": options})).score == score


def test_letters_and_the_column_of_options_are_settings() -> None:
    reward = MultipleChoice(letters="PQ", options_column="texts")
    assert reward(RewardInput("", r"\boxed{Q}", "Q")).score == 1
    assert reward(RewardInput("", r"\boxed{two}", "Q", payload={"texts": ["one", "two"]})).score == 1
    assert reward(RewardInput("", r"\boxed{B}", "Q")).score == 0


@pytest.mark.parametrize("truth", [None, "", " ", [], [None]])
def test_a_row_without_a_reference_is_a_failure(truth: Any) -> None:
    with pytest.raises(ValueError, match="is empty|an empty (list|entry)"):
        judged("B", truth)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"reward_type": "kind"}, "reward_type: 'kind' must be one of hard, soft"),
        ({"letters": "AAB"}, "letters: 'AAB'"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MultipleChoice(**settings)


RULES = {"math_rule", "ifeval", "general_rule", "multiple_choice", "crossthinkqa", "detection"}


@pytest.mark.parametrize("path", [path for path, reward in ROLL_REWARDS.items() if reward in RULES])
def test_every_rule_of_roll_that_has_a_counterpart_loads_whatever_its_reward_type(path: str) -> None:
    changes = {"rewards.own": {"worker_cls": path, "reward_type": "soft", "tag_included": ["x"], "world_size": 8}}
    assert problems(changes) == []
    assert config(changes).rewards["own"].reward == ROLL_REWARDS[path]


def test_rolls_crossthinkqa_has_its_repetition_penalty_unless_parts_are_given() -> None:
    path = "roll.pipeline.rlvr.rewards.crossthinkqa_rule_reward_worker.CrossThinkQARuleRewardWorker"
    text = r"a b c a b c a b c \boxed{B}"
    roll_s = config({"rewards.own": {"worker_cls": path, "reward_type": "soft"}}).rewards["own"]
    (outcome,) = RewardWorker("own", roll_s).score([RewardInput("", text, "B")])
    assert outcome is not None and outcome.score == 1 - 0.5 * (1 - 4 / 8)
    bare = config({"rewards.own": {"worker_cls": path, "reward_manager_config": []}}).rewards["own"]
    (outcome,) = RewardWorker("own", bare).score([RewardInput("", text, "B")])
    assert outcome is not None and outcome.score == 1


def test_rolls_boxed_choice_wants_a_box() -> None:
    path = "roll.pipeline.rlvr.rewards.multiple_choice_boxed_rule_reward_worker.MultipleChoiceBoxedRuleRewardWorker"
    reward = RewardWorker("own", config({"rewards.own": {"worker_cls": path}}).rewards["own"])
    outcomes = reward.score([RewardInput("", text, "B") for text in (r"\boxed{B}", "The answer is B.")])
    assert [outcome and outcome.score for outcome in outcomes] == [1, 0]


def test_options_may_have_a_column_each_counted_or_by_their_labels() -> None:
    row = {"sol1": "a fork", "sol2": "a spoon", "ground_truth": 1}
    by_place, by_label = ["sol1", "sol2"], {"1": "sol1", "2": "sol2"}
    for column, right in ((by_place, "B"), (by_label, "A")):
        assert choice_problem(row) and choice_problem(row, column) is None
        reward = MultipleChoice(options_column=column)
        scores = {text: reward(RewardInput("", text, 1, payload=row)).score for text in ("A", "B", "a fork")}
        assert scores == {"A": float(right == "A"), "B": float(right == "B"), "a fork": float(right == "A")}
