/* `State` as Python sees it: the fields and methods that `core.Core` inherits. */

#ifndef KVSAN_RECORDER_H
#define KVSAN_RECORDER_H

#include "held.h"
#include "state.h"

static PyObject *State_add(State *self, PyObject *line)
{
    Py_ssize_t index = state_add(self, Py_NewRef(line));
    return index < 0 ? NULL : PyLong_FromSsize_t(index);
}

/* `add_ids(code, pool, ids, by)` */
static PyObject *State_add_ids(State *self, PyObject *args)
{
    long code;
    PyObject *pool, *ids, *by;
    if (!PyArg_ParseTuple(args, "lOOO:add_ids", &code, &pool, &ids, &by) || state_life(self, code, pool, ids, by) < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* Whether the ends of events were put among the lines here. */
static PyObject *State_drop_events(State *self, PyObject *unused)
{
    (void)unused;
    if (self->packed == NULL || self->dead_events == NULL || !PyObject_TypeCheck(self->dead_events, &NamesType))
        Py_RETURN_FALSE;
    if (names_drop(self, self->dead_events) < 0)
        return NULL;
    Py_RETURN_TRUE;
}

static PyObject *State_hold(State *self, PyObject *given)
{
    return (PyObject *)state_hold(self, Py_NewRef(given));
}

enum { NONE = 0xc0, NO = 0xc2, YES = 0xc3 }; /* items of one byte */

/* Lives go in before it. */
static COLD int line_waits(State *self)
{
    if (state_settle(self) < 0)
        return -1;
    if (self->packed != NULL)
        return 0;
    PyErr_SetString(PyExc_RuntimeError, "another session began"); /* in what that called */
    return -1;
}

/* A line of so many items is about to be put in place: where its second one goes, behind its code. NULL with an error. */
static HOT unsigned char *line_begins(State *self, int items, int code)
{
    Packed *packed = self->packed;
    unsigned char *at;
    if (packed == NULL || life_waits(&packed->life)) {
        if (line_waits(self) < 0)
            return NULL;
        packed = self->packed;
    }
    if (pack_room(packed, HEAD + 2 + (size_t)items * (TEXT_ROOM + 9)) < 0)
        return NULL;
    if (packed->used == 0)
        packed->used = HEAD;
    at = packed->bytes + packed->used;
    *at++ = (unsigned char)(0x90 | items);
    *at++ = (unsigned char)code;
    return at;
}

/* It ends there, and is one more. */
static inline void line_ends(State *self, unsigned char *at)
{
    self->packed->used = (size_t)(at - self->packed->bytes);
    self->packed->count++;
}

/* The arguments of `pack_copy` as a line that is put in place. 1: it is; 0: it cannot be; -1 with an error. */
static int copy_in_place(State *self, PyObject *const *args)
{
    enum { LABEL, ON, SOURCE, SOURCES, TARGET, TARGETS, ORDER, PLANNED, AT_SITE };
    static const int items[] = {LABEL, ORDER, -YES, PLANNED, -NONE, -NONE, AT_SITE};
    Packed *packed;
    const char *letters;
    unsigned char *at;
    size_t size, i, before;
    Text by;
    int done, side;
    if (!in_place(self) || (letters = plain(args[ON], &size)) == NULL || size > TEXT_ROOM)
        return 0;
    if (state_thread_text(self, &by) < 0)
        return -1;
    if (!in_place(self) || !by.size)
        return 0;
    if (state_ended(self, self->packed->count) < 0 || (at = line_begins(self, 13, ACCESS)) == NULL)
        return -1;
    packed = self->packed;
    before = packed->used; /* nothing runs from here on */
    packed->used = (size_t)(put_plain(put_text(at, &by), letters, size) - packed->bytes);
    for (done = 0, side = SOURCE; done == 0 && side <= TARGET; side += TARGET - SOURCE)
        if ((done = pack_head(packed, 1, 0x80, 15, 0, 0xde, 0xdf)) == 0 &&
            (done = PyUnicode_CheckExact(args[side]) ? pack_value(packed, args[side], 1) : 1) == 0)
            done = pack_value(packed, args[side + 1], 1);
    for (i = 0; done == 0 && i < sizeof(items) / sizeof(items[0]); i++) {
        if (items[i] >= 0)
            done = pack_value(packed, args[items[i]], 1);
        else if ((done = pack_room(packed, 1)) == 0)
            packed->bytes[packed->used++] = (unsigned char)-items[i];
    }
    if (done == 0 && (done = pack_room(packed, 9)) == 0) {
        line_ends(self, put_long(packed->bytes + packed->used, clock_now()));
        self->count++;
        return state_full(self) < 0 ? -1 : 1;
    }
    packed->used = before;
    return done < 0 ? -1 : 0;
}

/* `pack_copy(label, on, source, sources, target, targets, order, planned, site)`: a batch from one pool to another, with
   lists of ids, which are packed at once and need not be copied. Whether it was: only where lines are packed. */
static PyObject *State_pack_copy(State *self, PyObject *const *args, Py_ssize_t given)
{
    PyObject *line = NULL, *by = NULL, *now = NULL;
    Lock *lock;
    int done;
    if (given != 9) {
        PyErr_SetString(PyExc_TypeError, "pack_copy takes nine arguments");
        return NULL;
    }
    if (self->packed == NULL || !PyList_CheckExact(args[3]) || !PyList_CheckExact(args[5]) ||
        PyList_GET_SIZE(args[3]) == 0 || PyList_GET_SIZE(args[5]) == 0)
        Py_RETURN_FALSE;
    if (state_enter(self, &lock) < 0)
        return NULL;
    done = copy_in_place(self, args);
    if (done != 0) {
        state_leave(lock);
        return done < 0 ? NULL : Py_NewRef(Py_True);
    }
    if ((by = state_thread(self)) != NULL && (now = state_now(self)) != NULL)
        line = Py_BuildValue("(iOO{OO}{OO}OOOOOOOO)", ACCESS, by, args[1], args[2], args[3], args[4], args[5], args[0],
                             args[6], Py_True, args[7], Py_None, Py_None, args[8], now);
    done = state_add(self, line) < 0 ? -1 : 1;
    state_leave(lock);
    Py_XDECREF(by);
    Py_XDECREF(now);
    return done < 0 ? NULL : Py_NewRef(Py_True);
}

/* `(code, by, token, now)` under the lock. */
static int hand_line(State *self, int code, PyObject *token)
{
    PyObject *by, *now;
    const char *letters;
    unsigned char *at;
    size_t size;
    Text who;
    int done = -1;
    if (in_place(self) && (letters = plain(token, &size)) != NULL && size < 2 * TEXT_ROOM) {
        if (state_thread_text(self, &who) < 0)
            return -1;
        if (in_place(self) && who.size) {
            if (state_ended(self, self->packed->count) < 0 || (at = line_begins(self, 4, code)) == NULL)
                return -1;
            line_ends(self, put_long(put_plain(put_text(at, &who), letters, size), clock_now()));
            self->count++;
            return state_full(self);
        }
    }
    by = state_thread(self);
    now = by == NULL ? NULL : state_now(self);
    if (now != NULL && state_add(self, Py_BuildValue("(iOOO)", code, by, token, now)) >= 0)
        done = 0;
    Py_XDECREF(by);
    Py_XDECREF(now);
    return done;
}

static long process; /* this one's number, or 0: asking the system for it is a call of the system's */

static void process_forked(void)
{
    process = 0;
}

/* The name of a token: prefix, what it is for, its number, the process. A new reference. */
static PyObject *token_named(State *self, PyObject *what)
{
    char letters[2 * TEXT_ROOM + 48], *at = letters;
    const char *parts[2];
    size_t sizes[2], i;
    Py_ssize_t number = ++self->tokens;
    if (process == 0)
        process = (long)getpid();
    parts[0] = plain(self->prefix, &sizes[0]);
    parts[1] = plain(what, &sizes[1]);
    if (parts[0] == NULL || parts[1] == NULL || sizes[0] > TEXT_ROOM || sizes[1] > TEXT_ROOM || number < 0)
        return PyUnicode_FromFormat("%S%S%zd.%ld", self->prefix, what, number, process);
    for (i = 0; i < 2; i++) {
        memcpy(at, parts[i], sizes[i]);
        at += sizes[i];
    }
    at = put_digits(at, number);
    *at++ = '.';
    at = put_digits(at, process);
    return PyUnicode_FromStringAndSize(letters, at - letters);
}

static PyObject *handed_on(State *self, PyObject *what, int marked)
{
    PyObject *token, *mark;
    Lock *lock;
    if (self->prefix == NULL) {
        PyErr_SetString(PyExc_AttributeError, "prefix");
        return NULL;
    }
    if (state_enter(self, &lock) < 0)
        return NULL;
    token = token_named(self, what);
    if (token != NULL && self->on && hand_line(self, PUT, token) < 0 && state_failed(self, s_put) < 0)
        Py_CLEAR(token);
    if (token != NULL && marked) { /* `mark` */
        self->sealed = self->count - 1;
        mark = self->count ? PyLong_FromSsize_t(self->sealed) : Py_NewRef(Py_None);
        token = mark == NULL ? (Py_DECREF(token), NULL) : Py_BuildValue("(NN)", token, mark);
    }
    state_leave(lock);
    return token;
}

/* `hand_on(what)`: a put of a fresh token, whose name is what it gives back. */
static PyObject *State_hand_on(State *self, PyObject *what)
{
    return handed_on(self, what, 0);
}

/* `hand_on_at(what)`: the same, and the number of the latest op. */
static PyObject *State_hand_on_at(State *self, PyObject *what)
{
    return handed_on(self, what, 1);
}

/* `take_over_from(token)`: a get of it. */
static PyObject *State_taken(State *self, PyObject *token)
{
    PyObject *done = Py_None;
    Lock *lock;
    if (!self->on)
        Py_RETURN_NONE;
    if (state_enter(self, &lock) < 0)
        return NULL;
    if (hand_line(self, GET, token) < 0 && state_failed(self, s_get) < 0)
        done = NULL;
    state_leave(lock);
    return Py_XNewRef(done);
}

static PyObject *State_get_queue(State *self, void *unused)
{
    (void)unused;
    if (self->queue == NULL) {
        PyErr_SetString(PyExc_AttributeError, "_queue");
        return NULL;
    }
    return Py_NewRef(self->queue);
}

static int State_set_queue(State *self, PyObject *queue, void *unused)
{
    PyObject *append = queue == NULL ? NULL : PyObject_GetAttr(queue, s_append), *old, *old_append;
    (void)unused;
    if (append == NULL) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_AttributeError, "_queue");
        return -1;
    }
    old = self->queue;
    old_append = self->append;
    self->queue = Py_NewRef(queue);
    self->append = append;
    self->packed = Py_TYPE(queue) == &PackedType ? (Packed *)queue : NULL;
    Py_XDECREF(old); /* whose lines may end with a call that logs */
    Py_XDECREF(old_append);
    return 0;
}

