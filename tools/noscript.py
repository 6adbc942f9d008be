"""What a page shows where scripts do not run: formulas, colours, nothing that wants a click.

* Each formula gets MathML beside the TeX that MathJax draws; one that can't be converted is a
  warning. It stands in `<noscript>`, as all of this does: with scripts nothing of it is seen.
* The theme sets the colours of light and dark by a script; a style sheet made of its rules does
  it by the reader's setting.
* `RULES` hide what only a script could answer and lay open what only a script would unfold.
"""

import re
import unicodedata
from functools import cache, partial
from pathlib import Path
from xml.etree import ElementTree

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.util import logging
from sphinx.util.math import get_node_equation_number
from sphinx.writers.html5 import HTML5Translator

logger = logging.getLogger(__name__)

STYLE = "_static/noscript.css"
RULES = """
/* Of a formula the TeX goes; one with a number stays where its links lead to. */
span.math.notranslate { display: none; }
div.math.notranslate { visibility: hidden; height: 0; margin: 0; padding: 0; overflow: hidden; }
.formula { display: flex; align-items: center; gap: 1em; margin: 1em 0; overflow: auto hidden; }
.formula math { margin: 0 auto; padding: 0.2em 0; }
/* What browsers leave out of MathML. */
math [mathvariant^="bold"] { font-weight: bold; }
math [mathvariant="bold"] { text-transform: none; }
math { font-family: "Cambria Math", "STIX Two Math", "Latin Modern Math", "Noto Sans Math", math; }
mtable[columnspacing] > mtr > mtd { padding-left: 0; padding-right: 0; }
mtd[columnalign="left"] { text-align: -webkit-left; }
mtd[columnalign="right"] { text-align: -webkit-right; }

/* The theme has dark letters there, for a ground that a live figure does without. */
figure.live { color: var(--pst-color-text-base); }

/* Only a script answers these; the lists in the header open by hand, by key and by touch. */
.search-button__wrapper, .search-button-field, .sidebar-toggle, #pst-back-to-top,
.btn-fullscreen-button, .btn-download-pdf-button { display: none !important; }
.bd-header-article .dropdown:focus-within .dropdown-menu { display: block; right: 0; left: auto; }

/* On a narrow screen a script would slide in what stands at the sides: it comes below. */
@media (max-width: 1199.98px) {
  .bd-container__inner, .bd-main .bd-content { flex-wrap: wrap; height: auto; }
  .bd-sidebar-primary, .bd-sidebar-secondary {
    position: static; visibility: visible; order: 1; flex: 1 0 100%; width: 100%;
    max-width: none; height: auto; max-height: none; margin: 0;
  }
}
"""

NAMESPACE = ' xmlns="http://www.w3.org/1998/Math/MathML"'
# The converter knows `split`, which is the same, and single delimiters after \\bigl.
INSTEAD = {"{aligned}": "{split}", r"\lVert": r"\|", r"\rVert": r"\|"}


@cache
def mathml(tex: str, block: bool = False) -> str:
    """Convert a formula to MathML as browsers draw it.

    Args:
        tex: LaTeX without delimiters and without macros of our own.
        block: Whether it stands in a line of its own.

    Raises:
        ValueError: If a part of it is not understood.
    """
    for old, new in INSTEAD.items():
        tex = tex.replace(old, new)
    try:
        made = convert(tex, display="block" if block else "inline")
        (row,) = tree = ElementTree.fromstring(made.replace(NAMESPACE, ""))
    except Exception as error:  # each fault of a formula has a class of its own
        raise ValueError(f"no MathML for {tex!r}: {error!r}") from error
    for node in row.iter():
        text = node.text or ""
        if "\\" in text or node.get("linebreak"):
            raise ValueError(f"no MathML for {tex!r}: {text or 'a new line'} is not understood")
        variant = node.get("mathvariant", "")
        if variant == "double-struck":
            node.text = _double_struck(text)
            del node.attrib["mathvariant"]
        elif len(text) == 1 and "GREEK CAPITAL" in unicodedata.name(text):  # upright, as in TeX
            node.set("mathvariant", "bold" if "bold" in variant else "normal")
        elif node.tag == "mo" and text.isalpha():  # an operator has space on both sides
            node.tag, node.attrib = "mi", {"mathvariant": "normal"} if len(text) == 1 else {}
        elif text == "|":  # around an absolute value
            node.attrib |= {"lspace": "0", "rspace": "0"}
        elif node.get("width") == "negativethinmathspace":  # no length in browsers
            node.set("width", "-0.167em")
        if node.tag in ("mrow", "mtd"):
            _space_names(node)
    tree.attrib = {"display": "block"} if block else {}
    return ElementTree.tostring(tree, encoding="unicode")


