/* The lines of alloc, free and touch; what the plans are told of alloc and plan. */

#ifndef KVSAN_LINES_LIFE_H
#define KVSAN_LINES_LIFE_H

#include "host.h"

static int life_line(Host *self, int log_kind, int queue_code, PyObject *method, const char *where, PyObject *pool,
                     PyObject *blocks) {
    PyObject *name = named(self, pool);
    if (name == NULL)
        return -1;
    int result = 0;
    if (self->log != NULL)
        result = log_life(self->log, log_kind, self->by, name, blocks);
    else if (self->queue != NULL)
        result = queue_life(self->queue, queue_code, where, self->by, name, blocks);
    if (result == 0)
        result = done(CALL(method, self->sink, name, blocks, self->by));
    Py_DECREF(name);
    return result < 0 ? -1 : 0;
}

/* The number of the latest line: 1 and it is in `line`; 0: there is none; -1: raised. */
static int latest(Host *self, long long *line) {
    if (self->log != NULL) {
        Segment *segment = log_segment(self->log);
        if (segment == NULL)
            return -1;
        *line = self->log->before + (PyList_GET_SIZE(segment->lines) - segment->extra) / WIDTH - 1;
        return *line >= 0;
    }
    if (self->queue != NULL) {  /* as the recorder's `mark` */
        Queue *queue = self->queue;
        *line = slot_number(&queue->count, queue->recorder) - 1;
        if (PyErr_Occurred() || slot_put_number(&queue->sealed, queue->recorder, *line) < 0)
            return -1;
        return *line >= 0;
    }
    PyObject *mark = CALL(s_mark, self->sink);
    if (mark == NULL)
        return -1;
    int some = mark != Py_None;
    if (some)
        *line = PyLong_AsLongLong(mark);
    Py_DECREF(mark);
    return PyErr_Occurred() ? -1 : some;
}

static int born(Host *self, PyObject *name, PyObject *blocks) {
    long long line = 0;
    int some = latest(self, &line);
    if (some < 0)
        return -1;
    Pool *pool = pool_of(self, name);
    if (pool == NULL && PyErr_Occurred())
        return -1;
    Ids ids;
    if (pool == NULL || ids_any(blocks, &ids) < 0) {
        if (PyErr_Occurred())
            return -1;
        PyObject *number = some ? PyLong_FromLongLong(line) : Py_NewRef(Py_None);
        int result = number == NULL ? -1 : done(CALL(s_alloc, self->plans, name, blocks, number));
        Py_XDECREF(number);
        return result;
    }
    int result = pool_alloc_ids(pool, &ids, some ? 2 * line : 0);
    ids_done(&ids);
    return result;
}

static PyObject *life(Host *self, PyObject *const *args, Py_ssize_t count, int log_kind, int queue_code,
                      PyObject *method, const char *where) {
    PyObject *leave = wanted(where, count, 2) < 0 ? NULL : sink_take(self);
    if (leave == NULL)
        return NULL;
    int failed = done(CALL(method, self->host, args[0], args[1])) < 0;
    Py_ssize_t blocks = failed ? 0 : PyObject_Size(args[1]);
    if (blocks < 0)
        failed = 1;
    else if (blocks > 0)
        failed = life_line(self, log_kind, queue_code, method, where, args[0], args[1]) < 0 ||
                 (log_kind == L_ALLOC && born(self, args[0], args[1]) < 0);
    return end_of(leave, Py_NewRef(Py_None), failed);
}

static PyObject *Host_alloc(Host *self, PyObject *const *args, Py_ssize_t count) {
    return life(self, args, count, L_ALLOC, Q_ALLOC, s_alloc, "alloc");
}

static PyObject *Host_free(Host *self, PyObject *const *args, Py_ssize_t count) {
    return life(self, args, count, L_FREE, Q_FREE, s_free, "free");
}

static PyObject *Host_touch(Host *self, PyObject *const *args, Py_ssize_t count) {
    return life(self, args, count, L_TOUCH, Q_TOUCH, s_touch, "touch");
}

static int decided(Host *self, PyObject *name, PyObject *blocks, PyObject *work) {
    long long line = 0;
    int some = latest(self, &line);
    if (some <= 0)
        return some;
    Pool *pool = pool_of(self, name);
    Ids ids;
    if (pool == NULL) {
        if (PyErr_Occurred())
            return -1;
        PyObject *number = PyLong_FromLongLong(line);
        int result = number == NULL ? -1 : done(CALL(s_decide, self->plans, name, blocks, work, number));
        Py_XDECREF(number);
        return result;
    }
    if (ids_any(blocks, &ids) < 0)
        return -1;
    int result = pool_decide_ids(pool, &ids, work, 2 * line + 1);
    ids_done(&ids);
    return result;
}

static PyObject *Host_plan(Host *self, PyObject *const *args, Py_ssize_t count) {
    PyObject *leave = wanted("plan", count, 3) < 0 ? NULL : sink_take(self);
    if (leave == NULL)
        return NULL;
    int failed = done(CALL(s_plan, self->host, args[0], args[1], args[2])) < 0;
    Py_ssize_t blocks = failed ? 0 : PyObject_Size(args[1]);
    if (blocks < 0 || (blocks > 0 && decided(self, args[0], args[1], args[2]) < 0))
        failed = 1;
    return end_of(leave, Py_NewRef(Py_None), failed);
}

#endif
