"""A small C extension for the tests, and why it cannot be compiled here, if it cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

import native

SAMPLE = """\
#define PY_SSIZE_T_CLEAN
#include <Python.h>

static int start(PyObject *module)
{
    if (PyModule_AddIntConstant(module, "VERSION", 3) < 0)
        return -1;
    return PyModule_AddStringConstant(module, "SOURCE", KVSAN_SOURCE);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, start}, {0, NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "sample", NULL, 0, NULL, slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_sample(void)
{
    return PyModuleDef_Init(&definition);
}
"""
"""A module named `sample` with VERSION 3 and the SOURCE that it is built from; the compiler has nothing to warn of."""


def why_not() -> str:
    """Empty if this interpreter and machine can compile an extension."""
    try:
        native.check_interpreter()
        native.compiler()
    except native.BuildError as error:
        return str(error)
    return ""


needs_compiler = pytest.mark.skipif(bool(why_not()), reason=f"no C extensions here: {why_not()}")


def sample(module: str) -> str:
    """The C source of the sample under another name."""
    return SAMPLE.replace("sample", module)


def put_samples(root: Path) -> None:
    """The sample in the place of each of kvsan's extensions, in a tree of its own."""
    for name, path in native.EXTENSIONS.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(sample(name.rpartition(".")[2]))
