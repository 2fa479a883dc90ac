/* Ids as the engine gives them: whether they are an array of int64 in one piece, and where it lies. */

#ifndef KVSAN_LINES_IDS_H
#define KVSAN_LINES_IDS_H

#include "common.h"

/* The ids of an array as they lie. `view.obj` is NULL if nothing has to be given back. */
typedef struct { Py_buffer view; const int64_t *at; Py_ssize_t count; } Ids;

/* The first fields of a numpy array, as numpy's `ndarraytypes.h` declares them (`PyArrayObject_fields`): its inline
   functions read them in every extension, so they stay. To ask the array takes some ten times as many cache lines.
   `set_up` looks whether they are where they should be; if not, the buffer protocol is asked. */
typedef struct {
    PyObject_HEAD
    char *data;
    int dimensions;
    Py_ssize_t *shape, *strides;
    PyObject *base, *dtype;
} Array;

static int fields_known;

static inline int ids_read(PyObject *given, Ids *out) {
    Array *array = (Array *)given;
    if (array->dtype != ids_dtype || array->dimensions != 1)
        return 0;
    out->count = array->shape[0];
    if (out->count > 1 && array->strides[0] != (Py_ssize_t)sizeof(int64_t))
        return 0;
    out->at = (const int64_t *)array->data;
    out->view.obj = NULL;
    return 1;
}

static int ids_asked(PyObject *given, Ids *out) {
    PyObject *dtype = PyObject_GetAttr(given, s_dtype);
    if (dtype == NULL) {
        PyErr_Clear();
        return 0;
    }
    Py_DECREF(dtype);
    if (dtype != ids_dtype)
        return 0;
    if (PyObject_GetBuffer(given, &out->view, PyBUF_ND) < 0) {
        PyErr_Clear();
        return 0;
    }
    if (out->view.ndim != 1) {
        PyBuffer_Release(&out->view);
        return 0;
    }
    out->at = out->view.buf;
    out->count = out->view.len / (Py_ssize_t)sizeof(int64_t);
    return 1;
}

static inline void ids_done(Ids *ids) {
    if (ids->view.obj != NULL)
        PyBuffer_Release(&ids->view);
}

/* 1: an array of int64 in one piece, as C has them; 0: something else. The array outlives what is done with it. */
static inline int ids_of(PyObject *given, Ids *out) {
    if ((PyObject *)Py_TYPE(given) != ndarray || PY_BIG_ENDIAN)  /* the dtype is little-endian */
        return 0;
    if (!(fields_known ? ids_read(given, out) : ids_asked(given, out)))
        return 0;
    if ((uintptr_t)out->at % sizeof(int64_t) == 0)
        return 1;
    ids_done(out);
    return 0;
}

/* Any ids, made an array first if need be. -1: an exception is set. */
static int ids_any(PyObject *given, Ids *out) {
    if (ids_of(given, out))
        return 0;
    PyObject *made = PyObject_CallOneArg(as_ids, given);
    if (made == NULL)
        return -1;
    int got = PyObject_GetBuffer(made, &out->view, PyBUF_SIMPLE);  /* holds the array from here on */
    Py_DECREF(made);
    if (got < 0)
        return -1;
    out->at = out->view.buf;
    out->count = out->view.len / (Py_ssize_t)sizeof(int64_t);
    return 0;
}

/* Ids as words; whether all of them fit. Compilers make several at once of it only if they are asked to. */
#if defined(__GNUC__) && !defined(__clang__)
__attribute__((optimize("O3")))
#endif
static int narrow(int32_t *restrict to, const int64_t *restrict from, Py_ssize_t count) {
    uint64_t all = 0;
    for (Py_ssize_t at = 0; at < count; at++) {
        to[at] = (int32_t)from[at];
        all |= (uint64_t)from[at];
    }
    return all <= INT32_MAX;
}

/* Whether an array's fields are where `Array` has them: the buffer protocol says the same of `probe`, which is one. */
static int fields_found(PyObject *probe) {
    Py_buffer view;
    if ((PyObject *)Py_TYPE(probe) != ndarray || Py_TYPE(probe)->tp_basicsize < (Py_ssize_t)sizeof(Array) ||
        PyObject_GetBuffer(probe, &view, PyBUF_STRIDES) < 0) {
        PyErr_Clear();
        return 0;
    }
    Array *array = (Array *)probe;
    int same = array->data == view.buf && array->dimensions == view.ndim && view.ndim == 1 && array->shape != NULL &&
               array->strides != NULL && array->dtype == ids_dtype;
    same = same && array->shape[0] == view.shape[0] && array->strides[0] == view.strides[0];
    PyBuffer_Release(&view);
    return same;
}

#endif
