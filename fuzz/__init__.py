"""Fuzz targets for every parser that reads what a client sends. README.md says how to run them."""
