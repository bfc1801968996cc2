import pytest

from shoal.ray.readings import IDLE, parse, reading

METRICS = """\
# HELP nv_inference_request_success Successful requests
# TYPE nv_inference_request_success counter
nv_inference_request_success{{model="m",version="1"}} {requests}
nv_inference_exec_count{{model="m",version="1"}} {executions}
nv_inference_compute_infer_duration_us{{model="m",version="1"}} {compute_us}
nv_inference_compute_input_duration_us{{model="m",version="1"}} 0
nv_inference_pending_request_count{{model="m",version="1"}} {pending}
shoal_time_to_drain_seconds{{model="m",version="1"}} {drain}
shoal_model_instances{{model="m",version="1"}} {instances}
process_cpu_seconds_total {cpu}
nv_gpu_utilization{{gpu_uuid="g"}} 1
"""


def sample(at, **values):
    defaults = {"requests": 0, "executions": 0, "compute_us": 0, "pending": 0}
    defaults |= {"drain": 0, "instances": 2, "cpu": 0.0}
    return parse(METRICS.format(**{**defaults, **values}), at)


def test_requests_of_a_batch_share_its_time():
    before = sample(10.0, requests=100, executions=50, compute_us=1_000_000)
    # In two seconds 10 batches of 8 requests, each of 100 ms: 1 s of the 4 s of two instances.
    now = sample(12.0, requests=180, executions=60, compute_us=9_000_000, pending=3, drain=0.4)
    found = reading(before, now, cpus=4)
    assert found.utilisation == pytest.approx(0.25)
    assert (found.queue_secs, found.pending, found.rate) == (0.4, 3, 40.0)


def test_cpus_can_be_what_runs_out_first():
    found = reading(sample(0.0), sample(2.0, cpu=3.0), cpus=2)
    assert found.utilisation == pytest.approx(0.75)
    assert reading(sample(0.0), sample(2.0, cpu=30.0), cpus=2).utilisation == 1.0
    assert reading(sample(0.0), sample(2.0, cpu=30.0), cpus=0).utilisation == 0.0


def test_a_model_that_was_loaded_again_counts_from_zero():
    before = sample(0.0, requests=1000, executions=1000, compute_us=5_000_000)
    now = sample(1.0, requests=10, executions=10, compute_us=100_000)
    found = reading(before, now, cpus=8)
    assert found.rate == 10
    assert found.utilisation == pytest.approx(0.05)


def test_no_time_has_passed():
    assert reading(sample(1.0), sample(1.0, requests=5), cpus=1) == IDLE
    assert parse("", 0.0).models == {}