def _space_names(row: ElementTree.Element) -> None:
    """Put the space of TeX between a name, such as exp, and what is neither operator nor space."""
    for i in range(len(row) - 1, 0, -1):
        pair = row[i - 1 : i + 1]
        named = any(node.tag == "mi" and len(node.text or "") > 1 for node in map(_base, pair))
        if named and not any(node.tag in ("mo", "mspace") for node in pair):
            row.insert(i, ElementTree.Element("mspace", width="0.167em"))


def _base(node: ElementTree.Element) -> ElementTree.Element:
    return node[0] if node.tag in ("msub", "msup", "msubsup", "munder") else node


def _double_struck(letter: str) -> str:
    name = unicodedata.name(letter).replace("LATIN ", "").replace("LETTER ", "")
    for beginning in ("", "MATHEMATICAL "):
        try:
            return unicodedata.lookup(f"{beginning}DOUBLE-STRUCK {name}")
        except KeyError:
            pass
    raise ValueError(f"no double-struck {letter!r}")


def _visit(draw, translator: HTML5Translator, node: nodes.Element) -> None:
    """Draw a formula as before, then add its MathML."""
    try:
        draw(translator, node)
    except nodes.SkipNode:
        if translator.builder.name == "html":  # not in the page that is printed
            translator.body.append(_fallback(translator, node))
        raise


def _fallback(translator: HTML5Translator, node: nodes.Element) -> str:
    tex, block = node.astext(), isinstance(node, nodes.math_block)
    for name, text in translator.config.mathjax3_config["tex"]["macros"].items():
        tex = re.sub(rf"\\{name}(?![A-Za-z])", lambda _, text=text: text, tex)
    try:
        made = mathml(tex, block)
    except ValueError as error:
        logger.warning(str(error), location=node, type="course")
        return ""
    if block:
        if node["number"]:
            made += f"<span>({get_node_equation_number(translator, node)})</span>"
        made = f'<div class="formula">{made}</div>'
    return f"<noscript>{made}</noscript>"


def colours(sheets: list[str]) -> str:
    """Return the rules for a theme set by a script, under the reader's own setting instead."""
    text = re.sub(r"/\*.*?\*/", "", "\n".join(sheets), flags=re.DOTALL)
    parts = []
    for scheme in ("light", "dark"):
        attribute = rf"\[data-theme=[\"']?{scheme}[\"']?\]"
        rules = re.findall(rf"[^{{}};]*{attribute}[^{{}}]*{{[^{{}}]*}}", text)
        found = re.sub(attribute, '[data-theme="auto"]', "".join(rules))
        parts.append(f"@media (prefers-color-scheme: {scheme}) {{{found}\n}}\n")
    return "".join(parts)


def write_style(app, error: Exception | None) -> None:
    """Write the style sheet, which `_templates/layout.html` names: colours, then `RULES`."""
    if error is None and app.builder.name == "html":
        static = Path(app.outdir, "_static")
        # In the order of the pages: the theme's, what extensions add, the course's.
        paths = [*sorted(static.glob("styles/*.css")), *sorted(static.glob("*.css"))]
        paths.sort(key=lambda path: path.name == "course.css")
        made = colours([path.read_text(encoding="utf-8") for path in paths])
        Path(app.outdir, STYLE).write_text(made + RULES, encoding="utf-8")


def add_mathml(app) -> None:
    """Have the renderer of formulas, whoever gave it, add MathML."""
    for renderers in (
        app.registry.html_inline_math_renderers,
        app.registry.html_block_math_renderers,
    ):
        draw, depart = renderers["mathjax"]
        renderers["mathjax"] = (partial(_visit, draw), depart)


def install(app) -> None:
    """Have it all done in this build."""
    app.connect("builder-inited", add_mathml, priority=900)  # after MyST has put in its own
    app.connect("build-finished", write_style)
