/* The lock as Python has it (`lock.h`): `acquire`, `release`, `with`. */

#ifndef KVSAN_LOCK_TYPE_H
#define KVSAN_LOCK_TYPE_H

#include "lock.h"

static PyObject *Lock_acquire(Lock *self, PyObject *args, PyObject *more) {
    static char *names[] = {"blocking", "timeout", NULL};
    int blocking = 1, done;
    double seconds = -1;
    if (!PyArg_ParseTupleAndKeywords(args, more, "|pd:acquire", names, &blocking, &seconds))
        return NULL;
    if (!blocking && seconds != -1) {
        PyErr_SetString(PyExc_ValueError, "can't specify a timeout for a non-blocking call");
        return NULL;
    }
    if (seconds < 0 && seconds != -1) {
        PyErr_SetString(PyExc_ValueError, "timeout value must be a non-negative number");
        return NULL;
    }
    if (!(seconds <= (double)PY_TIMEOUT_MAX / 1e6)) {  /* nor is it a number */
        PyErr_SetString(PyExc_OverflowError, "timeout value is too large");
        return NULL;
    }
    if (lock_try(self))
        Py_RETURN_TRUE;
    done = lock_wait(self, !blocking ? 0 : seconds < 0 ? -1 : (PY_TIMEOUT_T)(seconds * 1e6));
    return done < 0 ? NULL : PyBool_FromLong(done);
}

static PyObject *Lock_release(Lock *self, PyObject *Py_UNUSED(unused)) {
    if (!lock_mine(self)) {
        PyErr_SetString(PyExc_RuntimeError, "cannot release un-acquired lock");
        return NULL;
    }
    lock_leave(self);
    Py_RETURN_NONE;
}

static PyObject *Lock_enter(Lock *self, PyObject *Py_UNUSED(unused)) {
    if (lock_take(self) < 0)
        return NULL;
    Py_RETURN_TRUE;
}

static PyObject *Lock_exit(Lock *self, PyObject *const *Py_UNUSED(args), Py_ssize_t Py_UNUSED(count)) {
    return Lock_release(self, NULL);
}

static PyObject *Lock_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(more)) {
    Lock *self = (Lock *)type->tp_alloc(type, 0);
    if (self != NULL && (self->gate = PyThread_allocate_lock()) == NULL) {
        Py_DECREF(self);
        PyErr_NoMemory();
        return NULL;
    }
    return (PyObject *)self;
}

static void Lock_dealloc(Lock *self) {
    if (self->gate != NULL) {
        if (self->gated)  /* let go while it is held */
            PyThread_release_lock(self->gate);
        PyThread_free_lock(self->gate);
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
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = LOCK_NAME,
    .tp_basicsize = sizeof(Lock),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "A reentrant lock: `acquire`, `release`, `with`.",
    .tp_new = Lock_new,
    .tp_dealloc = (destructor)Lock_dealloc,
    .tp_methods = Lock_methods,
};

#endif
