/* Records, waits, queries and event syncs (`torch/calls.py`), and replays of graphs that touch nothing (`graphs.py`).

   A call that does not block is made and logged under the lock; `busy` says meanwhile that calls inside it are part of
   it. A call that blocks has its line at its entry, and no lock. */

#ifndef KVSAN_ORDER_H
#define KVSAN_ORDER_H

#include "hook.h"

#define FUNCTION(name)                                                                                                 \
    static PyObject *name(PyObject *callable, PyObject *const *args, size_t count, PyObject *kwnames)

/* Makes the call as it is if nobody looks or it is part of another one, and leaves what is not usual to Python. `slot`
   and `lock` are set for what follows. */
#define BEGIN(least, most)                                                                                             \
    Hook *self = (Hook *)callable;                                                                                     \
    Py_ssize_t given = PyVectorcall_NARGS(count);                                                                      \
    Slot *slot;                                                                                                        \
    Lock *lock;                                                                                                        \
    if (PASSES(self) || (slot = slot_of(self->here)) == NULL || slot->busy)                                            \
        return hook_original(self, args, count, kwnames);                                                              \
    if (kwnames != NULL || given < (least) || given > (most) || (lock = hook_lock(self)) == NULL)                      \
        return hook_slow(self, args, count, kwnames);                                                                  \
    if (lock_take(lock) < 0) {                                                                                         \
        Py_DECREF(lock);                                                                                               \
        return NULL;                                                                                                   \
    }

#define MAKE_THE_CALL                                                                                                  \
    slot->busy = 1;                                                                                                    \
    hook_fetch(self);                                                                                                  \
    result = hook_original(self, args, count, NULL);                                                                   \
    if (result != NULL)                                                                                                \
        self->counter->count++

#define END                                                                                                            \
    slot->busy = 0;                                                                                                    \
    lock_leave(lock);                                                                                                  \
    Py_DECREF(lock);                                                                                                   \
    return result

/* A tuple of the parts, whose references are taken over; NULL with an error if one of them is. */
static PyObject *line_of(PyObject **parts, Py_ssize_t size)
{
    PyObject *line = NULL;
    Py_ssize_t i;
    for (i = 0; i < size && parts[i] != NULL; i++)
        ;
    if (i == size && (line = PyTuple_New(size)) != NULL) {
        for (i = 0; i < size; i++)
            PyTuple_SET_ITEM(line, i, parts[i]);
        return line;
    }
    for (i = 0; i < size; i++)
        Py_XDECREF(parts[i]);
    return NULL;
}

/* `(code, by, on, event, now)`, each looked up only if all before it were. */
static PyObject *order_line(Hook *self, long code, PyObject *stream, PyObject *event)
{
    PyObject *parts[5] = {NULL};
    if ((parts[0] = PyLong_FromLong(code)) != NULL && (parts[1] = state_thread(self->state)) != NULL &&
        (parts[2] = namer_name(self->namer, stream)) != NULL && (parts[3] = names_name(self->names, event)) != NULL)
        parts[4] = state_now(self->state);
    return line_of(parts, 5);
}

/* The same as a line: put in place if it can be. 0, or -1 with an error. */
static HOT int order_add(Hook *self, int code, PyObject *stream, PyObject *event)
{
    State *state = self->state;
    unsigned char *at;
    Text by, on, which;
    if (!in_place(state))
        return state_add(state, order_line(self, code, stream, event)) < 0 ? -1 : 0;
    if (state_thread_text(state, &by) < 0 || namer_text(self->namer, stream, &on) < 0 ||
        names_text(self->names, event, &which) < 0)
        return -1;
    if (!in_place(state) || !by.size || !on.size || !which.size) /* a name that is too long */
        return state_add(state, order_line(self, code, stream, event)) < 0 ? -1 : 0;
    if (state_ended(state, state->packed->count) < 0 || (at = line_begins(state, 5, code)) == NULL)
        return -1;
    at = put_text(put_text(put_text(at, &by), &on), &which);
    line_ends(state, put_long(at, clock_now()));
    state->count++;
    return state_full(state);
}

