"""The README and the pages of docs/: their commands and programs run.

The blocks of a page run in order, in one folder. A block marked `bash` or `python` is run, one
marked `sh` or `text` is not. A Python block with a title is saved under it. Runs are shortened: a
twentieth of their rounds, one where none are given, of one local step on a batch of eight, on one
rank, without a compiler; two epochs of fine-tuning in place of five. Large data sets are replaced
by small random ones.
"""

import ast
import json
import re
import runpy
import shlex
import sys
import tomllib
from collections.abc import Callable
from importlib import import_module
from inspect import signature
from pathlib import Path

import jobs
import pytest
import torch
from image_files import write_images
from lightning.fabric import cli
from lightning.fabric.plugins.environments.lightning import find_free_network_port
from locations import ROOT
from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler
from torch.distributed.run import get_args_parser

from fl_lightning import DeviceDataset
from fl_lightning.__main__ import main
from fl_lightning.algorithms import lora
from fl_lightning.algorithms.registry import ALGORITHMS, functions
from fl_lightning.cli import choices
from fl_lightning.data import sources
from fl_lightning.experiment import Experiment
from fl_lightning.models import mlp

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NOTEBOOKS = sorted((ROOT / "docs/notebooks").glob("*.ipynb"))
BLOCK = re.compile(r'^```(bash|python)(?: title="([\w.]+)")?\n(.*?)^```$', re.S | re.M)
LAUNCHING = {"--accelerator", "--devices", "--strategy", "--num-nodes", "--node-rank"}
LAUNCHING |= {"--main-address", "--main-port"}
EXTRAS = {"lora.md": "peft"}
"""Packages of extras without which a page's blocks are skipped."""

STAND_INS = {"mnist": (1, 16, 10), "cifar10": (3, 16, 10), "cifar100": (3, 16, 100)}


@pytest.fixture
def script(monkeypatch):
    """Imports a script of docs/, which import each other."""
    monkeypatch.syspath_prepend(ROOT / "docs")
    return import_module


def blocks(page: Path) -> list[tuple[str, str, str]]:
    return BLOCK.findall(page.read_text())


def small(channels: int, side: int, classes: int) -> Callable[..., tuple[DeviceDataset, ...]]:
    g = torch.Generator().manual_seed(0)
    names, scale = tuple(map(str, range(classes))), (0.5,) * channels

    def random(samples: int) -> DeviceDataset:
        x = torch.randint(0, 256, (samples, channels, side, side), generator=g, dtype=torch.uint8)
        return DeviceDataset(x, torch.arange(samples) % classes, names, scale, scale)

    return lambda root: (random(1200), random(100))


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    write_images(folder, ["train/cat", "train/dog"], each=100, size=(32, 32))
    write_images(folder, ["test/cat", "test/dog"], each=2, size=(32, 32))
    return folder


