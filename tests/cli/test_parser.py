"""The command line: signatures become options, and a mistake gets one sentence."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from fl_lightning.cli import parser as parser
from fl_lightning.cli.argv import given


@dataclass(frozen=True)
class Few:
    """Options.

    Attributes:
        rounds: How many.
        clip: Largest norm.
        mode: How.
        run_dir: Where.
        resume: Go on.
    """

    rounds: int = 10
    clip: float | None = None
    mode: Literal["fast", "slow"] = "fast"
    run_dir: Path | None = None
    resume: bool = False


def first(rho: float = 0.1, carry: bool = False) -> str:
    """The first."""
    return f"first {rho} {carry}"


def second(
    y: object,
    hidden: tuple[int, ...] = (2, 3),
    first_participation: Literal["init", "skip"] = "init",
) -> str:
    """The second."""
    return f"second {hidden} {first_participation}"


def needy(name: str) -> str:
    """Needs a name."""
    return name


FUNCTIONS = {"first": first, "second": second, "needy": needy}
PARTS = {"algorithm": parser.Part(FUNCTIONS, "first", given=frozenset({"y"}), table="methods")}


def parse(*argv: str, **defaults: Any) -> tuple[dict[str, Any], dict[str, parser.Chosen]]:
    return parser.parse([Few], PARTS, argv, **defaults)


def sentence(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    with pytest.raises(SystemExit) as stop:
        parse(*argv)
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    return said


def test_types_come_from_the_signature() -> None:
    options, chosen = parse(
        "--rounds=3", "--clip", "1e-2", "--mode", "slow", "--run-dir", "a/b", "--resume"
    )
    assert options == {
        "rounds": 3,
        "clip": 0.01,
        "mode": "slow",
        "run_dir": Path("a/b"),
        "resume": True,
    }
    assert chosen["algorithm"]() == "first 0.1 False"


def test_a_part_has_the_options_of_what_was_chosen() -> None:
    _, chosen = parse(
        "--algorithm",
        "second",
        "--algorithm.hidden",
        "5,6",
        "--algorithm.first-participation",
        "skip",
    )
    assert chosen["algorithm"](None) == "second (5, 6) skip"


def test_underscores_and_hyphens_are_alike() -> None:
    assert parse("--run_dir", "x")[0] == parse("--run-dir", "x")[0]


def test_defaults_of_the_recipe_then_the_file_then_flags(tmp_path: Path) -> None:
    preset = tmp_path / "preset.yaml"
    preset.write_text("rounds: 5\nclip: 1e-1\nalgorithm: {name: first, rho: 0.7, carry: true}\n")
    options, chosen = parse("--config", str(preset), "--rounds", "6", mode="slow")
    assert (options["rounds"], options["clip"], options["mode"]) == (6, 0.1, "slow")
    assert chosen["algorithm"]() == "first 0.7 True"


def test_a_flag_that_chooses_another_function_leaves_the_files_options_behind(
    tmp_path: Path,
) -> None:
    preset = tmp_path / "preset.yaml"
    preset.write_text("algorithm: {name: first, rho: 0.7}\nrounds: 5\n")
    options, chosen = parse("--config", str(preset), "--algorithm", "second")
    assert options["rounds"] == 5
    assert chosen["algorithm"](None) == "second (2, 3) init"


def test_names_are_found_as_papers_spell_them() -> None:
    assert parse("--algorithm", "FIRST")[1]["algorithm"].name == "first"


def test_an_own_function_needs_no_annotations_and_may_import_its_neighbour(tmp_path: Path) -> None:
    (tmp_path / "beside_own.py").write_text("two = 2.0\n")
    own = tmp_path / "plain.py"
    own.write_text("from beside_own import two\n\ndef mine(beta=two):\n    return beta\n")
    assert parse("--algorithm", f"{own}:mine", "--algorithm.beta", "3")[1]["algorithm"]() == 3.0


@pytest.mark.parametrize("text", ["5", "[5]", "'5'"])
def test_a_list_of_one_needs_no_brackets_in_the_file(text: str, tmp_path: Path) -> None:
    flags = written(tmp_path, f"algorithm: {{name: second, hidden: {text}}}\n")
    assert parse(*flags)[1]["algorithm"].options["hidden"] == (5,)


def test_none_is_a_value() -> None:
    assert parse("--clip", "none", clip=3.0)[0]["clip"] is None


def test_an_own_function_lies_in_a_file(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text("def mine(beta: float = 2.0) -> float:\n    return beta\n")
    _, chosen = parse("--algorithm", f"{own}:mine", "--algorithm.beta", "4")
    assert chosen["algorithm"]() == 4.0


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--algorithm", "fisrt"], ["fisrt", "did you mean first"]),
        (["--round", "3"], ["--round", "--rounds"]),
        (["--algorithm.roh", "3"], ["--algorithm.rho"]),
        (["--rounds", "many"], ["--rounds", "'many'", "whole number"]),
        (["--mode", "fsat"], ["fast, slow", "did you mean fast"]),
        (["--algorithm", "needy"], ["--algorithm.name", "needed"]),
        (["--config", "missing.yaml"], ["missing.yaml"]),
        (["--algorithm", "missing.py:f"], ["missing.py"]),
        (["--algorithm.carry", "perhaps"], ["neither true nor false"]),
        (["--rounds"], ["--rounds"]),
        (["--algorithm="], ["there is no algorithm ''"]),
        (["stray"], ["stray"]),
    ],
)
def test_a_mistake_gets_one_sentence(
    argv: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    said = sentence(capsys, *argv)
    for word in words:
        assert word in said


def test_a_mistake_in_the_file_gets_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    preset = tmp_path / "preset.yaml"
    preset.write_text("ruonds: 5\n")
    assert "'ruonds'; did you mean rounds" in sentence(capsys, "--config", str(preset))
    preset.write_text("algorithm: {name: second, hidden: [5, x]}\n")
    assert "algorithm.hidden: 'x' is not a whole number" in sentence(
        capsys, "--config", str(preset)
    )
    preset.write_text("algorithm: {name: second, hidden: 5.5}\n")
    assert "algorithm.hidden: 5.5 is not a whole number" in sentence(
        capsys, "--config", str(preset)
    )
    preset.write_text("1: 2\n")
    assert "no option '1'" in sentence(capsys, "--config", str(preset))
    preset.write_bytes(b"\xff\xfe\xfa")
    assert "cannot read the configuration" in sentence(capsys, "--config", str(preset))
    preset.write_text("rounds: 5.5\n")
    assert "rounds: 5.5 is not a whole number" in sentence(capsys, "--config", str(preset))


def test_help_shows_the_options_of_what_was_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        parse("--algorithm", "second", "--help")
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    assert "--algorithm.hidden" in shown
    assert "--algorithm.rho" not in shown
    assert "How many." in shown


def written(folder: Path, *texts: str) -> list[str]:
    """The flags that read these texts as configuration files."""
    files = [folder / f"{number}.yaml" for number in range(len(texts))]
    for file, text in zip(files, texts, strict=True):
        file.write_text(text)
    return [argument for file in files for argument in ("--config", str(file))]


TABLE = "rounds: 5\nmethods:\n  first: {rho: 0.3, rounds: 7}\n  second:\n"


def test_a_table_has_options_for_each_choice(tmp_path: Path) -> None:
    """The chosen row counts, its own options and general ones; flags override it."""
    flags = written(tmp_path, TABLE)
    options, chosen = parse(*flags)
    assert (options["rounds"], chosen["algorithm"].options["rho"]) == (7, 0.3)
    options, chosen = parse(*flags, "--algorithm", "second")
    assert (options["rounds"], chosen["algorithm"].name) == (5, "second")
    options, chosen = parse(*flags, "--rounds", "9", "--algorithm.rho", "0.5")
    assert (options["rounds"], chosen["algorithm"].options["rho"]) == (9, 0.5)


def test_later_files_replace_rows_and_leave_the_others(tmp_path: Path) -> None:
    options, chosen = parse(*written(tmp_path, TABLE, "methods:\n  second: {hidden: [4]}\n"))
    assert (options["rounds"], chosen["algorithm"].options["rho"]) == (7, 0.3)
    options, chosen = parse(*written(tmp_path, TABLE, "methods:\n  first: {rho: 0.4}\n"))
    assert (options["rounds"], chosen["algorithm"].options["rho"]) == (5, 0.4)


def test_another_function_in_a_later_file_forgets_the_first_ones_options(tmp_path: Path) -> None:
    flags = written(
        tmp_path, "algorithm: {name: first, rho: 0.3}\n", "algorithm: {name: second, hidden: [4]}\n"
    )
    _, chosen = parse(*flags)
    assert chosen["algorithm"].options == {"hidden": (4,), "first_participation": "init"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("methods:\n  thrid: {}\n", "there is no algorithm 'thrid'"),
        ("methods:\n  first: 3\n", "methods.first must map option names to values, but is 3"),
        ("methods:\n  first: {rhoo: 3}\n", "has no option 'rhoo'"),
        ("methods:\n  first: {algorithm: second}\n", "cannot choose algorithm"),
        ("methods: 3\n", "must map names to options under methods, but has 3"),
        ("methods: 0\n", "must map names to options under methods, but has 0"),
        ("methods: {second: 0}\n", "methods.second must map option names to values, but is 0"),
        ("[]\n", "must map names to values"),
    ],
)
def test_a_table_that_does_not_fit_gets_a_sentence(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in sentence(capsys, *written(tmp_path, text))


def test_a_choice_without_a_row_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the first rank, where a table has rows for others and the files have no options for it elsewhere."""
    told = "the configuration's methods have no row for second: it has its own defaults, or what flags say\n"
    table, second = (
        "methods: {first: {rho: 0.3}}\n",
        ("--algorithm", "second", "--algorithm.hidden", "4"),
    )
    parse(*written(tmp_path, table), *second)
    assert capsys.readouterr().out == told
    parse(*written(tmp_path, table))
    parse(*written(tmp_path, TABLE), *second)
    parse(*written(tmp_path, "rounds: 5\n"), *second)
    parse(*written(tmp_path, table, "algorithm: {name: second, hidden: 5}\n"))
    monkeypatch.setattr(parser, "is_first_rank", lambda: False)
    parse(*written(tmp_path, table), *second)
    assert capsys.readouterr().out == ""


def test_options_of_another_choice_that_are_left_behind_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = "algorithm: {name: first, rho: 0.7}\n"
    parse(*written(tmp_path, own), "--algorithm", "second")
    told = "the configuration's options are for algorithm first: second has its own, or what flags say\n"
    assert capsys.readouterr().out == told
    parse(*written(tmp_path, own))
    parse(*written(tmp_path, own + "methods: {second: {hidden: 5}}\n"), "--algorithm", "second")
    parse(*written(tmp_path, "algorithm: first\n"), "--algorithm", "second")
    assert capsys.readouterr().out == ""


def test_options_of_a_part_that_the_file_does_not_choose_are_for_whatever_is_chosen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = written(tmp_path, "algorithm: {hidden: 5}\n")
    assert parse(*flags, "--algorithm", "second")[1]["algorithm"].options["hidden"] == (5,)
    assert "no option 'algorithm.hidden'" in sentence(capsys, *flags)


def test_the_options_that_a_command_line_names() -> None:
    argv = "--run_dir", "x", "--algorithm.first-sampler=skip", "--resume", "--lr", "-1"
    assert given(argv) == {"run_dir", "algorithm.first_participation", "resume", "lr"}
