"""Runs NVIDIA's public examples, unmodified, against Shoal: see tools/upstream_examples.py."""
