"""`python -m training …`. Each part is imported when it is asked for: evaluation runs without torch."""

from __future__ import annotations

import typer

from training import evaluate

app = typer.Typer(
    no_args_is_help=True, help="Train, measure and export face embedders.", pretty_exceptions_enable=False
)
app.add_typer(evaluate.app, name="evaluate")


@app.callback()
def main() -> None:
    """Train, measure and export face embedders."""


if __name__ == "__main__":
    app()
