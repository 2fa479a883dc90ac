/* The part of the recorder that each line passes (`core.py`): whether it looks, its lock, its queue, its numbers.

   `Core` is a subclass, and its Python code reads and writes these fields as attributes. What is not usual is left to
   it: `_ended`, `settle_up`, `fault`, `returned`. All of this is called with the lock held. */

#ifndef KVSAN_STATE_H
#define KVSAN_STATE_H

#include <unistd.h>

#include "common.h"
#include "here.h"
#include "lock.h"
#include "packed.h"
#include "text.h"

typedef struct {
    PyObject_HEAD
    char on;
    PyObject *lock;
    PyObject *queue;  /* a deque or a `Packed`, and its `append` */
    PyObject *append;
    Packed *packed; /* the same, if it is one */
    Py_ssize_t count, batch, blocked, sealed, gone, size;
    PyObject *dead_threads, *dead_events; /* deques */
    PyObject *now;
    int reads_clock; /* `now` is `time.perf_counter_ns` */
    PyObject *prefix;   /* of every name made here */
    Py_ssize_t tokens;  /* made so far */
    PyObject *sampling; /* a Counter with the steps until its `_turn`, or None */
    unsigned long long serial;
} State;

/* How often a hook fired (`ledger.py`). */
typedef struct {
    PyObject_HEAD
    Py_ssize_t count;
} Counter;

/* ── names and times ──────────────────────────────────────────────────────────────────────────────────────────── */

static _Thread_local struct {
    unsigned long long serial; /* of the `State` that gave the name */
    uint64_t state;            /* of the thread, as in `here.h` */
    PyObject *name;            /* kept by that `State`, which keeps the names of all threads */
    Text text;
} met;

static PyTypeObject NamesType; /* `names.h` */
static Py_ssize_t names_ended(PyObject *names);
static int names_drop(State *self, PyObject *names);

/* The name of the calling thread, a new reference. */
static inline PyObject *state_thread(State *self)
{
    uint64_t state = PyThreadState_GetID(PyThreadState_Get());
    PyObject *method, *name;
    if (met.serial == self->serial && met.state == state)
        return Py_NewRef(met.name);
    if ((method = PyObject_GetAttr((PyObject *)self, s_thread_name)) == NULL)
        return NULL;
    name = PyObject_CallNoArgs(method);
    Py_DECREF(method);
    if (name != NULL) {
        met.serial = self->serial;
        met.state = state;
        met.name = name;
        text_of(&met.text, name);
    }
    return name;
}

/* The same in place. 0, or -1 with an error. */
static inline int state_thread_text(State *self, Text *text)
{
    PyObject *name;
    if (met.serial != self->serial || met.state != PyThreadState_GetID(PyThreadState_Get())) {
        if ((name = state_thread(self)) == NULL)
            return -1;
        Py_DECREF(name);
    }
    *text = met.text;
    return 0;
}

/* ns, if they are read here (`reads_clock`). */
static inline unsigned long long clock_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (unsigned long long)now.tv_sec * 1000000000ULL + (unsigned long long)now.tv_nsec;
}

static inline PyObject *state_now(State *self)
{
    if (!self->reads_clock)
        return PyObject_CallNoArgs(self->now);
    return PyLong_FromUnsignedLongLong(clock_now());
}

/* ── lines ────────────────────────────────────────────────────────────────────────────────────────────────────── */

static int call_method(State *self, PyObject *name)
{
    PyObject *done = PyObject_CallMethodNoArgs((PyObject *)self, name);
    if (done == NULL)
        return -1;
    Py_DECREF(done);
    return 0;
}

/* Threads and events that have ended come before the next line. */
static inline int state_ended(State *self, Py_ssize_t waiting)
{
    int in_c = self->dead_events != NULL && PyObject_TypeCheck(self->dead_events, &NamesType);
    Py_ssize_t dead = PyObject_Size(self->dead_threads);
    if (dead == 0 && waiting == 0) {
        dead = in_c ? names_ended(self->dead_events) : PyObject_Size(self->dead_events);
        if (dead > 0 && in_c && self->packed != NULL)
            return names_drop(self, self->dead_events);
    }
    if (dead != 0)
        return dead < 0 ? -1 : call_method(self, s__ended);
    return 0;
}

static inline Py_ssize_t state_waiting(State *self)
{
    return self->packed != NULL ? self->packed->count : PyObject_Size(self->queue);
}

/* A line could not be packed. What a signal's handler raised is not the engine's alone: the line is lost, so kvsan turns
   itself off, as `core._hand_over` does. -1. */
