/* The way to the process beside (`pipe.py`): what says whether a frame may be written to it now, and how its lines are.

   The pipe does not block, so the GIL is kept while bytes are written from where the lines wait: nothing else runs, and
   nobody puts in lines, lets them go or closes the pipe meanwhile. A pipe that is full takes a part or nothing; whoever
   called leaves the rest to `Pipe`, which waits without the GIL and hears signals. */

#ifndef KVSAN_WAY_H
#define KVSAN_WAY_H

#include <errno.h>
#include <signal.h>
#include <sys/uio.h>

#include "common.h"
#include "pack.h"

typedef struct {
    PyObject_HEAD
    int to;             /* the end that is written to, or -1 */
    char writing, torn; /* in the middle of a frame; one was not written whole */
    PyObject *process;  /* who reads, None before it was started */
    long long due;      /* ns: from then on there are news to be told */
    Py_ssize_t known;   /* how many `changes` there were when news were told */
    Counter *changes;   /* news that cannot wait */
} Way;

static PyTypeObject CounterType; /* `held.h` */

/* Whether a frame of lines is next, and nothing else. */
static inline int way_is_free(const Way *self)
{
    return self->to >= 0 && !self->writing && !self->torn && self->process != NULL && self->process != Py_None &&
           self->changes != NULL && self->changes->count == self->known;
}

/* `writev` that no signal tells that nobody reads: the engine may have SIGPIPE end its process. */
static ssize_t write_quietly(int to, const struct iovec *parts, int count)
{
    ssize_t sent;
#ifdef __linux__
    const struct timespec at_once = {0, 0};
    sigset_t broken, before;
    sigemptyset(&broken);
    sigaddset(&broken, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &broken, &before);
    sent = writev(to, parts, count);
    while (sent < 0 && errno == EPIPE && sigtimedwait(&broken, NULL, &at_once) < 0 && errno == EINTR)
        errno = EPIPE;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
#else
    sent = writev(to, parts, count);
#endif
    return sent;
}

#define FRAME_HEAD 5 /* its length and its sort, as `pipe.FRAME` */

/* Writes a frame of lines as far as the pipe takes it: so many bytes, or -1 if none. */
static ssize_t way_write(const Way *self, unsigned char *lines, size_t size)
{
    unsigned char head[FRAME_HEAD];
    struct iovec parts[] = {{head, FRAME_HEAD}, {lines, size}};
    int i;
    if (size > UINT32_MAX)
        return -1;
    for (i = 0; i < 4; i++)
        head[i] = (unsigned char)(size >> (8 * i));
    head[4] = 0; /* `pipe.LINES` */
    return write_quietly(self->to, parts, 2);
}

static PyObject *Way_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    Way *self = (Way *)type->tp_alloc(type, 0);
    (void)args;
    (void)kwargs;
    if (self != NULL)
        self->to = -1;
    return (PyObject *)self;
}

static PyObject *Way_get_changes(Way *self, void *unused)
{
    (void)unused;
    return Py_NewRef(self->changes == NULL ? Py_None : (PyObject *)self->changes);
}

static int Way_set_changes(Way *self, PyObject *changes, void *unused)
{
    (void)unused;
    if (changes == NULL || !PyObject_TypeCheck(changes, &CounterType)) {
        PyErr_SetString(PyExc_TypeError, "_changes: a Counter");
        return -1;
    }
    Py_XSETREF(self->changes, (Counter *)Py_NewRef(changes));
    return 0;
}

/* No `tp_clear`: each cycle goes through a dict, which is cleared. */
static int Way_traverse(Way *self, visitproc visit, void *arg)
{
    Py_VISIT(self->process);
    Py_VISIT(self->changes);
    return 0;
}

static void Way_dealloc(Way *self)
{
    PyObject_GC_UnTrack(self);
    Py_CLEAR(self->process);
    Py_CLEAR(self->changes);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMemberDef Way_members[] = {
    {"_to", T_INT, offsetof(Way, to), 0, NULL},
    {"_writing", T_BOOL, offsetof(Way, writing), 0, NULL},
    {"_torn", T_BOOL, offsetof(Way, torn), 0, NULL},
    {"_process", T_OBJECT, offsetof(Way, process), 0, NULL},
    {"_due", T_LONGLONG, offsetof(Way, due), 0, NULL},
    {"_known", T_PYSSIZET, offsetof(Way, known), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef Way_getset[] = {
    {"_changes", (getter)Way_get_changes, (setter)Way_set_changes, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyTypeObject WayType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "kvsan.checker.attach._hot.Way",
    .tp_doc = "What says whether lines may be written to a pipe now.",
    .tp_basicsize = sizeof(Way),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_new = Way_new,
    .tp_dealloc = (destructor)Way_dealloc,
    .tp_traverse = (traverseproc)Way_traverse,
    .tp_members = Way_members,
    .tp_getset = Way_getset,
};

#endif
