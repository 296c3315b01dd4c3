"""Plans of small tables."""

from collections.abc import Callable

import pytest
from tables import DIGITS

from fl_lightning.lab.sweep.plan import Job, plan
from fl_lightning.lab.sweep.table_file import TableFile

Plan = Callable[..., list[Job]]


@pytest.fixture
def planned(tmp_path) -> Plan:
    """Plan a table of this text, with further options."""

    def planned(text: str, *further: str, **files: str) -> list[Job]:
        for name, content in {"table": text, **files}.items():
            (tmp_path / f"{name}.yaml").write_text(content)
        table = TableFile.read(str(tmp_path / "table.yaml"))
        return plan(table, DIGITS, tmp_path / "runs", further)

    return planned
