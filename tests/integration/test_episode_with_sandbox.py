"""Episodes over the real sandbox: what the model sees, what ends an episode, and whose failure is whose."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import asynccontextmanager

import psutil
import pytest

from agent_rl.engines.base import Sampling
from agent_rl.engines.scripted import ScriptedEngine
from agent_rl.rewards.settings import RewardSettings
from agent_rl.rewards.verifier import Verifier
from agent_rl.rollout.answers import ExtractionRules
from agent_rl.rollout.run import Rollout, TooManyFailures
from agent_rl.rollout.settings import RolloutSettings
from agent_rl.tir.fence import FenceScanner
from agent_rl.tir.formats import prompt_format
from agent_rl.tir.settings import TirSettings, ToolSettings
from agent_rl.tir.tool import SandboxTool
from agent_rl.types import InfrastructureError, Problem, StopReason, ToolStatus
from sandbox.embedded import EmbeddedSandbox
from sandbox.settings import EmbeddedSettings, ServiceSettings
from tests.toys import chatml_tokenizer

PROBLEM = Problem("p", "What is 6 * 7?", "42")
FACTORIAL = "def f(n):\n    return 1 if n == 0 else n * f(n - 1)\n"


def block(code: str) -> str:
    return f"```python\n{code}\n```"


@pytest.fixture(scope="module")
def owner():
    with_service = EmbeddedSandbox(EmbeddedSettings(service=ServiceSettings(port=0, slots=2)))
    with_service.start()
    yield with_service
    with_service.stop()


@asynccontextmanager
async def rollout_over(owner, script, *, tool=None, latency=0.0, settings=None, client_options=None, **tir):
    tokenizer = chatml_tokenizer()
    tir_settings = TirSettings(tool=tool or ToolSettings(wall_s=2.0), max_total_tokens=3000, max_turn_tokens=900, **tir)
    engine = ScriptedEngine(tokenizer, script, scanner=FenceScanner, latency=latency)
    rewards = RewardSettings()
    async with owner.client(**(client_options or {})) as client, Verifier(rewards.verifier) as verifier:
        yield Rollout(
            engine=engine,
            format=prompt_format(tokenizer, tir_settings),
            answers=ExtractionRules(rewards),
            verifier=verifier,
            open_tool=lambda problem, sample: SandboxTool(client, tir_settings.tool, seed=0),
            tir=tir_settings,
            rewards=rewards,
            settings=settings or RolloutSettings(episode_retries=0, max_failed_share=1.0),
        )


async def one(owner, script, problem=PROBLEM, **options):
    async with rollout_over(owner, script, **options) as rollout:
        (group,) = await rollout.groups([problem], 1, sampling=Sampling(), stream="t")
        return group.trajectories[0]


async def test_a_tool_call_then_the_answer(owner):
    trajectory = await one(owner, [block("print(6*7)"), "So \\boxed{42}"])
    assert [t.observation for t in trajectory.turns] == ["42", None]
    assert trajectory.stop is StopReason.ANSWER
    assert trajectory.reward == 1.0
    assert trajectory.turns[0].outcome.tier in {"T1", "T2", "T3"}


async def test_a_child_a_print_and_a_loop_come_back_at_the_limit_with_half_and_nothing_alive(owner):
    marker = "123456.789"
    code = f"import subprocess\nsubprocess.Popen(['sleep', '{marker}'])\nprint('half')\nwhile True: pass"
    start = time.monotonic()
    trajectory = await one(owner, [block(code), "\\boxed{0}"])
    assert trajectory.turns[0].outcome.status is ToolStatus.TIMEOUT
    assert trajectory.turns[0].observation == "status: timeout\nhalf"
    assert 1.9 < trajectory.turns[0].outcome.wall_ms / 1000 < 4.0
    assert time.monotonic() - start < 20
    assert not [p for p in psutil.process_iter(["cmdline"]) if marker in (p.info["cmdline"] or [])]


async def test_a_deprecation_warning_with_exit_0_is_a_success_that_shows_both(owner):
    code = "import warnings\nwarnings.warn('old', DeprecationWarning)\nprint(42)"
    trajectory = await one(owner, [block(code), "\\boxed{42}"])
    turn = trajectory.turns[0]
    assert turn.outcome.ok
    assert turn.observation.startswith("42\nstderr:\n")
    assert "DeprecationWarning: old" in turn.observation


async def test_recursion_and_imports_inside_functions_work(owner):
    code = "import math\n" + FACTORIAL + "print(f(5), [math.gcd(i, 6) for i in range(3)])"
    trajectory = await one(owner, [block(code), "\\boxed{42}"])
    assert trajectory.turns[0].observation == "120 [6, 1, 2]"


async def test_a_session_remembers_functions_and_imports_across_turns_and_a_stateless_tool_does_not(owner):
    script = [
        block("import math\ndef f(n):\n    return 1 if n == 0 else n * f(n - 1)"),
        block("print(f(5), math.pi > 3)"),
    ]
    kept = await one(owner, script, tool=ToolSettings(session=True), max_turns=2)
    assert kept.turns[1].observation == "120 True"
    forgot = await one(owner, script, max_turns=2)
    assert forgot.turns[1].outcome.status is ToolStatus.ERROR
    assert "NameError" in forgot.turns[1].observation


async def test_code_in_the_last_turn_is_run_and_shown(owner):
    trajectory = await one(owner, [block("print(1)"), block("print(2)")], max_turns=2)
    assert trajectory.stop is StopReason.MAX_TURNS
    assert trajectory.turns[-1].observation == "2"
    assert trajectory.reward == 0.0


async def test_a_box_before_code_ends_the_episode_and_the_code_still_runs(owner):
    trajectory = await one(owner, ["\\boxed{42}\n" + block("print(7)")])
    assert trajectory.stop is StopReason.ANSWER
    assert trajectory.turns[0].observation == "7"
    assert trajectory.reward == 1.0


async def test_a_box_that_only_the_tool_printed_is_no_answer_unless_it_counts(owner):
    script = [block("print('\\\\boxed{42}')"), "I am done."]
    assert (await one(owner, script)).stop is StopReason.VOID
    counted = await one(owner, script, tool_answer_counts=True)
    assert (counted.stop, counted.reward) == (StopReason.TOOL_ANSWER, 1.0)


async def test_final_answer_with_a_literal_counts_and_with_a_computed_value_does_not(owner):
    literal = await one(owner, [block("final_answer(42)")])
    assert (literal.stop, literal.reward) == (StopReason.ANSWER, 1.0)
    computed = await one(owner, [block("final_answer(6*7)"), "hm"])
    assert computed.stop is StopReason.VOID
    assert computed.turns[0].observation == "\\boxed{42}"
    broken = await one(owner, [block("x\nfinal_answer(42)"), "hm"])
    assert broken.stop is StopReason.VOID


async def test_a_turn_with_neither_code_nor_answer_is_void(owner):
    trajectory = await one(owner, ["I do not know."])
    assert (trajectory.stop, trajectory.void, trajectory.reward) == (StopReason.VOID, True, 0.0)


async def test_a_turn_cut_by_length_is_void_and_never_run(owner):
    trajectory = await one(owner, [block("print(1)" * 2000)])
    assert (trajectory.stop, trajectory.void) == (StopReason.LENGTH, True)
    assert trajectory.tool_calls == 0


async def test_a_service_killed_in_mid_step_costs_retries_and_never_a_reward(owner):
    """Half-way through a batch the whole sandbox service is killed; every answer is still right."""
    killed = asyncio.Event()

    def script(request, turn):
        return block("import time\ntime.sleep(0.2)\nprint(6*7)") if turn == 0 else "\\boxed{42}"

    async def kill():
        await asyncio.sleep(1.0)
        os.kill(owner.pid, signal.SIGKILL)
        killed.set()

    problems = [Problem(f"p{i}", "?", "42") for i in range(8)]
    settings = RolloutSettings(episode_retries=1, max_failed_share=0.25)
    async with rollout_over(owner, script, settings=settings) as rollout:
        killer = asyncio.create_task(kill())
        groups = await rollout.groups(problems, 4, sampling=Sampling(), stream="t")
        await killer
    assert killed.is_set()
    rewards = [t.reward for g in groups for t in g]
    assert len(rewards) == 32
    assert set(rewards) <= {1.0, None}
    assert rewards.count(1.0) >= 24


async def test_back_pressure_is_waited_out_within_the_deadline(owner):
    """Far more programs at once than slots and queue take: 429s are waited out, every program answers."""

    def script(request, turn):
        return block("print(6*7)") if turn == 0 else "\\boxed{42}"

    small = EmbeddedSandbox(EmbeddedSettings(service=ServiceSettings(port=0, slots=1, queue_per_slot=1)))
    small.start()
    try:
        problems = [Problem(f"p{i}", "?", "42") for i in range(24)]
        async with rollout_over(small, script, client_options={"max_in_flight": 24}) as rollout:
            groups = await rollout.groups(problems, 1, sampling=Sampling(), stream="t")
    finally:
        small.stop()
    assert [t.reward for g in groups for t in g] == [1.0] * 24


async def test_an_engine_that_fails_is_our_failure(owner):
    trajectory = await one(owner, [InfrastructureError("engine", "no memory")])
    assert (trajectory.stop, trajectory.reward) == (StopReason.FAILED, None)
    assert "no memory" in trajectory.error


async def test_an_episode_past_its_deadline_is_our_failure_not_a_wrong_answer(owner):
    trajectory = await one(owner, ["\\boxed{42}"], latency=5.0, deadline_s=0.5)
    assert (trajectory.stop, trajectory.reward) == (StopReason.DEADLINE, None)


async def test_a_batch_that_mostly_fails_for_reasons_of_ours_stops_with_the_reason(owner):
    settings = RolloutSettings(episode_retries=0, max_failed_share=0.5)
    async with rollout_over(owner, [InfrastructureError("engine", "no memory")], settings=settings) as rollout:
        with pytest.raises(TooManyFailures, match="no memory"):
            await rollout.groups([PROBLEM], 4, sampling=Sampling(), stream="t")


async def test_an_episode_that_failed_is_played_again(owner):
    calls = []

    def script(request, turn):
        calls.append(request.trajectory)
        return InfrastructureError("engine", "hiccup") if len(calls) == 1 else "\\boxed{42}"

    settings = RolloutSettings(episode_retries=1)
    async with rollout_over(owner, script, settings=settings) as rollout:
        (group,) = await rollout.groups([PROBLEM], 1, sampling=Sampling(), stream="t")
    assert [t.reward for t in group] == [1.0]
    assert len(calls) == 2
