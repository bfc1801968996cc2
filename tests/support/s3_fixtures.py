"""The fixtures of tests with `MisbehavingS3`; a conftest imports them."""

from __future__ import annotations

import pytest

from shoal.storage.retries import RetryPolicy
from tests.support.s3_server import MisbehavingS3

QUICK = RetryPolicy(attempts=4, first_secs=0.002, longest_secs=0.01)


@pytest.fixture(scope="session")
def s3_server():
    with MisbehavingS3() as server:
        yield server


@pytest.fixture
def s3(s3_server, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "sEcReT")
    s3_server.reset()
    return s3_server
