"""Fuzzing: random bodies on every route, random lives of sessions. No 5xx that is ours, no permit or slot lost."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule, run_state_machine_as_test

from sandbox.api import create_app
from sandbox.errors import ServiceError, SessionGone
from sandbox.schemas import ErrorAnswer, ExecuteRequest, SessionRequest
from sandbox.service import Caller, SandboxService
from sandbox.settings import ServiceSettings
from tests.integration.scripted_slots import ScriptedBackend

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
NUMBER = st.integers(-2, 10**12) | st.floats() | JSON
LIMITS = st.dictionaries(
    st.sampled_from(["wall_s", "cpu_s", "memory_mb", "processes", "stdout_bytes", "inodes", "other"]),
    NUMBER,
    max_size=3,
)
NAMES = st.sampled_from(["a", "a/b", "../a", "/a", "", "a\\b", "main.py", "a/../b", "ü"]) | st.text(max_size=5)
CODE = st.sampled_from(["", "say x", "die", "sleep 0.001", "keep y"]) | st.text(max_size=20)


def _body(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    good = st.fixed_dictionaries({}, optional=fields)
    noisy = st.fixed_dictionaries({}, optional={name: JSON for name in fields})
    return good | st.builds(lambda a, b: {**a, **b}, good, noisy) | JSON


EXECUTE = _body(
    code=CODE,
    stdin=st.none() | st.text(max_size=5),
    limits=LIMITS,
    files=st.dictionaries(NAMES, st.sampled_from(["", "YQ==", "???"]), max_size=3),
    fetch_files=st.lists(NAMES, max_size=3),
    seed=NUMBER,
    request_id=st.none() | st.text(max_size=3),
    queue_timeout_s=NUMBER,
)
FUSION = _body(
    code=CODE,
    language=st.sampled_from(["python", "cpp"]),
    run_timeout=NUMBER,
    memory_limit_MB=NUMBER,
    files=st.dictionaries(NAMES, st.none() | st.just("YQ=="), max_size=2),
)
SIMPLE = _body(code=CODE, language=st.just("python"), run_timeout=NUMBER)
SESSION = _body(memory_mb=NUMBER, idle_s=NUMBER, life_s=NUMBER, request_id=st.none() | st.text(max_size=3))
BATCH = st.fixed_dictionaries({"requests": st.lists(EXECUTE, max_size=3)}) | JSON
REQUESTS = st.one_of(
    st.tuples(st.just("/v1/execute"), EXECUTE),
    st.tuples(st.just("/v1/execute/batch"), BATCH),
    st.tuples(st.just("/run_code"), FUSION),
    st.tuples(st.just("/faas/sandbox/"), SIMPLE),
    st.tuples(st.just("/v1/sessions"), SESSION),
    st.tuples(st.just("/v1/sessions/{session_id}/execute"), EXECUTE),
)


def test_random_bodies_get_only_answers_that_the_openapi_page_names() -> None:
    service = SandboxService(ServiceSettings(slots=2, max_sessions=3, evict_idle_s=0), ScriptedBackend())
    app = create_app(service)
    app.router.on_startup = []
    paths = app.openapi()["paths"]
    with TestClient(app, raise_server_exceptions=True) as http:
        assert http.portal is not None
        http.portal.call(service.start)
        try:

            @settings(deadline=None, max_examples=250, suppress_health_check=list(HealthCheck))
            @given(REQUESTS)
            def fuzz(request: tuple[str, Any]) -> None:
                path, body = request
                listed = http.get("/v1/sessions").json()["sessions"]
                target = path.replace("{session_id}", listed[0]["session_id"] if listed else "none")
                answer = http.post(target, content=json.dumps(body), headers={"content-type": "application/json"})
                assert str(answer.status_code) in paths[path]["post"]["responses"], answer.text
                assert answer.status_code < 500 or answer.status_code == 503, answer.text
                if answer.status_code >= 400:
                    ErrorAnswer.model_validate_json(answer.content)

            fuzz()
        finally:
            http.portal.call(service.stop)


class SessionLives(RuleBasedStateMachine):
    """Sessions by a model that remembers what each should."""

    sessions = Bundle("sessions")

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.backend = ScriptedBackend()
        config = ServiceSettings(slots=2, max_sessions=3, evict_idle_s=0.0, recycle_runs=7)
        self.service = SandboxService(config, self.backend)
        self.loop.run_until_complete(self.service.start())
        self.kept: dict[str, list[str]] = {}
        self.caller = Caller("local", "test")

    def teardown(self) -> None:
        self.loop.run_until_complete(self.service.stop())
        assert self.backend.alive == 0, "a slot was left"
        self.loop.close()

    def _turn(self, session: str, code: str) -> list[str] | None:
        """Output of a turn; None if the session is gone, which the model then knows."""
        assert self.service.sessions is not None
        turn = self.service.sessions.execute(session, ExecuteRequest(code=code), self.caller)
        try:
            result = self.loop.run_until_complete(turn)
        except SessionGone:
            self._forget_ended()
            assert session not in self.kept
            return None
        assert result.session_id == session and result.state is not None
        if result.state == "lost":
            self.kept.pop(session, None)
        return result.stdout.split() if result.stdout else []

    def _forget_ended(self) -> None:
        assert self.service.sessions is not None
        for session in set(self.kept) - set(self.service.sessions.table.open):
            del self.kept[session]

    @rule(target=sessions)
    def open(self) -> str:
        assert self.service.sessions is not None
        info = self.loop.run_until_complete(self.service.sessions.create(SessionRequest(), self.caller))
        self._forget_ended()  # one may have been evicted: the oldest
        self.kept[info.session_id] = []
        return info.session_id

    @rule(session=sessions, word=st.sampled_from("abc"))
    def keep(self, session: str, word: str) -> None:
        if self._turn(session, f"keep {word}") is not None:
            self.kept[session].append(word)

    @rule(session=sessions)
    def recall(self, session: str) -> None:
        output = self._turn(session, "recall")
        assert output is None or output == self.kept[session]

    @rule(session=sessions)
    def break_the_slot(self, session: str) -> None:
        self._turn(session, "die")
        self._forget_ended()
        assert session not in self.kept

    @rule(session=sessions)
    def reset(self, session: str) -> None:
        assert self.service.sessions is not None
        try:
            info = self.loop.run_until_complete(self.service.sessions.reset(session, self.caller))
        except SessionGone:
            self._forget_ended()
            assert session not in self.kept
        else:
            assert info.state == "reset"
            self.kept[session] = []

    @rule(session=consumes(sessions))
    def end(self, session: str) -> None:
        assert self.service.sessions is not None

        async def end() -> None:
            assert self.service.sessions is not None
            self.service.sessions.end(session, self.caller)

        try:
            self.loop.run_until_complete(end())
        except SessionGone:
            assert session not in self.kept
        self.kept.pop(session, None)

    @rule()
    def stateless(self) -> None:
        result = self.loop.run_until_complete(self.service.execute(ExecuteRequest(code="say 42"), self.caller))
        assert result.stdout == "42" and result.state is None

    @rule()
    def refused(self) -> None:
        try:
            self.loop.run_until_complete(self.service.execute(ExecuteRequest(code="", files={"..": ""}), self.caller))
        except ServiceError as refusal:
            assert refusal.http_status == 422

    @invariant()
    def nothing_is_lost(self) -> None:
        assert self.service.gate.free == 2 and self.service.gate.waiting == 0
        assert self.service.sessions is not None
        assert set(self.kept) == set(self.service.sessions.table.open)
        assert len(self.kept) <= 3


def test_random_lives_of_sessions_agree_with_a_model() -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        SessionLives, settings=settings(deadline=None, max_examples=30, stateful_step_count=25)
    )
