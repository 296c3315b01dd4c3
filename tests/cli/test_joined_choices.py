"""A repeated --send adds the terms of all its choices, in one order."""

import pytest
from refusals import experiment, refused

from fl_lightning.cli.parser import unused_option_notes
from fl_lightning.terms import Quantize, TopK
from fl_lightning.training.arguments import read_algorithm
from fl_lightning.training.parts import algorithm

PAIR = "--send topk --send.share 0.1 --send quantize --send.bits 4"
TERMS = TopK(0.1), Quantize(4)


@pytest.mark.parametrize(
    "argv",
    [
        PAIR,
        "--send quantize --send.bits 4 --send.share 0.1 --send TopK",
        "--send topk+quantize --send.share 0.1 --send.bits 4",
        "--send topk --send quantize+topk --send.share 0.1 --send.bits 4",
    ],
)
def test_the_terms_of_all_are_added(argv, tmp_path):
    run = experiment(tmp_path, *argv.split())
    assert run.algorithm().terms == TERMS
    assert run.config["send"] == "topk+quantize"
    assert not [*unused_option_notes({"send.share", "send.bits"}, run.options, run.chosen)]


def test_files_and_the_trainer_take_them_as_one_name(tmp_path):
    file = tmp_path / "pair.yaml"
    file.write_text("send: {name: quantize+topk, share: 0.1, bits: 4}\n")
    assert experiment(tmp_path, "--config", str(file)).algorithm().terms == TERMS
    pair = {"name": "Quantize+topk", "share": 0.1, "bits": 4}
    assert algorithm(read_algorithm({"name": "fedavg", "send": pair})).terms == TERMS


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("topk --send sign", "TopK already says"),
        ("topk --send toppk", "no send 'topk+toppk'"),
        ("topk --send sign_flip", "both have an option 'share'"),
        ("topk --send quantize --send.sharee 0.1", "--send.share"),
        ("topk --send quantize --send.bits 0", "bits of quantize is a whole number"),
    ],
)
def test_choices_that_do_not_fit_are_refused(argv, words, tmp_path, capsys):
    assert words in refused(capsys, tmp_path / "run", "--send", *argv.split())
