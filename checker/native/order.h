/* Records, waits, queries and event syncs (`torch/calls.py`), and replays of graphs that touch nothing (`graphs.py`).

   A call that does not block is made and logged under the lock; `busy` says meanwhile that calls inside it are part of
   it. A call that blocks has its line at its entry, and no lock. */

#ifndef KVSAN_ORDER_H
#define KVSAN_ORDER_H

#include "hook.h"

#define FUNCTION(name)                                                                                                 \
    static PyObject *name(PyObject *callable, PyObject *const *args, size_t count, PyObject *kwnames)

/* A call that may be logged. */
typedef struct {
    PyObject *result;
    Slot *slot;
    Lock *lock;
} Call;

static COLD int call_begins_slowly(Call *call, Hook *self, PyObject *const *args, size_t count, PyObject *kwnames,
                                   Py_ssize_t least, Py_ssize_t most)
{
    Py_ssize_t given = PyVectorcall_NARGS(count);
    if (PASSES(self) || (call->slot = slot_of(self->here)) == NULL || call->slot->busy)
        call->result = hook_original(self, args, count, kwnames);
    else if (kwnames != NULL || given < least || given > most || (call->lock = hook_lock(self)) == NULL)
        call->result = hook_slow(self, args, count, kwnames);
    else if (lock_take(call->lock) < 0) {
        Py_DECREF(call->lock);
        call->result = NULL;
    } else
        return 1;
    return 0;
}

/* 1: it is to be logged, and the lock is held; 0: it was made as it is, since nobody looks or it is part of another one, or
   was left to Python, since it is not usual. */
static inline int call_begins(Call *call, Hook *self, PyObject *const *args, size_t count, PyObject *kwnames,
                              Py_ssize_t least, Py_ssize_t most)
{
    Py_ssize_t given = PyVectorcall_NARGS(count);
    Lock *lock = (Lock *)self->state->lock;
    Slot *slot = mine == NULL ? NULL : mine->slots[HERES];
    if (RARE(PASSES(self)) || RARE(kwnames != NULL) || RARE(given < least) || RARE(given > most) || RARE(slot == NULL) ||
        RARE(slot->serial != self->here->serial) || RARE(slot->state != state_of_thread()) || RARE(slot->busy) ||
        RARE(lock == NULL) || RARE(Py_TYPE(lock) != lock_type) || RARE(lock->count) || RARE(lock->waiting))
        return call_begins_slowly(call, self, args, count, kwnames, least, most);
    lock->owner = lock_me();
    lock->count = 1;
    call->slot = slot;
    call->lock = (Lock *)Py_NewRef((PyObject *)lock);
    return 1;
}

/* Makes it. Whether it succeeded. */
static inline int call_made(Call *call, Hook *self, PyObject *const *args, size_t count)
{
    call->slot->busy = 1;
    hook_fetch(self);
    call->result = hook_original(self, args, count, NULL);
    if (RARE(call->result == NULL))
        return 0;
    self->counter->count++;
    return 1;
}

/* What it gives back; `done` is negative, with an error, where kvsan failed. */
static inline PyObject *call_ends(Call *call, Hook *self, int done)
{
    if (RARE(done < 0))
        call->result = hook_failed(self, call->result);
    call->slot->busy = 0;
    lock_leave(call->lock);
    let_one_go((PyObject *)call->lock);
    return call->result;
}

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

static COLD int order_add_slowly(Hook *self, int code, PyObject *stream, PyObject *event)
{
    State *state = self->state;
    unsigned char *at;
    Text on, which;
    int may = PyErr_Occurred() ? -1 : op_may(state);
    if (may == 0)
        return state_add(state, order_line(self, code, stream, event)) < 0 ? -1 : 0;
    if (may < 0 || namer_text(self->namer, stream, &on) < 0 || names_text(self->names, event, &which) < 0)
        return -1;
    if (on.size && which.size && (at = op_begins(state, 5, code)) != NULL)
        return op_ends(state, put_text(put_text(at, &on), &which));
    return PyErr_Occurred() || state_add(state, order_line(self, code, stream, event)) < 0 ? -1 : 0;
}

