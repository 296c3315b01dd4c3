"""The pages of the methods, written from the docstrings of their functions and terms."""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from typing_extensions import Doc

from fl_lightning import Algorithm, Term
from fl_lightning.algorithms.registry import ALGORITHMS, FAMILIES, functions
from fl_lightning.cli.list_algorithms import costs_in_models
from fl_lightning.core.constraints import Range, metadata
from fl_lightning.terms.wrapper import with_inner

COST_HEADINGS = "sends", "receives", "keeps", "gradients a step"
COST_NOTE = (
    "Counted by running the terms. Sent, received and kept numbers are multiples of the model's "
    "size, for one client and one round; brackets name the server's and the client's states."
)
LETTERS = {
    "w^t, w^0": "the global model that clients receive in round t, and the first one",
    "g(w)": "the gradient of the loss on the client's current mini-batch",
    "u_i": "client i's model after its local training",
    "o_i": "the global model that client i received at its last visit",
    "h_i, c_i, d_i": "vectors that client i keeps: dual, control variate, drift",
    "eta, K": "local learning rate, local steps",
    "S, M, N": "the cohort, its size, all clients",
    "unit(v)": "v / |v|",
}


def page(name: str) -> str:
    """The page of one method, in Markdown."""
    make = ALGORITHMS[name]
    algorithm = make()
    heading, summary = headline(make)
    lines = [f"# {heading}", "", summary, "", *prose(make, skip={"Args", "Raises"})]
    lines += ["[What the letters mean](index.md#letters).", ""]
    lines += ["```sh", f"python recipes/digits.py --algorithm {name}", "```", "", "```python"]
    lines += ["from fl_lightning import algorithms", "", f"algorithms.{name}()", "```", ""]
    lines += ["## Options", "", *option_table(make), ""]
    lines += ["## Cost", "", *table(COST_HEADINGS, [cost_row(algorithm)]), "", COST_NOTE, ""]
    lines += ["## Terms", ""]
    lines += ["From the innermost to the outermost, at the default options:", ""] * bool(
        algorithm.terms
    )
    lines += ["```text", re.sub(r"\), (?=[A-Z])", "),\n          ", repr(algorithm)), "```", ""]
    for term in dict.fromkeys(map(type, with_inner(algorithm.terms))):
        lines += term_section(term)
    lines += ["## Source", "", f"`{source_path(make)}`", "", *code(make)]
    return "\n".join(lines)


def index() -> str:
    """The list of all methods by family, in Markdown."""
    lines = ["# Methods", "", COST_NOTE, "", "## Letters", ""]
    letters = ((f"`{letter}`", meaning) for letter, meaning in LETTERS.items())
    lines += [*table(("letter", "meaning"), letters), ""]
    for family in FAMILIES:
        lines += [f"## {title(family)}", ""]
        rows = []
        for name, make in functions(family).items():
            rows.append((f"[`{name}`]({name}.md)", first_sentence(make), *cost_row(make())))
        lines += [*table(("name", "method", *COST_HEADINGS), rows), ""]
    return "\n".join(lines)


def title(family: ModuleType) -> str:
    """The subject of a family of methods: its docstring up to the first punctuation."""
    return re.split(r"[.:;]", family.__doc__ or "")[0]


def headline(make: Callable[..., Any]) -> tuple[str, str]:
    """The method's name and the rest of the docstring's first sentence."""
    name, _, summary = first_sentence(make).partition(": ")
    return name, summary[:1].upper() + summary[1:]


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
            yield from (f"- {line}" for line in unwrapped(text))
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
