"""`python -m sandbox`."""

from sandbox.cli import app

if __name__ == "__main__":
    app(prog_name="python -m sandbox")
