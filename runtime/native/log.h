/* A log's lines: how they are put into its segment, as `kvsan.runtime.binary.Log` does, which has the rest. */

#ifndef KVSAN_LINES_LOG_H
#define KVSAN_LINES_LOG_H

#include "ids.h"
#include "state.h"

#define FEW 16   /* so few ids are bytes of their own. Less than binary.FEW: copies are cheap here, new objects are not */
#define WIDTH 5  /* binary.WIDTH */
#define START 11 /* binary.START */

enum { L_ACCESS, L_RECORD, L_WAIT, L_SYNC, L_SYNC_STREAM, L_SYNC_DEVICE, L_NO, L_YES, L_PUT, L_GET, L_ALLOC, L_FREE,
       L_TOUCH, L_DROP, L_KINDS };  /* binary.py */

/* What time it is, a new int. Before anything else of a line: a clock of somebody's own is code that may make lines, and
   so may what the garbage collector ends when an object is made. */
static PyObject *log_time(LogState *log, long long *ns) {
    if (log->now == NULL) {
        PyErr_SetString(PyExc_TypeError, "a log without a clock");
        return NULL;
    }
    PyObject *clock = Py_NewRef(log->now), *t = time_now(clock, ns);
    Py_DECREF(clock);
    return t;
}

/* The segment of a log, or NULL with an exception. Borrowed: nobody changes it while a line is made. */
static Segment *log_segment(LogState *log) {
    PyObject *found = log->segment;
    if (found != NULL && PyObject_TypeCheck(found, &SegmentType)) {
        Segment *segment = (Segment *)found;
        if (segment->lines != NULL && PyList_CheckExact(segment->lines))
            return segment;
    }
    PyErr_SetString(PyExc_TypeError, "a log without a segment");
    return NULL;
}

/* Puts items into the segment. They are borrowed. */
static int log_items(Segment *segment, PyObject **items, Py_ssize_t count) {
    PyObject *lines = segment->lines;
    Py_ssize_t before = PyList_GET_SIZE(lines);
    for (Py_ssize_t at = 0; at < count; at++)
        if (PyList_Append(lines, items[at]) < 0) {
            Error e = error_take();
            if (PyList_SetSlice(lines, before, PY_SSIZE_T_MAX, NULL) < 0)
                PyErr_Clear();
            error_put(e);
            return -1;
        }
    return 0;
}

/* A line was added at that time: is it time for something else? */
static inline int log_after(LogState *log, Segment *segment, PyObject *t, long long ns) {
    if (ns <= log->due && PyList_GET_SIZE(segment->lines) < log->most)
        return 0;
    return done(CALL(s__see_to, (PyObject *)log, t));
}

static int log_order(LogState *log, int kind, PyObject *by, PyObject *on, PyObject *text) {
    long long ns;
    PyObject *t = log_time(log, &ns);
    if (t == NULL)
        return -1;
    Segment *segment = log_segment(log);
    PyObject *items[WIDTH] = {numbers[kind], by, on, text, t};
    int result = segment == NULL ? -1 : log_items(segment, items, WIDTH);
    if (result == 0)
        result = log_after(log, segment, t, ns);
    Py_DECREF(t);
    return result;
}

/* A pool's ids as two items, new references. 1: done, or there are none; 0: something else, or no room; -1: raised. */
static int log_set(Segment *segment, Py_ssize_t *used, PyObject *pool, PyObject *given, PyObject **items,
                   Py_ssize_t *count) {
    Ids ids;
    if (!ids_of(given, &ids))
        return 0;
    PyObject *found;
    if (ids.count == 0) {
        ids_done(&ids);
        return 1;
    }
    if (ids.count <= FEW)
        found = PyBytes_FromStringAndSize((const char *)ids.at, ids.count * (Py_ssize_t)sizeof(int64_t));
    else {
        if (segment->view.obj == NULL || *used + ids.count > segment->size ||
            *used + ids.count > segment->view.len / (Py_ssize_t)sizeof(int32_t)) {
            ids_done(&ids);
            return 0;
        }
        if (narrow((int32_t *)segment->view.buf + *used, ids.at, ids.count)) {
            *used += ids.count;
            found = PyLong_FromSsize_t(ids.count);
        } else  /* whole, for the reader to complain of: no id of a pool is as large or negative */
            found = PyBytes_FromStringAndSize((const char *)ids.at, ids.count * (Py_ssize_t)sizeof(int64_t));
    }
    ids_done(&ids);
    if (found == NULL)
        return -1;
    items[(*count)++] = Py_NewRef(pool);
    items[(*count)++] = found;
    return 1;
}

