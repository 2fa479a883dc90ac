/* A call that blocks: its line stands at its entry, no lock is held while it is out, and it counts if it returns. */

#ifndef KVSAN_LINES_SYNC_H
#define KVSAN_LINES_SYNC_H

#include "host.h"

/* With the sink's own context manager. */
static PyObject *sync_around(Host *self, PyObject *event, PyObject *name) {
    PyObject *around = CALL(s_blocking, self->sink, name, self->by);
    if (around == NULL || done(CALL(s___enter__, around)) < 0) {
        Py_XDECREF(around);
        return NULL;
    }
    PyObject *result = CALL(s_sync, self->host, event);
    if (result != NULL) {
        if (done(CALL(s___exit__, around, Py_None, Py_None, Py_None)) < 0)
            Py_CLEAR(result);
    } else {
        PyObject *error = error_object(), *at = PyException_GetTraceback(error);
        PyObject *said = CALL(s___exit__, around, (PyObject *)Py_TYPE(error), error, at == NULL ? Py_None : at);
        int taken = said == NULL ? -1 : PyObject_IsTrue(said);
        Py_XDECREF(said);
        Py_XDECREF(at);
        if (taken < 0)
            error_during(error);
        else if (taken == 0)
            error_again(error);
        else {
            result = Py_NewRef(Py_None);
            Py_DECREF(error);
        }
    }
    Py_DECREF(around);
    return result;
}

/* The end of a call that blocked: `result`, or if that is NULL the `error` it raised, but for what its line raised
   (`failed`). Takes both. */
static PyObject *sync_end(PyObject *result, PyObject *error, int failed) {
    if (failed)
        Py_CLEAR(result);
    if (error == NULL)
        return result;
    if (failed)
        error_during(error);
    else
        error_again(error);
    return NULL;
}

static PyObject *sync_logged(Host *self, PyObject *event, PyObject *name) {
    PyObject *leave = sink_take(self);
    if (leave == NULL)
        return NULL;
    Held *held = log_hold(self->log, self->by, name);
    int failed = held == NULL && PyErr_Occurred() != NULL;
    if (sink_leave(leave, failed) < 0 || failed) {
        Py_XDECREF(held);
        return NULL;
    }
    if (held == NULL)
        return sync_around(self, event, name);
    PyObject *result = CALL(s_sync, self->host, event);
    int returned = result != NULL;
    if (returned && self->log->last == (PyObject *)held) {
        held->returned = 1;  /* settled at the next one: here each look would find cold caches */
        Py_DECREF(held);
        fetch_ahead(self);
        return result;
    }
    PyObject *error = returned ? NULL : error_object();
    leave = sink_take(self);
    failed = leave == NULL || log_settle(self->log, held, returned) < 0;
    if (leave != NULL && sink_leave(leave, failed) < 0)
        failed = 1;
    Py_DECREF(held);
    return sync_end(result, error, failed);
}

static PyObject *sync_queued(Host *self, PyObject *event, PyObject *name) {
    Queue *queue = self->queue;
    PyObject *leave = sink_take(self), *held = NULL;
    if (leave == NULL)
        return NULL;
    int on_now = slot_true(&queue->on, queue->recorder), failed = on_now < 0;
    if (on_now > 0) {
        held = queue_hold(queue, self->by, name);
        if (held == NULL)
            failed = queue_failed(queue, "blocking") < 0;
    }
    if (sink_leave(leave, failed) < 0 || failed) {
        Py_XDECREF(held);
        return NULL;
    }
    PyObject *result = CALL(s_sync, self->host, event);
    if (held == NULL)
        return result;
    int returned = result != NULL;
    PyObject *error = returned ? NULL : error_object();
    on_now = slot_true(&queue->on, queue->recorder);
    failed = on_now < 0;
    if (on_now > 0) {
        leave = sink_take(self);  /* whoever works lines off looks at it and says so */
        int settled = leave == NULL || !returned ? 0 : queue_settled(queue, held);
        failed = leave == NULL || settled < 0;
        if (leave != NULL && settled == 0) {
            PyObject *method = PyObject_GetAttr(queue->recorder, s_returned), *names = PyTuple_Pack(1, s_done);
            PyObject *args[] = {held, returned ? Py_True : Py_False};
            failed = method == NULL || names == NULL || done(PyObject_Vectorcall(method, args, 1, names)) < 0;
            Py_XDECREF(method);
            Py_XDECREF(names);
        }
        if (leave != NULL && sink_leave(leave, failed) < 0)
            failed = 1;
    }
    Py_DECREF(held);
    return sync_end(result, error, failed);
}

static PyObject *Host_sync(Host *self, PyObject *const *args, Py_ssize_t count) {
    PyObject *name = wanted("sync", count, 1) < 0 ? NULL : named(self, args[0]);
    if (name == NULL)
        return NULL;
    PyObject *result = self->log != NULL     ? sync_logged(self, args[0], name)
                       : self->queue != NULL ? sync_queued(self, args[0], name)
                                             : sync_around(self, args[0], name);
    Py_DECREF(name);
    if (result != NULL)
        Py_SETREF(result, Py_NewRef(Py_None));
    return result;
}

#endif
