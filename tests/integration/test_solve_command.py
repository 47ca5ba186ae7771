"""`agent-rl solve` on the shipped policy: one problem, shown as it comes, or as JSON."""

from __future__ import annotations

import asyncio
import json

from typer.testing import CliRunner

from agent_rl.cli import app
from agent_rl.engines.base import Generation, GenerationRequest
from agent_rl.solve import Ask, ShownEngine, closing_lines, votes
from agent_rl.tasks.families import generate
from agent_rl.types import FinishReason, Problem, StopReason, Trajectory

POLICY = "package://agent_rl/assets/quickstart"
(problem,) = generate(None, seed=5, count=1)
QUESTION = problem.question
SMALL = ["--model", POLICY, "sandbox.slots=1", "threads=1"]


def solve(*arguments: str):
    return CliRunner().invoke(app, ["solve", *arguments])


def attempt(sample: int, answer: str | None) -> Trajectory:
    stop = StopReason.VOID if answer is None else StopReason.ANSWER
    return Trajectory(Problem("question", "?", ""), sample, stop=stop, answer=answer)


def test_one_attempt_is_shown_and_ends_with_its_answer():
    done = solve(QUESTION, *SMALL, "--seed", "1")
    lines = done.stdout.rstrip().splitlines()
    assert done.exit_code == (0 if lines[-1].startswith("answer: ") else 1), done.output
    assert lines[-1].startswith(("answer: ", "no answer (stopped by: "))
    assert len(lines) > 1
    assert "sandbox: our own service" in done.stderr


def test_several_attempts_are_shown_with_their_programs_and_voted_on():
    """The shipped policy uses the tool in about half of its samples: one of twelve does."""
    done = solve(QUESTION, *SMALL, "--samples", "12", "--gold", problem.gold)
    assert done.exit_code == 0, done.output
    assert done.stdout.count("--- attempt ") == 12
    assert "```python\n" in done.stdout
    assert "\n  [tool: " in done.stdout
    *_, counted, answer, correct = done.stdout.rstrip().splitlines()
    assert counted.startswith("votes: ")
    assert answer.startswith("answer: ")
    assert correct.endswith(" of 12")


def test_json_holds_every_turn_and_verdict():
    done = solve(QUESTION, *SMALL, "--samples", "3", "--gold", problem.gold, "--json")
    report = json.loads(done.stdout)
    assert len(report["attempts"]) == 3
    assert sum(v["count"] for v in report["votes"]) == sum(a["answer"] is not None for a in report["attempts"])
    for told in report["attempts"]:
        assert (told["verdict"] == "correct") == (told["answer"] == problem.gold)
        assert told["sampled_tokens"] > 0
        assert all((turn["code"] is None) == (turn["status"] is None) for turn in told["turns"])


def test_a_model_that_is_not_there_is_refused():
    done = solve("What is 1 + 1?", "--model", "./no/such/model")
    assert done.exit_code == 2
    assert "there is no such folder or file" in done.output


def test_votes_count_equal_numbers_as_one_answer():
    attempts = [attempt(0, "1/2"), attempt(1, "0.5"), attempt(2, "3"), attempt(3, None)]
    assert votes(attempts) == [("1/2", 2), ("3", 1)]
    assert closing_lines(Ask("?", samples=4), attempts)[-1] == "answer: 1/2 (2 of 4)"


def test_without_an_answer_the_reason_is_told():
    assert closing_lines(Ask("?"), [attempt(0, None)]) == ["no answer (stopped by: void)"]


class SlowEngine:
    """Samples the letters of a text one after the other, and tells what it has so far."""

    def __init__(self, text: str):
        self.ids: list[int] = []
        self._text = text

    def partial(self, trajectory: str) -> tuple[int, ...]:
        return tuple(self.ids)

    async def generate(self, request: GenerationRequest) -> Generation:
        for letter in self._text:
            await asyncio.sleep(0.02)
            self.ids.append(ord(letter))
        return Generation(tuple(self.ids), (0.0,) * len(self.ids), (0,) * len(self.ids), FinishReason.EOS)


async def test_text_is_written_while_it_is_sampled_and_nothing_twice():
    written: list[str] = []
    shown = ShownEngine(SlowEngine("print(1)\n"), lambda ids: "".join(map(chr, ids)), written.append)
    generation = await shown.generate(GenerationRequest("t", (1,), 16, 0))
    assert len(generation.ids) == 9
    assert "".join(written) == "print(1)\n"
    assert sum(bool(text) for text in written) > 1
