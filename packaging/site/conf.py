"""Sphinx's settings for the documentation as a site. build.sh gives the version; stage.py makes the pages."""

import os

project = "reshard"
version = release = os.environ["RESHARD_SITE_VERSION"]
html_title = f"reshard {version}"
extensions = ["myst_parser", "sphinx_copybutton"]
root_doc = "index"
myst_heading_anchors = 4
suppress_warnings = ["misc.highlighting_failure", "myst.header", "toc.not_included"]
highlight_language = "none"
html_theme = "furo"
html_theme_options = {"navigation_with_keys": True}
html_show_copyright = False
html_show_sphinx = False
html_copy_source = False
templates_path = ["templates"]
html_sidebars = {"**": [f"{part}.html" for part in ("sidebar/scroll-start", "sidebar/brand", "versions", "sidebar/search", "sidebar/navigation", "sidebar/scroll-end")]}
