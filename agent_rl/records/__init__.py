"""Recorded trajectories: writing, reading, reports."""
