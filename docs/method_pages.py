"""The pages of the methods, written from the docstrings of their functions and terms."""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from functools import cache
from types import ModuleType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from citations import bibtex
from curves import options, picture
from evidence import equations, recordings, reproduced
from formulas import of_method
from typing_extensions import Doc

from fl_lightning import Algorithm, Term
from fl_lightning.algorithms import lora
from fl_lightning.algorithms.registry import ALGORITHMS, FAMILIES, functions
from fl_lightning.cli.algorithms import costs_in_models
from fl_lightning.core.constraints import Range, metadata
from fl_lightning.core.term import with_inner

COST_HEADINGS = "sends", "receives", "keeps", "gradients a step"
COST_NOTE = (
    "Counted by running the terms. Sent, received and kept numbers are multiples of the model's "
    "size, for one client and one round; brackets name the server's and the client's states."
)
FORMULA_NOTE = (
    "Start, step and end are those of a client's visit ([what the letters mean](index.md#letters))."
)
LETTERS = {
    r"w^t, \; w^0": "the global model that clients receive in round t, and the first one",
    "w": "the client's model during its visit",
    r"g(w), \; \ell(w)": "gradient and value of the loss on the client's current mini-batch",
    "u_i": "client i's model after its local training",
    "o_i": "the global model that client i received at its last visit",
    r"h_i, \; c_i, \; d_i": "vectors that client i keeps: dual, control variate, drift",
    r"h, \; c, \; d": "their means over all clients, which the server keeps",
    r"\eta, \; \eta_0, \; \eta_s": "learning rates: local, of the first round, of the server",
    r"K, \; k": "local steps of a visit, and the step, from 0",
    r"K \eta": "a visit's learning rates added up; momentum raises it",
    r"S, \; M, \; N": "the cohort, its size, all clients",
    "p_i": "client i's share of the samples of the cohort; 1/M with `--weighting uniform`",
    r"\mathrm{KL}_\tau(a \,\Vert\, b)": "divergence of the models' outputs at temperature tau",
    r"\theta, \; \phi": "body and head of the model",
    r"\mathrm{unit}(v)": "v over its norm, in the texts",
}


def page(name: str) -> str:
    """The page of one method, in Markdown."""
    make = ALGORITHMS[name]
    algorithm = make()
    heading, summary = headline(make)
    lines = [f"# {heading}", "", summary, ""]
    lines += ["```formula", of_method(make), "```", ""]
    lines += [FORMULA_NOTE, ""]
    lines += ["```sh", command(name), "```", "", "```python"]
    lines += ["from fl_lightning import algorithms", "", f"algorithms.{name}()", "```", ""]
    lines += [*picture(name, heading), *proofs(name), *relatives(name), *citation(name)]
    lines += ["## Options", "", *option_table(make), ""]
    notes = [*prose(make, skip={"Args", "Raises", "Formula", "References"})]
    lines += ["## Notes", "", *notes] if notes else []
    lines += ["## Cost", "", *table(COST_HEADINGS, [cost_row(algorithm)]), "", COST_NOTE, ""]
    lines += ["## Terms", ""]
    lines += ["From the innermost to the outermost, at the default options:", ""] * bool(
        algorithm.terms
    )
    lines += ["```text", re.sub(r"\), (?=[A-Z])", "),\n          ", repr(algorithm)), "```", ""]
    for term in kinds(name):
        lines += term_section(term)
    lines += ["## Source", "", f"`{source_path(make)}`", "", *code(make)]
    return "\n".join(lines)


def command(name: str) -> str:
    """A command that trains by a method, with a model and options that suit it."""
    if name in functions(lora):
        lora_model = "--model huggingface --model.architecture llama --model.lora-rank 8"
        return f"python recipes/text.py {lora_model} --algorithm {name} --lr 0.1"
    if any(term.keeps == "norm" for term in ALGORITHMS[name]().terms):
        return f"python recipes/cifar10.py --model resnet18_bn --algorithm {name}"
    return f"python recipes/digits.py --algorithm {name}{options(name)}"


@cache
def kinds(name: str) -> list[type[Term]]:
    """The classes of a method's terms, at its default options."""
    return [*dict.fromkeys(map(type, with_inner(ALGORITHMS[name]().terms)))]


