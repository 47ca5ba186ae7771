"""Child process: runs programs from a JSON list on standard input, answers with their outcomes as JSON.

Standard library only, and imports nothing of the package. Tracebacks are those of a program started as the
sandbox starts it: from the file `/sandbox/main.py`, without frames of ours.
"""

import contextlib
import io
import json
import linecache
import sys
import traceback

FILE = "/sandbox/main.py"


def outcome(program: str) -> tuple[str, str, str]:
    """Status, standard output and standard error of one program in a fresh namespace."""
    try:
        code = compile(program, FILE, "exec")
    except SyntaxError as error:
        return "syntax_error", "", "".join(traceback.format_exception_only(error))
    linecache.cache[FILE] = (len(program), None, program.splitlines(keepends=True), FILE)
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            exec(code, {"__name__": "__main__"})
    except Exception as error:
        ours = error.__traceback__
        shown = traceback.format_exception(type(error), error, ours.tb_next if ours else None)
        return "error", printed.getvalue(), "".join(shown)
    return "ok", printed.getvalue(), ""


if __name__ == "__main__":
    json.dump([outcome(program) for program in json.load(sys.stdin)], sys.stdout)
