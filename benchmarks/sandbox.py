"""The sandbox service against its limit and against what it replaces, in one run.

    python -m benchmarks.sandbox [--seconds 2] [--rounds 3] [--backend auto] [--json FILE]

Measured, in interleaved rounds so that a noisy machine disturbs all alike; medians over rounds:

- the service over HTTP (embedded, isolation chosen automatically), a trivial and a sympy program;
- the bare fork loop: the same interpreter, as warm, forking and collecting output with no isolation, no
  limits and no HTTP, one process a core: the limit of this design (but for the huge pages of
  `sandbox/inside/pages.py`, which only the service's warm interpreters have);
- a fresh `python` per program, one at a time a core;
- where an engine answers and has the runner image: the service with its slots in containers, and `docker run`
  per program, hardened in the same way, one at a time a core.

Then the latency of single runs with nothing else running, and what one run costs each process in CPU time.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil

from sandbox.backends.docker_settings import DockerSettings
from sandbox.backends.interpreter import DEFAULT_PACKAGES, INSIDE, environment
from sandbox.client import SandboxClient
from sandbox.embedded import EmbeddedSandbox
from sandbox.settings import EmbeddedSettings, ServiceSettings, available_cores

TRIVIAL = "print(6*7)"
SYMPY = "import sympy\nx = sympy.Symbol('x')\nprint(sympy.factor(x**2 - 5*x + 6))"
OUTPUT = {TRIVIAL: "42", SYMPY: "(x - 3)*(x - 2)"}
DOCKER_IMAGE = os.environ.get("SANDBOX_BENCH_IMAGE", DockerSettings().image)
DOCKER_RUN = (
    "docker", "run", "--rm", "--network", "none", "--read-only", "--cap-drop", "ALL", "--security-opt",
    "no-new-privileges", "--pids-limit", "72", "--memory", "512m", "--memory-swap", "512m", "--cpus", "1",
    "--log-driver", "none", "--entrypoint", "python3", DOCKER_IMAGE, "-c",
)  # fmt: skip
BARS = {"trivial_per_s": 150.0, "of_fork_loop": 0.40, "p50_ms": 10.0, "p99_ms": 50.0, "over_fresh_sympy": 20.0}
DOCKER_BARS = {"docker_of_embedded": 0.70, "docker_over_run": 50.0}

FORK_LOOP = """
import gc, importlib.util, os, sys, time
spec = importlib.util.spec_from_file_location("zygote", sys.argv[1])
zygote = importlib.util.module_from_spec(spec)
spec.loader.exec_module(zygote)
gc.disable()
zygote.warm_up(sys.argv[2].split(","))
gc.collect()
gc.freeze()
print("warm", flush=True)
for line in sys.stdin:
    seconds, program, expected = eval(line)
    runs, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.dup2(write, 1)
            exec(compile(program, "main.py", "exec"), {"__name__": "__main__"})
            sys.stdout.flush()
            os._exit(0)
        os.close(write)
        output = b""
        while piece := os.read(read, 65536):
            output += piece
        os.close(read)
        os.waitpid(child, 0)
        assert output.decode().strip() == expected, output
        runs += 1
    print(runs / (time.perf_counter() - began), flush=True)
