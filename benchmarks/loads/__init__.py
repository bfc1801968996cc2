"""The load generators: wrk, h2load and perf_analyzer, and `open_loop` of our own."""
