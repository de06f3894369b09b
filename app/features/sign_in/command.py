"""`likeness keys link`: print a link that signs a browser in."""

from __future__ import annotations

import re
from typing import Annotated

import typer
from likeness_client import Unreachable

from app.cli.connect import answering, find_server, require_data
from app.cli.options import CliSession, command
from app.config import load_settings
from app.features.sign_in.links import SIGN_IN_LINK

commands = typer.Typer()


@command(
    commands,
    epilog="Example: likeness keys link\n\nExample: likeness keys link --server https://faces.example.org --key lk_…",
)
def link(
    session: CliSession,
    url: Annotated[
        str | None,
        typer.Option(help="Address that the link begins with. Default: the server's.", envvar="LIKENESS_PUBLIC_URL"),
    ] = None,
) -> None:
    """Print a link that signs a browser in to a running server's page. It works once, within a minute."""
    running = find_server(session.server, session.key)
    if running is None:
        require_data(load_settings())
        raise Unreachable("No server runs on the data folder. Start one with `likeness serve`, or name one: --server.")
    with answering(running) as client:
        made = client.create_sign_in_code()
        text = SIGN_IN_LINK.format(url=_whole(url or client.url), code=made.code)
    session.say({"link": text, "expires_at": made.expires_at.isoformat()}, text)


def _whole(url: str) -> str:
    """Return the URL without a final slash. If it has a port but no host (`http://8000`), insert this machine's
    address."""
    return re.sub(r"^(https?://)(\d+)$", r"\g<1>127.0.0.1:\2", url.rstrip("/"))
