"""The load generators, none of them ours: wrk, h2load and perf_analyzer."""
