"""The page of results in a real browser: filters filter, nothing is fetched, no error.

Not collected by default; `make browser-test` runs it. It needs Chromium (Debian: apt-get install
chromium) and speaks the DevTools protocol to it itself. Screenshots go to $T3_SCREENSHOTS, by
default pytest's temporary folder.
"""

import base64
import json
import os
import shutil
import subprocess
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
            for kind in ("told", "hidden")
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
            "[...document.querySelectorAll('#list .chip')].map(e => e.textContent.split(':')[0])"
        )
        assert labels and set(labels) <= {
            "leaks",
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
