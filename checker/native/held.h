/* The types of a blocking call's line and of a hook's counter, whose Python subclasses are `lines.Held` and `ledger.Hook`. */

#ifndef KVSAN_HELD_H
#define KVSAN_HELD_H

#include "lines.h"

static int Held_init(Held *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"index", "given", "done", NULL};
    PyObject *index, *given, *done = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO!|O:Held", names, &index, &PyTuple_Type, &given, &done))
        return -1;
    Py_XSETREF(self->index, Py_NewRef(index));
    Py_XSETREF(self->given, Py_NewRef(given));
    Py_XSETREF(self->done, Py_NewRef(done));
    Py_XSETREF(self->told, Py_NewRef(Py_False));
    Py_XSETREF(self->op, Py_NewRef(Py_None));
    return 0;
}

static int Held_traverse(Held *self, visitproc visit, void *arg)
{
    Py_VISIT(self->index);
    Py_VISIT(self->given);
    Py_VISIT(self->done);
    Py_VISIT(self->told);
    Py_VISIT(self->op);
    return 0;
}

static int Held_clear(Held *self)
{
    Py_CLEAR(self->index);
    Py_CLEAR(self->given);
    Py_CLEAR(self->done);
    Py_CLEAR(self->told);
    Py_CLEAR(self->op);
    return 0;
}

static void Held_dealloc(Held *self)
{
    PyObject_GC_UnTrack(self);
    Held_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMemberDef Held_members[] = {
    {"index", T_OBJECT_EX, offsetof(Held, index), 0, NULL},
    {"given", T_OBJECT_EX, offsetof(Held, given), 0, NULL},
    {"done", T_OBJECT_EX, offsetof(Held, done), 0, NULL},
    {"told", T_OBJECT_EX, offsetof(Held, told), 0, NULL},
    {"_op", T_OBJECT_EX, offsetof(Held, op), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject HeldType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "kvsan.checker.attach._hot.Held",
    .tp_doc = "The line of a blocking call.",
    .tp_basicsize = sizeof(Held),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)Held_init,
    .tp_dealloc = (destructor)Held_dealloc,
    .tp_traverse = (traverseproc)Held_traverse,
    .tp_clear = (inquiry)Held_clear,
    .tp_members = Held_members,
};

static PyMemberDef Counter_members[] = {
    {"count", T_PYSSIZET, offsetof(Counter, count), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject CounterType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "kvsan.checker.attach._hot.Counter",
    .tp_doc = "How often a hook fired.",
    .tp_basicsize = sizeof(Counter),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_new = PyType_GenericNew,
    .tp_members = Counter_members,
};

#endif