/* 1: done; 0: the log's own method has to do it; -1: raised. */
static int log_life(LogState *log, int kind, PyObject *by, PyObject *pool, PyObject *blocks) {
    long long ns;
    PyObject *t = log_time(log, &ns), *set[2];
    if (t == NULL)
        return -1;
    Segment *segment = log_segment(log);
    Py_ssize_t used = segment == NULL ? 0 : segment->used, count = 0;
    int result = segment == NULL ? -1 : log_set(segment, &used, pool, blocks, set, &count);
    if (count) {
        PyObject *items[WIDTH] = {numbers[kind], by, pool, set[1], t};
        result = log_items(segment, items, WIDTH) < 0 ? -1 : 1;
        if (result > 0) {
            segment->used = used;
            if (log_after(log, segment, t, ns) < 0)
                result = -1;
        }
        Py_DECREF(set[0]);
        Py_DECREF(set[1]);
    }
    Py_DECREF(t);
    return result;
}

/* The same. `reads` and `writes` are dicts, or `reads` NULL: then one pair of pool and ids each. */
static int log_access(LogState *log, PyObject *label, PyObject *by, PyObject *on, PyObject *reads, PyObject *writes,
                      PyObject *const *pairs, int flags, PyObject *planned, PyObject *step, PyObject *site) {
    long long ns;
    PyObject *items[START + 4 * SETS], *t = log_time(log, &ns);
    if (t == NULL)
        return -1;
    Segment *segment = log_segment(log);
    if (segment == NULL) {
        Py_DECREF(t);
        return -1;
    }
    Py_ssize_t used = segment->used, count = START, middle = START, at;
    int result = 1;
    for (int side = 0; side < 2 && result > 0; side++) {
        if (reads == NULL)
            result = log_set(segment, &used, pairs[2 * side], pairs[2 * side + 1], items, &count);
        else {
            PyObject *sets = side ? writes : reads, *pool, *ids;
            Py_ssize_t place = 0;
            if (!PyDict_CheckExact(sets) || PyDict_GET_SIZE(sets) > SETS)
                result = 0;
            while (result > 0 && PyDict_Next(sets, &place, &pool, &ids))
                result = log_set(segment, &used, pool, ids, items, &count);
        }
        if (side == 0)
            middle = count;
    }
    if (result > 0 && count > START) {
        PyObject *head[START] = {numbers[L_ACCESS], by, on, label, t, numbers[flags], planned, step, site,
                                 numbers[(middle - START) / 2], numbers[(count - middle) / 2]};
        memcpy(items, head, sizeof(head));
        result = log_items(segment, items, count) < 0 ? -1 : 1;
        if (result > 0) {
            segment->used = used;
            segment->extra += count - WIDTH;
            if (log_after(log, segment, t, ns) < 0)
                result = -1;
        }
    }
    Py_DECREF(t);
    for (at = START; at < count; at++)
        Py_DECREF(items[at]);
    return result;
}

static int log_settle(LogState *log, Held *held, int returned);

/* The latest blocking call becomes one as others are: it is settled if it has returned, and else among those that are
   out. Under the lock. */
static int log_join(LogState *log, Held *last) {
    int result = 0;
    if (last->returned)
        result = log_settle(log, last, 1);
    else if (last->segment != NULL && last->segment != Py_None && log->out != NULL)  /* else it is settled */
        result = PySet_Add(log->out, (PyObject *)last);
    Py_DECREF(last);
    return result;
}

static int log_reap(LogState *log) {
    Held *last = (Held *)log->last;
    log->last = NULL;
    return last == NULL ? 0 : log_join(log, last);
}

