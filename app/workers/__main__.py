"""The program that workers are forked from."""

from app.workers.parent import main

main()
