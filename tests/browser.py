"""Notebook 00 and the page of results in a real browser: cells run, sliders are moved by the
keyboard, filters filter.

Not collected by default; `make browser-test` runs it. It needs Chromium (Debian: apt-get install
chromium) and speaks the DevTools protocol to it itself. Screenshots go to $T3_SCREENSHOTS, by
default pytest's temporary folder.
"""

import base64
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
import websocket
from conftest import ROOT

from t3lib.lab.report import page

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None,
    reason="no Chromium on this machine: apt-get install chromium (or google-chrome) and try again",
)

# The slider whose label is `label`, the n-th of them on the page.
SLIDER = """
    [...document.querySelectorAll('.widget-hslider')]
        .filter(e => e.querySelector('.widget-label').textContent === %s)[%d]
"""
NOTEBOOK = "[...jupyterapp.shell.widgets('main')].find(w => w.title.label === '00_explore.ipynb')"
# [execution count, error messages] of every code cell.
CELLS = f"""
    [...{NOTEBOOK}.content.model.cells].filter(c => c.type === 'code').map(c => [
        c.executionCount,
        c.toJSON().outputs.filter(o => o.output_type === 'error').map(o => o.evalue)])
"""


class Browser:
    """One page of a headless Chromium, driven over its DevTools socket."""

    def __init__(self, folder: Path) -> None:
        options = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
        ]
        options += [
            f"--user-data-dir={folder}",
            "--remote-debugging-port=0",
            "--window-size=1500,1700",
            "about:blank",
        ]
        self.process = subprocess.Popen(
            [CHROMIUM, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        port = wait_for(
            lambda: (folder / "DevToolsActivePort").read_text().split()[0], 60, "Chromium to start"
        )
        pages = json.load(urllib.request.urlopen(f"http://127.0.0.1:{port}/json"))
        [page] = [page for page in pages if page["type"] == "page"]
        self.socket = websocket.create_connection(
            page["webSocketDebuggerUrl"], suppress_origin=True, timeout=60
        )
        self.sent = 0
        self.exceptions: list[str] = []
        for domain in ("Page", "Runtime"):
            self.ask(f"{domain}.enable")
        self.ask(
            "Emulation.setFocusEmulationEnabled", enabled=True
        )  # JupyterLab's current notebook is the focused one

    def ask(self, method: str, **params):
        self.sent += 1
        self.socket.send(json.dumps({"id": self.sent, "method": method, "params": params}))
        while True:
            answer = json.loads(self.socket.recv())
            if answer.get("method") == "Runtime.exceptionThrown":
                details = answer["params"]["exceptionDetails"]
                self.exceptions.append(
                    details.get("exception", {}).get("description", details["text"])
                )
            if answer.get("id") == self.sent:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def value(self, expression: str):
        """What a JavaScript expression gives; an exception in it raises LookupError."""
        answer = self.ask("Runtime.evaluate", expression=f"({expression})", returnByValue=True)
        if "exceptionDetails" in answer:
            raise LookupError(
                answer["exceptionDetails"]["exception"].get("description", expression)
            )
        return answer["result"].get("value")

    def press(self, key: str, code: int) -> None:
        for kind in ("rawKeyDown", "keyUp"):
            self.ask(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code
            )

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.ask("Page.captureScreenshot")["data"]))
        print(f"screenshot: {path}")

    def close(self) -> None:
        self.socket.close()
        self.process.terminate()
        self.process.wait(30)


def wait_for(found, seconds: float, what: str):
    """The first true value of found(), asked again and again; LookupError and OSError count as not
    yet.
    """
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            if value := found():
                return value
        except (LookupError, OSError):
            pass
        time.sleep(0.05)
    raise AssertionError(f"waited {seconds:.0f} s for {what}")


