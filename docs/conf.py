"""Configure Sphinx, which makes a site of these pages: `make docs` writes it to build/docs.

The site works without a network and without a server. Pages are plain Markdown, so that they can be read on a forge, too.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parents[1]))
from base import VERSION

project = "Slipway"
release = VERSION
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}

# A heading of up to four levels is an anchor, with the name that a forge gives it.
myst_heading_anchors = 4
# `make docs` makes every warning an error: an image, a page or an anchor that is missing ends it.
nitpicky = True

html_theme = "furo"
html_title = project
html_show_sourcelink = False
html_show_copyright = False
highlight_language = "none"  # a block without a language is what a terminal shows
html_copy_source = False
# The theme's captions lack their level, its two sidebars their names, and its search page a heading. Code and tables that are wider than
# the page have to be reached by keyboard.
ACCESSIBLE = """addEventListener("DOMContentLoaded", () => {
  document.querySelectorAll("p.caption[role=heading]").forEach((caption) => caption.setAttribute("aria-level", "2"));
  document.querySelectorAll("pre, .table-wrapper").forEach((wide) => { wide.tabIndex = 0; });
  document.querySelector(".sidebar-drawer").ariaLabel = "All pages";
  document.querySelector(".toc-drawer").ariaLabel = "This page";
  document.getElementById("search-results")?.insertAdjacentHTML("beforebegin", "<h1>Search</h1>");
});"""
html_js_files = [(None, {"body": ACCESSIBLE})]


def link_files_outside(app: Sphinx, page: str, source: list[str]) -> None:
    """Make links to Markdown files outside of docs downloads, as links to every other file there are."""
    up = "../" * (page.count("/") + 1)
    source[0] = re.sub(rf"\]\(({re.escape(up)}[^)#]*\.md)(#[^)]*)?\)", r"](path:\1)", source[0])


def read_index_words(app: Sphinx, page: str, source: list[str]) -> None:
    """Make `<!-- index: oom, memory -->` entries of the index, which the search shows first. On a forge they are not seen."""
    words = re.compile(r"^<!-- index: (.*) -->$", re.MULTILINE)
    source[0] = words.sub(lambda found: f"\n```{{index}} ! {found[1].replace(', ', ', ! ')}\n```\n", source[0])


def setup(app: Sphinx) -> None:
    """Connect what this file adds to Sphinx."""
    app.connect("source-read", link_files_outside)
    app.connect("source-read", read_index_words)
