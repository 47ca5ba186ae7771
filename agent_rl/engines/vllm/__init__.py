"""vLLM behind the engine protocol. Import `agent_rl.engines.vllm.engine` for it: nothing heavy is imported here."""
