#!/bin/sh
# `agent-rl` with the sandbox's token taken from a mounted file, which keeps it out of manifests and of `docker inspect`.
set -eu
if [ -n "${AGENT_RL_SANDBOX_TOKEN_FILE:-}" ]; then
  AGENT_RL_SANDBOX_TOKEN=$(head -n 1 "$AGENT_RL_SANDBOX_TOKEN_FILE")
  export AGENT_RL_SANDBOX_TOKEN
fi
exec agent-rl "$@"
