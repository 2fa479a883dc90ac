/* The recorder's fields that hooks read and lines change (`core.py`): whether it looks, its lock, its queue, its numbers; names of
   threads, times, the lock.

   `Core` is a subclass, and its Python code reads and writes these fields as attributes. What is not usual is left to
   it: `_ended`, `settle_up`, `fault`, `returned`. */

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
    char workers; /* where those of the schedulers are */
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

enum { HERE = 1 }; /* as in `state.py` */

/* Whether nothing carries the token of another process, and no scheduler hands over to one. */
static inline int all_here(State *self)
{
    return self->workers == HERE;
}

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
    text_copy(text, &mine->text);
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
    const Packed *packed = self->packed;
    FETCH(self->dead_threads);
    if (USUAL(packed != NULL) && USUAL(mine != NULL)) {
        FETCH((const char *)mine + 64);
        FETCH(packed->bytes + packed->used);
    }
}

/* ── methods and lock ─────────────────────────────────────────────────────────────────────────────────────────── */

static COLD int call_method(State *self, PyObject *name)
{
    PyObject *done = PyObject_CallMethodNoArgs((PyObject *)self, name);
    if (done == NULL)
        return -1;
    Py_DECREF(done);
    return 0;
}

/* The lock, if it is one of ours, taken: 1, and 0 for another kind, which the caller does without; -1 with an error. */
static HOT int state_enter(State *self, Lock **lock)
{
    *lock = NULL;
    if (RARE(self->lock == NULL) || RARE(Py_TYPE(self->lock) != lock_type))
        return 0;
    *lock = (Lock *)Py_NewRef(self->lock);
    if (RARE(lock_take(*lock) < 0)) {
        Py_CLEAR(*lock);
        return -1;
    }
    return 1;
}

static inline void state_leave(Lock *lock)
{
    if (USUAL(lock != NULL)) {
        lock_leave(lock);
        let_one_go((PyObject *)lock);
    }
}

#endif
