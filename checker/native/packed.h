/* A queue of lines on their way to the process beside, as MessagePack from the moment that they are put in: no object is
   kept, so there is nothing for the garbage collector, and nothing to be fetched again when they are handed over.

   What MessagePack has no form for, `lines.encoded` makes plain: a line with any of that goes through it whole, one of
   blocks' lives item by item, since more ids may follow (`life.h`).

   `lines.encoded` runs code of whoever made the values (`item`, `__str__`, what the garbage collector ends), which may
   put in lines, take what is there, or let all of it go; nothing else here does. So lines that come meanwhile follow the
   one that is being made plain (`later`), as their numbers do, and what is taken meanwhile are the lines before it. */

#ifndef KVSAN_PACKED_H
#define KVSAN_PACKED_H

#include "life.h"
#include "pack.h"

static PyTypeObject PackedType;

/* ── lines ────────────────────────────────────────────────────────────────────────────────────────────────────── */

/* What has no form here, made plain by Python. */
static int pack_slowly(Packed *self, PyObject *line)
{
    PyObject *lines = PyList_New(1), *packed;
    int done = -1;
    if (lines == NULL)
        return -1;
    PyList_SET_ITEM(lines, 0, Py_NewRef(line));
    packed = PyObject_CallOneArg(encode_slowly, lines);
    Py_DECREF(lines);
    if (packed == NULL)
        return -1;
    if (PyBytes_CheckExact(packed) && PyBytes_GET_SIZE(packed) > 1) { /* but for the head of its list of one */
        if (self->used == 0 && pack_room(self, HEAD) == 0) /* all were taken meanwhile */
            self->used = HEAD;
        done = self->used == 0 ? -1 : pack_bytes(self, PyBytes_AS_STRING(packed) + 1, (size_t)PyBytes_GET_SIZE(packed) - 1);
    } else
        PyErr_SetString(PyExc_TypeError, "a line that has no form");
    Py_DECREF(packed);
    return done;
}

static COLD int pack_life(Packed *self, PyObject *line);

/* Whether it is `(code, by, pool, [id, …], now)`. */
static int is_life(PyObject *line)
{
    long long code, now;
    int over, too;
    if (!PyTuple_CheckExact(line) || PyTuple_GET_SIZE(line) != 5 || !PyList_CheckExact(PyTuple_GET_ITEM(line, 3)) ||
        !PyLong_CheckExact(PyTuple_GET_ITEM(line, 0)) || !PyLong_CheckExact(PyTuple_GET_ITEM(line, 4)))
        return 0;
    code = PyLong_AsLongLongAndOverflow(PyTuple_GET_ITEM(line, 0), &over);
    now = PyLong_AsLongLongAndOverflow(PyTuple_GET_ITEM(line, 4), &too);
    return code >= ALLOC && code <= TOUCH && now >= 0 && !over && !too;
}

/* A value, made plain if it has no form here. Not while one is being made plain. Where it fails, nothing of it is left. */
static int pack_item(Packed *self, PyObject *value)
{
    size_t before;
    int done;
    if (self->used == 0) {
        if (pack_room(self, HEAD) < 0)
            return -1;
        self->used = HEAD;
    }
    before = self->used;
    done = (PyTypeObject *)Py_TYPE(value) == held_class ? pack_held(self, (Held *)value) : pack_value(self, value, 0);
    if (done != 0)
        self->used = before;
    if (done == 1) {
        self->busy = 1;
        done = pack_slowly(self, value);
        self->busy = 0;
    }
    if (done == 0)
        self->count++;
    return done;
}

/* The same of a line. An item of one is none, whatever it looks like: it may hold itself. */
static int pack_line(Packed *self, PyObject *line)
{
    return is_life(line) ? pack_life(self, line) : pack_item(self, line);
}

/* The lines that came meanwhile go in, in their order. What one of them fails at is the error, and the others follow;
   `done` is what is known until here. */
static int pack_later(Packed *self, int done)
{
    while (self->later != NULL) {
        PyObject *line, *first = done < 0 ? take_error() : NULL;
        if (PyList_GET_SIZE(self->later) == 0) {
            Py_CLEAR(self->later);
        } else {
            line = Py_NewRef(PyList_GET_ITEM(self->later, 0));
            self->count--; /* it is counted once it is packed */
            if (PyList_SetSlice(self->later, 0, 1, NULL) < 0 || pack_line(self, line) < 0)
                done = -1;
            Py_DECREF(line);
        }
        if (first != NULL) {
            PyErr_Clear();
            put_back_error(first);
        }
    }
    return done;
}

/* Whether a line that comes now comes in the middle of another one: it is not put in place. */
static inline int pack_waits(Packed *self)
{
    return self->busy || self->later != NULL;
}

static int pack_wait(Packed *self, PyObject *line)
{
    int collects;
    if (self->later == NULL) { /* what ends meanwhile may make lines, which have later numbers */
        collects = PyGC_Disable();
        self->later = PyList_New(0);
        if (collects)
            PyGC_Enable();
    }
    if (self->later == NULL || PyList_Append(self->later, line) < 0)
        return -1;
    self->count++;
    return 0;
}

/* The head of a line of lives and its ids (or NULL), each made plain, in a queue of its own: a new one, or NULL with an
   error. `*size` bytes behind `*head` are the ids. */