static PyObject *State_get_now(State *self, void *unused)
{
    (void)unused;
    if (self->now == NULL) {
        PyErr_SetString(PyExc_AttributeError, "now");
        return NULL;
    }
    return Py_NewRef(self->now);
}

static int State_set_now(State *self, PyObject *now, void *unused)
{
    (void)unused;
    if (now == NULL) {
        PyErr_SetString(PyExc_AttributeError, "now");
        return -1;
    }
    self->reads_clock = clock_is_monotonic && now == perf_counter_ns;
    Py_XSETREF(self->now, Py_NewRef(now));
    return 0;
}

static PyObject *State_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    State *self = (State *)type->tp_alloc(type, 0);
    (void)args;
    (void)kwargs;
    if (self != NULL) {
        self->serial = ++serials;
        self->batch = 1;
        self->sealed = -1;
    }
    return (PyObject *)self;
}

static int State_traverse(State *self, visitproc visit, void *arg)
{
    Py_VISIT(self->lock);
    Py_VISIT(self->queue);
    Py_VISIT(self->append);
    Py_VISIT(self->dead_threads);
    Py_VISIT(self->dead_events);
    Py_VISIT(self->now);
    Py_VISIT(self->prefix);
    Py_VISIT(self->sampling);
    return 0;
}

