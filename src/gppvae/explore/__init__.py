"""The live page: a small server on this machine over a fitted model, and the files that the browser loads."""
