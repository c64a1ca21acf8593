"""How Sphinx builds the site: `make docs`, without a network, with warnings as errors."""

import pathlib
import sys

ROOT = pathlib.Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "kernels"), str(ROOT / "docs" / "_ext")]

import fljax  # noqa: E402 - found by the line above, installed or not

project = "fljax"
author = "The fljax authors"
copyright = "the fljax authors"
version = release = fljax.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "generated",  # docs/_ext: pages made of the code
]
exclude_patterns = ["_build", "_ext"]
nitpicky = False  # types of JAX and NumPy stand in other sites, which are not asked

# Pages are Markdown; tutorials are notebooks kept as text, and run as the site is built.
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
nb_execution_mode = "force"
nb_execution_timeout = 600  # a busy machine; on a quiet one no cell takes a minute
nb_execution_in_temp = True  # runs leave folders
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_merge_streams = True

# Docstrings: Google's sections, and Markdown's backticks.
default_role = "code"
smartquotes = False  # two dashes begin a flag
autodoc_member_order = "bysource"
autodoc_typehints = "none"
napoleon_numpy_docstring = False
napoleon_google_docstring = True
napoleon_use_param = False
napoleon_use_rtype = False

html_theme = "furo"
html_title = f"fljax {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {"navigation_with_keys": True}
