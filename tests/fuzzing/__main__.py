"""Fuzz what reads bytes from outside: `python -m tests.fuzzing --seconds 60 [TARGET …]`, as `make fuzz` does.

The engine is atheris (libFuzzer): coverage of this project's code and of the libraries in Python decides which inputs
are kept, in `.fuzz/`, where the next run goes on. What fails is written to `tests/regressions/`, and the suite tries it
from then on. Exit code 1: something was found.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent.parent
CORPUS = PROJECT / ".fuzz"
REGRESSIONS = PROJECT / "tests" / "regressions"
STATISTIC = re.compile(r"stat::(\w+):\s+(\d+)")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", help="by default all, one after the other")
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--engine", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if importlib.util.find_spec("atheris") is None:
        sys.exit("atheris is not installed; `make fuzz` installs it where it has a build for this Python and system.")
    if given.engine:
        return fuzz(given.targets[0], given.seconds)
    from tests.fuzzing.targets import TARGETS  # noqa: PLC0415 - the engine imports it for itself, instrumented

    if unknown := set(given.targets) - TARGETS.keys():
        parser.error(f"no such target: {', '.join(sorted(unknown))}; there are {', '.join(TARGETS)}")
    return max(supervise(name, given.seconds) for name in given.targets or TARGETS)


def supervise(name: str, seconds: int) -> int:
    """Fuzz a target in a process of its own, which a finding ends, and say what came of it."""
    from tests.fuzzing.targets import TARGETS  # noqa: PLC0415 - see above

    corpus = CORPUS / name
    corpus.mkdir(parents=True, exist_ok=True)
    REGRESSIONS.mkdir(exist_ok=True)
    for seed in TARGETS[name].seeds():
        (corpus / hashlib.sha256(seed).hexdigest()[:40]).write_bytes(seed)
    command = [sys.executable, "-m", "tests.fuzzing", "--engine", "--seconds", str(seconds), name]
    environ = {**os.environ, "OPENCV_LOG_LEVEL": "SILENT"}
    done = subprocess.run(
        command, cwd=PROJECT, env=environ, capture_output=True, text=True, errors="replace", check=False
    )
    log = done.stdout + done.stderr
    counted = {key: int(value) for key, value in STATISTIC.findall(log)}
    executions, peak = counted.get("number_of_executed_units", 0), counted.get("peak_rss_mb", 0)
    sys.stdout.write(f"{name}: {executions} inputs, at most {peak} MiB, exit code {done.returncode}\n")
    if done.returncode:
        sys.stdout.write(log[-6000:] + "\n")
    sys.stdout.flush()
    return 1 if done.returncode else 0


def fuzz(name: str, seconds: int) -> int:
    """Hand the target to the engine, which does not return."""
    import atheris  # noqa: PLC0415 - an extra of its own

    with atheris.instrument_imports(
        include=["app", "tarfile", "csv", "json", "python_multipart", "PIL", "numpy.lib.format"]
    ):
        from tests.fuzzing import targets  # noqa: PLC0415 - only what is imported here is instrumented

    target = targets.TARGETS[name]
    options = {
        "max_total_time": seconds,
        "max_len": target.longest,
        "timeout": targets.INPUT_S,
        "rss_limit_mb": targets.MEMORY_MIB,
        "print_final_stats": 1,
        "artifact_prefix": f"{REGRESSIONS}/{name}-",
    }
    arguments = [sys.argv[0], *(f"-{key}={value}" for key, value in options.items()), str(CORPUS / name)]
    atheris.Setup(arguments, lambda data: targets.run(name, data))
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
