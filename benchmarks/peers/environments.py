"""An environment for each simulator, with the packages of the Python that makes it, torch too.

A simulator is installed without what it asks for: these lists name what its import needs.
"""

import subprocess
import sys
import sysconfig
from pathlib import Path

DATA = [
    "datasets",
    "pyarrow",
    "dill",
    "multiprocess",
    "xxhash",
    "huggingface_hub",
    "fsspec",
    "filelock",
]
NEEDS = {
    "pfl": [
        "pfl==0.6.0",
        "dp-accounting==0.5.0",
        "prv-accountant==0.2.0",
        "multiprocess",
        "dill",
        "attrs",
        "absl-py",
        "dm-tree",
        "mpmath",
    ],
    "fluke": [
        *[
            "fluke-fl==0.8.1",
            "diskcache",
            "omegaconf",
            "antlr4-python3-runtime==4.9.3",
            "hydra-core",
        ],
        *[
            "cerberus",
            "typer",
            "shellingham",
            "click",
            "seaborn",
            "wandb",
            "clearml",
            "munch",
            "networkx",
        ],
        *["requests", "urllib3", "charset-normalizer", "idna", "certifi"],
        *DATA,
    ],
    "flower": ["flwr==1.42.0"],
    "fedlab": ["fedlab==1.3.0", "pynvml", "nvidia-ml-py"],
}
COMPLETE = {"flower"}
"""Installed with all that they ask for: none of it is torch."""

TITLES = {"pfl": "pfl-research", "fluke": "fluke", "flower": "Flower", "fedlab": "FedLab"}


def version(peer: str) -> str:
    """The pinned version."""
    return NEEDS[peer][0].partition("==")[2]


def packages(peer: str, folder: Path) -> Path:
    """The site-packages of a simulator's environment."""
    return folder / peer / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"


def python(peer: str, folder: Path) -> Path:
    """The interpreter of a simulator's environment, which is made if there is none."""
    made = folder / peer / "bin" / "python"
    if not (folder / peer / "complete").exists():
        _run(sys.executable, "-m", "venv", "--clear", "--without-pip", folder / peer)
        site = packages(peer, folder)
        (site / "shared.pth").write_text(sysconfig.get_paths()["purelib"] + "\n" + _further())
        alone = [] if peer in COMPLETE else ["--no-deps"]
        _run(sys.executable, "-m", "pip", "install", "-q", *alone, "--target", site, *NEEDS[peer])
        (folder / peer / "complete").touch()
    return made


def _further() -> str:
    """Where this Python finds torch, if that is not its own site-packages."""
    import torch

    return str(Path(torch.__file__).parents[1])


def _run(*words: str | Path) -> None:
    subprocess.run([*map(str, words)], check=True)