static PyObject *of_event(PyObject *callable, PyObject *const *args, size_t count, PyObject *kwnames, int code)
{
    PyObject *result;
    BEGIN(1, 2)
    MAKE_THE_CALL;
    if (result != NULL && order_add(self, code, given > 1 ? args[1] : NULL, args[0]) < 0)
        result = hook_failed(self, result);
    END;
}

/* `event.record(stream=None)` */
FUNCTION(hook_record)
{
    return of_event(callable, args, count, kwnames, RECORD);
}

/* `event.wait(stream=None)` */
FUNCTION(hook_wait)
{
    return of_event(callable, args, count, kwnames, WAIT);
}

static PyObject *of_stream(PyObject *callable, PyObject *const *args, size_t count, PyObject *kwnames, int code)
{
    PyObject *result;
    BEGIN(1, 2)
    MAKE_THE_CALL;
    if (result != NULL) {
        PyObject *event = given > 1 && args[1] != Py_None ? args[1] : result;
        if (order_add(self, code, args[0], event) < 0)
            result = hook_failed(self, result);
    }
    END;
}

/* `stream.record_event(event=None)`, which makes one where it is given none */
FUNCTION(hook_record_event)
{
    return of_stream(callable, args, count, kwnames, RECORD);
}

/* `stream.wait_event(event)` */
FUNCTION(hook_wait_event)
{
    return of_stream(callable, args, count, kwnames, WAIT);
}

/* 1: the three lines are put in place; 0: a name is too long; -1 with an error. */
static int wait_stream_in_place(Hook *self, PyObject *on, PyObject *other)
{
    State *state = self->state;
    Text by, waits, records, event;
    unsigned long long now;
    unsigned char *at;
    int i;
    if (namer_text(self->namer, on, &waits) < 0 || namer_text(self->namer, other, &records) < 0 ||
        state_thread_text(state, &by) < 0)
        return -1;
    if (!in_place(state) || !by.size || !waits.size || !records.size)
        return 0;
    if ((i = names_fresh_text(self->names, &event)) <= 0 || !event.size)
        return i < 0 ? -1 : 0;
    if (state_ended(state, state->packed->count) < 0)
        return -1;
    now = clock_now();
    for (i = 0; i < 3; i++) {
        if ((at = line_begins(state, i < 2 ? 5 : 4, i == 0 ? RECORD : i == 1 ? WAIT : DROP)) == NULL)
            return -1;
        at = put_text(at, &by);
        if (i < 2)
            at = put_text(at, i == 0 ? &records : &waits);
        line_ends(state, put_long(put_text(at, &event), now));
        state->count++;
    }
    return state_full(state) < 0 ? -1 : 1;
}

/* `recorder.wait_stream`: a record of a fresh event, a wait for it, its end. */
static int wait_stream_lines(Hook *self, PyObject *on, PyObject *other)
{
    State *state = self->state;
    PyObject *event = NULL, *by = NULL, *now = NULL, *waits, *records;
    int done = in_place(state) ? wait_stream_in_place(self, on, other) : 0;
    if (done != 0)
        return done < 0 ? -1 : 0;
    waits = namer_name(self->namer, on);
    records = waits == NULL ? NULL : namer_name(self->namer, other);
    done = -1;
    if (records == NULL || (event = names_fresh(self->names)) == NULL || (by = state_thread(state)) == NULL ||
        (now = state_now(state)) == NULL)
        goto done;
    if (state_add(state, Py_BuildValue("(lOOOO)", (long)RECORD, by, records, event, now)) < 0 ||
        state_add(state, Py_BuildValue("(lOOOO)", (long)WAIT, by, waits, event, now)) < 0 ||
        state_add(state, Py_BuildValue("(lOOO)", (long)DROP, by, event, now)) < 0)
        goto done;
    done = 0;
done:
    Py_XDECREF(waits);
    Py_XDECREF(records);
    Py_XDECREF(event);
    Py_XDECREF(by);
    Py_XDECREF(now);
    return done;
}