def proofs(name: str) -> list[str]:
    """The section on what backs the method, if anything does."""
    lines = []
    if repositories := recordings()[name]:
        count = len(repositories)
        lines.append(
            f"- Replays {count} recorded trajector{'y' if count == 1 else 'ies'} of "
            f"{', '.join(f'`{r}`' for r in dict.fromkeys(repositories))} to 1e-9 in every round "
            "([how](../tests/golden/recordings.md))."
        )
    if headline(ALGORITHMS[name])[0] in equations():
        lines.append(
            "- Equals the paper's equation, written in NumPy, to rounding in every round "
            "([who is right](../who-is-right.md))."
        )
    if name in reproduced():
        cells, distance = reproduced()[name]
        lines.append(
            f"- {cells} cells of FedSSG's Table 4 on MNIST: on average {distance:.2f} points from "
            "the published accuracies ([numbers](../benchmarks/reproduced.md))."
        )
    return ["## Evidence", "", *lines, ""] if lines else []


def relatives(name: str) -> list[str]:
    """The section on the methods that share terms with this one, by term, and on its family."""
    lines = []
    for term in kinds(name):
        others = [o for o in ALGORITHMS if o != name and any(issubclass(t, term) for t in kinds(o))]
        lines += [f"- `{term.__name__}` is also in {links(others)}."] * bool(others)
    family = next(family for family in FAMILIES if name in functions(family))
    lines.append(f"- {title(family)}: {links([o for o in functions(family) if o != name])}.")
    return ["## See also", "", *lines, ""]


def links(names: list[str], folder: str = "") -> str:
    """Links to the pages of methods, from their folder or another one."""
    return ", ".join(f"[{short_name(name)}]({folder}{name}.md)" for name in names)


def citation(name: str) -> list[str]:
    """The section on the papers: their references, and these in BibTeX."""
    references = unwrapped(sections(ALGORITHMS[name]).get("References", ""))
    entries = "\n\n".join(bibtex(r) for r in references if r)
    if not entries:
        return []
    lines = [*(f"- {r}" for r in references if r), "", "```bibtex", entries, "```", ""]
    return ["## Cite", "", *lines]


def index() -> str:
    """The list of all methods by family, in Markdown."""
    lines = ["# Methods", "", f"{len(ALGORITHMS)} methods, a page each.", "", "## Letters", ""]
    letters = [(f"${letter}$", meaning) for letter, meaning in LETTERS.items()]
    lines += [*table(("letter", "meaning"), letters), "", COST_NOTE, ""]
    for family in FAMILIES:
        lines += [f"## {title(family)}", ""]
        rows = []
        for name, make in functions(family).items():
            rows.append((f"[`{name}`]({name}.md)", first_sentence(make), *cost_row(make())))
        lines += [*table(("name", "method", *COST_HEADINGS), rows), ""]
    return "\n".join(lines)


def families() -> str:
    """A table of the families: their methods, with links from the home page."""
    rows = [(title(family), links([*functions(family)], "methods/")) for family in FAMILIES]
    return "\n".join(table(("family", "methods"), rows))


def title(family: ModuleType) -> str:
    """The subject of a family of methods: its docstring up to the first punctuation."""
    return re.split(r"[.:;]", family.__doc__ or "")[0]


def headline(make: Callable[..., Any]) -> tuple[str, str]:
    """The method's name and the rest of the docstring's first sentence."""
    name, _, summary = first_sentence(make).partition(": ")
    return name, summary[:1].upper() + summary[1:]


def short_name(name: str) -> str:
    """A method's name without its variant, such as `SCAFFOLD` for `SCAFFOLD, option II`."""
    return headline(ALGORITHMS[name])[0].partition(",")[0]


def first_sentence(thing: Any) -> str:
    """The first paragraph of a docstring on one line."""
    return " ".join((inspect.getdoc(thing) or "").partition("\n\n")[0].split())


