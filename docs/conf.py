"""Sphinx configuration of the documentation site; `make docs` builds it.

The repository's root is the source folder, so a page has the same place on the site and in the repository, and its
relative links work in both. API pages are made from the source text of `ffn`: nothing of it is imported.
"""

import re
import shutil
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[1]

project = "FFN pipeline"
release = re.search(r'__version__ = "(.+)"', (ROOT / "ffn" / "__init__.py").read_text()).group(1)
html_title = f"{project} {release}"
html_theme = "furo"
html_show_copyright = False

# --- Pages ----------------------------------------------------------------------------------------------
extensions = ["myst_parser", "sphinx.ext.napoleon", "autoapi.extension"]
root_doc = "README"
include_patterns = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/**"]
exclude_patterns = [".*", "build", "results", "tests"]
myst_heading_anchors = 3
NAVIGATION = {  # for each page, the pages below it by caption
    "README": {
        "Use": [
            "docs/tutorial",
            "docs/own-data",
            "docs/stages",
            "docs/viewing",
            "docs/proofreading",
            "docs/training",
            "docs/distributed",
            "docs/cluster",
            "docs/scale",
            "docs/faults",
            "docs/studies",
            "docs/gpu",
            "docs/formats",
            "docs/outputs",
            "docs/options",
            "docs/glossary",
        ],
        "Develop": [
            "CONTRIBUTING",
            "docs/architecture",
            "docs/design",
            "docs/experiments",
            "API <docs/api/ffn/index>",
            "CHANGELOG",
        ],
    },
    "docs/cluster": {"Profiles": ["profiles/*"]},
}

# --- API ------------------------------------------------------------------------------------------------
autoapi_dirs = ["ffn"]
autoapi_root = "docs/api"
autoapi_options = ["members", "show-inheritance"]
autoapi_add_toctree_entry = False
default_role = "literal"  # numpydoc's `name`
suppress_warnings = ["autoapi.python_import_resolution"]  # of `A, B = 1, 2`, which it does not parse
napoleon_google_docstring = False
napoleon_use_param = napoleon_use_rtype = False  # types are prose: "of shape (Z, Y, X)" is no link to a `shape`
napoleon_custom_sections = [("Attributes", "params_style")]


def add_navigation(app: Sphinx, docname: str, source: list[str]) -> None:
    """Append tables of contents to pages; in the repository they would only be noise."""
    for caption, pages in NAVIGATION.get(docname, {}).items():
        options = f":hidden:\n:glob:\n:caption: {caption}\n"
        source[0] += "\n\n```{toctree}\n" + options + "\n" + "\n".join(pages) + "\n```\n"


def fold_navigation(app: Sphinx, docname: str, template: str, context: dict, doctree: nodes.document | None) -> None:
    """Unfold only the page's own branch: hundreds of modules next to each page would double the time and the size."""
    toctree = context["toctree"]
    context["toctree"] = lambda **options: toctree(**options | {"collapse": True})


def copy_home_page(app: Sphinx, exception: Exception | None) -> None:
    """Give web servers the file that they look for."""
    if exception is None:
        shutil.copy(app.outdir / f"{root_doc}.html", app.outdir / "index.html")


def skip_help(app: Sphinx, what: str, name: str, obj: object, skip: bool, options: list[str]) -> bool:
    """Leave out what `--help` prints: text with wildcards, no reStructuredText."""
    return skip or name.endswith(".add_arguments")


def setup(app: Sphinx) -> None:
    """Add what is above."""
    app.connect("autoapi-skip-member", skip_help)
    app.connect("source-read", add_navigation)
    app.connect("html-page-context", fold_navigation, priority=400)  # before the theme, which has 500
    app.connect("build-finished", copy_home_page)
