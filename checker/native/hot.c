/* The hooks of debug mode that an engine calls some sixty times a step, in C.

   Between an engine's own work each hook finds cold caches: a wrapper in Python that does nothing touches some fifty
   cache lines, this one some five (docs/performance.md). So the usual case of each hook is here, and what a line passes
   on its way into the recorder's queue: its lock, its names, its number. The Python of `kvsan.checker.attach` has all of
   it too, is what runs where this is not built, and says what is right: tests run on both.

   Relied on: the GIL (a free-threaded Python does without), and the fields that the Python subclasses set. */

#include "common.h"
#include "here.h"
#include "packed.h"
#include "lines.h"
#include "events.h"
#include "streams.h"
#include "hook.h"
#include "order.h"
#include "tensors.h"
#include "blocks.h"
#include "copies.h"
#include "steps.h"
#include "hand.h"
#include "queue.h"

#define VERSION 4

#ifndef KVSAN_SOURCE
#define KVSAN_SOURCE ""
#endif

static const struct {
    const char *name;
    vectorcallfunc call;
    enum { NOTHING, ORDER, FORWARD } needs; /* of `here`, `namer` and `names`: none, all, `namer` */
} kinds[] = {
    {"record", hook_record, ORDER},
    {"wait", hook_wait, ORDER},
    {"record_event", hook_record_event, ORDER},
    {"wait_event", hook_wait_event, ORDER},
    {"wait_stream", hook_wait_stream, ORDER},
    {"query", hook_query, ORDER},
    {"synchronize", hook_synchronize, ORDER},
    {"copy_", hook_copy, NOTHING},
    {"to", hook_to, NOTHING},
    {"alloc", hook_alloc, NOTHING},
    {"free", hook_free, NOTHING},
    {"touch", hook_touch, NOTHING},
    {"schedule", hook_schedule, NOTHING},
    {"output", hook_output, NOTHING},
    {"bound", hook_bound, NOTHING},
    {"copy_blocks", hook_copy_blocks, NOTHING},
    {"replay", hook_replay, NOTHING},
    {"execute", hook_execute, FORWARD},
    {"execute_at_end", hook_execute_at_end, FORWARD},
    {"forward", hook_forward, FORWARD},
};

static PyObject *Hook_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"kind", "original", "slow", "recorder", "counter", "where", "here", "namer",
                            "names", "more", NULL};
    const char *kind;
    PyObject *original, *slow, *state, *counter, *where;
    PyObject *here = Py_None, *namer = Py_None, *events = Py_None, *more = Py_None;
    Hook *self;
    size_t i;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "sOOO!O!U|OOOO:Hook", names, &kind, &original, &slow, &StateType,
                                     &state, &CounterType, &counter, &where, &here, &namer, &events, &more))
        return NULL;
    for (i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        if (strcmp(kinds[i].name, kind) == 0)
            break;
    if (i == sizeof(kinds) / sizeof(kinds[0])) {
        PyErr_Format(PyExc_ValueError, "no hook of kind '%s'", kind);
        return NULL;
    }
    if ((kinds[i].needs != NOTHING && Py_TYPE(namer) != &NamerType) ||
        (kinds[i].needs == ORDER && (Py_TYPE(here) != &HereType || !PyObject_TypeCheck(events, &NamesType)))) {
        PyErr_Format(PyExc_TypeError, "a hook of kind '%s' needs here, namer and names", kind);
        return NULL;
    }
    if (kinds[i].needs == FORWARD && (!PyTuple_CheckExact(more) || PyTuple_GET_SIZE(more) != PARTS)) {
        PyErr_Format(PyExc_TypeError, "a hook of kind '%s' needs what it begins with", kind);
        return NULL;
    }
    if (kinds[i].call == hook_bound && !PyObject_TypeCheck(more, &CounterType)) {
        PyErr_Format(PyExc_TypeError, "a hook of kind '%s' needs another counter", kind);
        return NULL;
    }
    if (kinds[i].call == hook_copy_blocks && (!PyTuple_CheckExact(more) || PyTuple_GET_SIZE(more) != 2 ||
                                              Py_TYPE(PyTuple_GET_ITEM(more, 0)) != &RoutesType)) {
        PyErr_Format(PyExc_TypeError, "a hook of kind '%s' needs the routes of copies", kind);
        return NULL;
    }
    if ((kinds[i].call == hook_copy && !PyList_CheckExact(more)) ||
        (kinds[i].call == hook_to && (!PyTuple_CheckExact(more) || PyTuple_GET_SIZE(more) != 2 ||
                                      !PyList_CheckExact(PyTuple_GET_ITEM(more, 0))))) {
        PyErr_Format(PyExc_TypeError, "a hook of kind '%s' needs the list of pools", kind);
        return NULL;
    }
    if ((self = (Hook *)type->tp_alloc(type, 0)) == NULL)
        return NULL;
    self->call = kinds[i].call;
    self->original = Py_NewRef(original);
    self->slow = Py_NewRef(slow);
    self->state = (State *)Py_NewRef(state);
    self->counter = (Counter *)Py_NewRef(counter);
    self->where = Py_NewRef(where);
    if (kinds[i].needs != NOTHING)
        self->namer = (Namer *)Py_NewRef(namer);
    if (kinds[i].needs == ORDER) {
        self->here = (Here *)Py_NewRef(here);
        self->names = (Names *)Py_NewRef(events);
    }
    self->more = Py_NewRef(more);
#ifdef KVSAN_METER
    meter_hook(self);
#endif
    return (PyObject *)self;
}