/* `stream.wait_stream(other)` */
FUNCTION(hook_wait_stream)
{
    PyObject *result;
    BEGIN(2, 2)
    MAKE_THE_CALL;
    if (result != NULL && self->state->on && wait_stream_lines(self, args[0], args[1]) < 0)
        result = hook_failed(self, result);
    END;
}

/* 1: the line is put in place; 0: it cannot be; -1 with an error. */
static int query_in_place(Hook *self, PyObject *event, int answer)
{
    State *state = self->state;
    unsigned char *at;
    Text by, which;
    if (!in_place(state))
        return 0;
    if (state_thread_text(state, &by) < 0 || names_text(self->names, event, &which) < 0)
        return -1;
    if (!in_place(state) || !by.size || !which.size)
        return 0;
    if (state_ended(state, state->packed->count) < 0 || (at = line_begins(state, 5, POLL)) == NULL)
        return -1;
    at = put_text(put_text(at, &by), &which);
    *at++ = answer ? YES : NO;
    line_ends(state, put_long(at, clock_now()));
    state->count++;
    return state_full(state) < 0 ? -1 : 1;
}

/* `event.query()`: the answer is part of the line */
FUNCTION(hook_query)
{
    PyObject *result;
    BEGIN(1, 1)
    MAKE_THE_CALL;
    if (result != NULL && self->state->on) {
        PyObject *parts[5] = {NULL};
        int answer = PyObject_IsTrue(result), placed = answer < 0 ? 0 : query_in_place(self, args[0], answer);
        if (placed != 0) {
            if (placed < 0)
                result = hook_failed(self, result);
            END;
        }
        if (answer >= 0 && (parts[0] = PyLong_FromLong(POLL)) != NULL &&
            (parts[1] = state_thread(self->state)) != NULL && (parts[2] = names_name(self->names, args[0])) != NULL &&
            (parts[3] = PyBool_FromLong(answer)) != NULL)
            parts[4] = state_now(self->state);
        if (state_add(self->state, line_of(parts, 5)) < 0)
            result = hook_failed(self, result);
    }
    END;
}

/* `hold` of an event, put in place: 1, and its number; 0: it cannot be; -1 with an error. */
static int hold_in_place(Hook *self, PyObject *event, Py_ssize_t *index)
{
    State *state = self->state;
    unsigned char *at;
    Text by, which;
    if (!in_place(state))
        return 0;
    if (state_thread_text(state, &by) < 0 || names_text(self->names, event, &which) < 0)
        return -1;
    if (!in_place(state) || !by.size || !which.size)
        return 0;
    if (state->packed->count >= state->blocked && state_settle_up(state) < 0)
        return -1;
    if (!in_place(state)) /* another session began in that */
        return 0;
    if (state_ended(state, state->packed->count) < 0 || (at = line_begins(state, 7, HELD)) == NULL)
        return -1;
    at = put_text(put_text(at, &by), &which);
    *at++ = NONE; /* no stream, no device */
    *at++ = NONE;
    at = put_long(at, clock_now());
    *at++ = NONE; /* whether it has returned */
    line_ends(state, at);
    *index = state->count++;
    return state->batch <= 1 && state_settle_up(state) < 0 ? -1 : 1;
}

/* What became of it, under the lock. */
static int settle_in_place(State *state, Py_ssize_t index, int done)
{
    unsigned char *at;
    if (state->packed == NULL) /* a forked child, whose lines go elsewhere and begin anew */
        return 0;
    if ((at = line_begins(state, 3, SETTLED)) == NULL)
        return -1;
    at = put_long(at, (unsigned long long)index);
    *at++ = done ? YES : NO;
    line_ends(state, at);
    return 0;
}

/* What became of a call that blocked: `result`, or NULL and its error, whose reference is taken over. `held` is its line, or
   `index` the number of one that was put in place. What goes on to the engine. */
