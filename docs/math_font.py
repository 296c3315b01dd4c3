"""The font of the formulas: STIX Two Math, which ziamath carries, with the characters they need."""

from functools import cache
from io import BytesIO
from pathlib import Path

import ziamath
from fontTools.subset import Options, Subsetter
from fontTools.ttLib import TTFont

FILE = Path(ziamath.__file__).with_name("fonts") / "STIXTwoMath-Regular.ttf"
PATH = "stix-two-math.woff"
"""Where the site has it, and style.css finds it."""

RANGES = (
    (0x20, 0x7E),
    (0xA0, 0xFF),
    (0x391, 0x3F6),  # Greek
    (0x2010, 0x2044),  # dashes, bars, dots
    (0x2100, 0x2135),  # italic h, script l, R of the reals
    (0x2190, 0x2195),  # arrows
    (0x2200, 0x22F1),  # operators
    (0x27E6, 0x27EB),  # brackets
    (0x1D400, 0x1D467),  # bold, italic
    (0x1D6E2, 0x1D71B),  # italic Greek
    (0x1D4A9, 0x1D4A9),  # N of the normal distribution
)


@cache
def woff() -> bytes:
    """The font as a file for browsers, about a tenth of the original."""
    font, options = (
        TTFont(FILE),
        Options(flavor="woff", layout_features=["ssty"], notdef_outline=True),
    )
    subsetter = Subsetter(options)
    subsetter.populate(unicodes=[c for first, last in RANGES for c in range(first, last + 1)])
    subsetter.subset(font)
    font.flavor = "woff"
    file = BytesIO()
    font.save(file)
    return file.getvalue()
