"""Weights from the trainer to the engines, with a proof at every hand-over that they arrived and are served."""
