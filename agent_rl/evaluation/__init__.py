"""Accuracy estimates with intervals."""
