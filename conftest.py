"""Every Python example in the README, the docs and the docstrings runs as a test."""

from doctest import ELLIPSIS

from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser
from sybil.parsers.rest import DocTestParser

pytest_collect_file = Sybil(
    parsers=[PythonCodeBlockParser(), DocTestParser(optionflags=ELLIPSIS)],
    patterns=["README.md", "docs/*.md", "tests/litmus/README.md"],
).pytest()
