"""Groups of experience for tests."""

from __future__ import annotations

import numpy as np

from roll.features.experience.rows import Experience
from roll.types.rollout import Task, Trajectory, TrajectoryGroup
from roll.types.texts import Turn

NAN = float("nan")


def row(number: int, index: int, version: int, reward: float = 0.5, turns: bool = False) -> Trajectory:
    """Two tokens of a prompt and three of an answer, the last of a version later; numbers that no text would keep."""
    mask = np.array([False, False, True, True, True])
    return Trajectory(
        input_ids=np.array([1, 2, number % 1000, index, 9], np.int32),
        response_mask=mask,
        log_probs=np.where(mask, np.float32(-1 / 3) * np.float32(index + 1), 0).astype(np.float32),
        policy_versions=np.array([-1, -1, version, version, version + 1], np.int32),
        reward=reward,
        finish_reason="failed" if np.isnan(reward) else "stop",
        index=index,
        failure="it broke" if np.isnan(reward) else None,
        response_text=f"answer {number} ü \ud83d" if turns else f"answer {number} ü",
        metrics={"success": 1.0},
        extra={"said": "so"},
        token_rewards=np.array([0, 0, 0.1, 0.2, 0.3], np.float32) if turns else None,
        turn_rewards=np.array([0.25], np.float32) if turns else None,
        turns=(Turn("seen", "said", None, 0.25, {"n": 1.0}),) if turns else (),
    )


def experience(
    number: int, step: int = 0, version: int = 0, is_kept: bool = True, size: int = 2, surplus: tuple = ((7, True),)
) -> Experience:
    prompt = np.array([1, 2], np.int32)
    payload = {"ground_truth": "4", "difficulty": 0.25}
    messages = ({"role": "user", "content": "what?"},)
    task = Task(f"row {number}", "math", prompt, "ask", payload, messages=messages, question="what?")
    rows = tuple(row(number, index, version, NAN if index == size - 1 else 0.5, index == 0) for index in range(size))
    return Experience(step, TrajectoryGroup(task, number, rows, surplus, 0.1 + 0.2), is_kept)


def told(one: Experience) -> object:
    """All of it, for comparisons."""
    group = one.group
    rows = [
        {
            name: value.tolist() if isinstance(value, np.ndarray) else repr(value)
            for name, value in (vars(row) | vars(row.here)).items()
            if name not in ("facts", "response_text", "content")
        }
        | {"response_text": row.response_text.encode("utf-8", "replace")}
        for row in group.trajectories
    ]
    names = ("task_id", "domain", "prompt_text", "payload", "messages", "question")
    task = {name: getattr(group.task, name) for name in names}
    of_group = (one.number, group.surplus, group.greedy_reward)
    return one.step, one.is_kept, of_group, task, group.task.prompt_ids.tolist(), rows