/* The same as a line: put in place if it can be. 0, or -1 with an error. */
static inline int order_add(Hook *self, uint64_t thread, int code, PyObject *stream, PyObject *event)
{
    State *state = self->state;
    const Text *on, *which;
    unsigned char *at;
    if (RARE(state->packed == NULL) || RARE((on = namer_at_once(self->namer, stream)) == NULL) ||
        RARE((at = ops_at_once(state, thread, 1, 5)) == NULL) ||
        RARE((which = names_at_once(self->names, event)) == NULL))
        return order_add_slowly(self, code, stream, event);
    at = put_text(put_text(op_put(at, 5, code), on), which);
    ops_are_put(state, put_long(at, clock_now()), 1);
    return 0;
}

/* A record or a wait: a method of the event, whose stream is the current one if it is given none, or (`of_stream`) of the
   stream, which gives back the event that it made. */
static INTO_EACH PyObject *ordered(PyObject *callable, PyObject *const *args, size_t count, PyObject *kwnames, int code,
                                   int of_stream)
{
    Hook *self = (Hook *)callable;
    PyObject *given, *stream, *event;
    Call call;
    int done = 0;
    if (RARE(!call_begins(&call, self, args, count, kwnames, 1, 2)))
        return call.result;
    if (USUAL(call_made(&call, self, args, count))) {
        given = PyVectorcall_NARGS(count) > 1 ? args[1] : NULL;
        stream = of_stream ? args[0] : given;
        event = !of_stream ? args[0] : given != NULL && given != Py_None ? given : call.result;
        done = order_add(self, call.slot->state, code, stream, event);
    }
    return call_ends(&call, self, done);
}

/* `event.record(stream=None)` */
FUNCTION(hook_record)
{
    return ordered(callable, args, count, kwnames, RECORD, 0);
}

/* `event.wait(stream=None)` */
FUNCTION(hook_wait)
{
    return ordered(callable, args, count, kwnames, WAIT, 0);
}

/* `stream.record_event(event=None)`, which makes one where it is given none */
FUNCTION(hook_record_event)
{
    return ordered(callable, args, count, kwnames, RECORD, 1);
}

/* `stream.wait_event(event)` */
FUNCTION(hook_wait_event)
{
    return ordered(callable, args, count, kwnames, WAIT, 1);
}

/* `recorder.wait_stream`: a record of a fresh event, a wait for it, its end. 1: they are put at once; 0: they are not, maybe
   with an error. */
static inline int wait_stream_at_once(Hook *self, uint64_t thread, PyObject *on, PyObject *other)
{
    State *state = self->state;
    const Text *waits, *records, *event;
    unsigned long long now;
    unsigned char *at;
    if (RARE(state->packed == NULL) || RARE(other == Py_None) ||
        RARE((waits = namer_at_once(self->namer, on)) == NULL) ||
        RARE((records = namer_at_once(self->namer, other)) == NULL) ||
        RARE((at = ops_at_once(state, thread, 3, 5)) == NULL) ||
        RARE((event = names_fresh_at_once(self->names)) == NULL))
        return 0;
    now = clock_now();
    at = put_long(put_text(put_text(op_put(at, 5, RECORD), records), event), now);
    at = put_long(put_text(put_text(op_put(at, 5, WAIT), waits), event), now);
    at = put_long(put_text(op_put(at, 4, DROP), event), now);
    ops_are_put(state, at, 3);
    return 1;
}

