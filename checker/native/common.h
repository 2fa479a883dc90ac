/* What every part uses: names that are looked up, a look-up that may fail in silence, errors that are not the engine's. */

#ifndef KVSAN_COMMON_H
#define KVSAN_COMMON_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <structmember.h>
#include <time.h>

/* What most hooks pass, put into each of them where the compiler thinks it worth it: in the middle of an engine's work
   branches are not foreseen, and a call and its return are two (docs/performance.md). COLD is what none usually passes. */
#ifdef __GNUC__
#define HOT inline __attribute__((hot))
#define COLD __attribute__((cold, noinline))
#define FETCH(at) __builtin_prefetch(at)
#define USUAL(is) __builtin_expect(!!(is), 1)
#define INTO_EACH inline __attribute__((always_inline))
#else
#define HOT inline
#define COLD
#define FETCH(at) ((void)(at))
#define USUAL(is) (is)
#define INTO_EACH inline
#endif
#define RARE(is) (!USUAL(!(is)))

/* What a step of an engine's passes has two forms where that is worth it: `…_at_once`, in which all that could stand in the
   way is asked one after the other, so that the processor, which foresees no jump here, meets next to none; and the long
   form, which knows what to do about each. Where the first one says NULL or 0 nothing has happened yet. None of it runs
   any code but for PyTorch's own, where that is asked for its current stream: which is done first. */

/* Attributes and methods of the Python half, interned once. */
#define NAMES_USED(X)                                                                                                  \
    X(_ended) X(settle_up) X(fault) X(returned) X(thread_name) X(_refer) X(_otherwise) X(append) X(block_id)           \
    X(ref_cnt) X(is_null) X(_kvsan_name) X(_kvsan_pools) X(_kvsan_remote) X(non_blocking)                              \
    X(total_num_scheduled_tokens) X(load_gpu_blocks) X(store_gpu_blocks) X(_turn) X(hook) X(messages) X(name)          \
    X(pool) X(suspects) X(device_pool) X(current_stream) X(cuda_stream) X(device_index) X(stream_id)                   \
    X(_kvsan_steps) X(open) X(_kvsan_empty) X(count) X(_before) X(_crosses) X(req_id) X(block_ids) X(forward)          \
    X(stream) X(compute) X(put) X(get) X(_recorder) X(_places) X(_tokens) X(_align) X(_append) X(_look) X(_pop)        \
    X(_given_hook) X(_seen_hook) X(list) X(__qualname__) X(_put) X(_foreign) X(_get) X(queue) X(q)

#define X(name) static PyObject *s_##name;
NAMES_USED(X)
#undef X

/* What each message of a step is asked for (`message.h`), last those of its `scheduled_cached_reqs`. */
#define NAMES_ASKED(X)                                                                                                 \
    X(kvsan_token) X(new_block_ids_to_zero) X(num_scheduled_tokens) X(scheduled_cached_reqs) X(finished_req_ids)       \
    X(scheduled_new_reqs) X(req_ids) X(new_block_ids) X(resumed_req_ids) X(num_computed_tokens)

enum {
#define X(name) asks_##name,
    NAMES_ASKED(X)
#undef X
    ASKED
};
static PyObject *asked[ASKED];

static PyObject *zero;            /* the int */
static PyObject *hazard_class;    /* KvsanHazard: the one error that the engine is meant to see */
static PyTypeObject *deque_type;  /* collections.deque, whose length is its size (it is a PyVarObject) */
static PyTypeObject *lock_type;   /* of locks that are taken here */
static PyObject *perf_counter_ns; /* time.perf_counter_ns, for which the clock is read here */
static int clock_is_monotonic;    /* whether that is so on this machine */

