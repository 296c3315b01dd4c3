"""Run a program whose `time.perf_counter` counts CPU seconds, for machines with other users.

python benchmarks/cpu_clock.py PROGRAM ARGUMENTS
"""

import runpy
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    time.perf_counter = time.process_time
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
