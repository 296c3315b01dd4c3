"""Seconds a round on an H100, by calculation (CARD.md, section 2), to print beside measurements.

FedTOGA is 10 clients x 50 steps of 50 samples in bf16. A miss by a factor of two is worth a look.
"""

PREDICTED: dict[tuple[str, str], dict[str, float]] = {
    ("resnet18_gn", "fedtoga"): {
        "sequential": 3.1,
        "stacked": 1.0,
        "graph": 1.4,
        "branches": 0.5,
        "stacked-graph": 0.6,
        "compile": 1.45,
        "compile-graph": 0.7,
        "branches-compile": 0.3,
        "stacked-compile-graph": 0.3,
    },
    ("lenet", "fedtoga"): {
        "sequential": 0.73,
        "stacked": 0.11,
        "graph": 0.21,
        "branches": 0.06,
        "stacked-graph": 0.05,
        "compile": 0.32,
        "compile-graph": 0.14,
        "branches-compile": 0.05,
        "stacked-compile-graph": 0.05,
    },
    ("pfl", "fedavg"): {"sequential": 0.25, "stacked50": 0.044, "graph": 0.11, "branches": 0.045},
    ("cnn", "fedavg"): {"sequential": 0.37, "stacked": 0.07, "graph": 0.12, "branches": 0.05},
    ("cnn", "fedsmoo"): {"sequential": 0.8, "stacked": 0.16, "graph": 0.25, "branches": 0.1},
}


def predicted(model: str, algorithm: str, way: str) -> str:
    """The prediction as a note, or nothing."""
    seconds = PREDICTED.get((model, algorithm), {}).get(way)
    return f"predicted {seconds:g} s" if seconds else ""