static int intern_names(void)
{
    if ((zero = PyLong_FromLong(0)) == NULL)
        return -1;
#define X(name)                                                                                                        \
    if ((s_##name = PyUnicode_InternFromString(#name)) == NULL)                                                        \
        return -1;
    NAMES_USED(X)
#undef X
#define X(name)                                                                                                        \
    if ((asked[asks_##name] = PyUnicode_InternFromString(#name)) == NULL)                                              \
        return -1;
    NAMES_ASKED(X)
#undef X
    return 0;
}

/* A variable of the thread's that is found without a call, where a pointer's room for such is to be had (glibc). */
#if defined(__GLIBC__) && defined(__GNUC__)
#define OF_THREAD static _Thread_local __attribute__((tls_model("initial-exec")))
#else
#define OF_THREAD static _Thread_local
#endif

/* The number of the calling thread's state of Python's: none has another one's. */
static inline uint64_t state_of_thread(void)
{
    return PyThreadState_Get()->id;
}

/* Lets a reference go that is not the last one, as far as is known: what is to be done then is out of the way. */
static inline void let_one_go(PyObject *object)
{
    if (RARE(Py_REFCNT(object) == 1))
        Py_DECREF(object);
    else
        Py_SET_REFCNT(object, Py_REFCNT(object) - 1);
}

/* The number of an int (no subclass); `*over` is 0 if it fits. */
static inline long long whole(PyObject *number, int *over)
{
#if PY_VERSION_HEX >= 0x030C0000
    if (USUAL(PyUnstable_Long_IsCompact((PyLongObject *)number))) {
        *over = 0;
        return PyUnstable_Long_CompactValue((PyLongObject *)number);
    }
#endif
    return PyLong_AsLongLongAndOverflow(number, over);
}

/* How often a hook fired, or something else happened (`ledger.py`). */
typedef struct Counter {
    PyObject_HEAD
    Py_ssize_t count;
} Counter;

/* The attribute, a new reference; NULL without an error if there is none, with one if something else went wrong. */
static HOT PyObject *look_up(PyObject *object, PyObject *name)
{
    PyObject *found;
#if PY_VERSION_HEX >= 0x030D0000
    PyObject_GetOptionalAttr(object, name, &found);
#else
    _PyObject_LookupAttr(object, name, &found);
#endif
    return found;
}

/* Where a class keeps an attribute in its objects' own memory (`__slots__`): it is read there, at a fraction of the cache
   lines. Of the class that was met last; what it has in that place is taken to stay. */
typedef struct {
    PyTypeObject *type;
    Py_ssize_t offset;
} Place;

/* Where objects of this class keep it, if they do. */
static COLD void place_learn(Place *place, PyObject *name, PyTypeObject *type)
{
    PyObject *descr;
    if (place->type == type || type->tp_getattro != PyObject_GenericGetAttr)
        return;
    descr = look_up((PyObject *)type, name);
    if (descr != NULL && Py_TYPE(descr) == &PyMemberDescr_Type && PyType_IsSubtype(type, PyDescr_TYPE(descr)) &&
        ((PyMemberDescrObject *)descr)->d_member->type == T_OBJECT_EX) {
        place->offset = ((PyMemberDescrObject *)descr)->d_member->offset;
        Py_XSETREF(place->type, (PyTypeObject *)Py_NewRef(type));
    }
    PyErr_Clear();
    Py_XDECREF(descr);
}

static COLD PyObject *place_find(Place *place, PyObject *name, PyObject *object)
{
    PyObject *found = PyObject_GetAttr(object, name);
    if (found != NULL)
        place_learn(place, name, Py_TYPE(object));
    return found;
}

/* Where in an object of that class; NULL stands there if it has none. */
static inline PyObject **place_in(const Place *place, PyObject *object)
{
    return (PyObject **)((char *)object + place->offset);
}

/* The attribute, borrowed, if it is there: NULL without an error if it has to be looked for. Runs nothing. */
static inline PyObject *place_peek(const Place *place, PyObject *object)
{
    return USUAL(Py_TYPE(object) == place->type) ? *place_in(place, object) : NULL;
}

/* The attribute, a new reference; NULL with an error. */
static inline PyObject *place_read(Place *place, PyObject *name, PyObject *object)
{
    PyObject *found = place_peek(place, object);
    return USUAL(found != NULL) ? Py_NewRef(found) : place_find(place, name, object);
}

/* Those of kvsan's own objects that each step reads. */
#define PLACES_OF_STEPS(X)                                                                                             \
    X(suspects) X(device_pool) X(messages) X(name) X(pool) X(hook) X(open) X(_crosses) X(_before) X(count)

enum {
#define X(name) at_##name,
    PLACES_OF_STEPS(X)
#undef X
    PLACES
};
static Place places[PLACES];
static PyObject **const places_names[] = {
#define X(name) &s_##name,
    PLACES_OF_STEPS(X)
#undef X
};

static HOT PyObject *read_at(int which, PyObject *object)
{
    return place_read(&places[which], *places_names[which], object);
}

static COLD int write_slowly(int which, PyObject *object, PyObject *value)
{
    Py_XDECREF(read_at(which, object)); /* the next time its place is known */
    return PyErr_Occurred() ? -1 : PyObject_SetAttr(object, *places_names[which], value);
}

/* 0, or -1 with an error. */
static HOT int write_at(int which, PyObject *object, PyObject *value)
{
    Place *place = &places[which];
    if (Py_TYPE(object) != place->type)
        return write_slowly(which, object, value);
    Py_XSETREF(*place_in(place, object), Py_NewRef(value));
    return 0;
}

/* 1 if what was looked up is there and true, 0 if not, -1 with an error. Its reference is taken over. */
static inline int is_true(PyObject *found)
{
    int answer;
    if (RARE(found == NULL))
        return PyErr_Occurred() ? -1 : 0;
    answer = PyList_CheckExact(found) ? PyList_GET_SIZE(found) > 0 : PyObject_IsTrue(found);
    let_one_go(found);
    return answer;
}

/* The same of an attribute. */
static HOT int is_set(PyObject *object, PyObject *name)
{
    return is_true(look_up(object, name));
}

/* The error that is set, if there is one, is let go: 0; -1 if it is what a signal's handler raised, which is the engine's. */
static COLD int let_go(void)
{
    if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception))
        return -1;
    PyErr_Clear();
    return 0;
}

/* The error that is set, with its traceback, taken off; a new reference. */
static PyObject *take_error(void)
{
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

static void put_back_error(PyObject *error)
{
#if PY_VERSION_HEX >= 0x030C0000
    PyErr_SetRaisedException(error);
#else
    PyErr_Restore(Py_NewRef(Py_TYPE(error)), error, PyException_GetTraceback(error));
#endif
}

#endif
