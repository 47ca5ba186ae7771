"""Where a code block begins and ends, whatever way its characters are cut into tokens."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_rl.tir.fence import FenceScanner, parse_turn


def closes_at(text: str) -> int | None:
    """Number of characters after which the scanner says the block has closed."""
    scanner = FenceScanner()
    return next((i + 1 for i, character in enumerate(text) if scanner.feed(character)), None)


@pytest.mark.parametrize("info", ["", "py", "python", "python  ", "python\r"])
def test_empty_py_and_python_blocks_are_executable(info):
    text = f"So:\n```{info}\nprint(1)\n```\nafter"
    assert parse_turn(text).code == "print(1)"
    assert text[: closes_at(text)].endswith("print(1)\n```")


@pytest.mark.parametrize("info", ["output", "text", "python3", "Python", "pycon", "python repl", "`"])
def test_other_blocks_are_neither_code_nor_prose(info):
    text = f"before\n```{info}\n\\boxed{{1}}\n```\nafter"
    assert closes_at(text) is None
    parsed = parse_turn(text)
    assert parsed.code is None
    assert parsed.prose == "before\nafter"


def test_the_end_of_another_block_does_not_open_one():
    text = "```output\n42\n```\nThe answer is 42.\n```"
    assert closes_at(text) is None
    assert parse_turn(text).code is None


def test_a_block_inside_prose_needs_its_own_line():
    assert parse_turn("inline ```python\nprint(1)\n```").code is None
    assert parse_turn("  ```python\nprint(1)\n```").code is None


def test_a_closing_line_may_carry_more_text():
    text = "```python\nprint(1)\n```print(2)\n"
    assert parse_turn(text).code == "print(1)"
    assert text[: closes_at(text)] == "```python\nprint(1)\n```"


def test_an_indented_fence_inside_a_string_does_not_close():
    code = 's = """\n  ```\n"""\nprint(s)'
    assert parse_turn(f"```python\n{code}\n```").code == code


def test_an_unclosed_block_is_no_code_and_its_box_is_no_answer():
    parsed = parse_turn("so\n```python\nprint('\\boxed{3}')")
    assert parsed.code is None
    assert parsed.prose == "so"


def test_an_empty_block_is_an_empty_program():
    assert parse_turn("```python\n```").code == ""


def test_source_is_taken_as_it_stands():
    code = '\tif x:\r\n  pass\n\n\n# \'end\' """'
    assert parse_turn(f"```py\n{code}\n```").code == code


pieces = st.lists(
    st.sampled_from(["`", "``", "```", "\n", "py", "python", "```python", "\n```", "x = 1", " ", "é", "\\boxed{1}"]),
    max_size=24,
)


@settings(deadline=None, max_examples=300)
@given(pieces, st.data())
def test_the_scanner_stops_where_the_parser_finds_the_first_block_whatever_the_pieces(parts, data):
    text = "".join(parts)
    stop = closes_at(text)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    scanner, fed, stopped = FenceScanner(), "", False
    for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True):
        fed += text[a:b]
        if scanner.feed(text[a:b]):
            stopped = True
            break
    assert stopped == (stop is not None)
    if stop is not None:
        assert len(fed) >= stop
        assert parse_turn(text[:stop]).code is not None
        assert parse_turn(text[:stop]) == parse_turn(fed)
        assert parse_turn(text[: stop - 1]).code is None
    else:
        assert parse_turn(text).code is None
