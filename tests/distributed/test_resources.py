"""Cores, memory and threads that a process may use."""

import pytest

from fl_lightning.distributed import resources as machine
from fl_lightning.distributed.resources import Machine

GIB = 1024**3


@pytest.fixture
def environment(monkeypatch):
    """Without what `fabric run`, or who runs the tests, has set."""
    for name in ("OMP_NUM_THREADS", "LT_CLI_USED"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.parametrize(
    ("named", "by_fabric_run", "threads"),
    [
        (None, False, None),
        ("3", False, 3),
        ("3,1", False, 3),
        ("many", False, None),
        ("3", True, 3),
        ("4", True, None),
    ],
)
def test_threads_are_the_users_unless_fabric_run_set_them(
    named, by_fabric_run, threads, environment
):
    """It sets them to all processors, of which there are four here, for any number of ranks."""
    environment.setattr(machine, "affinity", lambda: {0, 1, 4, 5})
    if named:
        environment.setenv("OMP_NUM_THREADS", named)
    if by_fabric_run:
        environment.setenv("LT_CLI_USED", "1")
    assert Machine.here().threads == threads


def test_quotas_and_limits_of_control_groups_bound_the_machine(tmp_path, environment):
    """Those of the group itself and of every group above it."""
    (tmp_path / "user/job").mkdir(parents=True)
    (tmp_path / "process").write_text("9:name=systemd:/\n0::/user/job\n")
    for name, contents in {
        "user/job/cpu.max": "max 100000\n",
        "user/cpu.max": "150000 100000\n",
        "user/job/memory.max": "max\n",
        "user/job/memory.current": f"{GIB // 2}\n",
        "user/memory.max": f"{3 * GIB}\n",
        "user/memory.current": f"{2 * GIB}\n",
    }.items():
        (tmp_path / name).write_text(contents)
    limits = machine.limits
    assert list(limits("cpu.max", tmp_path, tmp_path / "process")) == [
        "max 100000",
        "150000 100000",
    ]
    environment.setattr(
        machine, "limits", lambda name: limits(name, tmp_path, tmp_path / "process")
    )
    here = Machine.here()
    assert (here.cores, here.memory) == (1, GIB)
    assert list(limits("cpu.max", tmp_path, tmp_path / "missing")) == []


def test_hyper_threads_of_a_core_are_one_core(tmp_path):
    for i, siblings in enumerate(["0,2", "1,3", "0,2", "1,3"]):
        (tmp_path / f"cpu{i}/topology").mkdir(parents=True)
        (tmp_path / f"cpu{i}/topology/thread_siblings_list").write_text(f"{siblings}\n")
    assert machine.physical(range(4), tmp_path) == 2
    assert machine.physical([0, 2], tmp_path) == 1
    assert machine.physical([0, 7, 8], tmp_path) == 3, "where the system does not say, each counts"
