/* The lines of launch and copy: what they touch, and when a copy was decided. */

#ifndef KVSAN_LINES_ACCESS_H
#define KVSAN_LINES_ACCESS_H

#include "host.h"

/* Where the engine's code made the call, if that is asked for: a new reference. */
static PyObject *site_of(Host *self) {
    return self->site == Py_None ? Py_NewRef(Py_None) : PyObject_CallNoArgs(self->site);
}

static int kernel_line(Host *self, PyObject *on, PyObject *kernel) {
    if (PyUnicode_GET_LENGTH(self->prefix) != 0)
        return done(CALL(s__kernel, (PyObject *)self, on, kernel));
    PyObject *fields[K_FIELDS], *site = site_of(self);
    if (site == NULL || fields_of(kernel, kernel_type, kernel_slots, K_FIELDS, fields) < 0) {
        Py_XDECREF(site);
        return -1;
    }
    PyObject *label = fields[K_NAME], *reads = fields[K_READS], *writes = fields[K_WRITES], *step = fields[K_STEP];
    int result = 0;
    if (self->log != NULL)
        result = log_access(self->log, label, self->by, on, reads, writes, NULL, 0, Py_None, step, site);
    else if (self->queue != NULL)
        result = queue_access(self->queue, label, self->by, on, reads, writes, NULL, s_stream, 0, Py_None, step, site);
    if (result == 0)
        result = done(CALL(s_access, self->sink, label, self->by, on, reads, writes, s_stream, Py_False, Py_None, step,
                           site));
    for (int at = 0; at < K_FIELDS; at++)
        Py_DECREF(fields[at]);
    Py_DECREF(site);
    return result < 0 ? -1 : 0;
}

static PyObject *Host_launch(Host *self, PyObject *const *args, Py_ssize_t count) {
    PyObject *leave = wanted("launch", count, 2) < 0 ? NULL : sink_take(self), *error = NULL, *on;
    if (leave == NULL)
        return NULL;
    if (done(CALL(s_launch, self->host, args[0], args[1])) < 0) {
        if (PyErr_ExceptionMatches(device_error))
            return end_of(leave, NULL, 1);
        error = error_object();  /* some of its parts were issued */
    }
    int failed = (on = stream_of(self, args[0])) == NULL ||
                 (error == NULL ? kernel_line(self, on, args[1])
                                : done(CALL(s__kernel, (PyObject *)self, on, args[1]))) < 0;
    Py_XDECREF(on);
    if (error != NULL) {
        if (failed)
            error_during(error);
        else
            error_again(error);
        failed = 1;
    }
    return end_of(leave, Py_NewRef(Py_None), failed);
}

/* `Plans._one`: 0 and more: when all of it was decided; -1: that takes a closer look; -2: raised. */
static int64_t copy_planned(Host *self, PyObject *name, PyObject *const *pairs) {
    Pool *from = pool_of(self, pairs[0]), *to = from == NULL ? NULL : pool_of(self, pairs[2]);
    if (to == NULL)
        return PyErr_Occurred() ? -2 : -1;
    Ids sources, targets;
    if (!ids_of(pairs[1], &sources))
        return -1;
    if (!ids_of(pairs[3], &targets)) {
        ids_done(&sources);
        return -1;
    }
    int64_t one = -1, decided = pool_at_once(from, &sources, name);
    int64_t aimed = decided < 0 ? -1 : pool_at_once(to, &targets, name);
    if (decided >= 0 && aimed >= 0) {
        one = decided > aimed ? decided : aimed;
        if (one && (pool_any_after(from, &sources, decided ? decided : one) ||
                    pool_any_after(to, &targets, aimed ? aimed : one)))
            one = -1;
    }
    ids_done(&sources);
    ids_done(&targets);
    return PyErr_Occurred() ? -2 : one;
}

/* The binary log's number of a source order with `batch`; -1: another text. */
static int flags_of(PyObject *order) {
    if (order == s_stream)
        return 1;
    if (order == s_any)
        return 3;
    return order == s_call ? 5 : -1;
}

/* 1: done; 0: Python has to do it; -1: raised. */
static int copy_line(Host *self, PyObject *on, PyObject *copy) {
    if (PyUnicode_GET_LENGTH(self->prefix) != 0)
        return 0;
    PyObject *fields[C_FIELDS], *site = NULL, *planned = NULL;
    if (fields_of(copy, copy_type, copy_slots, C_FIELDS, fields) < 0)
        return -1;
    PyObject *label = fields[C_NAME], *order = fields[C_ORDER], *step = fields[C_STEP];
    PyObject *const *pairs = &fields[C_SOURCE];
    int result = -1, flags = PyUnicode_CheckExact(pairs[0]) && PyUnicode_CheckExact(pairs[2]) ? flags_of(order) : -1;
    int64_t one = flags < 0 ? -1 : copy_planned(self, label, pairs);
    if (one < 0 || flags < 0) {
        result = one == -2 ? -1 : 0;
        goto end;
    }
    planned = one ? PyLong_FromLongLong(one >> 1) : Py_NewRef(Py_None);
    if (planned == NULL || (site = site_of(self)) == NULL)
        goto end;
    if (self->log != NULL)
        result = log_access(self->log, label, self->by, on, NULL, NULL, pairs, flags, planned, step, site);
    else if (self->queue != NULL)
        result = queue_access(self->queue, label, self->by, on, NULL, NULL, pairs, order, 1, planned, step, site);
    else
        result = 0;
    if (result == 0)
        result = done(CALL(s_copy, self->sink, label, self->by, on, pairs[0], pairs[1], pairs[2], pairs[3], order,
                           planned, step, site)) < 0 ? -1 : 1;
end:
    Py_XDECREF(site);
    Py_XDECREF(planned);
    for (int at = 0; at < C_FIELDS; at++)
        Py_DECREF(fields[at]);
    return result;
}

static PyObject *Host_copy(Host *self, PyObject *const *args, Py_ssize_t count) {
    PyObject *leave = wanted("copy", count, 2) < 0 ? NULL : sink_take(self), *on, *targets;
    if (leave == NULL)
        return NULL;
    int failed = 1;
    if (done(CALL(s_copy, self->host, args[0], args[1])) == 0 &&
        (targets = PyObject_GetAttr(args[1], s_targets)) != NULL) {
        Py_ssize_t blocks = PyObject_Size(targets);
        Py_DECREF(targets);
        if (blocks == 0)
            failed = 0;
        else if (blocks > 0 && (on = stream_of(self, args[0])) != NULL) {
            int result = copy_line(self, on, args[1]);
            Py_DECREF(on);
            if (result == 0)
                result = done(CALL(s__copied, (PyObject *)self, args[0], args[1]));
            failed = result < 0;
        }
    }
    return end_of(leave, Py_NewRef(Py_None), failed);
}

#endif
