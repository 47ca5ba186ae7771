"""Replaying a recording: the same programs, verdicts, advantages, ratios, loss and gradient, stage by stage."""