/* `set_up(hazard, held, encoded, lock)`: the error that goes to the engine, the class of blocking calls' lines, what
   encodes lines that have no form here, and the class of locks that are taken here (`_lines.Lock`). */
static PyObject *set_up(PyObject *module, PyObject *args)
{
    PyObject *hazard, *held, *encoded, *lock;
    (void)module;
    if (!PyArg_ParseTuple(args, "OO!OO:set_up", &hazard, &PyType_Type, &held, &encoded, &lock))
        return NULL;
    if (!PyType_IsSubtype((PyTypeObject *)held, &HeldType)) {
        PyErr_SetString(PyExc_TypeError, "held: a subclass of Held");
        return NULL;
    }
    if (!PyType_Check(lock) || ((PyTypeObject *)lock)->tp_basicsize != sizeof(Lock) ||
        strcmp(((PyTypeObject *)lock)->tp_name, LOCK_NAME) != 0) {
        PyErr_SetString(PyExc_TypeError, "lock: " LOCK_NAME);
        return NULL;
    }
    Py_XSETREF(lock_type, (PyTypeObject *)Py_NewRef(lock));
    Py_XSETREF(hazard_class, Py_NewRef(hazard));
    Py_XSETREF(encode_slowly, Py_NewRef(encoded));
    Py_XSETREF(held_class, (PyTypeObject *)Py_NewRef(held));
    Py_RETURN_NONE;
}

/* Which class is `collections.deque`. 0, or -1 with an error. */
static int see_deque(void)
{
    PyObject *module = PyImport_ImportModule("collections");
    PyObject *found = module == NULL ? NULL : PyObject_GetAttrString(module, "deque"), *one = NULL;
    Py_XDECREF(module);
    if (found != NULL && PyType_Check(found) && (one = PyObject_CallFunction(found, "((i))", 1)) != NULL &&
        Py_SIZE(one) == 1)
        deque_type = (PyTypeObject *)Py_NewRef(found);
    Py_XDECREF(one);
    Py_XDECREF(found);
    return PyErr_Occurred() ? -1 : 0;
}

/* Whether `time.perf_counter_ns` is CLOCK_MONOTONIC here. */
static int see_clock(void)
{
    PyObject *module = PyImport_ImportModule("time"), *before, *after;
    struct timespec now;
    long long read;
    if (module == NULL)
        return -1;
    perf_counter_ns = PyObject_GetAttrString(module, "perf_counter_ns");
    Py_DECREF(module);
    if (perf_counter_ns == NULL || (before = PyObject_CallNoArgs(perf_counter_ns)) == NULL)
        return -1;
    clock_gettime(CLOCK_MONOTONIC, &now);
    read = now.tv_sec * 1000000000LL + now.tv_nsec;
    if ((after = PyObject_CallNoArgs(perf_counter_ns)) == NULL) {
        Py_DECREF(before);
        return -1;
    }
    clock_is_monotonic = PyLong_AsLongLong(before) <= read && read <= PyLong_AsLongLong(after);
    Py_DECREF(before);
    Py_DECREF(after);
    return PyErr_Occurred() ? -1 : 0;
}

static PyMethodDef functions[] = {
    {"marked", kept_marked, METH_NOARGS, "What is kept of the engine's objects is looked at again."},
    {"set_up", set_up, METH_VARARGS, "set_up(hazard, held, encoded, lock)"},
#ifdef KVSAN_METER
    {"meter", meter_read, METH_NOARGS, "[(original, calls, ns), …] since the last time."},
#endif
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_hot",
    .m_doc = "The hooks of debug mode that an engine calls most, in C.",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__hot(void)
{
    static struct {
        const char *name;
        PyTypeObject *type;
    } types[] = {
        {"Here", &HereType},       {"State", &StateType}, {"Held", &HeldType}, {"Names", &NamesType},
        {"Counter", &CounterType}, {"Namer", &NamerType}, {"Hook", &HookType},  {"Packed", &PackedType},
        {"Plan", &PlanType},       {"Queue", &QueueType}, {"Stamped", &StampedType}, {"Routes", &RoutesType},
        {"Way", &WayType},
    };
    PyObject *module;
    size_t i;
    if (intern_names() < 0 || see_clock() < 0 || see_deque() < 0 || PyType_Ready(&TagType) < 0)
        return NULL;
    if (pthread_atfork(NULL, NULL, process_forked) != 0) {
        PyErr_SetString(PyExc_ImportError, "no call after a fork");
        return NULL;
    }
    if (pthread_key_create(&mine_end, mine_free) != 0) {
        PyErr_SetString(PyExc_ImportError, "no key for what each thread is in the middle of");
        return NULL;
    }
    if ((module = PyModule_Create(&definition)) == NULL)
        return NULL;
    for (i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        if (PyType_Ready(types[i].type) < 0 ||
            PyModule_AddObjectRef(module, types[i].name, (PyObject *)types[i].type) < 0)
            goto failed;
    if (add_hands(module) < 0 || PyModule_AddIntConstant(module, "VERSION", VERSION) < 0 ||
        PyModule_AddStringConstant(module, "SOURCE", KVSAN_SOURCE) < 0)
        goto failed;
    return module;
failed:
    Py_DECREF(module);
    return NULL;
}
