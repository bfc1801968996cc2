import pytest

from shoal.storage.mirrors import Mirrors, StorageSettings
from tests.support.s3_fixtures import QUICK, s3, s3_server

__all__ = ["s3", "s3_server"]


@pytest.fixture
def mirrors(tmp_path):
    """Makes mirrors that share a cache, as one server after another does."""
    made = []

    def make(**settings):
        settings = {"cache": str(tmp_path / "cache"), "retries": QUICK, **settings}
        made.append(Mirrors(StorageSettings(**settings)))
        return made[-1]

    yield make
    for one in made:
        one.close()
