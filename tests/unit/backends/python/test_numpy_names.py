from __future__ import annotations

import numpy as np
import pytest

from shoal.backends.python import numpy_names

pytestmark = pytest.mark.skipif(
    not numpy_names._is_two(), reason="numpy 1 has these names of its own"
)


@pytest.fixture(autouse=True)
def clean():
    numpy_names.install()
    yield
    for name in numpy_names._REPLACEMENTS:
        vars(np).pop(name, None)


def test_old_names_are_found_with_one_warning(caplog):
    for _ in range(2):
        assert getattr(np, "NINF") == -np.inf  # noqa: B009 - what a linter would rewrite
    assert getattr(np, "float_") is np.float64  # noqa: B009
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == 2
    assert "uses np.NINF" in texts[0]
    assert "write -np.inf" in texts[0]
    assert "write np.float64" in texts[1]


def test_every_replacement_exists():
    for name in numpy_names._REPLACEMENTS:
        assert getattr(np, name) is not None


def test_other_names_are_still_unknown():
    with pytest.raises(AttributeError):
        _ = np.nothing_of_this_name
