"""Every Python example in the README, the docs and the docstrings runs as a test."""

from doctest import ELLIPSIS

from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser
from sybil.parsers.rest import DocTestParser

pytest_plugins = ["pytester"]  # tests/testing runs pytest on tests that use the plugin

pytest_collect_file = Sybil(
    parsers=[PythonCodeBlockParser(), DocTestParser(optionflags=ELLIPSIS)],
    patterns=["README.md", "docs/*.md", "tests/litmus/README.md"],
).pytest()
