"""Several runs that differ in one thing, and a table of what came of them."""
