"""Answer extraction and verdicts."""
