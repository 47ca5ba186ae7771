"""The interpreter is found inside the boundary, wherever the host keeps it."""

from __future__ import annotations

import sys

import pytest

from sandbox.backends import interpreter


@pytest.mark.parametrize("prefix", ["/tmp/clone/.venv", "/var/tmp/venv", "/dev/shm/venv"])
def test_an_environment_that_the_boundary_would_hide_is_shown_elsewhere(monkeypatch, prefix):
    monkeypatch.setattr(sys, "prefix", prefix)
    inside = interpreter.placed(f"{prefix}/bin/python")
    assert inside.startswith("/opt/python")
    assert inside.endswith("/bin/python")
    assert interpreter.zygote_command(inside)[0] == inside
    assert interpreter.environment("/sandbox", "/tmp", inside)["PATH"].startswith(inside.removesuffix("/python") + ":")


def test_any_other_environment_stays_where_it_is(monkeypatch):
    monkeypatch.setattr(sys, "prefix", "/home/someone/tmp/.venv")
    assert interpreter.placed("/home/someone/tmp/.venv/bin/python") == "/home/someone/tmp/.venv/bin/python"
    assert interpreter.placed("/tmporary/bin/python") == "/tmporary/bin/python"