@pytest.fixture
def workplace(images, tmp_path, monkeypatch):
    """A folder like a clone, with a folder of images, and small stand-ins for downloads."""
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    (tmp_path / "path/to").mkdir(parents=True)
    (tmp_path / "path/to/folder").symlink_to(images)
    for name, shape in STAND_INS.items():
        source = small(*shape)
        source.__name__ = name
        monkeypatch.setattr(sources, name, source)
        monkeypatch.setitem(choices.SOURCES, name, source)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def shortened(arguments: list[str]) -> list[str]:
    """A recipe's arguments without those of the launcher, and for a shorter run."""
    dropped = {i + k for i, a in enumerate(arguments) if a in LAUNCHING for k in (0, 1)}
    kept = ["1,2" if a == "1,5" else a for i, a in enumerate(arguments) if i not in dropped]
    rounds = int(kept[kept.index("--rounds") + 1]) if "--rounds" in kept else 20
    short = ["--rounds", str(max(1, rounds // 20)), "--local-steps", "1"]
    if not any("batch-size" in argument for argument in kept):
        short += ["--batch-size", "8"]
    return [*kept, *short, "--accelerator", "cpu", "--devices", "1"]


def run_recipe(recipe: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [recipe, *arguments])
    runpy.run_path(recipe, run_name="__main__")


def run_command(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = shlex.split(line)
    if words[:2] == ["fl-lightning", "run"] and len(words) > 2:
        main(["run", words[2], *shortened(words[3:])])
        return
    if words[0] == "fl-lightning":
        if "--points" in words:  # a pass over the data for each
            words[words.index("--points") + 1] = "3"
        if words[1] == "analyze" and words[2] != "clients":
            words += ["--samples", "100"]  # one batch
        if words[1:3] == ["analyze", "hessian"]:  # products with it
            words += ["--vectors", "2", "--steps", "3"]
        main(words[1:])
        return
    at = next(i for i, word in enumerate(words) if word.startswith("recipes/"))
    recipe, arguments = words[at], words[at + 1 :]
    if "--help" in arguments:
        with pytest.raises(SystemExit) as stop:
            run_recipe(recipe, arguments, monkeypatch)
        assert stop.value.code == 0
    elif recipe == "recipes/tune.py":
        pytest.importorskip("optuna")
        run_recipe(recipe, shortened(arguments), monkeypatch)
    elif recipe == "recipes/sam_in_lightning.py":
        run_recipe(recipe, [*arguments, "--epochs", "1"], monkeypatch)
    else:
        run_recipe(recipe, shortened(arguments), monkeypatch)


@pytest.mark.parametrize("page", NOTEBOOKS, ids=lambda page: page.stem)
def test_the_cells_of_a_notebook_run_and_their_outputs_are_kept(page, workplace, capsys):
    names: dict[str, object] = {"__name__": "notebook"}
    for cell in json.loads(page.read_text())["cells"]:
        if cell["cell_type"] == "code":
            body = ast.parse(re.sub(r"rounds=\d+", "rounds=2", "".join(cell["source"]))).body
            last = body.pop() if isinstance(body[-1], ast.Expr) else None
            exec(compile(ast.Module(body, []), page.name, "exec"), names)
            shown = None
            if last:
                shown = eval(compile(ast.Expression(last.value), page.name, "eval"), names)
            kept = {kind for output in cell["outputs"] for kind in output.get("data", {})}
            for kind, display in (("image/png", "_repr_png_"), ("text/html", "_repr_html_")):
                displayed = getattr(shown, display, lambda: None)() is not None
                assert displayed == (kind in kept), cell["source"]


@pytest.mark.usefixtures("traces")
@pytest.mark.filterwarnings("ignore:.*will be removed in v6:FutureWarning")  # peft's use
@pytest.mark.parametrize(
    "page", [p for p in PAGES if blocks(p)], ids=lambda page: str(page.relative_to(ROOT))
)
def test_the_blocks_of_a_page_run(page, workplace, monkeypatch):
    if page.name in EXTRAS:
        pytest.importorskip(EXTRAS[page.name])
    names: dict[str, object] = {"__name__": "page"}
    for language, title, text in blocks(page):
        if title:
            Path(title).write_text(text)
        elif language == "python":
            exec(text, names)
        else:
            for line in text.splitlines():
                run_command(line, monkeypatch)


@pytest.mark.parametrize("page", ["README.md", "docs/coming-from.md"])
def test_the_first_program_of_a_page_runs_on_rows_and_a_module(page, workplace):
    """Which it does not make."""
    program = re.findall(r"^```py\n(.*?)^```$", (ROOT / page).read_text(), re.S | re.M)[0]
    users, y = torch.arange(1000) % 100, torch.arange(1000) % 3
    names = {"rows": {"x": torch.randn(1000, 5), "y": y, "user_id": users}}
    names |= dict.fromkeys(("module", "net"), torch.nn.Linear(5, 3))
    exec(re.sub(r"rounds=\d+", "rounds=1", program), names)
    assert len(names["trainer"].history) == 1


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_files_that_a_page_names_exist(page):
    text = page.read_text()
    named = re.findall(r"`((?:docs|fl_lightning|benchmarks|recipes|tests)/[\w./-]+\w)`", text)
    linked = re.findall(r"\]\(([\w./-]+)[#)]", text)
    missing = [name for name in named if not (ROOT / name).exists()]
    missing += [link for link in linked if not (page.parent / link).exists()]
    generated = re.compile(
        r"(\.\./)*((methods|papers|benchmarks)/\w+|tests/golden/recordings"
        r"|cite|changelog|contribute)\.md"
    )
    assert not [name for name in missing if not generated.fullmatch(name)]


def test_a_page_of_the_site_takes_no_section_s_place():
    """As a README does, whose title is then that of the section."""
    assert "README.md" not in (ROOT / "mkdocs.yml").read_text()


def test_the_readme_is_short_and_links_every_method():
    text = (ROOT / "README.md").read_text()
    link = r"\[(\w+)\]\((fl_lightning/algorithms/\w+\.py)#(\w+)\)"
    assert len(re.sub(link, "", text).replace(",", " ").split()) <= 1000
    linked = re.findall(link, text)
    files = {name: make.__module__.replace(".", "/") + ".py" for name, make in ALGORITHMS.items()}
    assert {name: file for name, file, anchor in linked if name == anchor} == files


def test_ci_runs_the_make_targets_of_the_readme():
    commands = re.findall(r"^make (.*)", (ROOT / ".ci/run").read_text(), re.MULTILINE)
    assert {"demo", "test"} <= {word for command in commands for word in command.split()}


def test_the_pages_of_the_methods_show_their_options_and_terms(script):
    method_pages = script("method_pages")
    index = method_pages.index()
    other_models = {*functions(lora), "fedbn"}  # which the digits' perceptron has no layers for
    for name, make in ALGORITHMS.items():
        page = method_pages.page(name)
        assert ("\n## On the digits\n" in page) == (name not in other_models)
        assert f"]({name}.md)" in index
        assert "\n## See also\n\n- " in page
        for term in make().terms:
            assert f"### {type(term).__name__}\n" in page
        for option in signature(make).parameters:
            (row,) = (line for line in page.splitlines() if line.startswith(f"| `{option}` |"))
            assert all(cell.strip() for cell in row.split("|")[1:-1]), f"an empty cell: {row}"


def test_the_home_pages_count_the_methods_that_something_backs(script):
    evidence, proofs = script("evidence"), script("method_pages").proofs
    count, equal = sum(map(bool, evidence.recordings().values())), len(evidence.equations())
    for page in ("README.md", "docs/index.md"):
        text = (ROOT / page).read_text()
        assert f" {count} methods equal released code" in text
        assert re.search(rf" {equal} (equal|the)\s+\[?papers' equations", text)
    assert sum("who is right" in line for name in ALGORITHMS for line in proofs(name)) == equal


def test_the_readme_cites_as_the_site_does(script):
    assert script("citations").page().split("```")[1] in (ROOT / "README.md").read_text()


def test_each_method_has_a_formula_that_renders(script):
    formulas = script("formulas")
    texts = {name: formulas.of_method(make) for name, make in ALGORITHMS.items()}
    for name, text in texts.items():
        labels = [label for label, _ in formulas.rows(text)]
        assert labels[0] in {"start", "step", "a0"}, name
        assert "server" in labels, name
    pytest.importorskip("latex2mathml")  # one of the documentation's tools
    for name, text in texts.items():
        assert "\\" not in formulas.html(text), f"unknown LaTeX: {name}"


def test_the_pages_of_the_papers_show_their_tables(script):
    paper_pages = script("paper_pages")
    pages, presets = paper_pages.pages(), ROOT / "recipes" / "presets"
    tables = [file for file in presets.rglob("*.yaml") if "\npublished:" in file.read_text()]
    assert tables
    for file in tables:
        paper = file.parent.name
        assert f"\nfl-lightning table {paper}/{file.stem}\n" in pages[f"papers/{paper}.md"]
    assert "| [scaffold](../methods/scaffold.md) | **98.41** 98.39 |" in pages["papers/fedssg.md"]
    named = {table.name for paper in paper_pages.PAPERS for table in paper_pages.tables(paper)}
    assert named == {*paper_pages.hours().index}
    # 8 runs of 800 rounds: 10 clients, 5 epochs of 10 batches, two gradients a step
    assert paper_pages.hours().loc["fedtoga/table10", "gradients"] == 8 * 800 * 10 * 50 * 2


def test_the_architecture_page_has_the_layers_that_import_linter_holds():
    configuration = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = [re.findall(r"\w+", layer) for layer in configuration["contracts"][0]["layers"]]
    page = (ROOT / "docs/architecture.md").read_text()
    rows = [re.findall(r"`(\w+)`", row) for row in re.findall(r"^\| \d+ \|([^|]+)\|", page, re.M)]
    assert rows == layers


def test_torchrun_leaves_the_options_of_recipes_alone():
    """`fabric run` is torchrun: an option that abbreviates two of its own is refused anywhere."""
    parser = get_args_parser()
    for name in Experiment([sources.digits], [mlp], argv=[]).config:
        flag = f"--{name.replace('_', '-')}"
        assert parser.parse_args(["recipe.py", flag, "x"]).training_script_args == [flag, "x"]


def test_fabric_run_trains_on_two_ranks_in_the_next_free_folder(workplace):
    """Which the second rank does not know."""
    (workplace / "runs/digits/fedtoga-0").mkdir(parents=True)
    ranks = f"--accelerator cpu --devices 2 --main-port {find_free_network_port()}".split()
    argv = "recipes/digits.py", *ranks, "--algorithm", "fedtoga", "--rounds", "1"
    jobs.digits()  # imported here, the forked processes have it already
    process = jobs.start(workplace / "fabric", {"OMP_NUM_THREADS": 1}, fabric_run, *argv)
    assert jobs.end([process], 300) == [0], jobs.said(workplace / "fabric")
    assert "2 ranks" in jobs.said(workplace / "fabric")
    assert (workplace / "runs/digits/fedtoga-1/model.pt").exists()


def fabric_run(*argv: str) -> None:
    subprocess_handler.Popen = jobs.Fork
    sys.argv = ["fabric", "run", *argv]
    cli._main()
