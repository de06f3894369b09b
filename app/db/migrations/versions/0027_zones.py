"""The zone of a sighting, and whom an event is about by key, so that it has the subject's id and name of today."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None

KEY = sa.BigInteger().with_variant(sa.Integer, "sqlite")
NAMED = """UPDATE events SET subject_key = (
    SELECT s.subject_key FROM sightings s WHERE s.key = events.sighting_key AND s.decision = 'known'
)"""


def upgrade() -> None:
    op.add_column("sightings", sa.Column("zone", sa.Text))
    op.add_column("events", sa.Column("subject_key", KEY))
    op.execute(NAMED)


def downgrade() -> None:
    op.drop_column("events", "subject_key")
    op.drop_column("sightings", "zone")
