/* Debug mode's lines without Python code between an engine's call and what is kept of it.

   Between an engine's own work each line finds cold caches: what it costs is how many cache lines of code, objects and
   dicts it touches, and a Python function touches some hundred (benchmarks/bench_lines.py). So here is, in one function
   a call, what `kvsan.runtime.tracing._TracedHost` does: the lock, the engine's own call, the line. The Python code is
   the reference and stays: whatever is out of the ordinary (ids that are no array of int64, a full segment, a log that
   has ended, a kernel that raises) is handed to it, and it does all of it where there is no extension.

   - Host: a `kvsan.runtime.device.Host` around another one. Where its lines go is one of three:
     LogState, the state of a `kvsan.runtime.binary.Log`: appended to its segment's list, words to its words;
     Queue, a recorder of the checker: a tuple is handed to its `add`, which is C too (`_hot`);
     any other sink: its methods.
   - Segment, Held, LogState: what the log's Python classes of these names are made of, so that both find it.
   - Pool: what `kvsan.runtime.plans._Pool` is, on plain memory.

   Relies on: the GIL (a build without it takes it when this is loaded, since it says nothing else); the numbers of kinds
   of lines in binary.py and attach/lines.py, whose drift VERSION is for and the tests look at. Does not cover: put, get
   and work, which are Python's. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>
#include <stdint.h>
#include <string.h>
#ifdef __linux__
#include <time.h>
#endif

#ifndef KVSAN_SOURCE
#define KVSAN_SOURCE ""
#endif

#define VERSION 1

#define FEW 512   /* binary.FEW */
#define WIDTH 5   /* binary.WIDTH */
#define START 11  /* binary.START */
#define SETS 16   /* so many sets of an access are done here */

enum { L_ACCESS, L_RECORD, L_WAIT, L_SYNC, L_SYNC_STREAM, L_SYNC_DEVICE, L_NO, L_YES, L_PUT, L_GET, L_ALLOC, L_FREE,
       L_TOUCH, L_DROP, L_KINDS };  /* binary.py */
enum { Q_ACCESS, Q_RECORD, Q_WAIT, Q_SYNC, Q_POLL, Q_PUT, Q_GET, Q_ALLOC, Q_FREE, Q_TOUCH, Q_DROP,
       Q_HELD, Q_SETTLED };  /* attach/lines.py */

/* ── what is set up once ─────────────────────────────────────────────────────────────────────────────────────────── */

static PyObject *ndarray, *ids_dtype, *as_ids, *device_error, *system_clock, *held_class, *rlock_type;
static PyObject *kernel_type, *copy_type;
static PyObject *numbers[SETS + 1], *numbers_tuple;

#define NAMES(X) \
    X(acquire) X(release) X(__enter__) X(__exit__) X(dtype) X(record) X(wait) X(query) X(sync) X(drop) \
    X(copy) X(launch) X(alloc) X(free) X(touch) X(plan) X(poll) X(access) X(blocking) X(mark) X(decide) X(settle) \
    X(_release) X(_see_to) X(_kernel) X(_copied) X(settle_up) X(returned) \
    X(targets) X(stream) X(any) X(call) \
    X(done) X(append)
#define DECLARE(n) static PyObject *s_##n;
NAMES(DECLARE)

/* ── exceptions across other calls ───────────────────────────────────────────────────────────────────────────────── */

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

/* ── attributes of other code's objects ──────────────────────────────────────────────────────────────────────────── */

/* An attribute that a type keeps in its objects' own memory (`__slots__`, or a member in C) is read there. */
typedef struct { PyObject *name; Py_ssize_t offset; int kind; } Slot;

static int slot_find(Slot *slot, PyTypeObject *type, const char *name) {
    Py_XSETREF(slot->name, PyUnicode_InternFromString(name));
    slot->offset = -1;
    slot->kind = 0;
    if (slot->name == NULL)
        return -1;
    PyObject *found = PyObject_GetAttr((PyObject *)type, slot->name);
    if (found == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_AttributeError))
            return -1;
        PyErr_Clear();
        return 0;
    }
    if (Py_TYPE(found) == &PyMemberDescr_Type) {
        PyMemberDef *member = ((PyMemberDescrObject *)found)->d_member;
        int kind = member->type;
        if (kind == T_OBJECT || kind == T_OBJECT_EX || kind == T_PYSSIZET || kind == T_LONGLONG || kind == T_BOOL) {
            slot->offset = member->offset;
            slot->kind = kind;
        }
    }
    Py_DECREF(found);
    return 0;
}

#define AT(slot, object, type) (*(type *)((char *)(object) + (slot)->offset))

static inline int slot_holds(const Slot *slot) { return slot->kind == T_OBJECT || slot->kind == T_OBJECT_EX; }

static inline PyObject *slot_get(const Slot *slot, PyObject *object) {
    if (slot_holds(slot)) {
        PyObject *found = AT(slot, object, PyObject *);
        if (found != NULL)
            return Py_NewRef(found);
    }
    return PyObject_GetAttr(object, slot->name);
}

/* As a number; -1 with an exception set if it is none. */
static inline long long slot_number(const Slot *slot, PyObject *object) {
    if (slot->kind == T_PYSSIZET)
        return AT(slot, object, Py_ssize_t);
    if (slot->kind == T_LONGLONG)
        return AT(slot, object, long long);
    PyObject *found = slot_get(slot, object);
    if (found == NULL)
        return -1;
    long long number = PyLong_AsLongLong(found);
    Py_DECREF(found);
    return number;
}

static inline int slot_put_number(const Slot *slot, PyObject *object, long long number) {
    if (slot->kind == T_PYSSIZET) {
        AT(slot, object, Py_ssize_t) = (Py_ssize_t)number;
        return 0;
    }
    if (slot->kind == T_LONGLONG) {
        AT(slot, object, long long) = number;
        return 0;
    }
    PyObject *made = PyLong_FromLongLong(number);
    if (made == NULL)
        return -1;
    int done = PyObject_SetAttr(object, slot->name, made);
    Py_DECREF(made);
    return done;
}

static inline int slot_true(const Slot *slot, PyObject *object) {
    if (slot->kind == T_BOOL)
        return AT(slot, object, char) != 0;
    PyObject *found = slot_get(slot, object);
    if (found == NULL)
        return -1;
    int truth = found == Py_True ? 1 : found == Py_False ? 0 : PyObject_IsTrue(found);
    Py_DECREF(found);
    return truth;
}

/* What a line will need, asked for early: misses that wait for one another cost one each, those that do not one in all. */
static inline void fetch(const void *at) {
#if defined(__GNUC__) || defined(__clang__)
    __builtin_prefetch(at);
#else
    (void)at;
#endif
}

/* ── small things ────────────────────────────────────────────────────────────────────────────────────────────────── */

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

/* ── Pool ────────────────────────────────────────────────────────────────────────────────────────────────────────── */

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

