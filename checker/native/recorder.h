/* `State` as Python sees it: the fields and methods that `core.Core` inherits. */

#ifndef KVSAN_RECORDER_H
#define KVSAN_RECORDER_H

#include "held.h"
#include "in_place.h"
#include "lines.h"
#include "tokens.h"

static PyObject *State_add(State *self, PyObject *line)
{
    Py_ssize_t index = state_add(self, Py_NewRef(line));
    return index < 0 ? NULL : PyLong_FromSsize_t(index);
}

/* `add_ids(code, pool, ids, by)` */
static PyObject *State_add_ids(State *self, PyObject *args)
{
    long code;
    PyObject *pool, *ids, *by;
    if (!PyArg_ParseTuple(args, "lOOO:add_ids", &code, &pool, &ids, &by) || state_life(self, code, pool, ids, by) < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* Whether the ends of events were put among the lines here. */
static PyObject *State_drop_events(State *self, PyObject *unused)
{
    (void)unused;
    if (self->packed == NULL || self->dead_events == NULL || !PyObject_TypeCheck(self->dead_events, &NamesType))
        Py_RETURN_FALSE;
    if (names_drop(self, self->dead_events) < 0)
        return NULL;
    Py_RETURN_TRUE;
}

static PyObject *State_hold(State *self, PyObject *given)
{
    return (PyObject *)state_hold(self, Py_NewRef(given));
}

static PyObject *State_get_queue(State *self, void *unused)
{
    (void)unused;
    if (self->queue == NULL) {
        PyErr_SetString(PyExc_AttributeError, "_queue");
        return NULL;
    }
    return Py_NewRef(self->queue);
}

static int State_set_queue(State *self, PyObject *queue, void *unused)
{
    PyObject *append = queue == NULL ? NULL : PyObject_GetAttr(queue, s_append), *old, *old_append;
    (void)unused;
    if (append == NULL) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_AttributeError, "_queue");
        return -1;
    }
    old = self->queue;
    old_append = self->append;
    self->queue = Py_NewRef(queue);
    self->append = append;
    self->packed = Py_TYPE(queue) == &PackedType ? (Packed *)queue : NULL;
    Py_XDECREF(old); /* whose lines may end with a call that logs */
    Py_XDECREF(old_append);
    return 0;
}

static PyObject *State_get_now(State *self, void *unused)
{
    (void)unused;
    if (self->now == NULL) {
        PyErr_SetString(PyExc_AttributeError, "now");
        return NULL;
    }
    return Py_NewRef(self->now);
}

static int State_set_now(State *self, PyObject *now, void *unused)
{
    (void)unused;
    if (now == NULL) {
        PyErr_SetString(PyExc_AttributeError, "now");
        return -1;
    }
    self->reads_clock = clock_is_monotonic && now == perf_counter_ns;
    Py_XSETREF(self->now, Py_NewRef(now));
    return 0;
}

static PyObject *State_get_sampling(State *self, void *unused)
{
    (void)unused;
    return Py_NewRef(self->sampling == NULL ? Py_None : self->sampling);
}

static int State_set_sampling(State *self, PyObject *sampling, void *unused)
{
    (void)unused;
    self->steps = sampling != NULL && PyObject_TypeCheck(sampling, &CounterType) ? (Counter *)sampling : NULL;
    Py_XSETREF(self->sampling, Py_XNewRef(sampling));
    return 0;
}

static PyObject *State_get_beside(State *self, void *unused)
{
    (void)unused;
    return Py_NewRef(self->beside == NULL ? Py_None : self->beside);
}

static int State_set_beside(State *self, PyObject *beside, void *unused)
{
    (void)unused;
    self->way = beside != NULL && PyObject_TypeCheck(beside, &WayType) ? (Way *)beside : NULL;
    Py_XSETREF(self->beside, Py_XNewRef(beside));
    return 0;
}

static PyObject *State_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    State *self = (State *)type->tp_alloc(type, 0);
    (void)args;
    (void)kwargs;
    if (self != NULL) {
        self->serial = ++serials;
        self->batch = 1;
        self->sealed = -1;
    }
    return (PyObject *)self;
}

static int State_traverse(State *self, visitproc visit, void *arg)
{
    Py_VISIT(self->lock);
    Py_VISIT(self->queue);
    Py_VISIT(self->append);
    Py_VISIT(self->dead_threads);
    Py_VISIT(self->dead_events);
    Py_VISIT(self->now);
    Py_VISIT(self->prefix);
    Py_VISIT(self->sampling);
    Py_VISIT(self->beside);
    Py_VISIT(self->fault_text);
    return keep_traverse(&self->keep, visit, arg);
}

