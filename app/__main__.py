"""`python -m app` is `likeness`."""

from app.cli import main

main()
