"""Train language models to solve mathematics by writing and running Python over several turns."""

__version__ = "0.1.0"
