"""The built pages in a real browser: nothing from elsewhere, no script error, no bad formula.

Skipped where there is no Chromium or Chrome; `.ci/run` installs one.
"""

import functools
import http.server
import shutil
import threading
from pathlib import Path

import pytest
from sample import ROOT

HTML = ROOT / "_build" / "html"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)
FLAGS = """--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync
--disable-background-networking --disable-component-update""".split()
PAGES = sorted(str(p.relative_to(ROOT).with_suffix(".html")) for p in [
    *ROOT.glob("book/*.md"), *ROOT.glob("notebooks/*.ipynb")
])  # fmt: skip

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome on this machine")


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


class QuietServer(http.server.ThreadingHTTPServer):
    def handle_error(self, request, client_address):
        """Ignore connections that the browser closes early."""


@pytest.fixture(scope="module")
def address():
    assert (HTML / "index.html").is_file(), "no book in _build/html: run make book"
    handler = functools.partial(Quiet, directory=str(HTML))
    with QuietServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=BROWSER, args=FLAGS)


def visit(browser, url, address, **context):
    """Open a page with an empty profile; return it and all that went wrong while it loaded."""
    page = browser.new_context(**context).new_page()
    wrong = []
    page.on("pageerror", lambda error: wrong.append(f"script error: {error}"))
    page.on("requestfailed", lambda request: wrong.append(f"not loaded: {request.url}"))

    def note_request(request):
        if not request.url.startswith((address, "data:", "blob:")):
            wrong.append(f"asked elsewhere: {request.url}")

    def note_message(message):
        if message.type == "error":
            wrong.append(f"console: {message.text}")

    page.on("request", note_request)
    page.on("console", note_message)
    page.goto(url, wait_until="networkidle")
    return page, wrong


@pytest.mark.parametrize("name", PAGES)
def test_a_page_loads_cleanly_and_fits_a_telephone(name, address, browser):
    narrow = {"width": 360, "height": 740}
    page, wrong = visit(browser, address + name, address, viewport=narrow, color_scheme="dark")
    bad_formulas = page.eval_on_selector_all(
        "mjx-merror", "nodes => nodes.map(n => n.getAttribute('data-mjx-error'))"
    )
    too_wide = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
    theme = page.evaluate("document.documentElement.dataset.theme")
    page.context.close()
    assert wrong == [] and bad_formulas == []
    assert too_wide <= 0, f"{too_wide} pixels wider than the window"
    assert theme == "dark"


def test_the_front_page_leads_to_the_book(address, browser):
    page, wrong = visit(browser, address, address)
    page.wait_for_url("**/book/index.html")
    title = page.title()
    page.context.close()
    assert wrong == [] and title.startswith("Attention and Transformers")


def test_what_goes_wrong_is_seen(tmp_path, address, browser):
    """A page that does everything wrong, so that a silent check would be noticed."""
    (tmp_path / "bad.html").write_text(
        "<script>undefinedName()</script><script src='http://127.0.0.1:1/x.js'></script>"
    )
    page, wrong = visit(browser, Path(tmp_path, "bad.html").as_uri(), address)
    page.context.close()
    kinds = {line.partition(":")[0] for line in wrong}
    assert {"script error", "asked elsewhere", "not loaded", "console"} <= kinds
