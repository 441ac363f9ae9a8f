"""The live page: a local server for a fitted model, and the static files of the page."""
