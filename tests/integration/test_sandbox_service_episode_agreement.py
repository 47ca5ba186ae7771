"""The trainer's tool and the service's SimpleTIR route see the same of a program, stateless and in a session."""

from __future__ import annotations

import asyncio
import re

import httpx
import pytest

from agent_rl.tir.observation import observation_text
from agent_rl.tir.settings import ToolSettings
from agent_rl.tir.tool import SandboxTool
from agent_rl.types import ToolOutcome, ToolStatus
from tests.integration.service_kit import shared_sandbox

SAME = [
    "print(6*7)",
    "5",
    "1/0",
    "def f(n):\n    return 1/n\nprint(1)\nf(0)",
    "print('a'",
    "import warnings\nwarnings.warn('old')\nprint(3)",
    "import sys\nprint('x')\nsys.exit(3)",
    "import sys\nsys.exit('bye')",
    "print(input())",
    "import os\nprint('a')\nos._exit(4)",
    "import sympy\nx = sympy.Symbol('x')\nprint(sympy.factor(x**2 - 1))",
]
TOO_LONG = ["import time\nprint('so far')\ntime.sleep(9)", "print('so far')\nwhile True: pass"]


async def _observe(tool: SandboxTool, code: str) -> tuple[ToolOutcome, str]:
    outcome = await tool.run(code, deadline=asyncio.get_running_loop().time() + 60)
    # A session numbers its cells where a script has a file: the one difference that is meant.
    return outcome, re.sub(r"<cell \d+>", "main.py", observation_text(outcome))


@pytest.mark.parametrize("prelude", [True, False])
async def test_stateless_and_session_observations_agree_and_so_does_the_simpletir_route(prelude: bool) -> None:
    owner = shared_sandbox()
    settings = ToolSettings(wall_s=5, cpu_s=5, final_answer=prelude)
    headers = {"authorization": f"Bearer {owner.token}"}
    async with owner.client() as client, httpx.AsyncClient(base_url=owner.url, headers=headers, timeout=60) as http:
        stateless = SandboxTool(client, settings)
        session = SandboxTool(client, settings.model_copy(update={"session": True}))
        try:
            for code in SAME + (["final_answer(7)"] if prelude else []):
                outcome, alone = await _observe(stateless, code)
                _, remembered = await _observe(session, code)
                assert alone == remembered, code
                if "final_answer" not in code:
                    answer = (await http.post("/faas/sandbox/", json={"code": code, "run_timeout": 5})).json()
                    assert answer["run_result"]["stdout"] == outcome.stdout
                    assert answer["run_result"]["stderr"] == outcome.stderr
                    assert (answer["status"] == "success") == outcome.ok
        finally:
            await session.close()


async def test_a_time_limit_reads_alike_but_for_the_interrupt_that_saves_a_sessions_state() -> None:
    settings = ToolSettings(wall_s=0.7, cpu_s=5)
    async with shared_sandbox().client() as client:
        stateless = SandboxTool(client, settings)
        session = SandboxTool(client, settings.model_copy(update={"session": True}))
        try:
            await _observe(session, "kept = 1")
            for code in TOO_LONG:
                outcome, alone = await _observe(stateless, code)
                assert (outcome.status, alone) == (ToolStatus.TIMEOUT, "status: timeout\nso far")
                outcome, remembered = await _observe(session, code)
                assert outcome.status == ToolStatus.TIMEOUT and outcome.stdout == "so far\n"
                assert remembered.startswith(alone) and remembered.endswith("KeyboardInterrupt")
            assert (await _observe(session, "print(kept)"))[1] == "1"
        finally:
            await session.close()
