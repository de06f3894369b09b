"""`likeness erase`, `receipts`: erase a person, and check the signed receipt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from likeness_client import answers

from app.cli import options, output
from app.cli.connect import connect
from app.cli.options import CliSession, command, confirm
from app.errors import FileMissing, InvalidInput, Unusable
from app.features.writable import check_writable

commands = typer.Typer()
receipts = typer.Typer(no_args_is_help=True, epilog="Example: likeness receipts list")

KeyFile = Annotated[
    Path | None,
    typer.Option("--server-key", help="The server's public key: the answer of `GET /v1/server-key`, or PEM."),
]


@command(commands, epilog="Example: likeness erase staff ada --save ada.receipt.json --yes")
def erase(
    session: CliSession,
    gallery: options.Gallery,
    subject: options.Subject,
    rewrite: Annotated[
        bool, typer.Option("--rewrite", help="PostgreSQL: rewrite the tables, which are locked meanwhile.")
    ] = False,
    save: Annotated[Path | None, typer.Option(help="Write the receipt to this file.")] = None,
    yes: options.Yes = False,
) -> None:
    """Erase a person for good, and get a signed receipt. Exit code 1: the server still has to clear some copies."""
    confirm(f"Erase {subject} of gallery {gallery} for good?", yes)
    client = session.client()
    check_writable(save)
    receipt = client.erase_subject(gallery, subject, rewrite=rewrite)
    if session.as_json:
        output.say(as_signed(receipt))
    else:
        counts = receipt.erased
        output.say(f"{subject}: erased at {receipt.erased_at}, {counts.faces} faces and {counts.crops} crops")
        output.say(f"receipt {receipt.id}: tables {receipt.cleared.tables}, log {receipt.cleared.write_ahead_log}")
        for place in receipt.not_reached:
            output.say(f"  not reached: {place}")
    if save is not None:  # after printing, so that a full disk doesn't hide the receipt
        save.write_text(as_signed(receipt) + "\n", encoding="utf-8")
    raise typer.Exit(output.Exit.DONE if receipt.complete else output.Exit.NO)


@command(receipts, "list", epilog="Example: likeness receipts list")
def list_receipts(session: CliSession) -> None:
    """List the receipts, oldest first."""
    receipts = list(session.client().all_receipts())
    if session.as_json:
        for receipt in receipts:
            output.say(as_signed(receipt))
    else:
        rows = [[row.id, row.gallery, row.erased_at, row.reason, row.erased.faces] for row in receipts]
        output.say_table(["receipt", "gallery", "erased at", "reason", "faces"], rows)


@receipts.command("show", epilog="Example: likeness receipts show 3f2a > receipt.json")
def show_receipt(
    receipt: Annotated[str, typer.Argument(help="The receipt's id.")],
    server: options.Server = None,
    key: options.Key = None,
) -> None:
    """Print one receipt, as JSON."""
    with connect(server, key) as client:
        output.say(as_signed(client.receipt(receipt)))


@receipts.command(epilog="Example: likeness receipts verify receipt.json --server-key server-key.json --subject ada")
def verify(
    file: Annotated[Path, typer.Argument(help="The receipt, a JSON file.")],
    server_key: KeyFile = None,
    subject: Annotated[str | None, typer.Option(help="Also check that it is about this person.")] = None,
) -> None:
    """Check the signature of a receipt. No server is needed. Exit code 1: the receipt is not in order."""
    from app.features.erasure.checking import check_receipt, is_about  # noqa: PLC0415 - slow to import

    document = _json(file)
    try:
        known = check_receipt(document, read_public_key(server_key) if server_key else None)
    except Unusable as error:
        output.say(f"NOT in order: {error.message}")
        raise typer.Exit(output.Exit.NO) from None
    if subject is not None and not is_about(document, str(document["gallery"]), subject):
        output.say(f"NOT about {subject}")
        raise typer.Exit(output.Exit.NO)
    whose = "the server's key" if known else f"key {document['signature']['key_id']}; compare it with the server's"
    output.say(f"in order: erased at {document['erased_at']}, signed with {whose}")


def as_signed(receipt: answers.Receipt) -> str:
    """Return the receipt as JSON with exactly the fields that the server sent, which its signature covers."""
    return receipt.model_dump_json(exclude_unset=True)


def _json(file: Path) -> dict[str, Any]:
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileMissing(f"{file}: {error.strerror}") from None
    except ValueError:
        raise InvalidInput(f"{file}: not JSON", code="invalid_json") from None
    if not isinstance(document, dict):
        raise InvalidInput(f"{file}: not a JSON object", code="invalid_json")
    return document


def read_public_key(file: Path) -> bytes:
    """Return the public key in a file: the answer of `GET /v1/server-key`, or PEM. Raises FileMissing, InvalidInput
    ``invalid_json`` and Unusable ``signature_wrong``."""
    from app.features import signatures  # noqa: PLC0415 - slow to import

    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise FileMissing(f"{file}: cannot be read") from None
    if text.lstrip().startswith("-----BEGIN"):
        return signatures.read_pem(text)
    return signatures.decode(str(_json(file).get("public_key")))