/* The latest one, if it has returned and nobody else has it, for the next; NULL without an exception: there is none.
   Its segment is the log's, so that none is full and waits for it. */
static Held *log_again(LogState *log) {
    Held *last = (Held *)log->last;
    if (last == NULL || !last->returned || Py_REFCNT(last) != 1 || last->segment == NULL ||
        last->segment != log->segment || (PyObject *)Py_TYPE(last) != held_class)
        return NULL;
    log->last = NULL;
    ((Segment *)last->segment)->out--;
    Py_CLEAR(last->segment);
    last->returned = 0;
    return last;
}

static PyObject *LogState_reap(LogState *self, PyObject *Py_UNUSED(unused)) {
    if (log_reap(self) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *LogState_calls_out(LogState *self, PyObject *Py_UNUSED(unused)) {
    PyObject *all = self->out == NULL ? PyList_New(0) : PySequence_List(self->out);
    if (all != NULL && self->last != NULL && PyList_Append(all, self->last) < 0)
        Py_CLEAR(all);
    return all;
}

/* The line of a call that is out, in the log; NULL without an exception: the log's own code has to do it. */
static Held *log_hold(LogState *log, PyObject *by, PyObject *event) {
    if (log->fault != Py_None || log->out == NULL || !PySet_CheckExact(log->out) || held_class == NULL) {
        log_reap(log);
        return NULL;
    }
    long long ns;
    Held *held = log_again(log);
    if (held == NULL) {
        if (log_reap(log) < 0)
            return NULL;
        held = (Held *)((PyTypeObject *)held_class)->tp_alloc((PyTypeObject *)held_class, 0);
    }
    PyObject *t = held == NULL ? NULL : log_time(log, &ns);
    if (t == NULL) {
        Py_XDECREF(held);
        return NULL;
    }
    Segment *segment = log_segment(log);
    /* lines, blocking ones too, may have been made while the clock was asked */
    if (segment == NULL || log_after(log, segment, t, ns) < 0 || log_reap(log) < 0 || log->fault != Py_None ||
        log->out == NULL || (segment = log_segment(log)) == NULL) {
        Py_CLEAR(held);
        goto end;
    }
    held->at = PyList_GET_SIZE(segment->lines);
    held->segment = Py_NewRef((PyObject *)segment);
    PyObject *items[WIDTH] = {numbers[L_SYNC], by, Py_None, event, t};
    if (log_items(segment, items, WIDTH) < 0)
        Py_CLEAR(held);
    else {
        segment->out++;
        Held *before = (Held *)log->last;  /* a signal's handler may have made one */
        log->last = Py_NewRef((PyObject *)held);
        if (before != NULL && log_join(log, before) < 0)
            Py_CLEAR(held);
    }
end:
    Py_DECREF(t);
    return held;
}

static int log_settle(LogState *log, Held *held, int returned) {
    PyObject *found = held->segment;
    if (!returned || found == NULL || !PyObject_TypeCheck(found, &SegmentType)) {
        PyObject *settle = PyObject_GetAttr((PyObject *)log, s_settle);
        PyObject *names = settle == NULL ? NULL : PyTuple_Pack(1, s_done);
        PyObject *args[] = {(PyObject *)held, returned ? Py_True : Py_False};
        int result = names == NULL ? -1 : done(PyObject_Vectorcall(settle, args, 1, names));
        Py_XDECREF(names);
        Py_XDECREF(settle);
        return result;
    }
    Segment *segment = (Segment *)found;
    if (log->out == NULL || log->full == NULL) {
        PyErr_SetString(PyExc_TypeError, "a log without calls that are out");
        return -1;
    }
    if (PySet_Discard(log->out, (PyObject *)held) < 0)
        return -1;
    held->segment = NULL;
    segment->out--;
    Py_ssize_t full = PyObject_Size(log->full);
    int result = full < 0 ? -1 : full > 0 && segment->out == 0 ? done(CALL(s__release, (PyObject *)log)) : 0;
    Py_DECREF(found);
    return result;
}

#endif
