"""`python -m compilepool`."""

from compilepool.cli import main

main()
