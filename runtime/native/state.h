/* Segment, Held, LogState: what the log's Python classes of these names are made of, so that both find it. */

#ifndef KVSAN_LINES_STATE_H
#define KVSAN_LINES_STATE_H

#include "common.h"

typedef struct {
    PyObject_HEAD
    PyObject *lines;
    Py_ssize_t extra, used, size, out;
    PyObject *words;
    Py_buffer view;  /* of the words; view.obj is NULL: none */
} Segment;

static int Segment_traverse(Segment *self, visitproc visit, void *arg) {
    Py_VISIT(self->lines);
    Py_VISIT(self->words);
    return 0;
}

static int Segment_clear(Segment *self) {
    Py_CLEAR(self->lines);
    PyBuffer_Release(&self->view);
    Py_CLEAR(self->words);
    return 0;
}

static void Segment_dealloc(Segment *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    Segment_clear(self);
    type->tp_free(self);
}

static PyObject *Segment_words(Segment *self, void *Py_UNUSED(more)) {
    if (self->words == NULL) {
        PyErr_SetString(PyExc_AttributeError, "words");
        return NULL;
    }
    return Py_NewRef(self->words);
}

static int Segment_set_words(Segment *self, PyObject *given, void *Py_UNUSED(more)) {
    Py_buffer view;
    if (given == NULL) {
        PyErr_SetString(PyExc_AttributeError, "words");
        return -1;
    }
    if (PyObject_GetBuffer(given, &view, PyBUF_WRITABLE) < 0)
        return -1;
    PyBuffer_Release(&self->view);
    self->view = view;
    Py_XSETREF(self->words, Py_NewRef(given));
    return 0;
}

static PyMemberDef Segment_members[] = {
    {"lines", T_OBJECT_EX, offsetof(Segment, lines), 0, NULL},
    {"extra", T_PYSSIZET, offsetof(Segment, extra), 0, NULL},
    {"used", T_PYSSIZET, offsetof(Segment, used), 0, NULL},
    {"size", T_PYSSIZET, offsetof(Segment, size), 0, NULL},
    {"out", T_PYSSIZET, offsetof(Segment, out), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef Segment_getset[] = {
    {"words", (getter)Segment_words, (setter)Segment_set_words, "An array of int32.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyTypeObject SegmentType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "kvsan.runtime._lines.Segment",
    .tp_basicsize = sizeof(Segment),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "What a piece of the log's ring holds.",
    .tp_new = PyType_GenericNew,
    .tp_dealloc = (destructor)Segment_dealloc,
    .tp_traverse = (traverseproc)Segment_traverse,
    .tp_clear = (inquiry)Segment_clear,
    .tp_members = Segment_members,
    .tp_getset = Segment_getset,
};

typedef struct {
    PyObject_HEAD
    Py_ssize_t at;
    PyObject *segment;
    char returned;  /* it has, and is not settled yet (`LogState.last`) */
} Held;

static int Held_traverse(Held *self, visitproc visit, void *arg) {
    Py_VISIT(self->segment);
    return 0;
}

static int Held_clear(Held *self) {
    Py_CLEAR(self->segment);
    return 0;
}

static void Held_dealloc(Held *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    Held_clear(self);
    type->tp_free(self);
}

static PyMemberDef Held_members[] = {
    {"at", T_PYSSIZET, offsetof(Held, at), 0, NULL},
    {"segment", T_OBJECT, offsetof(Held, segment), 0, NULL},
    {"returned", T_BOOL, offsetof(Held, returned), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject HeldType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "kvsan.runtime._lines.Held",
    .tp_basicsize = sizeof(Held),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "Where a blocking call's line is.",
    .tp_new = PyType_GenericNew,
    .tp_dealloc = (destructor)Held_dealloc,
    .tp_traverse = (traverseproc)Held_traverse,
    .tp_clear = (inquiry)Held_clear,
    .tp_members = Held_members,
};

typedef struct {
    PyObject_HEAD
    PyObject *segment;
    long long due;
    Py_ssize_t most, before;
    PyObject *now, *lock, *fault, *out, *full;
    PyObject *last;  /* the latest blocking call, a `Held`: in `out` from the next one on, if it has not returned */
} LogState;

static int LogState_traverse(LogState *self, visitproc visit, void *arg) {
    Py_VISIT(self->segment);
    Py_VISIT(self->now);
    Py_VISIT(self->lock);
    Py_VISIT(self->fault);
    Py_VISIT(self->out);
    Py_VISIT(self->full);
    Py_VISIT(self->last);
    return 0;
}

static int LogState_clear(LogState *self) {
    Py_CLEAR(self->segment);
    Py_CLEAR(self->now);
    Py_CLEAR(self->lock);
    Py_CLEAR(self->fault);
    Py_CLEAR(self->out);
    Py_CLEAR(self->full);
    Py_CLEAR(self->last);
    return 0;
}

static void LogState_dealloc(LogState *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    LogState_clear(self);
    type->tp_free(self);
}

static PyMemberDef LogState_members[] = {
    {"_segment", T_OBJECT_EX, offsetof(LogState, segment), 0, NULL},
    {"_due", T_LONGLONG, offsetof(LogState, due), 0, NULL},
    {"_most", T_PYSSIZET, offsetof(LogState, most), 0, NULL},
    {"_before", T_PYSSIZET, offsetof(LogState, before), 0, NULL},
    {"now", T_OBJECT_EX, offsetof(LogState, now), 0, NULL},
    {"lock", T_OBJECT_EX, offsetof(LogState, lock), 0, NULL},
    {"fault", T_OBJECT, offsetof(LogState, fault), 0, NULL},
    {"_out", T_OBJECT_EX, offsetof(LogState, out), 0, NULL},
    {"_full", T_OBJECT_EX, offsetof(LogState, full), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyObject *LogState_reap(LogState *self, PyObject *unused);  /* log.h */
static PyObject *LogState_calls_out(LogState *self, PyObject *unused);

static PyMethodDef LogState_methods[] = {
    {"_reap", (PyCFunction)LogState_reap, METH_NOARGS, "Settles the latest blocking call if it has returned; if not, it is in `_out` from here on."},
    {"_calls_out", (PyCFunction)LogState_calls_out, METH_NOARGS, "Blocking calls that are out, or have just returned."},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject LogStateType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "kvsan.runtime._lines.LogState",
    .tp_basicsize = sizeof(LogState),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "What a line touches of a log.",
    .tp_new = PyType_GenericNew,
    .tp_dealloc = (destructor)LogState_dealloc,
    .tp_traverse = (traverseproc)LogState_traverse,
    .tp_clear = (inquiry)LogState_clear,
    .tp_members = LogState_members,
    .tp_methods = LogState_methods,
};

#endif