static int state_lost(State *self)
{
    PyObject *error, *done;
    if (PyErr_ExceptionMatches(PyExc_Exception))
        return -1;
    error = take_error();
    done = PyObject_CallMethod((PyObject *)self, "fault", "sO", "the way to the process that checks", error);
    if (done == NULL)
        PyErr_Clear();
    Py_XDECREF(done);
    put_back_error(error);
    return -1;
}

static inline int state_queue(State *self, PyObject *line)
{
    PyObject *done;
    if (self->packed != NULL)
        return packed_append(self->packed, line) < 0 ? state_lost(self) : 0;
    done = PyObject_CallOneArg(self->append, line);
    if (done == NULL)
        return -1;
    Py_DECREF(done);
    return 0;
}

#define PACKED_MOST (1 << 17) /* bytes that wait: a pipe holds 1 MiB (`core.IDS_BYTES`) */

/* What waits is worked off if it is enough. */
static inline int state_full(State *self)
{
    if (state_waiting(self) < self->batch && (self->packed == NULL || self->packed->used < PACKED_MOST))
        return 0;
    return call_method(self, s_settle_up);
}

/* What waits for the next line goes in. */
static inline int state_settle(State *self)
{
    return self->packed != NULL && packed_settle(self->packed) < 0 ? state_lost(self) : 0;
}

/* `add`: a line of an op, whose reference is taken over (NULL: its error is set). Its number, or -1 with an error. */
static Py_ssize_t state_add(State *self, PyObject *line)
{
    Py_ssize_t waiting, index;
    if (line == NULL)
        return -1;
    waiting = state_waiting(self);
    if (waiting < 0 || state_ended(self, waiting) < 0) {
        Py_DECREF(line);
        return -1;
    }
    index = self->count++;
    waiting = state_queue(self, line);
    Py_DECREF(line);
    if (waiting < 0)
        return -1;
    return state_full(self) < 0 ? -1 : index;
}

/* `hold`: a blocking call begins; `given` are the fields of its `Sync`, a reference that is taken over. */
static Held *state_hold(State *self, PyObject *given)
{
    Held *held = NULL;
    if (given == NULL)
        return NULL;
    if (held_class == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "set_up was not called");
        goto failed;
    }
    if (state_waiting(self) >= self->blocked && call_method(self, s_settle_up) < 0)
        goto failed;
    if (state_ended(self, state_waiting(self)) < 0)
        goto failed;
    held = (Held *)held_class->tp_alloc(held_class, 0);
    if (held == NULL || (held->index = PyLong_FromSsize_t(self->count)) == NULL)
        goto failed;
    held->given = given;
    given = NULL;
    held->done = Py_NewRef(Py_None);
    held->told = Py_NewRef(Py_False);
    held->op = Py_NewRef(Py_None);
    self->count++;
    if (state_queue(self, (PyObject *)held) < 0)
        goto failed;
    if (self->batch <= 1 && call_method(self, s_settle_up) < 0)
        goto failed;
    return held;
failed:
    Py_XDECREF(given);
    Py_XDECREF(held);
    return NULL;
}

/* An error is set in kvsan's own code. 0: kvsan has turned itself off, and the engine goes on; -1: it is the engine's. */
static int state_failed(State *self, PyObject *where)
{
    PyObject *error, *done;
    if (PyErr_ExceptionMatches(hazard_class) || !PyErr_ExceptionMatches(PyExc_Exception))
        return -1;
    error = take_error();
    done = PyObject_CallMethodObjArgs((PyObject *)self, s_fault, where, error, NULL);
    Py_DECREF(error);
    if (done == NULL)
        return -1;
    Py_DECREF(done);
    return 0;
}

/* `_add_ids`: what happens to the lives of blocks of one pool; neighbours become one line while they wait. The list of
   ids is the line's from here on. */
