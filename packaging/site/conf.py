"""Sphinx's settings for the documentation as a site. build.sh gives the version; stage.py makes the pages."""

import os

project = "reshard"
version = release = os.environ["RESHARD_SITE_VERSION"]
html_title = f"reshard {version}"
extensions = ["myst_parser", "sphinx_copybutton"]
root_doc = "index"
myst_enable_extensions = []
myst_heading_anchors = 4
myst_links_external_new_tab = False
suppress_warnings = ["misc.highlighting_failure", "myst.header", "toc.not_included"]
highlight_language = "none"
html_theme = "furo"
html_theme_options = {"source_repository": "", "navigation_with_keys": True}
html_show_copyright = False
html_show_sphinx = False
html_copy_source = False
templates_path = ["templates"]
html_sidebars = {"**": ["sidebar/scroll-start.html", "sidebar/brand.html", "versions.html", "sidebar/search.html", "sidebar/navigation.html", "sidebar/scroll-end.html"]}
copybutton_exclude = ".linenos, .gp, .go"
