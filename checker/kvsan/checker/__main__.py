"""`python -m kvsan.checker` is `kvsan`."""

from kvsan.checker.cli import main

main()
