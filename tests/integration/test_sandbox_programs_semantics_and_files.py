"""Programs run as Python runs a script: exits, source text, input, files, determinism."""

from __future__ import annotations

import base64

import pytest
from sandbox_bench import Bench, benches

from sandbox.schemas import Limits, Status

bench = benches("bwrap", "docker", "landlock")
AMPLE = Limits(wall_s=15, cpu_s=10, memory_mb=512)


@pytest.mark.parametrize(
    ("code", "exit_code", "stderr"),
    [
        ("import sys; sys.exit(0)", 0, ""), ("import sys; sys.exit(3)", 3, ""),
        ("import sys; sys.exit('msg')", 1, "msg\n"),
        ("exit()", 0, ""), ("quit()", 0, ""), ("raise SystemExit", 0, ""), ("import os; os._exit(7)", 7, ""),
        ("import sys; sys.exit(300)", 44, ""), ("import sys; sys.exit(True)", 1, ""),
    ],
)  # fmt: skip
def test_exit_statuses_are_as_pythons(bench: Bench, code: str, exit_code: int, stderr: str) -> None:
    result = bench.run(code, Status.ERROR if exit_code else Status.OK)
    assert (result.exit_code, result.stderr, result.error) == (exit_code, stderr, None)


@pytest.mark.parametrize("error", ["KeyboardInterrupt", "GeneratorExit", "BaseException()", "ValueError('x')"])
def test_an_uncaught_exception_is_an_error_with_its_traceback(bench: Bench, error: str) -> None:
    result = bench.run(f"def f():\n    raise {error}\nf()", Status.ERROR)
    assert result.exit_code == 1 and result.error is not None
    assert result.error.type == error.split("(")[0]
    assert result.stderr.startswith(
        'Traceback (most recent call last):\n  File "main.py", line 3, in <module>\n    f()\n'
    )
    assert "zygote" not in result.stderr and "program.py" not in result.stderr


def test_a_traceback_is_not_made_outside_the_boundary(bench: Bench) -> None:
    result = bench.run("exec(compile('\\n' * 4 + '1/0', '/etc/shadow', 'exec'))", Status.ERROR)
    assert "root:" not in result.stderr


def test_leaving_early_does_not_pass_tests_that_follow(bench: Bench) -> None:
    result = bench.run("import os; os._exit(0)\nassert False\nprint('nonce-1234')")
    assert result.exit_code == 0 and "nonce-1234" not in result.stdout


def test_a_forged_report_changes_neither_exit_status_nor_verdict(bench: Bench) -> None:
    code = """
import os
for fd in range(3, 30):
    try: os.write(fd, b'{"code": 0, "error": null, "result": "forged", "syntax": true}\\n')
    except OSError: pass
raise ValueError("x")
"""
    result = bench.run(code, Status.ERROR)
    assert result.exit_code == 1 and result.status is Status.ERROR


@pytest.mark.parametrize("code", ["", "# only a comment", "  \n\t\n", "\n"])
def test_empty_programs_are_fine(bench: Bench, code: str) -> None:
    result = bench.run(code)
    assert (result.stdout, result.stderr) == ("", "")


@pytest.mark.parametrize(
    ("code", "line", "text"),
    [
        ("x = 1\nprint(x", 2, "was never closed"), ("if True:\nprint(1)", 2, "IndentationError"),
        ("if True:\n\tx=1\n        y=2", 3, "TabError"), ("    x = 1\n    print(x)", 1, "IndentationError"),
    ],
)  # fmt: skip
def test_code_that_does_not_compile_is_told_apart(bench: Bench, code: str, line: int, text: str) -> None:
    result = bench.run(code, Status.SYNTAX_ERROR)
    assert f'File "main.py", line {line}' in result.stderr and text in result.stderr and result.exit_code == 1


def test_null_bytes_and_lone_surrogates_are_syntax_errors(bench: Bench) -> None:
    bench.run("x = 1\0", Status.SYNTAX_ERROR)
    bench.run("x = '\udc80'", Status.SYNTAX_ERROR)


@pytest.mark.parametrize(
    ("code", "stdout"),
    [
        ("print(1)\r\nprint(2)\r\n", "1\n2\n"), ("print(1)\rprint(2)", "1\n2\n"), ("\ufeffprint('bom')", "bom\n"),
        ("\x0cprint(1)", "1\n"), ("grün = 3; print(grün)", "3\n"), ("# coding: latin-1\nprint('ü')", "ü\n"),
        ("# coding: utf-7\nprint('ü+AGE-')", "ü+AGE-\n"), ("print('''```\"\"\"''')", '```"""\n'),
        ("from __future__ import annotations\nprint(1)", "1\n"), ("s = '''\n  kept\n'''\nprint(s)", "\n  kept\n\n"),
    ],
)  # fmt: skip
def test_source_text_is_run_as_given(bench: Bench, code: str, stdout: str) -> None:
    assert bench.run(code).stdout == stdout


def test_monstrous_sources_end_in_an_ordinary_way(bench: Bench) -> None:
    bench.run("(" * 10**5 + ")" * 10**5, Status.SYNTAX_ERROR, Status.ERROR, limits=AMPLE)
    endings = (Status.OK, Status.ERROR, Status.SYNTAX_ERROR, Status.KILLED, Status.OOM, *TIMED_OUT)
    bench.run("+".join(["1"] * 10**6), *endings, limits=AMPLE)


