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
   - Lock: a reentrant lock that is taken here without a call (`lock.h`). Locks of other kinds are called.
   - Pool: what `kvsan.runtime.plans._Pool` is, on plain memory.

   Relies on: the GIL (a build without it takes it when this is loaded, since it says nothing else); the numbers of
   kinds of lines in binary.py and attach/lines.py, whose drift VERSION is for and the tests look at. Does not cover:
   put, get and work, which are Python's. */

#include "common.h"
#include "slot.h"
#include "ids.h"
#include "pool.h"
#include "state.h"
#include "log.h"
#include "queue.h"
#include "host.h"
#include "order.h"
#include "sync.h"
#include "access.h"
#include "life.h"

#define VERSION 2

#ifndef KVSAN_SOURCE
#define KVSAN_SOURCE ""
#endif

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
    .tp_methods = Host_methods,
    .tp_members = Host_members,
};

static PyObject *set_up(PyObject *Py_UNUSED(module), PyObject *args, PyObject *more) {
    static char *names[] = {"ndarray", "dtype", "as_ids", "device_error", "clock", "kernel", "copy", NULL};
    PyObject *given[7];
    if (!PyArg_ParseTupleAndKeywords(args, more, "OOOOOO!O!", names, &given[0], &given[1], &given[2], &given[3],
                                     &given[4], &PyType_Type, &given[5], &PyType_Type, &given[6]))
        return NULL;
    PyObject **kept[] = {&ndarray, &ids_dtype, &as_ids, &device_error, &system_clock, &kernel_type, &copy_type};
    for (int at = 0; at < 7; at++)
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
     "set_up(ndarray, dtype, as_ids, device_error, clock, kernel, copy): what this has to know of Python's "
     "side. Whether the fields of arrays are read where numpy has them, and not asked for."},
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
        {"Lock", &LockType}, {"Pool", &PoolType}, {"Segment", &SegmentType}, {"Held", &HeldType},
        {"LogState", &LogStateType}, {"Queue", &QueueType}, {"Host", &HostType}};
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
