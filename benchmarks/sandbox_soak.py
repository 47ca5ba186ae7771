"""Thousands of mixed programs from many clients at once: is every answer right, and does anything grow?

    python -m benchmarks.sandbox_soak [--runs 10000] [--clients 64] [--backend auto] [--slots 4] [--json FILE]

Good programs, programs that hang, spin, flood, crash, take all memory or leave processes and files behind go to one
service of our own; every answer is checked. After each tenth of the runs everything pauses, and memory, open
files, threads and processes of the service are counted. A process of its own asks for `/healthz` all along.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import dataclasses
import http.client
import json
import random
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from sandbox.backends.docker_reaper import OWNER, Owner
from sandbox.client import SandboxClient
from sandbox.embedded import EmbeddedSandbox
from sandbox.schemas import ExecuteRequest, ExecuteResult, Limits, Status
from sandbox.settings import EmbeddedSettings, ServiceSettings

HEALTH_BAR_MS = 50.0
GROWTH_MB = 16.0
"""Memory the service may gain between the second sample and the last: what an allocator keeps, not a leak."""
SAMPLES = 10


AMPLE = Limits(wall_s=30, cpu_s=20)


@dataclasses.dataclass(frozen=True)
class Kind:
    """A sort of program and what must come of it. `n` in the code is a number of its own for each run."""

    name: str
    share: int
    code: str
    right: Callable[[ExecuteResult, int], bool]
    limits: Limits = AMPLE


def _printed(text: Callable[[int], str]) -> Callable[[ExecuteResult, int], bool]:
    return lambda result, n: result.status is Status.OK and result.stdout == text(n)


def _ended(*statuses: Status, signal: int | None = None) -> Callable[[ExecuteResult, int], bool]:
    return lambda result, _: result.status in statuses and (signal is None or result.signal == signal)


TIGHT = Limits(wall_s=30, cpu_s=20, memory_mb=64)
KINDS = (
    Kind("square", 40, "print({n} * {n})", _printed(lambda n: f"{n * n}\n")),
    Kind("factor", 10, "import sympy\nprint(sympy.expand(sympy.Symbol('x') * {n}))", _printed(lambda n: f"{n}*x\n")),
    Kind("array", 10, "import numpy\nprint(numpy.arange({n} % 1000).sum())",
         _printed(lambda n: f"{sum(range(n % 1000))}\n")),
    Kind("exception", 6, "raise ValueError({n})",
         lambda r, n: r.status is Status.ERROR and r.error is not None and r.error.message == str(n)),
    Kind("syntax", 4, "print({n}", _ended(Status.SYNTAX_ERROR)),
    Kind("exit", 4, "import sys; sys.exit({n} % 100 + 1)", lambda r, n: r.exit_code == n % 100 + 1),
    Kind("files", 6, "import os, tempfile\nf = os.path.join(tempfile.gettempdir(), 'mark')\nprint(os.path.exists(f))\n"
         "open(f, 'w').write('{n}'); open('mark', 'w').write('{n}')", _printed(lambda _: "False\n")),
    Kind("child", 4, "import subprocess; subprocess.Popen(['sleep', '1000']); print({n})",
         _printed(lambda n: f"{n}\n")),
    Kind("hang", 5, "print({n}, flush=True)\nimport time; time.sleep(10**9)",
         lambda r, n: r.status is Status.TIMEOUT and r.stdout == f"{n}\n", Limits(wall_s=0.5, cpu_s=20)),
    Kind("spin", 3, "while True: pass", _ended(Status.CPU_TIMEOUT), Limits(wall_s=30, cpu_s=0.2)),
    Kind("flood", 4, "while True: print('{n}' * 100)", _ended(Status.OUTPUT_LIMIT),
         Limits(wall_s=30, cpu_s=20, stdout_bytes=4096, flood_factor=16)),
    Kind("abort", 2, "import os; os.abort()", _ended(Status.KILLED, signal=6)),
    Kind("crash", 1, "import ctypes; ctypes.string_at(0)", _ended(Status.KILLED, signal=11)),
    Kind("memory", 1, "hoard = []\nwhile True: hoard.append(bytearray(1 << 20))",
         lambda r, _: r.status is Status.OOM or (r.error is not None and r.error.type == "MemoryError"), TIGHT),
)  # fmt: skip


@dataclasses.dataclass
class Sample:
    """What the service occupies while nothing runs."""

    runs: int
    rss_mb: float
    fds: int
    threads: int
    processes: int
    """Beneath the service or in its containers: the supervisors and warm interpreters of all slots."""
    recycled: int


@dataclasses.dataclass
class Outcome:
    """What came of a soak."""

    runs: int = 0
    seconds: float = 0.0
    backend: str = ""
    tier: str = ""
    wrong: list[str] = dataclasses.field(default_factory=list)
    counts: dict[str, int] = dataclasses.field(default_factory=dict)
    samples: list[Sample] = dataclasses.field(default_factory=list)
    health_ms: dict[str, float] = dataclasses.field(default_factory=dict)
    start_failures: int = 0

    def grown(self) -> list[str]:
        """What is more at the end than after the first tenth, in words; empty if all is flat."""
        first, last = self.samples[1], self.samples[-1]
        found = []
        if last.rss_mb > first.rss_mb + GROWTH_MB:
            found.append(f"memory from {first.rss_mb:.0f} to {last.rss_mb:.0f} MiB")
        for name, spare in (("fds", 4), ("threads", 4), ("processes", 0)):
            before, after = getattr(first, name), getattr(last, name)
            if after > before + spare:
                found.append(f"{name} from {before} to {after}")
        return found


class HealthWatch:
    """A process that asks for `/healthz` every 50 ms and remembers how long the answers took."""

    def __init__(self, url: str) -> None:
        command = [sys.executable, "-m", "benchmarks.sandbox_soak", "--watch", url]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def close(self) -> dict[str, float]:
        """End it; its figures in milliseconds."""
        said, _ = self.process.communicate("", timeout=30)
        return json.loads(said)


def watch(url: str) -> None:
    """The other process: until standard input ends. Prints what it saw as JSON."""
    import threading

    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    place = urlsplit(url)
    times: list[float] = []
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=10)
    while not ended.wait(0.05):
        began = time.perf_counter()
        connection.request("GET", "/healthz")
        answer = connection.getresponse()
        answer.read()
        times.append((time.perf_counter() - began) * 1000)
        if answer.status != 200:
            raise SystemExit(f"/healthz answered {answer.status}")
    times.sort()
    print(json.dumps({"max_ms": times[-1], "p99_ms": times[int(len(times) * 0.99)], "p50_ms": times[len(times) // 2],
                      "asked": len(times)}))  # fmt: skip


async def soak(runs: int, clients: int, backend: str, slots: int, *, say: Callable[[str], None] = print) -> Outcome:
    """Everything. `say` gets a line for each sample."""
    service = ServiceSettings(
        slots=slots,
        backend=backend,
        queue_per_slot=max(8, 2 * clients // slots),
        queue_timeout_s=300,
        idempotency_bytes=1 << 20,  # kept answers would look like growth
        max_sessions=0,
    )
    outcome = Outcome()
    deck = [kind for kind in KINDS for _ in range(kind.share)]
    random.Random(0).shuffle(deck)
    owner = EmbeddedSandbox(EmbeddedSettings(service=service))
    counts: collections.Counter[str] = collections.Counter()
    async with owner as client:
        outcome.backend, outcome.tier = owner.backend, owner.tier
        health = HealthWatch(owner.url)
        began = time.monotonic()
        try:
            # every client's connection is open before anything is counted
            await asyncio.gather(*[client.execute("print(6*7)", deadline=600) for _ in range(clients)])
            await _sample(outcome, client, owner, slots, 0, say)
            for tenth in range(1, SAMPLES + 1):
                until = runs * tenth // SAMPLES
                work = [_client(client, deck, until, outcome, counts) for _ in range(clients)]
                await asyncio.gather(*work)
                await _sample(outcome, client, owner, slots, until, say)
        finally:
            outcome.seconds = time.monotonic() - began
            outcome.health_ms = await asyncio.to_thread(health.close)
    outcome.counts = dict(counts)
    return outcome


async def _client(
    client: SandboxClient,
    deck: list[Kind],
    until: int,
    outcome: Outcome,
    counts: collections.Counter[str],
) -> None:
    """One client: a program after another, until `until` have been sent by all of them together."""
    while outcome.runs < until:
        outcome.runs += 1
        n = outcome.runs
        kind = deck[n % len(deck)]
        request = ExecuteRequest(code=kind.code.replace("{n}", str(n)), limits=kind.limits)
        result = await client.execute(request, deadline=600)
        counts[f"{kind.name}: {result.status}"] += 1
        if not kind.right(result, n):
            outcome.wrong.append(f"run {n}, {kind.name}: {result!r}")


async def _sample(
    outcome: Outcome, client: SandboxClient, owner: EmbeddedSandbox, slots: int, runs: int, say: Callable[[str], None]
) -> None:
    """Wait until every slot is free, then count."""
    pid = owner.pid
    assert pid is not None
    deadline = time.monotonic() + 120
    while (ready := await client.ready()).slots_free < slots or ready.slots_busy or ready.slots_starting:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the slots do not come to rest: {ready}")
        await asyncio.sleep(0.1)
    await asyncio.sleep(1.0)  # what is being taken away is gone
    service = psutil.Process(pid)
    recycled, outcome.start_failures = _counted(await asyncio.to_thread(_metrics, owner))
    processes = len(service.children(recursive=True)) + (_in_containers(pid) if owner.backend == "docker" else 0)
    sample = Sample(
        runs=runs,
        rss_mb=service.memory_info().rss / (1 << 20),
        fds=service.num_fds(),
        threads=service.num_threads(),
        processes=processes,
        recycled=recycled,
    )
    outcome.samples.append(sample)
    say(
        f"{runs:7d} runs: service {sample.rss_mb:6.1f} MiB, {sample.fds} fds, {sample.threads} threads; "
        f"{sample.processes} processes in slots; {recycled} slots replaced so far"
    )


def _in_containers(pid: int) -> int:
    """Processes in the containers of the service `pid`."""
    find = ["docker", "ps", "-q", "--filter", f"label={OWNER}={Owner.of(pid)}"]
    containers = subprocess.run(find, capture_output=True, text=True, timeout=60, check=True).stdout.split()
    if not containers:
        return 0
    inspect = ["docker", "inspect", "-f", "{{.State.Pid}}", *containers]
    firsts = subprocess.run(inspect, capture_output=True, text=True, timeout=60, check=True).stdout.split()
    return sum(1 + len(psutil.Process(int(first)).children(recursive=True)) for first in firsts)


def _metrics(owner: EmbeddedSandbox) -> str:
    asked = urllib.request.Request(f"{owner.url}/metrics", headers={"Authorization": f"Bearer {owner.token}"})
    with urllib.request.urlopen(asked, timeout=10) as answer:
        return answer.read().decode()


def _counted(text: str) -> tuple[int, int]:
    """Slots replaced and failed starts so far, of the metrics page."""
    totals = {"sandbox_recycles_total": 0.0, "sandbox_slot_start_failures_total": 0.0}
    for line in text.splitlines():
        name = line.split("{")[0].split(" ")[0]
        if name in totals:
            totals[name] += float(line.rpartition(" ")[2])
    return int(totals["sandbox_recycles_total"]), int(totals["sandbox_slot_start_failures_total"])


def report(outcome: Outcome) -> bool:
    """Print what came of it; True if every answer was right, nothing grew and health checks were quick."""
    print(f"isolation: {outcome.backend}, tier {outcome.tier}; {outcome.runs} runs in {outcome.seconds:.0f} s")
    for name, count in sorted(outcome.counts.items()):
        print(f"  {count:6d} {name}")
    for wrong in outcome.wrong[:10]:
        print(f"WRONG {wrong}")
    quick = outcome.health_ms["max_ms"] < HEALTH_BAR_MS
    bars = (
        (not outcome.wrong, f"every answer right: {outcome.runs - len(outcome.wrong)} of {outcome.runs}"),
        (not outcome.grown(), f"nothing grew{''.join(f'; {what}' for what in outcome.grown())}"),
        (outcome.start_failures == 0, f"slots that failed to start: {outcome.start_failures}"),
        (quick, "health check, longest of {asked:.0f}: {max_ms:.1f} ms (99th percentile {p99_ms:.1f}, "
         "median {p50_ms:.1f}); bar < 50 ms".format(**outcome.health_ms)),
    )  # fmt: skip
    for good, words in bars:
        print(f"{'met   ' if good else 'MISSED'} {words}")
    return all(good for good, _ in bars)


def main() -> int:
    """Soak, print, and say by the exit status whether every bar was met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--backend", default="auto", help="isolation: auto, bwrap, docker or landlock")
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--json", type=Path, help="also write everything to this file")
    parser.add_argument("--watch", metavar="URL", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.watch:
        watch(options.watch)
        return 0
    outcome = asyncio.run(soak(options.runs, options.clients, options.backend, options.slots))
    if options.json:
        options.json.write_text(json.dumps(dataclasses.asdict(outcome), indent=2) + "\n")
    return 0 if report(outcome) else 1


if __name__ == "__main__":
    sys.exit(main())
