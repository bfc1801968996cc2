"""Tests of Shoal. A package only so that tests and benchmarks can import `tests.support`."""
