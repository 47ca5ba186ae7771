"""A sandbox service on Docker with bare interpreters, in a process that may be killed: `docker_fifty.py PORT SLOTS`."""

from __future__ import annotations

import functools
import sys

from sandbox.backends import select
from sandbox.backends.docker import DockerBackend
from sandbox.serve import run
from sandbox.settings import ServiceSettings

if __name__ == "__main__":
    select.BACKENDS["docker"] = functools.partial(DockerBackend, warm=())
    settings = ServiceSettings(
        port=int(sys.argv[1]),
        slots=int(sys.argv[2]),
        backend="docker",
        min_tier="T3",
        parallel_starts=8,
        max_sessions=0,
    )
    sys.exit(run(settings))
