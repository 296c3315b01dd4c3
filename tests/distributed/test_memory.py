"""The memory that a process may still take."""

from pathlib import Path

import pytest

from fl_lightning.distributed import memory

NAMES = {2: "cgroup memory.max memory.current inactive_file"}
NAMES[1] = "cgroup/memory memory.limit_in_bytes memory.usage_in_bytes total_inactive_file"
LINES = {2: "0::/job/step\n", 1: "3:cpu:/\n2:hugetlb,memory:/job/step\n0::/\n"}


def write(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{content}\n")


def test_this_machine_has_memory():
    assert memory.available_memory() > 0


@pytest.mark.parametrize("version", [1, 2])
def test_control_groups_leave_less_than_the_machine(version, tmp_path, monkeypatch):
    """The smallest of what the group and those above it leave; cached files count as free."""
    monkeypatch.setattr(memory, "ROOT", tmp_path)
    write(tmp_path / "proc/meminfo", "MemTotal: 9 kB\nMemAvailable:       5 kB")
    assert memory.available_memory() == 5 * 1024
    write(tmp_path / "proc/self/cgroup", LINES[version])
    top, limit, usage, inactive = NAMES[version].split()
    unlimited = "max" if version == 2 else 9223372036854771712
    for folder, most, used in (("job/step", unlimited, 7), ("job", 3000, 1500)):
        write(tmp_path / "sys/fs" / top / folder / limit, most)
        write(tmp_path / "sys/fs" / top / folder / usage, used)
        write(tmp_path / "sys/fs" / top / folder / "memory.stat", f"anon 20\n{inactive} 100")
    assert memory.available_memory() == 3000 - 1500 + 100