@pytest.fixture
def lab(tmp_path):
    """The address of notebook 00 in a JupyterLab of its own, which sees a copy: running it must not
    save the source.
    """
    shutil.copy(ROOT / "notebooks" / "00_explore.ipynb", tmp_path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = [
        "--no-browser",
        "--allow-root",
        "--expose-app-in-browser",
        f"--ServerApp.root_dir={tmp_path}",
    ]
    options += [
        "--ServerApp.ip=127.0.0.1",
        f"--ServerApp.port={port}",
        "--IdentityProvider.token=t3",
    ]
    options += [
        "--LabApp.news_url=None",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    ]
    settings = {
        f"JUPYTER_{name}_DIR": str(tmp_path / name.lower()) for name in ("CONFIG", "RUNTIME")
    }
    with open(tmp_path / "lab.log", "w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", *options],
            env=os.environ | settings,
            stdout=log,
            stderr=log,
        )
    address = f"http://127.0.0.1:{port}/lab/tree/00_explore.ipynb?token=t3"
    try:
        wait_for(
            lambda: urllib.request.urlopen(f"http://127.0.0.1:{port}/api?token=t3"),
            90,
            "JupyterLab to start",
        )
        yield address
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture
def browser(tmp_path):
    page = Browser(tmp_path / "chromium")
    yield page
    page.screenshot(Path(os.environ.get("T3_SCREENSHOTS", tmp_path)) / "explore_at_the_end.png")
    page.close()


def move(browser: Browser, label: str, which: int, shown: str) -> tuple[str, str, float]:
    """Press ArrowRight on a slider: its readout before and after, and milliseconds until what
    `shown` gives changed.
    """
    slider = SLIDER % (json.dumps(label), which)
    browser.value(f"{slider}.scrollIntoView({{block: 'center'}}) ?? true")
    before, old = (
        browser.value(f"{slider}.querySelector('.widget-readout').innerText"),
        browser.value(shown),
    )
    browser.value(f"{slider}.querySelector('.noUi-handle').focus() ?? true")
    began = time.monotonic()
    browser.press("ArrowRight", 39)
    wait_for(lambda: browser.value(shown) != old, 30, f"the picture to follow slider {label}")
    spent = (time.monotonic() - began) * 1000
    return before, browser.value(f"{slider}.querySelector('.widget-readout').innerText"), spent


def test_the_sliders_of_notebook_00(lab, browser, tmp_path):
    folder = Path(os.environ.get("T3_SCREENSHOTS", tmp_path))
    browser.ask("Page.navigate", url=lab)
    # Running before the kernel is idle is silently lost.
    idle = f"{NOTEBOOK}.sessionContext.session.kernel.status === 'idle'"
    wait_for(lambda: browser.value(idle), 120, "a kernel")
    browser.value(f"jupyterapp.shell.activateById({NOTEBOOK}.id) ?? true")
    browser.value("jupyterapp.commands.execute('notebook:run-all-cells'), true")
    cells = wait_for(
        lambda: (c := browser.value(CELLS)) and all(count for count, _ in c) and c, 600, "all cells"
    )
    assert not any(errors for _, errors in cells), cells
    wait_for(
        lambda: browser.value("document.querySelectorAll('.noUi-handle').length") == 8,
        60,
        "eight sliders",
    )

    # T of the language half, which comes first: the table follows. T of the synthetic half: the
    # words and the image follow.
    table = "[...document.querySelectorAll('.widget-html-content')].map(e => e.innerText).join()"
    before, after, second = move(browser, "T", 0, table)
    assert (float(before), float(after)) == (3.0, 3.1)
    assert "p^(1/3.1)" in browser.value(table) and "T = 3.1" in browser.value(table)
    before, after, third = move(browser, "position", 0, table)
    assert (int(before), int(after)) == (0, 1)
    browser.screenshot(folder / "explore_language.png")
    words = f"{table} + document.querySelector('.widget-image').src"
    before, after, first = move(browser, "T", 1, words)
    assert (float(before), float(after)) == (1.0, 1.05)
    assert "Retain Error" in browser.value(words)
    browser.screenshot(folder / "explore_synthetic.png")
    assert not browser.exceptions, browser.exceptions
    print(
        f"milliseconds from key to picture: synthetic T {first:.0f}, language T {second:.0f},"
        f" position {third:.0f}"
    )


