/* What each line passes on its way into the recorder's queue (`state.py`, `core.py`): who has ended before it, its number,
   whether enough lines wait; blocking calls, lives of blocks and messages. Called with the lock held. */

#ifndef KVSAN_LINES_H
#define KVSAN_LINES_H

#include "handover.h"

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

/* What waits is worked off if it is enough. */
static inline int state_full(State *self)
{
    if (state_waiting(self) < self->batch && (self->packed == NULL || self->packed->used < PACKED_MOST))
        return 0;
    return state_settle_up(self);
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

/* What happens to the lives of blocks of one pool, put in place; neighbours become one line. 1: it is done; 0: it cannot
   be, and nothing is; -1 with an error. */
static COLD int state_lives(State *self, int code, PyObject *pool, const Text *by, const long long *ids, Py_ssize_t count)
{
    unsigned char head[2 + TEXT_ROOM + 2 + TEXT_ROOM], *at;
    const long long *end = ids + count;
    const char *letters;
    size_t size;
    int begins;
    if (!in_place(self) || !by->size || (letters = plain(pool, &size)) == NULL || size > TEXT_ROOM)
        return 0;
    head[0] = 0x95;
    head[1] = (unsigned char)code;
    size = (size_t)(put_plain(put_text(head + 2, by), letters, size) - head);
    begins = self->count - 1 <= self->sealed || !life_is(self->packed, head, size);
    if (begins && state_ended(self, self->packed->count) < 0)
        return -1;
    if (!in_place(self)) /* another session began in that */
        return 0;
    if (pack_room(self->packed, sizeof(head) + HEAD + LIFE_REST + 9 * (size_t)count) < 0)
        return -1;
    if (begins)
        life_begins(self->packed, head, size, clock_now());
    for (at = life_ids(self->packed); ids < end; ids++)
        at = put_int(at, *ids);
    life_ends(self->packed, size, at, count);
    if (!begins)
        return 1;
    self->count++;
    return state_full(self) < 0 ? -1 : 1;
}

/* The same of ids that are made plain first, and only into the line that is last. Not in the middle of another one. */
static COLD int state_life_more(State *self, long code, PyObject *pool, PyObject *ids, PyObject *by)
{
    Packed *packed = (Packed *)Py_NewRef((PyObject *)self->packed), *made;
    unsigned char *head;
    size_t size;
    int all, same = 1, done = 0;
    for (all = 0; all < 2 && same && done == 0; all++) /* first its names alone: what ids run comes behind a new line */
        if ((made = life_made(packed, code, by, pool, all ? ids : NULL, &head, &size)) == NULL)
            done = -1;
        else {
            same = self->count - 1 > self->sealed && life_is(packed, head, size); /* if it was not taken meanwhile */
            if (all && same)
                done = life_takes(packed, made, size) < 0 ? -1 : 1;
            Py_DECREF(made);
        }
    done = pack_later(packed, done);
    Py_DECREF(packed);
    return done < 0 ? state_lost(self) : done;
}

/* The latest of the lines that wait as they are: a new reference. NULL without an error if there is none. */
static PyObject *state_last(State *self)
{
    PyObject *queue = self->packed != NULL ? self->packed->later : self->queue;
    Py_ssize_t size = queue == NULL ? 0 : PyObject_Size(queue);
    return size <= 0 ? NULL : PySequence_GetItem(queue, size - 1);
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
static COLD int state_life(State *self, long code, PyObject *pool, PyObject *ids, PyObject *by)
{
    long long numbers[IDS_AT_ONCE];
    PyObject *last = NULL;
    const char *letters;
    size_t size;
    Text who;
    int done = 0, same = 0, lists = PyList_CheckExact(ids);
    if (lists && PyList_GET_SIZE(ids) <= IDS_AT_ONCE && numbers_of(ids, numbers) && (letters = plain(by, &size)) != NULL) {
        text_set(&who, letters, size);
        done = state_lives(self, (int)code, pool, &who, numbers, PyList_GET_SIZE(ids));
    }
    if (done == 0 && lists && self->count - 1 > self->sealed) {
        if (self->packed != NULL && !pack_waits(self->packed))
            done = state_life_more(self, code, pool, ids, by);
        else if ((last = state_last(self)) == NULL && PyErr_Occurred())
            done = -1;
    }
    if (done != 0)
        return done < 0 ? -1 : 0;
    if (last != NULL && PyTuple_CheckExact(last) && PyTuple_GET_SIZE(last) == 5 &&
        PyList_CheckExact(PyTuple_GET_ITEM(last, 3)) && PyLong_AsLong(PyTuple_GET_ITEM(last, 0)) == code &&
        (same = PyObject_RichCompareBool(PyTuple_GET_ITEM(last, 1), by, Py_EQ)) == 1)
        same = PyObject_RichCompareBool(PyTuple_GET_ITEM(last, 2), pool, Py_EQ);
    if (same > 0) {
        PyObject *known = PyTuple_GET_ITEM(last, 3);
        done = PyList_SetSlice(known, PyList_GET_SIZE(known), PyList_GET_SIZE(known), ids);
        Py_DECREF(last);
        return done;
    }
    Py_XDECREF(last);
    if (same < 0) /* names that raise where they are compared */
        return -1;
    return state_add(self, Py_BuildValue("(lOOON)", code, by, pool, ids, state_now(self))) < 0 ? -1 : 0;
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

#endif
