"""Packing, log-probs, the update step, checkpoints."""