static int state_life(State *self, long code, PyObject *pool, PyObject *ids, PyObject *by)
{
    PyObject *line, *last = NULL;
    int done = -1, same = 0;
    if (self->count - 1 > self->sealed && state_waiting(self) > 0) {
        if (self->packed == NULL) {
            if ((last = PySequence_GetItem(self->queue, state_waiting(self) - 1)) == NULL)
                return -1;
        } else
            last = Py_XNewRef(self->packed->life);
    }
    if (last != NULL && PyTuple_CheckExact(last) && PyTuple_GET_SIZE(last) == 5 &&
        PyList_CheckExact(PyTuple_GET_ITEM(last, 3)) && PyList_CheckExact(ids) &&
        PyLong_AsLong(PyTuple_GET_ITEM(last, 0)) == code &&
        (same = PyObject_RichCompareBool(PyTuple_GET_ITEM(last, 1), by, Py_EQ)) == 1)
        same = PyObject_RichCompareBool(PyTuple_GET_ITEM(last, 2), pool, Py_EQ);
    if (same < 0) { /* names that raise where they are compared */
        Py_DECREF(last);
        return -1;
    }
    if (same) {
        PyObject *known = PyTuple_GET_ITEM(last, 3);
        done = PyList_SetSlice(known, PyList_GET_SIZE(known), PyList_GET_SIZE(known), ids);
        Py_DECREF(last);
        return done;
    }
    Py_XDECREF(last);
    line = Py_BuildValue("(lOOON)", code, by, pool, ids, state_now(self));
    if (line == NULL)
        return -1;
    if (self->packed == NULL || !PyList_CheckExact(ids))
        return state_add(self, line) < 0 ? -1 : 0;
    if (state_ended(self, state_waiting(self)) < 0 || state_settle(self) < 0) {
        Py_DECREF(line);
        return -1;
    }
    if (self->packed == NULL || self->packed->life != NULL) { /* another session began meanwhile, or a life came */
        done = state_add(self, line) < 0 ? -1 : 0;
        return done;
    }
    self->packed->life = line;
    self->packed->count++;
    self->count++;
    return state_full(self);
}

/* A message for whoever follows under that name, in its turn among the lines; a reference that is taken over. */
static int state_tell(State *self, PyObject *name, PyObject *message)
{
    PyObject *line = message == NULL ? NULL : Py_BuildValue("(lON)", (long)TOLD, name, message);
    int done;
    if (line == NULL)
        return -1;
    done = state_queue(self, line);
    Py_DECREF(line);
    if (done == 0 && state_waiting(self) >= self->batch)
        done = call_method(self, s_settle_up);
    return done;
}

/* What became of a blocking call that was handed on before it returned. */
static int state_settled(State *self, Held *held)
{
    PyObject *line = Py_BuildValue("(lOO)", (long)SETTLED, held->index, held->done);
    int done = line == NULL ? -1 : state_queue(self, line);
    Py_XDECREF(line);
    return done;
}

/* The lock, if it is one of ours, taken: 1, and 0 for another kind, which the caller does without; -1 with an error. */
static int state_enter(State *self, Lock **lock)
{
    *lock = self->lock != NULL && Py_TYPE(self->lock) == &LockType ? (Lock *)Py_NewRef(self->lock) : NULL;
    if (*lock == NULL)
        return 0;
    if (lock_take(*lock) < 0) {
        Py_CLEAR(*lock);
        return -1;
    }
    return 1;
}

static void state_leave(Lock *lock)
{
    if (lock != NULL) {
        lock_leave(lock);
        Py_DECREF(lock);
    }
}

/* ── as Python sees it ────────────────────────────────────────────────────────────────────────────────────────── */

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

/* `pack_copy(label, on, source, sources, target, targets, order, planned, site)`: a batch from one pool to another, with
   lists of ids, which are packed at once and need not be copied. Whether it was: only where lines are packed. */