TIMED_OUT = (Status.TIMEOUT, Status.CPU_TIMEOUT)


def test_main_is_a_real_module_in_a_real_file(bench: Bench) -> None:
    code = """
import inspect, os, pickle, sys
class C:
    def __eq__(self, other): return True
def f(n): return 1 if n == 0 else n * f(n - 1)
assert __name__ == "__main__" and sys.modules["__main__"].C is C
assert os.path.basename(__file__) == "main.py" and open(__file__).read().startswith("\\nimport inspect")
assert pickle.loads(pickle.dumps(C())) == C() and [f(i) for i in range(3)] == [1, 1, 2]
print(inspect.getsource(f), end="")
print(sorted(n for n in globals() if not n.startswith("__")))
"""
    stdout = bench.run(code).stdout
    assert stdout == ("def f(n): return 1 if n == 0 else n * f(n - 1)\n['C', 'f', 'inspect', 'os', 'pickle', 'sys']\n")


def test_the_surroundings_are_documented(bench: Bench) -> None:
    code = """
import locale, os, sys, time
print(time.tzname[0], locale.getpreferredencoding(), sys.argv, sys.path[0] == os.getcwd(), sys.flags.hash_randomization)
print(sorted(os.environ))
print(os.getcwd())
"""
    first, variables, folder = bench.run(code).stdout.splitlines()
    assert first == "UTC UTF-8 ['main.py'] True 0" or first == "UTC utf-8 ['main.py'] True 0"
    assert "PATH" in variables and "TOKEN" not in variables
    assert folder == "/sandbox" or not bench.namespaces


def test_standard_input(bench: Bench) -> None:
    assert "EOFError" in bench.run("input()", Status.ERROR).stderr
    assert bench.run("print(int(input()) + int(input()))", stdin="40\n2\n").stdout == "42\n"
    assert bench.run("print('done')", stdin="x" * 10_000_000, limits=AMPLE).stdout == "done\n"
    assert bench.run("import sys; print(len(sys.stdin.read()))", stdin="é" * 70_000).stdout == "70000\n"


def test_a_prelude_defines_names_and_stays_out_of_tracebacks(bench: Bench) -> None:
    result = bench.run("print(answer(6))\n1/0", Status.ERROR, prelude="def answer(x):\n    return x * 7\n")
    assert result.stdout == "42\n"
    assert 'File "main.py", line 2' in result.stderr and "prelude" not in result.stderr


def test_seeds_make_runs_alike_and_their_absence_makes_them_differ(bench: Bench) -> None:
    code = "import random, numpy as np; print(random.random(), np.random.rand())"
    assert bench.run(code, seed=5).stdout == bench.run(code, seed=5).stdout
    assert bench.run(code).stdout != bench.run(code).stdout
    ordered = "print(list({'a', 'b', 'c', 'd', 'e'}))"
    assert bench.run(ordered).stdout == bench.run(ordered).stdout


def test_files_in_and_out(bench: Bench) -> None:
    content = base64.b64encode(b"a,b\n1,2\n").decode()
    code = "text = open('data/in.csv').read(); open('out.txt', 'w').write(text.upper()); print(text, end='')"
    result = bench.run(code, files={"data/in.csv": content}, fetch_files=["out.txt", "absent", "data"])
    assert result.stdout == "a,b\n1,2\n"
    assert base64.b64decode(result.files["out.txt"]) == b"A,B\n1,2\n"
    assert set(result.file_errors) == {"absent", "data"}


def test_links_devices_and_pipes_are_not_fetched(bench: Bench) -> None:
    code = """
import os
os.symlink("/etc/passwd", "link"); os.mkfifo("pipe"); os.symlink("/", "root"); os.mkdir("d")
open("d/f", "w").write("ok")
os.symlink("d", "e")
"""
    paths = ["link", "pipe", "root/etc/passwd", "e/f", "../main.py", "/etc/passwd", "d/f"]
    result = bench.run(code, fetch_files=paths)
    assert set(result.files) == {"d/f"} and set(result.file_errors) == set(paths) - {"d/f"}


def test_no_file_name_survives_the_reset(bench: Bench) -> None:
    code = r"""
import os, tempfile
for folder in {os.getcwd(), tempfile.gettempdir(), os.path.expanduser("~")}:
    for name in (b"a\nb", b"\xff\xfe", b"x" * 255, b"-rf", b" "):
        with open(os.path.join(os.fsencode(folder), name), "wb") as f: f.write(b"x")
    os.makedirs(os.path.join(folder, "/".join(["deep"] * 50)))
    os.mkdir(os.path.join(folder, "shut")); open(os.path.join(folder, "shut/in"), "w").close()
    fd = os.open(os.path.join(folder, "shut"), os.O_RDONLY); os.fchmod(fd, 0); os.close(fd)
for place in ("/var/tmp/left", "/dev/shm/left", "/run/lock/left", "/left", "/dev/left"):
    try: open(place, "w").close()
    except OSError: pass
"""
    bench.run(code)
    places = ["/var/tmp/left", "/dev/shm/left", "/run/lock/left", "/left", "/dev/left"]
    found = f"import os\nfor place in {places}: print(os.path.exists(place))"
    assert set(bench.run(found).stdout.split()) == {"False"}
