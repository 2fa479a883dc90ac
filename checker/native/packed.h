/* A queue of lines on their way to the process beside, as MessagePack from the moment that they are put in: no object is
   kept, so there is nothing for the garbage collector, and nothing to be fetched again when they are handed over.

   What MessagePack has no form for, `lines.encoded` makes plain: a line with any of that goes through it whole. A line of
   blocks' lives waits until the next one comes, since neighbours become one (`state_life`).

   `lines.encoded` runs code of whoever made the values (`item`, `__str__`, what the garbage collector ends), which may
   put in lines, take what is there, or let all of it go; nothing else here does. So lines that come meanwhile follow the
   one that is being made plain (`later`), as their numbers do, and what is taken meanwhile are the lines before it. */

#ifndef KVSAN_PACKED_H
#define KVSAN_PACKED_H

#include "life.h"
#include "pack.h"

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

/* Not while one is being made plain. Where it fails, nothing of the line is left. */
static int pack_line(Packed *self, PyObject *line)
{
    size_t before;
    int done;
    if (self->used == 0) {
        if (pack_room(self, HEAD) < 0)
            return -1;
        self->used = HEAD;
    }
    before = self->used;
    done = (PyTypeObject *)Py_TYPE(line) == held_class ? pack_held(self, (Held *)line) : pack_value(self, line, 0);
    if (done != 0)
        self->used = before;
    if (done == 1) {
        self->busy = 1;
        done = pack_slowly(self, line);
        self->busy = 0;
    }
    if (done == 0)
        self->count++;
    return done;
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
    if ((self->later == NULL && (self->later = PyList_New(0)) == NULL) || PyList_Append(self->later, line) < 0)
        return -1;
    self->count++;
    return 0;
}

/* The line of lives that waits goes in, but for those that came while that was done. */
static int packed_settle_one(Packed *self)
{
    Life life = self->life;
    PyObject *line = NULL;
    int done;
    memset(&self->life, 0, sizeof(self->life));
    self->count--;
    done = pack_waits(self) ? 1 : pack_life(self, &life);
    if (done == 1) {
        done = -1;
        if ((line = life_line(&life)) != NULL)
            done = pack_waits(self) ? pack_wait(self, line) : pack_line(self, line);
        Py_XDECREF(line);
    }
    if (self->life.ids == NULL) { /* its memory is for the next one */
        self->life.ids = life.ids;
        self->life.room = life.room;
    } else
        PyMem_Free(life.ids);
    life.ids = NULL;
    life_drop(&life);
    return done;
}

/* The same, and those too: none waits then. The next line gets its number after this. */
static int packed_settle(Packed *self)
{
    int done = 0;
    if (!life_waits(&self->life))
        return 0;
    Py_INCREF(self); /* another queue may come in its place meanwhile (`listen`) */
    while (life_waits(&self->life) && done == 0) {
        int waits = pack_waits(self);
        done = packed_settle_one(self);
        if (!waits)
            done = pack_later(self, done);
    }
    Py_DECREF(self);
    return done;
}

/* The line has its number already: what comes while the one before it is packed, or while it is, follows it. */
static int packed_append(Packed *self, PyObject *line)
{
    int done = 0;
    if (pack_waits(self))
        return packed_settle(self) < 0 ? -1 : pack_wait(self, line);
    Py_INCREF(self);
    if (life_waits(&self->life))
        done = packed_settle_one(self);
    if (done == 0)
        done = pack_line(self, line);
    done = pack_later(self, done);
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
    self->used = 0;
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
    life_drop(&self->life);
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
    Py_ssize_t waiting = 0;
    (void)unused;
    if (pack_waits(self))
        waiting = life_waits(&self->life) + (self->later != NULL ? PyList_GET_SIZE(self->later) : 0);
    else if (packed_settle(self) < 0)
        return NULL;
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
    Py_VISIT(self->life.line);
    return 0;
}

static void Packed_dealloc(Packed *self)
{
    PyObject_GC_UnTrack(self);
    life_drop(&self->life);
    PyMem_Free(self->life.ids);
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
