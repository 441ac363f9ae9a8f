"""The live page: a small local server for a fitted model, and the files that the browser loads."""
