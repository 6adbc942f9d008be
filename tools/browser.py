"""A Chromium for printing and for the tests: find it, start it, serve a folder to it."""

import contextlib
import functools
import http.server
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# A fresh profile that asks nobody for anything.
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
]


def find() -> str | None:
    """Return the path of a Chromium or Chrome, or None if there is none on this machine."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


class _QuietServer(http.server.ThreadingHTTPServer):
    def handle_error(self, request, client_address):
        """Ignore connections that the browser closes early."""


@contextlib.contextmanager
def serve(folder: Path) -> Iterator[str]:
    """Serve a folder on this machine alone; gives the address, with a slash at its end."""
    handler = functools.partial(_Quiet, directory=str(folder))
    with _QuietServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@contextlib.contextmanager
def start() -> Iterator:
    """Start the browser without a window; gives Playwright's browser.

    Raises:
        FileNotFoundError: If there is no Chromium or Chrome.
    """
    from playwright.sync_api import sync_playwright

    path = find()
    if path is None:
        raise FileNotFoundError(f"no Chromium or Chrome on this machine (looked for {NAMES})")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()
