"""Says before a run what is wrong with it: `agent-rl doctor`. One small function a check."""
