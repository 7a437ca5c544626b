"""What all tests share: a home of their own, one torch thread, and no silent skips where CI forbids them."""

import os

import hypothesis
import pytest
import torch

hypothesis.settings.register_profile("default-slow-machines", suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("default-slow-machines")

collect_ignore = [
    "experiment/deployment/liar/sitecustomize.py"
]  # else its folder is on the path, and every node may turn a liar


@pytest.fixture(scope="session", autouse=True)
def _own_home(tmp_path_factory):
    """Tests never read or write the user's caches; nor do the processes they start, of one thread each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITRAIL_HOME", str(tmp_path_factory.mktemp("home")))
        patch.setenv("OMP_NUM_THREADS", "1")
        torch.set_num_threads(1)
        yield


def pytest_sessionfinish(session):
    """Where VITRAIL_NO_SKIPS is set, a skipped test is a failure."""
    report = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("VITRAIL_NO_SKIPS") and report and report.stats.get("skipped"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        report.write_line(f"VITRAIL_NO_SKIPS: {len(report.stats['skipped'])} tests were skipped", red=True)
