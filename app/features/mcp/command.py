"""`likeness mcp`: offer the service's operations to a local assistant as tools of the Model Context Protocol, over
stdio."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from likeness_client import Client, ClientError

from app.cli.options import CliSession, command
from app.errors import FileMissing, LikenessError, Unusable

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

commands = typer.Typer()
AnswerT = TypeVar("AnswerT")
INSTRUCTIONS = """\
Face recognition of people who are enrolled in galleries. `decision` is the answer: `known`, `uncertain` or `unknown`; a
score alone is none. A match is a reason to look, not a proof: say so, and name nobody whom the answer does not know.
Photos are paths below the folder of photos."""
PAGE = 100
"""Maximum people in one answer."""


@command(
    commands,
    "mcp",
    epilog="Example: likeness mcp --photos ~/Pictures --server http://faces.local:8000 --key lk_…",
)
def mcp(
    session: CliSession,
    photos: Annotated[Path, typer.Option(help="Folder of the photos that may be sent to the server.")] = Path(),
    changes: Annotated[bool, typer.Option("--changes", help="Also offer tools that enroll and delete people.")] = False,
) -> None:
    """Answer an assistant by the Model Context Protocol, over standard input and output. Without --changes it only
    reads.

    The assistant may do what the key may do: use a key with the scopes `read` and `recognize`, for one gallery.
    """
    try:
        from mcp.server.mcpserver import MCPServer  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        message = "This needs the protocol's SDK: pip install 'likeness-server[mcp]'."
        raise Unusable(message, code="unusable") from error
    server = MCPServer("likeness", instructions=INSTRUCTIONS, log_level="WARNING")
    add_tools(server, Tools(session.client(), photos), changes=changes)
    server.run("stdio")


def add_tools(server: MCPServer, tools: Tools, *, changes: bool) -> None:
    """Add the reading tools, and with ``changes`` also the tools that change something."""
    from mcp.server.mcpserver.exceptions import ToolError  # noqa: PLC0415 - an extra
    from mcp_types import ToolAnnotations  # noqa: PLC0415 - an extra

    def told(tool: Callable[..., AnswerT]) -> Callable[..., AnswerT]:
        """Return the tool with its errors as ToolError, since the SDK would hide other errors' messages."""

        @wraps(tool)
        def call(*given: Any, **named: Any) -> AnswerT:
            try:
                return tool(*given, **named)
            except (ClientError, LikenessError, OSError) as error:
                raise ToolError(str(error)) from None

        return call

    for read in (tools.list_galleries, tools.list_people, tools.identify, tools.verify, tools.detect):
        server.add_tool(told(read), annotations=ToolAnnotations(read_only_hint=True))
    for change in (tools.enroll, tools.delete_person) if changes else ():
        server.add_tool(told(change), annotations=ToolAnnotations(read_only_hint=False, destructive_hint=True))


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools of an assistant, which reads their docstrings. Only photos in ``folder`` may be sent to the server."""

    client: Client
    folder: Path

    def list_galleries(self) -> list[dict[str, Any]]:
        """List the galleries: sets of enrolled people."""
        return [
            {"id": gallery.id, "people": gallery.subjects, "faces": gallery.faces, "embedder": gallery.embedder}
            for gallery in self.client.all_galleries()
        ]

    def list_people(self, gallery: str, cursor: str | None = None) -> dict[str, Any]:
        """List a gallery's people. To get the next ones, pass `next_cursor` as `cursor`."""
        page = self.client.subjects(gallery, limit=PAGE, cursor=cursor)
        people = [{"id": subject.id, "name": subject.name, "faces": subject.face_count} for subject in page.subjects]
        return {"people": people, "next_cursor": page.next_cursor}

    def identify(self, gallery: str, photo: str) -> dict[str, Any]:
        """Who is in this photo? Answers, for each face, a decision and the most similar people of the gallery."""
        return self.client.identify(gallery, self._shown(photo)).model_dump(mode="json")

    def verify(self, photo1: str, photo2: str) -> dict[str, Any]:
        """Do the most prominent faces of two photos show the same person?"""
        return self.client.verify(self._shown(photo1), self._shown(photo2)).model_dump(mode="json")

    def detect(self, photo: str) -> dict[str, Any]:
        """Find the faces in a photo, and say how good each one is for recognition."""
        return self.client.detect(self._shown(photo)).model_dump(mode="json")

    def enroll(self, gallery: str, person: str, photos: list[str]) -> dict[str, Any]:
        """Add photos of a person to a gallery. Poor photos are rejected, with reasons."""
        shown = [self._shown(photo) for photo in photos]
        return self.client.enroll(gallery, person, shown).model_dump(mode="json")

    def delete_person(self, gallery: str, person: str) -> dict[str, Any]:
        """Delete a person with all faces. This can't be undone."""
        self.client.delete_subject(gallery, person)
        return {"deleted": person}

    def _shown(self, path: str) -> Path:
        """Return a photo's full path. Raises FileMissing if it isn't a file below the folder."""
        root = self.folder.resolve()
        try:
            found = (root / path).resolve()
            if found.is_relative_to(root) and found.is_file():
                return found
        except (OSError, RuntimeError, ValueError):  # the path is too long, a loop of links, or has a NUL character
            pass
        raise FileMissing(f"There is no photo {path!r} in the folder of photos.")
