/* Which stream is which, the usual way (`torch/calls.py`): a stream carries its name, and that of the current one is known by
   device and handle. What is not usual is asked of Python. */

#ifndef KVSAN_STREAMS_H
#define KVSAN_STREAMS_H

#include "known.h"
#include "recorder.h"

/* Names of streams for one `Calls`. `device` and `handle` are PyTorch's own, `meet` is asked for a (device, handle) that
   was not met before and says `None` if that does not settle it, `other` is asked for all else; `devices` says how many
   there are. */
typedef struct {
    PyObject_HEAD
    State *state;
    PyObject *device, *handle, *meet, *other, *devices;
    PyObject *only;        /* the device, if there is but one; `None` if there are more; NULL: not asked yet */
    PyCFunction quick;     /* of `handle`, if it is C that takes one argument; called while `only` is a device, */
    PyObject *quick_self;
    long long only_number; /* that one */
    Known met;             /* by device and handle */
    PyObject *names[MET];  /* the same names */
    PyTypeObject *kind;    /* the class of streams that are known by what stands in their own memory (`namer_learn`): the
                              first one where that can be */
    PyTypeObject *unfit;   /* the latest one where it cannot: an address, and no reference */
    Py_ssize_t device_at, number_at;
    Known numbered;        /* those, by device and PyTorch's number for the stream */
    PyObject *given[MET];  /* streams that carry their name */
    Text given_text[MET];
    int next_given;
    Py_ssize_t gone; /* `streams_gone` when they were met */
} Namer;

static PyObject *namer_other(Namer *self, PyObject *stream)
{
    return PyObject_CallOneArg(self->other, stream);
}

/* What was met is not known any more: a stream was destroyed. */
static COLD void namer_forget(Namer *self)
{
    int i;
    self->gone = self->state->gone;
    self->met.count = self->met.next = self->numbered.count = self->numbered.next = 0;
    for (i = 0; i < MET; i++) {
        Py_CLEAR(self->names[i]);
        Py_CLEAR(self->given[i]);
    }
}

/* One that was not met before, or not since a stream was destroyed, is met. `name` is its name, a new reference, or NULL with
   an error, or NULL without one if it is not to be had here. */
static COLD void namer_meet(Namer *self, PyObject *device, PyObject *handle, long at, long long which, PyObject **name)
{
    Py_ssize_t gone = self->state->gone;
    Text text;
    PyObject *key = PyTuple_Pack(2, device, handle);
    *name = key == NULL ? NULL : PyObject_CallOneArg(self->meet, key);
    Py_XDECREF(key);
    if (*name == Py_None)
        Py_CLEAR(*name);
    if (*name != NULL)
        text_of(&text, *name);
    if (*name != NULL && gone == self->state->gone && gone == self->gone) { /* nothing was destroyed meanwhile */
        int i = known_add(&self->met, at, which, &text);
        Py_XSETREF(self->names[i], Py_NewRef(*name));
    }
}

/* A stream's place in `met`. -1 if it has none: `name` is as above. */
static HOT int namer_find(Namer *self, PyObject *device, PyObject *handle, PyObject **name)
{
    long at = PyLong_AsLong(device);
    long long which = (long long)PyLong_AsUnsignedLongLongMask(handle);
    int i;
    if ((at == -1 || which == -1) && PyErr_Occurred())
        return -1;
    if (self->gone != self->state->gone)
        namer_forget(self);
    if ((i = known_find(&self->met, at, which)) >= 0)
        return i;
    namer_meet(self, device, handle, at, which, name);
    return -1;
}

/* Whether there are more devices than this one, asked once, where a current stream was told: CUDA has counted them. Where
   that is not to be had there may be more. 0, or -1 with an error that is not kvsan's. */
static COLD int namer_count(Namer *self, PyObject *device)
{
    PyObject *count = self->devices == Py_None ? Py_NewRef(zero) : PyObject_CallNoArgs(self->devices);
    int one = count != NULL && PyLong_Check(count) && PyLong_AsLong(count) == 1;
    Py_XDECREF(count);
    if (let_go() < 0)
        return -1;
    self->only_number = one ? PyLong_AsLongLong(device) : -1;
    if (let_go() < 0)
        return -1;
    self->quick = NULL;
    if (one && PyCFunction_CheckExact(self->handle) && (PyCFunction_GET_FLAGS(self->handle) & ~METH_COEXIST) == METH_O) {
        self->quick = PyCFunction_GET_FUNCTION(self->handle);
        self->quick_self = PyCFunction_GET_SELF(self->handle);
    }
    Py_XSETREF(self->only, Py_NewRef(one ? device : Py_None));
    return 0;
}

