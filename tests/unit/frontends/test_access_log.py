"""What a line of the access log says, and which requests the audit log has."""

import json
from dataclasses import replace

import pytest

from shoal.frontends.access_log import AccessLog, AccessRecord, as_common, as_json

NOW = 1_763_260_418.104
RECORD = AccessRecord(
    protocol="http",
    client="127.0.0.1:50123",
    method="POST",
    path="/v2/models/m/infer",
    version="HTTP/1.1",
    status=200,
    received_bytes=100,
    sent_bytes=512,
    seconds=0.00041,
    api="inference",
    model="m",
)


class Lines(list):
    def write(self, line):
        self.append(line)


def test_the_common_format():
    assert as_common(RECORD, NOW) == (
        '127.0.0.1 - - [16/Nov/2025:02:33:38 +0000] "POST /v2/models/m/infer HTTP/1.1" 200 512 '
        '0.000410 "m"'
    )


def test_clients_cannot_forge_a_line():
    hostile = replace(RECORD, path='/a"\n\\', model='"\r', key="alice")
    assert as_common(hostile, NOW).startswith("127.0.0.1 - alice [")
    assert '"POST /a\\"\\x0a\\\\ HTTP/1.1"' in as_common(hostile, NOW)
    assert as_common(hostile, NOW).endswith(' "\\"\\x0d"')


def test_addresses_of_all_kinds():
    assert as_common(replace(RECORD, client="[::1]:5"), NOW).startswith("[::1] - ")
    assert as_common(replace(RECORD, client="unix:/run/x"), NOW).startswith("unix - ")
    assert as_common(replace(RECORD, client=""), NOW).startswith("- - ")


def test_the_json_format_leaves_out_what_is_not_known():
    assert json.loads(as_json(RECORD, NOW)) == {
        "time": "2025-11-16T02:33:38.104Z",
        "protocol": "http",
        "client": "127.0.0.1:50123",
        "method": "POST",
        "path": "/v2/models/m/infer",
        "model": "m",
        "status": 200,
        "received_bytes": 100,
        "sent_bytes": 512,
        "seconds": 0.00041,
    }


@pytest.mark.parametrize(
    ("changes", "event"),
    [
        ({}, ""),
        ({"status": 400}, ""),
        ({"status": 403}, "refused"),
        ({"status": 401, "api": "health"}, "refused"),
        ({"status": 503, "refused": True}, "refused"),
        ({"api": "model-repository", "changes": True}, "control"),
        ({"api": "model-repository", "changes": True, "status": 400}, "control"),
        ({"api": "model-repository"}, ""),
        ({"api": "inference", "changes": True}, ""),
    ],
)
def test_what_the_audit_log_has(changes, event):
    lines = Lines()
    AccessLog(None, lines).record(replace(RECORD, **changes))
    assert [json.loads(line)["event"] for line in lines] == ([event] if event else [])


def test_a_sample_of_the_access_log_is_no_sample_of_the_audit_log():
    access, audit = Lines(), Lines()
    log = AccessLog(access, audit, sample=0.0)
    log.record(replace(RECORD, status=403))
    assert (len(access), len(audit)) == (0, 1)
    log = AccessLog(access, audit, log_format="json", sample=1.0)
    log.record(RECORD)
    assert json.loads(access[0])["status"] == 200
