"""The Python client: ``Client`` for plain code, ``AsyncClient`` for asyncio, with the same methods.

    from app.client import Client

    with Client("http://127.0.0.1:8000", key=KEY) as client:
        client.create_gallery("staff")
        client.enroll("staff", "eileen", [Path("docs/samples/collins.jpg")])
        for face in client.identify("staff", Path("docs/samples/both.jpg")).faces:
            print(face.decision, face.candidates[:1])

Images are bytes or paths. Errors: ``ApiError`` (the server answered with an error; ``code`` says which) and
``Unreachable``. Requests to a busy server (429) are repeated after the time that it names.
"""

from app.client.client import AsyncClient, Client
from app.client.errors import ApiError, Unreachable

__all__ = ["ApiError", "AsyncClient", "Client", "Unreachable"]
