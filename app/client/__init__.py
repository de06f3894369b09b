"""The Python client: ``Client`` for plain code, ``AsyncClient`` for asyncio, the same words in both.

    from app.client import Client

    with Client("http://127.0.0.1:8000", key=KEY) as client:
        client.create_gallery("staff")
        client.enroll("staff", "eileen", [Path("docs/samples/collins.jpg")])
        for face in client.identify("staff", Path("docs/samples/both.jpg")).faces:
            print(face.decision, face.candidates[:1])

Images are given as bytes or as paths. Errors: ``ApiError`` (the server said no; its ``code`` says why) and
``Unreachable``. A busy server (429) is asked again, after the time it names.
"""

from app.client.client import AsyncClient, Client
from app.client.errors import ApiError, Unreachable

__all__ = ["ApiError", "AsyncClient", "Client", "Unreachable"]
