"""The page of a run in a real browser, offline: overview, list, filters, a trajectory, hover, keys, dark mode."""

from __future__ import annotations

import json
import re

import pytest

from agent_rl.records import summaries, trajectories
from agent_rl.records.inspect.command import run_page
from tests.browser import Browser
from tests.recordings import make_run

TOKEN = "#columns .tokens > span[data-k]"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("inspect") / "run", steps=3)


@pytest.fixture(scope="module")
def page(run):
    run_page(run / "inspect.html", run, summaries(run))
    return run / "inspect.html"


@pytest.fixture(scope="module")
def browser(chromium):
    with Browser(chromium) as found:
        yield found


def background(browser) -> str:
    return browser.script("getComputedStyle(document.body).backgroundColor")


def test_the_overview_counts_what_was_recorded(browser, page, run):
    browser.open(page, "overview")
    assert browser.script("document.querySelector('section.on').id") == "overview"
    shown = browser.script("document.querySelector('#overview').textContent")
    assert "Outcomes" in shown and "Histograms" in shown
    assert browser.script("document.querySelector('#total').textContent") == f"({len(summaries(run))})"


def test_filters_search_and_order_of_the_list(browser, page, run):
    rows = summaries(run)
    browser.open(page, "list")
    count = lambda: int(browser.script("document.querySelector('#count').textContent").split()[0])  # noqa: E731
    assert count() == len(rows)
    for name, wanted in (
        ("void", sum(r.void for r in rows)),
        ("timed out", sum(r.timed_out and r.void for r in rows)),
    ):
        browser.script(
            f"[...document.querySelectorAll('#filters button')].find(b => b.textContent === '{name}').click()"
        )
        assert count() == wanted
    browser.open(page, "list&sort=highest ratio")
    shown = browser.script("shown.map(i => index.columns.max_abs_log_ratio[i])")
    assert shown == sorted(shown, reverse=True) and shown[0] > 0
    browser.key("/")
    browser.wait("document.activeElement.id === 'search'")
    for letter in "p2-1":
        browser.key(letter)
    assert count() == sum("p2-1" in r.key for r in rows)
    browser.key("Escape")


def test_a_trajectory_shows_every_token_as_it_was(browser, page, run):
    record = next(iter(trajectories(run)))
    browser.open(page, "list")
    browser.click("#rows .row")
    browser.wait("document.querySelector('section.on').id === 'trajectory'")
    assert browser.script("document.querySelector('#key').textContent") == record.key
    pieces = [f"w{i}" if i % 9 else "↵\n" for i in record.trajectory().ids]
    assert browser.script("document.querySelector('#columns .tokens').textContent") == "".join(pieces)
    origins = [s.origin.value for s in record.segments for _ in s.ids]
    assert browser.script("[...document.querySelectorAll('#columns .tokens > span')].map(s => s.className)") == origins
    assert "print(8 + 9)" in browser.script("document.querySelector('#turns').textContent")


def test_hover_shows_the_numbers_of_the_token(browser, page, run):
    rows = summaries(run)
    at = next(n for n, r in enumerate(rows) if not r.filters)
    browser.open(page, f"t={at}")
    browser.hover(TOKEN)
    browser.wait("!document.querySelector('#tip').hidden")
    shown = browser.script("document.querySelector('#tip').textContent")
    (record,) = trajectories(run, only=[rows[at]])
    number = float(re.search(r"log p sampler(-[\d.]+)", shown).group(1))
    assert number == pytest.approx(record.segments[1].logprobs[0], rel=1e-4, abs=1e-4)
    for label in ("ratio", "prefix log ratio", "its window", "budget used", "divergence", "advantage", "verdict"):
        assert label in shown
    browser.hover("#key")


def test_keys_move_between_trajectories_colours_and_stopped_tokens(browser, page, run):
    rows = summaries(run)
    at = next(n for n, r in enumerate(rows) if not r.filters)
    browser.open(page, f"t={at}")
    colours = {}
    for number in range(1, 10):
        browser.key(str(number))
        colours[browser.script("mode")] = browser.script(
            f"[...document.querySelectorAll('{TOKEN}')].map(s => s.style.background).join()"
        )
    assert {"trained", "advantage", "log-prob", "ratio", "prefix", "budget", "reason"} <= set(colours)
    assert len(set(colours.values())) >= 7
    browser.key("ArrowRight")
    assert not browser.script("document.querySelector('#tip').hidden")
    browser.key("j")
    browser.wait(f"at === {at + 1} && document.querySelector('#key').textContent === {json.dumps(rows[at + 1].key)}")
    browser.key("k")
    browser.wait(f"document.querySelector('#key').textContent === {json.dumps(rows[at].key)}")
    browser.key("n")
    if browser.script("Array.from(current.q.reason).some(r => r > 1)"):
        assert browser.script("current.q.reason[+document.querySelector('.tokens .at').dataset.k]") > 1
    browser.key("Escape")
    browser.wait("document.querySelector('section.on').id === 'list'")


def test_light_and_dark(browser, page):
    browser.dark(False)
    browser.open(page, "t=0")
    light = background(browser)
    browser.key("d")
    dark = background(browser)
    assert light == "rgb(255, 255, 255)" and dark == "rgb(20, 24, 31)"
    browser.dark(True)
    browser.call("Page.reload")
    browser.wait("document.body && document.body.dataset.ready === 'yes' && document.documentElement.dataset.theme")
    assert background(browser) == dark
    browser.dark(False)


def test_the_page_raised_no_error(browser):
    assert browser.errors == []
