"""Make a database as version 0.1.0 left it. The trial of the image runs this text in a container without tests."""

from __future__ import annotations

import unicodedata

import sqlalchemy as sa

from app.db.migrations import VERSION
from app.db.schema import METADATA

TABLES_OF_0_2_0 = {
    "calibration_pairs",
    "cameras",
    "corrections",
    "dismissals",
    "event_cursors",
    "event_numbers",
    "events",
    "findings",
    "gallery_calibrations",
    "packages",
    "reviews",
    "seen_signatures",
    "sightings",
    "sign_ins",
    "strangers",
    "webhook_subjects",
    "webhooks",
}
COLUMNS_OF_0_2_0 = {
    "galleries": ("population", "on_conflict", "liveness", "calibration", "allow_laxer"),
    "subjects": ("cover",),
    "job_refusals": ("enrolled",),
}


def make_0_1_0(url: str) -> None:
    """Change the database to that of version 0.1.0, which also folded names differently."""
    subjects = sa.table("subjects", sa.column("key"), sa.column("id"), sa.column("name"), sa.column("folded"))
    engine = sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://"), poolclass=sa.NullPool)
    with engine.begin() as connection:
        for table in reversed(METADATA.sorted_tables):
            if table.name in TABLES_OF_0_2_0:
                table.drop(connection)
        for name, columns in COLUMNS_OF_0_2_0.items():
            for column in columns:
                connection.exec_driver_sql(f"ALTER TABLE {name} DROP COLUMN {column}")
        for row in connection.execute(sa.select(subjects)).all():
            folded = "\n".join(unicodedata.normalize("NFC", text.casefold()) for text in (row.id, row.name) if text)
            connection.execute(sa.update(subjects).where(subjects.c.key == row.key).values(folded=folded))
        connection.execute(sa.update(VERSION).values(version_num="0012"))
