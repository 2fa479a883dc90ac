/* The lines of record, wait, query and drop. */

#ifndef KVSAN_LINES_ORDER_H
#define KVSAN_LINES_ORDER_H

#include "host.h"

static int order_line(Host *self, int log_kind, int queue_code, PyObject *method, const char *where, PyObject *on,
                      PyObject *event, PyObject *answer) {
    if (self->log != NULL)
        return log_order(self->log, log_kind, self->by, on != NULL ? on : Py_None, event);
    if (self->queue != NULL)
        return queue_order(self->queue, queue_code, where, self->by, on, event, answer);
    if (on != NULL)
        return done(CALL(method, self->sink, on, event, self->by));
    if (answer != NULL)
        return done(CALL(method, self->sink, event, answer, self->by));
    return done(CALL(method, self->sink, event, self->by));
}

/* A call of a stream and an event. */
static PyObject *on_stream(Host *self, PyObject *const *args, PyObject *method, int log_kind, int queue_code,
                           const char *where) {
    PyObject *leave = sink_take(self), *event = NULL, *on = NULL;
    if (leave == NULL)
        return NULL;
    int failed = done(CALL(method, self->host, args[0], args[1])) < 0 || (on = stream_of(self, args[0])) == NULL ||
                 (event = named(self, args[1])) == NULL ||
                 order_line(self, log_kind, queue_code, method, where, on, event, NULL) < 0;
    Py_XDECREF(on);
    Py_XDECREF(event);
    return end_of(leave, Py_NewRef(Py_None), failed);
}

static PyObject *Host_record(Host *self, PyObject *const *args, Py_ssize_t count) {
    return wanted("record", count, 2) < 0 ? NULL : on_stream(self, args, s_record, L_RECORD, Q_RECORD, "record");
}

static PyObject *Host_wait(Host *self, PyObject *const *args, Py_ssize_t count) {
    return wanted("wait", count, 2) < 0 ? NULL : on_stream(self, args, s_wait, L_WAIT, Q_WAIT, "wait");
}

static PyObject *Host_query(Host *self, PyObject *const *args, Py_ssize_t count) {
    PyObject *leave = wanted("query", count, 1) < 0 ? NULL : sink_take(self), *event = NULL;
    if (leave == NULL)
        return NULL;
    PyObject *answer = CALL(s_query, self->host, args[0]);
    int yes = answer == NULL ? -1 : answer == Py_True ? 1 : answer == Py_False ? 0 : PyObject_IsTrue(answer);
    int failed = yes < 0 || (event = named(self, args[0])) == NULL ||
                 order_line(self, yes ? L_YES : L_NO, Q_POLL, s_poll, "poll", NULL, event, answer) < 0;
    Py_XDECREF(event);
    return end_of(leave, answer, failed);
}

static PyObject *Host_drop(Host *self, PyObject *const *args, Py_ssize_t count) {
    PyObject *leave = wanted("drop", count, 1) < 0 ? NULL : sink_take(self), *event = NULL;
    if (leave == NULL)
        return NULL;
    int failed = done(CALL(s_drop, self->host, args[0])) < 0 || (event = named(self, args[0])) == NULL ||
                 order_line(self, L_DROP, Q_DROP, s_drop, "drop", NULL, event, NULL) < 0;
    Py_XDECREF(event);
    return end_of(leave, Py_NewRef(Py_None), failed);
}

#endif
