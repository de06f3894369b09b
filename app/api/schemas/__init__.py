"""Every request and answer of the REST interface, as pydantic models.

The service, the Python client and the command line share these; nothing here imports a web framework.
Coordinates are pixels of the upright original photo, scores are cosine similarities (-1 to 1, higher =
more alike), times are UTC in ISO 8601, and no number is ever NaN or infinite.
"""

from app.api.schemas.access import *  # noqa: F403 (the package is its modules' names)
from app.api.schemas.base import *  # noqa: F403 (the package is its modules' names)
from app.api.schemas.recognition import *  # noqa: F403 (the package is its modules' names)
from app.api.schemas.server import *  # noqa: F403 (the package is its modules' names)
from app.api.schemas.subjects import *  # noqa: F403 (the package is its modules' names)
