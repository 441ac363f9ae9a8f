"""Settings of the documentation build (`make docs`): nothing on the pages is fetched from elsewhere."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

from gppvae import __version__

project = "gppvae"
author = "The gppvae developers"
copyright = "The gppvae developers"
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "offline_math", "other_pages", "plain_docstrings"]
myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4
exclude_patterns = ["_build", "_ext"]

autodoc_typehints = "none"  # argument types are in the text
autodoc_member_order = "bysource"
autodoc_class_signature = "separated"

html_theme = "furo"
html_title = f"gppvae {release}"
html_math_renderer = "offline"
html_static_path = ["_static"]
html_css_files = ["gppvae.css"]
html_copy_source = False
