"""The whole book as one PDF with an outline and tags, printed by Chromium.

    python tools/pdf.py    build and print it into the built book, then link it there

The book must have been built (`make book`). Its front page offers the PDF only after this script
has put it there, so the link can't be dead. Exit status: 0 printed, 1 failed, 2 no Chromium.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

import pikepdf

import browser
from repository import ROOT

FILE = "attention-and-transformers.pdf"
FRONT_PAGE = "book/index.html"
BEGIN, END = "<!-- pdf -->", "<!-- end of pdf -->"
MEGABYTE = 1_000_000
NO_BROWSER = (
    "No PDF: printing needs Chromium or Chrome, and neither is on this machine.\n"
    "Install one (Debian, Ubuntu: apt-get install chromium fonts-noto-cjk) and run: make pdf"
)
PAGE_NUMBER = (
    '<div style="width:100%;font-size:8px;text-align:center;color:#555">'
    '<span class="pageNumber"></span></div>'
)


def build_one_page(book: Path) -> Path:
    """Build the whole book as one HTML page in `book/singlehtml`; return the page.

    What `make book` has read is taken over, so this only writes.
    """
    command = [Path(sys.executable).with_name("jupyter-book"), "build", ROOT]
    command += ["--builder", "singlehtml", "--path-output", book.parent]
    done = subprocess.run(command, capture_output=True, text=True)
    page = book / "singlehtml" / FRONT_PAGE
    if done.returncode or not page.is_file():
        raise RuntimeError(f"no page was built:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    # Its addresses start at the top folder, where Sphinx does not put it.
    return page.replace(book / "singlehtml" / "whole-book.html")


def print_page(page: Path, target: Path) -> None:
    """Print a built page; formulas and live figures are drawn before.

    Raises:
        RuntimeError: If something that the page shows is missing.
    """
    with browser.serve(page.parent) as address, browser.start() as chromium:
        tab = chromium.new_context(color_scheme="light").new_page()
        tab.set_default_timeout(300_000)  # a whole book on one page is slow
        missing = []
        tab.on("response", lambda r: r.status < 400 or missing.append(r.url))
        tab.goto(address + page.name, wait_until="load")
        tab.wait_for_function("Boolean(window.MathJax?.startup?.promise)")
        tab.evaluate("MathJax.startup.promise")
        tab.wait_for_load_state("networkidle")
        if missing:
            raise RuntimeError("not loaded: " + ", ".join(missing))
        errors = tab.eval_on_selector_all("mjx-merror", "nodes => nodes.length")
        if errors:
            raise RuntimeError(f"{errors} formulas could not be drawn")
        tab.pdf(
            path=str(target),
            format="A4",
            tagged=True,
            outline=True,
            print_background=True,
            display_header_footer=True,
            header_template="<span></span>",
            footer_template=PAGE_NUMBER,
            margin={"top": "16mm", "bottom": "18mm", "left": "16mm", "right": "16mm"},
        )


def pack(pdf: Path) -> None:
    """Pack the many small objects of a tagged PDF; that halves the file."""
    with pikepdf.open(pdf, allow_overwriting_input=True) as document:
        document.save(pdf, object_stream_mode=pikepdf.ObjectStreamMode.generate)


def offer(front_page: Path, pdf: Path, address: str) -> None:
    """Put the link between the two marks of the built front page.

    Raises:
        ValueError: If the page does not hold the marks once.
    """
    size = max(1, round(pdf.stat().st_size / MEGABYTE))
    link = f'<a class="button" href="{address}" type="application/pdf">PDF, {size} MB</a>'
    text = front_page.read_text(encoding="utf-8")
    old = f"{re.escape(BEGIN)}.*?{re.escape(END)}"
    new, count = re.subn(old, lambda _: f"{BEGIN}{link}{END}", text, flags=re.DOTALL)
    if count != 1:
        raise ValueError(f"{front_page.name} must hold {BEGIN!r} … {END!r} once, found {count}")
    beside = front_page.with_suffix(".new")
    beside.write_text(new, encoding="utf-8")
    beside.replace(front_page)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Print the whole book as one PDF.")
    parser.add_argument(
        "--book", type=Path, default=ROOT / "_build", help="the folder that holds html/"
    )
    args = parser.parse_args(arguments)
    html = args.book / "html"
    if browser.find() is None:
        print(NO_BROWSER, file=sys.stderr)
        return 2
    if not (html / "index.html").is_file():
        print(f"No book in {html}: run make book first.", file=sys.stderr)
        return 1
    try:
        target, beside = html / "_static" / FILE, html / "_static" / f"new-{FILE}"
        print_page(build_one_page(args.book), beside)
        pack(beside)
        beside.replace(target)
        offer(html / FRONT_PAGE, target, f"../_static/{FILE}")
    except (RuntimeError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"Printed {target}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
