"""Rollout actors and learner ranks on a Ray cluster. Only placement differs from a run in one process."""