def test_the_page_of_results(tmp_path):
    """results/<profile>/index.html made anew from run files: filters narrow the list, nothing is
    fetched, no error.
    """
    folder = Path(os.environ.get("T3_SCREENSHOTS", tmp_path))
    profile = Path(os.environ.get("T3_RESULTS", ROOT / "results" / "cpu"))
    for part in ("runs", "tables", "figures", "data.json"):
        (tmp_path / part).symlink_to(profile / part)
    browser = Browser(tmp_path / "chromium")
    try:
        browser.ask("Page.navigate", url=page.write(tmp_path).as_uri())
        wait_for(
            lambda: browser.value("document.querySelectorAll('.card').length"),
            60,
            "answers side by side",
        )
        for section in (
            "headline",
            "temper",
            "answers-side-by-side",
            "table-1",
            "costs",
            "claims",
            "provenance",
        ):
            browser.value(f"document.getElementById('{section}').scrollIntoView() ?? true")
            browser.screenshot(folder / f"page_{section}.png")
        assert browser.value("[...document.images].every(i => i.complete && i.naturalWidth > 0)")
        count = "document.getElementById('count').textContent"
        every = browser.value(count)
        shown = [
            choose(browser, "want", kind) or int(browser.value(count).split()[0])
            for kind in ("right", "wrong")
        ]
        assert sum(shown) == int(every.split()[0]) == int(every.split()[2]), (every, shown)
        # The slider: T3 at T = 1 leaks more of the rows to forget than at its tuned T.
        leaks = "Number(document.querySelector('#counts .ours td').textContent.split(' ')[0])"
        tuned, heat = browser.value(leaks), "document.getElementById('heat')"
        browser.value(f"{heat}.value = 0")
        browser.value(f"{heat}.dispatchEvent(new Event('input'))")
        assert browser.value("document.getElementById('warm').textContent") == "T = 1"
        assert browser.value(leaks) > tuned
        browser.screenshot(folder / "page_cold.png")
        # Words to find: every card that stays holds them.
        word = browser.value("document.querySelector('.card h3').textContent.split(' ').at(-2)")
        browser.value(f"document.getElementById('find').value = {json.dumps(word)}")
        browser.value("document.getElementById('find').dispatchEvent(new Event('input'))")
        cards = browser.value("[...document.querySelectorAll('.card')].map(e => e.innerText)")
        assert cards and all(word.lower() in card.lower() for card in cards), word
        browser.screenshot(folder / "page_found.png")
        labels = browser.value(
            "[...document.querySelectorAll('#list .chip')].map(e => e.textContent.split(' ')[0])"
        )
        assert labels and set(labels) <= {
            "leaked",
            "forgotten",
        }, "on rows to forget a true answer is a leak"
        everything = "document.getElementById('claim-count').textContent"
        rows = browser.value(everything)
        browser.value("document.querySelector('[data-verdict=\"does not hold\"]').click()")
        assert browser.value(everything) != rows and browser.value(
            "document.getElementById('claim-list').open"
        )
        before = browser.value(count), browser.value("document.querySelector('.card')?.innerText")
        choose(browser, "split", "forget05")
        browser.value("document.getElementById('find').value = ''")
        choose(browser, "set", "retain")
        assert (
            browser.value(count),
            browser.value("document.querySelector('.card')?.innerText"),
        ) != before
        assert browser.value(
            "performance.getEntriesByType('resource').every(e => e.name.startsWith('data:'))"
        )
        assert not browser.exceptions, browser.exceptions
    finally:
        browser.close()


def choose(browser: Browser, field: str, value: str) -> None:
    """Choose an entry of a drop-down as a reader does: set it, then tell the page."""
    there = f"document.getElementById('{field}')"
    browser.value(f"{there}.value = {json.dumps(value)}")
    assert browser.value(f"{there}.value") == value, (field, value)
    browser.value(f"{there}.dispatchEvent(new Event('change'))")
