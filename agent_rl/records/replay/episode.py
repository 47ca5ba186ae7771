"""Tokens, answers, verdicts, rewards and advantages, made again from what was recorded before them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agent_rl.algorithms.choices import Recipe
from agent_rl.records.replay.stages import Stage
from agent_rl.records.schema import Record
from agent_rl.rewards.settings import RewardSettings
from agent_rl.rewards.shaping import reward_parts
from agent_rl.rewards.verifier import Verifier
from agent_rl.rollout.answers import ExtractionRules
from agent_rl.tir.fence import parse_turn
from agent_rl.tir.formats import PromptFormat
from agent_rl.tir.observation import observation_text
from agent_rl.tir.settings import TirSettings
from agent_rl.training.batch import assign_advantages
from agent_rl.training.recording import filters
from agent_rl.types import Group, Origin, Segment, StopReason, Trajectory


def replay_tokens(records: Iterable[Record], form: PromptFormat, tir: TirSettings) -> Stage:
    """Prompt and observations from question and tool outcomes; sampled ids are taken as they are."""
    stage = Stage("tokens")
    for record in records:
        if not record.segments or record.trajectory().failed:
            continue
        rebuilt = rebuild(record.trajectory(), form, tir)
        recorded = [(s.origin.value, s.ids) for s in record.segments]
        replayed = [(s.origin.value, s.ids) for s in rebuilt]
        at = next((n for n, (a, b) in enumerate(zip(recorded, replayed, strict=False)) if a != b), None)
        if at is not None:
            stage.check(f"{_name(record)}, segment {at + 1}", recorded[at], replayed[at])
        else:
            stage.check(f"{_name(record)}, number of segments", len(recorded), len(replayed))
    return stage


def rebuild(trajectory: Trajectory, form: PromptFormat, tir: TirSettings) -> list[Segment]:
    """The segments that an episode with these generations and tool outcomes appends."""
    sampled = [s for s in trajectory.segments if s.origin is Origin.MODEL]
    built = [form.prompt(trajectory.problem.question)]
    for number, (turn, segment) in enumerate(zip(trajectory.turns, sampled, strict=False)):
        built.append(segment)
        if turn.outcome is None:
            continue
        room = tir.max_total_tokens - sum(len(s.ids) for s in built) - form.overhead()
        if room < 1:
            continue
        ended = number == len(trajectory.turns) - 1 and trajectory.stop is not StopReason.CONTEXT_FULL
        limit = min(tir.max_observation_tokens, room)
        built += form.observation(observation_text(turn.outcome), segment.ids, max_tokens=limit, last=ended)
    return built


def replay_answers(records: Iterable[Record], rules: ExtractionRules, tir: TirSettings) -> Stage:
    """The final answer from the text of the last turn."""
    stage = Stage("answers")
    for record in records:
        if not record.turns or record.trajectory().failed:
            continue
        stage.check(_name(record), record.answer, _answer(record, rules, tir))
    return stage


def _answer(record: Record, rules: ExtractionRules, tir: TirSettings) -> str | None:
    turn = record.turns[-1]
    parsed = parse_turn(turn.text)
    answer = rules.from_prose(parsed.prose)
    if parsed.code is None or answer is not None or turn.outcome is None:
        return answer
    if turn.outcome.ok:
        answer = rules.from_code(parsed.code)
    if answer is None and tir.tool_answer_counts:
        answer = rules.from_prose(turn.outcome.stdout)
    return answer


async def replay_verdicts(records: Iterable[Record], verifier: Verifier) -> Stage:
    """Each answer, verified again."""
    stage = Stage("verdicts")
    known: dict[tuple[str | None, str, str], str] = {}
    versions = set()
    for record in records:
        if record.verdict is None:
            continue
        asked = (record.answer, record.problem.gold, record.problem.kind)
        if asked not in known:
            verdict = await verifier.verify(asked[0], asked[1], kind=asked[2])
            known[asked] = verdict.kind.value
            if verdict.verifier != record.verdict.verifier:
                versions.add(f"recorded with verifier {record.verdict.verifier}, replayed with {verdict.verifier}")
        stage.check(f"{_name(record)}, answer {record.answer!r}", record.verdict.kind.value, known[asked])
    stage.notes += sorted(versions)
    return stage


def replay_rewards(records: Iterable[Record], settings: RewardSettings) -> Stage:
    """Every part of the reward, from the recorded verdict and calls."""
    stage = Stage("rewards")
    for record in records:
        if record.verdict is None or record.reward is None or not record.segments:
            continue
        outcomes = [turn.outcome for turn in record.turns if turn.outcome is not None]
        succeeded = sum(outcome.ok for outcome in outcomes)
        parts = reward_parts(
            record.verdict,
            settings,
            tokens=sum(len(s.ids) for s in record.segments if s.origin is not Origin.PROMPT),
            calls_succeeded=succeeded,
            calls_failed=len(outcomes) - succeeded,
        )
        stage.check(_name(record), (record.reward, record.reward_parts), (sum(parts.values()), parts))
    return stage


def groups_of(records: Sequence[Record]) -> list[Group]:
    """The groups of one rollout batch, in order."""
    found: dict[str, Group] = {}
    for record in records:
        group = found.setdefault(record.problem.id, Group(record.problem, []))
        group.trajectories.append(record.trajectory())
    return list(found.values())


def replay_advantages(records: Sequence[Record], recipe: Recipe, *, void_filter: bool) -> Stage:
    """Advantages and filters of one rollout batch, from its rewards."""
    stage = Stage("advantages")
    groups = groups_of(records)
    assign_advantages(groups, recipe.advantage, void_filter=void_filter)
    recorded = {record.key: record for record in records}
    for group in groups:
        for trajectory, advantage in zip(group, group.advantages or [], strict=True):
            record = recorded[trajectory.key]
            why = filters(trajectory, group, void_filter=void_filter)
            stage.check(_name(record), (record.advantage, record.filters), (advantage, why))
    return stage


def _name(record: Record) -> str:
    return f"step {record.step}, {record.key}"
