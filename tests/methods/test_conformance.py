"""Every registered method, and its private variants, pass the conformance checks of `vitrail.testing`."""

import pytest

from tests.federation import PRIVATE, quick
from vitrail.methods import METHODS
from vitrail.testing.conformance import CHECKS, Subject, check_async, check_workers


@pytest.fixture(scope="module")
def subject(tmp_path_factory):
    built = {}

    def get(name):
        if name not in built:
            built[name] = Subject(quick(name), tmp_path_factory.mktemp("subject"))
        return built[name]

    return get


FIRST = ("prism", "fedgan", "moments")  # the others are slow together


def names(found):
    return [pytest.param(n, marks=() if n in FIRST else pytest.mark.slow) for n in found]


@pytest.mark.parametrize("name", names([*METHODS, *PRIVATE]))
@pytest.mark.parametrize(
    "check", [c for c in CHECKS if c not in (check_workers, check_async)], ids=lambda c: c.__name__
)
def test_method_passes(check, name, subject):
    check(subject(name))


@pytest.mark.parametrize("name", names(METHODS))
@pytest.mark.parametrize("check", [check_workers, check_async], ids=lambda c: c.__name__)
def test_method_passes_with_workers(check, name, subject):
    check(subject(name))
