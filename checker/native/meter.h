/* For benchmarks alone (CFLAGS=-DKVSAN_METER): what each hook took, less the engine's own function inside it. */

#ifndef KVSAN_METER_H
#define KVSAN_METER_H

#define HOOKS_METERED 256

static Hook *hooks_metered[HOOKS_METERED];
static int hooks_count;

static long long meter_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static PyObject *hook_original(Hook *self, PyObject *const *args, size_t count, PyObject *kwnames)
{
    long long began = meter_now();
    PyObject *result = PyObject_Vectorcall(self->original, args, count, kwnames);
    self->spent -= meter_now() - began;
    return result;
}

static PyObject *hook_metered(PyObject *callable, PyObject *const *args, size_t count, PyObject *kwnames)
{
    Hook *self = (Hook *)callable;
    long long began = meter_now();
    PyObject *result = self->metered(callable, args, count, kwnames);
    self->spent += meter_now() - began;
    self->calls++;
    return result;
}

/* The hook is there for good. */
static void meter_hook(Hook *self)
{
    if (hooks_count == HOOKS_METERED)
        return;
    hooks_metered[hooks_count++] = (Hook *)Py_NewRef((PyObject *)self);
    self->metered = self->call;
    self->call = hook_metered;
}

/* `[(original, calls, ns), …]` since the last time. */
static PyObject *meter_read(PyObject *module, PyObject *unused)
{
    PyObject *rows = PyList_New(0);
    int i;
    (void)module;
    (void)unused;
    for (i = 0; rows != NULL && i < hooks_count; i++) {
        Hook *hook = hooks_metered[i];
        PyObject *row = Py_BuildValue("(OLL)", hook->original, hook->calls, hook->spent);
        hook->calls = hook->spent = 0;
        if (row == NULL || PyList_Append(rows, row) < 0)
            Py_CLEAR(rows);
        Py_XDECREF(row);
    }
    return rows;
}

#endif