/* No field: what runs while others are cleared may call a hook. Each cycle goes through a dict, which is cleared. */
static int State_clear(State *self)
{
    self->on = 0;
    return 0;
}

static void State_dealloc(State *self)
{
    PyObject_GC_UnTrack(self);
    self->on = 0;
    Py_CLEAR(self->lock);
    self->packed = NULL;
    Py_CLEAR(self->queue);
    Py_CLEAR(self->append);
    Py_CLEAR(self->dead_threads);
    Py_CLEAR(self->dead_events);
    Py_CLEAR(self->now);
    Py_CLEAR(self->prefix);
    Py_CLEAR(self->sampling);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef State_methods[] = {
    {"add", (PyCFunction)State_add, METH_O, "A line of an op, whose names are known and whose ids are copied."},
    {"hand_on", (PyCFunction)State_hand_on, METH_O, "The calling thread hands on what it knows: the token's name."},
    {"hand_on_at", (PyCFunction)State_hand_on_at, METH_O, "The same, and the number of the latest op."},
    {"taken", (PyCFunction)State_taken, METH_O, "The calling thread took what was handed on."},
    {"add_ids", (PyCFunction)State_add_ids, METH_VARARGS, "What happens to the lives of blocks of one pool."},
    {"pack_copy", (PyCFunction)(void (*)(void))State_pack_copy, METH_FASTCALL, "A batch, packed at once; whether it was."},
    {"drop_events", (PyCFunction)State_drop_events, METH_NOARGS, "Whether the ends of events were put in here."},
    {"hold", (PyCFunction)State_hold, METH_VARARGS, "A blocking call begins: the fields of its `Sync`."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef State_members[] = {
    {"on", T_BOOL, offsetof(State, on), 0, NULL},
    {"lock", T_OBJECT_EX, offsetof(State, lock), 0, NULL},
    {"batch", T_PYSSIZET, offsetof(State, batch), 0, NULL},
    {"blocked", T_PYSSIZET, offsetof(State, blocked), 0, NULL},
    {"streams_gone", T_PYSSIZET, offsetof(State, gone), 0, NULL},
    {"_size", T_PYSSIZET, offsetof(State, size), 0, NULL},
    {"_count", T_PYSSIZET, offsetof(State, count), 0, NULL},
    {"prefix", T_OBJECT_EX, offsetof(State, prefix), 0, NULL},
    {"sampling", T_OBJECT, offsetof(State, sampling), 0, NULL},
    {"_tokens", T_PYSSIZET, offsetof(State, tokens), 0, NULL},
    {"_sealed", T_PYSSIZET, offsetof(State, sealed), 0, NULL},
    {"_dead_threads", T_OBJECT_EX, offsetof(State, dead_threads), 0, NULL},
    {"_dead_events", T_OBJECT_EX, offsetof(State, dead_events), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef State_getset[] = {
    {"_queue", (getter)State_get_queue, (setter)State_set_queue, NULL, NULL},
    {"now", (getter)State_get_now, (setter)State_set_now, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyTypeObject StateType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "kvsan.checker.attach._hot.State",
    .tp_doc = "The part of a recorder that each line passes.",
    .tp_basicsize = sizeof(State),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_new = State_new,
    .tp_dealloc = (destructor)State_dealloc,
    .tp_traverse = (traverseproc)State_traverse,
    .tp_clear = (inquiry)State_clear,
    .tp_methods = State_methods,
    .tp_members = State_members,
    .tp_getset = State_getset,
};

#endif