/* Room for all of these blocks, as in Python twice what is needed rather than too little. */
static int pool_room(Pool *self, const Ids *ids) {
    int64_t most = -1;
    for (Py_ssize_t at = 0; at < ids->count; at++) {
        if (ids->at[at] > most)
            most = ids->at[at];
        if (ids->at[at] < 0) {
            PyErr_Format(PyExc_IndexError, "block %lld: accepted: 0 and more", (long long)ids->at[at]);
            return -1;
        }
    }
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
        int same = PyObject_RichCompareBool(self->work[at].name, name, Py_EQ);
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

static int pool_fill(Pool *self, int64_t *Pool_at, const Ids *ids, int64_t time) {
    for (Py_ssize_t at = 0; at < ids->count; at++) {
        if (!in_pool(self, ids->at[at]))
            return 0;
        Pool_at[ids->at[at]] = time;
    }
    return 1;
}

static int pool_alloc_ids(Pool *self, const Ids *ids, int64_t time) {
    self->youngest = time;
    if (pool_fill(self, self->born, ids, time))
        return 0;
    if (pool_room(self, ids) < 0)
        return -1;
    pool_fill(self, self->born, ids, time);
    return 0;
}

static int pool_decide_ids(Pool *self, const Ids *ids, PyObject *work, int64_t time) {
    int64_t *decided = pool_work(self, work, 1);
    if (decided == NULL)
        return -1;
    if (pool_fill(self, decided, ids, time))
        return 0;
    if (pool_room(self, ids) < 0)
        return -1;
    pool_fill(self, pool_work(self, work, 1), ids, time);
    return 0;
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
    if (pool_room(self, &ids) < 0)
        goto end;
    int64_t *decided = pool_work(self, work, 0);
    if (decided == NULL && PyErr_Occurred())
        goto end;
    first = PyBytes_FromStringAndSize(NULL, ids.count * (Py_ssize_t)sizeof(int64_t));
    second = PyBytes_FromStringAndSize(NULL, ids.count * (Py_ssize_t)sizeof(int64_t));
    if (first == NULL || second == NULL)
        goto end;
    for (Py_ssize_t at = 0; at < ids.count; at++) {
        int64_t when = decided == NULL ? 0 : decided[ids.at[at]];
        memcpy(PyBytes_AS_STRING(first) + at * 8, &when, 8);
        memcpy(PyBytes_AS_STRING(second) + at * 8, &self->born[ids.at[at]], 8);
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

/* ── the log's parts ─────────────────────────────────────────────────────────────────────────────────────────────── */

typedef struct {
    PyObject_HEAD
    PyObject *lines;
    Py_ssize_t extra, used, size, out;
    PyObject *words;
    Py_buffer view;  /* of the words; view.obj is NULL: none */
} Segment;

static int Segment_traverse(Segment *self, visitproc visit, void *arg) {
    Py_VISIT(self->lines);
    Py_VISIT(self->words);
    return 0;
}

static int Segment_clear(Segment *self) {
    Py_CLEAR(self->lines);
    PyBuffer_Release(&self->view);
    Py_CLEAR(self->words);
    return 0;
}

static void Segment_dealloc(Segment *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    Segment_clear(self);
    type->tp_free(self);
}

static PyObject *Segment_words(Segment *self, void *Py_UNUSED(more)) {
    if (self->words == NULL) {
        PyErr_SetString(PyExc_AttributeError, "words");
        return NULL;
    }
    return Py_NewRef(self->words);
}

static int Segment_set_words(Segment *self, PyObject *given, void *Py_UNUSED(more)) {
    Py_buffer view;
    if (given == NULL) {
        PyErr_SetString(PyExc_AttributeError, "words");
        return -1;
    }
    if (PyObject_GetBuffer(given, &view, PyBUF_WRITABLE) < 0)
        return -1;
    PyBuffer_Release(&self->view);
    self->view = view;
    Py_XSETREF(self->words, Py_NewRef(given));
    return 0;
}

static PyMemberDef Segment_members[] = {
    {"lines", T_OBJECT_EX, offsetof(Segment, lines), 0, NULL},
    {"extra", T_PYSSIZET, offsetof(Segment, extra), 0, NULL},
    {"used", T_PYSSIZET, offsetof(Segment, used), 0, NULL},
    {"size", T_PYSSIZET, offsetof(Segment, size), 0, NULL},
    {"out", T_PYSSIZET, offsetof(Segment, out), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef Segment_getset[] = {
    {"words", (getter)Segment_words, (setter)Segment_set_words, "An array of int32.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyTypeObject SegmentType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "kvsan.runtime._lines.Segment",
    .tp_basicsize = sizeof(Segment),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "What a piece of the log's ring holds.",
    .tp_new = PyType_GenericNew,
    .tp_dealloc = (destructor)Segment_dealloc,
    .tp_traverse = (traverseproc)Segment_traverse,
    .tp_clear = (inquiry)Segment_clear,
    .tp_members = Segment_members,
    .tp_getset = Segment_getset,
};

typedef struct {
    PyObject_HEAD
    Py_ssize_t at;
    PyObject *segment;
} Held;

static int Held_traverse(Held *self, visitproc visit, void *arg) {
    Py_VISIT(self->segment);
    return 0;
}

static int Held_clear(Held *self) {
    Py_CLEAR(self->segment);
    return 0;
}

static void Held_dealloc(Held *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    Held_clear(self);
    type->tp_free(self);
}

static PyMemberDef Held_members[] = {
    {"at", T_PYSSIZET, offsetof(Held, at), 0, NULL},
    {"segment", T_OBJECT, offsetof(Held, segment), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject HeldType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "kvsan.runtime._lines.Held",
    .tp_basicsize = sizeof(Held),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "Where a blocking call's line is.",
    .tp_new = PyType_GenericNew,
    .tp_dealloc = (destructor)Held_dealloc,
    .tp_traverse = (traverseproc)Held_traverse,
    .tp_clear = (inquiry)Held_clear,
    .tp_members = Held_members,
};

typedef struct {
    PyObject_HEAD
    PyObject *segment;
    long long due;
    Py_ssize_t most, before;
    PyObject *now, *lock, *fault, *out, *full;
} LogState;

static int LogState_traverse(LogState *self, visitproc visit, void *arg) {
    Py_VISIT(self->segment);
    Py_VISIT(self->now);
    Py_VISIT(self->lock);
    Py_VISIT(self->fault);
    Py_VISIT(self->out);
    Py_VISIT(self->full);
    return 0;
}

static int LogState_clear(LogState *self) {
    Py_CLEAR(self->segment);
    Py_CLEAR(self->now);
    Py_CLEAR(self->lock);
    Py_CLEAR(self->fault);
    Py_CLEAR(self->out);
    Py_CLEAR(self->full);
    return 0;
}

static void LogState_dealloc(LogState *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    LogState_clear(self);
    type->tp_free(self);
}

static PyMemberDef LogState_members[] = {
    {"_segment", T_OBJECT_EX, offsetof(LogState, segment), 0, NULL},
    {"_due", T_LONGLONG, offsetof(LogState, due), 0, NULL},
    {"_most", T_PYSSIZET, offsetof(LogState, most), 0, NULL},
    {"_before", T_PYSSIZET, offsetof(LogState, before), 0, NULL},
    {"now", T_OBJECT_EX, offsetof(LogState, now), 0, NULL},
    {"lock", T_OBJECT_EX, offsetof(LogState, lock), 0, NULL},
    {"fault", T_OBJECT, offsetof(LogState, fault), 0, NULL},
    {"_out", T_OBJECT_EX, offsetof(LogState, out), 0, NULL},
    {"_full", T_OBJECT_EX, offsetof(LogState, full), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject LogStateType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "kvsan.runtime._lines.LogState",
    .tp_basicsize = sizeof(LogState),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "What a line touches of a log.",
    .tp_new = PyType_GenericNew,
    .tp_dealloc = (destructor)LogState_dealloc,
    .tp_traverse = (traverseproc)LogState_traverse,
    .tp_clear = (inquiry)LogState_clear,
    .tp_members = LogState_members,
};

/* The segment of a log, or NULL with an exception. Borrowed: nobody changes it while a line is made. */
static Segment *log_segment(LogState *log) {
    PyObject *found = log->segment;
    if (found != NULL && PyObject_TypeCheck(found, &SegmentType)) {
        Segment *segment = (Segment *)found;
        if (segment->lines != NULL && PyList_CheckExact(segment->lines) && log->now != NULL)
            return segment;
    }
    PyErr_SetString(PyExc_TypeError, "a log without a segment");
    return NULL;
}

/* Puts items into the segment. They are borrowed. */
static int log_items(Segment *segment, PyObject **items, Py_ssize_t count) {
    PyObject *lines = segment->lines;
    Py_ssize_t before = PyList_GET_SIZE(lines);
    for (Py_ssize_t at = 0; at < count; at++)
        if (PyList_Append(lines, items[at]) < 0) {
            Error e = error_take();
            if (PyList_SetSlice(lines, before, PY_SSIZE_T_MAX, NULL) < 0)
                PyErr_Clear();
            error_put(e);
            return -1;
        }
    return 0;
}

/* A line was added at that time: is it time for something else? */
static inline int log_after(LogState *log, Segment *segment, PyObject *t, long long ns) {
    if (ns <= log->due && PyList_GET_SIZE(segment->lines) < log->most)
        return 0;
    return done(CALL(s__see_to, (PyObject *)log, t));
}

static int log_order(LogState *log, int kind, PyObject *by, PyObject *on, PyObject *text) {
    Segment *segment = log_segment(log);
    long long ns;
    PyObject *t = segment == NULL ? NULL : time_now(log->now, &ns);
    if (t == NULL)
        return -1;
    PyObject *items[WIDTH] = {numbers[kind], by, on, text, t};
    int result = log_items(segment, items, WIDTH);
    if (result == 0)
        result = log_after(log, segment, t, ns);
    Py_DECREF(t);
    return result;
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

/* A pool's ids as two items, new references. 1: done, or there are none; 0: something else, or no room; -1: raised. */
static int log_set(Segment *segment, Py_ssize_t *used, PyObject *pool, PyObject *given, PyObject **items,
                   Py_ssize_t *count) {
    Ids ids;
    if (!ids_of(given, &ids))
        return 0;
    PyObject *found;
    if (ids.count == 0) {
        ids_done(&ids);
        return 1;
    }
    if (ids.count <= FEW)
        found = PyBytes_FromStringAndSize((const char *)ids.at, ids.count * (Py_ssize_t)sizeof(int64_t));
    else {
        if (segment->view.obj == NULL || *used + ids.count > segment->size ||
            *used + ids.count > segment->view.len / (Py_ssize_t)sizeof(int32_t)) {
            ids_done(&ids);
            return 0;
        }
        narrow((int32_t *)segment->view.buf + *used, ids.at, ids.count);
        *used += ids.count;
        found = PyLong_FromSsize_t(ids.count);
    }
    ids_done(&ids);
    if (found == NULL)
        return -1;
    items[(*count)++] = Py_NewRef(pool);
    items[(*count)++] = found;
    return 1;
}

/* 1: done; 0: the log's own method has to do it; -1: raised. */
static int log_life(LogState *log, int kind, PyObject *by, PyObject *pool, PyObject *blocks) {
    Segment *segment = log_segment(log);
    if (segment == NULL)
        return -1;
    PyObject *set[2];
    Py_ssize_t used = segment->used, count = 0;
    int result = log_set(segment, &used, pool, blocks, set, &count);
    if (result <= 0 || count == 0)
        return result;
    long long ns;
    PyObject *t = time_now(log->now, &ns);
    if (t != NULL) {
        PyObject *items[WIDTH] = {numbers[kind], by, pool, set[1], t};
        result = log_items(segment, items, WIDTH);
        if (result == 0) {
            segment->used = used;
            result = log_after(log, segment, t, ns);
        }
        Py_DECREF(t);
    }
    Py_DECREF(set[0]);
    Py_DECREF(set[1]);
    return t == NULL || result < 0 ? -1 : 1;
}

/* The same. `reads` and `writes` are dicts, or `reads` NULL: then one pair of pool and ids each. */
static int log_access(LogState *log, PyObject *label, PyObject *by, PyObject *on, PyObject *reads, PyObject *writes,
                      PyObject *const *pairs, int flags, PyObject *planned, PyObject *step, PyObject *site) {
    Segment *segment = log_segment(log);
    if (segment == NULL)
        return -1;
    PyObject *items[START + 4 * SETS], *t = NULL;
    Py_ssize_t used = segment->used, count = START, middle = START, at;
    int result = 1;
    for (int side = 0; side < 2 && result > 0; side++) {
        if (reads == NULL)
            result = log_set(segment, &used, pairs[2 * side], pairs[2 * side + 1], items, &count);
        else {
            PyObject *sets = side ? writes : reads, *pool, *ids;
            Py_ssize_t place = 0;
            if (!PyDict_CheckExact(sets) || PyDict_GET_SIZE(sets) > SETS)
                result = 0;
            while (result > 0 && PyDict_Next(sets, &place, &pool, &ids))
                result = log_set(segment, &used, pool, ids, items, &count);
        }
        if (side == 0)
            middle = count;
    }
    long long ns = 0;
    if (result > 0 && count > START) {
        t = time_now(log->now, &ns);
        if (t == NULL)
            result = -1;
        else {
            PyObject *head[START] = {numbers[L_ACCESS], by, on, label, t, numbers[flags], planned, step, site,
                                     numbers[(middle - START) / 2], numbers[(count - middle) / 2]};
            memcpy(items, head, sizeof(head));
            result = log_items(segment, items, count) < 0 ? -1 : 1;
        }
        if (result > 0) {
            segment->used = used;
            segment->extra += count - WIDTH;
            if (log_after(log, segment, t, ns) < 0)
                result = -1;
        }
        Py_XDECREF(t);
    }
    for (at = START; at < count; at++)
        Py_DECREF(items[at]);
    return result;
}

/* ── Queue ───────────────────────────────────────────────────────────────────────────────────────────────────────── */

typedef struct {
    PyObject_HEAD
    PyObject *recorder, *failed;
    PyObject *add, *hold;  /* the recorder's methods */
    long long most;
    Slot on, now, size, count, sealed, waiting, beside, index, done, told;
} Queue;

static int Queue_traverse(Queue *self, visitproc visit, void *arg) {
    Py_VISIT(self->recorder);
    Py_VISIT(self->failed);
    Py_VISIT(self->add);
    Py_VISIT(self->hold);
    return 0;
}

static int Queue_clear(Queue *self) {
    Py_CLEAR(self->recorder);
    Py_CLEAR(self->failed);
    Py_CLEAR(self->add);
    Py_CLEAR(self->hold);
    return 0;
}

static void Queue_dealloc(Queue *self) {
    PyObject_GC_UnTrack(self);
    Queue_clear(self);
    Slot *slots[] = {&self->on,      &self->now,    &self->size,  &self->count, &self->sealed,
                     &self->waiting, &self->beside, &self->index, &self->done,  &self->told};
    for (size_t at = 0; at < sizeof(slots) / sizeof(*slots); at++)
        Py_XDECREF(slots[at]->name);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *Queue_new(PyTypeObject *type, PyObject *args, PyObject *more) {
    PyObject *recorder, *failed, *held;
    long long most;
    static char *names[] = {"recorder", "failed", "held", "most", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, more, "OOO!L", names, &recorder, &failed, &PyType_Type, &held, &most))
        return NULL;
    Queue *self = (Queue *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->recorder = Py_NewRef(recorder);
    self->failed = Py_NewRef(failed);
    self->most = most;
    PyTypeObject *kind = Py_TYPE(recorder), *line = (PyTypeObject *)held;
    if ((self->add = PyObject_GetAttrString(recorder, "add")) == NULL ||
        (self->hold = PyObject_GetAttrString(recorder, "hold")) == NULL || slot_find(&self->on, kind, "on") < 0 ||
        slot_find(&self->now, kind, "now") < 0 || slot_find(&self->size, kind, "_size") < 0 ||
        slot_find(&self->count, kind, "_count") < 0 || slot_find(&self->sealed, kind, "_sealed") < 0 ||
        slot_find(&self->waiting, kind, "_queue") < 0 || slot_find(&self->beside, kind, "_beside") < 0 ||
        slot_find(&self->index, line, "index") < 0 || slot_find(&self->done, line, "done") < 0 || slot_find(&self->told, line, "told") < 0)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static PyTypeObject QueueType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "kvsan.runtime._lines.Queue",
    .tp_basicsize = sizeof(Queue),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "Queue(recorder, failed, held, most): lines go to the checker's recorder, to its `add`. `failed` hears "
              "(where, exception); `held` is the class of a blocking call's line; at `most` bytes of ids lines are "
              "handed on.",
    .tp_new = Queue_new,
    .tp_dealloc = (destructor)Queue_dealloc,
    .tp_traverse = (traverseproc)Queue_traverse,
    .tp_clear = (inquiry)Queue_clear,
};

static int queue_settle_up(Queue *self) { return done(CALL(s_settle_up, self->recorder)); }

/* An exception is set: 0 if it is kvsan's own affair, -1 if it is the engine's. */
static int queue_failed(Queue *self, const char *where) {
    PyObject *error = error_object(), *text = PyUnicode_FromString(where);
    int result = -1;
    if (text != NULL) {
        PyObject *args[] = {text, error};
        result = done(PyObject_Vectorcall(self->failed, args, 2, NULL));
    }
    Py_XDECREF(text);
    Py_XDECREF(error);
    return result;
}

/* Takes the reference. */
static int queue_add(Queue *self, PyObject *line) {
    if (line == NULL)
        return -1;
    int result = done(PyObject_CallOneArg(self->add, line));
    Py_DECREF(line);
    return result;
}

static PyObject *queue_time(Queue *self) {
    PyObject *clock = slot_get(&self->now, self->recorder);
    if (clock == NULL)
        return NULL;
    long long ns;
    PyObject *t = time_now(clock, &ns);
    Py_DECREF(clock);
    return t;
}

/* A tuple of borrowed things, the last but `t`, which is taken. */
static PyObject *line_of(PyObject *const *items, Py_ssize_t count, PyObject *t) {
    PyObject *made = t == NULL ? NULL : PyTuple_New(count + 1);
    if (made == NULL) {
        Py_XDECREF(t);
        return NULL;
    }
    for (Py_ssize_t at = 0; at < count; at++)
        PyTuple_SET_ITEM(made, at, Py_NewRef(items[at]));
    PyTuple_SET_ITEM(made, count, t);
    return made;
}

/* `on` is the third of a line that has one; `answer` a poll's. */
static int queue_order(Queue *self, int code, const char *where, PyObject *by, PyObject *on, PyObject *event,
                       PyObject *answer) {
    int on_now = slot_true(&self->on, self->recorder);
    if (on_now <= 0)
        return on_now;
    PyObject *items[4] = {numbers[code], by, on != NULL ? on : event, on != NULL ? event : answer};
    Py_ssize_t count = on != NULL || answer != NULL ? 4 : 3;
    if (queue_add(self, line_of(items, count, queue_time(self))) < 0)
        return queue_failed(self, where);
    return 0;
}

/* The bytes of ids. NULL without an exception: something else, or none. */
static PyObject *bytes_of(PyObject *given, int *other) {
    Ids ids;
    PyObject *made = NULL;
    if (!ids_of(given, &ids)) {
        *other = 1;
        return NULL;
    }
    if (ids.count) {  /* as int32 and a byte that says so (attach/lines.py): half as much to hand over */
        made = PyBytes_FromStringAndSize(NULL, ids.count * (Py_ssize_t)sizeof(int32_t) + 1);
        if (made != NULL && narrow((int32_t *)PyBytes_AS_STRING(made), ids.at, ids.count))
            PyBytes_AS_STRING(made)[ids.count * (Py_ssize_t)sizeof(int32_t)] = 4;
        else if (made != NULL)
            Py_SETREF(made, PyBytes_FromStringAndSize((const char *)ids.at, ids.count * (Py_ssize_t)sizeof(int64_t)));
    }
    ids_done(&ids);
    return made;
}

/* 1: done; 0: the sink's own method has to do it; -1: raised. */
static int queue_life(Queue *self, int code, const char *where, PyObject *by, PyObject *pool, PyObject *blocks) {
    int on_now = slot_true(&self->on, self->recorder);
    if (on_now <= 0)
        return on_now < 0 ? -1 : 1;
    int other = 0;
    PyObject *some = bytes_of(blocks, &other);
    if (other)
        return 0;
    if (some == NULL)
        return PyErr_Occurred() && queue_failed(self, where) < 0 ? -1 : 1;
    PyObject *items[4] = {numbers[code], by, pool, some};
    int result = queue_add(self, line_of(items, 4, queue_time(self)));
    Py_DECREF(some);
    if (result < 0)
        result = queue_failed(self, where);
    return result < 0 ? -1 : 1;
}

/* Puts the bytes of a pool's ids into a dict, which is made at the first. */
static int keep(PyObject **sets, PyObject *pool, PyObject *given, Py_ssize_t *size, int *other) {
    PyObject *some = bytes_of(given, other);
    if (some == NULL)
        return PyErr_Occurred() ? -1 : 0;
    *size += PyBytes_GET_SIZE(some);
    if (*sets == NULL)
        *sets = PyDict_New();
    int result = *sets == NULL ? -1 : PyDict_SetItem(*sets, pool, some);
    Py_DECREF(some);
    return result;
}

/* 1: done; 0: the sink's own method has to do it; -1: raised. As `log_access`. */
static int queue_access(Queue *self, PyObject *label, PyObject *by, PyObject *on, PyObject *reads, PyObject *writes,
                        PyObject *const *pairs, PyObject *order, int batch, PyObject *planned, PyObject *step,
                        PyObject *site) {
    int on_now = slot_true(&self->on, self->recorder);
    if (on_now <= 0)
        return on_now < 0 ? -1 : 1;
    PyObject *kept[2] = {NULL, NULL};
    Py_ssize_t size = 0;
    int other = 0, result = 0;
    for (int side = 0; side < 2 && !other && result == 0; side++) {
        if (reads == NULL) {
            result = keep(&kept[side], pairs[2 * side], pairs[2 * side + 1], &size, &other);
            continue;
        }
        PyObject *sets = side ? writes : reads, *pool, *ids;
        Py_ssize_t place = 0;
        if (!PyDict_CheckExact(sets)) {
            other = 1;
            break;
        }
        while (!other && result == 0 && PyDict_Next(sets, &place, &pool, &ids))
            result = keep(&kept[side], pool, ids, &size, &other);
    }
    if (!other && result == 0 && (kept[0] != NULL || kept[1] != NULL)) {
        long long waiting = slot_number(&self->size, self->recorder);
        if (waiting == -1 && PyErr_Occurred())
            result = -1;
        else {
            waiting += size;
            PyObject *none = Py_None;
            PyObject *read = kept[0] != NULL ? kept[0] : none, *written = kept[1] != NULL ? kept[1] : none;
            PyObject *items[12] = {numbers[Q_ACCESS], by, on, read, written, label, order,
                                   batch ? Py_True : Py_False, planned, step, none, site};
            result = slot_put_number(&self->size, self->recorder, waiting);
            if (result == 0)
                result = queue_add(self, line_of(items, 12, queue_time(self)));
            if (result == 0) {
                waiting = slot_number(&self->size, self->recorder);
                result = waiting > self->most ? queue_settle_up(self) : 0;
            }
        }
    }
    Py_XDECREF(kept[0]);
    Py_XDECREF(kept[1]);
    if (result < 0)
        result = queue_failed(self, "access");
    return result < 0 ? -1 : !other;
}

/* The line of a call that blocks, a new reference. NULL: raised. */
static PyObject *queue_hold(Queue *self, PyObject *by, PyObject *event) {
    PyObject *t = queue_time(self);
    if (t == NULL)
        return NULL;
    PyObject *args[] = {by, event, Py_None, Py_None, t};
    PyObject *held = PyObject_Vectorcall(self->hold, args, 5, NULL);
    Py_DECREF(t);
    return held;
}

/* The call has returned, under the lock: `Core.settle`. 1: done; 0: the recorder has to do it; -1: raised. */
static int queue_settled(Queue *self, PyObject *held) {
    if (!slot_holds(&self->done) || !slot_holds(&self->told))
        return 0;
    PyObject *told = AT(&self->told, held, PyObject *), *beside;
    if (told != Py_False) {  /* a process beside was told that it is out: it hears the rest too */
        if (told != Py_True || (beside = slot_get(&self->beside, self->recorder)) == NULL)
            return told == Py_True ? -1 : 0;
        Py_DECREF(beside);
        if (beside == Py_None)
            return 0;
    }
    Py_XSETREF(AT(&self->done, held, PyObject *), Py_NewRef(Py_True));
    if (told == Py_False)
        return 1;
    PyObject *queue = slot_get(&self->waiting, self->recorder), *index = slot_get(&self->index, held);
    PyObject *line = index == NULL ? NULL : PyTuple_Pack(3, numbers[Q_SETTLED], index, Py_True);
    int result = queue == NULL || line == NULL ? -1 : done(CALL(s_append, queue, line));
    Py_XDECREF(queue);
    Py_XDECREF(index);
    Py_XDECREF(line);
    if (result < 0)
        result = queue_failed(self, "blocking");
    return result < 0 ? -1 : 1;
}

/* ── what a call is given ────────────────────────────────────────────────────────────────────────────────────────── */

/* The attributes of a Kernel and of a Copy, which are read where their classes keep them. */
enum { K_NAME, K_READS, K_WRITES, K_STEP, K_FIELDS };
enum { C_NAME, C_SOURCE, C_SOURCES, C_TARGET, C_TARGETS, C_ORDER, C_STEP, C_FIELDS };
static const char *const kernel_names[] = {"name", "reads", "writes", "step"};
static const char *const copy_names[] = {"name", "source", "sources", "target", "targets", "order", "step"};
static Slot kernel_slots[K_FIELDS], copy_slots[C_FIELDS];

/* All of them, new references. -1: raised, and there are none. */
static int fields_of(PyObject *given, PyObject *type, const Slot *slots, int count, PyObject **out) {
    int own = (PyObject *)Py_TYPE(given) == type;
    for (int at = 0; at < count; at++) {
        out[at] = own ? slot_get(&slots[at], given) : PyObject_GetAttr(given, slots[at].name);
        if (out[at] == NULL) {
            while (at > 0)
                Py_DECREF(out[--at]);
            return -1;
        }
    }
    return 0;
}

/* ── Host ────────────────────────────────────────────────────────────────────────────────────────────────────────── */

typedef struct {
    PyObject_HEAD
    PyObject *sink;            /* what each line needs stands together */
    PyObject *lock, *enter, *leave;  /* the lock that was there last, and its methods */
    Slot lock_at;
    PyObject *host, *by, *prefix, *streams;
    LogState *log;             /* where lines go: one of these two, or neither */
    Queue *queue;
    int plain;                 /* whether `leave` takes no arguments */
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
    Py_VISIT(self->lock);
    Py_VISIT(self->enter);
    Py_VISIT(self->leave);
    return 0;
}

static int Host_clear(Host *self) {
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
    Py_CLEAR(self->lock);
    Py_CLEAR(self->enter);
    Py_CLEAR(self->leave);
    return 0;
}

static void Host_dealloc(Host *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    Host_clear(self);
    Py_XDECREF(self->lock_at.name);
    type->tp_free(self);
}

static PyObject *Host_new(PyTypeObject *type, PyObject *args, PyObject *more) {
    PyObject *device, *host, *by, *sink, *lines, *plans, *pools, *prefix, *site, *streams;
    static char *names[] = {"device", "host", "by", "sink", "lines", "plans", "pools", "prefix", "site", "streams", NULL};
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

/* ── the lock ── */

/* Takes the sink's lock; what lets it go, a new reference. NULL: raised. */
static PyObject *lock_take(Host *self) {
    fetch((char *)self + 64);
    fetch((char *)self + 128);
    fetch(self->lock);
    fetch(self->enter);
    fetch(self->leave);
    fetch(self->host);
    fetch(self->by);
    fetch(self->streams);
    fetch(self->log);
    fetch(self->queue);
    PyObject *lock = slot_get(&self->lock_at, self->sink);
    if (lock == NULL)
        return NULL;
    if (lock != self->lock) {
        int plain = (PyObject *)Py_TYPE(lock) == rlock_type;
        PyObject *enter = PyObject_GetAttr(lock, plain ? s_acquire : s___enter__);
        PyObject *leave = enter == NULL ? NULL : PyObject_GetAttr(lock, plain ? s_release : s___exit__);
        if (leave == NULL) {
            Py_XDECREF(enter);
            Py_DECREF(lock);
            return NULL;
        }
        self->plain = plain;
        Py_XSETREF(self->lock, Py_NewRef(lock));
        Py_XSETREF(self->enter, enter);
        Py_XSETREF(self->leave, leave);
    }
    Py_DECREF(lock);
    PyObject *leave = Py_NewRef(self->leave);
    if (done(PyObject_CallNoArgs(self->enter)) < 0)
        Py_CLEAR(leave);
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
    return leave;
}

/* Lets it go, whatever was raised meanwhile. Takes the reference. -1: that raised itself. */
static int lock_drop(Host *self, PyObject *leave, int failed) {
    Error error = {NULL, NULL, NULL};
    if (failed)
        error = error_take();
    PyObject *none[] = {Py_None, Py_None, Py_None};
    int result = done(self->plain ? PyObject_CallNoArgs(leave) : PyObject_Vectorcall(leave, none, 3, NULL));
    Py_DECREF(leave);
    if (failed) {
        if (result < 0)
            PyErr_Clear();
        error_put(error);
    }
    return result;
}

/* The end of a call under the lock: `result` if nothing failed. Takes both. */
static PyObject *end_of(Host *self, PyObject *leave, PyObject *result, int failed) {
    if (lock_drop(self, leave, failed) < 0)
        failed = 1;
    if (failed)
        Py_CLEAR(result);
    return result;
}

/* ── names ── */

/* The prefix and the name: a new reference. */
static inline PyObject *named(Host *self, PyObject *name) {
    if (PyUnicode_GET_LENGTH(self->prefix) == 0)
        return Py_NewRef(name);
    return PyUnicode_Concat(self->prefix, name);
}

/* The lines' name of a stream, borrowed. */
static inline PyObject *stream_of(Host *self, PyObject *stream) {
    PyObject *found = PyDict_GetItemWithError(self->streams, stream);
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

/* ── order ── */

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
    PyObject *leave = lock_take(self), *event = NULL, *on;
    if (leave == NULL)
        return NULL;
    int failed = done(CALL(method, self->host, args[0], args[1])) < 0 || (on = stream_of(self, args[0])) == NULL ||
                 (event = named(self, args[1])) == NULL ||
                 order_line(self, log_kind, queue_code, method, where, on, event, NULL) < 0;
    Py_XDECREF(event);
    return end_of(self, leave, Py_NewRef(Py_None), failed);
}

static PyObject *Host_record(Host *self, PyObject *const *args, Py_ssize_t count) {
    return wanted("record", count, 2) < 0 ? NULL : on_stream(self, args, s_record, L_RECORD, Q_RECORD, "record");
}

static PyObject *Host_wait(Host *self, PyObject *const *args, Py_ssize_t count) {
    return wanted("wait", count, 2) < 0 ? NULL : on_stream(self, args, s_wait, L_WAIT, Q_WAIT, "wait");
}

static PyObject *Host_query(Host *self, PyObject *const *args, Py_ssize_t count) {
    PyObject *leave = wanted("query", count, 1) < 0 ? NULL : lock_take(self), *event = NULL;
    if (leave == NULL)
        return NULL;
    PyObject *answer = CALL(s_query, self->host, args[0]);
    int yes = answer == NULL ? -1 : answer == Py_True ? 1 : answer == Py_False ? 0 : PyObject_IsTrue(answer);
    int failed = yes < 0 || (event = named(self, args[0])) == NULL ||
                 order_line(self, yes ? L_YES : L_NO, Q_POLL, s_poll, "poll", NULL, event, answer) < 0;
    Py_XDECREF(event);
    return end_of(self, leave, answer, failed);
}

static PyObject *Host_drop(Host *self, PyObject *const *args, Py_ssize_t count) {
    PyObject *leave = wanted("drop", count, 1) < 0 ? NULL : lock_take(self), *event = NULL;
    if (leave == NULL)
        return NULL;
    int failed = done(CALL(s_drop, self->host, args[0])) < 0 || (event = named(self, args[0])) == NULL ||
                 order_line(self, L_DROP, Q_DROP, s_drop, "drop", NULL, event, NULL) < 0;
    Py_XDECREF(event);
    return end_of(self, leave, Py_NewRef(Py_None), failed);
}

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
        if (taken == 0)
            error_again(error);
        else {
            if (taken > 0)
                result = Py_NewRef(Py_None);
            Py_DECREF(error);
        }
    }
    Py_DECREF(around);
    return result;
}

/* The line of a call that is out, in the log; NULL without an exception: the log's own code has to do it. */
static Held *log_hold(LogState *log, PyObject *by, PyObject *event) {
    Segment *segment = log_segment(log);
    long long ns;
    if (segment == NULL || log->fault == NULL)
        return NULL;
    if (log->fault != Py_None || !PySet_CheckExact(log->out))
        return NULL;
    PyObject *t = time_now(log->now, &ns);
    if (t == NULL)
        return NULL;
    Held *held = NULL;
    if (log_after(log, segment, t, ns) < 0 || log->fault != Py_None || (segment = log_segment(log)) == NULL)
        goto end;
    held = (Held *)((PyTypeObject *)held_class)->tp_alloc((PyTypeObject *)held_class, 0);
    if (held == NULL)
        goto end;
    held->at = PyList_GET_SIZE(segment->lines);
    held->segment = Py_NewRef((PyObject *)segment);
    PyObject *items[WIDTH] = {numbers[L_SYNC], by, Py_None, event, t};
    if (PySet_Add(log->out, (PyObject *)held) < 0)
        Py_CLEAR(held);
    else if (log_items(segment, items, WIDTH) < 0) {
        Error e = error_take();
        PySet_Discard(log->out, (PyObject *)held);
        error_put(e);
        Py_CLEAR(held);
    } else
        segment->out++;
end:
    Py_DECREF(t);
    return held;
}

static int log_settle(LogState *log, Held *held, int returned) {
    PyObject *found = held->segment;
    if (!returned || found == NULL || !PyObject_TypeCheck(found, &SegmentType)) {
        PyObject *settle = PyObject_GetAttr((PyObject *)log, s_settle);
        PyObject *names = settle == NULL ? NULL : PyTuple_Pack(1, s_done);
        PyObject *args[] = {(PyObject *)held, returned ? Py_True : Py_False};
        int result = names == NULL ? -1 : done(PyObject_Vectorcall(settle, args, 1, names));
        Py_XDECREF(names);
        Py_XDECREF(settle);
        return result;
    }
    Segment *segment = (Segment *)found;
    if (PySet_Discard(log->out, (PyObject *)held) < 0)
        return -1;
    held->segment = NULL;
    segment->out--;
    Py_ssize_t full = PyObject_Size(log->full);
    int result = full < 0 ? -1 : full > 0 && segment->out == 0 ? done(CALL(s__release, (PyObject *)log)) : 0;
    Py_DECREF(found);
    return result;
}

static PyObject *sync_logged(Host *self, PyObject *event, PyObject *name) {
    PyObject *leave = lock_take(self);
    if (leave == NULL)
        return NULL;
    Held *held = log_hold(self->log, self->by, name);
    int failed = held == NULL && PyErr_Occurred() != NULL;
    if (lock_drop(self, leave, failed) < 0 || failed) {
        Py_XDECREF(held);
        return NULL;
    }
    if (held == NULL)
        return sync_around(self, event, name);
    PyObject *result = CALL(s_sync, self->host, event);
    Error error = {NULL, NULL, NULL};
    int returned = result != NULL;
    if (!returned)
        error = error_take();
    leave = lock_take(self);
    failed = leave == NULL || log_settle(self->log, held, returned) < 0;
    if (leave != NULL && lock_drop(self, leave, failed) < 0)
        failed = 1;
    Py_DECREF(held);
    if (!returned) {
        if (failed)
            PyErr_Clear();
        error_put(error);
    } else if (failed)
        Py_CLEAR(result);
    return result;
}

static PyObject *sync_queued(Host *self, PyObject *event, PyObject *name) {
    Queue *queue = self->queue;
    PyObject *leave = lock_take(self), *held = NULL;
    if (leave == NULL)
        return NULL;
    int on_now = slot_true(&queue->on, queue->recorder), failed = on_now < 0;
    if (on_now > 0) {
        held = queue_hold(queue, self->by, name);
        if (held == NULL)
            failed = queue_failed(queue, "blocking") < 0;
    }
    if (lock_drop(self, leave, failed) < 0 || failed) {
        Py_XDECREF(held);
        return NULL;
    }
    PyObject *result = CALL(s_sync, self->host, event);
    if (held == NULL)
        return result;
    Error error = {NULL, NULL, NULL};
    int returned = result != NULL;
    if (!returned)
        error = error_take();
    on_now = slot_true(&queue->on, queue->recorder);
    failed = on_now < 0;
    if (on_now > 0) {
        leave = lock_take(self);  /* whoever works lines off looks at it and says so */
        int settled = leave == NULL || !returned ? 0 : queue_settled(queue, held);
        failed = leave == NULL || settled < 0;
        if (leave != NULL && settled == 0) {
            PyObject *method = PyObject_GetAttr(queue->recorder, s_returned), *names = PyTuple_Pack(1, s_done);
            PyObject *args[] = {held, returned ? Py_True : Py_False};
            failed = method == NULL || names == NULL || done(PyObject_Vectorcall(method, args, 1, names)) < 0;
            Py_XDECREF(method);
            Py_XDECREF(names);
        }
        if (leave != NULL && lock_drop(self, leave, failed) < 0)
            failed = 1;
    }
    Py_DECREF(held);
    if (!returned) {
        if (failed)
            PyErr_Clear();
        error_put(error);
    } else if (failed)
        Py_CLEAR(result);
    return result;
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

/* ── accesses ── */

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
    PyObject *leave = wanted("launch", count, 2) < 0 ? NULL : lock_take(self), *on;
    if (leave == NULL)
        return NULL;
    int failed = done(CALL(s_launch, self->host, args[0], args[1])) < 0;
    if (failed && PyErr_ExceptionMatches(device_error))
        return end_of(self, leave, NULL, 1);
    if (!failed) {
        failed = (on = stream_of(self, args[0])) == NULL || kernel_line(self, on, args[1]) < 0;
        return end_of(self, leave, Py_NewRef(Py_None), failed);
    }
    PyObject *error = error_object();  /* some of its parts were issued */
    if ((on = stream_of(self, args[0])) != NULL && done(CALL(s__kernel, (PyObject *)self, on, args[1])) == 0)
        error_again(error);
    else {
        PyObject *other = error_object();
        PyException_SetContext(other, error);
        error_again(other);
    }
    return end_of(self, leave, NULL, 1);
}

/* The pool of that name as the plans know it; NULL without an exception: not of ours. Borrowed. */
static Pool *pool_of(Host *self, PyObject *name) {
    PyObject *found = PyDict_GetItemWithError(self->pools, name);
    return found != NULL && PyObject_TypeCheck(found, &PoolType) ? (Pool *)found : NULL;
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
    int64_t one = -1, decided = pool_at_once(from, &sources, name), aimed = pool_at_once(to, &targets, name);
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
    int result = -1;
    int64_t one = copy_planned(self, label, pairs);
    int flags = flags_of(order);
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
    PyObject *leave = wanted("copy", count, 2) < 0 ? NULL : lock_take(self), *on, *targets;
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
            if (result == 0)
                result = done(CALL(s__copied, (PyObject *)self, args[0], args[1]));
            failed = result < 0;
        }
    }
    return end_of(self, leave, Py_NewRef(Py_None), failed);
}

/* ── lives ── */

static int life_line(Host *self, int log_kind, int queue_code, PyObject *method, const char *where, PyObject *pool,
                     PyObject *blocks) {
    PyObject *name = named(self, pool);
    if (name == NULL)
        return -1;
    int result = 0;
    if (self->log != NULL)
        result = log_life(self->log, log_kind, self->by, name, blocks);
    else if (self->queue != NULL)
        result = queue_life(self->queue, queue_code, where, self->by, name, blocks);
    if (result == 0)
        result = done(CALL(method, self->sink, name, blocks, self->by));
    Py_DECREF(name);
    return result < 0 ? -1 : 0;
}

/* The number of the latest line: 1 and it is in `line`; 0: there is none; -1: raised. */
static int latest(Host *self, long long *line) {
    if (self->log != NULL) {
        Segment *segment = log_segment(self->log);
        if (segment == NULL)
            return -1;
        *line = self->log->before + (PyList_GET_SIZE(segment->lines) - segment->extra) / WIDTH - 1;
        return *line >= 0;
    }
    if (self->queue != NULL) {  /* as the recorder's `mark` */
        Queue *queue = self->queue;
        *line = slot_number(&queue->count, queue->recorder) - 1;
        if (PyErr_Occurred() || slot_put_number(&queue->sealed, queue->recorder, *line) < 0)
            return -1;
        return *line >= 0;
    }
    PyObject *mark = CALL(s_mark, self->sink);
    if (mark == NULL)
        return -1;
    int some = mark != Py_None;
    if (some)
        *line = PyLong_AsLongLong(mark);
    Py_DECREF(mark);
    return PyErr_Occurred() ? -1 : some;
}

static int born(Host *self, PyObject *name, PyObject *blocks) {
    long long line = 0;
    int some = latest(self, &line);
    if (some < 0)
        return -1;
    Pool *pool = pool_of(self, name);
    if (pool == NULL && PyErr_Occurred())
        return -1;
    Ids ids;
    if (pool == NULL || ids_any(blocks, &ids) < 0) {
        if (PyErr_Occurred())
            return -1;
        PyObject *number = some ? PyLong_FromLongLong(line) : Py_NewRef(Py_None);
        int result = number == NULL ? -1 : done(CALL(s_alloc, self->plans, name, blocks, number));
        Py_XDECREF(number);
        return result;
    }
    int result = pool_alloc_ids(pool, &ids, 2 * line);
    ids_done(&ids);
    return result;
}

static PyObject *life(Host *self, PyObject *const *args, Py_ssize_t count, int log_kind, int queue_code,
                      PyObject *method, const char *where) {
    PyObject *leave = wanted(where, count, 2) < 0 ? NULL : lock_take(self);
    if (leave == NULL)
        return NULL;
    int failed = done(CALL(method, self->host, args[0], args[1])) < 0;
    Py_ssize_t blocks = failed ? 0 : PyObject_Size(args[1]);
    if (blocks < 0)
        failed = 1;
    else if (blocks > 0)
        failed = life_line(self, log_kind, queue_code, method, where, args[0], args[1]) < 0 ||
                 (log_kind == L_ALLOC && born(self, args[0], args[1]) < 0);
    return end_of(self, leave, Py_NewRef(Py_None), failed);
}

static PyObject *Host_alloc(Host *self, PyObject *const *args, Py_ssize_t count) {
    return life(self, args, count, L_ALLOC, Q_ALLOC, s_alloc, "alloc");
}

static PyObject *Host_free(Host *self, PyObject *const *args, Py_ssize_t count) {
    return life(self, args, count, L_FREE, Q_FREE, s_free, "free");
}

static PyObject *Host_touch(Host *self, PyObject *const *args, Py_ssize_t count) {
    return life(self, args, count, L_TOUCH, Q_TOUCH, s_touch, "touch");
}

static int decided(Host *self, PyObject *name, PyObject *blocks, PyObject *work) {
    long long line = 0;
    int some = latest(self, &line);
    if (some <= 0)
        return some;
    Pool *pool = pool_of(self, name);
    Ids ids;
    if (pool == NULL) {
        if (PyErr_Occurred())
            return -1;
        PyObject *number = PyLong_FromLongLong(line);
        int result = number == NULL ? -1 : done(CALL(s_decide, self->plans, name, blocks, work, number));
        Py_XDECREF(number);
        return result;
    }
    if (ids_any(blocks, &ids) < 0)
        return -1;
    int result = pool_decide_ids(pool, &ids, work, 2 * line + 1);
    ids_done(&ids);
    return result;
}

static PyObject *Host_plan(Host *self, PyObject *const *args, Py_ssize_t count) {
    PyObject *leave = wanted("plan", count, 3) < 0 ? NULL : lock_take(self);
    if (leave == NULL)
        return NULL;
    int failed = done(CALL(s_plan, self->host, args[0], args[1], args[2])) < 0;
    Py_ssize_t blocks = failed ? 0 : PyObject_Size(args[1]);
    if (blocks < 0 || (blocks > 0 && decided(self, args[0], args[1], args[2]) < 0))
        failed = 1;
    return end_of(self, leave, Py_NewRef(Py_None), failed);
}

#define FAST(name) {#name, (PyCFunction)(void (*)(void))Host_##name, METH_FASTCALL, NULL}
static PyMethodDef Host_methods[] = {
    FAST(record), FAST(wait),  FAST(query), FAST(sync),  FAST(drop), FAST(copy),
    FAST(launch), FAST(alloc), FAST(free),  FAST(touch), FAST(plan), {NULL, NULL, 0, NULL},
};

static PyMemberDef Host_members[] = {
    {"_device", T_OBJECT_EX, offsetof(Host, device), READONLY, NULL},
    {"_host", T_OBJECT_EX, offsetof(Host, host), READONLY, NULL},
    {"_by", T_OBJECT_EX, offsetof(Host, by), READONLY, NULL},
    {"_sink", T_OBJECT_EX, offsetof(Host, sink), READONLY, NULL},
    {"_plans", T_OBJECT_EX, offsetof(Host, plans), READONLY, NULL},
    {"_prefix", T_OBJECT_EX, offsetof(Host, prefix), READONLY, NULL},
    {"_site", T_OBJECT_EX, offsetof(Host, site), READONLY, NULL},
    {"_streams", T_OBJECT_EX, offsetof(Host, streams), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject HostType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "kvsan.runtime._lines.Host",
    .tp_basicsize = sizeof(Host),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "Host(device, host, by, sink, lines, plans, pools, prefix, site, streams): does every call of `host` and "
              "logs it. `lines`: a LogState or a Queue to which lines go past the sink's methods, or None.",
    .tp_new = Host_new,
    .tp_dealloc = (destructor)Host_dealloc,
    .tp_traverse = (traverseproc)Host_traverse,
    .tp_clear = (inquiry)Host_clear,
    .tp_methods = Host_methods,
    .tp_members = Host_members,
};

/* ── the module ──────────────────────────────────────────────────────────────────────────────────────────────────── */

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

static PyObject *set_up(PyObject *Py_UNUSED(module), PyObject *args, PyObject *more) {
    static char *names[] = {"ndarray", "dtype", "as_ids", "device_error", "clock", "rlock", "kernel", "copy", NULL};
    PyObject *given[8];
    if (!PyArg_ParseTupleAndKeywords(args, more, "OOOOOOO!O!", names, &given[0], &given[1], &given[2], &given[3],
                                     &given[4], &given[5], &PyType_Type, &given[6], &PyType_Type, &given[7]))
        return NULL;
    PyObject **kept[] = {&ndarray, &ids_dtype, &as_ids, &device_error, &system_clock, &rlock_type, &kernel_type,
                         &copy_type};
    for (int at = 0; at < 8; at++)
        Py_XSETREF(*kept[at], Py_NewRef(given[at]));
    for (int at = 0; at < K_FIELDS; at++)
        if (slot_find(&kernel_slots[at], (PyTypeObject *)kernel_type, kernel_names[at]) < 0)
            return NULL;
    for (int at = 0; at < C_FIELDS; at++)
        if (slot_find(&copy_slots[at], (PyTypeObject *)copy_type, copy_names[at]) < 0)
            return NULL;
    PyObject *probe = PyObject_CallOneArg(as_ids, (PyObject *)numbers_tuple);
    fields_known = probe != NULL && fields_found(probe);
    Py_XDECREF(probe);
    if (probe == NULL)
        return NULL;
    return PyBool_FromLong(fields_known);
}

static PyObject *set_held(PyObject *Py_UNUSED(module), PyObject *given) {
    if (!PyType_Check(given) || !PyType_IsSubtype((PyTypeObject *)given, &HeldType)) {
        PyErr_SetString(PyExc_TypeError, "accepted: a class made of Held");
        return NULL;
    }
    Py_XSETREF(held_class, Py_NewRef(given));
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"set_up", (PyCFunction)(void (*)(void))set_up, METH_VARARGS | METH_KEYWORDS,
     "set_up(ndarray, dtype, as_ids, device_error, clock, rlock, kernel, copy): what this has to know of Python's side. Whether the "
     "fields of arrays are read where numpy has them, and not asked for."},
    {"set_held", set_held, METH_O, "set_held(held): the log's class of a blocking call's line."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "kvsan.runtime._lines",
    .m_doc = "Debug mode's lines in C; see kvsan.runtime.lines.",
    .m_size = -1,
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__lines(void);

PyMODINIT_FUNC PyInit__lines(void) {
#define INTERN(n) \
    if ((s_##n = PyUnicode_InternFromString(#n)) == NULL) \
        return NULL;
    NAMES(INTERN)
    for (int at = 0; at <= SETS; at++)
        if ((numbers[at] = PyLong_FromLong(at)) == NULL)
            return NULL;
    if ((numbers_tuple = Py_BuildValue("(iii)", 3, 1, 2)) == NULL)
        return NULL;
    struct { const char *name; PyTypeObject *type; } types[] = {
        {"Pool", &PoolType}, {"Segment", &SegmentType}, {"Held", &HeldType}, {"LogState", &LogStateType},
        {"Queue", &QueueType}, {"Host", &HostType}};
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL)
        return NULL;
    for (size_t at = 0; at < sizeof(types) / sizeof(*types); at++)
        if (PyType_Ready(types[at].type) < 0 ||
            PyModule_AddObjectRef(module, types[at].name, (PyObject *)types[at].type) < 0)
            goto failed;
    if (PyModule_AddIntConstant(module, "VERSION", VERSION) < 0 ||
        PyModule_AddStringConstant(module, "SOURCE", KVSAN_SOURCE) < 0)
        goto failed;
    return module;
failed:
    Py_DECREF(module);
    return NULL;
}
