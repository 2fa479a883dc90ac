/* Lines that wait go to the process beside: the usual hand-over of `core.settle_up`, which has nothing else to say or to do.
   What is not usual is left to that, before a byte is written. Called with the lock held. */

#ifndef KVSAN_HANDOVER_H
#define KVSAN_HANDOVER_H

#include "state.h"

/* Whether `core.settle_up` would write a frame of lines and nothing else, but for what `state_gather` finds. */
static int state_sends(State *self)
{
    return self->packed != NULL && self->way != NULL && !self->settling && !self->shut &&
           (self->fault_text == NULL || self->fault_text == Py_None) && !pack_waits(self->packed) &&
           way_is_free(self->way) && self->dead_threads != NULL && Py_TYPE(self->dead_threads) == deque_type &&
           Py_SIZE(self->dead_threads) == 0;
}

/* The ends of events go in. 0, or -1 with an error. */
static int state_gather(State *self)
{
    PyObject *names = self->dead_events;
    int done = 0;
    self->settling = 1;
    if (names_ended(names) > 0)
        done = names_drop(self, names);
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

#endif
