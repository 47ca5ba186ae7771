"""Memory of the sandbox service: of itself, of a slot, of a session, and of what a session holds.

    python -m benchmarks.sandbox_memory [--sessions 16] [--backend auto] [--json FILE]

Sessions are opened in an embedded service; before and after, the proportional set size (shared pages divided among
those that share them) of the service and all its descendants is added up. Not for the docker backend, whose slots are
the engine's children.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import psutil

from sandbox.embedded import EmbeddedSandbox
from sandbox.settings import EmbeddedSettings, ServiceSettings
from sandbox.sync_client import SyncSandboxSession

HOLDS = {
    "scalar": "x = 5",
    "after sympy.solve": "import sympy\nt = sympy.Symbol('t')\nroots = sympy.solve(t**4 - 5*t**2 + 4, t)",
}


def resident_mib(process: psutil.Process) -> float:
    """Proportional set size of a process and its descendants, in MiB."""
    total = 0
    for one in [process, *process.children(recursive=True)]:
        try:
            total += one.memory_full_info().pss
        except psutil.NoSuchProcess:
            continue
    return total / 2**20


def hold(sessions: list[SyncSandboxSession], code: str) -> None:
    for session in sessions:
        result = session.execute(code)
        if result.status != "ok":
            raise SystemExit(f"a session answered {result.status}: {result.stderr}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sessions", type=int, default=16)
    parser.add_argument("--backend", default="auto", help="isolation: auto, bwrap or landlock")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    service = ServiceSettings(
        port=0, slots=1, backend=options.backend, max_sessions=options.sessions, spare_session_slots=0
    )
    here = psutil.Process()
    with EmbeddedSandbox(EmbeddedSettings(service=service)) as client:
        (child,) = here.children()
        client.execute("print(6*7)")
        figures = {"tier": client.ready().tier, "service and one slot": resident_mib(child)}
        sessions = [client.session() for _ in range(options.sessions)]
        for name, code in HOLDS.items():
            hold(sessions, code)
            grown = resident_mib(child) - float(figures["service and one slot"])
            figures[f"a session, {name}"] = grown / options.sessions
        for session in sessions:
            session.close()
    for name, value in figures.items():
        print(f"{name:32} {value if isinstance(value, str) else f'{value:.1f} MiB'}")
    per_gib = {name: int(1024 / figures[f"a session, {name}"]) for name in HOLDS}
    print("sessions in a GiB:", ", ".join(f"{count} ({name})" for name, count in per_gib.items()))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