/* No field: what runs while others are cleared may call a hook. Each cycle goes through a dict, which is cleared. */
static int State_clear(State *self)
{
    self->on = 0;
    return 0;
}

static void State_dealloc(State *self)
{
    PyObject_GC_UnTrack(self);
    self->on = 0;
    Py_CLEAR(self->lock);
    self->packed = NULL;
    Py_CLEAR(self->queue);
    Py_CLEAR(self->append);
    Py_CLEAR(self->dead_threads);
    Py_CLEAR(self->dead_events);
    Py_CLEAR(self->now);
    Py_CLEAR(self->prefix);
    self->steps = NULL;
    Py_CLEAR(self->sampling);
    self->way = NULL;
    Py_CLEAR(self->beside);
    Py_CLEAR(self->fault_text);
    keep_forget(&self->keep);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef State_methods[] = {
    {"add", (PyCFunction)State_add, METH_O, "A line of an op, whose names are known and whose ids are copied."},
    {"hand_on", (PyCFunction)State_hand_on, METH_O, "The calling thread hands on what it knows: the token's name."},
    {"hand_on_at", (PyCFunction)State_hand_on_at, METH_O, "The same, and the number of the latest op."},
    {"taken", (PyCFunction)State_taken, METH_O, "The calling thread took what was handed on."},
    {"add_ids", (PyCFunction)State_add_ids, METH_VARARGS, "What happens to the lives of blocks of one pool."},
    {"pack_copy", (PyCFunction)(void (*)(void))State_pack_copy, METH_FASTCALL, "A batch, packed at once; whether it was."},
    {"drop_events", (PyCFunction)State_drop_events, METH_NOARGS, "Whether the ends of events were put in here."},
    {"hold", (PyCFunction)State_hold, METH_VARARGS, "A blocking call begins: the fields of its `Sync`."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef State_members[] = {
    {"on", T_BOOL, offsetof(State, on), 0, NULL},
    {"workers", T_BYTE, offsetof(State, workers), 0, NULL},
    {"lock", T_OBJECT_EX, offsetof(State, lock), 0, NULL},
    {"batch", T_PYSSIZET, offsetof(State, batch), 0, NULL},
    {"blocked", T_PYSSIZET, offsetof(State, blocked), 0, NULL},
    {"streams_gone", T_PYSSIZET, offsetof(State, gone), 0, NULL},
    {"_size", T_PYSSIZET, offsetof(State, size), 0, NULL},
    {"sessions", T_PYSSIZET, offsetof(State, sessions), 0, NULL},
    {"_count", T_PYSSIZET, offsetof(State, count), 0, NULL},
    {"prefix", T_OBJECT_EX, offsetof(State, prefix), 0, NULL},
    {"_tokens", T_PYSSIZET, offsetof(State, tokens), 0, NULL},
    {"_sealed", T_PYSSIZET, offsetof(State, sealed), 0, NULL},
    {"_settling", T_BOOL, offsetof(State, settling), 0, NULL},
    {"_shut", T_BOOL, offsetof(State, shut), 0, NULL},
    {"fault_text", T_OBJECT, offsetof(State, fault_text), 0, NULL},
    {"_dead_threads", T_OBJECT_EX, offsetof(State, dead_threads), 0, NULL},
    {"_dead_events", T_OBJECT_EX, offsetof(State, dead_events), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef State_getset[] = {
    {"_queue", (getter)State_get_queue, (setter)State_set_queue, NULL, NULL},
    {"_beside", (getter)State_get_beside, (setter)State_set_beside, NULL, NULL},
    {"sampling", (getter)State_get_sampling, (setter)State_set_sampling, NULL, NULL},
    {"now", (getter)State_get_now, (setter)State_set_now, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyTypeObject StateType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "kvsan.checker.attach._hot.State",
    .tp_doc = "The part of a recorder that each line passes.",
    .tp_basicsize = sizeof(State),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_new = State_new,
    .tp_dealloc = (destructor)State_dealloc,
    .tp_traverse = (traverseproc)State_traverse,
    .tp_clear = (inquiry)State_clear,
    .tp_methods = State_methods,
    .tp_members = State_members,
    .tp_getset = State_getset,
};

#endif
