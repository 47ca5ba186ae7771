"""Reward terms beside the verdict, as pure functions: form, tool use, length, and their sum."""

from __future__ import annotations

from agent_rl.rewards.settings import FormatSettings, OverlongSettings, RewardSettings, ToolUseSettings
from agent_rl.types import Verdict, VerdictKind


def verdict_reward(verdict: Verdict, settings: RewardSettings) -> float:
    """Reward of the verdict alone; `undecided` is worth what a wrong answer is."""
    return settings.correct if verdict.kind is VerdictKind.CORRECT else settings.wrong


def format_reward(has_answer: bool, settings: FormatSettings) -> float:
    """Bonus for an answer that could be extracted, penalty where there is none."""
    return settings.answer_bonus if has_answer else -settings.missing_answer_penalty


def tool_use_reward(
    succeeded: int, failed: int, correct: bool, settings: ToolUseSettings, success_bonus: float | None = None
) -> float:
    """Bonus for calls that ran and penalty for calls that failed by the program's fault.

    Args:
        succeeded: calls that ran without error.
        failed: calls that failed by the program's own fault (not failures of the sandbox).
        correct: whether the answer was right.
        settings: sizes and bounds.
        success_bonus: overrides `settings.success_bonus`.
    """
    bonus = settings.success_bonus if success_bonus is None else success_bonus
    rewarded = min(succeeded, settings.max_rewarded_calls)
    if settings.only_if_correct and not correct:
        rewarded = 0
    return bonus * rewarded - settings.failure_penalty * min(failed, settings.max_rewarded_calls)


def overlong_penalty(tokens: int, settings: OverlongSettings) -> float:
    """Soft overlong punishment of DAPO (Yu et al. 2025, eq. 13), at most 0.

    0 up to `max_tokens - buffer_tokens`, then linear down to `-penalty` at `max_tokens`, and flat from there.
    """
    if not settings.enabled:
        return 0.0
    over = tokens - (settings.max_tokens - settings.buffer_tokens)
    return -settings.penalty * min(max(over / settings.buffer_tokens, 0.0), 1.0)


def reward_parts(
    verdict: Verdict,
    settings: RewardSettings,
    *,
    tokens: int,
    calls_succeeded: int = 0,
    calls_failed: int = 0,
) -> dict[str, float]:
    """Every term of the reward by name; their sum is the reward.

    Args:
        verdict: what the verifier said (`verdict.answer` None: there was no answer).
        settings: what each term is worth.
        tokens: length of the response in tokens, the count that `overlong` bounds.
        calls_succeeded: tool calls that ran.
        calls_failed: tool calls that failed by the program's own fault.
    """
    correct = verdict.kind is VerdictKind.CORRECT
    return {
        "verdict": verdict_reward(verdict, settings),
        "format": format_reward(verdict.answer is not None, settings.format),
        "tool_use": tool_use_reward(calls_succeeded, calls_failed, correct, settings.tool_use, settings.success_bonus),
        "overlong": overlong_penalty(tokens, settings.overlong),
    }
