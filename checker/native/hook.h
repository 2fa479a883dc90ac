/* A hook: stands in the place of an engine's function and makes the call that is usual itself. Whatever is not usual
   (other arguments, another lock) goes to `slow`, the same hook in Python. */

#ifndef KVSAN_HOOK_H
#define KVSAN_HOOK_H

#include "common.h"
#include "here.h"
#include "events.h"
#include "streams.h"
#include "lines.h"

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *original;
    State *state;
    Counter *counter;
    Here *here;
    PyObject *more; /* what this kind needs besides */
    Names *names;
    Namer *namer;
    PyObject *slow, *where; /* for what is not usual, and the name for a fault */
    PyObject *dict, *weak;
#ifdef KVSAN_METER
    vectorcallfunc metered;
    long long calls, spent; /* ns in here, less what the engine's own function took */
#endif
} Hook;

#ifdef KVSAN_METER
#include "meter.h"
#else
static inline PyObject *hook_original(Hook *self, PyObject *const *args, size_t count, PyObject *kwnames)
{
    return PyObject_Vectorcall(self->original, args, count, kwnames);
}
#endif

static inline PyObject *hook_slow(Hook *self, PyObject *const *args, size_t count, PyObject *kwnames)
{
    return PyObject_Vectorcall(self->slow, args, count, kwnames);
}

/* The recorder's lock, a new reference; NULL without an error if it is of another kind. */
static inline Lock *hook_lock(Hook *self)
{
    PyObject *lock = self->state->lock;
    return lock != NULL && Py_TYPE(lock) == lock_type ? (Lock *)Py_NewRef(lock) : NULL;
}

/* `engine.device_pool`, a new reference; NULL with an error. */
static inline PyObject *pool_of(PyObject *engine)
{
    return read_at(at_device_pool, engine);
}

/* kvsan failed, or the engine is told of a hazard: what the call gives back then. */
static PyObject *hook_failed(Hook *self, PyObject *result)
{
    if (state_failed(self->state, self->where) < 0)
        Py_CLEAR(result);
    return result;
}

#define PASSES(self) (!(self)->state->on)

/* What the line will touch comes into the caches while the engine's own function runs. */
static inline void hook_fetch(Hook *self)
{
    state_fetch(self->state);
    FETCH(self->counter);
    FETCH(self->namer);
    FETCH(self->names);
}

static int Hook_traverse(Hook *self, visitproc visit, void *arg)
{
    Py_VISIT(self->original);
    Py_VISIT(self->slow);
    Py_VISIT(self->state);
    Py_VISIT(self->namer);
    Py_VISIT(self->names);
    Py_VISIT(self->more);
    Py_VISIT(self->dict);
    return 0;
}

/* Nothing that a call looks at: one may be made while others are cleared. Cycles go through dicts and functions. */
static int Hook_clear(Hook *self)
{
    Py_CLEAR(self->dict);
    return 0;
}

static void Hook_dealloc(Hook *self)
{
    PyObject_GC_UnTrack(self);
    if (self->weak != NULL)
        PyObject_ClearWeakRefs((PyObject *)self);
    Hook_clear(self);
    Py_XDECREF(self->more);
    Py_XDECREF(self->original);
    Py_XDECREF(self->slow);
    Py_XDECREF(self->state);
    Py_XDECREF(self->counter);
    Py_XDECREF(self->here);
    Py_XDECREF(self->namer);
    Py_XDECREF(self->names);
    Py_XDECREF(self->where);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

/* As a function in a class: called on an instance, that comes first. */
static PyObject *Hook_get(PyObject *self, PyObject *object, PyObject *type)
{
    (void)type;
    if (object == NULL || object == Py_None)
        return Py_NewRef(self);
    return PyMethod_New(self, object);
}

/* As a function: copied it is the same, pickled it is its name. */
static PyObject *Hook_reduce(PyObject *self, PyObject *unused)
{
    (void)unused;
    return PyObject_GetAttr(self, s___qualname__);
}

static PyMethodDef Hook_methods[] = {
    {"__reduce__", Hook_reduce, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyObject *Hook_repr(Hook *self)
{
    return PyUnicode_FromFormat("<kvsan hook of %R>", self->original);
}

static PyGetSetDef Hook_getset[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyObject *Hook_new(PyTypeObject *type, PyObject *args, PyObject *kwargs);

static PyTypeObject HookType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "kvsan.checker.attach._hot.Hook",
    .tp_doc = "Hook(kind, original, slow, recorder, counter, where, here=None, namer=None, names=None, more=None)",
    .tp_basicsize = sizeof(Hook),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR,
    .tp_vectorcall_offset = offsetof(Hook, call),
    .tp_call = PyVectorcall_Call,
    .tp_dictoffset = offsetof(Hook, dict),
    .tp_weaklistoffset = offsetof(Hook, weak),
    .tp_methods = Hook_methods,
    .tp_new = Hook_new,
    .tp_dealloc = (destructor)Hook_dealloc,
    .tp_traverse = (traverseproc)Hook_traverse,
    .tp_clear = (inquiry)Hook_clear,
    .tp_repr = (reprfunc)Hook_repr,
    .tp_descr_get = Hook_get,
    .tp_getset = Hook_getset,
};

#endif