/* The current stream's. */
static HOT int namer_met(Namer *self, PyObject **name)
{
    PyObject *device, *handle;
    int i;
    *name = NULL;
    if (self->device == Py_None)
        return -1;
    if (self->only != NULL && self->only != Py_None)
        device = Py_NewRef(self->only);
    else if ((device = PyObject_CallNoArgs(self->device)) == NULL)
        return -1;
    if ((handle = PyObject_CallOneArg(self->handle, device)) == NULL) {
        Py_DECREF(device);
        return -1;
    }
    i = self->only == NULL && namer_count(self, device) < 0 ? -1 : namer_find(self, device, handle, name);
    Py_DECREF(device);
    Py_DECREF(handle);
    return i;
}

/* The name of the current stream, a new reference; NULL without an error if that is not to be had here. */
static PyObject *namer_current(Namer *self)
{
    PyObject *name;
    int at = namer_met(self, &name);
    return at < 0 ? name : Py_NewRef(self->names[at]);
}

/* The name that the stream carries, a new reference; NULL without an error if it carries none. */
static PyObject *namer_kept(Namer *self, PyObject *stream)
{
    PyObject *kept = look_up(stream, s__kvsan_name), *name = NULL;
    if (kept != NULL && PyTuple_CheckExact(kept) && PyTuple_GET_SIZE(kept) == 3 &&
        PyTuple_GET_ITEM(kept, 0) == (PyObject *)self->state && PyLong_CheckExact(PyTuple_GET_ITEM(kept, 1)) &&
        PyLong_AsSsize_t(PyTuple_GET_ITEM(kept, 1)) == self->state->gone)
        name = Py_NewRef(PyTuple_GET_ITEM(kept, 2));
    Py_XDECREF(kept);
    return name;
}

/* The name of a stream, of the current one for NULL or `None`; a new reference. */
static PyObject *namer_name(Namer *self, PyObject *stream)
{
    int current = stream == NULL || stream == Py_None;
    PyObject *name = current ? namer_current(self) : namer_kept(self, stream);
    if (name != NULL || PyErr_Occurred())
        return name;
    return namer_other(self, current ? Py_None : stream);
}

/* Whether a stream is one of those that are known by their numbers, maybe from now on: PyTorch makes another object at each
   look at the current stream, and each has the stream's number and its device in its own memory
   (torch/csrc/Stream.h: THPStream). A number stands for one handle as long as the process lives (c10/cuda/CUDAStream.cpp:
   StreamId) if it is C that tells the handle, and no subclass. */
static COLD int namer_learn(Namer *self, PyObject *stream)
{
    PyTypeObject *type = Py_TYPE(stream);
    PyObject *handle;
    Py_ssize_t number_at, device_at;
    if (self->kind != NULL || type == self->unfit)
        return type == self->kind;
    self->unfit = type;
    if (type->tp_getattro != PyObject_GenericGetAttr ||
        (handle = class_has(type, s_cuda_stream, &PyGetSetDescr_Type)) == NULL)
        return 0;
    Py_DECREF(handle);
    if ((number_at = number_place(type, s_stream_id)) < 0 || (device_at = number_place(type, s_device_index)) < 0)
        return 0;
    self->number_at = number_at;
    self->device_at = device_at;
    self->kind = (PyTypeObject *)Py_NewRef(type);
    return 1;
}

/* An object that carries no name, which PyTorch makes at each look at the current stream: by device and handle, as
   `surface.identity` has them. 1: the name is in place; 0: it is not to be had here; -1 with an error. */
static HOT int namer_identified(Namer *self, PyObject *stream, Text *text)
{
    PyObject *handle = look_up(stream, s_cuda_stream), *device = NULL, *name = NULL;
    int i = -1;
    if (handle != NULL && PyLong_CheckExact(handle) && (device = look_up(stream, s_device_index)) != NULL &&
        PyLong_CheckExact(device))
        i = namer_find(self, device, handle, &name);
    Py_XDECREF(handle);
    Py_XDECREF(device);
    if (i < 0)
        return name != NULL ? text_taken(text, name) + 1 : PyErr_Occurred() ? -1 : 0;
    text_copy(text, &self->met.text[i]);
    if (namer_learn(self, stream))
        known_add(&self->numbered, number_in(stream, self->device_at), number_in(stream, self->number_at), text);
    return 1;
}

