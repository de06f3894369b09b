"""The command line. Every command works on a running server, or in this process where there is none."""

from __future__ import annotations

import sys

import typer

from app.cli import (
    access,
    administration,
    backup,
    bulk,
    doctor,
    erasure,
    jobs,
    moving,
    output,
    quantize,
    recognition,
    reembed,
    tune,
    vault,
)
from app.errors import LikenessError

app = typer.Typer(
    name="likeness",
    help="Face recognition: detect, verify, enroll, identify.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command()(recognition.detect)
app.command()(recognition.verify)
app.command()(recognition.enroll)
app.command()(recognition.identify)
app.command()(erasure.erase)
app.command("import")(bulk.import_)
app.command()(bulk.export)
app.command()(backup.backup)
app.command()(backup.restore)
app.command()(doctor.doctor)
app.command()(tune.tune)
app.command("import-compreface")(moving.import_compreface)
app.add_typer(administration.galleries, name="galleries")
administration.models.command()(quantize.quantize)
app.add_typer(administration.models, name="models")
app.add_typer(jobs.jobs, name="jobs")
app.add_typer(reembed.reembed, name="reembed")
app.add_typer(access.keys, name="keys")
administration.key.command()(access.create)
app.add_typer(administration.key, name="key")
app.add_typer(access.audit, name="audit")
app.add_typer(vault.vault, name="vault")
app.add_typer(erasure.receipts, name="receipts")


@app.command()
def serve() -> None:
    """Start the server; its settings come from the environment (LIKENESS_...)."""
    from app.config import load_settings  # noqa: PLC0415 (the same)
    from app.server import start  # noqa: PLC0415 (the other commands start quicker without)

    start.serve(load_settings())


def main() -> None:
    """What the `likeness` command runs."""
    try:
        app()
    except LikenessError as error:
        output.complain(error)
        sys.exit(output.exit_code(error))
    except BrokenPipeError:  # `likeness ... | head`
        sys.exit(output.Exit.DONE)