def sections(thing: Any) -> dict[str, str]:
    """The sections of a docstring by title; the text before the first has the title ""."""
    found: dict[str, list[str]] = {"": []}
    current = ""
    for line in (inspect.getdoc(thing) or "").splitlines():
        heading = re.fullmatch(r"([A-Z][\w ]+):{1,2}", line)
        if heading:
            current = heading[1]
            found[current] = []
        else:
            found[current].append(line)
    return {name: inspect.cleandoc("\n" + "\n".join(text)) for name, text in found.items()}


def prose(thing: Any, skip: set[str]) -> Iterator[str]:
    """A docstring's paragraphs after the first one, then its sections."""
    for heading, text in sections(thing).items():
        if not heading:
            text = text.partition("\n\n")[2]
        elif heading in skip:
            continue
        else:
            yield from (f"**{heading}**", "")
        if heading in ("Attributes", "Args"):
            yield from (f"- `{name}`: {rest}" for name, rest in entries(text))
        elif heading == "References":
            yield from (f"- {line}" for line in unwrapped(text) if line)
        elif heading.startswith("Example"):
            yield from ("```pycon", text, "```")
        else:
            yield text
        yield ""


def unwrapped(text: str) -> list[str]:
    """The lines, each joined with its further lines, which are indented."""
    return [" ".join(line.split()) for line in re.split(r"\n(?=\S)", text)]


def entries(text: str) -> Iterator[tuple[str, str]]:
    """The `name: text` entries of a section."""
    for entry in unwrapped(text):
        name, colon, rest = entry.partition(": ")
        if colon:
            yield name, rest


def option_table(make: Callable[..., Algorithm]) -> list[str]:
    """Options with defaults, allowed values and descriptions."""
    hints = get_type_hints(make, include_extras=True)
    described = dict(entries(sections(make).get("Args", "")))
    rows = [
        (
            f"`{name}`",
            f"`{getattr(parameter.default, '__name__', parameter.default)}`",
            allowed(hints[name]),
            " ".join([*documented(hints[name]), described.get(name, "")]).strip(),
        )
        for name, parameter in inspect.signature(make).parameters.items()
    ]
    if not rows:
        return ["None."]
    note = "Arguments of the function; on the command line each has the prefix `--algorithm.`"
    return [note, "", *table(("option", "default", "allowed", "meaning"), rows)]


def allowed(hint: Any) -> str:
    """The values that an annotation admits."""
    plain = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    if get_origin(plain) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(plain))
    return ", ".join(ranges(hint)) or getattr(plain, "__name__", str(plain))


def ranges(hint: Any) -> list[str]:
    """The ranges in an annotation, in words."""
    return [m.says for m in metadata(hint) if isinstance(m, Range)]


def documented(hint: Any) -> list[str]:
    """The descriptions in an annotation."""
    return [m.documentation for m in metadata(hint) if isinstance(m, Doc)]


def cost_row(algorithm: Algorithm) -> tuple[str, ...]:
    """What one client sends, receives, keeps and computes."""
    costs, gradients = costs_in_models(algorithm)
    cells = (
        f"{n} ({', '.join(f'`{name}`' for name in names)})" if names else n for n, names in costs
    )
    return (*cells, str(gradients))


def term_section(term: type[Term]) -> Iterator[str]:
    """A term: its formula, its fields, its code."""
    yield from (f"### {term.__name__}", "")
    yield from (first_sentence(term), "")
    yield from prose(term, skip={"Raises"})
    yield from (f"`{source_path(term)}`", "", *code(term))


def source_path(thing: Any) -> str:
    """The file of a function or class, from the repository's root."""
    return thing.__module__.replace(".", "/") + ".py"


def code(thing: Any) -> Iterator[str]:
    """The source of a function or class without its docstring."""
    source = textwrap.dedent(inspect.getsource(thing))
    lines = source.splitlines()
    docstring = ast.parse(source).body[0].body[0]  # type: ignore[attr-defined]
    start, end = docstring.lineno - 1, docstring.end_lineno or docstring.lineno
    del lines[start : end + (not "".join(lines[end : end + 1]).strip())]
    yield from ("```python", *lines, "```", "")


def table(headings: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    """A Markdown table."""
    lines = [headings, tuple("---" for _ in headings), *rows]
    return [
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines
    ]
