"""Options of the tests; their fixtures are in `helpers/shared.py`."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--golden",
        default=None,
        help="folder of recorded trajectories to replay (default: tests/golden)",
    )


def pytest_configure(config: pytest.Config) -> None:
    forks = "ignore:.*multi-threaded.*fork.*:DeprecationWarning"  # of torch's idle threads
    config.addinivalue_line("filterwarnings", forks)
    tests_here = hasattr(config, "workerinput") or config.getoption("dist", "no") == "no"
    if tests_here:  # the process that only hands out tests needs no torch, which takes seconds
        config.pluginmanager.import_plugin("shared")
