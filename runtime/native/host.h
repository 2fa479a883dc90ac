/* Host: what it is made of, the sink's lock around a call, the names in its lines. */

#ifndef KVSAN_LINES_HOST_H
#define KVSAN_LINES_HOST_H

#include "lock_type.h"
#include "log.h"
#include "pool.h"
#include "queue.h"

typedef struct {
    PyObject_HEAD
    PyObject *sink;            /* what each line needs stands together */
    Slot lock_at;
    PyObject *host, *by, *prefix, *streams;
    LogState *log;             /* where lines go: one of these two, or neither */
    Queue *queue;
    PyObject *device, *plans, *site;
    PyObject *pools;           /* of the plans: a dict */
} Host;

static int Host_traverse(Host *self, visitproc visit, void *arg) {
    Py_VISIT(self->device);
    Py_VISIT(self->host);
    Py_VISIT(self->by);
    Py_VISIT(self->sink);
    Py_VISIT(self->plans);
    Py_VISIT(self->prefix);
    Py_VISIT(self->site);
    Py_VISIT(self->streams);
    Py_VISIT(self->pools);
    Py_VISIT(self->log);
    Py_VISIT(self->queue);
    return 0;
}

/* There is no tp_clear: what runs while others are cleared may call a method. Each cycle goes through the dict of the
   device or of the sink, which is cleared. */
static void Host_dealloc(Host *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    Py_CLEAR(self->device);
    Py_CLEAR(self->host);
    Py_CLEAR(self->by);
    Py_CLEAR(self->sink);
    Py_CLEAR(self->plans);
    Py_CLEAR(self->prefix);
    Py_CLEAR(self->site);
    Py_CLEAR(self->streams);
    Py_CLEAR(self->pools);
    Py_CLEAR(self->log);
    Py_CLEAR(self->queue);
    Py_XDECREF(self->lock_at.name);
    type->tp_free(self);
}

