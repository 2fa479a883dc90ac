/* A reentrant lock, as `threading.RLock`, that hooks take without a call through Python. Fields change under the GIL. */

#ifndef KVSAN_LOCK_H
#define KVSAN_LOCK_H

#include "common.h"

typedef struct {
    PyObject_HEAD
    PyThread_type_lock lock;
    unsigned long owner; /* while `count` is not 0 */
    unsigned long count;
} Lock;

/* The usual case failed: waits so many µs, for ever if -1. 1: taken, 0: not, -1: a signal's handler raised. */
static int lock_wait(Lock *self, PY_TIMEOUT_T us)
{
    PyLockStatus done;
    struct timespec now;
    long long until = 0;
    if (us > 0) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        until = now.tv_sec * 1000000LL + now.tv_nsec / 1000 + us;
    }
    Py_INCREF(self); /* the thread that holds it may be the last one that knows it */
    for (;;) {
        Py_BEGIN_ALLOW_THREADS
        done = PyThread_acquire_lock_timed(self->lock, us, 1);
        Py_END_ALLOW_THREADS
        if (done != PY_LOCK_INTR)
            break;
        if (PyErr_CheckSignals() < 0) {
            Py_DECREF(self);
            return -1;
        }
        if (us > 0) {
            clock_gettime(CLOCK_MONOTONIC, &now);
            us = until - (now.tv_sec * 1000000LL + now.tv_nsec / 1000);
            if (us < 0)
                us = 0;
        }
    }
    if (done == PY_LOCK_ACQUIRED) {
        self->owner = PyThread_get_thread_ident();
        self->count = 1;
    }
    Py_DECREF(self);
    return done == PY_LOCK_ACQUIRED;
}

/* 0, or -1 with an error. */
static inline int lock_take(Lock *self)
{
    unsigned long me = PyThread_get_thread_ident();
    if (self->count && self->owner == me) {
        self->count++;
        return 0;
    }
    if (PyThread_acquire_lock(self->lock, NOWAIT_LOCK)) {
        self->owner = me;
        self->count = 1;
        return 0;
    }
    return lock_wait(self, -1) == 1 ? 0 : -1;
}

/* By who holds it. */
static inline void lock_leave(Lock *self)
{
    if (--self->count == 0) {
        self->owner = 0;
        PyThread_release_lock(self->lock);
    }
}

static PyObject *Lock_acquire(Lock *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"blocking", "timeout", NULL};
    int blocking = 1, done;
    double seconds = -1;
    unsigned long me = PyThread_get_thread_ident();
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|pd:acquire", names, &blocking, &seconds))
        return NULL;
    if (!blocking && seconds != -1) {
        PyErr_SetString(PyExc_ValueError, "can't specify a timeout for a non-blocking call");
        return NULL;
    }
    if (seconds < 0 && seconds != -1) {
        PyErr_SetString(PyExc_ValueError, "timeout value must be a non-negative number");
        return NULL;
    }
    if (!(seconds <= 9e9)) { /* nor is it a number */
        PyErr_SetString(PyExc_OverflowError, "timeout value is too large");
        return NULL;
    }
    if (self->count && self->owner == me) {
        self->count++;
        Py_RETURN_TRUE;
    }
    if (PyThread_acquire_lock(self->lock, NOWAIT_LOCK)) {
        self->owner = me;
        self->count = 1;
        Py_RETURN_TRUE;
    }
    if (!blocking)
        Py_RETURN_FALSE;
    done = lock_wait(self, seconds < 0 ? -1 : (PY_TIMEOUT_T)(seconds * 1e6));
    return done < 0 ? NULL : PyBool_FromLong(done);
}

static PyObject *Lock_release(Lock *self, PyObject *unused)
{
    (void)unused;
    if (!self->count || self->owner != PyThread_get_thread_ident()) {
        PyErr_SetString(PyExc_RuntimeError, "cannot release un-acquired lock");
        return NULL;
    }
    lock_leave(self);
    Py_RETURN_NONE;
}

static PyObject *Lock_enter(Lock *self, PyObject *unused)
{
    (void)unused;
    if (lock_take(self) < 0)
        return NULL;
    Py_RETURN_TRUE;
}

static PyObject *Lock_exit(Lock *self, PyObject *const *args, Py_ssize_t nargs)
{
    (void)args;
    (void)nargs;
    return Lock_release(self, NULL);
}

static PyObject *Lock_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    Lock *self = (Lock *)type->tp_alloc(type, 0);
    (void)args;
    (void)kwargs;
    if (self != NULL && (self->lock = PyThread_allocate_lock()) == NULL) {
        Py_DECREF(self);
        PyErr_NoMemory();
        return NULL;
    }
    return (PyObject *)self;
}

static void Lock_dealloc(Lock *self)
{
    if (self->lock != NULL) {
        if (self->count) /* let go while it is held */
            PyThread_release_lock(self->lock);
        PyThread_free_lock(self->lock);
    }
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef Lock_methods[] = {
    {"acquire", (PyCFunction)(void (*)(void))Lock_acquire, METH_VARARGS | METH_KEYWORDS, NULL},
    {"release", (PyCFunction)Lock_release, METH_NOARGS, NULL},
    {"__enter__", (PyCFunction)Lock_enter, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)(void (*)(void))Lock_exit, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject LockType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "kvsan.checker.attach._hot.Lock",
    .tp_doc = "A reentrant lock: `acquire`, `release`, `with`.",
    .tp_basicsize = sizeof(Lock),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = Lock_new,
    .tp_dealloc = (destructor)Lock_dealloc,
    .tp_methods = Lock_methods,
};

#endif