/* That of one which was not given before. 0, or -1 with an error. */
static HOT int namer_text_asked(Namer *self, PyObject *stream, Text *text)
{
    PyObject *name = namer_kept(self, stream);
    int i;
    if (name == NULL) {
        i = PyErr_Occurred() ? -1 : namer_identified(self, stream, text);
        return i == 0 ? text_taken(text, namer_other(self, stream)) : i < 0 ? -1 : 0;
    }
    if (self->gone == self->state->gone) {
        i = self->next_given;
        self->next_given = (i + 1) % MET;
        text_of(&self->given_text[i], name);
        Py_XSETREF(self->given[i], Py_NewRef(stream));
    }
    return text_taken(text, name);
}

/* The same in place. 0, or -1 with an error. */
static HOT int namer_text(Namer *self, PyObject *stream, Text *text)
{
    PyObject *name;
    int i;
    if (stream == NULL || stream == Py_None) {
        if ((i = namer_met(self, &name)) < 0)
            return text_taken(text, name != NULL || PyErr_Occurred() ? name : namer_other(self, Py_None));
        text_copy(text, &self->met.text[i]);
        return 0;
    }
    if (self->gone != self->state->gone)
        namer_forget(self);
    if (Py_TYPE(stream) == self->kind && (i = known_find(&self->numbered, number_in(stream, self->device_at),
                                                         number_in(stream, self->number_at))) >= 0) {
        text_copy(text, &self->numbered.text[i]);
        return 0;
    }
    for (i = 0; i < MET; i++)
        if (self->given[i] == stream) {
            text_copy(text, &self->given_text[i]);
            return 0;
        }
    return namer_text_asked(self, stream, text);
}

/* The same of one that was met, where that is told by numbers and by C: NULL, maybe with an error, for any other. Of the
   current one for NULL or `None`, of which PyTorch is asked. It stays until another one is asked for. */
static inline const Text *namer_at_once(Namer *self, PyObject *stream)
{
    const Text *texts;
    int i;
    if (RARE(self->gone != self->state->gone))
        return NULL;
    if (stream == NULL || stream == Py_None) {
        PyObject *handle;
        long long number;
        if (RARE(self->quick == NULL) || RARE((handle = self->quick(self->quick_self, self->only)) == NULL))
            return NULL;
        number = (long long)PyLong_AsUnsignedLongLongMask(handle);
        Py_DECREF(handle);
        if (RARE(number == -1) || RARE(self->gone != self->state->gone))
            return NULL; /* maybe with an error */
        i = known_find(&self->met, self->only_number, number);
        texts = self->met.text;
    } else if (USUAL(Py_TYPE(stream) == self->kind)) {
        i = known_find(&self->numbered, number_in(stream, self->device_at), number_in(stream, self->number_at));
        texts = self->numbered.text;
    } else {
        PyObject *const *given = self->given;
        i = given[3] == stream ? 3 : -1;
        i = given[2] == stream ? 2 : i;
        i = given[1] == stream ? 1 : i;
        i = given[0] == stream ? 0 : i;
        texts = self->given_text;
    }
    return RARE(i < 0) || RARE(!texts[i].size) ? NULL : &texts[i];
}

static PyObject *Namer_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *state, *device, *handle, *meet, *other, *devices = Py_None;
    Namer *self;
    (void)kwargs;
    if (!PyArg_ParseTuple(args, "O!OOOO|O:Namer", &StateType, &state, &device, &handle, &meet, &other,
                          &devices))
        return NULL;
    if ((self = (Namer *)type->tp_alloc(type, 0)) != NULL) {
        self->state = (State *)Py_NewRef(state);
        self->device = Py_NewRef(device);
        self->handle = Py_NewRef(handle);
        self->meet = Py_NewRef(meet);
        self->other = Py_NewRef(other);
        self->devices = Py_NewRef(devices);
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
    int i;
    Py_VISIT(self->state);
    Py_VISIT(self->device);
    Py_VISIT(self->handle);
    Py_VISIT(self->meet);
    Py_VISIT(self->other);
    Py_VISIT(self->devices);
    Py_VISIT(self->kind);
    for (i = 0; i < MET; i++)
        Py_VISIT(self->given[i]);
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
    Py_CLEAR(self->devices);
    Py_CLEAR(self->only);
    Py_CLEAR(self->kind);
    for (i = 0; i < MET; i++) {
        Py_CLEAR(self->names[i]);
        Py_CLEAR(self->given[i]);
    }
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