static PyObject *State_pack_copy(State *self, PyObject *const *args, Py_ssize_t given)
{
    PyObject *line = NULL, *by = NULL, *now = NULL;
    Lock *lock;
    int done = 0;
    if (given != 9) {
        PyErr_SetString(PyExc_TypeError, "pack_copy takes nine arguments");
        return NULL;
    }
    if (self->packed == NULL || !PyList_CheckExact(args[3]) || !PyList_CheckExact(args[5]) ||
        PyList_GET_SIZE(args[3]) == 0 || PyList_GET_SIZE(args[5]) == 0)
        Py_RETURN_FALSE;
    if (state_enter(self, &lock) < 0)
        return NULL;
    if ((by = state_thread(self)) != NULL && (now = state_now(self)) != NULL)
        line = Py_BuildValue("(iOO{OO}{OO}OOOOOOOO)", ACCESS, by, args[1], args[2], args[3], args[4], args[5], args[0],
                             args[6], Py_True, args[7], Py_None, Py_None, args[8], now);
    done = state_add(self, line) < 0 ? -1 : 1;
    state_leave(lock);
    Py_XDECREF(by);
    Py_XDECREF(now);
    return done < 0 ? NULL : Py_NewRef(Py_True);
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

/* Room for a line of so many items and a number, and its head: a line is about to be put in place. */
static int line_begins(State *self, int items)
{
    if (state_settle(self) < 0)
        return -1;
    if (self->packed == NULL) { /* another session began in what that called */
        PyErr_SetString(PyExc_RuntimeError, "another session began");
        return -1;
    }
    if (pack_room(self->packed, HEAD + 2 + (size_t)items * (TEXT_ROOM + 9)) < 0)
        return -1;
    if (self->packed->used == 0)
        self->packed->used = HEAD;
    pack_number(self->packed, (unsigned char)(0x90 | items), 0, 0);
    return 0;
}

/* Its last item, and it is one more. */
static inline void line_ends(State *self, unsigned long long now)
{
    pack_number(self->packed, 0xcf, now, 8);
    self->packed->count++;
}

static inline void pack_code(State *self, int code)
{
    pack_number(self->packed, (unsigned char)code, 0, 0);
}

static inline void pack_none(State *self)
{
    pack_number(self->packed, 0xc0, 0, 0);
}

/* Whether lines may be put in place: they are packed, not in the middle of another one, and their time is read here. */
static inline int in_place(State *self)
{
    return self->packed != NULL && self->reads_clock && !pack_waits(self->packed);
}

/* `(code, by, token, now)` under the lock. */
static int hand_line(State *self, long code, PyObject *token)
{
    PyObject *by = state_thread(self), *now = by == NULL ? NULL : state_now(self);
    int done = -1;
    if (now != NULL && state_add(self, Py_BuildValue("(lOOO)", code, by, token, now)) >= 0)
        done = 0;
    Py_XDECREF(by);
    Py_XDECREF(now);
    return done;
}

/* `hand_on(what)`: a put of a fresh token, whose name is what it gives back. */
static PyObject *State_hand_on(State *self, PyObject *what)
{
    PyObject *token;
    Lock *lock;
    if (self->prefix == NULL) {
        PyErr_SetString(PyExc_AttributeError, "prefix");
        return NULL;
    }
    if (state_enter(self, &lock) < 0)
        return NULL;
    token = PyUnicode_FromFormat("%S%S%zd.%ld", self->prefix, what, ++self->tokens, (long)getpid());
    if (token != NULL && self->on && hand_line(self, PUT, token) < 0 && state_failed(self, s_put) < 0)
        Py_CLEAR(token);
    state_leave(lock);
    return token;
}

/* `take_over_from(token)`: a get of it. */
static PyObject *State_taken(State *self, PyObject *token)
{
    PyObject *done = Py_None;
    Lock *lock;
    if (!self->on)
        Py_RETURN_NONE;
    if (state_enter(self, &lock) < 0)
        return NULL;
    if (hand_line(self, GET, token) < 0 && state_failed(self, s_get) < 0)
        done = NULL;
    state_leave(lock);
    return Py_XNewRef(done);
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
    return 0;
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
    Py_CLEAR(self->sampling);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef State_methods[] = {
    {"add", (PyCFunction)State_add, METH_O, "A line of an op, whose names are known and whose ids are copied."},
    {"hand_on", (PyCFunction)State_hand_on, METH_O, "The calling thread hands on what it knows: the token's name."},
    {"taken", (PyCFunction)State_taken, METH_O, "The calling thread took what was handed on."},
    {"add_ids", (PyCFunction)State_add_ids, METH_VARARGS, "What happens to the lives of blocks of one pool."},
    {"pack_copy", (PyCFunction)(void (*)(void))State_pack_copy, METH_FASTCALL, "A batch, packed at once; whether it was."},
    {"drop_events", (PyCFunction)State_drop_events, METH_NOARGS, "Whether the ends of events were put in here."},
    {"hold", (PyCFunction)State_hold, METH_VARARGS, "A blocking call begins: the fields of its `Sync`."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef State_members[] = {
    {"on", T_BOOL, offsetof(State, on), 0, NULL},
    {"lock", T_OBJECT_EX, offsetof(State, lock), 0, NULL},
    {"batch", T_PYSSIZET, offsetof(State, batch), 0, NULL},
    {"blocked", T_PYSSIZET, offsetof(State, blocked), 0, NULL},
    {"streams_gone", T_PYSSIZET, offsetof(State, gone), 0, NULL},
    {"_size", T_PYSSIZET, offsetof(State, size), 0, NULL},
    {"_count", T_PYSSIZET, offsetof(State, count), 0, NULL},
    {"prefix", T_OBJECT_EX, offsetof(State, prefix), 0, NULL},
    {"sampling", T_OBJECT, offsetof(State, sampling), 0, NULL},
    {"_tokens", T_PYSSIZET, offsetof(State, tokens), 0, NULL},
    {"_sealed", T_PYSSIZET, offsetof(State, sealed), 0, NULL},
    {"_dead_threads", T_OBJECT_EX, offsetof(State, dead_threads), 0, NULL},
    {"_dead_events", T_OBJECT_EX, offsetof(State, dead_events), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef State_getset[] = {
    {"_queue", (getter)State_get_queue, (setter)State_set_queue, NULL, NULL},
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

/* ── Held and Counter ─────────────────────────────────────────────────────────────────────────────────────────── */

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