/* 1: the three lines are put in place; 0: a name is too long; -1 with an error. */
static COLD int wait_stream_in_place(Hook *self, PyObject *on, PyObject *other)
{
    static const int codes[] = {RECORD, WAIT, DROP};
    State *state = self->state;
    Text streams[2], event;
    unsigned long long now = 0;
    unsigned char *at;
    int i = op_may(state);
    if (i <= 0)
        return i;
    if (namer_text(self->namer, on, &streams[1]) < 0 || namer_text(self->namer, other, &streams[0]) < 0)
        return -1;
    if (!in_place(state) || !state_met(state) || !mine->text.size || !streams[0].size || !streams[1].size)
        return 0; /* before its event has a number */
    if ((i = names_fresh_text(self->names, &event)) <= 0 || !event.size)
        return i < 0 ? -1 : 0;
    for (i = 0; i < 3; i++) {
        if ((at = op_begins(state, i < 2 ? 5 : 4, codes[i])) == NULL)
            return PyErr_Occurred() ? -1 : 0;
        if (i == 0)
            now = clock_now(); /* behind what ended before it */
        if (i < 2)
            at = put_text(at, &streams[i]);
        line_ends(state, put_long(put_text(at, &event), now));
        state->count++;
    }
    return state_full(state) < 0 ? -1 : 1;
}

static COLD int wait_stream_lines(Hook *self, PyObject *on, PyObject *other)
{
    State *state = self->state;
    PyObject *event = NULL, *by = NULL, *now = NULL, *waits, *records;
    int done = PyErr_Occurred() ? -1 : wait_stream_in_place(self, on, other);
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
    Hook *self = (Hook *)callable;
    Call call;
    int done = 0;
    if (RARE(!call_begins(&call, self, args, count, kwnames, 2, 2)))
        return call.result;
    if (USUAL(call_made(&call, self, args, count)) && USUAL(self->state->on) &&
        RARE(!wait_stream_at_once(self, call.slot->state, args[0], args[1])))
        done = wait_stream_lines(self, args[0], args[1]);
    return call_ends(&call, self, done);
}

/* Where a line about an event goes on behind that event's name, if it can be put in place; NULL, maybe with an error. */
static HOT unsigned char *event_begins(Hook *self, PyObject *event, int items, int code)
{
    unsigned char *at;
    Text which;
    if (op_may(self->state) <= 0 || names_text(self->names, event, &which) < 0 || !which.size ||
        (at = op_begins(self->state, items, code)) == NULL)
        return NULL;
    return put_text(at, &which);
}

static COLD int query_line_slowly(Hook *self, PyObject *event, PyObject *answered)
{
    PyObject *parts[5] = {NULL};
    int answer = PyErr_Occurred() ? -1 : PyObject_IsTrue(answered);
    unsigned char *at = answer < 0 ? NULL : event_begins(self, event, 5, POLL);
    if (at != NULL) {
        *at++ = answer ? YES : NO;
        return op_ends(self->state, at);
    }
    if (!PyErr_Occurred() && (parts[0] = PyLong_FromLong(POLL)) != NULL &&
        (parts[1] = state_thread(self->state)) != NULL && (parts[2] = names_name(self->names, event)) != NULL &&
        (parts[3] = PyBool_FromLong(answer)) != NULL)
        parts[4] = state_now(self->state);
    return state_add(self->state, line_of(parts, 5)) < 0 ? -1 : 0;
}

/* Where the line about an event goes on behind that event's name, if it is put at once; NULL, maybe with an error, if not. */
static inline unsigned char *event_at_once(Hook *self, uint64_t thread, PyObject *event, int items, int code)
{
    const Text *which;
    unsigned char *at = ops_at_once(self->state, thread, 1, items);
    if (RARE(at == NULL) || RARE((which = names_at_once(self->names, event)) == NULL))
        return NULL;
    return put_text(op_put(at, items, code), which);
}