static COLD Packed *life_made(Packed *self, long code, PyObject *by, PyObject *pool, PyObject *ids,
                              unsigned char **head, size_t *size)
{
    Packed *made;
    Py_ssize_t i;
    int done = -1;
    self->busy = 1;
    made = (Packed *)PackedType.tp_alloc(&PackedType, 0);
    if (made != NULL && pack_room(made, HEAD + 2) == 0) {
        made->used = HEAD;
        pack_number(made, 0x95, (unsigned long long)code, 1);
        done = pack_item(made, by) < 0 ? -1 : pack_item(made, pool);
        *size = made->used - HEAD;
    }
    for (i = 0; done == 0 && ids != NULL && i < PyList_GET_SIZE(ids); i++) {
        PyObject *id = Py_NewRef(PyList_GET_ITEM(ids, i)); /* it may change the list */
        done = pack_item(made, id);
        Py_DECREF(id);
    }
    self->busy = 0;
    if (done < 0)
        Py_CLEAR(made);
    else
        *head = made->bytes + HEAD;
    return made;
}

/* Its ids go into the line that is the last one. 0, or -1 with an error. */
static COLD int life_takes(Packed *self, Packed *made, size_t size)
{
    size_t from = HEAD + size;
    unsigned char *at;
    if (pack_room(self, made->used) < 0)
        return -1;
    at = life_ids(self);
    memcpy(at, made->bytes + from, made->used - from);
    life_ends(self, size, at + (made->used - from), made->count - 2);
    return 0;
}

static COLD int pack_life(Packed *self, PyObject *line)
{
    PyObject *const *items = &PyTuple_GET_ITEM(line, 0);
    unsigned char *head;
    size_t size;
    Packed *made = life_made(self, PyLong_AsLong(items[0]), items[1], items[2], items[3], &head, &size);
    int done = -1;
    if (made == NULL)
        return -1;
    if (pack_room(self, 2 * made->used + LIFE_REST) == 0) { /* its ids, too, so that it goes in whole */
        life_begins(self, head, size, PyLong_AsUnsignedLongLong(items[4]));
        done = life_takes(self, made, size);
    }
    Py_DECREF(made);
    return done;
}

/* The line has its number already: what comes while the one before it is packed, or while it is, follows it. */
static int packed_append(Packed *self, PyObject *line)
{
    int done;
    if (pack_waits(self))
        return pack_wait(self, line);
    Py_INCREF(self); /* another queue may come in its place meanwhile (`listen`) */
    done = pack_later(self, pack_line(self, line));
    Py_DECREF(self);
    return done;
}

/* ── as Python sees it ────────────────────────────────────────────────────────────────────────────────────────── */

static PyObject *Packed_append(Packed *self, PyObject *line)
{
    if (packed_append(self, line) < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* The bytes of all lines are let go. */
static void pack_dropped(Packed *self)
{
    self->used = self->life = self->life_end = 0;
    if (self->room > KEPT) { /* after a huge line */
        PyMem_Free(self->bytes);
        self->bytes = NULL;
        self->room = 0;
    }
}

static PyObject *Packed_clear(Packed *self, PyObject *unused)
{
    PyObject *later = self->later;
    (void)unused;
    pack_dropped(self);
    self->count = 0;
    self->later = NULL;
    Py_XDECREF(later); /* which may be a call */
    Py_RETURN_NONE;
}

/* The head of the array of lines, so many, which is written where they are handed over. There is room. */
static void pack_begins(Packed *self, Py_ssize_t count)
{
    size_t used = self->used ? self->used : HEAD;
    self->used = 0;
    pack_number(self, 0xdd, (unsigned long long)count, 4);
    self->used = used;
}

/* All lines as one array of MessagePack; none are left. While one is made plain, those before it. */
static PyObject *Packed_take(Packed *self, PyObject *unused)
{
    PyObject *taken;
    Py_ssize_t waiting = self->later != NULL ? PyList_GET_SIZE(self->later) : 0;
    (void)unused;
    if (self->used == 0 && pack_room(self, HEAD) < 0)
        return NULL;
    pack_begins(self, self->count - waiting);
    taken = PyBytes_FromStringAndSize((char *)self->bytes, (Py_ssize_t)self->used);
    if (taken != NULL) {
        pack_dropped(self);
        self->count = waiting;
    }
    return taken;
}

static Py_ssize_t Packed_length(Packed *self)
{
    return self->count;
}

static PyObject *Packed_sizeof(Packed *self, PyObject *unused)
{
    (void)unused;
    return PyLong_FromSize_t(sizeof(Packed) + self->room);
}

static PyObject *Packed_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    (void)args;
    (void)kwargs;
    return type->tp_alloc(type, 0);
}

/* No `tp_clear`: what it holds are lines, and each cycle goes through a dict or a list, which is cleared. */
static int Packed_traverse(Packed *self, visitproc visit, void *arg)
{
    Py_VISIT(self->later);
    return 0;
}

static void Packed_dealloc(Packed *self)
{
    PyObject_GC_UnTrack(self);
    Py_CLEAR(self->later);
    PyMem_Free(self->bytes);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef Packed_methods[] = {
    {"append", (PyCFunction)Packed_append, METH_O, "One more line."},
    {"clear", (PyCFunction)Packed_clear, METH_NOARGS, "Lets all lines go."},
    {"take", (PyCFunction)Packed_take, METH_NOARGS, "All lines as one array of MessagePack; none are left."},
    {"__sizeof__", (PyCFunction)Packed_sizeof, METH_NOARGS, "Bytes, with those of the lines and room for more."},
    {NULL, NULL, 0, NULL},
};

static PySequenceMethods Packed_sequence = {.sq_length = (lenfunc)Packed_length};

static PyTypeObject PackedType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "kvsan.checker.attach._hot.Packed",
    .tp_doc = "Lines on their way, as MessagePack.",
    .tp_basicsize = sizeof(Packed),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = Packed_new,
    .tp_dealloc = (destructor)Packed_dealloc,
    .tp_traverse = (traverseproc)Packed_traverse,
    .tp_as_sequence = &Packed_sequence,
    .tp_methods = Packed_methods,
};

#endif
