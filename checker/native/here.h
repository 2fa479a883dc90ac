/* What each thread is in the middle of (`here.py`), and when what it does was decided (`vllm/handoff.py`): counts that
   hooks read and write without a look into a dict.

   A slot belongs to one thread and one `Here` or `Plan`. Like a `threading.local` it is empty again when the thread gets
   another state of Python's: a thread that C++ made has one for each of its visits. */

#ifndef KVSAN_HERE_H
#define KVSAN_HERE_H

#include <pthread.h>

#include "common.h"
#include "text.h"

typedef struct Slot {
    unsigned long long serial; /* whose */
    uint64_t state;            /* the thread's state of Python's */
    Py_ssize_t ops;            /* of a `Plan`: so many were logged when the job was decided; 0: it is not known */
    long busy, declared, deriving, looking;
    PyObject *captured;
    struct Slot *next;
} Slot;

typedef struct {
    PyObject_HEAD
    unsigned long long serial;
} Here;

typedef Here Plan;

enum { HERES, PLANS }; /* lists of their own, since a thread uses one of each in turns */

/* All that is known of a thread. */
typedef struct {
    Slot *slots[PLANS + 1];    /* the one used last in front */
    unsigned long long serial; /* of the `State` that gave the name */
    uint64_t state;            /* of the thread then */
    PyObject *name;            /* kept by that `State`, which keeps the names of all threads */
    Text text;
} Mine;

static unsigned long long serials; /* one for each `Here`, `Plan` and `State`, none twice */
OF_THREAD Mine *mine;
static pthread_key_t mine_end;

/* A thread ends. What a graph's capture kept is let lie: the GIL is not held. */
static void mine_free(void *of_thread)
{
    Slot *slot, *next;
    int sort;
    mine = NULL; /* whatever ends after this may call hooks */
    for (sort = HERES; sort <= PLANS; sort++)
        for (slot = ((Mine *)of_thread)->slots[sort]; slot != NULL; slot = next) {
            next = slot->next;
            PyMem_RawFree(slot);
        }
    PyMem_RawFree(of_thread);
}

/* The calling thread's for the first time; NULL if there is no memory, without an error. */
static COLD Mine *mine_made(void)
{
    Mine *made = PyMem_RawCalloc(1, sizeof(Mine));
    if (made != NULL && pthread_setspecific(mine_end, made) != 0) {
        PyMem_RawFree(made);
        made = NULL;
    }
    return mine = made;
}

static COLD Slot *slot_find(Here *here, int sort, uint64_t state)
{
    Mine *own = mine != NULL ? mine : mine_made();
    Slot **at, *slot;
    PyObject *captured = NULL;
    if (own == NULL)
        return NULL;
    at = &own->slots[sort];
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
            slot->ops = slot->busy = slot->declared = slot->deriving = slot->looking = 0;
            captured = slot->captured;
            slot->captured = NULL;
        }
    }
    slot->state = state;
    slot->next = own->slots[sort];
    own->slots[sort] = slot;
    Py_XDECREF(captured); /* its end may look for a slot */
    return slot;
}

/* The calling thread's; NULL if there is no memory, without an error. */
static inline Slot *slot_of_sort(Here *here, int sort)
{
    uint64_t state = state_of_thread();
    Slot *slot = mine == NULL ? NULL : mine->slots[sort];
    if (slot != NULL && slot->serial == here->serial && slot->state == state)
        return slot;
    return slot_find(here, sort, state);
}

static inline Slot *slot_of(Here *here)
{
    return slot_of_sort(here, HERES);
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
static void here_ended(Here *self, int sort)
{
    Slot **at = mine == NULL ? NULL : &mine->slots[sort], *slot = NULL;
    while (at != NULL && (slot = *at) != NULL && slot->serial != self->serial)
        at = &slot->next;
    if (slot != NULL) {
        PyObject *captured = slot->captured;
        *at = slot->next;
        PyMem_RawFree(slot);
        Py_XDECREF(captured);
    }
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static void Here_dealloc(Here *self)
{
    here_ended(self, HERES);
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

static void Plan_dealloc(Plan *self)
{
    here_ended(self, PLANS);
}

/* The job that the calling thread has from now on was decided after so many ops. 0, or -1 with an error. */
static inline int plan_set(Plan *self, Py_ssize_t ops)
{
    Slot *slot = slot_of_sort(self, PLANS);
    if (slot == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    slot->ops = ops;
    return 0;
}

/* The number of the latest op then; None if it is not known. A new reference. */
static PyObject *planned_of(Py_ssize_t ops)
{
    return ops > 0 ? PyLong_FromSsize_t(ops - 1) : Py_NewRef(Py_None);
}

/* The other way round, or -1 with an error. */
static Py_ssize_t ops_of(PyObject *planned)
{
    Py_ssize_t number;
    if (planned == NULL || planned == Py_None)
        return 0;
    number = PyLong_AsSsize_t(planned);
    if (number >= 0 && number < PY_SSIZE_T_MAX)
        return number + 1;
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "planned: no op's number");
    return -1;
}

static PyObject *Plan_get(Plan *self, void *unused)
{
    Slot *slot = slot_of_sort(self, PLANS);
    (void)unused;
    return slot == NULL ? PyErr_NoMemory() : planned_of(slot->ops);
}

static int Plan_set(Plan *self, PyObject *value, void *unused)
{
    Py_ssize_t ops = ops_of(value);
    (void)unused;
    return ops < 0 ? -1 : plan_set(self, ops);
}

static PyGetSetDef Plan_members[] = {
    {"planned", (getter)Plan_get, (setter)Plan_set, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyTypeObject PlanType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "kvsan.checker.attach._hot.Plan",
    .tp_doc = "For each thread that took a job: the op at which that was decided.",
    .tp_basicsize = sizeof(Plan),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = Here_new,
    .tp_dealloc = (destructor)Plan_dealloc,
    .tp_getset = Plan_members,
};

#endif
