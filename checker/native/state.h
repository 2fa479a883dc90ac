/* The part of the recorder that each line passes (`core.py`): whether it looks, its lock, its queue, its numbers.

   `Core` is a subclass, and its Python code reads and writes these fields as attributes. What is not usual is left to
   it: `_ended`, `settle_up`, `fault`, `returned`. All of this is called with the lock held. */

#ifndef KVSAN_STATE_H
#define KVSAN_STATE_H

#include <unistd.h>

#include "common.h"
#include "here.h"
#include "../../runtime/native/lock.h"
#include "kept.h"
#include "packed.h"
#include "text.h"
#include "way.h"

typedef struct {
    PyObject_HEAD
    char on;
    PyObject *lock;
    PyObject *queue;  /* a deque or a `Packed`, and its `append` */
    PyObject *append;
    Packed *packed; /* the same, if it is one */
    Py_ssize_t sessions; /* so many have begun */
    Py_ssize_t count, batch, blocked, sealed, gone, size;
    PyObject *dead_threads, *dead_events; /* deques */
    PyObject *now;
    int reads_clock; /* `now` is `time.perf_counter_ns` */
    PyObject *prefix;   /* of every name made here */
    Py_ssize_t tokens;  /* made so far */
    PyObject *sampling; /* None, or who counts steps; */
    Counter *steps;     /* the same if it is a Counter with the steps until its `_turn`, else NULL */
    PyObject *beside;   /* None, or where lines go; */
    Way *way;           /* the same if it is one, else NULL */
    char settling;      /* in the middle of `settle_up` */
    char shut;          /* no line counts any more */
    PyObject *fault_text; /* None, or why kvsan is off */
    unsigned long long serial;
    Keep keep;
} State;

/* ── names and times ──────────────────────────────────────────────────────────────────────────────────────────── */

static PyTypeObject NamesType; /* `events.h` */
static Py_ssize_t names_ended(PyObject *names);
static int names_drop(State *self, PyObject *names);

/* Whether that of the calling thread is known. */
static inline int state_met(State *self)
{
    return mine != NULL && mine->serial == self->serial && mine->state == state_of_thread();
}

/* It is asked for, a new reference. */
static COLD PyObject *state_meet(State *self)
{
    Mine *own = mine != NULL ? mine : mine_made();
    PyObject *method = PyObject_GetAttr((PyObject *)self, s_thread_name), *name;
    if (method == NULL)
        return NULL;
    name = PyObject_CallNoArgs(method);
    Py_DECREF(method);
    if (name != NULL && own != NULL) {
        own->serial = self->serial;
        own->state = state_of_thread();
        own->name = name;
        text_of(&own->text, name);
    }
    return name;
}

/* The name of the calling thread, a new reference. */
static inline PyObject *state_thread(State *self)
{
    return state_met(self) ? Py_NewRef(mine->name) : state_meet(self);
}

