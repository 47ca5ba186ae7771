"""A measurement over the real rollout, sandbox and verifier, with an engine that follows a script."""

from __future__ import annotations

import pytest

from agent_rl.engines.base import Sampling
from agent_rl.engines.scripted import ScriptedEngine
from agent_rl.evaluation.run import evaluate
from agent_rl.evaluation.settings import EvaluationSettings
from agent_rl.rewards.settings import RewardSettings
from agent_rl.rewards.verifier import Verifier
from agent_rl.rollout.answers import ExtractionRules
from agent_rl.rollout.run import Rollout
from agent_rl.rollout.settings import RolloutSettings
from agent_rl.tasks.problems import Problems
from agent_rl.tir.fence import FenceScanner
from agent_rl.tir.formats import prompt_format
from agent_rl.tir.settings import TirSettings, ToolSettings
from agent_rl.tir.tool import SandboxTool
from agent_rl.types import Problem
from sandbox.embedded import EmbeddedSandbox
from sandbox.settings import EmbeddedSettings, ServiceSettings
from tests.toys import chatml_tokenizer

SETS = {"toy": Problems((Problem("six", "What is 6 * 7?", "42"), Problem("half", "What is 1/2?", "0.5")))}


def script(request, turn):
    """Computes in the first turn; answers 42 in the second. The second attempt's program fails."""
    if turn == 1:
        return "So \\boxed{42}"
    return "```python\nprint(6*7)\n```" if request.trajectory.rstrip("/").endswith("0") else "```python\n1/0\n```"


async def test_figures_come_out_of_the_whole_pipeline(tmp_path):
    owner = EmbeddedSandbox(EmbeddedSettings(service=ServiceSettings(port=0, slots=2)))
    owner.start()
    try:
        settings = EvaluationSettings(samples=2, resamples=100, max_turns=2)
        tir = settings.episode(TirSettings(tool=ToolSettings(wall_s=5.0), max_total_tokens=3000, max_turn_tokens=900))
        tokenizer, rewards = chatml_tokenizer(), RewardSettings()
        engine = ScriptedEngine(tokenizer, script, scanner=FenceScanner)
        async with owner.client() as client, Verifier(rewards.verifier) as verifier:
            rollout = Rollout(
                engine=engine,
                format=prompt_format(tokenizer, tir),
                answers=ExtractionRules(rewards),
                verifier=verifier,
                open_tool=lambda problem, sample: SandboxTool(client, tir.tool, seed=0),
                tir=tir,
                rewards=rewards,
                settings=RolloutSettings(),
            )

            def play(name):
                return lambda attempts: rollout.play(attempts, sampling=Sampling(), stream=f"0/{name}")

            result = await evaluate(play, SETS, settings, tmp_path, identity={"model": "script"})
            requests = len(engine.requests)
            again = await evaluate(play, SETS, settings, tmp_path, identity={"model": "script"})
    finally:
        owner.stop()
    values = {name: e.value for name, e in result.summaries[0].estimates.items()}
    assert result.complete
    assert values["avg@2"] == pytest.approx(0.5)  # 42 is right for one of the two problems
    assert values["mean_turns"] == 2.0
    assert values["tool_call_rate"] == 1.0
    assert values["tool_failure_rate"] == pytest.approx(0.5)
    assert again.summaries == result.summaries
    assert len(engine.requests) == requests == 8
