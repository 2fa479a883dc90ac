/* What every part uses: names that are looked up, calls, errors that wait for another call, what time it is. */

#ifndef KVSAN_LINES_COMMON_H
#define KVSAN_LINES_COMMON_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>
#include <stdint.h>
#include <string.h>
#ifdef __linux__
#include <time.h>
#endif

#define SETS 16 /* so many sets of an access are done here */

static PyObject *ndarray, *ids_dtype, *as_ids, *device_error, *system_clock, *held_class;
static PyObject *kernel_type, *copy_type;
static PyObject *numbers[SETS + 1], *numbers_tuple;

#define NAMES(X) \
    X(__enter__) X(__exit__) X(dtype) X(record) X(wait) X(query) X(sync) X(drop) \
    X(copy) X(launch) X(alloc) X(free) X(touch) X(plan) X(poll) X(access) X(blocking) X(mark) X(decide) X(settle) \
    X(_release) X(_see_to) X(_kernel) X(_copied) X(settle_up) X(returned) \
    X(targets) X(stream) X(any) X(call) \
    X(done) X(append)
#define DECLARE(n) static PyObject *s_##n;
NAMES(DECLARE)
#undef DECLARE

typedef struct { PyObject *kind, *value, *at; } Error;

static Error error_take(void) {
    Error e = {NULL, NULL, NULL};
#if PY_VERSION_HEX >= 0x030C0000
    e.value = PyErr_GetRaisedException();
#else
    PyErr_Fetch(&e.kind, &e.value, &e.at);
#endif
    return e;
}

static void error_put(Error e) {
#if PY_VERSION_HEX >= 0x030C0000
    PyErr_SetRaisedException(e.value);
#else
    PyErr_Restore(e.kind, e.value, e.at);
#endif
}

/* The exception that is set, as an object; it is set no more. */
static PyObject *error_object(void) {
#if PY_VERSION_HEX >= 0x030C0000
    return PyErr_GetRaisedException();
#else
    PyObject *kind, *value, *at;
    PyErr_Fetch(&kind, &value, &at);
    PyErr_NormalizeException(&kind, &value, &at);
    if (at != NULL)
        PyException_SetTraceback(value, at);
    Py_XDECREF(kind);
    Py_XDECREF(at);
    return value;
#endif
}

/* Sets what `error_object` gave. Takes the reference. */
static void error_again(PyObject *error) {
#if PY_VERSION_HEX >= 0x030C0000
    PyErr_SetRaisedException(error);
#else
    PyErr_Restore(Py_NewRef((PyObject *)Py_TYPE(error)), error, PyException_GetTraceback(error));
#endif
}

#define LONGEST 1000 /* so many contexts are looked at: there may be a circle that others made */

/* The exception that is set was raised while `error` was handled, and wins; as in Python that is its context, at the end
   of its own. Takes the reference. */
static void error_during(PyObject *error) {
    PyObject *newer = error_object(), *at = Py_NewRef(newer), *next;
    int far = 0;
    while (at != error && far++ < LONGEST && (next = PyException_GetContext(at)) != NULL)
        Py_SETREF(at, next);
    if (at != error && far <= LONGEST) {
        PyObject *last = at;  /* no circle: what leads from `error` to the newer one ends there */
        at = Py_NewRef(error);
        for (far = 0; far < LONGEST && (next = PyException_GetContext(at)) != NULL; far++) {
            if (next == newer)
                PyException_SetContext(at, NULL);
            Py_SETREF(at, next);
            if (at == newer)
                break;
        }
        PyException_SetContext(last, Py_NewRef(error));
        Py_DECREF(last);
    }
    Py_DECREF(at);
    Py_DECREF(error);
    error_again(newer);
}

#define CALL(name, ...) \
    PyObject_VectorcallMethod(name, (PyObject *[]){__VA_ARGS__}, \
                              (sizeof((PyObject *[]){__VA_ARGS__}) / sizeof(PyObject *)) | \
                                  PY_VECTORCALL_ARGUMENTS_OFFSET, NULL)

/* What a call gave is not needed: -1 if it raised. */
static inline int done(PyObject *result) {
    if (result == NULL)
        return -1;
    Py_DECREF(result);
    return 0;
}

/* What time it is: a new int, and in `ns` what it is. */
static inline PyObject *time_now(PyObject *clock, long long *ns) {
#ifdef __linux__
    if (clock == system_clock) {
        struct timespec t;  /* time.perf_counter_ns on Linux */
        if (clock_gettime(CLOCK_MONOTONIC, &t) == 0) {
            *ns = (long long)t.tv_sec * 1000000000 + t.tv_nsec;
            return PyLong_FromLongLong(*ns);
        }
    }
#endif
    PyObject *made = PyObject_CallNoArgs(clock);
    if (made != NULL) {
        *ns = PyLong_AsLongLong(made);
        if (*ns == -1 && PyErr_Occurred()) {
            Py_DECREF(made);
            return NULL;
        }
    }
    return made;
}

/* What a line will need, asked for early: misses that wait for one another cost one each, those that do not one in
   all. */
static inline void fetch(const void *at) {
#if defined(__GNUC__) || defined(__clang__)
    __builtin_prefetch(at);
#else
    (void)at;
#endif
}

#endif
