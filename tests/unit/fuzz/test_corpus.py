"""Every fuzz target over its corpus and over fixed changes of it; `make fuzz` searches further."""

from __future__ import annotations

import pytest

from fuzz.targets import CORPUS, TARGETS, mutations, seeds

MUTATIONS = 60


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_finds_nothing(name):
    target = TARGETS[name]
    for seed in seeds(name):
        target(seed)
        for changed in mutations(seed, MUTATIONS):
            try:
                target(changed)
            except BaseException:
                print(f"{name}: {changed!r}")
                raise
    target(b"")


def test_every_corpus_has_its_target():
    assert {folder.name for folder in CORPUS.iterdir()} == set(TARGETS)