static PyObject *Host_new(PyTypeObject *type, PyObject *args, PyObject *more) {
    PyObject *device, *host, *by, *sink, *lines, *plans, *pools, *prefix, *site, *streams;
    static char *names[] = {"device", "host",   "by",   "sink",    "lines", "plans",
                            "pools",  "prefix", "site", "streams", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, more, "OOUOOOO!UOO!", names, &device, &host, &by, &sink, &lines, &plans,
                                     &PyDict_Type, &pools, &prefix, &site, &PyDict_Type, &streams))
        return NULL;
    Host *self = (Host *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->device = Py_NewRef(device);
    self->host = Py_NewRef(host);
    self->by = Py_NewRef(by);
    self->sink = Py_NewRef(sink);
    self->plans = Py_NewRef(plans);
    self->pools = Py_NewRef(pools);
    self->prefix = Py_NewRef(prefix);
    self->site = Py_NewRef(site);
    self->streams = Py_NewRef(streams);
    if (PyObject_TypeCheck(lines, &LogStateType))
        self->log = (LogState *)Py_NewRef(lines);
    else if (Py_TYPE(lines) == &QueueType)
        self->queue = (Queue *)Py_NewRef(lines);
    if (slot_find(&self->lock_at, Py_TYPE(sink), "lock") < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

/* What a line is about to touch. */
static inline void fetch_ahead(Host *self) {
    fetch((char *)self + 64);
    fetch((char *)self + 128);
    fetch(self->host);
    fetch(self->by);
    fetch(self->streams);
    fetch(self->log);
    fetch(self->queue);
}

/* What a line is about to touch, once the lock is there. */
static inline void fetch_lines(Host *self) {
    if (self->log != NULL) {
        fetch((char *)self->log + 64);
        fetch(self->log->segment);
        fetch((char *)self->log->segment + 64);
    } else if (self->queue != NULL) {
        fetch((char *)self->queue + 64);
        fetch(self->queue->add);
        for (int line = 0; line < 4; line++)
            fetch((char *)self->queue->recorder + 64 * line);
    }
}

/* Takes a lock of another kind; what lets it go, a new reference. NULL: raised. */
static PyObject *other_take(PyObject *lock) {
    PyObject *enter = PyObject_GetAttr(lock, s___enter__);
    PyObject *leave = enter == NULL ? NULL : PyObject_GetAttr(lock, s___exit__);
    if (leave != NULL && done(PyObject_CallNoArgs(enter)) < 0)
        Py_CLEAR(leave);
    Py_XDECREF(enter);
    return leave;
}

/* Takes the sink's lock; what lets it go, a new reference: the lock, or the method of one of another kind. It may have
   been replaced when it is let go. NULL: raised. */
static PyObject *sink_take(Host *self) {
    fetch_ahead(self);
    PyObject *lock = slot_get(&self->lock_at, self->sink), *leave = NULL;
    if (lock == NULL)
        return NULL;
    if (Py_TYPE(lock) != &LockType)
        leave = other_take(lock);
    else if (lock_take((Lock *)lock) == 0)
        leave = Py_NewRef(lock);
    Py_DECREF(lock);
    fetch_lines(self);
    return leave;
}

/* Lets it go. Takes the reference. `failed`: an exception is set, and the lock hears of it. -1: one is set. */
static int sink_leave(PyObject *leave, int failed) {
    if (Py_TYPE(leave) == &LockType) {
        int mine = lock_mine((Lock *)leave);
        if (mine)
            lock_leave((Lock *)leave);
        Py_DECREF(leave);
        if (mine)
            return failed ? -1 : 0;
        PyObject *error = failed ? error_object() : NULL;
        PyErr_SetString(PyExc_RuntimeError, "cannot release un-acquired lock");
        if (error != NULL)
            error_during(error);
        return -1;
    }
    if (!failed) {
        PyObject *none[] = {Py_None, Py_None, Py_None};
        int result = done(PyObject_Vectorcall(leave, none, 3, NULL));
        Py_DECREF(leave);
        return result;
    }
    PyObject *error = error_object(), *at = PyException_GetTraceback(error);
    PyObject *args[] = {(PyObject *)Py_TYPE(error), error, at == NULL ? Py_None : at};
    int result = done(PyObject_Vectorcall(leave, args, 3, NULL));
    Py_DECREF(leave);
    Py_XDECREF(at);
    if (result < 0)
        error_during(error);
    else
        error_again(error);
    return -1;
}

/* The end of a call under the lock: `result` if nothing failed. Takes both. */
static PyObject *end_of(PyObject *leave, PyObject *result, int failed) {
    if (sink_leave(leave, failed) < 0)
        Py_CLEAR(result);
    return result;
}

/* The prefix and the name: a new reference. */
static inline PyObject *named(Host *self, PyObject *name) {
    if (PyUnicode_GET_LENGTH(self->prefix) == 0 && PyUnicode_CheckExact(name))
        return Py_NewRef(name);
    return PyUnicode_Concat(self->prefix, name);
}

/* The lines' name of a stream, a new reference. */
static inline PyObject *stream_of(Host *self, PyObject *stream) {
    PyObject *found = Py_XNewRef(PyDict_GetItemWithError(self->streams, stream));
    if (found == NULL && !PyErr_Occurred())
        PyErr_SetObject(PyExc_KeyError, stream);
    return found;
}

static int wanted(const char *name, Py_ssize_t given, Py_ssize_t want) {
    if (given == want)
        return 0;
    PyErr_Format(PyExc_TypeError, "%s() takes %zd arguments; %zd were given", name, want, given);
    return -1;
}

/* The pool of that name as the plans know it; NULL without an exception: not of ours. Borrowed. */
static Pool *pool_of(Host *self, PyObject *name) {
    PyObject *found = PyDict_GetItemWithError(self->pools, name);
    return found != NULL && PyObject_TypeCheck(found, &PoolType) ? (Pool *)found : NULL;
}

#endif
