"""Sphinx, MyST and Furo; options and examples are generated from the code."""

from __future__ import annotations

import sys
from pathlib import Path

import shoal

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

project = "Shoal"
author = "the Shoal authors"
version = release = shoal.__version__

extensions = ["myst_parser", "from_code"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build", "_extensions"]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

smartquotes = False  # they would turn the dashes of --options into others

html_theme = "furo"
html_title = f"Shoal {release.partition('+')[0]}"
html_show_sphinx = False
