"""Settings of the documentation build (`make docs`)."""

from importlib.metadata import version as installed_version

project = "gppvae"
author = "The gppvae developers"
copyright = "The gppvae developers"
release = version = installed_version("gppvae")

extensions = ["myst_parser", "sphinx.ext.mathjax"]
myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = f"gppvae {release}"