/* The answer of a query. 0, or -1 with an error. */
static inline int query_line(Hook *self, uint64_t thread, PyObject *event, PyObject *answer)
{
    unsigned char *at;
    if (RARE(!PyBool_Check(answer)) || RARE((at = event_at_once(self, thread, event, 5, POLL)) == NULL))
        return query_line_slowly(self, event, answer);
    *at++ = answer == Py_True ? YES : NO;
    ops_are_put(self->state, put_long(at, clock_now()), 1);
    return 0;
}

/* `event.query()`: the answer is part of the line */
FUNCTION(hook_query)
{
    Hook *self = (Hook *)callable;
    Call call;
    int done = 0;
    if (RARE(!call_begins(&call, self, args, count, kwnames, 1, 1)))
        return call.result;
    if (USUAL(call_made(&call, self, args, count)) && USUAL(self->state->on))
        done = query_line(self, call.slot->state, args[0], call.result);
    return call_ends(&call, self, done);
}

/* `hold` of an event, put in place: 1, and its number; 0: it cannot be; -1 with an error. */
static COLD int hold_in_place(Hook *self, PyObject *event, Py_ssize_t *index)
{
    State *state = self->state;
    unsigned char *at;
    if (state->packed != NULL && state->packed->count >= state->blocked && !pack_waits(state->packed) &&
        state_settle_up(state) < 0)
        return -1;
    if ((at = event_begins(self, event, 7, HELD)) == NULL)
        return PyErr_Occurred() ? -1 : 0;
    *at++ = NONE; /* no stream, no device */
    *at++ = NONE;
    at = put_long(at, clock_now());
    *at++ = NONE; /* whether it has returned */
    line_ends(state, at);
    *index = state->count++;
    return state->batch <= 1 && state_settle_up(state) < 0 ? -1 : 1;
}

/* The same at once: 1, and its number; 0: it is not, maybe with an error. */
static inline int hold_at_once(Hook *self, uint64_t thread, PyObject *event, Py_ssize_t *index)
{
    State *state = self->state;
    unsigned char *at;
    if (RARE(state->packed == NULL) || RARE(state->packed->count >= state->blocked) ||
        RARE((at = event_at_once(self, thread, event, 7, HELD)) == NULL))
        return 0;
    at[0] = at[1] = NONE; /* no stream, no device */
    at = put_long(at + 2, clock_now());
    *at++ = NONE; /* whether it has returned */
    *index = state->count;
    ops_are_put(state, at, 1);
    return 1;
}

/* What became of it, under the lock. */
static HOT int settle_in_place(State *state, Py_ssize_t index, int done)
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
    Hook *self = (Hook *)callable;
    PyObject *result, *queue;
    Held *held = NULL;
    Py_ssize_t index = 0;
    Call call;
    int placed;
    if (RARE(!call_begins(&call, self, args, count, kwnames, 1, 1)))
        return call.result;
    self->counter->count++;
    placed = hold_at_once(self, call.slot->state, args[0], &index);
    if (RARE(!placed)) {
        placed = PyErr_Occurred() ? -1 : hold_in_place(self, args[0], &index);
        if (placed == 0)
            held = synchronize_held(self, args[0]);
        if (held == NULL && placed != 1 && state_failed(self->state, self->where) < 0) {
            lock_leave(call.lock);
            Py_DECREF(call.lock);
            return NULL;
        }
    }
    queue = Py_XNewRef(self->state->queue);
    lock_leave(call.lock);
    call.slot->busy = 1;
    result = hook_original(self, args, count, NULL);
    call.slot->busy = 0;
    if (USUAL(held != NULL || placed == 1) && USUAL(self->state->on) &&
        USUAL(self->state->queue == queue)) { /* else a later session's */
        if (USUAL(held == NULL && result != NULL && self->state->lock == (PyObject *)call.lock && lock_try(call.lock))) {
            if (RARE(settle_in_place(self->state, index, 1) < 0))
                result = hook_failed(self, result);
            lock_leave(call.lock);
        } else
            result = synchronized(self, held, index, queue, result);
    }
    Py_DECREF(call.lock);
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
