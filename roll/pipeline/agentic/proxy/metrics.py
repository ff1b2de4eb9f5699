"""Metrics of sessions: how often programs kept to the sampled tokens."""

from collections.abc import Mapping, Sequence

from roll.pipeline.agentic.proxy.transcript.causes import CAUSES
from roll.pipeline.agentic.proxy.transcript.transcript import Transcript
from roll.types.rollout import TrajectoryGroup

CONTINUED, BROKEN, REQUESTS, ROWS = "continued_requests", "broken_requests", "requests", "rows"
TOOL_CALLS, TOOL_ERRORS, SERVER_DEATHS, SEQUENCE_CUT = "tool_calls", "tool_errors", "server_deaths", "sequence_cut"
_OF_TOOLS = (TOOL_CALLS, TOOL_ERRORS, SERVER_DEATHS, SEQUENCE_CUT)
_COUNTED = (CONTINUED, BROKEN, "retried_requests", "refused_requests", "malformed_calls")


def session_metrics(
    transcript: Transcript, num_rows: int, num_answers: int, of_program: Mapping[str, float]
) -> dict[str, float]:
    """Counts of one session, and what its program reported under names that are not of these counts."""
    counts = transcript.counts
    measured = {
        "num_turns": num_answers,
        REQUESTS: counts["requests"],
        ROWS: num_rows,
        CONTINUED: counts["continued"],
        BROKEN: counts["broken"],
        "retried_requests": counts["retries"],
        "refused_requests": counts["refused"],
        "malformed_calls": counts["malformed_calls"],
    }
    if TOOL_CALLS in counts:  # the episode itself called the tools
        measured |= {name: counts[name] for name in _OF_TOOLS}
    causes = {name: counts[name] for cause in CAUSES if (name := f"broken_{cause}")}
    reported = {name: value for name, value in of_program.items() if name not in causes}
    counted = {name: value for name, value in causes.items() if value}
    return {name: float(value) for name, value in (reported | measured | counted).items()}


def agentic_metrics(groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
    """Shares over all sessions of a step; nothing where no program was played."""
    sessions = [attempt.metrics for group in groups for attempt in group.attempts if REQUESTS in attempt.metrics]
    if not sessions:
        return {}
    sums = {name: sum(session.get(name, 0.0) for session in sessions) for name in (*_COUNTED, REQUESTS, ROWS)}
    built = max(sums[CONTINUED] + sums[BROKEN], 1.0)
    requests = max(sums[REQUESTS], 1.0)
    metrics = {
        "agentic/prefix_broken_fraction": sums[BROKEN] / built,
        "agentic/rows_per_session_mean": sums[ROWS] / len(sessions),
        "agentic/requests_per_session_mean": sums[REQUESTS] / len(sessions),
        "agentic/retries_fraction": sums["retried_requests"] / requests,
        "agentic/refused_fraction": sums["refused_requests"] / (requests + sums["refused_requests"]),
        "agentic/malformed_call_fraction": sums["malformed_calls"] / requests,
    }
    if calls := sum(session.get(TOOL_CALLS, 0.0) for session in sessions):
        metrics["agentic/tool_error_fraction"] = sum(session.get(TOOL_ERRORS, 0.0) for session in sessions) / calls
    for cause in CAUSES:
        if count := sum(session.get(f"broken_{cause}", 0.0) for session in sessions):
            metrics[f"agentic/broken_{cause}_fraction"] = count / built
    return metrics