/* The same in place. 0, or -1 with an error. */
static inline int state_thread_text(State *self, Text *text)
{
    if (!state_met(self))
        return text_taken(text, state_meet(self));
    *text = mine->text;
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

/* What the next line will touch comes into the caches all at once, while something else is done. */
static inline void state_fetch(State *self)
{
    Packed *packed = self->packed;
    size_t at;
    for (at = 0; at < offsetof(State, keep); at += 64)
        FETCH((const char *)self + at);
    FETCH(mine);
    FETCH((const char *)mine + 64);
    FETCH(self->lock);
    if (packed != NULL) {
        FETCH((const char *)packed + offsetof(Packed, life));
        FETCH(packed->bytes + packed->used);
        FETCH(packed->bytes + packed->used + 64);
    }
}

/* ── lines ────────────────────────────────────────────────────────────────────────────────────────────────────── */

static COLD int call_method(State *self, PyObject *name)
{
    PyObject *done = PyObject_CallMethodNoArgs((PyObject *)self, name);
    if (done == NULL)
        return -1;
    Py_DECREF(done);
    return 0;
}

static COLD int state_ended_now(State *self, Py_ssize_t waiting)
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

/* Threads and events that have ended come before the next line. */
static inline int state_ended(State *self, Py_ssize_t waiting)
{
    PyObject *dead = self->dead_threads;
    if (waiting > 0 && dead != NULL && Py_TYPE(dead) == deque_type && Py_SIZE(dead) == 0)
        return 0;
    return state_ended_now(self, waiting);
}

static inline Py_ssize_t state_waiting(State *self)
{
    return self->packed != NULL ? self->packed->count : PyObject_Size(self->queue);
}

/* A line could not be packed. What a signal's handler raised is not the engine's alone: the line is lost, so kvsan turns
   itself off, as `core._hand_over` does. -1. */
static COLD int state_lost(State *self)
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

/* ── handing over ─────────────────────────────────────────────────────────────────────────────────────────────── */

/* Whether `core.settle_up` would write a frame of lines and nothing else, but for what `state_gather` finds. */
static int state_sends(State *self)
{
    return self->packed != NULL && self->way != NULL && !self->settling && !self->shut &&
           (self->fault_text == NULL || self->fault_text == Py_None) && !pack_waits(self->packed) &&
           way_is_free(self->way) && self->dead_threads != NULL && Py_TYPE(self->dead_threads) == deque_type &&
           Py_SIZE(self->dead_threads) == 0;
}

/* The ends of events and the lives that wait go in. 0, or -1 with an error. */
static int state_gather(State *self)
{
    PyObject *names = self->dead_events;
    int done = 0;
    self->settling = 1;
    if (names_ended(names) > 0)
        done = names_drop(self, names);
    if (done == 0 && self->packed != NULL)
        done = packed_settle(self->packed);
    self->settling = 0;
    return done;
}

/* An error is set and lines are lost: as in `core.settle_up`. 1, or -1 where it is the engine's error, too. */
static COLD int state_gives_up(State *self)
{
    PyObject *error = take_error(), *done;
    self->settling = 1;
    done = PyObject_CallMethod((PyObject *)self, "_lost", "O", error);
    self->settling = 0;
    Py_DECREF(error);
    Py_XDECREF(done);
    return done == NULL ? -1 : 1;
}

/* The pipe took so many bytes of the frame and is full. */
static COLD int state_sends_rest(State *self, Py_ssize_t sent)
{
    PyObject *way = Py_NewRef((PyObject *)self->way), *lines, *done;
    self->way->torn = 1; /* until it is whole: a signal's handler may raise */
    self->way->writing = 1; /* a handler may run before the first line of `rest`, and ask: that is `BusyError` */
    self->settling = 1;
    lines = Packed_take(self->packed, NULL);
    done = lines == NULL ? NULL : PyObject_CallMethod(way, "rest", "On", lines, sent);
    ((Way *)way)->writing = 0; /* if it was raised in before that line */
    self->settling = 0;
    Py_XDECREF(lines);
    Py_DECREF(way);
    if (done == NULL)
        return state_gives_up(self);
    Py_DECREF(done);
    return 1;
}

/* `settle_up` where it is the usual one. 1; 0: it is not, and nothing is written; -1 with an error. */
static HOT int state_hand_over(State *self)
{
    PyObject *names = self->dead_events;
    Packed *packed;
    ssize_t sent;
    if (!state_sends(self) || !clock_is_monotonic || (long long)clock_now() > self->way->due)
        return 0;
    if (names == NULL || !PyObject_TypeCheck(names, &NamesType))
        return 0;
    if (state_gather(self) < 0)
        return state_gives_up(self);
    if (!state_sends(self)) /* in what that called another session began, or this one ended */
        return 0;
    packed = self->packed;
    self->size = 0;
    if (packed->count == 0)
        return 1;
    pack_begins(packed, packed->count);
    sent = way_write(self->way, packed->bytes, packed->used);
    if (sent <= 0)
        return 0;
    if ((size_t)sent < FRAME_HEAD + packed->used)
        return state_sends_rest(self, sent);
    pack_dropped(packed);
    packed->count = 0;
    return 1;
}

/* What waits is worked off, or handed to the process beside. 0, or -1 with an error. */
static COLD int state_settle_up(State *self)
{
    int done = state_hand_over(self);
    return done == 0 ? call_method(self, s_settle_up) : done < 0 ? -1 : 0;
}

/* What waits is worked off if it is enough. */
static inline int state_full(State *self)
{
    if (state_waiting(self) < self->batch && (self->packed == NULL || self->packed->used < PACKED_MOST))
        return 0;
    return state_settle_up(self);
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
    if (state_waiting(self) >= self->blocked && state_settle_up(self) < 0)
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
    if (self->batch <= 1 && state_settle_up(self) < 0)
        goto failed;
    return held;
failed:
    Py_XDECREF(given);
    Py_XDECREF(held);
    return NULL;
}

/* An error is set in kvsan's own code. 0: kvsan has turned itself off, and the engine goes on; -1: it is the engine's. */
static COLD int state_failed(State *self, PyObject *where)
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

/* Whether lines may be put in place: they are packed, not in the middle of another one, and their time is read here. */
static inline int in_place(State *self)
{
    return self->packed != NULL && self->reads_clock && !pack_waits(self->packed);
}

static inline int same_string(PyObject *one, PyObject *other)
{
    return one == other || PyUnicode_Compare(one, other) == 0;
}

/* Whether a line of lives may wait now: what comes before it goes in. 1; 0: another session began meanwhile, or a life came;
   -1 with an error. */
static int life_may_wait(State *self)
{
    if (state_ended(self, state_waiting(self)) < 0 || state_settle(self) < 0)
        return -1;
    return self->packed != NULL && !life_waits(&self->packed->life);
}

/* It waits, and has its number. 0, or -1 with an error. */
static int life_begins(State *self)
{
    self->packed->count++;
    self->count++;
    return state_full(self) < 0 ? -1 : 0;
}

/* What happens to the lives of blocks of one pool, where lines are packed, their time is read here and the names are
   strings; neighbours become one line while they wait. 1: it is done; 0: it cannot be, and nothing is; -1 with an error. */
static int state_lives(State *self, long code, PyObject *pool, PyObject *by, const long long *ids, Py_ssize_t count)
{
    Life *life;
    int may;
    if (self->packed == NULL || !self->reads_clock || self->packed->life.line != NULL)
        return 0;
    life = &self->packed->life;
    if (life->by != NULL && self->count - 1 > self->sealed && life->code == code && same_string(life->by, by) &&
        same_string(life->pool, pool))
        return life_more(life, ids, count) < 0 ? -1 : 1;
    if ((may = life_may_wait(self)) <= 0)
        return may;
    life = &self->packed->life;
    if (life_more(life, ids, count) < 0)
        return -1;
    life->code = code;
    life->now = clock_now();
    life->by = Py_NewRef(by);
    life->pool = Py_NewRef(pool);
    return life_begins(self) < 0 ? -1 : 1;
}

/* The latest line, if it is one that waits for more: a new reference. NULL without an error if there is none. */
static COLD PyObject *state_last(State *self)
{
    Life *life;
    if (self->packed == NULL)
        return PySequence_GetItem(self->queue, state_waiting(self) - 1);
    life = &self->packed->life;
    if (life->by != NULL) { /* others than numbers may come */
        PyObject *line = life_line(life);
        if (line == NULL)
            return NULL;
        life_drop(life);
        life->line = line;
    }
    return Py_XNewRef(life->line);
}

#define IDS_AT_ONCE 256

/* The numbers of a list. 1; 0 if it holds anything else. */
static int numbers_of(PyObject *list, long long *numbers)
{
    Py_ssize_t i;
    for (i = 0; i < PyList_GET_SIZE(list); i++) {
        PyObject *item = PyList_GET_ITEM(list, i);
        int over = 1;
        if (!PyLong_CheckExact(item) || (numbers[i] = PyLong_AsLongLongAndOverflow(item, &over), over != 0))
            return 0;
    }
    return 1;
}

/* `_add_ids`: the same as Python does it. The list of ids is the line's from here on. */
static int state_life(State *self, long code, PyObject *pool, PyObject *ids, PyObject *by)
{
    long long numbers[IDS_AT_ONCE];
    PyObject *line, *last = NULL;
    int done, same = 0;
    if (self->packed != NULL && PyUnicode_CheckExact(pool) && PyUnicode_CheckExact(by) && PyList_CheckExact(ids) &&
        PyList_GET_SIZE(ids) <= IDS_AT_ONCE && numbers_of(ids, numbers) &&
        (done = state_lives(self, code, pool, by, numbers, PyList_GET_SIZE(ids))) != 0)
        return done < 0 ? -1 : 0;
    if (self->count - 1 > self->sealed && state_waiting(self) > 0 && (last = state_last(self)) == NULL &&
        PyErr_Occurred())
        return -1;
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
    if ((done = life_may_wait(self)) < 0) {
        Py_DECREF(line);
        return -1;
    }
    if (done == 0)
        return state_add(self, line) < 0 ? -1 : 0;
    self->packed->life.line = line;
    return life_begins(self);
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
        done = state_settle_up(self);
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
    *lock = self->lock != NULL && Py_TYPE(self->lock) == lock_type ? (Lock *)Py_NewRef(self->lock) : NULL;
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

#endif
