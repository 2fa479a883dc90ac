/* Pool: what `kvsan.runtime.plans._Pool` is, on plain memory: when a block's copies were decided, and it was
   allocated. */

#ifndef KVSAN_LINES_POOL_H
#define KVSAN_LINES_POOL_H

#include "ids.h"

typedef struct { PyObject *name; int64_t *decided; } Work;

typedef struct {
    PyObject_HEAD
    Py_ssize_t size;
    int64_t *born;
    int64_t youngest;
    Py_ssize_t works;
    Work *work;
} Pool;

static PyTypeObject PoolType;

static int64_t *grown(int64_t *old, Py_ssize_t size, Py_ssize_t more) {
    int64_t *made = PyMem_Realloc(old, (size_t)(size + more ? size + more : 1) * sizeof(int64_t));
    if (made == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    memset(made + size, 0, (size_t)more * sizeof(int64_t));
    return made;
}

#define MOST_BLOCKS (1 << 24) /* plans.MOST */

/* Room for all of these that can be blocks, as in Python twice what is needed rather than too little. */
static int pool_room(Pool *self, const Ids *ids) {
    int64_t most = -1;
    for (Py_ssize_t at = 0; at < ids->count; at++)
        if (ids->at[at] > most && ids->at[at] < MOST_BLOCKS)
            most = ids->at[at];
    if (most < self->size)
        return 0;
    Py_ssize_t more = (Py_ssize_t)most + 1;
    int64_t *made = grown(self->born, self->size, more);
    if (made == NULL)
        return -1;
    self->born = made;
    for (Py_ssize_t at = 0; at < self->works; at++) {
        made = grown(self->work[at].decided, self->size, more);
        if (made == NULL)
            return -1;
        self->work[at].decided = made;
    }
    self->size += more;
    return 0;
}

static inline int in_pool(const Pool *self, int64_t block) { return (uint64_t)block < (uint64_t)self->size; }

/* The decisions of a name; NULL without an exception if there are none, unless they are to be made. */
static int64_t *pool_work(Pool *self, PyObject *name, int make) {
    for (Py_ssize_t at = 0; at < self->works; at++)
        if (self->work[at].name == name)
            return self->work[at].decided;
    for (Py_ssize_t at = 0; at < self->works; at++) {
        PyObject *known = Py_NewRef(self->work[at].name);  /* a comparison may run code that comes back here */
        int same = PyObject_RichCompareBool(known, name, Py_EQ);
        Py_DECREF(known);
        if (same < 0)
            return NULL;
        if (same)
            return self->work[at].decided;
    }
    if (!make)
        return NULL;
    int64_t *made = grown(NULL, 0, self->size);
    if (made == NULL)
        return NULL;
    Work *works = PyMem_Realloc(self->work, (size_t)(self->works + 1) * sizeof(Work));
    if (works == NULL) {
        PyMem_Free(made);
        PyErr_NoMemory();
        return NULL;
    }
    self->work = works;
    works[self->works].name = Py_NewRef(name);
    works[self->works++].decided = made;
    return made;
}

/* Puts the time at these blocks; `decided` NULL: at `born`. */
static int pool_fill(Pool *self, PyObject *decided, const Ids *ids, int64_t time) {
    int64_t *times = self->born;
    if (decided != NULL && (times = pool_work(self, decided, 1)) == NULL)
        return -1;
    Py_ssize_t at = 0;
    while (at < ids->count && in_pool(self, ids->at[at]))
        times[ids->at[at++]] = time;
    if (at == ids->count)
        return 0;
    int counted = 1;  /* from the end, as numpy does */
    for (at = 0; at < ids->count; at++)
        counted &= ids->at[at] < self->size && ids->at[at] >= -self->size;
    if (!counted) {
        if (pool_room(self, ids) < 0 || (decided != NULL && (times = pool_work(self, decided, 1)) == NULL))
            return -1;
        if (decided == NULL)
            times = self->born;
    }
    for (at = 0; at < ids->count; at++) {
        int64_t block = counted && ids->at[at] < 0 ? ids->at[at] + self->size : ids->at[at];
        if (in_pool(self, block))
            times[block] = time;
    }
    return 0;
}

static int pool_alloc_ids(Pool *self, const Ids *ids, int64_t time) {
    self->youngest = time;
    return pool_fill(self, NULL, ids, time);
}

static int pool_decide_ids(Pool *self, const Ids *ids, PyObject *work, int64_t time) {
    return pool_fill(self, work, ids, time);
}

/* When all of them were decided; -1: not at once; -2: a block that is not there, or an exception is set. */
static int64_t pool_at_once(Pool *self, const Ids *ids, PyObject *work) {
    int64_t *decided = pool_work(self, work, 0);
    if (decided == NULL)
        return PyErr_Occurred() ? -2 : 0;
    for (Py_ssize_t at = 0; at < ids->count; at++) {
        if (!in_pool(self, ids->at[at]))
            return -2;
        if (decided[ids->at[at]] != decided[ids->at[0]])
            return -1;
    }
    return ids->count ? decided[ids->at[0]] : 0;
}

/* 1: one of them was allocated after that; 0: none; -1: a block that is not there. */
static int pool_any_after(Pool *self, const Ids *ids, int64_t time) {
    if (self->youngest <= time)
        return 0;
    for (Py_ssize_t at = 0; at < ids->count; at++) {
        if (!in_pool(self, ids->at[at]))
            return -1;
        if (self->born[ids->at[at]] > time)
            return 1;
    }
    return 0;
}

static PyObject *Pool_new(PyTypeObject *type, PyObject *args, PyObject *more) {
    Py_ssize_t size;
    static char *names[] = {"size", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, more, "n", names, &size))
        return NULL;
    if (size < 0)
        return PyErr_Format(PyExc_ValueError, "a pool of %zd blocks", size);
    Pool *self = (Pool *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->born = grown(NULL, 0, size);
    if (self->born == NULL) {
        Py_DECREF(self);
        return NULL;
    }
    self->size = size;
    return (PyObject *)self;
}

static void Pool_dealloc(Pool *self) {
    PyTypeObject *type = Py_TYPE(self);
    for (Py_ssize_t at = 0; at < self->works; at++) {
        Py_DECREF(self->work[at].name);
        PyMem_Free(self->work[at].decided);
    }
    PyMem_Free(self->work);
    PyMem_Free(self->born);
    type->tp_free(self);
}

static PyObject *Pool_alloc(Pool *self, PyObject *args) {
    PyObject *blocks;
    long long time;
    Ids ids;
    if (!PyArg_ParseTuple(args, "OL", &blocks, &time) || ids_any(blocks, &ids) < 0)
        return NULL;
    int result = pool_alloc_ids(self, &ids, time);
    ids_done(&ids);
    return result < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *Pool_decide(Pool *self, PyObject *args) {
    PyObject *blocks, *work;
    long long time;
    Ids ids;
    if (!PyArg_ParseTuple(args, "OOL", &blocks, &work, &time) || ids_any(blocks, &ids) < 0)
        return NULL;
    int result = pool_decide_ids(self, &ids, work, time);
    ids_done(&ids);
    return result < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *Pool_at_once(Pool *self, PyObject *args) {
    PyObject *blocks, *work;
    Ids ids;
    if (!PyArg_ParseTuple(args, "OO", &blocks, &work) || ids_any(blocks, &ids) < 0)
        return NULL;
    int64_t time = pool_at_once(self, &ids, work);
    ids_done(&ids);
    if (time == -2 && PyErr_Occurred())
        return NULL;
    return time < 0 ? Py_NewRef(Py_None) : PyLong_FromLongLong(time);
}

static PyObject *Pool_any_after(Pool *self, PyObject *args) {
    PyObject *blocks;
    long long time;
    Ids ids;
    if (!PyArg_ParseTuple(args, "LO", &time, &blocks) || ids_any(blocks, &ids) < 0)
        return NULL;
    int found = pool_any_after(self, &ids, time);
    ids_done(&ids);
    return PyBool_FromLong(found);  /* one that is not there: a closer look */
}

static PyObject *Pool_times(Pool *self, PyObject *args) {
    PyObject *blocks, *work, *pair = NULL, *first = NULL, *second = NULL;
    Ids ids;
    if (!PyArg_ParseTuple(args, "OO", &blocks, &work) || ids_any(blocks, &ids) < 0)
        return NULL;
    int64_t *decided = pool_work(self, work, 0);
    if (decided == NULL && PyErr_Occurred())
        goto end;
    int counted = 1;
    for (Py_ssize_t at = 0; at < ids.count; at++)
        counted &= ids.at[at] < self->size && ids.at[at] >= -self->size;
    first = PyBytes_FromStringAndSize(NULL, ids.count * (Py_ssize_t)sizeof(int64_t));
    second = PyBytes_FromStringAndSize(NULL, ids.count * (Py_ssize_t)sizeof(int64_t));
    if (first == NULL || second == NULL)
        goto end;
    for (Py_ssize_t at = 0; at < ids.count; at++) {
        int64_t block = counted && ids.at[at] < 0 ? ids.at[at] + self->size : ids.at[at];
        int64_t when[2] = {0, 0};  /* of one that is not there: never */
        if (in_pool(self, block)) {
            when[0] = decided == NULL ? 0 : decided[block];
            when[1] = self->born[block];
        }
        memcpy(PyBytes_AS_STRING(first) + at * 8, &when[0], 8);
        memcpy(PyBytes_AS_STRING(second) + at * 8, &when[1], 8);
    }
    pair = PyTuple_Pack(2, first, second);
end:
    Py_XDECREF(first);
    Py_XDECREF(second);
    ids_done(&ids);
    return pair;
}

static PyMethodDef Pool_methods[] = {
    {"alloc", (PyCFunction)Pool_alloc, METH_VARARGS, "alloc(blocks, time)"},
    {"decide", (PyCFunction)Pool_decide, METH_VARARGS, "decide(blocks, work, time)"},
    {"at_once", (PyCFunction)Pool_at_once, METH_VARARGS, "at_once(blocks, work): a time, or None: not at once"},
    {"any_after", (PyCFunction)Pool_any_after, METH_VARARGS, "any_after(time, blocks)"},
    {"times_of", (PyCFunction)Pool_times, METH_VARARGS, "times_of(blocks, work): bytes of both sorts of times"},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject PoolType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "kvsan.runtime._lines.Pool",
    .tp_basicsize = sizeof(Pool),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_doc = "Pool(size): by block, when it was allocated and its copies were decided. See plans.py.",
    .tp_new = Pool_new,
    .tp_dealloc = (destructor)Pool_dealloc,
    .tp_methods = Pool_methods,
};

#endif
