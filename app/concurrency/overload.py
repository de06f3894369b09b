"""The reasons why a request is answered "try again later", in one table."""

from __future__ import annotations

from enum import Enum

from app.errors import Overloaded


class Why(Enum):
    """A message, the error's code, and the default `Retry-After` in seconds."""

    REQUESTS = "Too many requests at once.", "overloaded", 1.0
    """All places, or the share of this key or address, are taken (`Admission`). A request takes about a second."""
    BYTES = "Too many bytes at once.", "overloaded", 1.0
    """The bodies and crops of requests in progress fill their share of the memory (`Admission.count_bytes`)."""
    COSTLY = "Too many large photos or bodies at once.", "overloaded", 5.0
    """A costly photo, or a large body, has waited too long for its turn (`Turns`)."""
    MEMORY = "There is not enough memory now.", "overloaded", 5.0
    """The system has no memory for a photo."""
    FACES = "Too many items are waiting.", "overloaded", 0.05
    """The queue of a model or of the search is full (`Batcher`); its speed decides when to try again."""
    UPLOADS = "This key's uploads that wait have too many bytes.", "overloaded", 60.0
    """A key's uploads, which stay on the disk until a job has read them, have too many bytes."""
    KEY_RATE = "This key sends too many requests.", "rate_limited", 1.0
    VECTOR_RATE = "This key sends too many embeddings.", "rate_limited", 1.0
    FAILURES = "Too many wrong keys came from this address.", "too_many_failures", 1.0
    CONNECTIONS = "The server has no connection or file left.", "too_many_connections", 1.0
    """All connections are busy, or the process has no file descriptor left. Answered with 503."""
    STOPPING = "The service is shutting down.", "shutting_down", 1.0
    """Answered with 503."""

    def __init__(self, message: str, code: str, retry_after_s: float) -> None:
        self.message, self.code, self.retry_after_s = message, code, retry_after_s

    def error(self, retry_after_s: float | None = None) -> Overloaded:
        """Return the error to raise."""
        seconds = self.retry_after_s if retry_after_s is None else max(retry_after_s, 0.0)
        return Overloaded(self.message, code=self.code, retry_after=seconds)
