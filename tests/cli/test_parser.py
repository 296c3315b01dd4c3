"""The command line: signatures become options, and a mistake is one sentence."""

import ast
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from fl_lightning.cli import parser
from fl_lightning.cli.arguments import ArgumentParser, given, with_resumed_options
from fl_lightning.cli.choices import Choice
from fl_lightning.cli.recipes import recipes
from fl_lightning.runs.chosen import Chosen


@dataclass(frozen=True)
class Few:
    """Options.

    Attributes:
        rounds: How many.
        clip: Largest norm.
        mode: Which mode.
        run_dir: Which folder.
        resume: Continue.
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


def needy(word: Path | str) -> str:
    """Needs a word."""
    return str(word)


FUNCTIONS = {"first": first, "second": second, "needy": needy}
CHOICES = {
    "algorithm": Choice(FUNCTIONS, "first", filled_in=frozenset({"y"})),
    "server_step": Choice({"mean": lambda: "mean", "adam": lambda lr=0.1: f"adam {lr}"}, "mean"),
}


def parse(*argv: str, **defaults: Any) -> tuple[dict[str, Any], dict[str, Chosen]]:
    return parser.parse({"options": Few}, CHOICES, argv, **defaults)


def written(folder: Path, *texts: str) -> list[str]:
    """The flags that read these texts as configuration files."""
    files = [folder / f"{number}.yaml" for number in range(len(texts))]
    for file, text in zip(files, texts, strict=True):
        file.write_text(text)
    return [argument for file in files for argument in ("--config", str(file))]


def test_types_come_from_the_signature():
    options, chosen = parse(
        "--rounds=3", "--clip", "1e-2", "--mode", "slow", "--run-dir", "a/b", "--resume"
    )
    expected = {"rounds": 3, "clip": 0.01, "mode": "slow", "run_dir": Path("a/b"), "resume": True}
    assert options == expected
    assert chosen["algorithm"]() == "first 0.1 False"
    assert parse("--clip", "none", clip=3.0)[0]["clip"] is None


def test_a_choice_has_the_options_of_the_chosen_function():
    flags = "--algorithm.hidden", "5,6", "--algorithm.first-participation", "skip"
    _, chosen = parse("--algorithm", "second", *flags)
    assert chosen["algorithm"](None) == "second (5, 6) skip"
    _, chosen = parse("--algorithm", "second", "--algorithm.hidden", "")
    assert chosen["algorithm"](None) == "second () init"
    _, chosen = parse("--algorithm", "second", *flags, "--algorithm.hidden", "7")
    assert chosen["algorithm"](None) == "second (5, 6, 7) skip"


def test_names_may_have_underscores_hyphens_and_capitals():
    assert parse("--run_dir", "x")[0] == parse("--run-dir", "x")[0]
    assert parse("--algorithm", "FIRST")[1]["algorithm"].name == "first"
    for flag in ("--server-step=adam", "--server_step=adam"):
        assert parse(flag, "--server_step.lr=2")[1]["server_step"]() == "adam 2.0"


def test_files_of_several_folders_import_their_own_neighbors(tmp_path):
    made = []
    for folder in ("one", "two"):
        (tmp_path / folder / "same_package").mkdir(parents=True)
        for module in "same_neighbor", "same_package/part":
            (tmp_path / folder / f"{module}.py").write_text(f"name = {folder!r}\n")
        own, lines = tmp_path / folder / "own.py", ["import same_neighbor, same_package.part"]
        lines += ["def mine(a=same_neighbor.name, b=same_package.part.name): return a + b"]
        own.write_text("\n".join(lines))
        made.append(parse("--algorithm", f"{own}:mine")[1]["algorithm"]())
    assert made == ["oneone", "twotwo"]


def test_the_options_that_a_command_line_names():
    argv = "--run_dir", "x", "--algorithm.first-participation=skip", "--resume", "--lr", "-1"
    assert given(argv) == {"run_dir", "algorithm.first_participation", "resume", "lr"}


def test_a_resumed_run_may_lie_in_a_folder_that_begins_with_a_hyphen(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("-3").mkdir()
    Path("-3/config.yaml").write_text("rounds: 7\n")
    assert parse(*with_resumed_options(["--run-dir=-3", "--resume"]))[0]["rounds"] == 7


def test_help_shows_the_chosen_function_first_and_one_group_of_options(capsys):
    with pytest.raises(SystemExit, match="0"):
        parse("--algorithm", "second", "--help")
    shown = capsys.readouterr().out
    assert shown.index("--algorithm.hidden") < shown.index("--rounds") < shown.index("server_step")
    assert "--algorithm.rho" not in shown
    assert "How many." in shown
    assert shown.count("\noptions:") == 1


@pytest.mark.parametrize("recipe", sorted(recipes()))
def test_a_docstring_fits_80_columns_and_keeps_its_commands(recipe, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    text = ast.get_docstring(ast.parse(recipes()[recipe].read_text()), clean=False)
    ArgumentParser("mine", description=text).print_help()
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    commands = [line for line in text.splitlines() if line.startswith(" ") or "recipes/" in line]
    assert {*commands} <= {*lines}


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--rounds", "few"], ["rounds", "'few' is not a whole number"]),
        (["--clip", "x"], ["clip", "'x' is not a number"]),
        (["--resume", "yes"], ["resume", "'yes'", "true nor false"]),
        (["--mode", "slwo"], ["mode", "none of fast, slow"]),
        (["--round", "3"], ["--round'", "did you mean --rounds"]),
        (["--rounds"], ["--rounds"]),
        (["stray"], ["stray"]),
        (["--algorithm="], ["no algorithm ''"]),
        (["--algorithm.roh", "3"], ["--algorithm.roh", "--algorithm.rho"]),
        (["--algorithm", "frist"], ["frist", "did you mean first"]),
        (["--algorithm", "nowhere.py:f"], ["nowhere.py"]),
        (["--algorithm", "needy"], ["--algorithm.word is needed"]),
        (["--config", "nowhere.yaml"], ["nowhere.yaml"]),
        (["--config", sys.executable], [sys.executable]),  # which is no text
    ],
)
def test_a_mistake_is_one_sentence(argv, words, sentence):
    said = sentence(parse, *argv)
    assert all(word in said for word in words), said
    assert not said.strip().endswith(":")


def test_flags_go_over_files_and_files_over_the_defaults_of_a_recipe(tmp_path):
    text = "rounds: 5\nclip: 1e-1\nalgorithm: {name: first, rho: 0.7, carry: true}\n"
    options, chosen = parse(*written(tmp_path, text), "--rounds", "6", mode="slow")
    assert (options["rounds"], options["clip"], options["mode"]) == (6, 0.1, "slow")
    assert chosen["algorithm"]() == "first 0.7 True"


@pytest.mark.parametrize("text", ["5", "[5]", "'5'"])
def test_a_list_of_one_needs_no_brackets(text, tmp_path):
    flags = written(tmp_path, f"algorithm: {{name: second, hidden: {text}}}\n")
    assert parse(*flags)[1]["algorithm"].options["hidden"] == (5,)


def test_options_of_a_replaced_function_are_dropped_with_a_note(tmp_path, capsys):
    """Unless the files have some for the new one."""
    own = "algorithm: {name: first, rho: 0.7}\nrounds: 5\n"
    options, chosen = parse(*written(tmp_path, own), "--algorithm", "second")
    assert (options["rounds"], chosen["algorithm"](None)) == (5, "second (2, 3) init")
    said = capsys.readouterr().out
    assert "algorithm first" in said
    assert "second has its defaults" in said
    second_row = own + "methods: {second: {hidden: 5}}\n"
    for text, argv in ((own, []), (second_row, ["--algorithm", "second"])):
        parse(*written(tmp_path, text), *argv)
    parse(*written(tmp_path, "algorithm: first\n"), "--algorithm", "second")
    assert capsys.readouterr().out == ""


def test_another_function_in_a_later_file_forgets_the_first_ones_options(tmp_path):
    texts = "algorithm: {name: first, rho: 0.3}\n", "algorithm: {name: second, hidden: [4]}\n"
    _, chosen = parse(*written(tmp_path, *texts))
    assert chosen["algorithm"].options == {"hidden": (4,), "first_participation": "init"}


def test_options_without_a_name_are_for_the_chosen_function(tmp_path, sentence):
    flags = written(tmp_path, "algorithm: {hidden: 5}\n")
    assert parse(*flags, "--algorithm", "second")[1]["algorithm"].options["hidden"] == (5,)
    assert "algorithm.hidden" in sentence(parse, *flags)


@pytest.mark.parametrize("flags", ["--algorithm.rho 0.3", "--algorithm.rho=0.3 --rounds 7"])
def test_an_option_of_another_algorithm_is_noted(flags, capsys):
    """A sweep gives all methods the same flags."""
    options, chosen = parse("--algorithm", "second", *flags.split())
    assert chosen["algorithm"].options == {"hidden": (2, 3), "first_participation": "init"}
    assert options["rounds"] == (7 if "--rounds" in flags else 10)
    said = capsys.readouterr().out
    assert said == "note: --algorithm.rho has no effect: it is not an option of second\n"


def test_an_option_of_another_choice_is_noted_if_a_flag_names_the_choice(capsys, sentence):
    _, chosen = parse("--server-step", "mean", "--server-step.lr", "0.5")
    assert chosen["server_step"].options == {}
    assert "--server-step.lr has no effect" in capsys.readouterr().out
    assert "no option '--server-step.lr'" in sentence(parse, "--server-step.lr", "0.5")


TABLE = "rounds: 5\nmethods:\n  first: {rho: 0.3, rounds: 7}\n  second:\n"


@pytest.mark.parametrize(
    ("argv", "more", "rounds", "rho"),
    [
        ("", "", 7, 0.3),
        ("--algorithm second", "", 5, None),
        ("--rounds 9 --algorithm.rho 0.5", "", 9, 0.5),
        ("", "methods: {second: {hidden: [4]}}", 7, 0.3),
        ("", "methods: {first: {rho: 0.4}}", 5, 0.4),
    ],
)
def test_the_row_of_the_chosen_function_counts(argv, more, rounds, rho, tmp_path):
    """Its own options and general ones; later files replace rows, flags override them."""
    options, chosen = parse(*written(tmp_path, TABLE, more), *argv.split())
    assert (options["rounds"], chosen["algorithm"].options.get("rho")) == (rounds, rho)


def test_a_missing_row_is_noted_once(tmp_path, capsys, monkeypatch):
    """By the first rank, if the files have no options for the function elsewhere."""
    table, second = "methods: {first: {rho: 0.3}}\n", ("--algorithm", "second")
    parse(*written(tmp_path, table), *second)
    assert "methods have no row for second" in capsys.readouterr().out
    parse(*written(tmp_path, table))
    parse(*written(tmp_path, "rounds: 5\n"), *second)
    parse(*written(tmp_path, table, "algorithm: {name: second, hidden: 5}\n"))
    monkeypatch.setattr(parser, "is_first_rank", lambda: False)
    parse(*written(tmp_path, table), *second)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("methods:\n  thrid: {}\n", "no algorithm 'thrid'"),
        ("methods:\n  first: 3\n", "methods.first maps option names to values, not 3"),
        ("methods: {first: {rhoo: 3}}\n", "'algorithm.rhoo'; did you mean algorithm.rho"),
        ("methods:\n  first: {algorithm: second}\n", "cannot choose algorithm"),
        ("methods: 0\n", "under methods, not 0"),
        ("methods: {1: {}}\n", "no algorithm 1"),
        ("methods: {first: {null: 3}}\n", "no option 'algorithm.None'"),
        ("config: 1\n", "a list of names, not 1"),
        ("config: [null]\n", "a list of names, not [None]"),
        ("methods: {second: 0}\n", "methods.second maps option names to values, not 0"),
        ("[]\n", "must map names to values"),
        ("roundss: 5\n", "no option 'roundss'; did you mean rounds"),
        ("scores: best\n", "did you mean score"),
        ("method: {first: {}}\n", "did you mean methods"),
        ("rounds: [\n", "cannot read the configuration"),
        ("rounds: 5.5\n", "rounds: 5.5 is not a whole number"),
        ("rounds: true\n", "rounds: True is not a whole number"),
        ("mode: slwo\n", "mode: 'slwo' is none of fast, slow"),
        ("algorithm: {name: second, hidden: x}\n", "algorithm.hidden: 'x' is not a whole number"),
        ("1: 2\n", "no option '1'"),
    ],
)
def test_a_file_that_does_not_fit_is_one_sentence(text, words, tmp_path, sentence):
    assert words in sentence(parse, *written(tmp_path, text))


def test_commands_without_indentation_keep_their_lines(capsys):
    """As Ruff leaves them in a docstring that ends with them."""
    ArgumentParser("mine", description="Data.\n\npython mine.py\nfabric run mine.py").print_help()
    assert "python mine.py\nfabric run mine.py\n" in capsys.readouterr().out
