"""Every chapter, opened in JupyterLab itself: it reads as meant, and folds what the book folds.

Skipped where there is no Chromium or Chrome; `.ci/run` installs one.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from urllib.parse import urlsplit

import pytest

import browser as chromium  # in tools/, which `sample` has put on the path
from sample import ROOT, folds, notebooks

NOTEBOOKS = notebooks.all_notebooks()
TOKEN = "chapters"
# Without windowing all cells exist at once; news would be asked for over the network.
SETTINGS = {
    "@jupyterlab/notebook-extension:tracker": {"windowingMode": "none"},
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False},
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(chromium.find() is None, reason="no Chromium or Chrome here"),
]


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """JupyterLab on a copy of the chapters and pages; gives the address of its folder."""
    folder = tmp_path_factory.mktemp("lab")
    for name in ("notebooks", "book"):
        shutil.copytree(ROOT / name, folder / "course" / name)
    (folder / "settings").mkdir()
    overrides = folder / "settings" / "overrides.json"
    overrides.write_text(json.dumps(SETTINGS), encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    places = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")
    server = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "jupyterlab",
            "--no-browser",
            "--ip=127.0.0.1",
            "--allow-root",
            f"--port={port}",
            "--ServerApp.port_retries=0",
            f"--IdentityProvider.token={TOKEN}",
            f"--ServerApp.root_dir={folder / 'course'}",
            f"--LabApp.app_settings_dir={folder / 'settings'}",
        ],
        env=os.environ | {name: str(folder / name) for name in places},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    address = f"http://127.0.0.1:{port}/"
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(f"{address}api?token={TOKEN}", timeout=5).close()
                break
            except (urllib.error.URLError, OSError):
                assert server.poll() is None, "JupyterLab has ended"
                time.sleep(0.1)
        yield address
    finally:
        server.terminate()
        server.wait()


@pytest.fixture(scope="module")
def window(lab):
    with chromium.start() as started:
        yield started.new_page(viewport={"width": 1280, "height": 900})


LOOK = """() => {
    const texts = [...document.querySelectorAll('.jp-MarkdownCell')];
    const shown = element => element.checkVisibility();
    const words = cell => {
        const copy = cell.querySelector('.jp-RenderedMarkdown').cloneNode(true);
        copy.querySelectorAll('mjx-container, code, pre').forEach(e => e.remove());
        return copy.textContent;
    };
    return {
        rendered: texts.map(cell => !!cell.querySelector('.jp-RenderedMarkdown')),
        words: texts.map(words),
        listings: texts.flatMap(cell => [...cell.querySelectorAll('pre')].map(e => e.textContent)),
        broken: document.querySelectorAll('mjx-merror, .MathJax_Error').length,
        quotes: [...document.querySelectorAll('.jp-RenderedMarkdown blockquote strong')].map(
            e => e.textContent).filter(t => t.includes('Claim ')),
        numbers: [...document.querySelectorAll('mjx-mlabeledtr mjx-mtext, mjx-labels mjx-mtext')].map(
            e => e.textContent),
        pictures: [...document.querySelectorAll('.jp-OutputArea img')].map(e => e.naturalWidth),
        links: texts.flatMap(cell => [...cell.querySelectorAll('a[href]')].filter(
            a => !a.classList.contains('jp-InternalAnchorLink')).map(a => a.getAttribute('href'))),
        codes: [...document.querySelectorAll('.jp-CodeCell')].map(
            cell => shown(cell) && !!cell.querySelector('.jp-InputArea-editor')
                && shown(cell.querySelector('.jp-InputArea-editor'))),
        folded: texts.filter(cell => cell.querySelector('.jp-RenderedMarkdown h4')).map(cell => {
            const next = cell.nextElementSibling;
            return !!next && !shown(next);
        }),
    };
}"""


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_chapter_reads_as_meant(lab, window, path):
    window.goto(f"{lab}lab/tree/notebooks/{path.name}?token={TOKEN}&reset")
    cells = notebooks.read(path)
    text = [c for c in cells if c["cell_type"] == "markdown"]
    window.wait_for_function(
        f"document.querySelectorAll('.jp-MarkdownCell .jp-RenderedMarkdown').length == {len(text)}",
        timeout=60_000,
    )
    source = "\n".join(c["source"] for c in text)
    tags = re.findall(r"\\tag\{([\d.]+)\}", source)
    if tags:
        window.wait_for_selector("mjx-container", state="attached", timeout=60_000)
        window.wait_for_timeout(1500)
    seen = window.evaluate(LOOK)

    assert all(seen["rendered"])
    raw = re.compile(r"\{[\w:-]+\}`|:class:|\{admonition|\$|\\(?:mathbf|tag|begin)")
    assert [words for words in seen["words"] if raw.search(words)] == []
    assert not [listing for listing in seen["listings"] if listing.startswith(("{", ":"))]
    assert seen["broken"] == 0
    claims = [f["title"] for f in notebooks.PART.finditer(source) if f["title"]]
    assert [re.sub(r"^\S |\.$", "", quote) for quote in seen["quotes"]] == [
        title.replace("$", "") for title in claims
    ]
    pictures = [
        data
        for cell in cells
        for output in cell.get("outputs", [])
        for data in output.get("data", {})
        if data.startswith("image/")
    ]
    assert len(seen["pictures"]) == len(pictures) and all(seen["pictures"])
    own = [link for link in seen["links"] if not link.startswith("https://")]
    for link in own:
        assert link.startswith(f"{lab}files/"), link
        assert (ROOT / urlsplit(link).path.removeprefix("/files/")).exists(), link
    assert len(own) == len(re.findall(r"\]\((?!https://)[^)]", source))
    in_solution, hidden = False, []
    for cell in cells:
        if cell["cell_type"] == "markdown" and cell["source"].startswith("#"):
            in_solution = cell["source"] == folds.SOLUTION
        if cell["cell_type"] == "code":
            hidden.append(in_solution or folds.is_folded(cell))
    assert seen["codes"] == [not h for h in hidden]
    assert seen["folded"] and all(seen["folded"])
