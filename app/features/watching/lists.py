"""`likeness sightings`, `strangers`, `webhooks` and `events`: who was seen, and who is told."""

from __future__ import annotations

import json
import time
from functools import partial
from typing import Annotated, Any

import typer
from likeness_client import calls
from likeness_client.call import call, given

from app import choices
from app.cli import options
from app.cli.options import CliSession, command
from app.features.call_commands import add_call, switched_on
from app.features.watching.schemas import FilterParams, StrangerEdit, StrangerName, StrangersParams, WebhookCreate, Who

sightings = typer.Typer(
    name="sightings", no_args_is_help=True, epilog="Example: likeness sightings list home --decision unknown"
)
strangers = typer.Typer(name="strangers", no_args_is_help=True, epilog="Example: likeness strangers list home")
webhooks = typer.Typer(name="webhooks", no_args_is_help=True, epilog="Example: likeness webhooks list")
commands = typer.Typer()
SEEN = ("id", "camera", "decision", "subject", "stranger", "score", "first_at", "last_at")
MET = ("id", "sightings", "cameras", "first_at", "last_at", "ignored", "note")
SENT = ("id", "url", "kinds", "state", "attempts", "last_error", "delivered_at")
SETTING = "LIKENESS_WATCHING"
EVERY_S = 1.0
"""Seconds between requests for new events."""

add = partial(add_call, setting=SETTING)
add(sightings, "list", calls.sightings, FilterParams, columns=SEEN)
add(sightings, "show", calls.sighting)
add(sightings, "name", calls.say_who, Who, required=["subject"])
add(sightings, "deny", calls.say_who, about="Say that a sighting does not show whom it was taken for.")
add(sightings, "delete", calls.delete_sighting, done="deleted")
add(strangers, "list", calls.strangers, StrangersParams, columns=MET)
add(strangers, "show", calls.stranger)
add(strangers, "edit", calls.edit_stranger, StrangerEdit)
add(strangers, "name", calls.name_stranger, StrangerName, columns=SEEN)
add(strangers, "merge", calls.merge_strangers)
add(strangers, "forget", calls.forget_stranger, done="forgotten")
add(webhooks, "add", calls.create_webhook, WebhookCreate)
add(webhooks, "list", calls.webhooks, columns=SENT)
add(webhooks, "show", calls.webhook)
add(webhooks, "resume", calls.resume_webhook)
add(webhooks, "remove", calls.delete_webhook, done="removed")


@command(commands, "events", epilog="Example: likeness events --gallery home --event unknown_seen --follow")
def events(
    session: CliSession,
    gallery: options.InGallery = None,
    camera: Annotated[str | None, typer.Option(help="Only of this camera.")] = None,
    event: Annotated[choices.EventKind | None, typer.Option(help="Only of this kind.")] = None,
    after: Annotated[int, typer.Option(min=0, help="Only events with a higher number than this.")] = 0,
    follow: Annotated[bool, typer.Option("--follow", help="Then print new events, until Ctrl-C.")] = False,
) -> None:
    """Print the events that are still kept, the oldest first."""
    asked = given(gallery=gallery, camera=camera, event=event, seconds=0)
    while True:
        with switched_on(SETTING):
            sent = session.client().send(call("GET", "/v1/events", bytes, params=asked | {"after": after}))
        for line in sent.decode().splitlines():
            if line.startswith("data: "):
                document = json.loads(line.removeprefix("data: "))
                after = document["number"]
                session.say(document, _line(document))
        if not follow:
            return
        time.sleep(EVERY_S)


def _line(event: dict[str, Any]) -> str:
    who = event["name"] or event["subject"] or event["stranger"] or "unknown"
    return f"{event['number']}: {event['seen_at']}, {event['gallery']}, {event['camera']}: {event['event']}: {who}"
