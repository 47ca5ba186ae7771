"""Weights to vLLM engines through vLLM's weight-transfer layer, and reading back what they serve."""
