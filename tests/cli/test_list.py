"""`fl-lightning list`."""

from fl_lightning.algorithms.registry import ALGORITHMS
from fl_lightning.cli.list_algorithms import main


def test_the_list_has_a_row_of_costs_for_each_algorithm_and_fits_a_terminal(capsys):
    main([])
    lines = capsys.readouterr().out.splitlines()
    rows = {cells[0]: cells[-4:] for line in lines if (cells := line.split())}
    assert rows.keys() >= ALGORITHMS.keys()
    assert rows["fedavg"] == ["1", "1", "0", "1"]
    assert rows["scaffold"] == ["2", "2", "1", "1"]
    assert max(map(len, lines)) <= 80