static COLD PyObject *synchronized(Hook *self, Held *held, Py_ssize_t index, PyObject *queue, PyObject *result)
{
    PyObject *error = result == NULL ? take_error() : NULL, *done;
    Lock *lock;
    if (state_enter(self->state, &lock) < 0) { /* a signal's handler raised: its exception is the engine's */
        Py_XDECREF(error);
        Py_XDECREF(result);
        return NULL;
    }
    if (self->state->queue != queue) {
        ; /* while it waited for the lock */
    } else if (held == NULL) {
        if (settle_in_place(self->state, index, result != NULL) < 0)
            result = hook_failed(self, result);
        if (result == NULL && PyErr_Occurred())
            Py_CLEAR(error);
    } else if (lock != NULL && held->told == Py_False) {
        Py_XSETREF(held->done, Py_NewRef(result != NULL ? Py_True : Py_False));
    } else if (lock != NULL && self->state->packed != NULL) {
        Py_XSETREF(held->done, Py_NewRef(result != NULL ? Py_True : Py_False));
        if (state_settled(self->state, held) < 0)
            result = hook_failed(self, result);
        if (result == NULL && PyErr_Occurred())
            Py_CLEAR(error);
    } else {
        done = PyObject_CallMethodObjArgs((PyObject *)self->state, s_returned, held, result != NULL ? Py_True : Py_False,
                                          NULL);
        if (done == NULL) {
            Py_CLEAR(result);
            Py_CLEAR(error);
        }
        Py_XDECREF(done);
    }
    state_leave(lock);
    if (error != NULL)
        put_back_error(error);
    return result;
}

/* Its line as one that is made: NULL with an error, which is kvsan's. */
static COLD Held *synchronize_held(Hook *self, PyObject *event)
{
    PyObject *parts[5] = {NULL};
    if ((parts[0] = state_thread(self->state)) != NULL && (parts[1] = names_name(self->names, event)) != NULL) {
        parts[2] = Py_NewRef(Py_None);
        parts[3] = Py_NewRef(Py_None);
        parts[4] = state_now(self->state);
    }
    return state_hold(self->state, line_of(parts, 5));
}

/* `event.synchronize()`: its line is held from the entry on, and settled when it has returned or failed */
FUNCTION(hook_synchronize)
{
    PyObject *result, *queue;
    Held *held = NULL;
    Py_ssize_t index = 0;
    int placed;
    BEGIN(1, 1)
    self->counter->count++;
    placed = hold_in_place(self, args[0], &index);
    if (placed == 0)
        held = synchronize_held(self, args[0]);
    if (held == NULL && placed != 1 && state_failed(self->state, self->where) < 0) {
        lock_leave(lock);
        Py_DECREF(lock);
        return NULL;
    }
    queue = Py_XNewRef(self->state->queue);
    lock_leave(lock);
    slot->busy = 1;
    result = hook_original(self, args, count, NULL);
    slot->busy = 0;
    if ((held != NULL || placed == 1) && self->state->on && self->state->queue == queue) { /* else a later session's */
        if (held == NULL && result != NULL && self->state->lock == (PyObject *)lock && lock_try(lock)) {
            if (settle_in_place(self->state, index, 1) < 0)
                result = hook_failed(self, result);
            lock_leave(lock);
        } else
            result = synchronized(self, held, index, queue, result);
    }
    Py_DECREF(lock);
    Py_XDECREF(held);
    Py_XDECREF(queue);
    return result;
}

/* `graph.replay()`, of one that touches nothing: `more` is whoever found that out */
FUNCTION(hook_replay)
{
    Hook *self = (Hook *)callable;
    PyObject *kept;
    if (PASSES(self))
        return hook_original(self, args, count, kwnames);
    kept = PyVectorcall_NARGS(count) == 1 ? look_up(args[0], s__kvsan_empty) : NULL;
    if (kept == NULL || kept != self->more) {
        PyErr_Clear();
        Py_XDECREF(kept);
        return hook_slow(self, args, count, kwnames);
    }
    Py_DECREF(kept);
    self->counter->count++;
    return hook_original(self, args, count, kwnames);
}

#endif
