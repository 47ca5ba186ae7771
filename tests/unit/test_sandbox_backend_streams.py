"""Streams are kept head and tail, cut on character boundaries, and counted whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandbox.backends.interpreter import INSIDE, environment
from sandbox.backends.supervised import error_info, joined, text_or_none
from sandbox.inside.streams import Capture


@settings(deadline=None, max_examples=60)
@given(st.lists(st.binary(max_size=200), max_size=20), st.integers(0, 300))
def test_what_is_kept_is_head_and_tail(pieces: list[bytes], limit: int) -> None:
    capture, whole = Capture(-1, limit, 4), b"".join(pieces)
    for piece in pieces:
        capture.feed(piece)
    head, tail = capture.parts()
    assert capture.total == len(whole)
    if len(whole) <= limit:
        assert (head, tail) == (whole, b"")
    else:
        assert len(head) + len(tail) == limit
        assert whole.startswith(head) and whole.endswith(tail)


def test_memory_of_a_capture_is_bounded() -> None:
    capture = Capture(-1, 1000, 10**9)
    for _ in range(200):
        capture.feed(b"x" * 65536)
    assert len(capture.kept) + len(capture.tail) < 1000 + (2 << 20)
    assert Capture(-1, 0, 2).flood == 8192


@settings(deadline=None, max_examples=60)
@given(st.text(max_size=60), st.integers(0, 100))
def test_joined_text_is_never_cut_within_a_character(text: str, limit: int) -> None:
    raw = text.encode("utf-8", "replace")
    capture = Capture(-1, limit, 64)
    capture.feed(raw)
    shown = joined(*capture.parts(), capture.total)
    if len(raw) <= limit:
        assert shown == raw.decode()
    else:
        assert "\ufffd" not in shown or "\ufffd" in text
    shown.encode()


def test_the_programs_own_report_is_not_believed_blindly() -> None:
    assert text_or_none(5) is None and text_or_none("\udc80") == "\\udc80"
    assert error_info(None) is None and error_info([1]) is None and error_info({"type": "x"}) is None
    assert error_info({"type": "E", "message": "m", "traceback": 5}) is None
    good = error_info({"type": "E", "message": "m", "traceback": "t"})
    assert good is not None and good.type == "E"


def test_the_environment_is_written_not_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert "secret" not in str(environment("/sandbox", "/tmp")) and "HF_TOKEN" not in environment("/sandbox", "/tmp")
    assert environment("/sandbox", "/tmp")["OPENBLAS_NUM_THREADS"] == "1"


def test_nothing_inside_the_boundary_needs_more_than_the_standard_library() -> None:
    import ast
    import sys

    for path in Path(INSIDE).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                optional = path.name == "zygote.py" and name in ("numpy", "sympy")
                own = (INSIDE / f"{name}.py").is_file()
                assert optional or own or name.split(".")[0] in sys.stdlib_module_names, f"{path.name}: {name}"
    assert os.path.isfile(INSIDE / "supervisor.py")
