"""The load generators: wrk, h2load and perf_analyzer, and for open loops `shoal perf`."""