"""


class ForkLoop:
    """The limit: one warm process a core that does nothing but fork."""

    def __init__(self, processes: int) -> None:
        command = [sys.executable, "-c", FORK_LOOP, str(INSIDE / "zygote.py"), ",".join(DEFAULT_PACKAGES)]
        self.processes = [
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment("/tmp", "/tmp")
            )
            for _ in range(processes)
        ]
        for process in self.processes:
            assert process.stdout is not None and process.stdout.readline() == "warm\n"

    def rate(self, program: str, seconds: float) -> float:
        """Runs per second of all processes together."""
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(repr((seconds, program, OUTPUT[program])) + "\n")
            process.stdin.flush()
        return sum(float(process.stdout.readline()) for process in self.processes if process.stdout is not None)

    def close(self) -> None:
        """End the processes."""
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(10)


async def throughput(call: Callable[[], Awaitable[None]], concurrency: int, seconds: float) -> float:
    """Calls per second with `concurrency` of them in flight."""
    done, began = 0, time.perf_counter()

    async def worker() -> None:
        nonlocal done
        while time.perf_counter() - began < seconds:
            await call()
            done += 1

    await asyncio.gather(*[worker() for _ in range(concurrency)])
    return done / (time.perf_counter() - began)


def service_call(client: SandboxClient, program: str) -> Callable[[], Awaitable[None]]:
    """One checked run through the service."""

    async def call() -> None:
        result = await client.execute(program)
        if result.stdout.strip() != OUTPUT[program]:
            raise RuntimeError(f"wrong answer: {result}")

    return call


def process_call(command: list[str], program: str) -> Callable[[], Awaitable[None]]:
    """One checked run in a process of its own."""

    async def call() -> None:
        process = await asyncio.create_subprocess_exec(
            *command, program, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
        )
        output, _ = await process.communicate()
        if output.decode().strip() != OUTPUT[program]:
            raise RuntimeError(f"wrong answer of {command}: {output!r}")

    return call


async def latencies(client: SandboxClient, seconds: float) -> dict[str, float]:
    """Milliseconds of single runs, nothing else running."""
    call, times, began = service_call(client, TRIVIAL), [], time.perf_counter()
    while time.perf_counter() - began < seconds or len(times) < 50:
        start = time.perf_counter()
        await call()
        times.append((time.perf_counter() - start) * 1000)
    times.sort()
    return {"p50_ms": statistics.median(times), "p99_ms": times[int(len(times) * 0.99)], "samples": len(times)}


async def cpu_floor(client: SandboxClient, service_pid: int, concurrency: int, seconds: float) -> dict[str, float]:
    """CPU milliseconds a trivial run costs: in this client, in the service, in everything inside the slots."""
    service = psutil.Process(service_pid)

    def inside() -> float:
        ended = service.cpu_times()  # slots that were replaced meanwhile
        total = ended.children_user + ended.children_system
        for process in service.children(recursive=True):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
        return total

    def spent(process: psutil.Process) -> float:
        times = process.cpu_times()
        return times.user + times.system

    before = (time.process_time(), spent(service), inside())
    began = time.perf_counter()
    rate = await throughput(service_call(client, TRIVIAL), concurrency, seconds)
    runs = rate * (time.perf_counter() - began)
    after = (time.process_time(), spent(service), inside())
    names = ("client_ms", "service_ms", "slots_ms")
    return {name: (b - a) / runs * 1000 for name, a, b in zip(names, before, after, strict=True)}


def docker_answers() -> bool:
    """Whether an engine answers and has the image."""
    if shutil.which("docker") is None:
        return False
    probe = subprocess.run(["docker", "image", "inspect", DOCKER_IMAGE], capture_output=True, timeout=30, check=False)
    return probe.returncode == 0


def embedded(backend: str, slots: int) -> EmbeddedSandbox:
    """A service of our own with its slots in `backend`."""
    service = ServiceSettings(slots=slots, backend=backend, docker=DockerSettings(image=DOCKER_IMAGE))
    return EmbeddedSandbox(EmbeddedSettings(service=service))


async def measure(seconds: float, rounds: int, backend: str) -> dict[str, float]:
    """Everything, as medians over interleaved rounds."""
    cores = available_cores()
    owner = embedded(backend, cores)
    fresh = [sys.executable, "-c"]
    docker = docker_answers()
    began = time.perf_counter()
    async with owner as client, contextlib.AsyncExitStack() as more:
        figures: dict[str, list[float]] = {"start_s": [time.perf_counter() - began]}
        in_docker = await more.enter_async_context(embedded("docker", cores)) if docker else None
        fork_loop = await asyncio.to_thread(ForkLoop, cores)
        try:
            concurrency = client.max_in_flight
            for _ in range(rounds):
                for name, program in (("trivial", TRIVIAL), ("sympy", SYMPY)):
                    call = service_call(client, program)
                    await call()
                    _add(figures, f"service_{name}", await throughput(call, concurrency, seconds))
                    _add(figures, f"fork_{name}", await asyncio.to_thread(fork_loop.rate, program, seconds))
                    _add(figures, f"fresh_{name}", await throughput(process_call(fresh, program), cores, seconds))
                    if in_docker is not None:
                        call = service_call(in_docker, program)
                        await call()
                        _add(figures, f"tier_{name}", await throughput(call, concurrency, seconds))
                if docker:
                    call = process_call([*DOCKER_RUN], TRIVIAL)
                    _add(figures, "docker_trivial", await throughput(call, cores, max(seconds, 4.0)))
                for name, value in (await latencies(client, seconds)).items():
                    _add(figures, name, value)
                assert owner.pid is not None
                for name, value in (await cpu_floor(client, owner.pid, concurrency, seconds)).items():
                    _add(figures, name, value)
        finally:
            fork_loop.close()
    result = {name: statistics.median(values) for name, values in figures.items()}
    result["trivial_per_s"] = result["service_trivial"]
    result["of_fork_loop"] = _ratio(figures, "service_trivial", "fork_trivial")
    result["over_fresh_sympy"] = result["service_sympy"] / result["fresh_sympy"]
    result["over_fresh_trivial"] = result["service_trivial"] / result["fresh_trivial"]
    if docker:
        result["over_docker"] = _ratio(figures, "service_trivial", "docker_trivial")
        result["docker_over_run"] = _ratio(figures, "tier_trivial", "docker_trivial")
        result["docker_of_embedded"] = _ratio(figures, "tier_trivial", "service_trivial")
    print(
        f"isolation: {owner.backend}, tier {owner.tier}; {cores} slots on {cores} cores; load {os.getloadavg()[0]:.1f}"
    )
    return result


def _add(figures: dict[str, list[float]], name: str, value: float) -> None:
    figures.setdefault(name, []).append(value)


def _ratio(figures: dict[str, list[float]], above: str, below: str) -> float:
    """Median over rounds of one figure as a multiple of another."""
    return statistics.median(a / b for a, b in zip(figures[above], figures[below], strict=True))


def report(figures: dict[str, float]) -> bool:
    """Print the table; True if every bar is met."""
    rows = [
        ("service over HTTP, trivial program", figures["service_trivial"], "runs/s"),
        ("service over HTTP, sympy program", figures["service_sympy"], "runs/s"),
        ("bare fork loop, trivial program (the limit)", figures["fork_trivial"], "runs/s"),
        ("bare fork loop, sympy program", figures["fork_sympy"], "runs/s"),
        ("fresh python, trivial program", figures["fresh_trivial"], "runs/s"),
        ("fresh python, sympy program", figures["fresh_sympy"], "runs/s"),
        ("service over HTTP on docker, trivial program", figures.get("tier_trivial"), "runs/s"),
        ("service over HTTP on docker, sympy program", figures.get("tier_sympy"), "runs/s"),
        ("docker run, trivial program", figures.get("docker_trivial"), "runs/s"),
        ("latency unloaded, median", figures["p50_ms"], "ms"),
        ("latency unloaded, 99th percentile", figures["p99_ms"], "ms"),
        ("CPU a run: client", figures["client_ms"], "ms"),
        ("CPU a run: service process", figures["service_ms"], "ms"),
        ("CPU a run: supervisor, zygote, program", figures["slots_ms"], "ms"),
        ("start, canaries and warm imports included", figures["start_s"], "s"),
        ("service / fresh python, trivial", figures["over_fresh_trivial"], "x"),
        ("service / docker run, trivial", figures.get("over_docker"), "x"),
    ]
    for name, value, unit in rows:
        print(f"{name:48s}{'no engine or image here' if value is None else f'{value:9.2f} {unit}'}")
    print()
    met = True
    for name, bar in (BARS | DOCKER_BARS if "docker_trivial" in figures else BARS).items():
        below = name.endswith("_ms")
        good = figures[name] < bar if below else figures[name] >= bar
        met &= good
        print(f"{'met   ' if good else 'MISSED'} {name:20s}{figures[name]:9.2f}  bar {'<' if below else '>='} {bar:g}")
    return met


def main() -> int:
    """Measure, print, and say by the exit status whether the bars were met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="length of each measurement")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds")
    parser.add_argument("--backend", default="auto", help="isolation: auto, bwrap or landlock")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    figures = asyncio.run(measure(options.seconds, options.rounds, options.backend))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0 if report(figures) else 1


if __name__ == "__main__":
    sys.exit(main())
