"""Checks of the problems: readable, right by their own verifier, not also in an evaluation set, short enough."""

from __future__ import annotations

from collections.abc import Sequence

from agent_rl.doctor.findings import Finding, fault, ok, warning
from agent_rl.doctor.subject import Subject
from agent_rl.tasks.problems import Problems
from agent_rl.types import Problem

GOLDS_CHECKED = 400
"""Gold answers of a set that are compared with themselves; of a larger set, so many at even distances."""
PROMPTS_CHECKED = 2000
BEARABLE_SHARE = 0.05
"""A larger share of bad rows, of gold answers that fail or of prompts that are too long is a fault."""


def _sets(subject: Subject) -> dict[str, Problems]:
    return {"data": subject.train, **{f"evals.{name}": p for name, p in subject.held_out.items()}}


def _judge(share: float, check: str, sentence: str, remedy: str) -> Finding:
    return (fault if share > BEARABLE_SHARE else warning)(check, sentence, remedy)


def check_rows(subject: Subject) -> list[Finding]:
    """Whether every row can be read, and whether there are enough problems for a step."""
    found: list[Finding] = []
    for name, problems in _sets(subject).items():
        if bad := problems.bad_rows:
            found.append(
                _judge(
                    len(bad) / (len(bad) + len(problems)),
                    "data",
                    f"{name}: {len(bad)} of {len(bad) + len(problems)} rows cannot be used; the first: {bad[0]}",
                    "mend them (`agent-rl tasks check FILE` lists all), or name the columns in columns",
                )
            )
    needed = subject.config.problems_per_step
    if len(subject.train) < needed:
        found.append(
            fault(
                "data",
                f"a step needs {needed} different problems and the data has {len(subject.train)}",
                "lower problems_per_step, or give more data",
            )
        )
    sizes = ", ".join(f"{name} {len(problems)}" for name, problems in _sets(subject).items())
    return found or [ok("data", f"problems: {sizes}; every row is usable")]


def check_golds(subject: Subject) -> list[Finding]:
    """Gold answers against their own verifier: one that it does not accept gives every attempt reward 0."""
    from agent_rl.tasks.check import verifier_audit

    found: list[Finding] = []
    counted = 0
    for name, problems in _sets(subject).items():
        sample = _spread(problems, GOLDS_CHECKED)
        counted += len(sample)
        if failures := verifier_audit(sample):
            index, reason = min(failures.items())
            found.append(
                _judge(
                    len(failures) / len(sample),
                    "gold answers",
                    f"{name}: {len(failures)} of {len(sample)} gold answers fail their own verifier, so that no "
                    f"attempt could earn their reward; the first: {sample[index].id}, {reason}",
                    "mend them, name another verifier, or set columns.gold_format",
                )
            )
    return found or [ok("gold answers", f"{counted} gold answers compared with themselves: all accepted")]


def _spread(problems: Sequence[Problem], most: int) -> list[Problem]:
    step = -(-len(problems) // most)
    return list(problems[::step]) if step > 1 else list(problems)


def check_contamination(subject: Subject) -> list[Finding]:
    """Training problems that are evaluation problems too."""
    from agent_rl.tasks.overlap import find_overlaps

    overlaps = [o for o in find_overlaps(subject.train, subject.held_out) if o.same]
    if not overlaps:
        named = ", ".join(subject.held_out) or "there are none"
        return [ok("contamination", f"no training problem is in a held-out set ({named})")]
    first = overlaps[0]
    sentence = (
        f"{len(overlaps)} training problems are evaluation problems too, such as {first.train.id} "
        f"({first.benchmark}: {first.train.question[:60]!r})"
    )
    if subject.config.data.on_overlap == "drop":
        remedy = "nothing to do: data.on_overlap = drop leaves them out of training"
        return [warning("contamination", sentence, remedy)]
    return [fault("contamination", f"{sentence}; data.on_overlap = {subject.config.data.on_overlap}", "set it to drop")]


def check_prompts(subject: Subject) -> list[Finding]:
    """Whether prompts leave room for a turn; those that do not are left out of training."""
    tir = subject.config.tir
    room = tir.max_total_tokens - tir.max_turn_tokens
    sample = _spread(subject.train, PROMPTS_CHECKED)
    lengths = [len(subject.form.prompt(p.question).ids) for p in sample]
    long = sum(n > room for n in lengths)
    if long:
        return [
            _judge(
                long / len(sample),
                "prompts",
                f"{long} of {len(sample)} prompts have more than {room} tokens and leave no room for a turn; they "
                "are left out of training",
                "raise tir.max_total_tokens, or lower tir.max_turn_tokens",
            )
        ]
    return [ok("prompts", f"{min(lengths)} to {max(lengths)} tokens; each leaves room for a turn ({room})")]
