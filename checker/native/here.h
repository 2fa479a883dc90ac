/* What each thread is in the middle of (`here.py`): counts that hooks read and write without a look into a dict.

   A slot belongs to one thread and one `Here`. Like a `threading.local` it is empty again when the thread gets another
   state of Python's: a thread that C++ made has one for each of its visits. */

#ifndef KVSAN_HERE_H
#define KVSAN_HERE_H

#include <pthread.h>

#include "common.h"

typedef struct Slot {
    unsigned long long serial; /* whose `Here` */
    uint64_t state;            /* the thread's state of Python's */
    long busy, declared, deriving, looking;
    PyObject *captured;
    struct Slot *next;
} Slot;

typedef struct {
    PyObject_HEAD
    unsigned long long serial;
} Here;

static unsigned long long serials; /* one for each `Here` and each `State`, none twice */
static _Thread_local Slot *slots;  /* of this thread, the one used last in front */
static pthread_key_t slots_end;

/* A thread ends. What a graph's capture kept is let lie: the GIL is not held. */
static void slots_free(void *first)
{
    Slot *slot = first, *next;
    slots = NULL; /* whatever ends after this may call hooks */
    for (; slot != NULL; slot = next) {
        next = slot->next;
        PyMem_RawFree(slot);
    }
}

static Slot *slot_find(Here *here, uint64_t state)
{
    Slot **at = &slots, *slot;
    PyObject *captured = NULL;
    while ((slot = *at) != NULL && slot->serial != here->serial)
        at = &slot->next;
    if (slot == NULL) {
        slot = PyMem_RawCalloc(1, sizeof(Slot));
        if (slot == NULL)
            return NULL;
        slot->serial = here->serial;
    } else {
        *at = slot->next;
        if (slot->state != state) {
            slot->busy = slot->declared = slot->deriving = slot->looking = 0;
            captured = slot->captured;
            slot->captured = NULL;
        }
    }
    slot->state = state;
    slot->next = slots;
    slots = slot;
    pthread_setspecific(slots_end, slots);
    Py_XDECREF(captured); /* its end may look for a slot */
    return slot;
}

/* The calling thread's; NULL if there is no memory, without an error. */
static inline Slot *slot_of(Here *here)
{
    uint64_t state = PyThreadState_GetID(PyThreadState_Get());
    Slot *slot = slots;
    if (slot != NULL && slot->serial == here->serial && slot->state == state)
        return slot;
    return slot_find(here, state);
}

static PyObject *Here_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    Here *self = (Here *)type->tp_alloc(type, 0);
    (void)args;
    (void)kwargs;
    if (self != NULL)
        self->serial = ++serials;
    return (PyObject *)self;
}

/* What it has in the thread in which it ends; in others that is let lie until those end. */
static void Here_dealloc(Here *self)
{
    Slot **at = &slots, *slot;
    while ((slot = *at) != NULL && slot->serial != self->serial)
        at = &slot->next;
    if (slot != NULL) {
        PyObject *captured = slot->captured;
        *at = slot->next;
        pthread_setspecific(slots_end, slots);
        PyMem_RawFree(slot);
        Py_XDECREF(captured);
    }
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *Here_get(Here *self, void *field)
{
    Slot *slot = slot_of(self);
    if (slot == NULL)
        return PyErr_NoMemory();
    return PyLong_FromLong(*(long *)((char *)slot + (size_t)field));
}

static int Here_set(Here *self, PyObject *value, void *field)
{
    Slot *slot = slot_of(self);
    long number = value == NULL ? 0 : PyLong_AsLong(value);
    if (slot == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    if (number == -1 && PyErr_Occurred())
        return -1;
    *(long *)((char *)slot + (size_t)field) = number;
    return 0;
}

static PyObject *Here_captured(Here *self, void *unused)
{
    Slot *slot = slot_of(self);
    (void)unused;
    if (slot == NULL)
        return PyErr_NoMemory();
    return Py_NewRef(slot->captured == NULL ? Py_None : slot->captured);
}

static int Here_capture(Here *self, PyObject *value, void *unused)
{
    Slot *slot = slot_of(self);
    PyObject *before;
    (void)unused;
    if (slot == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    before = slot->captured;
    slot->captured = value == NULL || value == Py_None ? NULL : Py_NewRef(value);
    Py_XDECREF(before);
    return 0;
}

#define COUNT_OF(name) {#name, (getter)Here_get, (setter)Here_set, NULL, (void *)offsetof(Slot, name)}

static PyGetSetDef Here_members[] = {
    COUNT_OF(busy), COUNT_OF(declared), COUNT_OF(deriving), COUNT_OF(looking),
    {"captured", (getter)Here_captured, (setter)Here_capture, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyTypeObject HereType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "kvsan.checker.attach._hot.Here",
    .tp_doc = "What each thread is in the middle of.",
    .tp_basicsize = sizeof(Here),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = Here_new,
    .tp_dealloc = (destructor)Here_dealloc,
    .tp_getset = Here_members,
};

#endif
