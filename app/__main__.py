"""What the `likeness` command runs, and `python -m app`."""

from __future__ import annotations

import gc
import sys


def main() -> None:
    """Loads what the command needs, without looking for garbage meanwhile: of all that is made then nothing goes, and
    the search would take a third of the time."""
    gc.disable()
    if sys.argv[1:] == ["serve"]:
        _serve()
        return
    from app.cli import main as run  # noqa: PLC0415 (not before the garbage collector rests)

    gc.freeze()
    gc.enable()
    run()


def _serve() -> None:
    """As `app.cli.serve`, without the other commands' modules; `app.main` has garbage collected again once it is
    ready."""
    from app.errors import LikenessError  # noqa: PLC0415 (as above)

    try:
        from app.config import load_settings  # noqa: PLC0415 (the same)
        from app.server import start  # noqa: PLC0415 (as above)

        start.serve(load_settings())
    except LikenessError as error:
        from app.cli import output  # noqa: PLC0415 (brings the other commands along)

        output.complain(error)
        sys.exit(output.exit_code(error))


if __name__ == "__main__":
    main()
