/* Who is who, the usual way (`names.py`): an event's name hangs on the event, a stream's on the stream, and that of the
   current stream is known by device and handle. What is not usual is left to the Python half. */

#ifndef KVSAN_NAMES_H
#define KVSAN_NAMES_H

#include "common.h"
#include "state.h"

/* ── events ───────────────────────────────────────────────────────────────────────────────────────────────────── */

/* The name of an event, on that event. Where it ends, `end` is called with the name: a deque's `append`. */
typedef struct {
    PyObject_HEAD
    PyObject *end, *name;
    PyObject *event; /* whose it is: an address and no reference */
} Tag;

static void Tag_dealloc(Tag *self)
{
    if (self->end != NULL) {
        PyObject *error = PyErr_Occurred() ? take_error() : NULL, *done;
        done = PyObject_CallOneArg(self->end, self->name);
        if (done == NULL)
            PyErr_Clear();
        Py_XDECREF(done);
        if (error != NULL)
            put_back_error(error);
        Py_DECREF(self->end);
    }
    Py_XDECREF(self->name);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

/* An event that is pickled leaves it behind. */
static PyObject *Tag_reduce(Tag *self, PyObject *unused)
{
    (void)self;
    (void)unused;
    return Py_BuildValue("O()", Py_TYPE(Py_None));
}

static PyMethodDef Tag_methods[] = {
    {"__reduce__", (PyCFunction)Tag_reduce, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject TagType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "kvsan.checker.attach._hot.Tag",
    .tp_doc = "The name of an event, on that event.",
    .tp_basicsize = sizeof(Tag),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = (destructor)Tag_dealloc,
    .tp_methods = Tag_methods,
};

/* Names of events. A subclass sets the fields, and knows events that cannot carry a name. */
typedef struct {
    PyObject_HEAD
    PyObject *prefix, *attribute, *end;
    PyObject *names, *held; /* dicts of events that have their names elsewhere */
    Py_ssize_t serial;
} Names;

/* `fresh`: a new name. */
static PyObject *names_fresh(Names *self)
{
    if (self->prefix == NULL) {
        PyErr_SetString(PyExc_AttributeError, "_prefix");
        return NULL;
    }
    return PyUnicode_FromFormat("%Se%zd", self->prefix, ++self->serial);
}

/* 1: the tag hangs there; 0: the event does not carry it; -1: an error. */
static int names_hang(Names *self, PyObject *event, PyObject *tag)
{
    PyObject *found;
    if (PyObject_SetAttr(event, self->attribute, tag) < 0) {
        if (!PyErr_ExceptionMatches(PyExc_AttributeError) && !PyErr_ExceptionMatches(PyExc_TypeError))
            return -1;
        PyErr_Clear();
        return 0;
    }
    found = look_up(event, self->attribute);
    if (found == NULL && PyErr_Occurred()) {
        if (!PyErr_ExceptionMatches(PyExc_TypeError))
            return -1;
        PyErr_Clear();
    }
    Py_XDECREF(found);
    return found == tag;
}

/* `name`: the event's, a new reference. */
static PyObject *names_name(Names *self, PyObject *event)
{
    PyObject *name, *done;
    Tag *tag;
    Py_ssize_t others;
    int hangs;
    if (self->attribute == NULL || self->end == NULL || self->names == NULL || self->held == NULL) {
        PyErr_SetString(PyExc_AttributeError, "names of events that were not set up");
        return NULL;
    }
    tag = (Tag *)look_up(event, self->attribute);
    if (tag != NULL) {
        name = Py_TYPE(tag) == &TagType && tag->event == event ? Py_NewRef(tag->name) : NULL;
        Py_DECREF(tag);
        if (name != NULL)
            return name;
    } else if (PyErr_Occurred())
        return NULL;
    if ((others = PyObject_Size(self->names)) == 0)
        others = PyObject_Size(self->held);
    if (others < 0)
        return NULL;
    if (others > 0) {
        name = PyObject_CallMethodOneArg((PyObject *)self, s__otherwise, event);
        if (name == NULL || name != Py_None)
            return name;
        Py_DECREF(name);
    }
    tag = (Tag *)TagType.tp_alloc(&TagType, 0);
    if (tag == NULL || (name = names_fresh(self)) == NULL) {
        Py_XDECREF(tag);
        return NULL;
    }
    tag->end = Py_NewRef(self->end);
    tag->name = Py_NewRef(name);
    tag->event = event;
    hangs = names_hang(self, event, (PyObject *)tag);
    if (hangs != 1)
        Py_CLEAR(tag->end); /* it hangs nowhere, and its end is nobody's */
    Py_DECREF(tag);
    if (hangs == 0) {
        done = PyObject_CallMethodObjArgs((PyObject *)self, s__refer, event, name, NULL);
        Py_XDECREF(done);
        hangs = done == NULL ? -1 : 1;
    }
    if (hangs < 0)
        Py_CLEAR(name);
    return name;
}

static PyObject *Names_name(Names *self, PyObject *event)
{
    return names_name(self, event);
}

static PyObject *Names_fresh(Names *self, PyObject *unused)
{
    (void)unused;
    return names_fresh(self);
}

static int Names_traverse(Names *self, visitproc visit, void *arg)
{
    Py_VISIT(self->prefix);
    Py_VISIT(self->attribute);
    Py_VISIT(self->end);
    Py_VISIT(self->names);
    Py_VISIT(self->held);
    return 0;
}

/* No `tp_clear`, here and below: what runs while others are cleared may ask for a name. Each cycle goes through a dict,
   which is cleared. */
static void Names_dealloc(Names *self)
{
    PyObject_GC_UnTrack(self);
    Py_CLEAR(self->prefix);
    Py_CLEAR(self->attribute);
    Py_CLEAR(self->end);
    Py_CLEAR(self->names);
    Py_CLEAR(self->held);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef Names_methods[] = {
    {"name", (PyCFunction)Names_name, METH_O, "The name of an event, made when it is asked for first."},
    {"fresh", (PyCFunction)Names_fresh, METH_NOARGS, "A name for an event that is no Python object here."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef Names_members[] = {
    {"_prefix", T_OBJECT_EX, offsetof(Names, prefix), 0, NULL},
    {"_attribute", T_OBJECT_EX, offsetof(Names, attribute), 0, NULL},
    {"_end", T_OBJECT_EX, offsetof(Names, end), 0, NULL},
    {"_names", T_OBJECT_EX, offsetof(Names, names), 0, NULL},
    {"_held", T_OBJECT_EX, offsetof(Names, held), 0, NULL},
    {"_serial", T_PYSSIZET, offsetof(Names, serial), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject NamesType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "kvsan.checker.attach._hot.Names",
    .tp_doc = "Names of events.",
    .tp_basicsize = sizeof(Names),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_dealloc = (destructor)Names_dealloc,
    .tp_traverse = (traverseproc)Names_traverse,
    .tp_methods = Names_methods,
    .tp_members = Names_members,
};

/* ── streams ──────────────────────────────────────────────────────────────────────────────────────────────────── */

#define MET 4

/* Names of streams for one `Calls`. `device` and `handle` are PyTorch's own, `meet` is asked for a (device, handle) that
   was not met before and says `None` if that does not settle it, `other` is asked for all else. */
typedef struct {
    PyObject_HEAD
    State *state;
    PyObject *device, *handle, *meet, *other;
    struct {
        long device;
        long long handle;
        PyObject *name;
    } met[MET];
    int next;
    Py_ssize_t gone; /* `streams_gone` when they were met */
} Namer;

static PyObject *namer_other(Namer *self, PyObject *stream)
{
    return PyObject_CallOneArg(self->other, stream);
}

/* The name of the current stream, a new reference; NULL without an error if that is not to be had here. */
static PyObject *namer_current(Namer *self)
{
    PyObject *device, *handle, *key, *name;
    Py_ssize_t gone;
    long at;
    long long which;
    int i;
    if (self->device == Py_None || (device = PyObject_CallNoArgs(self->device)) == NULL)
        return NULL;
    if ((handle = PyObject_CallOneArg(self->handle, device)) == NULL) {
        Py_DECREF(device);
        return NULL;
    }
    at = PyLong_AsLong(device);
    which = (long long)PyLong_AsUnsignedLongLongMask(handle);
    if (PyErr_Occurred()) {
        name = NULL;
        goto done;
    }
    if (self->gone != self->state->gone) {
        for (i = 0; i < MET; i++)
            Py_CLEAR(self->met[i].name);
        self->gone = self->state->gone;
    }
    for (i = 0; i < MET; i++)
        if (self->met[i].name != NULL && self->met[i].handle == which && self->met[i].device == at) {
            name = Py_NewRef(self->met[i].name);
            goto done;
        }
    name = NULL;
    gone = self->state->gone;
    if ((key = PyTuple_Pack(2, device, handle)) != NULL) {
        name = PyObject_CallOneArg(self->meet, key);
        Py_DECREF(key);
    }
    if (name == Py_None)
        Py_CLEAR(name);
    if (name != NULL && gone == self->state->gone && gone == self->gone) { /* nothing was destroyed meanwhile */
        self->met[self->next].device = at;
        self->met[self->next].handle = which;
        Py_XSETREF(self->met[self->next].name, Py_NewRef(name));
        self->next = (self->next + 1) % MET;
    }
done:
    Py_DECREF(device);
    Py_DECREF(handle);
    return name;
}

/* The name of a stream, of the current one for NULL or `None`; a new reference. */
static PyObject *namer_name(Namer *self, PyObject *stream)
{
    PyObject *kept, *name = NULL;
    if (stream == NULL || stream == Py_None) {
        name = namer_current(self);
        return name != NULL || PyErr_Occurred() ? name : namer_other(self, Py_None);
    }
    kept = look_up(stream, s__kvsan_name);
    if (kept == NULL && PyErr_Occurred())
        return NULL;
    if (kept != NULL && PyTuple_CheckExact(kept) && PyTuple_GET_SIZE(kept) == 3 &&
        PyTuple_GET_ITEM(kept, 0) == (PyObject *)self->state && PyLong_CheckExact(PyTuple_GET_ITEM(kept, 1)) &&
        PyLong_AsSsize_t(PyTuple_GET_ITEM(kept, 1)) == self->state->gone)
        name = Py_NewRef(PyTuple_GET_ITEM(kept, 2));
    Py_XDECREF(kept);
    return name != NULL ? name : namer_other(self, stream);
}

static PyObject *Namer_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *state, *device, *handle, *meet, *other;
    Namer *self;
    (void)kwargs;
    if (!PyArg_ParseTuple(args, "O!OOOO:Namer", &StateType, &state, &device, &handle, &meet, &other))
        return NULL;
    if ((self = (Namer *)type->tp_alloc(type, 0)) != NULL) {
        self->state = (State *)Py_NewRef(state);
        self->device = Py_NewRef(device);
        self->handle = Py_NewRef(handle);
        self->meet = Py_NewRef(meet);
        self->other = Py_NewRef(other);
        self->gone = self->state->gone;
    }
    return (PyObject *)self;
}

static PyObject *Namer_name(Namer *self, PyObject *stream)
{
    return namer_name(self, stream);
}

static int Namer_traverse(Namer *self, visitproc visit, void *arg)
{
    Py_VISIT(self->state);
    Py_VISIT(self->device);
    Py_VISIT(self->handle);
    Py_VISIT(self->meet);
    Py_VISIT(self->other);
    return 0;
}

static void Namer_dealloc(Namer *self)
{
    int i;
    PyObject_GC_UnTrack(self);
    Py_CLEAR(self->state);
    Py_CLEAR(self->device);
    Py_CLEAR(self->handle);
    Py_CLEAR(self->meet);
    Py_CLEAR(self->other);
    for (i = 0; i < MET; i++)
        Py_CLEAR(self->met[i].name);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef Namer_methods[] = {
    {"name", (PyCFunction)Namer_name, METH_O, "The name of a stream, of the current one for `None`."},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject NamerType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "kvsan.checker.attach._hot.Namer",
    .tp_doc = "Names of streams.",
    .tp_basicsize = sizeof(Namer),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = Namer_new,
    .tp_dealloc = (destructor)Namer_dealloc,
    .tp_traverse = (traverseproc)Namer_traverse,
    .tp_methods = Namer_methods,
};

#endif
